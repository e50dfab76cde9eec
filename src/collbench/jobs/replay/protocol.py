"""The backend that replays a recorded step, and the messages to its workers. Does not load torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from collbench.jobs.replay.schedule import MIXED, P2P, Schedule
from collbench.measurement.backends.protocol import OpenWorkers
from collbench.model.operations import Operation


def operation_of(name: str) -> Operation:
    """Return the operation as which a kind of call of a schedule is measured."""
    return {P2P: Operation.SENDRECV, MIXED: Operation.ALLREDUCE}.get(name) or Operation(name)


@dataclass(frozen=True, slots=True)
class ReplayLoad:
    """What every rank runs from a common start: so many steps, with pauses, with calls, or with both.

    `delay_s` is how long a GPU waits before the start, so that its host gets ahead of it. A `traced` load runs under
    torch's profiler: its units are as long as their kernels, and its step is of no use.
    """

    steps: int
    pauses: bool = True
    calls: bool = True
    delay_s: float = 0.0
    traced: bool = False


@dataclass(frozen=True, slots=True)
class ReplayTimes:
    """One rank's seconds: of a step, the mean, and of each of its units, from its begin to its end, the mean.

    `units` is () without calls, and where a trace does not say which kernel is whose. A unit's seconds include the wait
    for other ranks. `queued` is False if the host fell behind its device.
    """

    step: float
    units: tuple[float, ...] = ()
    queued: bool = True


@dataclass(frozen=True, slots=True)
class ReplayArm:
    """What an arm differs in: what NCCL goes `without`, and the variables that make it so."""

    without: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)


class ReplayBackend(Protocol):
    """All ranks as one. Each call returns when every rank has answered; errors are CollbenchErrors."""

    def prepare(self, schedule: Schedule) -> None:
        """Make groups and buffers. Raises MachineError if they do not fit."""

    def verify(self) -> int | None:
        """Run a step, untimed, on data that was not sent before.

        Return how many elements were wrong in any buffer; None if it cannot be known.
        """

    def run(self, load: ReplayLoad, expected_s: float) -> tuple[ReplayTimes, ...]:
        """Run a load, which should take `expected_s` seconds. Raises BackendError."""


ReplayOpened = OpenWorkers[ReplayBackend]
