"""What a backend is: devices, and raw seconds for a step. It never computes a bandwidth and never decides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from collbench.model import Device, Operation


@dataclass(frozen=True, slots=True)
class Step:
    """One visit's work: the same operation and size on disjoint groups of devices at the same time.

    `groups` are (src, dst) positions for copies, ranks in order for collectives. `iterations` per block, `blocks`
    timed blocks, `warmup` untimed blocks first. `launch_loop` also times the ungraphed launches of collectives.
    """

    operation: Operation
    groups: tuple[tuple[int, ...], ...]
    size_bytes: int
    iterations: int
    blocks: int
    warmup: int = 1
    dtype: str = "float32"
    redop: str = "sum"
    root: int = 0
    launch_loop: bool = False


@dataclass(frozen=True, slots=True)
class Timing:
    """Raw seconds per iteration: `seconds[g][b]` for group g and block b, the maximum over a group's ranks.

    `launch_seconds[g]` is the launch loop's, empty when it was not asked for. Data was verified, or it raised.
    """

    seconds: tuple[tuple[float, ...], ...]
    launch_seconds: tuple[float, ...] = ()


class Backend(Protocol):
    """A source of samples. Errors are CollbenchErrors; wrong data raises DataCorruption and names the offset."""

    name: str

    def devices(self) -> tuple[Device, ...]:
        """Return the devices that steps refer to, by position."""

    def copy_operations(self) -> tuple[Operation, ...]:
        """Return the copies that this backend can time."""

    def capacity_bytes(self) -> int:
        """Return the largest message size in bytes that every device has room for."""

    def free_bytes(self) -> tuple[int, ...]:
        """Return each device's free memory in bytes, by position; empty where devices share the machine's."""

    def reserve(self, largest_bytes: int) -> None:
        """Make room for messages of up to `largest_bytes`; called once, before the first step."""

    def can_copy(self, operation: Operation, src: int, dst: int) -> str | None:
        """Return None where the link carries this copy, else the reason why it cannot."""

    def time_copies(self, step: Step) -> Timing:
        """Time one copy on each of the step's links, concurrently."""

    def time_collective(self, step: Step) -> Timing:
        """Time one collective on each of the step's communicators, concurrently."""

    def close(self) -> None:
        """Release what would outlive the process; must be safe to call twice."""


def time_step(backend: Backend, step: Step) -> Timing:
    """Time a step of either kind."""
    return backend.time_copies(step) if step.operation.is_copy else backend.time_collective(step)
