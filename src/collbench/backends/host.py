"""The host backend: memory copies between pinned threads (native), collectives between processes over gloo."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from collbench.backends.gloo import GlooWorld
from collbench.backends.protocol import Step, Timing, time_each
from collbench.errors import BackendError, DataCorruption, StepFailed, UsageError
from collbench.machine import cores, memory
from collbench.model import Device, Refusal
from collbench.operations import Operation, Variant, Work
from collbench.units import format_approximate_size

if TYPE_CHECKING:  # the extension is loaded by the first copy: neither collectives nor --help need it
    from collbench._native import DataError, HostSession

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
        self._devices = cores.devices() if devices is None else devices
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
        return memory.available_bytes() // 2 // (_BUFFERS_PER_DEVICE * len(self._devices))

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
            seconds = session.time_copies(links, pull, step.size_bytes, step.iterations, step.blocks, step.warmup)
        except _native.DataError as error:
            raise _corruption(step, links, error) from error
        except (RuntimeError, MemoryError) as error:
            size = format_approximate_size(step.size_bytes)
            raise BackendError(f"{step.operation} of {size} between cores {links} failed: {error}") from error
        return Timing(seconds=tuple(tuple(blocks) for blocks in seconds))

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


def _corruption(step: Step, links: list[tuple[int, int]], error: DataError) -> DataCorruption:
    src, dst = links[error.group]
    return DataCorruption(
        f"{step.operation} of {step.size_bytes} B from core {src} to core {dst}: byte {error.offset} is "
        f"0x{int(error.found):02x}, not 0x{int(error.expected):02x}: do not trust this memory, test it (memtest86+)",
        step.groups[error.group],
    )
