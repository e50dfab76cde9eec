"""One rank of `collbench overlap`: a collective of torch.distributed that overlaps torch's compute, both verified."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from collbench.measurement.backends.torch_collectives import Call, call_of, hashed, layout_of
from collbench.measurement.backends.torch_rank import Answers, run
from collbench.model.operations import Operation
from collbench.model.run import Compute, ComputeKind
from collbench.model.units import DTYPE_BYTES
from collbench.overlaps.protocol import DTYPE, LAUNCHES_AHEAD, Done, Load, OverlapPoint, RankTimes, Warm
from collbench.overlaps.streams import Accelerator, CpuAccelerator, CudaAccelerator, StreamWork

# The collective: its buffers, what they hold, what must arrive.

_MOST_SLOTS = 16
# Elements made at a time, so that a message's data costs no further messages of 64-bit integers.
_WINDOW = 2**24
# Ranks and slots hold the same random sequence from other elements on: primes, so that no swap of blocks goes unseen.
_RANK_SHIFT, _SLOT_SHIFT = 4099, 104729
# 2^100 times a small integer, in the last of a cycle of rounds, is still a bfloat16.
_LARGEST_SCALE = 100
# Rounds send the same numbers times another power of two, so that a result of an earlier round is wrong everywhere.
_ROUNDS = 16


def elements(rank: int, slot: int, first: int, count: int, device: torch.device) -> torch.Tensor:
    """Return elements [first, first + count) of what a rank sends in a slot: 1 to 4, so that 64 ranks sum exactly."""
    made = torch.empty(count, dtype=getattr(torch, DTYPE), device=device)
    shift = first + rank * _RANK_SHIFT + slot * _SLOT_SHIFT
    for start in range(0, count, _WINDOW):
        stop = min(start + _WINDOW, count)
        made[start:stop] = (hashed(shift + start, stop - start, device) & 3) + 1
    return made


@dataclass(slots=True)
class Slot:
    """One message's buffers on this rank, in place where `sent` is `received`; `fresh` and `expected` as in round 0.

    `uses` counts how often the collective has run on it since it was filled.
    """

    sent: torch.Tensor
    received: torch.Tensor
    fresh: torch.Tensor
    expected: torch.Tensor
    uses: int = 0


class Messages:
    """The slots over which a collective of `size_bytes` rotates, among all ranks."""

    def __init__(
        self, operation: Operation, size_bytes: int, rank: int, ranks: int, span: int, device: torch.device
    ) -> None:
        self._operation, self._rank, self._ranks, self._device = operation, rank, ranks, device
        self._count = size_bytes // DTYPE_BYTES[DTYPE]
        slots = max(1, min(_MOST_SLOTS, span // size_bytes))
        self.slots = [self._slot(number) for number in range(slots)]
        self._factor = 1.0

    def fill(self, number: int) -> None:
        """Write what this rank sends in that round; where it only receives there are zeros, which no rank sends."""
        self._factor = 2.0 ** (number % _ROUNDS)
        for slot in self.slots:
            slot.received.zero_()
            torch.mul(slot.fresh, self._factor, out=slot.sent)
            slot.uses = 0

    def wrong(self) -> int | None:
        """Return how many received elements are not what the ranks sent, of slots in use; None if it is unknown.

        An all-reduce in place sums its own result again: n ranks multiply it by n each time, which is exact where n is
        a power of two.
        """
        count, compared = 0, False
        for slot in self.slots:
            scale = self._scale(slot)
            if scale is not None:
                compared = True
                expected = slot.expected if scale == 1 else slot.expected * scale
                count += int((slot.received != expected).sum())
        return count if compared else None

    def _scale(self, slot: Slot) -> float | None:
        if slot.uses == 0:
            return None
        if self._operation is not Operation.ALLREDUCE or slot.uses == 1:
            return self._factor
        bits = self._ranks.bit_length() - 1
        exact = 1 << bits == self._ranks and bits * slot.uses <= _LARGEST_SCALE
        return self._factor * self._ranks ** (slot.uses - 1) if exact else None

    def _slot(self, number: int) -> Slot:
        layout = layout_of(self._operation, self._count, self._rank, self._ranks)
        expected = torch.empty(layout.receives, dtype=getattr(torch, DTYPE), device=self._device)
        for segment in layout.segments:
            part = expected[segment.start : segment.start + segment.length].zero_()
            for sender in segment.senders:
                part += elements(sender, number, segment.first, segment.length, self._device)
        received = torch.empty_like(expected)
        in_place = self._operation in (Operation.ALLREDUCE, Operation.BROADCAST)
        # A rank that only receives, in place, begins with zeros.
        fresh = (
            elements(self._rank, number, 0, layout.sends, self._device) if layout.sends else torch.zeros_like(expected)
        )
        return Slot(received if in_place else fresh.clone(), received, fresh, expected)


# The compute that the collective overlaps, and its result.

# A transformer layer of 7B parameters: 32 heads of 128 (Llama 2 7B).
_HEADS, _HEAD_WIDTH = 32, 128


@dataclass(frozen=True, slots=True)
class Unit:
    """One unit of compute. `run` queues it; `result` is what it writes, the same each time."""

    run: Callable[[], object]
    result: torch.Tensor


def unit_of(
    compute: Compute, device: torch.device, dtype: torch.dtype, heads: int = _HEADS, width: int = _HEAD_WIDTH
) -> Unit:
    """Return a unit of compute with random operands."""
    random = torch.Generator(device=device).manual_seed(1)

    def operand(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random, device=device, dtype=dtype)

    if compute.kind is ComputeKind.GEMM:
        n = compute.size
        a, b, result = operand(n, n), operand(n, n), torch.empty(n, n, device=device, dtype=dtype)
        return Unit(lambda: torch.mm(a, b, out=result), result)
    if compute.kind is ComputeKind.MEMORY:
        count = compute.size * 2**20 // dtype.itemsize
        a, b, result = operand(count), operand(count), torch.empty(count, device=device, dtype=dtype)
        return Unit(lambda: torch.add(a, b, out=result), result)
    tokens, hidden = compute.size, heads * width
    # Scaled, so that products of 4096 random numbers stay near 1.
    scale = hidden**-0.5
    entered, inward, outward = operand(tokens, hidden), operand(hidden, 3 * hidden), operand(hidden, hidden)
    inward *= scale
    outward *= scale
    result = torch.empty(tokens, hidden, device=device, dtype=dtype)

    def attend() -> None:
        parts = torch.mm(entered, inward).view(tokens, 3, heads, width).permute(1, 2, 0, 3).unsqueeze(1)
        mixed = torch.nn.functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        torch.mm(mixed[0].transpose(0, 1).reshape(tokens, hidden), outward, out=result)

    return Unit(attend, result)


class Rank:
    """One rank's process, and what it has allocated for the current data point."""

    def __init__(self, rank: int, ranks: int, accelerator: Accelerator) -> None:
        self._rank, self._ranks, self._accelerator = rank, ranks, accelerator
        self._point: OverlapPoint | None = None
        self._messages: Messages | None = None
        self._unit: tuple[Compute, Unit, torch.Tensor] | None = None
        self._chunks: dict[int, Callable[[], object]] = {}  # of that unit, by units per launch
        self._tiny = torch.zeros(1, device=accelerator.device)
        self._group: dist.ProcessGroup | None = None
        self._rounds = itertools.count()  # of what is sent; the same on all ranks, which get the same requests

    def allocate(self, point: OverlapPoint) -> Done:
        """Make room for a data point; the answer says why if that fails."""
        first_round = next(self._rounds)  # also where there is no room: other ranks may have some
        self._accelerator.finish()
        self._point, self._messages = point, None
        device = self._accelerator.device
        try:
            if self._unit is None or self._unit[0] != point.compute:
                self._unit, self._chunks = None, {}
                unit = unit_of(point.compute, device, self._accelerator.compute_dtype)
                unit.run()  # isolated: the expected result when it overlaps the collective
                self._accelerator.finish()
                self._unit = (point.compute, unit, unit.result.clone())
            span = self._accelerator.span_bytes
            self._messages = Messages(point.operation, point.size_bytes, self._rank, self._ranks, span, device)
            self._messages.fill(first_round)
            self._accelerator.finish()
        except (torch.cuda.OutOfMemoryError, MemoryError) as error:
            self._messages = None
            return Done(str(error).splitlines()[0] if str(error) else "out of memory")
        return Done()

    def warm(self) -> Done:
        """Create the communicator for the point's priority and CTAs, and run the collective and the compute once."""
        point, messages, (_, unit, _) = self._allocated()
        self._group = self._accelerator.group(self._ranks, point.priority, point.ctas)
        slot, call = messages.slots[0], self._call(point, self._group)
        once = StreamWork(1, lambda _number: call(slot.sent, slot.received))
        self._accelerator.run_both(self._align, once, StreamWork(1, lambda _number: unit.run()), 0.0)
        return Done()

    def run(self, load: Load) -> RankTimes:
        """Run a load, and verify the last result of the collective and of the compute, if they ran."""
        point, messages, (_, unit, isolated) = self._allocated()
        if self._group is None:
            raise RuntimeError("the data point was not warmed up")
        call, slots = self._call(point, self._group), messages.slots
        messages.fill(next(self._rounds))
        unit.result.zero_()
        self._accelerator.finish()

        def collective(chunk: int) -> None:
            for number in range(chunk * load.calls, (chunk + 1) * load.calls):
                slot = slots[number % len(slots)]
                call(slot.sent, slot.received)
                slot.uses += 1

        works = (
            StreamWork(load.collective_chunks, collective, load.idle_s),
            StreamWork(load.compute_chunks, self._chunk(load, unit)),
        )
        times = self._accelerator.run_both(self._align, *works, load.delay_s)
        wrong_compute = int((unit.result != isolated).sum()) if load.compute_chunks else None
        wrong = messages.wrong() if load.collective_chunks else None
        if load.collective_chunks * load.calls > len(slots):
            # In a slot that was used again, an earlier result is gone: one more call, untimed, would show another.
            messages.fill(next(self._rounds))
            self._accelerator.finish()
            call(slots[0].sent, slots[0].received)
            slots[0].uses = 1
            self._accelerator.finish()
            wrong = (wrong or 0) + (messages.wrong() or 0)
        return RankTimes(times.collective, times.compute, times.begins, times.queued, wrong, wrong_compute)

    def _chunk(self, load: Load, unit: Unit) -> Callable[[int], object]:
        """Return a function that queues a chunk of compute: its units one by one, or in one launch if too many."""
        if load.compute_launches <= LAUNCHES_AHEAD:
            return lambda _chunk: [unit.run() for _ in range(load.units)]
        if load.units not in self._chunks:
            self._chunks[load.units] = self._accelerator.as_one(unit.run, load.units)
        chunk = self._chunks[load.units]
        return lambda _chunk: chunk()

    def _call(self, point: OverlapPoint, group: dist.ProcessGroup) -> Call:
        return call_of(point.operation, group, range(self._ranks), self._rank)

    def _align(self) -> None:
        dist.all_reduce(self._tiny, group=self._group)

    def _allocated(self) -> tuple[OverlapPoint, Messages, tuple[Compute, Unit, torch.Tensor]]:
        if self._point is None or self._messages is None or self._unit is None:
            raise RuntimeError("nothing is allocated: the first request must be a data point")
        return self._point, self._messages, self._unit


# The process.


def opened(backend: str, index: int) -> Accelerator:
    """Open the GPU or the core."""
    return CudaAccelerator(index) if backend == "cuda" else CpuAccelerator()


def answers_of(number: int, ranks: int, accelerator: Accelerator) -> Answers:
    """Return what answers each request."""
    rank = Rank(number, ranks, accelerator)
    return {OverlapPoint: rank.allocate, Warm: lambda _: rank.warm(), Load: rank.run}


if __name__ == "__main__":
    run(sys.argv[1:], opened, answers_of)
