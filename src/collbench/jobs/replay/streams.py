"""A recorded step on one device: pauses on one stream, the calls of each group on the group's stream, as in torch.

Only the workers of `collbench replay` import this, because it loads torch. On a CPU core the streams are threads.
"""

from __future__ import annotations

import queue
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
import torch.distributed as dist
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile

from collbench.jobs.replay.protocol import ReplayLoad, ReplayTimes
from collbench.jobs.replay.results import Pauses
from collbench.model.operations import Registration
from collbench.overlaps.streams import captured, repeat, sleep_cycles_a_second

_cuda: Any = torch.cuda  # only half of it has types
_autograd: Any = torch.autograd

# A product of 2048³ in bf16 takes some 25 µs on an H200: fine enough for a pause, long enough to launch.
_GPU_PRODUCT, _CORE_PRODUCT = 2048, 192
_PRODUCTS = 200  # to time one product, when the clock has settled
# Products are launched as CUDA graphs of up to 2^7 products, because a slow host needs longer to launch one product
# than a GPU to run it.
_MOST_POWER = 7
# A pause that is shorter than a launch is none.
_LEAST_PAUSE_S = 2e-6


@dataclass(frozen=True, slots=True)
class Units:
    """A rank's units of a step, in order: each one's group, the function that makes its calls, the pause before it.

    The last of the `pauses`, in seconds, is the one at the end of the step.
    """

    groups: Sequence[int]
    calls: Sequence[Callable[[], object]]
    pauses: Sequence[float]


class Accelerator(Protocol):
    """A device, as the worker sees it."""

    device: torch.device

    def group(self, ranks: Sequence[int]) -> dist.ProcessGroup:
        """Return a new process group; every rank makes each at the same moment."""

    def memory(self, group: dist.ProcessGroup, registration: Registration) -> AbstractContextManager[object]:
        """Return the allocator of a group's buffers, with the requested registration."""

    def run(self, load: ReplayLoad, align: Callable[[], object], units: Units) -> ReplayTimes:
        """Run a load. `align`, a tiny collective, synchronizes the ranks before it."""

    def use(self, pauses: Pauses) -> None:
        """Idle in pauses, or compute."""

    def finish(self) -> None:
        """Wait for all that was queued."""


class _Pausing:
    """A device's pause: as many matrix products as fit, by their measured time, and idling for the rest."""

    def __init__(self, idle: Callable[[float], object]) -> None:
        self._idle = idle
        self._products: Callable[[int], object] | None = None
        self._product_s = 0.0

    def compute(self, products: Callable[[int], object], seconds: Callable[[Callable[[], object]], float]) -> None:
        """Fill pauses with matrix products from now on; `products(n)` runs n of them, `seconds` times a call."""
        if self._products is None:
            for _ in range(2):  # the first time code is loaded and the clock comes up
                self._product_s = seconds(lambda: products(_PRODUCTS)) / _PRODUCTS
            self._products = products

    def __call__(self, seconds: float) -> None:
        """Pause for this many seconds."""
        if self._products is not None:
            count = int(seconds / self._product_s)
            self._products(count)
            seconds -= count * self._product_s
        if seconds >= _LEAST_PAUSE_S:
            self._idle(seconds)


def powers(count: int, most: int) -> Iterator[int]:
    """Yield powers of two up to the `most`th that add up to a count, the largest first."""
    for _ in range(count >> most):
        yield most
    for power in reversed(range(most)):
        if count >> power & 1:
            yield power


