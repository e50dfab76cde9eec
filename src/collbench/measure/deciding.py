"""Whether the cells that decide were visited often enough to tell a slow pair from a noisy one (METHOD.md §4)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from collbench.model import Cell, Measurement, Path
from collbench.stats import trial_seconds, visit_noise

# The error of a cell's median, a ratio, at which a pair that is 8 % slow is found 99 times of 100 (benchmarks/ties.py).
_ERROR = 0.008
_MEDIAN_TO_MEAN = 1.2533  # a median's standard error, in σ/√visits
# At σ = 2 % ten visits reach it and at 2.4 % fifteen. Up to 4 % fifteen still help; beyond, a first look cannot.
_MOST_NOISE = 0.04
_MOST_VISITS = 15


def undecided(found: Sequence[Measurement], paths: Sequence[Path]) -> list[Cell]:
    """Return which of these cells, of one work and size, need another visit to be compared; none where nothing can be.

    Noise is pooled within a label, as when pairs are ranked.
    """
    if len(found) < 2:
        return []  # there is nothing to compare it with
    labels = {frozenset(path.devices): path.label for path in paths}
    pools: dict[str, list[Measurement]] = defaultdict(list)
    for measurement in found:
        pools[labels.get(frozenset(measurement.cell.members), "?")].append(measurement)
    cells = []
    for pool in pools.values():
        visits = visits_wanted([[*map(math.log, trial_seconds(m))] for m in pool])
        cells += [measurement.cell for measurement in pool if len(measurement.samples) < visits]
    return cells


def visits_wanted(logs: Sequence[Sequence[float]]) -> int:
    """Return how many visits each cell of a label should have, from the log times of those it has; 0 for no more."""
    noise = visit_noise(logs)
    if noise > _MOST_NOISE:
        return 0
    return min(_MOST_VISITS, math.ceil((_MEDIAN_TO_MEAN * noise / _ERROR) ** 2))
