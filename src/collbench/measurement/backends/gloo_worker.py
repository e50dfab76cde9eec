"""One rank of the host backend's collectives: it times gloo's calls, and verifies all data outside the timed region."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.distributed as dist

from collbench.measurement.backends.gloo import GlooTimes
from collbench.measurement.backends.protocol import Step
from collbench.measurement.backends.torch_collectives import Blocks, call_of, layout_of
from collbench.measurement.backends.torch_rank import Answers, run
from collbench.model.operations import InPlace, Variant
from collbench.model.units import DTYPE_BYTES

# What gloo ranks send, and what must arrive: small integers, so that every reduction is exact in every dtype.


# Rank r's data is one random sequence from element r × this on: ranks differ, and no stretch of memory repeats
# another. Prime, so that no swap of aligned blocks or ranks goes unseen. So are the data of successive fillings.
_RANK_SHIFT, _FILLING_SHIFT = 4099, 577

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
    """What one rank of a step puts into its collective, and must get out of it.

    `position` and `root` are places in the rank's group; `blocks` are elements, in the group's order. `filling` chooses
    the part of the seed's random sequence that the ranks put in: another one for each filling of the step.

    A reduction in place overwrites its input, and a copy of fresh input would be timed with the iterations. So for them
    the data is `steady`: zeros to be summed and ones to be multiplied; all else repeats unharmed with the data it has.
    """

    def __init__(self, step: Step, position: int, root: int, blocks: Blocks = (), seed: int = 0) -> None:
        count, ranks = _count(step), len(step.groups[0])
        self._layout = layout_of(step.work.operation, count, position, ranks, root, blocks)
        row = step.work.operation.collective
        # Torch's calls of all-reduce, broadcast and reduce take one buffer, which holds the input.
        one_buffer = row.sends is row.receives and row.in_place is InPlace.DEFINED
        self._in_place = step.work.variant is Variant.IN_PLACE or one_buffer
        self._block = count // ranks
        self._dtype: torch.dtype = getattr(torch, step.dtype)
        self._redop = step.redop if step.work.operation.reduces else ""
        self._overwrites = bool(self._redop) and self._in_place
        self._position = position
        most = step.warmup + step.batches
        self._base = _random_base(count + ranks * _RANK_SHIFT + most * _FILLING_SHIFT, seed)
        self.filling = 0  # at most `most`

    def slot(self) -> Slot:
        """Return new buffers for one message; in place the shorter is this rank's part of the longer."""
        sends, receives = self._layout.sends, self._layout.receives
        if not self._in_place:
            buffer = torch.empty(sends + receives, dtype=self._dtype)
            return Slot(buffer[:sends], buffer[sends:])
        shorter, longer = sorted((sends, receives))
        buffer = torch.empty(longer, dtype=self._dtype)
        start = self._position * self._block if 0 < shorter < longer else 0
        inner = buffer[start : start + shorter]
        return Slot(buffer, inner) if sends >= receives else Slot(inner, buffer)

    def fill(self, slot: Slot, *, steady: bool) -> None:
        """Write what this rank puts in; where it only receives there are zeros, which no rank sends by itself."""
        slot.received.zero_()
        for start, stop in _windows(self._layout.sends):
            slot.sent[start:stop] = self._contribution(self._position, start, stop, steady=steady)

    def first_wrong(self, slot: Slot, *, steady: bool) -> tuple[int, float, float] | None:
        """Return the first received element that is not what the ranks' contributions make, as in GlooTimes."""
        for segment in self._layout.segments:
            for start, stop in _windows(segment.length):
                first, last = segment.first + start, segment.first + stop
                parts = (self._contribution(sender, first, last, steady=steady) for sender in segment.senders)
                expected = functools.reduce(_COMBINE.get(self._redop, torch.add), parts)
                delivered = slot.received[segment.start + start : segment.start + stop]
                if not torch.equal(delivered, expected):
                    at = int((delivered != expected).nonzero()[0])
                    offset = (segment.start + start + at) * delivered.element_size()
                    return offset, float(expected[at]), float(delivered[at])
        return None

    def _contribution(self, sender: int, start: int, stop: int, *, steady: bool) -> torch.Tensor:
        """Return elements [start, stop) of what the rank at position `sender` puts in.

        1 … 8, so that 15 ranks sum to no more than int8 holds; 1 or 2 to be multiplied, whose products are powers of
        two: exact in floats, and equal modulo 2^bits in integers.
        """
        if steady and self._overwrites and self._redop in _NEUTRAL:
            return torch.full((stop - start,), _NEUTRAL[self._redop], dtype=self._dtype)
        shift = sender * _RANK_SHIFT + self.filling * _FILLING_SHIFT
        values = self._base[shift + start : shift + stop]
        return ((values & 1 if self._redop == "prod" else values) + 1).to(self._dtype)


