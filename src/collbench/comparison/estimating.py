"""A cell's log bandwidth with its error, and how far the truth may lie from it; docs/exchange.md has the rule."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from collbench.affinity.estimates import Estimate, Members, estimates_of
from collbench.comparison.cells import Key, Named
from collbench.model import Path
from collbench.stats import summarize

# With fewer degrees of freedom σ̂ says little: then sizes of the same kind are pooled.
_ENOUGH_FREEDOM = 12
_SIZE_CLASSES = (2**16, 2**20, 2**24)
# A factor of a million either way: two visits' noise gives quantiles that no exponential function takes.
_NOTHING_KNOWN = math.log(1e6)


def estimates(cells: Mapping[Key, Named], paths: Sequence[Path]) -> dict[Key, Estimate]:
    """Return each cell's log bandwidth with its error; noise is pooled over the links of a label at a size.

    Few visits there, as of one communicator over all GPUs, are pooled with those of like sizes.
    """
    labels = {frozenset(path.devices): path.label for path in paths}
    logs = {key: [*map(math.log, summarize(named.found).visits)] for key, named in cells.items()}
    kinds = {key: f"{key.work} {_kind(key, labels)}" for key in cells}
    freedom: dict[tuple[str, int], int] = defaultdict(int)
    for key in cells:
        freedom[kinds[key], key.size_bytes] += len(logs[key]) - 1
    names: dict[Key, Members] = {key: (number,) for number, key in enumerate(cells)}
    pools: dict[Members, str] = {}
    for key, name in names.items():
        scarce = freedom[kinds[key], key.size_bytes] < _ENOUGH_FREEDOM
        size = f"class {sum(key.size_bytes >= edge for edge in _SIZE_CLASSES)}" if scarce else f"{key.size_bytes} B"
        pools[name] = f"{kinds[key]} {size}"
    made = estimates_of({name: logs[key] for key, name in names.items()}, pools)
    return {key: made[name] for key, name in names.items()}


def _kind(key: Key, labels: Mapping[frozenset[int], str]) -> str:
    return labels.get(frozenset(key.members), f"{len(key.members)} devices")


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a difference's variance, with the degrees of freedom of the noise that it was computed from.

    Parts of one `pool` share that noise, and so its error.
    """

    variance: float
    freedom: float
    pool: str


def reach(parts: Sequence[Part], alpha: float) -> float:
    """Return how far the true value may lie from the estimated one, in log, but for a share `alpha` of cases.

    Student's quantile with Welch and Satterthwaite's degrees of freedom.
    """
    variance = sum(part.variance for part in parts)
    if variance == 0:
        return 0.0
    pools: dict[tuple[str, float], float] = defaultdict(float)
    for part in parts:
        pools[part.pool, part.freedom] += part.variance
    doubt = sum(shared**2 / freedom for (_, freedom), shared in pools.items() if freedom)
    quantile = _student(max(variance**2 / doubt, 0.5) if doubt else 0.5, 1 - alpha / 2)
    return min(quantile * math.sqrt(variance), _NOTHING_KNOWN)


def _student(freedom: float, probability: float) -> float:
    from scipy.special import stdtrit  # late: it takes half a second

    return float(stdtrit(freedom, probability))
