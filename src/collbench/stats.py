"""Statistics of raw times: medians, intervals that rest on trials, and one summary of a measured data point.

All bandwidths that collbench prints, ranks or compares are computed here, from seconds, by `summarize`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from statistics import median  # of a few values; numpy takes 20 µs for the same

import numpy as np

from collbench.model import Cell, Measurement
from collbench.units import algbw, busbw_factor

# Two trials say nothing of a third.
FEWEST_TRIALS = 3
# Each data point is measured until its interval is narrow, which picks those that are narrow by chance. Intervals of
# 95 % would hold 91 % of such medians; those of 96.5 % hold 93 to 96.5 %, however noisy (benchmarks/coverage.py).
_LEVEL = 0.965
# That quantile of |median| over standard deviation, for three to five values of a normal distribution (drawn anew by
# benchmarks/coverage.py --factors). From six values on, order statistics reach the level.
_FACTORS = {3: 3.058, 4: 1.878, 5: 1.509}
# In logs: e^±50 times any duration is still a number to divide by.
_WIDEST = 50.0
_MAD_TO_SIGMA = 1.4826  # of a normal distribution
# The median of |a - b| for two values of one normal distribution, in σ: 0.6745 · √2.
_DIFFERENCE_OF_TWO = 0.9539
_SMALLEST_DELTA = 0.02


@dataclass(frozen=True, slots=True)
class Summary:
    """One cell in a person's units: the median visit's seconds and GB/s, and busbw's 95 % interval (None: too few).

    A visit counts as the median of its blocks, because blocks of one visit resemble each other; so the interval rests
    on visits, too. `visits` are the busbw of each visit, GB/s, in the order they were made.
    """

    seconds: float
    algbw: float
    busbw: float
    interval: tuple[float, float] | None
    visits: tuple[float, ...]
    launch_seconds: float | None
    concurrent: bool


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the median's 95 % interval from independent positive values, None below three.

    Of three to five it is the median ± a multiple of the standard deviation, in logs, and takes them for normal; from
    six on it is that of the order statistics, interpolated in logs, and assumes no distribution. Source: Hettmansperger
    & Sheather, Statistics & Probability Letters 4 (1986); Nyblom, ibid. 14 (1992).
    """
    n = len(values)
    if n < FEWEST_TRIALS:
        return None
    middle = median(values)
    logs = [math.log(value) - math.log(middle) for value in sorted(values)]
    if n in _FACTORS:
        center, half = median(logs), _FACTORS[n] * math.dist(logs, [math.fsum(logs) / n] * n) / math.sqrt(n - 1)
        low, high = center - half, center + half
    else:
        rank, inner = _order_statistics(n)
        low = (1 - inner) * logs[rank - 1] + inner * logs[rank]
        high = (1 - inner) * logs[n - rank] + inner * logs[n - rank - 1]
    return middle * math.exp(max(low, -_WIDEST)), middle * math.exp(min(high, _WIDEST))


@cache
def _order_statistics(n: int) -> tuple[int, float]:
    """Return the highest rank, counted from either end, that covers enough, and how far to go to the next, a share."""
    outside, rank = 1, 1  # of 2^n outcomes, those with fewer than `rank` values below the median
    while 1 - 2 * (further := outside + math.comb(n, rank)) / 2**n >= _LEVEL:
        outside, rank = further, rank + 1
    covers, next_covers = 1 - 2 * outside / 2**n, 1 - 2 * further / 2**n
    excess = (covers - _LEVEL) / (covers - next_covers)
    return rank, (n - rank) * excess / (rank + (n - 2 * rank) * excess)


def half_width(values: Sequence[float]) -> float:
    """Return half of the median's 95 % interval over the median, a ratio; infinite below three values."""
    interval = median_interval(values)
    if interval is None:
        return math.inf
    return (interval[1] - interval[0]) / 2 / median(values)


def deviations(logs: Sequence[float]) -> list[float]:
    """Return how far each visit's log time or bandwidth lies from their median, widened for few visits.

    The factor is √(R/(R−1)) for R visits, at least two. The deviations of several cells may be pooled.
    """
    widen = math.sqrt(len(logs) / (len(logs) - 1))
    middle = median(logs)
    return [abs(value - middle) * widen for value in logs]


def sigma(pooled: Sequence[float]) -> float:
    """Return σ̂ of one visit from deviations: 1.4826 · MAD (METHOD.md §4)."""
    return _MAD_TO_SIGMA * float(np.median(pooled))


def visit_noise(cells: Iterable[Sequence[float]]) -> float:
    """Return σ̂ of one visit, pooled over the cells' log visits: the median difference of two of a cell; 0 without two.

    It holds for any number of visits. Deviations from a cell's own median do not: of three visits one is always 0, and
    their MAD shows 57 % of σ. A quarter of the visits may be wild. Source: Rousseeuw & Croux, JASA 88 (1993), §3.
    """
    differences = [abs(a - b) for logs in cells for a, b in combinations(logs, 2)]
    return float(np.median(differences)) / _DIFFERENCE_OF_TWO if differences else 0.0


def tie_threshold(noise: float) -> float:
    """Return δ = max(2 %, 3σ̂): a smaller difference is not told from noise, or changes nobody's decision."""
    return max(_SMALLEST_DELTA, 3 * noise)


def trial_seconds(measurement: Measurement) -> list[float]:
    """Return each trial's seconds per iteration, the median of its batches: they share what disturbed the trial."""
    return [median(sample.seconds) for sample in measurement.samples]


def rate_gbs(cell: Cell, seconds: float) -> float:
    """Return a cell's rate in GB/s at a time per iteration: algbw of copies, busbw of collectives."""
    factor = busbw_factor(cell.operation, len(cell.members)) if cell.operation.is_collective else 1.0
    return algbw(cell.moved_bytes, seconds) * factor


def summarize(measurement: Measurement) -> Summary:
    """Return the cell's medians and interval. The measurement must hold at least one sample."""
    cell = measurement.cell
    factor = busbw_factor(cell.operation, len(cell.members)) if cell.operation.is_collective else 1.0
    moved = cell.moved_bytes
    trials = trial_seconds(measurement)
    middle = median(trials)
    interval = median_interval(trials)
    launches = [s.launch_seconds for s in measurement.samples if s.launch_seconds is not None]
    return Summary(
        seconds=middle,
        algbw=algbw(moved, middle),
        busbw=algbw(moved, middle) * factor,
        # The slowest time is the lowest bandwidth.
        interval=interval and (algbw(moved, interval[1]) * factor, algbw(moved, interval[0]) * factor),
        visits=tuple(algbw(moved, seconds) * factor for seconds in trials),
        launch_seconds=median(launches) if launches else None,
        concurrent=any(sample.concurrent for sample in measurement.samples),
    )
