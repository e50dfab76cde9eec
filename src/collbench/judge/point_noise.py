"""The noise of a data point's trials, known from all trials of its kind in a run (docs/method/statistics.md 1)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import combinations
from statistics import NormalDist, median
from typing import NamedTuple

from collbench.judge.stats import MIN_TRIALS, chi_square, noisier, resemblance, squares, trial_seconds
from collbench.judge.tiers import pair_labels
from collbench.model.operations import Work
from collbench.model.run import Measurement, Noise, Run
from collbench.model.units import TELLING_BYTES, grouped

# Below this a standard deviation is off by more than an eighth: a wider kind counts, or none if all have less.
_MIN_FREEDOM = 30
# A data point is left out of its kind's σ if chance spreads trials so much only once in a thousand cases.
_PART_LEVEL = 0.999
_MIN_SIGMA = 1e-6  # times have seven digits
# Trials count as not normal if chance shows as much in one of twenty runs.
_SEEN = NormalDist().inv_cdf(0.95)
# Of three normal trials, the angle whose tangent is |a − b|/(√3 (a + b)), for gaps a and b between them in order, is
# uniform from 0 to 30°, whatever σ. So the smaller gap over a + b has this mean and standard deviation.
_TAN = -6 / math.pi * math.log(math.cos(math.pi / 6))
_TAN_SQUARE = 6 / math.pi * math.tan(math.pi / 6) - 1
_GAP_MEAN = (1 - math.sqrt(3) * _TAN) / 2
_GAP_DEVIATION = math.sqrt(3 * (_TAN_SQUARE - _TAN**2)) / 2


class _Spread(NamedTuple):
    """What some trials show: their logs, the squares around these logs' mean, gaps of triples."""

    logs: tuple[float, ...]
    squares: float
    freedom: int
    gaps: tuple[float, ...]


# What data points have in common that may be equally noisy, the widest kind first: whether they are large, whether
# collectives, the labels among their members, and their work.
_Kind = tuple[bool, bool, frozenset[str], Work]


@dataclass(slots=True)
class _Point:
    """A data point with three trials or more, and σ of its kind with the degrees of freedom that this rests on."""

    measurement: Measurement
    kind: _Kind
    spread: _Spread
    sigma: float = 0.0
    freedom: int = 0


def note_noise(run: Run) -> None:
    """Set the noise of each data point to what the run's trials show by now; None if too few show it."""
    for measurement in run.measurements:
        measurement.noise = None
    points = _points(run)
    for narrow in (3, 2, 1):  # the narrowest kind with enough trials
        for together in grouped((point.kind[:narrow], point) for point in points).values():
            sigma, freedom = _sigma([point.spread for point in together])
            for point in together:
                if point.freedom < _MIN_FREEDOM:
                    point.sigma, point.freedom = sigma, freedom
    known = [point for point in points if point.freedom >= _MIN_FREEDOM]
    alike, uneven = resemblance((point.spread.logs, point.sigma) for point in known), _is_uneven(known)
    for point in known:
        point.measurement.noise = Noise(point.sigma, float(point.freedom), alike.seen, uneven, alike.at_most)
    by_kind = grouped((point.kind, point) for point in known)
    by_members = grouped(((point.kind[:3], point.measurement.point.members), point) for point in known)
    for together in (*by_kind.values(), *by_members.values(), *([point] for point in known)):
        _set_own(together)


def _points(run: Run) -> list[_Point]:
    """Return the data points with enough trials to show their spread."""
    labels = pair_labels(run.paths)

    @cache
    def labels_of(members: tuple[int, ...]) -> frozenset[str]:
        return frozenset(labels.get(frozenset(pair), "?") for pair in combinations(members, 2))

    return [
        _Point(
            measurement,
            (at.size_bytes >= TELLING_BYTES, at.operation.is_collective, labels_of(at.members), at.work),
            _spread(tuple(trial_seconds(measurement))),
        )
        for measurement in run.measurements
        if len(measurement.samples) >= MIN_TRIALS
        for at in [measurement.point]
    ]


@lru_cache(1 << 15)
def _spread(trials: tuple[float, ...]) -> _Spread:
    logs = tuple(math.log(seconds) for seconds in trials)
    return _Spread(logs, squares(logs), len(logs) - 1, tuple(_gaps(logs)))


def _gaps(logs: Sequence[float]) -> Iterator[float]:
    """Yield of each three trials in a row the smaller gap between them, in order of size, over both."""
    for start in range(0, len(logs) - 2, 3):
        low, middle, high = sorted(logs[start : start + 3])
        if high > low:
            yield min(middle - low, high - middle) / (high - low)


def _sigma(spreads: Sequence[_Spread]) -> tuple[float, int]:
    """Return σ of one trial of equally noisy data points, without those that are noisier, and its degrees of freedom.

    Which are noisier is judged by the median data point.
    """
    typical = median(spread.squares / chi_square(spread.freedom, 0.5) for spread in spreads)
    alike = [spread for spread in spreads if spread.squares <= typical * chi_square(spread.freedom, _PART_LEVEL)]
    freedom = sum(spread.freedom for spread in alike)
    return max(_MIN_SIGMA, math.sqrt(math.fsum(spread.squares for spread in alike) / freedom)), freedom


def _is_uneven(points: Sequence[_Point]) -> bool:
    """Return whether two of three trials are close and the third is far more often than normal noise makes them."""
    gaps = [gap for point in points for gap in point.spread.gaps]
    return bool(gaps) and math.fsum(gaps) / len(gaps) < _GAP_MEAN - _SEEN * _GAP_DEVIATION / math.sqrt(len(gaps))


def _set_own(points: Sequence[_Point]) -> None:
    """Give data points of one kind a noise of their own if together they are significantly noisier than it."""
    sigma, freedom = _sigma([point.spread for point in points])
    own = noisier(freedom * (sigma / points[0].sigma) ** 2, freedom)
    for point in points if own else ():
        noise = point.measurement.noise
        if noise and sigma > noise.sigma:
            point.measurement.noise = replace(noise, sigma=sigma, freedom=float(freedom))
