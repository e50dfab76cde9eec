"""A run's data points by what they are of, their log bandwidths with errors, and how far the truth may lie."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from collbench.judge.outcome import unordered
from collbench.judge.stats import log_rates, student
from collbench.judge.tiers import Estimate, estimates_of, pair_labels
from collbench.model.run import Measurement, Path, Run

# The data points of two runs, each with a key that means the same in both.


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """One data point: the work, the members as positions of the base run, the root's position or None, and the size."""

    work: str
    members: tuple[int, ...]
    root: int | None
    size_bytes: int


def points_by_key(run: Run, positions: Mapping[int, int] | None = None) -> dict[Key, Measurement]:
    """Return the run's data points that have a sample; `positions` maps its devices to those of the base.

    A device that the base lacks becomes a negative member of the key.
    """
    made = {}
    for measurement in run.measurements:
        if measurement.samples:
            point, members = measurement.point, measurement.point.members
            if positions is not None:
                members = tuple(positions.get(member, -1 - member) for member in members)
            rooted = point.operation.rooted and run.settings.root < len(members)
            root = members[run.settings.root] if rooted else None
            key = Key(str(point.work), unordered(point.work, members), root, point.size_bytes)
            made[key] = measurement
    return made


# A data point's log bandwidth with its error, and how far the true value may lie from it (docs/compare.md).

# With fewer degrees of freedom σ̂ says little: then sizes of the same kind are pooled.
_ENOUGH_FREEDOM = 12
_SIZE_CLASSES = (2**16, 2**20, 2**24)
# A factor of a million either way: with two trials quantiles are so large that their exponentials overflow.
_NOTHING_KNOWN = math.log(1e6)


def estimates(points_by_key: Mapping[Key, Measurement], paths: Sequence[Path]) -> dict[Key, Estimate]:
    """Return each data point's log bandwidth with its error; noise is pooled over the links of a label at a size.

    Few trials there, as of one communicator over all GPUs, are pooled with those of like sizes.
    """
    labels = pair_labels(paths)
    logs = {key: log_rates(measurement) for key, measurement in points_by_key.items()}
    kinds = {
        key: f"{key.work} {labels.get(frozenset(key.members), f'{len(key.members)} devices')}" for key in points_by_key
    }
    freedom: dict[tuple[str, int], int] = defaultdict(int)
    for key in points_by_key:
        freedom[kinds[key], key.size_bytes] += len(logs[key]) - 1
    pools = {}
    for key, kind in kinds.items():
        scarce = freedom[kind, key.size_bytes] < _ENOUGH_FREEDOM
        size = f"class {sum(key.size_bytes >= edge for edge in _SIZE_CLASSES)}" if scarce else f"{key.size_bytes} B"
        pools[key] = f"{kind} {size}"
    return estimates_of(logs, pools, points_by_key.values())


@dataclass(frozen=True, slots=True)
class Variance:
    """A part of a difference's variance, with the degrees of freedom of the noise that it was computed from.

    Parts of one `pool` share that noise, and so its error. It is infinite if nothing is known.
    """

    variance: float
    freedom: float
    pool: str


def reach(parts: Sequence[Variance], alpha: float) -> float:
    """Return how far the true value may lie from the estimate, in logs, in all but a share `alpha` of cases.

    Student's quantile with Welch and Satterthwaite's degrees of freedom.
    """
    variance = sum(part.variance for part in parts)
    if math.isinf(variance):
        return variance
    pools: dict[tuple[str, float], float] = defaultdict(float)
    for part in parts:
        pools[part.pool, part.freedom] += part.variance
    doubt = sum(shared**2 / freedom for (_, freedom), shared in pools.items() if freedom)
    quantile = student(max(variance**2 / doubt, 0.5) if doubt else 0.5, 1 - alpha / 2)
    return min(quantile * math.sqrt(variance), _NOTHING_KNOWN)
