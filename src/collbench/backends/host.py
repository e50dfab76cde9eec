"""The host backend: memory copies between pinned threads (native), collectives between processes over gloo."""

from __future__ import annotations

import pathlib
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from collbench.backends.gloo_process import TIMEOUT_S, expected_seconds, spawn, task_of
from collbench.backends.gloo_tasks import Reply, Task
from collbench.backends.protocol import Step, Timing, time_each
from collbench.backends.torch_process import TorchProcess, collected, lost
from collbench.machine import numa
from collbench.machine.kernel import available_bytes
from collbench.model.errors import BackendError, DataCorruption, MachineError, StepFailed, UsageError
from collbench.model.failures import WrongData
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import Device, Refusal
from collbench.model.units import format_approximate_size

if TYPE_CHECKING:  # the extension is loaded by the first copy: neither collectives nor --help need it
    from collbench._native import HostSession


# Collectives between real processes over gloo, parent side: one worker per core, each behind a private pipe.
#
# The parent never loads torch. Workers start with the first collective, and end with `close()`, with any failure, or
# when their pipe closes because this process is gone.


class GlooWorld:
    """One gloo rank per core. Rank r is pinned to `cores[r]`, so ranks are the backend's positions."""

    def __init__(self, cores: Sequence[int], timeout_s: float = TIMEOUT_S) -> None:
        """Start nothing yet. `timeout_s` is how long silence may last beyond the expected work, in seconds."""
        self._cores = tuple(cores)
        self._timeout_s = timeout_s
        self._workers: list[TorchProcess] = []
        self._folder: pathlib.Path | None = None

    def time_collective(self, step: Step) -> Timing:
        """Time one collective on each of the step's groups, concurrently; every element is verified.

        Raises UsageError for what gloo lacks, MachineError without torch, DataCorruption for a wrong element and
        BackendError, which names the core, for a worker that died or hangs. After an error the workers have exited;
        the next call starts new ones.
        """
        task = task_of(step)
        try:
            if not self._workers:
                self._start()
            replies = self._exchange(task, self._timeout_s + expected_seconds(step))
            return _timing(step, replies)
        except BaseException:  # Ctrl-C too: an unread reply would answer the next task
            self.close()
            raise

    def close(self) -> None:
        """End and reap the workers and remove their folder; does nothing the second time."""
        for worker in self._workers:
            worker.end()
        self._workers = []
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _start(self) -> None:
        if find_spec("torch") is None:
            raise MachineError("collectives on the host backend need torch, which is not installed: pip install torch")
        self._folder = pathlib.Path(tempfile.mkdtemp(prefix="collbench-gloo-"))
        for rank in range(len(self._cores)):
            self._workers.append(spawn(rank, self._cores, self._folder))
        collected(self._workers, self._timeout_s)  # each says once that it has joined

    def _exchange(self, task: Task, timeout_s: float) -> list[Reply]:
        """Give every worker the same task: each must take part in making a process group, member or not."""
        for worker in self._workers:
            try:
                worker.pipe.send(task)
            except OSError as error:
                raise lost(worker, self._workers) from error
        return collected(self._workers, timeout_s)


def corruption(step: Step, rank: int, wrong: tuple[int, float, float]) -> DataCorruption:
    """Return the error for a rank's wrong element: its offset in bytes, the expected value and the one found."""
    offset, expected, received = wrong
    members = next(group for group in step.groups if rank in group)
    found_by_first = (rank, *(member for member in members if member != rank))
    return DataCorruption(wrong=WrongData(step.work, step.size_bytes, found_by_first, None, offset, expected, received))


def _timing(step: Step, replies: Sequence[Reply]) -> Timing:
    """Return the slowest rank's time of each batch of each group. Raises DataCorruption for a wrong element."""
    for rank, reply in enumerate(replies):
        if reply["wrong"] is not None:
            raise corruption(step, rank, reply["wrong"])
    return Timing(
        seconds=tuple(
            tuple(max(times) for times in zip(*(replies[rank]["seconds"] for rank in group), strict=True))
            for group in step.groups
        )
    )


# The host backend: memory copies between pinned threads (native), collectives between processes over gloo.


