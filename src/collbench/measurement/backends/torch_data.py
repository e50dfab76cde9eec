"""What ranks of torch.distributed send, and what must arrive: made, and compared without waiting. Loads torch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from collbench.measurement.backends.torch_collectives import Layout

# Elements made and compared at a time: they stay in a core's cache, and a message costs no second one of GPU memory.
_CORE_WINDOW, _GPU_WINDOW = 2**18, 2**22
# All data are one random sequence of bytes, which repeats after a prime number of elements. Ranks, fillings and buffers
# begin elsewhere in it, by primes: no swap of blocks or ranks, and no earlier result, goes unseen.
_PERIOD = 2**22 - 3
_RANK_SHIFT, _FILLING_SHIFT, _SALT_SHIFT = 4099, 104729, 7919

# The largest integer up to which a type has all, and the largest power of two that it has.
_EXACT = {
    "float8_e4m3fn": (16, 8),
    "float8_e5m2": (8, 15),
    "bfloat16": (256, 127),
    "float16": (2048, 15),
    "int8": (127, 62),
    "uint8": (255, 62),
}
_WIDE = 2**15, 62  # others have more
_MAX_VALUE = 8  # more different values find no more faults
# What a reduction in place does not carry away when it is repeated.
_NEUTRAL = {"sum": 0, "avg": 0, "prod": 1}
_COMBINE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.add,
    "avg": torch.add,
    "prod": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
}


def values_of(dtype: str, redop: str, ranks: int) -> range:
    """Return the integers that each rank may send so that the result is exact in this type; none if it cannot be.

    Zero, which no buffer must keep, is among them only where there would be a single one. `redop` is "" for what only
    moves.
    """
    largest, exponent = _EXACT.get(dtype, _WIDE)
    match redop:
        case "":
            return range(1, 256)
        case "prod":  # powers of two; integers wrap, equally everywhere
            return range(1, 3) if ranks <= exponent else range(0)
        case "avg" if "float" not in dtype or ranks & (ranks - 1):
            return range(0)
        case "sum" | "avg":
            most = min(_MAX_VALUE, largest // ranks)
            return range(int(most > 1), most + 1) if most else range(0)
    return range(1, _MAX_VALUE + 1)


@functools.cache
def _sequence(device: torch.device) -> torch.Tensor:
    """Return the random sequence, and after it what a window needs that begins near its end."""
    generator = torch.Generator().manual_seed(1)
    whole = torch.randint(0, 256, (_PERIOD,), dtype=torch.uint8, generator=generator)
    return torch.cat([whole, whole[: _window(device)]]).to(device)


def _window(device: torch.device) -> int:
    return _CORE_WINDOW if device.type == "cpu" else min(_GPU_WINDOW, _PERIOD)


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of element, how it is reduced ("" if it only moves), and by how many ranks."""

    dtype: str
    redop: str
    ranks: int