def _windows(count: int) -> Iterator[tuple[int, int]]:
    return ((start, min(start + _WINDOW, count)) for start in range(0, count, _WINDOW))


def _random_base(length: int, seed: int) -> torch.Tensor:
    """Return `length` or a few more uint8 values 0 … 7, the same in every process: eight from each random word."""
    words = torch.empty(length // 8 + 1, dtype=torch.int64).random_(generator=torch.Generator().manual_seed(seed))
    return words.view(torch.uint8).bitwise_and_(7)


def _count(step: Step) -> int:
    """Return the elements of a step's message."""
    return step.size_bytes // DTYPE_BYTES[step.dtype]


# Small messages rotate over this many bytes, beyond a core's own L2 (docs/method/measuring.md 8).
_SPAN_BYTES = 8 * 2**20


class GlooRank:
    """One rank of the world, and its process groups."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._groups: dict[tuple[int, ...], dist.ProcessGroup] = {}
        self._steps = 0  # so far, the same on all ranks

    def time(self, step: Step) -> GlooTimes:
        """Time the step in this rank's group; a rank outside all groups answers at once."""
        self._steps += 1
        for members in step.groups:
            self._group(members)
        mine = next((members for members in step.groups if self._rank in members), None)
        return GlooTimes() if mine is None else self._measure(step, mine)

    def _group(self, members: tuple[int, ...]) -> dist.ProcessGroup:
        """Return the members' process group, made by *all* ranks of the world at its first use.

        torch sorts the members: their order shapes no pair, and in larger groups only gloo's ring.
        """
        if members not in self._groups:
            # Typed as what it returns to members; the others get a placeholder, which they never use.
            self._groups[members] = cast("dist.ProcessGroup", dist.new_group(list(members), backend="gloo"))
        return self._groups[members]

    def _measure(self, step: Step, members: tuple[int, ...]) -> GlooTimes:
        group = self._group(members)
        order = sorted(members)  # as torch has them: blocks come in this order
        root = members[step.root]
        blocks = _sorted_blocks(step, members)
        call = call_of(step.work.operation, group, order, self._rank, root=root, redop=step.redop, blocks=blocks)
        message = Message(step, order.index(self._rank), order.index(root), blocks, self._steps)
        slots = [message.slot() for _ in range(_slots(step))]

        def collective(slot: Slot) -> None:
            call(slot.sent, slot.received)

        message.fill(slots[0], steady=False)
        collective(slots[0])  # untimed: real data, and the group's first use opens its connections
        wrong = message.first_wrong(slots[0], steady=False) if step.verify else None
        times = []
        for _ in range(step.warmup + step.batches):
            message.filling += 1
            for slot in slots:
                message.fill(slot, steady=True)
            times.append(_time_batch(collective, slots, step.iterations, group))
        waits, seconds = zip(*times, strict=True)
        for slot in slots if step.verify else ():
            wrong = wrong or message.first_wrong(slot, steady=True)
        return GlooTimes(seconds[step.warmup :], waits[step.warmup :], wrong)


def _sorted_blocks(step: Step, members: Sequence[int]) -> Blocks:
    """Return the step's blocks, which are bytes in the members' order, as elements in the order of their ranks."""
    order = sorted(range(len(members)), key=lambda index: members[index])
    width = DTYPE_BYTES[step.dtype]
    return [[step.blocks[src][dst] // width for dst in order] for src in order] if step.blocks else ()


def _slots(step: Step) -> int:
    """Return how many messages the iterations rotate over: enough for _SPAN_BYTES, no more than are used."""
    return min(step.iterations, max(1, _SPAN_BYTES // step.size_bytes))


def _time_batch(
    run: Callable[[Slot], object], slots: Sequence[Slot], iterations: int, group: dist.ProcessGroup
) -> tuple[float, float]:
    """Return this rank's seconds until the group had met, and per iteration, back to back after that."""
    order = [slots[i % len(slots)] for i in range(iterations)]
    arrived = time.perf_counter()
    dist.barrier(group=group)
    start = time.perf_counter()
    for slot in order:
        run(slot)
    return start - arrived, (time.perf_counter() - start) / iterations


def _no_device(_backend: str, _core: int) -> None:
    """Open nothing: the process is on its core already."""


def _answers(rank: int, _ranks: int, _device: None) -> Answers:
    return {Step: GlooRank(rank).time}


if __name__ == "__main__":
    run(sys.argv[1:], _no_device, _answers)
