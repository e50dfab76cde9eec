"""A simulated collective that overlaps simulated compute. The fabric says how much each slows the other down."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from collbench.backends import factory
from collbench.backends.overlap_protocol import DTYPE, Load, OverlapOpened, OverlapPoint, RankTimes
from collbench.backends.protocol import Step
from collbench.backends.sim import SimBackend
from collbench.model.capabilities import SIM
from collbench.model.compute import Compute, ComputeKind, Priority
from collbench.sim.fabrics import Fabric, OverlapFactors
from collbench.sim.labels import devices as devices_of

_SPAN_S = 0.025  # as on GPUs
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
        call = self._call_seconds(point)
        unit = unit_seconds(point.compute, factors) * float(np.exp(self._rng.normal(0, self._fabric.noise.trial)))
        high = point.priority is Priority.HIGH
        slower = 1 + (factors.collective - 1) * (_LEFT_BY_PRIORITY if high else 1.0)
        works = (load.collective_chunks, load.calls * call), (load.compute_chunks, load.units * unit)
        ends = overlapped(works, (slower, factors.compute))
        begins: tuple[float, ...] = ()
        if load.idle_s:  # compute covers each call
            took = [load.compute_chunks * works[1][1] * factors.compute] * len(load.idle_s)
            starts = list(itertools.accumulate(took, initial=0.0))[:-1]
            begins = tuple(start + idle for start, idle in zip(starts, load.idle_s, strict=True))
            chunks = range(1, load.compute_chunks + 1)
            ends = (
                tuple(begin + load.calls * call * slower for begin in begins),
                tuple(start + number * works[1][1] * factors.compute for start in starts for number in chunks),
            )
        self._seconds += max((times[-1] for times in ends if times), default=0.0)
        wrong = [0 if times else None for times in ends]
        return self._ranks * (RankTimes(ends[0], ends[1], begins, True, wrong[0], wrong[1]),)

    def clock(self) -> float:
        """Return the seconds that all loads so far would have taken."""
        return self._seconds

    def close(self) -> None:
        """Do nothing: nothing was opened."""

    def _call_seconds(self, point: OverlapPoint) -> float:
        members = tuple(range(self._ranks))
        timing = self._backend.time(Step(point.operation, (members,), point.size_bytes, 1, 1, dtype=DTYPE))
        limited = 1.0 if point.ctas is None else (point.ctas + 1) / point.ctas
        return timing.seconds[0][0] * limited


def overlapped(
    works: Sequence[tuple[int, float]], slower: Sequence[float]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the end of each chunk of two overlapping works of (chunks, isolated seconds per chunk) and slowdowns."""
    alone = [chunks * seconds for chunks, seconds in works]
    both = all(alone)
    shared = min(time * factor for time, factor in zip(alone, slower, strict=True)) if both else 0.0
    ends = []
    for (chunks, seconds), factor in zip(works, slower, strict=True):
        done = shared / factor  # isolated seconds of its work done when the other ends
        owed = [number * seconds for number in range(1, chunks + 1)]
        ends.append(tuple(own * factor if own <= done else shared + own - done for own in owed))
    return ends[0], ends[1]


def open_simulated(fabric_name: str | None, wanted: str | None, seed: int) -> OverlapOpened:
    """Open the sim backend on the devices of a fabric that `wanted` names. Raises UsageError."""
    fabric = factory.simulated(fabric_name)
    every = devices_of(fabric)
    chosen = factory.choose_devices(every, wanted)
    backend = SimBackend(fabric, seed, tuple(every.index(device) for device in chosen))
    world = SimOverlap(fabric, backend, seed)
    return OverlapOpened(
        SIM.name,
        (world,),
        backend.devices(),
        _SPAN_S,
        machine=backend.machine(),
        paths=backend.paths(),
        environment=backend.environment(),
        health=backend.health,
        flags=backend.flags,
        clock=world.clock,
    )
