"""Streams of work on one device, with events and a clock: a GPU's own, or threads on a CPU core.

Both kinds of device have the same methods. Only `finish` waits for what was queued. They are used in the worker
processes of overlap and replay.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias, cast

import torch
import torch.distributed as dist

from collbench.model.errors import MachineError

_cuda: Any = torch.cuda  # only half of it has types

Work = Callable[[], object]
# The sleeping kernel calibrates its cycles per second with this many: 5 ms at 2 GHz.
_CALIBRATION_CYCLES = 10_000_000


class GpuStream:
    """A CUDA stream; its moments are events, of which `query` says whether the GPU has been there."""

    def __init__(self, stream: Any, cycles_a_second: float) -> None:
        self._stream, self._cycles_a_second = stream, cycles_a_second

    def do(self, work: Work) -> None:
        """Queue what `work` launches."""
        with _cuda.stream(self._stream):
            work()

    def stamp(self) -> Any:
        """Return an event."""
        event = _cuda.Event(enable_timing=True)
        event.record(self._stream)
        return event

    def wait(self, stamp: Any) -> None:
        """Wait for an event of another stream."""
        self._stream.wait_event(stamp)

    def sleep(self, seconds: float) -> None:
        """Launch a kernel that spins."""
        with _cuda.stream(self._stream):
            _cuda._sleep(max(1, int(seconds * self._cycles_a_second)))


class TorchGpu:
    """One GPU; training computes on the stream `main`.

    A collective that is called without async_op runs on the stream of its caller [torch 2.8 ProcessGroupNCCL.cpp,
    `asyncOp`]; an older torch has a stream in the group, whose priority `group` sets.
    """

    runs_ahead = True  # the host: it queues work that the GPU does later

    def __init__(self, position: int) -> None:
        _cuda.set_device(position)
        self.device = torch.device("cuda", position)
        self._cycles_a_second = _sleep_cycles_a_second()
        self.main = GpuStream(_cuda.current_stream(), self._cycles_a_second)

    def stream(self, *, high: bool = False) -> GpuStream:
        """Return a new stream; -1 is a high priority in torch."""
        return GpuStream(_cuda.Stream(priority=-1 if high else 0), self._cycles_a_second)

    def group(self, ranks: Sequence[int], *, high: bool = False, ctas: int | None = None) -> dist.ProcessGroup:
        """Return a new group of NCCL, of this priority and number of thread blocks; all ranks make each."""
        options: Any = dist.ProcessGroupNCCL.Options()
        options.is_high_priority_stream = high
        if ctas is not None:
            options.config.min_ctas = options.config.max_ctas = ctas
        return cast("dist.ProcessGroup", dist.new_group(list(ranks), backend="nccl", pg_options=options))

    def as_one(self, work: Work, times: int) -> Work:
        """Return a function that launches a CUDA graph of `times` runs of `work`, which ran before."""
        graph = _cuda.CUDAGraph()
        # Only calls of this thread may fail the capture: NCCL's own threads call CUDA meanwhile.
        with _cuda.graph(graph, capture_error_mode="thread_local"):
            _repeat(work, times)

        def launch(_held: object = work) -> None:  # keeps the buffers alive: a graph holds only their addresses
            graph.replay()

        return launch

    def finish(self) -> None:
        """Wait for all streams."""
        _cuda.synchronize()


def _sleep_cycles_a_second() -> float:
    """Return the sleeping kernel's cycles per second, from its second run, when the clock has ramped up."""
    first, last = (_cuda.Event(enable_timing=True) for _ in range(2))
    _cuda._sleep(_CALIBRATION_CYCLES)
    first.record()
    _cuda._sleep(_CALIBRATION_CYCLES)
    last.record()
    _cuda.synchronize()
    return _CALIBRATION_CYCLES / seconds_between(first, last)


def _repeat(work: Work, times: int) -> None:
    for _ in range(times):
        work()


class CoreStamp:
    """A moment in a thread."""

    def __init__(self) -> None:
        self._passed, self._seconds = threading.Event(), 0.0

    def passes(self) -> None:
        """Take the time."""
        self._seconds = time.perf_counter()
        self._passed.set()

    def query(self) -> bool:
        """Return whether the thread has been there."""
        return self._passed.is_set()

    def wait(self) -> None:
        """Wait until the thread has been there."""
        self._passed.wait()

    def elapsed_time(self, later: CoreStamp) -> float:
        """Return the milliseconds to a later moment."""
        return (later._seconds - self._seconds) * 1e3


class CoreStream:
    """A thread that does what is queued; after a failure it does no more work, but passes moments."""

    def __init__(self, failures: list[BaseException]) -> None:
        self._queue: queue.SimpleQueue[Work] = queue.SimpleQueue()
        self._failures = failures
        threading.Thread(target=self._run, daemon=True).start()

    def do(self, work: Work) -> None:
        """Queue work."""
        self._queue.put(partial(self._try, work))

    def stamp(self) -> CoreStamp:
        """Queue a moment."""
        stamp = CoreStamp()
        self._queue.put(stamp.passes)
        return stamp

    def wait(self, stamp: CoreStamp) -> None:
        """Queue waiting for a moment of another thread."""
        self._queue.put(stamp.wait)

    def sleep(self, seconds: float) -> None:
        """Queue sleep."""
        if seconds > 0:
            self._queue.put(partial(time.sleep, seconds))

    def _try(self, work: Work) -> None:
        if not self._failures:
            try:
                work()
            except BaseException as error:  # noqa: BLE001  # the core's `finish` raises it
                self._failures.append(error)

    def _run(self) -> None:
        while True:
            self._queue.get()()


class Core:
    """One CPU core, with gloo. It has no priorities and no thread blocks."""

    device = torch.device("cpu")
    runs_ahead = False

    def __init__(self) -> None:
        self._failures: list[BaseException] = []
        self._streams: list[CoreStream] = []
        self.main = self.stream()

    def stream(self, *, high: bool = False) -> CoreStream:
        """Start a thread."""
        del high
        self._streams.append(CoreStream(self._failures))
        return self._streams[-1]

    def group(self, ranks: Sequence[int], *, high: bool = False, ctas: int | None = None) -> dist.ProcessGroup:
        """Return a new group of gloo."""
        del high, ctas
        return cast("dist.ProcessGroup", dist.new_group(list(ranks), backend="gloo"))

    def as_one(self, work: Work, times: int) -> Work:
        """Return a function that runs `work` `times` times in a loop."""
        return partial(_repeat, work, times)

    def finish(self) -> None:
        """Wait for all threads. Raises what work raised first."""
        for stamp in [stream.stamp() for stream in self._streams]:
            stamp.wait()
        if self._failures:
            raise self._failures[0]


Stream: TypeAlias = GpuStream | CoreStream
Device: TypeAlias = TorchGpu | Core


def seconds_between(first: Any, last: Any) -> float:
    """Return the seconds from one moment to a later one, once the device has been at both."""
    return float(first.elapsed_time(last)) / 1e3


def opened(backend: str, index: int) -> Device:
    """Open the GPU of this number, or the core."""
    return TorchGpu(index) if backend == "cuda" else Core()


@contextmanager
def room() -> Iterator[None]:
    """Raise MachineError, which leaves the rank usable, where the memory of the device or the host is full."""
    try:
        yield
    except (torch.cuda.OutOfMemoryError, MemoryError) as error:
        raise MachineError(str(error).splitlines()[0] if str(error) else "out of memory") from error
