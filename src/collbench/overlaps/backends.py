"""What measures an overlap: torch's workers, one process for each GPU or CPU core, or a simulated machine."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from collbench.machine import variables
from collbench.measurement.backends.protocol import Step
from collbench.measurement.backends.sim import SimBackend, opened
from collbench.measurement.backends.torch_process import need_torch
from collbench.measurement.backends.torch_world import TorchWorld, open_worlds
from collbench.model.capabilities import capabilities
from collbench.overlaps.protocol import DTYPE, Load, OverlapOpened, RankTimes
from collbench.overlaps.results import Compute, ComputeKind, Overlap, Priority
from collbench.sim.fabrics import Fabric, OverlapFactors

# Operands are made and a communicator starts; NCCL takes 1 s, longer where it first looks for networks.
_WARM_S = 120.0
# A load lasts tens of milliseconds, and on a slow core seconds.
_LOAD_S = 60.0


class OverlapWorld(TorchWorld):
    """All ranks of overlap. `load_s` is how long a load may take, in seconds."""

    def __init__(self, kind: str, devices: Sequence[int], visible: Sequence[str] = (), load_s: float = _LOAD_S) -> None:
        """Start the workers and return at once, as TorchWorld does."""
        need_torch("overlap computes with")
        super().__init__("overlaps.worker", kind, devices, visible)
        self._load_s = load_s

    def allocate(self, point: Overlap) -> None:
        """Make room for a data point. Raises MachineError if it does not fit, BackendError."""
        self.ask(_WARM_S, "allocate", point)

    def warm(self) -> None:
        """Run both once, untimed. Raises BackendError."""
        self.ask(_WARM_S, "warm")

    def run(self, load: Load) -> tuple[RankTimes, ...]:
        """Run a load on every rank. Raises BackendError for a worker that died or hangs."""
        return tuple(self.ask(self._load_s, "run", load))


# How long each of the two runs alone in a trial, in seconds: some 17 products of 8192³ on an H200, and as many
# all-reduces of 256 MiB. On a core a product of 512³ takes some 5 ms.
_SPANS_S = 0.025, 0.05


def open_overlap(name: str, wanted: str | None, fabric: str | None = None, seed: int = 0) -> OverlapOpened:
    """Open a backend on the devices that are wanted, of a `fabric` simulated ones, which a `seed` makes repeat.

    Raises UsageError, MachineError, BackendError.
    """
    if capabilities(name).simulated:
        return opened(fabric, wanted, seed, tuple, SimOverlap, _SPANS_S[0])
    if not capabilities(name).cores:
        variables.refuse(variables.Use.OVERLAP)
    return open_worlds(name, wanted, [OverlapWorld], _SPANS_S)


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


class SimOverlap:
    """All ranks of a simulated machine, with a simulated clock: a seed gives the same times everywhere."""

    def __init__(self, fabric: Fabric, backend: SimBackend, seed: int) -> None:
        self._fabric, self._backend = fabric, backend
        self._rng = np.random.default_rng([seed, 1])
        self._point: Overlap | None = None
        self._ranks = len(backend.devices())
        self._seconds = 0.0

    def allocate(self, point: Overlap) -> None:
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

    def _call_seconds(self, point: Overlap) -> float:
        members = tuple(range(self._ranks))
        timing = self._backend.time(Step(point.work, (members,), point.size_bytes, 1, 1, dtype=DTYPE))
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
