"""A simulated replay: each call takes the fabric's time, and overlaps pauses by the fabric's factors."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum

import numpy as np

from collbench.analysis.job_schedule import MIXED, P2P, Schedule
from collbench.backends import factory
from collbench.backends.protocol import Step
from collbench.backends.replay_protocol import ReplayArm, ReplayLoad, ReplayOpened, ReplayTimes
from collbench.backends.sim import SimBackend
from collbench.backends.torch_world import Choice
from collbench.model.capabilities import SIM
from collbench.model.dtypes import whole_blocks
from collbench.model.operations import Operation, Registration
from collbench.model.run import Pauses
from collbench.sim.fabrics import Fabric
from collbench.sim.labels import devices as devices_of

_SPAN_S = 0.05  # as on GPUs
_LEAST_BYTES = 16


class SimReplay:
    """All ranks of a simulated arm, with a simulated clock: a seed gives the same times everywhere.

    `members` are the ranks' positions on the backend; `arm` is the arm's number, whose noise is its own.
    """

    def __init__(self, fabric: Fabric, backend: SimBackend, seed: int, members: Sequence[int], arm: int = 0) -> None:
        self._fabric, self._backend, self._members = fabric, backend, tuple(members)
        self._rng = np.random.default_rng([seed, 2, arm] if arm else [seed, 2])
        self._schedule: Schedule | None = None
        self._computes = False
        self._seconds = 0.0

    def prepare(self, schedule: Schedule, pauses: Pauses, registration: Registration) -> None:
        """Store the step: any size fits."""
        del registration
        self._schedule, self._computes = schedule, pauses is Pauses.RECORDED

    def verify(self) -> int | None:
        """Return no wrong element: nothing was sent."""
        return 0

    def run(self, load: ReplayLoad, expected_s: float) -> tuple[ReplayTimes, ...]:
        """Return a load's times: each call begins when all of its ranks have reached it."""
        del expected_s
        schedule = self._schedule
        assert schedule is not None  # noqa: S101  # as the protocol has it
        ranks = range(len(schedule.ranks))
        beside = self._fabric.overlap
        slower = beside.collective if self._computes and load.pauses else 1.0
        noise = float(np.exp(self._rng.normal(0, self._fabric.noise.trial))) if load.pauses else 1.0
        # When each rank's host, or main stream, reaches each unit.
        comes = []
        for units in schedule.ranks:
            at, own = 0.0, []
            for unit in units:
                at += unit.pause * noise if load.pauses else 0.0
                own.append(at)
            comes.append(own)
        ends = [
            (comes[rank][-1] if comes[rank] else 0.0) + schedule.rests[rank] * noise * load.pauses for rank in ranks
        ]
        took = [[0.0] * len(units) for units in schedule.ranks]
        if load.calls:
            calls = self._timeline(schedule, comes, took, slower)
            busy = [sum(own) for own in took]
            more = (beside.compute - 1) / beside.compute if slower > 1 else 0.0
            ends = [max(end + busy[rank] * more, calls[rank]) for rank, end in enumerate(ends)]
            end = max(ends)  # a late rank keeps the others waiting in the next step
            ends = [end] * len(ends)
        self._seconds += load.steps * max(ends)
        return tuple(ReplayTimes(ends[rank], tuple(took[rank]) if load.calls else ()) for rank in ranks)

    def clock(self) -> float:
        """Return the seconds that all loads so far would have taken."""
        return self._seconds

    def _timeline(
        self, schedule: Schedule, comes: list[list[float]], took: list[list[float]], slower: float
    ) -> list[float]:
        """Fill in how long each unit took, its wait included; return when each rank's last call ended."""
        meetings: dict[int, list[tuple[int, int]]] = {}
        for rank, units in enumerate(schedule.ranks):
            for number, unit in enumerate(units):
                meetings.setdefault(unit.meeting, []).append((rank, number))
        free: dict[tuple[int, int], float] = {}  # when a rank's stream of a group is free
        last = [0.0] * len(schedule.ranks)
        for meeting in sorted(meetings):  # of each group in order
            units_met = meetings[meeting]
            group = schedule.ranks[units_met[0][0]][units_met[0][1]].group
            starts = {rank: max(comes[rank][n], free.get((rank, group), 0.0)) for rank, n in units_met}
            end = max(starts.values()) + slower * self._call_seconds(schedule, meeting, sorted(starts))
            for rank, number in units_met:
                took[rank][number] += end - starts[rank]
                free[rank, group] = end
                last[rank] = max(last[rank], end)
        return last

    def _call_seconds(self, schedule: Schedule, meeting: int, members: list[int]) -> float:
        kind = schedule.kinds[schedule.meetings[meeting]]
        if len(members) < 2:
            return 0.0
        operation = Operation.SENDRECV if kind.operation == P2P else Operation.ALLREDUCE
        if kind.operation not in (P2P, MIXED):
            operation = Operation(kind.operation)
        ranks = len(members)
        size = max(_LEAST_BYTES * ranks, whole_blocks(kind.size_bytes, ranks) if operation.shares else kind.size_bytes)
        group = tuple(self._members[rank] for rank in members)
        timing = self._backend.time(Step(operation, (group,), size, 1, 1, dtype="uint8"))
        return timing.seconds[0][0]


def open_simulated(
    fabric_name: str | None,
    wanted: str | None,
    seed: int,
    chosen: Choice,
    arms: Sequence[ReplayArm] = (ReplayArm(),),
) -> ReplayOpened:
    """Open the sim backend, for each arm, on the devices of a fabric that are `chosen` of those wanted.

    Raises UsageError.
    """
    fabric = factory.simulated(fabric_name)
    every = devices_of(fabric)
    devices = chosen(factory.choose_devices(every, wanted))
    backend = SimBackend(fabric, seed, tuple(every.index(device) for device in devices))
    made = [SimReplay(fabric, backend, seed, arm.members(len(devices)), index) for index, arm in enumerate(arms)]
    return ReplayOpened(
        SIM.name,
        tuple(made),
        backend.devices(),
        _SPAN_S,
        machine=backend.machine(),
        paths=backend.paths(),
        environment=backend.environment(),
        health=backend.health,
        flags=backend.flags,
        clock=lambda: fsum(arm.clock() for arm in made),
    )
