"""A simulated replay: in place of torch's workers, a fabric says what the calls of a step take."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from collbench.jobs.replay.protocol import ReplayLoad, ReplayOpened, ReplayTimes, operation_of
from collbench.jobs.replay.schedule import Schedule
from collbench.measurement.backends.factory import Choice
from collbench.measurement.backends.protocol import Step
from collbench.measurement.backends.sim import SimBackend, opened
from collbench.model.operations import Work
from collbench.model.skew import whole_blocks
from collbench.sim.fabrics import Fabric

_SPAN_S = 0.05  # as on GPUs
_LEAST_BYTES = 16


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
        size = max(_LEAST_BYTES * ranks, whole_blocks(kind.size_bytes, ranks) if operation.shares else kind.size_bytes)
        timing = self._backend.time(Step(Work(operation), (tuple(members),), size, 1, 1, dtype="uint8"))
        return timing.seconds[0][0]


def open_replay(fabric_name: str | None, wanted: str | None, seed: int, chosen: Choice) -> ReplayOpened:
    """Simulate a replay on the devices of a fabric that are `chosen` of those wanted. Raises UsageError."""
    return opened(
        fabric_name, wanted, seed, chosen, lambda fabric, backend: [SimReplay(fabric, backend, seed)], _SPAN_S
    )
