"""Simulated overlap and replay: in place of torch's workers, a fabric says what calls and compute take together."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from math import fsum
from typing import TypeVar

import numpy as np

from collbench.analysis.job_schedule import Schedule
from collbench.backends import factory
from collbench.backends.factory import Choice
from collbench.backends.overlap_protocol import DTYPE, Load, OverlapOpened, OverlapPoint, RankTimes
from collbench.backends.protocol import OpenWorkers, Step
from collbench.backends.replay_protocol import ReplayArm, ReplayLoad, ReplayOpened, ReplayTimes, operation_of
from collbench.backends.sim import SimBackend
from collbench.model.capabilities import SIM
from collbench.model.compute import Compute, ComputeKind, Priority
from collbench.model.operations import Registration
from collbench.model.run import Pauses
from collbench.model.skew import whole_blocks
from collbench.sim.fabrics import Fabric, OverlapFactors

# Overlap: a collective while compute runs.

_OVERLAP_SPAN_S = 0.025  # as on GPUs
# A 7B layer, as in overlap_worker.
_HIDDEN = 4096
# The part of the slowdown by compute that remains for a collective of high priority.
_LEFT_BY_PRIORITY = 0.5


def unit_seconds(compute: Compute, factors: OverlapFactors) -> float:
    """Return the seconds of one unit of compute, isolated, on a simulated GPU."""
    size = float(compute.size)
    match compute.kind:
        case ComputeKind.GEMM:
            return 2 * size**3 / (factors.tflops * 1e12)
        case ComputeKind.MEMORY:
            return 3 * size * 2**20 / (factors.memory_gbs * 1e9)
        case ComputeKind.ATTENTION:  # products in and out, and the lower triangle of two between tokens
            return (8 * size * _HIDDEN**2 + 2 * size**2 * _HIDDEN) / (factors.tflops * 1e12)


class SimOverlap:
    """All ranks of a simulated machine, with a simulated clock: a seed gives the same times everywhere."""

    def __init__(self, fabric: Fabric, backend: SimBackend, seed: int) -> None:
        self._fabric, self._backend = fabric, backend
        self._rng = np.random.default_rng([seed, 1])
        self._point: OverlapPoint | None = None
        self._ranks = len(backend.devices())
        self._seconds = 0.0

    def allocate(self, point: OverlapPoint) -> None:
        """Store the data point: any size fits."""
        self._point = point

    def warm(self) -> None:
        """Do nothing: the simulation needs no warm-up."""

    def run(self, load: Load) -> tuple[RankTimes, ...]:
        """Return a load's times: both are slowed down until one ends, then the other runs at its isolated rate."""
        assert self._point is not None  # noqa: S101  # as the protocol has it
        point, factors = self._point, self._fabric.overlap
        # Seconds of a chunk that runs isolated.
        collective_s = load.calls * self._call_seconds(point)
        noise = float(np.exp(self._rng.normal(0, self._fabric.noise.trial)))
        compute_s = load.units * (unit_seconds(point.compute, factors) * noise)
        left = _LEFT_BY_PRIORITY if point.priority is Priority.HIGH else 1.0
        slowdowns = 1 + (factors.collective - 1) * left, factors.compute
        begins: tuple[float, ...] = ()
        if load.idle_s:  # each round begins when the compute of the one before has ended, and compute covers its call
            round_s = load.compute_chunks * compute_s * slowdowns[1]
            starts = list(itertools.accumulate([round_s] * (len(load.idle_s) - 1), initial=0.0))
            begins = tuple(start + idle for start, idle in zip(starts, load.idle_s, strict=True))
            chunks = range(1, load.compute_chunks + 1)
            collective = tuple(begin + collective_s * slowdowns[0] for begin in begins)
            compute = tuple(start + number * compute_s * slowdowns[1] for start in starts for number in chunks)
        else:
            works = (load.collective_chunks, collective_s), (load.compute_chunks, compute_s)
            collective, compute = overlapped(works, slowdowns)
        self._seconds += max(ends[-1] if ends else 0.0 for ends in (collective, compute))
        wrong, wrong_compute = (0 if ends else None for ends in (collective, compute))
        times = RankTimes(collective, compute, begins, wrong=wrong, wrong_compute=wrong_compute)
        return (times,) * self._ranks

    def clock(self) -> float:
        """Return the seconds that all loads so far would have taken."""
        return self._seconds

    def _call_seconds(self, point: OverlapPoint) -> float:
        members = tuple(range(self._ranks))
        timing = self._backend.time(Step(point.operation, (members,), point.size_bytes, 1, 1, dtype=DTYPE))
        limited = 1.0 if point.ctas is None else (point.ctas + 1) / point.ctas
        return timing.seconds[0][0] * limited


