"""What gloo ranks send, and what must arrive: small integers, so that every reduction is exact in every dtype."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from collbench.backends.gloo_layout import REDUCING, layout
from collbench.backends.gloo_messages import Task, Wrong

# Rank r's data is one random sequence from element r × this on: ranks differ, and no stretch of memory repeats
# another. Prime, so that no swap of aligned blocks or ranks goes unseen.
_RANK_SHIFT = 4099

# Elements made and compared at a time: they stay in cache, and a message costs no second message of memory.
_WINDOW = 2**18

_COMBINE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.add,
    "prod": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
}

# What a reduction in place does not carry away when it is repeated; minimum and maximum keep any result.
_NEUTRAL = {"sum": 0, "prod": 1}


@dataclass(frozen=True, slots=True)
class Slot:
    """One message's elements: what the rank sends and where it receives, in one buffer or in two."""

    sent: torch.Tensor
    received: torch.Tensor


class Message:
    """What the rank at `position` of `members` ranks puts into the task's collective, and must get out of it.

    A reduction in place overwrites its input, and a copy of fresh input would be timed with the iterations. So for them
    the data is `steady`: zeros to be summed and ones to be multiplied; all else repeats unharmed with the data it has.
    """

    def __init__(self, task: Task, position: int, members: int) -> None:
        self._layout = layout(task, position, members)
        self._dtype: torch.dtype = getattr(torch, task["dtype"])
        self._redop = task["redop"] if task["operation"] in REDUCING else ""
        self._overwrites = bool(self._redop) and self._layout.shared
        self._position = position
        self._base = _random_base(task["count"] + members * _RANK_SHIFT)

    def slot(self) -> Slot:
        """Return new buffers for one message."""
        elements = self._layout
        buffer = torch.empty(elements.length, dtype=self._dtype)
        if not elements.shared:
            return Slot(buffer[: elements.sent], buffer[elements.sent :])
        inner = slice(elements.place, elements.place + min(elements.sent, elements.received))
        return Slot(buffer, buffer[inner]) if elements.sent >= elements.received else Slot(buffer[inner], buffer)

    def fill(self, slot: Slot, *, steady: bool) -> None:
        """Write what this rank puts in; where it only receives there are zeros, which no rank sends by itself."""
        slot.received.zero_()
        for start, stop in _windows(self._layout.sent):
            slot.sent[start:stop] = self._contribution(self._position, start, stop, steady=steady)

    def first_wrong(self, slot: Slot, *, steady: bool) -> Wrong | None:
        """Return the first received element that is not what the ranks' contributions make, or None."""
        for segment in self._layout.segments:
            for start, stop in _windows(segment.length):
                first, last = segment.offset + start, segment.offset + stop
                parts = (self._contribution(sender, first, last, steady=steady) for sender in segment.senders)
                expected = functools.reduce(_COMBINE.get(self._redop, torch.add), parts)
                found = slot.received[segment.start + start : segment.start + stop]
                if not torch.equal(found, expected):
                    at = int((found != expected).nonzero()[0])
                    offset = (segment.start + start + at) * found.element_size()
                    return offset, float(expected[at]), float(found[at])
        return None

    def _contribution(self, sender: int, start: int, stop: int, *, steady: bool) -> torch.Tensor:
        """Return elements [start, stop) of what the rank at position `sender` puts in.

        1 … 8, so that 15 ranks sum to no more than int8 holds; 1 or 2 to be multiplied, whose products are powers of
        two: exact in floats, and equal modulo 2^bits in integers.
        """
        if steady and self._overwrites and self._redop in _NEUTRAL:
            return torch.full((stop - start,), _NEUTRAL[self._redop], dtype=self._dtype)
        shift = sender * _RANK_SHIFT
        values = self._base[shift + start : shift + stop]
        return ((values & 1 if self._redop == "prod" else values) + 1).to(self._dtype)


def _windows(count: int) -> Iterator[tuple[int, int]]:
    return ((start, min(start + _WINDOW, count)) for start in range(0, count, _WINDOW))


def _random_base(length: int) -> torch.Tensor:
    """Return `length` or a few more uint8 values 0 … 7, the same in every process: eight from each random word."""
    words = torch.empty(length // 8 + 1, dtype=torch.int64).random_(generator=torch.Generator().manual_seed(length))
    return words.view(torch.uint8).bitwise_and_(7)
