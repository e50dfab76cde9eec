"""What the visits of a link say, and when two links differ: medians, noise, margins (docs/method.md has the rule).

Everything is in log bandwidth, so that differences are ratios.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from collbench.affinity.normal import median_deviation, range_quantile
from collbench.model import Measurement, Run
from collbench.operations import Variant, Work
from collbench.stats import summarize, visit_noise

Members = tuple[int, ...]

_MIB = 2**20
# METHOD.md §4: a smaller difference changes nobody's decision. Below 1 MiB three times that, as §2.7 asks three times
# less of a small cell: 6 % of the 5 µs of a small message is what its launch alone may vary by.
_DELTA, _SMALL_DELTA = 0.02, 0.06
FEWEST_VISITS = 3  # METHOD.md §4: three visits screen
_PUBLISHING_VISITS = 5  # at least five publish a tier, so fewer have to be surer
_LEVEL, _SCREENING_LEVEL = 0.95, 0.99
_TIE_LEVEL = 0.90
# σ̂ from differences of visits is as sure as a standard deviation of about half as many (benchmarks/ties.py).
_FREEDOM_SHARE = 0.5
# Of seven equally noisy visits σ̂ exceeds 2.5 times the pool's once in a thousand: such a link is noisier than its kind.
_NOISIER = 2.5
# From this many on one wild visit may be passed over on either side: 1 − 2 · 8/2^7 = 87 % still cover the median.
_VISITS_WITH_AN_OUTLIER = 7


@dataclass(frozen=True, slots=True)
class Estimate:
    """One link's log bandwidth: the median of its visits (ascending), its standard error with degrees of freedom.

    `error` is by the noise of the link's label, `wary` by its own where that is much larger.
    """

    members: Members
    label: str
    visits: tuple[float, ...]
    middle: float
    error: float
    wary: float
    freedom: float

    @property
    def bounds(self) -> tuple[float, float]:
        """The order statistics that hold the median: all visits, from seven on all but the outermost."""
        drop = int(len(self.visits) >= _VISITS_WITH_AN_OUTLIER)
        return self.visits[drop], self.visits[-1 - drop]


def tolerance(size_bytes: int) -> float:
    """Return δ, the ratio up to which a difference changes nobody's decision: 2 %, below 1 MiB 6 %."""
    return _DELTA if size_bytes >= _MIB else _SMALL_DELTA


def cells_of(run: Run, work: Work, size_bytes: int) -> dict[Members, Measurement]:
    """Return the run's measurements of a work at a size, by members: links and pairs, of host copies single devices."""
    wanted = 1 if work.variant is Variant.HOST else 2
    cells = (found for found in run.measured(work.variant) if found.cell.work == work)
    return {
        found.cell.members: found
        for found in cells
        if found.cell.size_bytes == size_bytes and len(found.cell.members) == wanted
    }


def labels_of(run: Run, members: Iterable[Members]) -> dict[Members, str]:
    """Return the label of each link or pair, "host" for a single device, "?" where the run has none."""
    labels = {frozenset(path.devices): path.label for path in run.paths}
    return {some: "host" if len(some) == 1 else labels.get(frozenset(some), "?") for some in members}


def estimates(cells: Mapping[Members, Measurement], labels: Mapping[Members, str]) -> dict[Members, Estimate]:
    """Return the estimate of each cell's link, from busbw in GB/s."""
    return estimates_of(
        {members: [*map(math.log, summarize(found).visits)] for members, found in cells.items()}, labels
    )


def estimates_of(logs: Mapping[Members, Sequence[float]], labels: Mapping[Members, str]) -> dict[Members, Estimate]:
    """Return each link's estimate from the logs of its visits; σ̂ of a visit is pooled within a label."""
    pools: dict[str, list[Members]] = defaultdict(list)
    for members in logs:
        pools[labels[members]].append(members)
    made = {}
    for label, pool in pools.items():
        together = visit_noise(logs[members] for members in pool)
        freedom = _FREEDOM_SHARE * sum(len(logs[members]) - 1 for members in pool)
        for members in pool:
            visits, own = tuple(sorted(logs[members])), visit_noise([logs[members]])
            share = median_deviation(len(visits))
            wary = (own if own > _NOISIER * together else together) * share
            middle = median(visits)
            made[members] = Estimate(members, label, visits, middle, together * share, wary, freedom)
    return made


def margin(a: Estimate, b: Estimate, count: int) -> float:
    """Return how far apart two of `count` equal links may look, a ratio: the simultaneous interval of their difference.

    Tukey's and Kramer's: the studentized range's quantile over √2, times the difference's standard error.
    """
    few = min(len(a.visits), len(b.visits)) < _PUBLISHING_VISITS
    return _quantile(a, b, count, _SCREENING_LEVEL if few else _LEVEL) * math.hypot(a.error, b.error)


def differs(top: Estimate, other: Estimate, count: int, delta: float) -> bool:
    """Return whether one of `count` links is slower than another by more than δ, for certain.

    Two conditions beside the simultaneous interval guard against a link that is noisier than its pool, or hit by a
    few wild visits: nearly all of its visits are slower than the other's median, and the other's faster than its own.
    """
    if min(len(top.visits), len(other.visits)) < FEWEST_VISITS:
        return False  # a visit or two show no noise, so everything would look certain
    wary = replace(other, error=other.wary)
    far = top.middle - other.middle > delta + margin(top, wary, count)
    return far and other.bounds[1] < top.middle - delta and top.bounds[0] > other.middle + delta


def ties(a: Estimate, b: Estimate, delta: float) -> bool:
    """Return whether two links are equal up to δ: the 90 % interval of their difference lies within ±δ."""
    if a is b:
        return True
    if min(len(a.visits), len(b.visits)) < FEWEST_VISITS:
        return False
    error = _quantile(a, b, 2, _TIE_LEVEL) * math.hypot(a.error, b.error)
    return abs(a.middle - b.middle) + error <= delta


def _quantile(a: Estimate, b: Estimate, count: int, level: float) -> float:
    """Return by how many standard errors two of `count` equal links may differ: for two, Student's quantile."""
    return range_quantile(count, level, _freedom(a, b)) / math.sqrt(2)


def _freedom(a: Estimate, b: Estimate) -> float:
    """Return the degrees of freedom of a difference (Welch–Satterthwaite), rounded down so that few differ."""
    if a.label == b.label:
        exact = a.freedom
    else:
        parts = sum(part.error**4 / part.freedom for part in (a, b) if part.freedom)
        exact = (a.error**2 + b.error**2) ** 2 / parts if parts else 0.0
    if exact < 1:
        return 0.5
    digit = 10.0 ** (math.floor(math.log10(exact)) - 1)
    return math.floor(exact / digit) * digit