def overlapped(
    works: Sequence[tuple[int, float]], slowdowns: Sequence[float]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the end of each chunk of two overlapping works of (chunks, isolated seconds per chunk) and slowdowns."""
    isolated = [chunks * seconds for chunks, seconds in works]
    slowed = [seconds * slowdown for seconds, slowdown in zip(isolated, slowdowns, strict=True)]
    shared = min(slowed) if all(isolated) else 0.0  # how long both run
    ends = []
    for (chunks, seconds), slowdown in zip(works, slowdowns, strict=True):
        done = shared / slowdown  # isolated seconds of its work done when the other ends
        work_before = [number * seconds for number in range(1, chunks + 1)]
        ends.append(tuple(work * slowdown if work <= done else shared + work - done for work in work_before))
    return ends[0], ends[1]


# Replay: a recorded step.

_REPLAY_SPAN_S = 0.05  # as on GPUs
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
        schedule, factors = self._schedule, self._fabric.overlap
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
        overlaps = self._computes and load.pauses
        took, last = self._timeline(schedule, reached, factors.collective if overlaps else 1.0)
        # While its calls run, a rank's compute is slower.
        more = (factors.compute - 1) / factors.compute if overlaps and factors.collective > 1 else 0.0
        # A late rank keeps the others waiting in the next step.
        step = max(max(end + sum(own) * more, call) for end, own, call in zip(ends, took, last, strict=True))
        self._seconds += load.steps * step
        return tuple(ReplayTimes(step, tuple(own)) for own in took)

    def clock(self) -> float:
        """Return the seconds that all loads so far would have taken."""
        return self._seconds

    def _timeline(
        self, schedule: Schedule, reached: list[list[float]], slowdown: float
    ) -> tuple[list[list[float]], list[float]]:
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
            end = max(starts.values()) + slowdown * self._call_seconds(schedule, meeting, sorted(starts))
            for rank, number in units_met:
                took[rank][number] += end - starts[rank]
                free[rank, group] = end
                last[rank] = max(last[rank], end)
        return took, last

    def _call_seconds(self, schedule: Schedule, meeting: int, members: list[int]) -> float:
        kind = schedule.kinds[schedule.meetings[meeting]]
        ranks, operation = len(members), operation_of(kind.operation)
        if ranks < 2:
            return 0.0
        size = max(_LEAST_BYTES * ranks, whole_blocks(kind.size_bytes, ranks) if operation.shares else kind.size_bytes)
        group = tuple(self._members[rank] for rank in members)
        timing = self._backend.time(Step(operation, (group,), size, 1, 1, dtype="uint8"))
        return timing.seconds[0][0]


# From a fabric's name to open worlds.

World = TypeVar("World", SimOverlap, SimReplay)


def open_overlap(fabric_name: str | None, wanted: str | None, seed: int) -> OverlapOpened:
    """Simulate overlap on the devices of a fabric that `wanted` names. Raises UsageError."""

    def worlds(fabric: Fabric, backend: SimBackend) -> list[SimOverlap]:
        return [SimOverlap(fabric, backend, seed)]

    return _opened(fabric_name, wanted, seed, tuple, worlds, _OVERLAP_SPAN_S)


def open_replay(
    fabric_name: str | None,
    wanted: str | None,
    seed: int,
    chosen: Choice,
    arms: Sequence[ReplayArm] = (ReplayArm(),),
) -> ReplayOpened:
    """Simulate a replay, for each arm, on the devices of a fabric that are `chosen` of those wanted.

    Raises UsageError.
    """

    def worlds(fabric: Fabric, backend: SimBackend) -> list[SimReplay]:
        count = len(backend.devices())
        return [SimReplay(fabric, backend, seed, arm.members(count), index) for index, arm in enumerate(arms)]

    return _opened(fabric_name, wanted, seed, chosen, worlds, _REPLAY_SPAN_S)


def _opened(
    fabric_name: str | None,
    wanted: str | None,
    seed: int,
    chosen: Choice,
    make_worlds: Callable[[Fabric, SimBackend], list[World]],
    span_seconds: float,
) -> OpenWorkers[World]:
    fabric = factory.simulated(fabric_name)
    backend = factory.simulated_backend(fabric, wanted, seed, chosen)
    worlds = make_worlds(fabric, backend)
    return OpenWorkers(
        SIM.name,
        tuple(worlds),
        backend.devices(),
        span_seconds,
        machine=backend.machine(),
        paths=backend.paths(),
        health=backend.health,
        flags=backend.flags,
        environment=backend.environment(),
        clock=lambda: fsum(world.clock() for world in worlds),
    )
