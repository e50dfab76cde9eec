"""Random machines and their runs, made in memory: all shipped fabrics and random ones × every fault, points missing,
failed and shuffled. `COLLBENCH_INVARIANTS=5000` tries so many, each time others; CI takes few, always the same.

Nothing here judges: what a machine can carry is read from its structure, by makers' published figures.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations, permutations
from typing import Any

import numpy as np
from hypothesis import Phase, settings
from hypothesis import strategies as st

from collbench.measurement.backends.protocol import Step, time_step
from collbench.measurement.backends.sim import SimBackend
from collbench.measurement.sweep import wrong_data
from collbench.model.errors import DataCorruption, StepFailed, UsageError
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import DataPoint, Measurement, Run, Sample, Skipped, StopReason
from collbench.sim import fabrics
from collbench.sim.fabrics import Fabric, Fault, FaultKind
from tests.builders import run_of
from tests.sim import faults, random_fabrics

SIZE = 64 * 2**20
_MANY = int(os.environ.get("COLLBENCH_INVARIANTS", "0"))
_SHIPPED = fabrics.names()
_KINDS = ("none", *faults.kinds(), "throttled-gpu", "links-down", "p2p-disabled", "slow-gpu")
# Makers' figures: GB/s one way of an NVLink by NVML's line rate in MB/s, and of a ×16 slot by generation.
LINK_GBS = {14062: 14.0625, 20000: 20.0, 25000: 25.0, 25781: 25.0, 26562: 25.0, 53125: 50.0}
SLOT_GBS = {3: 15.75, 4: 31.5, 5: 63.0}

PAIRS = (Work(Operation.CE_WRITE), Work(Operation.ALLREDUCE))
COPIES = (
    Work(Operation.CE_WRITE),
    Work(Operation.SM_READ),
    Work(Operation.CE_WRITE, Variant.BOTH_WAYS),
    Work(Operation.CE_WRITE, Variant.ONE_TO_ALL),
    Work(Operation.CE_READ, Variant.ALL_TO_ONE),
    Work(Operation.CE_WRITE, Variant.STAGED),
    Work(Operation.H2D_CE, Variant.HOST),
)
COLLECTIVES = tuple(Work(operation) for operation in Operation if operation.is_collective)


def tried(share: float = 1.0) -> Callable[[Any], Any]:
    """Return how many machines a property is tried on: a share of the variable's, else of 6."""
    many = max(1, int((_MANY or 6) * share))
    # A smaller seed is not a simpler machine, so shrinking gains nothing and takes minutes.
    phases = (Phase.explicit, Phase.generate)
    return settings(max_examples=many, derandomize=not _MANY, deadline=None, database=None, phases=phases)


@dataclass(frozen=True, slots=True)
class Made:
    """A machine: a shipped one's name or a random one's seed, its fault, and the seed of everything else."""

    which: str | int
    kind: str
    seed: int

    @property
    def fabric(self) -> Fabric:
        """The machine with its fault; without one where it has no place for it."""
        return _fabric(self.which, self.kind, self.seed)

    @property
    def rng(self) -> np.random.Generator:
        """Return fresh randomness, the same for the same machine."""
        return np.random.default_rng(self.seed + 1)

    def run(self, works: Sequence[Work] = PAIRS, trials: int = 3) -> Run:
        """Return a run on the machine, the caller's own; works are at 64 MiB, collectives on pairs and on all."""
        run = _run(self, tuple(works), trials)
        kept = [replace(found, samples=list(found.samples)) for found in run.measurements]
        return replace(run, measurements=kept, skipped=list(run.skipped))


def machines(kinds: Sequence[str] = _KINDS) -> st.SearchStrategy[Made]:
    """Return any machine with one of these kinds of fault."""
    which = st.one_of(st.sampled_from(_SHIPPED), st.integers(0, 10**6))
    return st.builds(Made, which, st.sampled_from(kinds), st.integers(0, 10**6))


HEALTHY = machines(("none",))
# A wrong clock is the only fault whose figures beat the links; labels that hide NVLinks, or that are false, make
# figures look as if they did.
_HIDING = ("hidden-nvlink", "virtual-flat")
IN_TIME = machines([kind for kind in _KINDS if kind not in ("impossible", *_HIDING)])
HIDING = machines(_HIDING)


