"""What beats physics: timed blocks whose rate exceeds what the hardware can carry (docs/method.md). Pure.

A limit that is beaten means that the timing is wrong, or what the driver reports of the links. Where no limit is known,
nothing is found, and nothing is passed: `Hardware.of` is None there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from statistics import median

from collbench.machine.capacity import Capacity, Hardware
from collbench.model import Cell, Mark, MarkKind, Measurement, Run, Sample
from collbench.operations import Operation, Variant
from collbench.stats import rate_gbs, trial_seconds

# Healthy copies reach 0.88 (H200, NVSwitch) to 0.97 (V100) of theory. What is faster than PCIe by more than 5 % takes
# NVLinks that no label tells of.
MARGIN, HIDDEN = 1.02, 1.05
# A PCIe path whose slot nobody tells: generation 6 ×16 is 64 GT/s × 16 × 236/256 / 8 = 118 GB/s [PCIe 6.0 base spec].
FASTEST_PCIE_GBS = 118.0
# From this size on a copy shows whether a pair uses PCIe: it comes within 5 % of its plateau [4 × H200].
_SHOWS_BANDWIDTH = 16 * 2**20
_BY_ENGINE = (Operation.CE_WRITE, Operation.CE_READ)
_BY_KERNEL = (Operation.SM_WRITE, Operation.SM_READ)

Pair = frozenset[int]


@dataclass(frozen=True, slots=True)
class Impossible:
    """A cell with blocks that beat its limit: how many of how many, and the fastest one's rate, GB/s.

    A launch loop counts as a block.
    """

    cell: Cell
    capacity: Capacity
    rate_gbs: float
    blocks: int
    of: int


def impossible(run: Run) -> list[Impossible]:
    """Return the cells of a run that hold impossible blocks, those furthest beyond their limit first."""
    check = Check(run)
    found = (check.cell(measurement) for measurement in run.measurements)
    return sorted(
        (one for one in found if one is not None),
        key=lambda one: (-one.rate_gbs / one.capacity.gbs, str(one.cell.work), one.cell.members, one.cell.size_bytes),
    )


def by_cell(run: Run) -> dict[Cell, Impossible]:
    """Return the same by cell."""
    return {one.cell: one for one in impossible(run)}


def marked(run: Run) -> bool:
    """Set the marks of all samples to what the whole run shows, and return whether there are any."""
    check = Check(run)
    for found in run.measurements:
        found.samples[:] = [check.marked(found.cell, sample) for sample in found.samples]
    return any(sample.marks for found in run.measurements for sample in found.samples)


class Check:
    """The limits of a run, as its labels say and as its copies show.

    A pair over PCIe whose copies show more has NVLinks that no label tells of. One without large copies may have: what
    beats PCIe there by far is judged by the most that a GPU's NVLinks carry.
    """

    def __init__(self, run: Run) -> None:
        self._labelled = Hardware(run)
        pairs = [frozenset(path.devices) for path in run.paths]
        over_pcie = [pair for pair in pairs if not self._labelled.over_nvlink(*sorted(pair))]
        shown = _shown(run)
        kept = {pair for pair in over_pcie if pair in shown and shown[pair] <= HIDDEN * self._over_pcie(pair)}
        self.hidden = frozenset(pair for pair in over_pcie if pair in shown) - kept
        self._beyond = Hardware(run, [pair for pair in over_pcie if pair not in kept])
        self._open = {pair for pair in over_pcie if pair not in kept}

    def limit(self, cell: Cell, rate: float) -> Capacity | None:
        """Return what a cell's rate in GB/s is judged by; None where it is not known."""
        limit = self._labelled.of(cell)
        if limit is not None and rate <= MARGIN * limit.gbs:
            return limit
        through_host = cell.variant in (Variant.HOST, Variant.STAGED) or cell.operation is Operation.CHASE
        pairs = set() if through_host else {frozenset(pair) for pair in combinations(cell.members, 2)}
        if pairs & self._open and rate > HIDDEN * (limit.gbs if limit else FASTEST_PCIE_GBS):
            return self._beyond.of(cell)
        return limit

    def flag(self, cell: Cell, seconds: float) -> Mark | None:
        """Return what a block of this time per iteration is marked with, None where nothing is."""
        rate = rate_gbs(cell, seconds)
        limit = self.limit(cell, rate)
        if limit is None or rate <= MARGIN * limit.gbs:
            return None
        return Mark(MarkKind.IMPOSSIBLE, limit.devices, rate, limit.gbs)

    def marked(self, cell: Cell, sample: Sample) -> Sample:
        """Return the sample with its marks: one flag, of its fastest block."""
        flag = self.flag(cell, min(_times(sample)))
        marks = () if flag is None else (flag,)
        return sample if sample.marks == marks else replace(sample, marks=marks)

    def cell(self, found: Measurement) -> Impossible | None:
        """Return what is impossible in a cell, None where nothing is."""
        blocks = [seconds for sample in found.samples for seconds in _times(sample)]
        count = sum(self.flag(found.cell, seconds) is not None for seconds in blocks)
        rate = rate_gbs(found.cell, min(blocks)) if count else 0.0
        limit = self.limit(found.cell, rate) if count else None
        return None if limit is None else Impossible(found.cell, limit, rate, count, len(blocks))

    def _over_pcie(self, pair: Pair) -> float:
        return self._labelled.link(*sorted(pair)) or FASTEST_PCIE_GBS


def _times(sample: Sample) -> tuple[float, ...]:
    """Return all times of a sample: its blocks', and the launch loop's."""
    return sample.seconds if sample.launch_seconds is None else (*sample.seconds, sample.launch_seconds)


def _shown(run: Run) -> dict[Pair, float]:
    """Return what each pair's copies carry, GB/s: by the copy engines where they were timed, else by kernels."""
    by_engine, by_kernel = dict[Pair, float](), dict[Pair, float]()
    for found in run.measured():
        cell = found.cell
        if cell.size_bytes < _SHOWS_BANDWIDTH or cell.operation not in (*_BY_ENGINE, *_BY_KERNEL):
            continue
        kind = by_engine if cell.operation in _BY_ENGINE else by_kernel
        middle = rate_gbs(cell, median(trial_seconds(found)))
        kind[frozenset(cell.members)] = max(kind.get(frozenset(cell.members), 0.0), middle)
    return by_kernel | by_engine
