"""The workers of a replayed step: for each arm a world, of one process for each GPU or CPU core."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from collbench.jobs.replay.protocol import ReplayArm, ReplayLoad, ReplayOpened, ReplayTimes
from collbench.jobs.replay.schedule import Schedule
from collbench.machine import variables
from collbench.measurement.backends.factory import Choice
from collbench.measurement.backends.torch_process import need_torch
from collbench.measurement.backends.torch_world import Starter, TorchWorld, open_worlds
from collbench.model.capabilities import capabilities

# NCCL takes 1 s for a communicator, longer where it first looks for networks; each of a job's groups has its own.
_PREPARE_S = 120.0
# Data is made and compared by the same slow cores that send it.
_VERIFY_S = 120.0
# A load that takes so many times what it should, and this much more, hangs.
_MULTIPLE, _LOAD_S = 20.0, 60.0


class ReplayWorld(TorchWorld):
    """All ranks of one arm; `settings` are its variables."""

    def __init__(
        self,
        kind: str,
        devices: Sequence[int],
        visible: Sequence[str] = (),
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Start the workers and return at once, as TorchWorld does."""
        need_torch("replay computes with")
        super().__init__("jobs.replay.worker", kind, devices, visible, settings)

    def prepare(self, schedule: Schedule) -> None:
        """Make groups and buffers. Raises MachineError if they do not fit, BackendError."""
        self.ask(_PREPARE_S, "prepare", schedule)

    def verify(self) -> int | None:
        """Run a step, and return how many elements were wrong on all ranks. Raises BackendError."""
        known = [wrong for wrong in self.ask(_VERIFY_S, "verify") if wrong is not None]
        return sum(known) if known else None

    def run(self, load: ReplayLoad, expected_s: float) -> tuple[ReplayTimes, ...]:
        """Run a load on every rank. Raises BackendError for a worker that died or hangs."""
        return tuple(self.ask(_LOAD_S + _MULTIPLE * expected_s, "run", load))


# How long a load runs at least, in seconds, in whole steps.
_SPANS_S = 0.05, 0.1


def open_replay(name: str, wanted: str | None, arms: Sequence[ReplayArm], chosen: Choice) -> ReplayOpened:
    """Open a world for each arm on the devices that are `chosen` of those wanted.

    Raises UsageError, MachineError, BackendError.
    """
    if not capabilities(name).cores:
        variables.refuse(variables.Use.REPLAY)
    starters = [_starter(arm) for arm in arms]
    opened = open_worlds(name, wanted, starters, _SPANS_S, chosen)
    return replace(opened, traces=not capabilities(name).cores)


def _starter(arm: ReplayArm) -> Starter[ReplayWorld]:
    return lambda kind, devices, visible: ReplayWorld(kind, devices, visible, arm.settings)
