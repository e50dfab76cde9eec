"""A collective and compute on one device from a common start: on two CUDA streams, or on two CPU threads.

Only worker processes import this, because it loads torch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
import torch.distributed as dist

from collbench.overlaps.compute import Priority

_cuda: Any = torch.cuda  # only half of it has types

# The sleeping kernel calibrates its cycles per second with this many: 5 ms at 2 GHz.
_CALIBRATION_CYCLES = 10_000_000


@dataclass(frozen=True, slots=True)
class StreamWork:
    """The work of one stream: `chunks` calls of `chunk(number)`, which queues its work and does not wait for it.

    With `idle_s` each chunk has its own round and the stream idles that many seconds before it (overlap_protocol.Load).
    """

    chunks: int
    chunk: Callable[[int], object]
    idle_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ChunkTimes:
    """The seconds from the common start to the end of each chunk, and whether all work was queued before the start.

    `begins` has the seconds to the begin of each chunk of the collective, if it runs in rounds.
    """

    collective: tuple[float, ...]
    compute: tuple[float, ...]
    begins: tuple[float, ...]
    queued: bool


class Accelerator(Protocol):
    """The device interface that the worker uses."""

    device: torch.device
    compute_dtype: torch.dtype
    span_bytes: int

    def group(self, ranks: int, priority: Priority, ctas: int | None) -> dist.ProcessGroup:
        """Return the process group of all ranks with these options; every rank must call this at the same time."""

    def run_both(
        self, align: Callable[[], object], collective: StreamWork, compute: StreamWork, delay_s: float
    ) -> ChunkTimes:
        """Run both from a common start. `align`, a tiny collective, synchronizes the ranks before it."""

    def as_one(self, work: Callable[[], object], times: int) -> Callable[[], object]:
        """Return a function that queues `work` `times` times, in one launch if the device can. `work` ran before."""

    def finish(self) -> None:
        """Wait for all queued work."""


def captured(work: Callable[[], object], times: int) -> Callable[[], object]:
    """Return a function that launches a CUDA graph which runs `work` `times` times in a row."""
    graph = _cuda.CUDAGraph()
    # Only calls of this thread may fail the capture: NCCL's own threads call CUDA meanwhile.
    with _cuda.graph(graph, capture_error_mode="thread_local"):
        repeat(work, times)

    def launch(_held: object = work) -> None:  # keeps the buffers alive: a graph holds only their addresses
        graph.replay()

    return launch


class CudaAccelerator:
    """One GPU. Compute runs on torch's default stream, as in training, and the collective on its own stream."""

    compute_dtype = torch.bfloat16
    span_bytes = 256 * 2**20  # as in docs/method/measuring.md 8: beyond an H200's L2 of 50 MiB

    def __init__(self, position: int) -> None:
        _cuda.set_device(position)
        self.device = torch.device("cuda", position)
        self._main = _cuda.current_stream()
        self._groups: dict[tuple[Priority, int | None], dist.ProcessGroup] = {}
        # -1 is a high priority in torch. A collective that is called without async_op runs on the stream of its
        # caller [torch 2.8 ProcessGroupNCCL.cpp, `asyncOp`]; an older torch has a stream in the group, see `group`.
        self._streams = {Priority.NORMAL: _cuda.Stream(priority=0), Priority.HIGH: _cuda.Stream(priority=-1)}
        self._side = self._streams[Priority.NORMAL]
        self._cycles_a_second = sleep_cycles_a_second()

    def group(self, ranks: int, priority: Priority, ctas: int | None) -> dist.ProcessGroup:
        """Return the group with these options, and use the stream of that priority for its collectives."""
        self._side = self._streams[priority]
        if (priority, ctas) not in self._groups:
            options: Any = dist.ProcessGroupNCCL.Options()
            options.is_high_priority_stream = priority is Priority.HIGH
            if ctas is not None:
                options.config.min_ctas = options.config.max_ctas = ctas
            made = dist.new_group(list(range(ranks)), backend="nccl", pg_options=options)
            self._groups[priority, ctas] = cast("dist.ProcessGroup", made)
        return self._groups[priority, ctas]

    def run_both(
        self, align: Callable[[], object], collective: StreamWork, compute: StreamWork, delay_s: float
    ) -> ChunkTimes:
        """Queue all work behind a sleeping kernel. Both streams then wait for one event, the common start."""
        self._sleep(delay_s)
        start = self._together(align)
        collective_ends, compute_ends, begins = list[Any](), list[Any](), list[Any]()
        if not collective.idle_s:
            collective_ends, compute_ends = self._queued(collective, self._side), self._queued(compute, self._main)
        for number, rest in enumerate(collective.idle_s):
            if number:
                self._side.wait_event(compute_ends[-1])
                self._together(align)
            self._sleep(rest)
            begins += [self._stamp(self._side)]
            with _cuda.stream(self._side):
                collective.chunk(number)
            collective_ends += [self._stamp(self._side)]
            compute_ends += self._queued(compute, self._main)
        queued = not start.query()
        self.finish()

        def seconds(events: Sequence[Any]) -> tuple[float, ...]:
            return tuple(start.elapsed_time(event) / 1e3 for event in events)

        return ChunkTimes(seconds(collective_ends), seconds(compute_ends), seconds(begins), queued)

    def as_one(self, work: Callable[[], object], times: int) -> Callable[[], object]:
        """Return a function that launches a CUDA graph of `times` runs of `work`."""
        return captured(work, times)

    def finish(self) -> None:
        """Wait for both streams."""
        _cuda.synchronize()

    def _together(self, align: Callable[[], object]) -> Any:
        """Hold both streams until all ranks have reached this point; return the event that releases them."""
        with _cuda.stream(self._side):
            align()
        met = self._stamp(self._side)
        self._main.wait_event(met)
        return met

    def _sleep(self, seconds: float) -> None:
        with _cuda.stream(self._side):
            _cuda._sleep(max(1, int(seconds * self._cycles_a_second)))

    def _stamp(self, stream: Any) -> Any:
        event = _cuda.Event(enable_timing=True)
        event.record(stream)
        return event

    def _queued(self, work: StreamWork, stream: Any) -> list[Any]:
        """Queue work on a stream; return the event at the end of each chunk."""
        ends = []
        with _cuda.stream(stream):
            for number in range(work.chunks):
                work.chunk(number)
                ends.append(self._stamp(stream))
        return ends


