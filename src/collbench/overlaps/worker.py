"""One rank of `collbench overlap`: a collective of torch.distributed that overlaps torch's compute, both verified."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from collbench.measurement.backends.torch_rank import Elements, Message, call_of, part_of, run, takes_one_buffer
from collbench.model.units import DTYPE_BYTES
from collbench.overlaps.results import DTYPE, LAUNCHES_AHEAD, Compute, ComputeKind, Load, Overlap, Priority, RankTimes
from collbench.overlaps.streams import Device, Stream, opened, room, seconds_between


@dataclass(frozen=True, slots=True)
class StreamWork:
    """The work of one stream: `chunks` calls of `chunk(number)`, which queues its work and does not wait for it.

    With `idle_s` each chunk has its own round and the stream idles that many seconds before it (results.Load).
    """

    stream: Stream
    chunks: int
    chunk: Callable[[int], object]
    idle_s: tuple[float, ...] = ()

    def queue(self, number: int) -> Any:
        """Queue a chunk; return its end."""
        self.stream.do(lambda: self.chunk(number))
        return self.stream.stamp()


def run_both(
    device: Device, align: Callable[[], object], collective: StreamWork, compute: StreamWork, delay_s: float
) -> RankTimes:
    """Return the times of both from a common start, which comes `delay_s` after this call at the earliest.

    `align`, a tiny collective, brings the ranks together before it. A GPU takes all work before the start: its streams
    then wait for one event.
    """
    side, main = collective.stream, compute.stream
    side.sleep(delay_s)
    start = _together(align, side, main)
    collective_ends, compute_ends, begins = list[Any](), list[Any](), list[Any]()
    if not collective.idle_s:
        collective_ends = [collective.queue(number) for number in range(collective.chunks)]
        compute_ends = [compute.queue(number) for number in range(compute.chunks)]
    for number, rest in enumerate(collective.idle_s):
        if number:
            side.wait(compute_ends[-1])
            _together(align, side, main)
        ends = [compute.queue(chunk) for chunk in range(compute.chunks)]
        side.sleep(rest)
        if not device.runs_ahead:
            side.wait(ends[0])
        begins.append(side.stamp())
        collective_ends.append(collective.queue(number))
        if not device.runs_ahead:
            ends[-1] = _lasting(compute, collective_ends[-1])
        compute_ends += ends
    queued = not (device.runs_ahead and start.query())
    device.finish()

    def seconds(moments: Sequence[Any]) -> tuple[float, ...]:
        return tuple(seconds_between(start, moment) for moment in moments)

    return RankTimes(seconds(collective_ends), seconds(compute_ends), seconds(begins), queued)


def _together(align: Callable[[], object], side: Stream, main: Stream) -> Any:
    """Hold both streams until all ranks have reached this point; return the moment that releases them."""
    side.do(align)
    met = side.stamp()
    main.wait(met)
    return met


def _lasting(compute: StreamWork, end: Any) -> Any:
    """Let compute continue until the call has ended, and return its own end.

    Other processes use cores, too, so compute of a fixed length may not cover a call.
    """

    def until_ended() -> None:
        while not end.query():
            compute.chunk(compute.chunks - 1)

    compute.stream.do(until_ended)
    return compute.stream.stamp()


# Messages rotate over this many bytes: beyond an H200's L2 of 50 MiB, and a core's own (docs/method/measuring.md 8).
_GPU_SPAN, _CORE_SPAN = 256 * 2**20, 8 * 2**20
_MAX_MESSAGES = 16


@dataclass(frozen=True, slots=True)
class Unit:
    """One unit of compute. `run` queues it; `result` is what it writes, the same each time."""

    run: Callable[[], object]
    result: torch.Tensor


def unit_of(compute: Compute, device: torch.device) -> Unit:
    """Return a unit of compute with random operands."""
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16  # few CPUs multiply bf16
    random = torch.Generator(device=device).manual_seed(1)
    n = compute.size
    shape = (n, n) if compute.kind is ComputeKind.GEMM else (n * 2**20 // dtype.itemsize,)
    a, b = (torch.randn(*shape, generator=random, device=device, dtype=dtype) for _ in range(2))
    result = torch.empty(*shape, device=device, dtype=dtype)
    function = torch.mm if compute.kind is ComputeKind.GEMM else torch.add
    return Unit(lambda: function(a, b, out=result), result)


@dataclass(slots=True)
class Allocated:
    """What a rank holds of a data point: its messages, its compute with the result that it has alone, and its call."""

    point: Overlap
    messages: list[Message]
    unit: Unit
    alone: torch.Tensor
    call: Callable[[Message], None] | None = None
    stream: Stream | None = None


class Rank:
    """One rank's process, and what it has allocated for the current data point."""

    def __init__(self, rank: int, ranks: int, device: Device) -> None:
        self._rank, self._ranks, self._device = rank, ranks, device
        self._held: Allocated | None = None
        self._chunks: dict[tuple[Compute, int], Callable[[], object]] = {}  # by units per launch
        self._groups: dict[tuple[Priority, int | None], tuple[dist.ProcessGroup, Stream]] = {}
        self._tiny = torch.zeros(1, device=device.device)
        self._fillings = itertools.count()  # the same on all ranks, which get the same requests

    def allocate(self, point: Overlap) -> None:
        """Make room for a data point. Raises MachineError if it does not fit."""
        filling = next(self._fillings)  # also where there is no room: other ranks may have some
        self._device.finish()
        before, self._held = self._held, None
        with room():
            if before is not None and before.point.compute == point.compute:
                unit, alone = before.unit, before.alone
            else:
                before, self._chunks = None, {}
                unit = unit_of(point.compute, self._device.device)
                self._device.main.do(unit.run)  # isolated: the expected result when it overlaps the collective
                self._device.finish()
                alone = unit.result.clone()
            del before  # its messages
            self._held = Allocated(point, self._messages(point), unit, alone)
            self._fill(self._held, filling)

    def warm(self) -> None:
        """Create the communicator for the point's priority and CTAs, and run the collective and the compute once."""
        held = self._allocated()
        key = held.point.priority, held.point.ctas
        if key not in self._groups:
            high = held.point.priority is Priority.HIGH
            group = self._device.group(range(self._ranks), high=high, ctas=held.point.ctas)
            self._groups[key] = group, self._device.stream(high=high)
        group, held.stream = self._groups[key]
        call = call_of(held.point.work.operation, group, range(self._ranks), self._rank)

        def call_on(message: Message) -> None:
            call(message.sent, message.received)
            message.uses += 1

        held.call = call_on
        self._both(held, Load(1, 1, 1, 1, 0.0))

    def run(self, load: Load) -> RankTimes:
        """Run a load, and verify the last result of the collective and of the compute, if they ran."""
        held = self._allocated()
        if held.call is None:
            raise RuntimeError("the data point was not warmed up")
        held.unit.result.zero_()
        self._fill(held, next(self._fillings))
        times = self._both(held, load)
        wrong_compute = int((held.unit.result != held.alone).sum()) if load.compute_chunks else None
        wrong = self._wrong(held) if load.collective_chunks else None
        if load.collective_chunks * load.calls > len(held.messages):
            # A message that was used again has lost its earlier result: one more call, untimed, would show another.
            self._fill(held, next(self._fillings))
            self._both(held, Load(1, 1, 0, 1, 0.0))
            wrong = (wrong or 0) + (self._wrong(held) or 0)
        return replace(times, wrong=wrong, wrong_compute=wrong_compute)

    def _both(self, held: Allocated, load: Load) -> RankTimes:
        call, stream, group = held.call, held.stream, self._groups[held.point.priority, held.point.ctas][0]
        assert call is not None  # noqa: S101  # as `run` checks
        assert stream is not None  # noqa: S101

        def collective(chunk: int) -> None:
            for number in range(chunk * load.calls, (chunk + 1) * load.calls):
                call(held.messages[number % len(held.messages)])

        return run_both(
            self._device,
            lambda: dist.all_reduce(self._tiny, group=group),
            StreamWork(stream, load.collective_chunks, collective, load.idle_s),
            StreamWork(self._device.main, load.compute_chunks, self._chunk(load, held)),
            load.delay_s,
        )

    def _chunk(self, load: Load, held: Allocated) -> Callable[[int], object]:
        """Return a function that queues a chunk of compute: its units one by one, or in one launch if too many."""
        if load.compute_launches <= LAUNCHES_AHEAD:
            return lambda _chunk: [held.unit.run() for _ in range(load.units)]
        key = held.point.compute, load.units
        if key not in self._chunks:
            self._chunks[key] = self._device.as_one(held.unit.run, load.units)
        chunk = self._chunks[key]
        return lambda _chunk: chunk()

    def _messages(self, point: Overlap) -> list[Message]:
        """Return new messages to rotate over."""
        part = part_of(point.work.operation, point.size_bytes // DTYPE_BYTES[DTYPE], self._rank, self._ranks)
        kind = Elements(DTYPE, "sum" if point.work.operation.reduces else "", self._ranks)
        in_place = takes_one_buffer(point.work.operation)
        span = _GPU_SPAN if self._device.runs_ahead else _CORE_SPAN
        return [
            Message(kind, part, self._rank, self._device.device, in_place=in_place, salt=number)
            for number in range(max(1, min(_MAX_MESSAGES, span // point.size_bytes)))
        ]

    def _fill(self, held: Allocated, filling: int) -> None:
        for message in held.messages:
            message.fill(filling)
        self._device.finish()

    def _wrong(self, held: Allocated) -> int | None:
        """Return how many received elements are not what the ranks sent; None if no result is known."""
        count = torch.zeros((), dtype=torch.int64, device=self._device.device)
        for message in held.messages:
            message.wrong(count)
        return int(count) if any(message.comparable for message in held.messages) else None

    def _allocated(self) -> Allocated:
        if self._held is None:
            raise RuntimeError("nothing is allocated: the first request must be a data point")
        return self._held


if __name__ == "__main__":
    run(sys.argv[1:], Rank, opened)
