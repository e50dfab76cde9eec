"""The workers of a replayed step: for each arm a world, of one process for each GPU or CPU core."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from collbench.jobs.replay.protocol import (
    Prepare,
    Prepared,
    ReplayArm,
    ReplayLoad,
    ReplayOpened,
    ReplayTimes,
    Verified,
    Verify,
)
from collbench.jobs.replay.results import Pauses
from collbench.jobs.replay.schedule import Schedule
from collbench.machine import cuda_variables
from collbench.measurement.backends.factory import Choice
from collbench.measurement.backends.torch_process import need_torch
from collbench.measurement.backends.torch_world import Starter, TorchWorld, open_worlds
from collbench.model.capabilities import capabilities
from collbench.model.errors import BackendError, MachineError
from collbench.model.operations import Registration

# NCCL takes 1 s for a communicator, longer where it first looks for networks; each of a job's groups has its own.
_PREPARE_S = 120.0
# Data is made and compared by the same slow cores that send it.
_VERIFY_S = 120.0
# A load that takes so many times what it should, and this much more, hangs.
_MULTIPLE, _LOAD_S = 20.0, 60.0


class ReplayWorld(TorchWorld):
    """All ranks of one arm; `settings` are its variables, `members` the positions that failures name, () for ranks."""

    def __init__(
        self,
        kind: str,
        devices: Sequence[int],
        visible: Sequence[str] = (),
        settings: Mapping[str, str] | None = None,
        members: tuple[int, ...] = (),
    ) -> None:
        """Start the workers and return at once, as TorchWorld does."""
        need_torch("replay computes with")
        super().__init__("jobs.replay.worker", kind, devices, visible, settings)
        self._members = members

    def prepare(self, schedule: Schedule, pauses: Pauses, registration: Registration) -> None:
        """Make groups and buffers. Raises MachineError if they do not fit, BackendError."""
        requests = [
            Prepare(schedule.groups, units, rest, pauses, registration)
            for units, rest in zip(schedule.ranks, schedule.rests, strict=True)
        ]
        for rank, reply in enumerate(self.ask_each(requests, _PREPARE_S)):
            if isinstance(reply, Prepared) and reply.problem:
                raise MachineError(f"rank {rank} cannot prepare the step: {reply.problem}")

    def verify(self) -> int | None:
        """Run a step, and return how many elements were wrong on all ranks. Raises BackendError."""
        counts = [reply.wrong for reply in self.ask(Verify(), _VERIFY_S) if isinstance(reply, Verified)]
        known = [wrong for wrong in counts if wrong is not None]
        return sum(known) if known else None

    def run(self, load: ReplayLoad, expected_s: float) -> tuple[ReplayTimes, ...]:
        """Run a load on every rank. Raises BackendError for a worker that died or hangs."""
        timeout = _LOAD_S + _MULTIPLE * expected_s
        return tuple(reply for reply in self.ask(load, timeout) if isinstance(reply, ReplayTimes))

    def ask_each(self, requests: Sequence[object], timeout_s: float) -> list[Any]:
        """Ask as TorchWorld does; failures name devices by their positions in the run, not by ranks."""
        try:
            return super().ask_each(requests, timeout_s)
        except BackendError as error:
            if not self._members:
                raise
            where = tuple(self._members[rank] for rank in error.failure.devices)
            raise BackendError(str(error), failure=replace(error.failure, devices=where)) from error


# How long a load runs at least, in seconds, in whole steps.
_SPANS_S = 0.05, 0.1


def open_replay(
    name: str, wanted: str | None, arms: Sequence[ReplayArm], chosen: Choice, *, independent: bool = False
) -> ReplayOpened:
    """Open a world for each arm on its places among the devices that are `chosen` of those wanted.

    If arms are `independent`, one whose workers do not start fails when it is asked, and the others can be used.
    Raises UsageError, MachineError, BackendError.
    """
    if not capabilities(name).cores:
        cuda_variables.refuse(cuda_variables.Use.REPLAY)
    starters = [_starter(arm) for arm in arms]
    opened = open_worlds(name, wanted, starters, _SPANS_S, chosen, independent=independent)
    return replace(opened, traces=not capabilities(name).cores)


def _starter(arm: ReplayArm) -> Starter[ReplayWorld]:
    def started(kind: str, devices: Sequence[int], visible: Sequence[str]) -> ReplayWorld:
        own = [devices[position] for position in arm.members(len(devices))]
        return ReplayWorld(kind, own, visible, arm.settings, arm.places)

    return started
