"""The host backend: CPU cores as devices, memory copies between pinned threads, collectives over gloo.

Gloo has one worker process per rank; their parent, which uses this module, never loads torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from collbench.machine import kernel
from collbench.machine.kernel import available_bytes
from collbench.measurement.backends.child_process import TorchWorkers, worker_environment
from collbench.measurement.backends.protocol import Backend, Step, Timing, slowest
from collbench.model.errors import BackendError, DataCorruption, UsageError, WrongData
from collbench.model.operations import Operation, Variant
from collbench.model.run import HOST, Device
from collbench.model.units import DTYPE_BYTES, format_approximate_size

if TYPE_CHECKING:
    from collbench._native import HostSession

# What gloo has of our types [torch 2.13 ProcessGroupGloo.cpp, GENERATE_ALL_TYPES]: not int16, not float8.
DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64", "int8", "uint8")
# No avg: gloo lacks it, torch divides a sum afterwards on the caller's thread.
REDOPS = ("sum", "prod", "min", "max")
# Silence for longer than the work could ever take, plus this many seconds, is a hang. Generous: `import torch` alone
# takes 3 s, and tens of seconds from a cold network disk.
TIMEOUT_S = 60.0
# The slowest all-reduce to wait for, in B/s. Loopback TCP on one shared core still gives ten times as much.
_SLOWEST_RATE = 20e6


def check(step: Step) -> None:
    """Raise UsageError for a step that gloo cannot do exactly."""
    if not step.work.operation.is_collective:
        raise UsageError(f"gloo does collectives, not {step.work.operation}")
    if not step.work.verifiable:
        raise UsageError(f"gloo does {step.work.operation} out of place only: leave out the option for in place")
    if step.dtype not in DTYPES:
        raise UsageError(f"gloo has no {step.dtype}: choose one of {', '.join(DTYPES)}")
    if step.work.operation.reduces and step.redop not in REDOPS:
        raise UsageError(f"gloo cannot reduce by {step.redop}: choose one of {', '.join(REDOPS)}")
    width, ranks = DTYPE_BYTES[step.dtype], len(step.groups[0])
    count, rest = divmod(step.size_bytes, width)
    if rest or not count:
        raise UsageError(
            f"{step.size_bytes} B is not a whole number of {step.dtype} elements: use a multiple of "
            f"{width} B, or --dtype uint8"
        )
    if step.work.operation.shares and count % ranks:
        raise UsageError(f"{step.size_bytes} B is not a whole block of {step.dtype} for each of {ranks} ranks")


def expected_seconds(step: Step) -> float:
    """Return how long a step may take on the slowest machine, in seconds."""
    messages = step.iterations * (step.batches + step.warmup) + 1
    return messages * step.size_bytes * max(map(len, step.groups)) / _SLOWEST_RATE


def start_workers(
    cores: Mapping[int, int], ranks: int, meeting: Sequence[str] = (), interface: str = "lo"
) -> TorchWorkers:
    """Start the gloo workers of some of the `ranks`, rank r pinned to `cores[r]`, and return at once.

    They meet in a file of theirs, or at `meeting`: host, port and prefix of a TCPStore. `interface` is the network to
    use where the user has not chosen one.
    """
    module, environment = "measurement.backends.gloo_worker", worker_environment(interface)
    return TorchWorkers(module, HOST.name, cores, ranks, environment, meeting, by_core=True)


class GlooWorld:
    """One gloo rank per core: rank r is pinned to `cores[r]`, so ranks are the backend's positions.

    The workers start with the first collective. They end with `close()`, with any failure, or with this process.
    """

    def __init__(self, cores: Sequence[int], timeout_s: float = TIMEOUT_S) -> None:
        """Start nothing yet. `timeout_s` is how long silence may last beyond the expected work, in seconds."""
        self._cores = dict(enumerate(cores))
        self._timeout_s = timeout_s
        self._workers: TorchWorkers | None = None

    def time(self, step: Step) -> Timing:
        """Time one collective on each of the step's groups, concurrently; every element is verified.

        Raises UsageError for what gloo lacks, MachineError without torch, DataCorruption for a wrong element and
        BackendError, which names the core, for a worker that died or hangs. After a BackendError
        the workers have exited; the next call starts new ones.
        """
        check(step)
        if self._workers is None or not self._workers.process_ids:
            self._workers = start_workers(self._cores, len(self._cores))
            self._workers.join(self._timeout_s)
        # Each worker gets the step: all must take part in making a process group, whether they are in it or not.
        timings = self._workers.ask(self._timeout_s + expected_seconds(step), "time", step, tuple(self._cores))
        return slowest(step, timings)

    def close(self) -> None:
        """End the workers; does nothing the second time."""
        if self._workers is not None:
            self._workers.close()
            self._workers = None


# The backend.

# Small messages rotate over a buffer of at least this much, so that they do not stay in a core's own L2 (≤ 4 MiB on
# today's CPUs). A shared L3 is not avoided: it *is* the path between two cores.
_MIN_BUFFER_BYTES = 8 * 2**20

# A device holds a source and a destination for copies, rounded up to a power of two; for a collective its rank holds
# the working buffer and up to one more of random data (gloo_worker.py).
_BUFFERS_PER_DEVICE = 6

_COPIES = (Operation.CPU_WRITE, Operation.CPU_READ)


class HostBackend(Backend):
    """CPU cores as devices. Copies start no process; the gloo workers start with the first collective."""

    name = "host"

    def __init__(self, devices: tuple[Device, ...] | None = None) -> None:
        """Take the cores that this process may use, or `devices` of them. Raises MachineError below two cores."""
        self._devices = kernel.core_devices() if devices is None else devices
        self._session: HostSession | None = None
        self._session_bytes = 0
        self._gloo = GlooWorld(tuple(device.index for device in self._devices))

    def devices(self) -> tuple[Device, ...]:
        """Return the cores that steps refer to, by position."""
        return self._devices

    def operations(self, variant: Variant) -> tuple[Operation, ...]:
        """Return the two directions in which a core can drive a copy, one way: cores have no other patterns."""
        return _COPIES if variant is Variant.PLAIN else ()

    def capacity_bytes(self) -> int:
        """Return the largest message in bytes whose buffers take at most half of the free memory."""
        return available_bytes() // 2 // (_BUFFERS_PER_DEVICE * len(self._devices))

    def time(self, step: Step) -> Timing:
        """Time a collective over gloo, or CPU copies. Raises DataCorruption, BackendError, UsageError."""
        return self._gloo.time(step) if step.work.operation.is_collective else self._time_copies(step)

    def _time_copies(self, step: Step) -> Timing:
        """Time a CPU copy on each link, concurrently."""
        if step.work.operation not in _COPIES:
            raise UsageError(f"the host backend cannot do {step.work.operation}: it copies by cpu-write or cpu-read")
        from collbench import _native

        links = [(self._devices[src].index, self._devices[dst].index) for src, dst in step.groups]
        pull = step.work.operation is Operation.CPU_READ
        try:
            session = self._session_for(step.size_bytes)
            seconds = session.time_copies(links, pull, step.size_bytes, step.iterations, step.batches, step.warmup)
        except _native.DataError as error:
            group, byte = step.groups[error.group], error.offset
            wrong = WrongData(step.work, step.size_bytes, group, None, byte, error.expected, error.found)
            raise DataCorruption(wrong=wrong) from error
        except (RuntimeError, MemoryError) as error:
            size = format_approximate_size(step.size_bytes)
            between = ", ".join(f"CPU{src}→CPU{dst}" for src, dst in links)
            raise BackendError(f"{step.work.operation} of {size} on {between} failed: {error}") from error
        return Timing(seconds=tuple(tuple(batches) for batches in seconds))

    def close(self) -> None:
        """Free the buffers and end the workers."""
        self._session, self._session_bytes = None, 0
        self._gloo.close()

    def _session_for(self, size: int) -> HostSession:
        """Return buffers that hold `size` bytes. They only grow, to powers of two: ascending sizes cost few moves."""
        from collbench import _native

        if self._session is None or size > self._session_bytes:
            self._session = None  # the old buffers go before the new ones come
            self._session_bytes = max(_MIN_BUFFER_BYTES, 1 << (size - 1).bit_length())
            self._session = _native.HostSession([device.index for device in self._devices], self._session_bytes)
        return self._session