def sleep_cycles_a_second() -> float:
    """Return the sleeping kernel's cycles per second, from its second run, when the clock has ramped up."""
    first, last = (_cuda.Event(enable_timing=True) for _ in range(2))
    _cuda._sleep(_CALIBRATION_CYCLES)
    first.record()
    _cuda._sleep(_CALIBRATION_CYCLES)
    last.record()
    _cuda.synchronize()
    return float(_CALIBRATION_CYCLES / (first.elapsed_time(last) / 1e3))


class CpuAccelerator:
    """One CPU core: one thread for the collective, by gloo, and one for compute. No priorities, no channels."""

    compute_dtype = torch.float32  # few CPUs multiply bf16
    span_bytes = 8 * 2**20  # beyond a core's own L2 (docs/method/measuring.md 8)
    device = torch.device("cpu")

    def __init__(self) -> None:
        self._group: dist.ProcessGroup | None = None

    def group(self, ranks: int, priority: Priority, ctas: int | None) -> dist.ProcessGroup:
        """Return the only group. Raises RuntimeError if a priority or a number of CTAs is set."""
        if priority is not Priority.NORMAL or ctas is not None:
            raise RuntimeError("gloo has no priority and no channels")
        if self._group is None:
            self._group = cast("dist.ProcessGroup", dist.new_group(list(range(ranks)), backend="gloo"))
        return self._group

    def run_both(
        self, align: Callable[[], object], collective: StreamWork, compute: StreamWork, delay_s: float
    ) -> ChunkTimes:
        """Start two threads at the same time; nothing is launched, so nothing is queued."""
        del delay_s
        begins, collective_ends, compute_ends = list[float](), list[float](), list[float]()
        align()
        start = time.perf_counter()
        if not collective.idle_s:
            _concurrently(lambda: _timed(collective, collective_ends), lambda: _timed(compute, compute_ends))
        for number, rest in enumerate(collective.idle_s):
            if number:
                align()
            this_round = _Round()
            _concurrently(
                lambda: this_round.call(lambda: collective.chunk(number), rest),  # noqa: B023  # both end in this round
                lambda: this_round.compute(compute),  # noqa: B023
            )
            begins.append(this_round.begin)
            collective_ends.append(this_round.end)
            compute_ends += this_round.compute_ends
        return ChunkTimes(
            _since(start, collective_ends), _since(start, compute_ends), _since(start, begins), queued=True
        )

    def as_one(self, work: Callable[[], object], times: int) -> Callable[[], object]:
        """Return a function that runs `work` `times` times in a loop."""
        return lambda: repeat(work, times)

    def finish(self) -> None:
        """Return immediately: all calls were synchronous."""


def repeat(work: Callable[[], object], times: int) -> None:
    """Run `work` `times` times."""
    for _ in range(times):
        work()


def _timed(work: StreamWork, ends: list[float]) -> None:
    for number in range(work.chunks):
        work.chunk(number)
        ends.append(time.perf_counter())


class _Round:
    """One call of the collective that overlaps compute.

    Other processes use the cores too, so compute of a fixed length may not cover a call. Therefore the call waits for
    the end of compute's first chunk, and compute continues until the call has returned.
    """

    def __init__(self) -> None:
        self.begin = self.end = 0.0
        self.compute_ends: list[float] = []
        self._computing, self._returned = threading.Event(), threading.Event()

    def call(self, call: Callable[[], object], rest: float) -> None:
        """Sleep `rest` seconds, then call."""
        try:
            time.sleep(rest)
            self._computing.wait()
            self.begin = time.perf_counter()
            call()
            self.end = time.perf_counter()
        finally:
            self._returned.set()

    def compute(self, work: StreamWork) -> None:
        """Run the compute; its last chunk lasts until the call has returned."""
        try:
            for number in range(work.chunks):
                work.chunk(number)
                self.compute_ends.append(time.perf_counter())
                self._computing.set()
        finally:
            self._computing.set()
        while not self._returned.is_set():
            work.chunk(work.chunks - 1)
            self.compute_ends[-1] = time.perf_counter()


def _concurrently(*works: Callable[[], object]) -> None:
    """Run all functions concurrently, each in its thread. Raises the first error."""
    failures: list[BaseException] = []
    ready = threading.Barrier(len(works))

    def run(work: Callable[[], object]) -> None:
        ready.wait()
        try:
            work()
        except BaseException as error:  # noqa: BLE001  # raised again below
            failures.append(error)

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def _since(start: float, ends: Sequence[float]) -> tuple[float, ...]:
    return tuple(end - start for end in ends)