@lru_cache(maxsize=256)
def _fabric(which: str | int, kind: str, seed: int) -> Fabric:
    fabric = fabrics.load(which) if isinstance(which, str) else random_fabrics.make(np.random.default_rng(which))
    if len(fabric.gpus) > 8:  # a set of 16 costs a hundred times that of 4, and shows nothing else
        fabric = random_fabrics.make(np.random.default_rng(7))
    rng = np.random.default_rng(seed)
    gpu = int(rng.integers(len(fabric.gpus)))
    own = {
        "throttled-gpu": Fault(FaultKind.THROTTLED_GPU, (gpu,)),
        "links-down": Fault(FaultKind.LINKS_DOWN, (gpu,), links=1),
        "p2p-disabled": Fault(FaultKind.P2P_DISABLED),
        "slow-gpu": Fault(FaultKind.SLOW_GPU, (gpu,), factor=0.6),
    }
    if kind in own:
        return replace(fabric, faults=(*fabric.faults, own[kind]))
    try:
        return faults.with_fault(fabric, kind, rng)[0] if kind != "none" else fabric
    except UsageError:  # no place for it here
        return fabric


@lru_cache(maxsize=64)
def _run(made: Made, works: tuple[Work, ...], trials: int) -> Run:
    backend = SimBackend(made.fabric, made.seed)
    measurements: list[Measurement] = []
    skipped: list[Skipped] = []
    for work in works:
        for members in _places(work, len(backend.devices())):
            if not work.operation.is_collective and backend.can_run(work, members) is not None:
                continue
            found = Measurement(DataPoint(work.operation, members, SIZE, work.variant, work.numa_node))
            try:
                for _ in range(trials):
                    step = Step(work, (members,), SIZE, 4, 2)
                    found.samples.append(Sample(time_step(backend, step).seconds[0], 4, concurrent=False))
                found.stop = StopReason.PRECISION
            except StepFailed as error:
                found.stop, found.failure = StopReason.FAILED, error.failure
            except DataCorruption as error:  # which ends a run: what is left is reported as a session tells it
                skipped.append(wrong_data(error))
                continue
            measurements.append(found)
    run = run_of(backend.devices(), measurements, backend.paths(), backend="sim", machine=backend.machine())
    settings_ = replace(run.settings, environment=backend.environment())
    health = backend.health()
    return replace(run, settings=settings_, skipped=skipped, health_before=health, health_after=health)


def _places(work: Work, count: int) -> Iterator[tuple[int, ...]]:
    every = range(count)
    if work.variant is Variant.HOST:
        return ((place,) for place in every)
    if work.variant in (Variant.ONE_TO_ALL, Variant.ALL_TO_ONE):
        return ((place, *(other for other in every if other != place)) for place in every)
    if work.operation.is_collective:
        return iter([*combinations(every, 2), *([tuple(every)] if count > 2 else [])])
    return combinations(every, 2) if work.variant is Variant.BOTH_WAYS else permutations(every, 2)


def shuffled(run: Run, rng: np.random.Generator) -> Run:
    """Return the run with its data points in another order, the trials of some backwards: neighbors stay neighbors."""
    order = rng.permutation(len(run.measurements))
    mixed = [run.measurements[int(place)] for place in order]
    kept = [replace(m, samples=m.samples[:: -1 if rng.random() < 0.5 else 1]) for m in mixed]
    return replace(run, measurements=kept)


def without_points(run: Run, rng: np.random.Generator, share: float = 0.3) -> Run:
    """Return the run without some of its data points."""
    return replace(run, measurements=[found for found in run.measurements if rng.random() >= share])


def without_trials(run: Run, rng: np.random.Generator) -> Run:
    """Return the run with some data points cut to one or two trials."""
    cut = [
        replace(m, samples=m.samples[: int(rng.integers(1, 3))]) if rng.random() < 0.3 else m for m in run.measurements
    ]
    return replace(run, measurements=cut)


