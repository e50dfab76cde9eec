"""The host backend: memory copies between pinned threads (native), collectives between processes over gloo."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collbench.machine import numa
from collbench.machine.kernel import available_bytes
from collbench.measurement.backends.gloo import GlooWorld
from collbench.measurement.backends.protocol import Backend, Step, Timing
from collbench.model.errors import BackendError, DataCorruption, UsageError, WrongData
from collbench.model.operations import Operation, Variant
from collbench.model.run import Device
from collbench.model.units import format_approximate_size

if TYPE_CHECKING:  # the extension is loaded by the first copy: neither collectives nor --help need it
    from collbench._native import HostSession


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
        self._devices = numa.devices() if devices is None else devices
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