class Message:
    """One rank's buffers of a collective, with what it sends in them and what it must receive.

    `sent` and `received` share memory if the call works in place. Whoever makes a call counts it in `uses`.
    """

    def __init__(
        self, kind: Kind, layout: Layout, sender: int, device: torch.device, *, in_place: bool, salt: int = 0
    ) -> None:
        """Take memory. `sender` is this rank as the layout's segments name it; ranks that share a call share `salt`."""
        self._kind, self._layout, self._sender = kind, layout, sender
        self._values = values_of(kind.dtype, kind.redop, kind.ranks)
        self._salt = salt * _SALT_SHIFT
        self._overwrites = bool(kind.redop) and in_place
        self._filling = 0
        self._constant: int | None = None  # that all ranks send
        self.uses = 0
        sizes, dtype = (layout.sends, layout.receives), getattr(torch, kind.dtype)
        if not in_place:
            self.sent, self.received = (torch.empty(size, dtype=dtype, device=device) for size in sizes)
            return
        # The shorter one is this rank's block of the longer.
        shorter, longer = sorted(sizes)
        start = sender * shorter if shorter < longer else 0
        buffer = torch.empty(longer, dtype=dtype, device=device)
        inner = buffer[start : start + shorter]
        self.sent, self.received = (buffer, inner) if sizes[0] >= sizes[1] else (inner, buffer)

    @property
    def known(self) -> bool:
        """True if there is one right result, and this rank receives some of it."""
        return bool(self._layout.segments and self._values)

    @property
    def comparable(self) -> bool:
        """True if what it holds now is known, too: a sum in place that is repeated multiplies its own result."""
        return self.known and self._growth() is not None

    def fill(self, filling: int, *, steady: bool = False) -> None:
        """Write what this rank sends in the filling of that number; where it only receives there are zeros.

        With `steady`, a reduction in place that is repeated has the same result each time.
        """
        self._filling, self.uses = filling, 0
        self._constant = _NEUTRAL.get(self._kind.redop) if steady and self._overwrites else None
        self.received.zero_()
        for start, stop in self._windows(self._layout.sends):
            self.sent[start:stop] = self._contribution(self._sender, start, stop)

    def compared(self) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
        """Yield windows of what is received: their first element, what is there, and what must be."""
        growth = self._growth()
        if not self.known or growth is None:
            return
        floating = self.received.is_floating_point()
        exact = torch.float64 if floating else torch.int64
        for segment in self._layout.segments:
            for start, stop in self._windows(segment.length):
                first, last = segment.first + start, segment.first + stop
                parts = (self._contribution(sender, first, last) for sender in segment.senders)
                if self._kind.redop:
                    expected = functools.reduce(_COMBINE[self._kind.redop], (part.to(exact) for part in parts)) * growth
                    if self._kind.redop == "avg":
                        expected /= self._kind.ranks
                else:
                    expected = next(parts)
                begin = segment.start + start
                delivered = self.received[begin : begin + stop - start]
                yield begin, delivered, expected.to(delivered.dtype)

    def wrong(self, count: torch.Tensor) -> None:
        """Add to `count`, which is on the device, how many received elements are not what they must be."""
        for _, delivered, expected in self.compared():
            count += (delivered != expected).sum()

    def first_wrong(self) -> tuple[int, float, float] | None:
        """Return the first wrong element: its byte offset, what it must be, and what it is."""
        for begin, delivered, expected in self.compared():
            if not torch.equal(delivered, expected):
                at = int((delivered != expected).nonzero()[0])
                return (begin + at) * delivered.element_size(), float(expected[at]), float(delivered[at])
        return None

    def _growth(self) -> int | None:
        """Return by what repetition has multiplied the first result; None if that is not exact, or nothing was used."""
        if self.uses == 0:
            return None
        if self.uses == 1 or not self._overwrites or self._constant is not None or self._kind.redop in ("min", "max"):
            return 1
        ranks = self._kind.ranks
        doublings = (ranks.bit_length() - 1) * (self.uses - 1)
        room = _EXACT.get(self._kind.dtype, _WIDE)[1] - _MAX_VALUE
        exact = self._kind.redop == "sum" and self.received.is_floating_point() and ranks & (ranks - 1) == 0
        return 2**doublings if exact and doublings <= room else None

    def _contribution(self, sender: int, start: int, stop: int) -> torch.Tensor:
        """Return elements [start, stop) of what a rank sends."""
        if self._constant is not None:
            return torch.full((stop - start,), self._constant, dtype=self.sent.dtype, device=self.sent.device)
        shift = sender * _RANK_SHIFT + self._filling * _FILLING_SHIFT + self._salt
        at = (start + shift) % _PERIOD
        part = _sequence(self.sent.device)[at : at + stop - start]
        return (part % len(self._values) + self._values.start if self._values else part).to(self.sent.dtype)

    def _windows(self, count: int) -> Iterator[tuple[int, int]]:
        width = _window(self.sent.device)
        return ((start, min(start + width, count)) for start in range(0, count, width))
