"""Two lanes on one device, a collective's and compute's, from a common start: on a GPU's streams or on CPU threads.

Only workers import this: it loads torch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
import torch.distributed as dist

from collbench.model.compute import Priority

_cuda: Any = torch.cuda  # half of it has types

# The sleeping kernel measures its own cycles a second: 5 ms at 2 GHz.
_CALIBRATION_CYCLES = 10_000_000


@dataclass(frozen=True, slots=True)
class Lane:
    """What one of the two does: `chunks` times `chunk(number)`, which queues its work and does not wait for it.

    With `idle_s` the lane rests so many seconds before each chunk, each in a round of its own (overlap_protocol.Load).
    """

    chunks: int
    chunk: Callable[[int], object]
    idle_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Race:
    """The seconds from the common start to the end of each chunk, and whether all was queued before the start.

    `begins` are those to the begin of the collective's chunks, where it has rounds.
    """

    collective: tuple[float, ...]
    compute: tuple[float, ...]
    begins: tuple[float, ...]
    queued: bool


class Accelerator(Protocol):
    """A device, as the worker's loop sees it."""

    device: torch.device
    compute_dtype: torch.dtype
    span_bytes: int

    def group(self, ranks: int, priority: Priority, ctas: int | None) -> dist.ProcessGroup:
        """Return the process group of all ranks with these levers; every rank makes it at the same moment."""

    def race(self, align: Callable[[], object], collective: Lane, compute: Lane, delay_s: float) -> Race:
        """Run both lanes from a common start, to which `align`, a tiny collective, brings all ranks."""

    def as_one(self, work: Callable[[], object], times: int) -> Callable[[], object]:
        """Return what queues `work`, which ran before, so often in one launch where the device can."""

    def finish(self) -> None:
        """Wait for all that was queued."""


def captured(work: Callable[[], object], times: int) -> Callable[[], object]:
    """Return what launches a CUDA graph of some work, so many times one after another."""
    graph = _cuda.CUDAGraph()
    # An error of this thread alone: NCCL's own threads call CUDA meanwhile.
    with _cuda.graph(graph, capture_error_mode="thread_local"):
        repeat(work, times)

    def launch(_held: object = work) -> None:  # a graph knows its buffers by their addresses alone
        graph.replay()

    return launch


class CudaAccelerator:
    """One GPU. Compute runs on torch's default stream, as training's does, the collective on a stream of its own."""

    compute_dtype = torch.bfloat16
    span_bytes = 256 * 2**20  # as in docs/method.md 3.5: beyond an H200's L2 of 50 MiB

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
        """Return the group with these levers, and take the stream of that priority for its collectives."""
        self._side = self._streams[priority]
        if (priority, ctas) not in self._groups:
            options: Any = dist.ProcessGroupNCCL.Options()
            options.is_high_priority_stream = priority is Priority.HIGH
            if ctas is not None:
                options.config.min_ctas = options.config.max_ctas = ctas
            made = dist.new_group(list(range(ranks)), backend="nccl", pg_options=options)
            self._groups[priority, ctas] = cast("dist.ProcessGroup", made)
        return self._groups[priority, ctas]

    def race(self, align: Callable[[], object], collective: Lane, compute: Lane, delay_s: float) -> Race:
        """Queue all of it behind a sleeping kernel. Both streams then wait for one event, the common start."""
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

        return Race(seconds(collective_ends), seconds(compute_ends), seconds(begins), queued)

    def as_one(self, work: Callable[[], object], times: int) -> Callable[[], object]:
        """Return what launches a CUDA graph of so many."""
        return captured(work, times)

    def finish(self) -> None:
        """Wait for both streams."""
        _cuda.synchronize()

    def _together(self, align: Callable[[], object]) -> Any:
        """Let both streams go on once all ranks have come here; return the event at which they do."""
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

    def _queued(self, lane: Lane, stream: Any) -> list[Any]:
        """Queue a lane on a stream; return the events at the ends of its chunks."""
        ends = []
        with _cuda.stream(stream):
            for number in range(lane.chunks):
                lane.chunk(number)
                ends.append(self._stamp(stream))
        return ends