class CudaAccelerator:
    """One GPU. Pauses are on torch's default stream, where training computes."""

    def __init__(self, position: int) -> None:
        _cuda.set_device(position)
        self.device = torch.device("cuda", position)
        self._main = _cuda.current_stream()
        self._cycles_a_second = sleep_cycles_a_second()
        self._side: dict[int, Any] = {}
        self._pause = _Pausing(self._sleep)

    def group(self, ranks: Sequence[int]) -> dist.ProcessGroup:
        """Return a new group of NCCL."""
        return cast("dist.ProcessGroup", dist.new_group(list(ranks), backend="nccl"))

    def memory(self, group: dist.ProcessGroup, registration: Registration) -> AbstractContextManager[object]:
        """Return torch's own allocator, or a pool of ncclMemAlloc that the group's communicator knows.

        Raises RuntimeError if this torch has no such pool.
        """
        if registration is Registration.NONE:
            return nullcontext()
        backend: Any = group._get_backend(self.device)
        return _Registered(backend, registration)

    def use(self, pauses: Pauses) -> None:
        """Idle in pauses, or multiply matrices; how long a product takes is measured."""
        if pauses is Pauses.NONE:
            return
        n = _GPU_PRODUCT
        a, b = (torch.randn(n, n, device=self.device, dtype=torch.bfloat16) for _ in range(2))
        result = torch.empty_like(a)

        def product() -> None:
            torch.mm(a, b, out=result)

        product()  # loads code, which a graph capture cannot do
        launches = [captured(product, 2**power) for power in range(_MOST_POWER + 1)]

        def products(count: int) -> None:
            for power in powers(count, _MOST_POWER):
                launches[power]()

        self._pause.compute(products, self._timed)

    def _timed(self, work: Callable[[], object]) -> float:
        first, last = (_cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        work()
        last.record()
        self.finish()
        return float(first.elapsed_time(last)) / 1e3

    def run(self, load: ReplayLoad, align: Callable[[], object], units: Units) -> ReplayTimes:
        """Queue all of it. A call waits for what was queued before it on the main stream, as in torch; the step ends
        when its pauses and all of its calls have.
        """
        for group in units.groups:
            if group not in self._side:
                self._side[group] = _cuda.Stream()
        if load.traced:
            with profile(activities=[ProfilerActivity.CUDA]) as trace:
                self._queue(load, align, units)
            took = kernel_seconds(trace.events(), len(units.calls) * load.steps)
            return ReplayTimes(0.0, _means(took, load.steps))
        return self._queue(load, align, units)

    def _queue(self, load: ReplayLoad, align: Callable[[], object], units: Units) -> ReplayTimes:
        self._sleep(load.delay_s)
        align()
        start, stamps, last = self._stamp(self._main), list[tuple[Any, Any]](), None
        for _ in range(load.steps):
            for group, call, pause in zip(units.groups, units.calls, units.pauses, strict=False):
                if load.pauses:
                    self._pause(pause)
                if load.calls:
                    side, last = self._side[group], self._stamp(self._main)
                    side.wait_event(last)
                    begin = self._stamp(side)
                    with _cuda.stream(side):
                        call()
                    stamps.append((begin, self._stamp(side)))
            if load.pauses:
                self._pause(units.pauses[-1])
            if load.calls:
                for side in self._side.values():
                    self._main.wait_stream(side)
        end = self._stamp(self._main)
        queued = last is None or not last.query()
        self.finish()
        took = [begin.elapsed_time(ended) / 1e3 for begin, ended in stamps]
        return ReplayTimes(start.elapsed_time(end) / 1e3 / load.steps, _means(took, load.steps), queued)

    def finish(self) -> None:
        """Wait for all streams."""
        _cuda.synchronize()

    def _sleep(self, seconds: float) -> None:
        if seconds > 0:
            _cuda._sleep(max(1, int(seconds * self._cycles_a_second)))

    def _stamp(self, stream: Any) -> Any:
        event = _cuda.Event(enable_timing=True)
        event.record(stream)
        return event


# The names of NCCL's kernels, ncclKernel_… before 2.19. The profiler's own ranges on the GPU are named nccl:….
_KERNEL = re.compile(r"nccl(Dev)?Kernel")


def kernel_seconds(events: Iterable[FunctionEvent], calls: int) -> list[float]:
    """Return the seconds of each call's kernel, in launch order; [] if calls and kernels do not match.

    The common start is one kernel before them. A call has no kernel on a single rank, and several if NCCL splits it.
    """
    kernels = [one for one in events if one.device_type == _autograd.DeviceType.CUDA and _KERNEL.match(one.name)]
    kernels.sort(key=lambda one: one.id)  # CUPTI numbers launches
    if not calls <= len(kernels) <= calls + 1:
        return []
    return [(one.time_range.end - one.time_range.start) / 1e6 for one in kernels[len(kernels) - calls :]]


class _Registered:
    """Allocates from a pool of ncclMemAlloc, which is then registered with the group's communicator."""

    def __init__(self, backend: Any, registration: Registration) -> None:
        self._backend, self._symmetric = backend, registration is Registration.WINDOW
        self._pool = _cuda.MemPool(backend.mem_allocator)
        self._using = _cuda.use_mem_pool(self._pool)
        _POOLS.append(self._pool)

    def __enter__(self) -> None:
        self._using.__enter__()

    def __exit__(self, *error: object) -> None:
        self._using.__exit__(*error)
        if error[0] is None:
            more = {"symm": True} if self._symmetric else {}
            self._backend.register_mem_pool(self._pool, **more)


_POOLS: list[Any] = []  # kept until the process ends: a garbage-collected pool frees its memory


class CpuAccelerator:
    """One CPU core: the main thread pauses, a thread for each group makes its calls, one after another."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self._queues: dict[int, queue.SimpleQueue[Callable[[], object]]] = {}
        self._pause = _Pausing(time.sleep)

    def group(self, ranks: Sequence[int]) -> dist.ProcessGroup:
        """Return a new group of gloo."""
        return cast("dist.ProcessGroup", dist.new_group(list(ranks), backend="gloo"))

    def memory(self, group: dist.ProcessGroup, registration: Registration) -> AbstractContextManager[object]:
        """Return the system's allocator. Raises RuntimeError for what only NCCL has."""
        del group
        if registration is not Registration.NONE:
            raise RuntimeError("gloo registers no memory")
        return nullcontext()

    def use(self, pauses: Pauses) -> None:
        """Sleep in pauses, or multiply matrices; how long a product takes is measured."""
        if pauses is Pauses.NONE:
            return
        a, b = torch.randn(_CORE_PRODUCT, _CORE_PRODUCT), torch.randn(_CORE_PRODUCT, _CORE_PRODUCT)
        result = torch.empty_like(a)
        self._pause.compute(lambda count: repeat(lambda: torch.mm(a, b, out=result), count), _timed_on_core)

    def run(self, load: ReplayLoad, align: Callable[[], object], units: Units) -> ReplayTimes:
        """Hand each unit to its group's thread; the step ends when its pauses and all of its calls have."""
        took = [0.0] * (len(units.calls) * load.steps)
        failures: list[BaseException] = []
        align()
        start = time.perf_counter()
        for step in range(load.steps):
            ended = threading.Semaphore(0)
            for number, (group, call, pause) in enumerate(zip(units.groups, units.calls, units.pauses, strict=False)):
                if load.pauses:
                    self._pause(pause)
                if load.calls:
                    index = step * len(units.calls) + number
                    self._queue_of(group).put(_timed(call, took, index, ended, failures))
            if load.pauses:
                self._pause(units.pauses[-1])
            for _ in units.calls if load.calls else ():
                ended.acquire()
            if failures:
                raise failures[0]
        step_s = (time.perf_counter() - start) / load.steps
        return ReplayTimes(step_s, _means(took, load.steps) if load.calls else ())

    def finish(self) -> None:
        """Return at once: what was called has ended."""

    def _queue_of(self, group: int) -> queue.SimpleQueue[Callable[[], object]]:
        """Return the queue of the thread that makes a group's calls."""
        if group not in self._queues:
            made = self._queues[group] = queue.SimpleQueue()
            threading.Thread(target=_run_all, args=(made,), daemon=True).start()
        return self._queues[group]


def _timed_on_core(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def _run_all(calls: queue.SimpleQueue[Callable[[], object]]) -> None:
    while True:
        calls.get()()


def _timed(
    call: Callable[[], object],
    took: list[float],
    index: int,
    ended: threading.Semaphore,
    failures: list[BaseException],
) -> Callable[[], None]:
    """Return a function that makes a call and notes its seconds in `took`, or its error in `failures`."""

    def make_call() -> None:
        begin = time.perf_counter()
        try:
            call()
        except BaseException as error:  # noqa: BLE001  # raised by the main thread
            failures.append(error)
        took[index] = time.perf_counter() - begin
        ended.release()

    return make_call


def _means(took: Sequence[float], steps: int) -> tuple[float, ...]:
    """Return each unit's mean over the steps, which `took` has one after another."""
    units = len(took) // steps
    return tuple(sum(took[number::units]) / steps for number in range(units))
