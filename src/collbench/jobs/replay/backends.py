"""What replays a recorded step: a process of torch for each GPU or core and arm, or a simulated machine."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from collbench.jobs.replay.measure import ReplayOpened, ReplayRequest
from collbench.jobs.replay.schedule import ReplayLoad, ReplayTimes, Schedule, operation_of
from collbench.machine import variables
from collbench.measurement.backends.protocol import Step
from collbench.measurement.backends.sim import SimBackend, opened
from collbench.measurement.backends.torch_process import need_torch
from collbench.measurement.backends.torch_world import TorchWorld, open_worlds
from collbench.model.capabilities import capabilities
from collbench.model.operations import Work
from collbench.model.skew import whole_blocks
from collbench.sim.fabrics import Fabric

# How long a load runs at least, in seconds, in whole steps.
_SPANS_S = 0.05, 0.1
# NCCL takes 1 s for a communicator, longer where it first looks for networks; each of a job's groups has its own.
_PREPARE_S = 120.0
# Data is made and compared by the same slow cores that send it.
_VERIFY_S = 120.0
# A load that takes so many times what it should, and this much more, hangs.
_MULTIPLE, _LOAD_S = 20.0, 60.0
_MIN_BYTES = 16  # of a simulated call, a rank


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


def open_replay(request: ReplayRequest) -> ReplayOpened:
    """Open a world for each arm, or a simulated one. Raises UsageError, MachineError, BackendError."""
    row = capabilities(request.backend)
    if row.simulated:
        return opened(request.fabric, request.devices, request.seed, request.chosen, SimReplay, _SPANS_S[0])
    if not row.cores:
        variables.refuse(variables.Use.REPLAY)
    starters = [partial(ReplayWorld, settings=arm.settings) for arm in request.arms]
    worlds = open_worlds(request.backend, request.devices, starters, _SPANS_S, request.chosen)
    return replace(worlds, traces=row.nvml)


class SimReplay:
    """All ranks of a simulated step, with a simulated clock: a seed gives the same times everywhere."""

    def __init__(self, fabric: Fabric, backend: SimBackend, seed: int) -> None:
        self._fabric, self._backend = fabric, backend
        self._rng = np.random.default_rng([seed, 2])
        self._schedule: Schedule | None = None
        self._seconds = 0.0

    def prepare(self, schedule: Schedule) -> None:
        """Store the step: any size fits."""
        self._schedule = schedule

    def verify(self) -> int | None:
        """Return no wrong element: nothing was sent."""
        return 0

    def run(self, load: ReplayLoad, expected_s: float) -> tuple[ReplayTimes, ...]:
        """Return a load's times: each call begins when all of its ranks have reached it."""
        del expected_s
        schedule = self._schedule
        assert schedule is not None  # noqa: S101  # as the protocol has it
        noise = float(np.exp(self._rng.normal(0, self._fabric.noise.trial))) if load.pauses else 0.0
        # When each rank's host, or main stream, reaches each unit, and at last the end of the step.
        reached = [
            list(itertools.accumulate([*(unit.pause * noise for unit in units), rest * noise]))
            for units, rest in zip(schedule.ranks, schedule.rests, strict=True)
        ]
        ends = [moments[-1] for moments in reached]
        if not load.calls:
            self._seconds += load.steps * max(ends)
            return tuple(ReplayTimes(end) for end in ends)
        took, last = self._timeline(schedule, reached)
        # A late rank keeps the others waiting in the next step.
        step = max(*ends, *last)
        self._seconds += load.steps * step
        return tuple(ReplayTimes(step, tuple(own)) for own in took)

    def clock(self) -> float:
        """Return the seconds that all loads so far would have taken."""
        return self._seconds

    def _timeline(self, schedule: Schedule, reached: list[list[float]]) -> tuple[list[list[float]], list[float]]:
        """Return how long each unit of each rank took, its wait included, and when each rank's last call ended."""
        took = [[0.0] * len(units) for units in schedule.ranks]
        meetings: dict[int, list[tuple[int, int]]] = {}
        for rank, units in enumerate(schedule.ranks):
            for number, unit in enumerate(units):
                meetings.setdefault(unit.meeting, []).append((rank, number))
        free: dict[tuple[int, int], float] = {}  # when a rank's stream of a group is free
        last = [0.0] * len(schedule.ranks)
        for meeting in sorted(meetings):  # of each group in order
            units_met = meetings[meeting]
            group = schedule.ranks[units_met[0][0]][units_met[0][1]].group
            starts = {rank: max(reached[rank][n], free.get((rank, group), 0.0)) for rank, n in units_met}
            end = max(starts.values()) + self._call_seconds(schedule, meeting, sorted(starts))
            for rank, number in units_met:
                took[rank][number] += end - starts[rank]
                free[rank, group] = end
                last[rank] = max(last[rank], end)
        return took, last

    def _call_seconds(self, schedule: Schedule, meeting: int, members: Sequence[int]) -> float:
        kind = schedule.kinds[schedule.meetings[meeting]]
        ranks, operation = len(members), operation_of(kind.operation)
        if ranks < 2:
            return 0.0
        size = max(_MIN_BYTES * ranks, whole_blocks(kind.size_bytes, ranks) if operation.shares else kind.size_bytes)
        timing = self._backend.time(Step(Work(operation), (tuple(members),), size, 1, 1, dtype="uint8"))
        return timing.seconds[0][0]