def relabelled(run: Run, order: Sequence[int]) -> Run:
    """Return the run with its devices in another order: what was at position `order[i]` is at i."""
    place = {old: new for new, old in enumerate(order)}

    def moved(members: Sequence[int]) -> tuple[int, ...]:
        return tuple(place[member] for member in members)

    paths = [replace(path, devices=_pair(moved(path.devices))) for path in run.paths]
    measurements = [
        replace(m, point=replace(m.point, members=_canonical(m.point, moved(m.point.members))))
        for m in run.measurements
    ]
    states: Mapping[str, Any] = {
        name: tuple(getattr(run, name)[old] for old in order if getattr(run, name))
        for name in ("health_before", "health_after")
    }
    return replace(
        run,
        devices=tuple(run.devices[old] for old in order),
        paths=tuple(sorted(paths, key=lambda path: path.devices)),
        measurements=measurements,
        skipped=[replace(left, members=moved(left.members)) for left in run.skipped],
        **states,
    )


def _pair(members: tuple[int, ...]) -> tuple[int, int]:
    low, high = sorted(members)
    return low, high


def _canonical(point: DataPoint, members: tuple[int, ...]) -> tuple[int, ...]:
    """Return members in the order that a plan gives them where it says nothing."""
    unordered = point.operation.is_collective or point.variant is Variant.BOTH_WAYS
    return tuple(sorted(members)) if unordered else members


def scaled(run: Run, time: float, size: int = 1) -> Run:
    """Return the run with all sizes and times as many times as large."""
    measurements = [
        replace(
            m,
            point=replace(m.point, size_bytes=m.point.size_bytes * size),
            samples=[replace(s, seconds=tuple(time * t for t in s.seconds)) for s in m.samples],
        )
        for m in run.measurements
    ]
    sizes = tuple(size * one for one in run.settings.sizes)
    return replace(run, measurements=measurements, settings=replace(run.settings, sizes=sizes))


def narrowest(fabric: Fabric, point: DataPoint) -> float:
    """Return a rate in GB/s that a data point cannot exceed, by the machine's structure and makers' figures alone.

    It is the narrowest link, port or slot of any member, times what a pattern moves at once. For collectives on more
    than two GPUs it is what leaves a GPU by all its links and its slot.
    """
    sends = [_pair_gbs(fabric, a, b) for a, b in permutations(point.members, 2)] if len(point.members) > 1 else []
    if point.variant in (Variant.HOST, Variant.STAGED):
        return min(_slot_gbs(fabric, gpu) for gpu in point.members)
    if point.variant is Variant.BOTH_WAYS:
        return 2 * min(sends)
    if point.variant in (Variant.ONE_TO_ALL, Variant.ALL_TO_ONE):
        others = len(point.members) - 1
        alone = min(_pair_gbs(fabric, point.members[0], other) for other in point.members[1:])
        return min(others * alone, _all_gbs(fabric, point.members[0]))
    if len(point.members) > 2:
        ports = [_all_gbs(fabric, gpu) for gpu in point.members]
        return 2 * max(ports) if point.operation is Operation.ALLREDUCE else max(ports)
    return min(sends)


def _slot_gbs(fabric: Fabric, gpu: int) -> float:
    found = fabric.gpus[gpu]
    return SLOT_GBS[found.pcie_generation] * found.pcie_width / 16


def _nvlink_gbs(fabric: Fabric, a: int, b: int) -> float:
    each = LINK_GBS[fabric.gpus[a].nvlink_line_mbps or 25000]
    bundles = sum(bundle.links for bundle in fabric.bundles if set(bundle.gpus) == {a, b})
    switches = max((switch.links for switch in fabric.switches if {a, b} <= set(switch.gpus)), default=0)
    return each * max(bundles, switches)


def _pair_gbs(fabric: Fabric, a: int, b: int) -> float:
    return _nvlink_gbs(fabric, a, b) or min(_slot_gbs(fabric, a), _slot_gbs(fabric, b))


def _all_gbs(fabric: Fabric, gpu: int) -> float:
    each = LINK_GBS[fabric.gpus[gpu].nvlink_line_mbps or 25000]
    direct = sum(bundle.links for bundle in fabric.bundles if gpu in bundle.gpus)
    switched = max((switch.links for switch in fabric.switches if gpu in switch.gpus), default=0)
    return each * (direct + switched) + _slot_gbs(fabric, gpu)