# Small messages rotate over a buffer of at least this much, so that they leave a core's own L2 (≤ 4 MiB on today's
# CPUs). A shared L3 is not avoided: it *is* the path between two cores.
_LEAST_BUFFER_BYTES = 8 * 2**20

# A device holds a source and a destination for copies, rounded up to a power of two; for a collective its rank holds
# the working buffer and up to one more of random data (gloo_data.py).
_BUFFERS_PER_DEVICE = 6

_COPIES = (Operation.CPU_WRITE, Operation.CPU_READ)


class HostBackend:
    """CPU cores as devices. Copies start no process; the gloo workers start with the first collective."""

    name = "host"

    def __init__(self, devices: tuple[Device, ...] | None = None) -> None:
        """Take the cores that this process may use, or `devices` of them. Raises MachineError below two cores."""
        self._devices = numa.devices() if devices is None else devices
        self._session: HostSession | None = None
        self._session_bytes = 0
        self._world = GlooWorld(tuple(device.index for device in self._devices))

    def devices(self) -> tuple[Device, ...]:
        """Return the cores that steps refer to, by position."""
        return self._devices

    def operations(self, variant: Variant) -> tuple[Operation, ...]:
        """Return the two directions in which a core can drive a copy, one way: cores have no other patterns."""
        return _COPIES if variant is Variant.PLAIN else ()

    def capacity_bytes(self) -> int:
        """Return the largest message in bytes whose buffers take at most half of the free memory."""
        return available_bytes() // 2 // (_BUFFERS_PER_DEVICE * len(self._devices))

    def free_bytes(self) -> tuple[int, ...]:
        """Return nothing: cores share the machine's memory."""
        return ()

    def numa_nodes(self) -> tuple[int, ...]:
        """Return nothing: a core's copies start and end in its own node's memory."""
        return ()

    def reserve(self, largest_bytes: int) -> None:
        """Do nothing: buffers grow as sizes come."""

    def can_run(self, work: Work, members: tuple[int, ...]) -> Refusal | None:
        """Return None: every core reaches all memory."""
        return None

    def prepare(self, groups: tuple[tuple[int, ...], ...]) -> None:
        """Do nothing: the gloo workers start with the first collective."""

    def ready(self) -> None:
        """Return at once: nothing was begun."""

    def time_steps(self, steps: Iterable[Step]) -> Iterator[tuple[Step, Timing | StepFailed]]:
        """Time steps one after another."""
        return time_each(self, steps)

    def time_copies(self, step: Step) -> Timing:
        """Time a CPU copy on each link, concurrently. Raises DataCorruption, BackendError, UsageError."""
        if step.operation not in _COPIES:
            raise UsageError(f"the host backend cannot do {step.operation}: it copies by cpu-write or cpu-read")
        from collbench import _native

        links = [(self._devices[src].index, self._devices[dst].index) for src, dst in step.groups]
        pull = step.operation is Operation.CPU_READ
        try:
            session = self._session_for(step.size_bytes)
            seconds = session.time_copies(links, pull, step.size_bytes, step.iterations, step.batches, step.warmup)
        except _native.DataError as error:
            group, byte = step.groups[error.group], error.offset
            wrong = WrongData(step.work, step.size_bytes, group, None, byte, error.expected, error.found)
            raise DataCorruption(wrong=wrong) from error
        except (RuntimeError, MemoryError) as error:
            size = format_approximate_size(step.size_bytes)
            raise BackendError(f"{step.operation} of {size} between cores {links} failed: {error}") from error
        return Timing(seconds=tuple(tuple(batches) for batches in seconds))

    def time_collective(self, step: Step) -> Timing:
        """Time one gloo collective on each group, concurrently; launch_seconds is empty: nothing is launched."""
        return self._world.time_collective(step)

    def close(self) -> None:
        """Free the buffers and end the workers."""
        self._session, self._session_bytes = None, 0
        self._world.close()

    def _session_for(self, size: int) -> HostSession:
        """Return buffers that hold `size` bytes. They only grow, to powers of two: ascending sizes cost few moves."""
        from collbench import _native

        if self._session is None or size > self._session_bytes:
            self._session = None  # the old buffers go before the new ones come
            self._session_bytes = max(_LEAST_BUFFER_BYTES, 1 << (size - 1).bit_length())
            self._session = _native.HostSession([device.index for device in self._devices], self._session_bytes)
        return self._session