def sleep_cycles_a_second() -> float:
    """Return the sleeping kernel's cycles a second: of the second run, when the clock is up."""
    first, last = (_cuda.Event(enable_timing=True) for _ in range(2))
    _cuda._sleep(_CALIBRATION_CYCLES)
    first.record()
    _cuda._sleep(_CALIBRATION_CYCLES)
    last.record()
    _cuda.synchronize()
    return float(_CALIBRATION_CYCLES / (first.elapsed_time(last) / 1e3))


class CpuAccelerator:
    """One CPU core: a thread for each lane, gloo for the collective. There is no priority and no number of channels."""

    compute_dtype = torch.float32  # few cores multiply bf16
    span_bytes = 8 * 2**20  # beyond a core's own L2 (docs/method.md 3.5)
    device = torch.device("cpu")

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self._group: dist.ProcessGroup | None = None

    def group(self, ranks: int, priority: Priority, ctas: int | None) -> dist.ProcessGroup:
        """Return the one group. Raises RuntimeError for levers."""
        if priority is not Priority.NORMAL or ctas is not None:
            raise RuntimeError("gloo has no priority and no channels")
        if self._group is None:
            self._group = cast("dist.ProcessGroup", dist.new_group(list(range(ranks)), backend="gloo"))
        return self._group

    def race(self, align: Callable[[], object], collective: Lane, compute: Lane, delay_s: float) -> Race:
        """Let two threads go at once; nothing is launched, so there is nothing to queue."""
        del delay_s
        begins, collective_ends, compute_ends = list[float](), list[float](), list[float]()
        align()
        start = time.perf_counter()
        if not collective.idle_s:
            _at_once(lambda: _timed(collective, collective_ends), lambda: _timed(compute, compute_ends))
        for number, rest in enumerate(collective.idle_s):
            if number:
                align()
            beside = _Round()
            _at_once(
                lambda: beside.call(lambda: collective.chunk(number), rest),  # noqa: B023  # both end in this round
                lambda: beside.compute(compute),  # noqa: B023
            )
            begins.append(beside.begin)
            collective_ends.append(beside.end)
            compute_ends += beside.compute_ends
        return Race(_since(start, collective_ends), _since(start, compute_ends), _since(start, begins), queued=True)

    def as_one(self, work: Callable[[], object], times: int) -> Callable[[], object]:
        """Return what does it so often: nothing is launched."""
        return lambda: repeat(work, times)

    def finish(self) -> None:
        """Return at once: what was called has ended."""


def repeat(work: Callable[[], object], times: int) -> None:
    """Do some work so many times."""
    for _ in range(times):
        work()


def _timed(lane: Lane, ends: list[float]) -> None:
    for number in range(lane.chunks):
        lane.chunk(number)
        ends.append(time.perf_counter())


class _Round:
    """One call of the collective beside compute.

    Cores are shared with whatever else runs, so no length of compute is sure to cover a call: the call waits for the
    end of compute's first chunk, and compute goes on until the call has returned.
    """

    def __init__(self) -> None:
        self.begin = self.end = 0.0
        self.compute_ends: list[float] = []
        self._computing, self._returned = threading.Event(), threading.Event()

    def call(self, call: Callable[[], object], rest: float) -> None:
        """Rest so many seconds, then call."""
        try:
            time.sleep(rest)
            self._computing.wait()
            self.begin = time.perf_counter()
            call()
            self.end = time.perf_counter()
        finally:
            self._returned.set()

    def compute(self, lane: Lane) -> None:
        """Run the lane; its last chunk lasts until the call has returned."""
        try:
            for number in range(lane.chunks):
                lane.chunk(number)
                self.compute_ends.append(time.perf_counter())
                self._computing.set()
        finally:
            self._computing.set()
        while not self._returned.is_set():
            lane.chunk(lane.chunks - 1)
            self.compute_ends[-1] = time.perf_counter()


def _at_once(*works: Callable[[], object]) -> None:
    """Do both, each on a thread, from one moment on. Raises what the first to fail raised."""
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
