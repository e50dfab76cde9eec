"""Statistics of raw times: medians, distribution-free intervals, and one summary of a measured cell (METHOD.md §2, §4).

All bandwidths that collbench prints, ranks or compares are computed here, from seconds, by `summarize`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median  # of a few values; numpy takes 20 µs for the same

import numpy as np

from collbench.model import Measurement
from collbench.units import algbw, busbw_factor

# Fewer values have no 95 % order-statistic interval of the median: 2 · 0.5^6 = 3.1 % is the first below 5 %.
FEWEST_BLOCKS = 6
_MAD_TO_SIGMA = 1.4826  # of a normal distribution
# The median of |a - b| for two values of one normal distribution, in σ: 0.6745 · √2.
_DIFFERENCE_OF_TWO = 0.9539
_SMALLEST_DELTA = 0.02


@dataclass(frozen=True, slots=True)
class Summary:
    """One cell in a person's units: the median visit's seconds and GB/s, and busbw's 95 % interval (None: too few).

    A visit counts as the median of its blocks, because blocks of one visit resemble each other. The interval is the
    order-statistic one over all blocks. `visits` are the busbw of each visit, GB/s, in the order they were made.
    """

    seconds: float
    algbw: float
    busbw: float
    interval: tuple[float, float] | None
    visits: tuple[float, ...]
    launch_seconds: float | None
    concurrent: bool


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the order-statistic interval that covers the median with at least 95 %, None below six values.

    Source: the binomial argument in Hahn & Meeker, Statistical Intervals, §5.2.
    """
    n = len(values)
    if n < FEWEST_BLOCKS:
        return None
    ordered = sorted(values)
    tail, rank = 0.5**n, 0
    while tail + math.comb(n, rank + 1) * 0.5**n <= 0.025:
        rank += 1
        tail += math.comb(n, rank) * 0.5**n
    return ordered[rank], ordered[n - 1 - rank]


def half_width(values: Sequence[float]) -> float:
    """Return half of the median's 95 % interval over the median, a ratio; infinite below six values."""
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


def block_seconds(measurement: Measurement) -> list[float]:
    """Return every timed block's seconds per iteration, in the order taken."""
    return [seconds for sample in measurement.samples for seconds in sample.seconds]


def summarize(measurement: Measurement) -> Summary:
    """Return the cell's medians and interval. The measurement must hold at least one sample."""
    cell = measurement.cell
    factor = busbw_factor(cell.operation, len(cell.members)) if cell.operation.is_collective else 1.0
    moved = cell.moved_bytes
    seconds = block_seconds(measurement)
    visits = [median(sample.seconds) for sample in measurement.samples]
    middle = median(visits)
    interval = median_interval(seconds)
    launches = [s.launch_seconds for s in measurement.samples if s.launch_seconds is not None]
    return Summary(
        seconds=middle,
        algbw=algbw(moved, middle),
        busbw=algbw(moved, middle) * factor,
        # The slowest time is the lowest bandwidth.
        interval=interval and (algbw(moved, interval[1]) * factor, algbw(moved, interval[0]) * factor),
        visits=tuple(algbw(moved, seconds) * factor for seconds in visits),
        launch_seconds=median(launches) if launches else None,
        concurrent=any(sample.concurrent for sample in measurement.samples),
    )
