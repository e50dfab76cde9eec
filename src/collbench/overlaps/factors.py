"""How a collective and compute slow each other down: factors with intervals, and the gain of overlap. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np

from collbench.judge.stats import FEWEST_TRIALS, median_interval, student
from collbench.overlaps.results import Overlap, OverlapTrial

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Figure:
    """A median or a mean over trials with its 95% interval, None for fewer than three trials."""

    value: float
    interval: Interval | None

    @property
    def half(self) -> float:
        """Half of the interval over the median, a ratio; infinite without one."""
        return math.inf if self.interval is None else (self.interval[1] - self.interval[0]) / 2 / self.value

    def excludes(self, value: float) -> bool:
        """Return whether the interval is known, and does not hold a value."""
        return self.interval is not None and not self.interval[0] <= value <= self.interval[1]

    def columns(self, name: str) -> dict[str, float | None]:
        """Return it as three columns of a row: the value, and the ends of its interval."""
        low, high = self.interval or (None, None)
        return {name: self.value, f"{name}_low": low, f"{name}_high": high}


def median_figure(values: Sequence[float]) -> Figure:
    """Return the median of trials with its 95% interval; not a number for none.

    Values may be 0 or negative, such as the seconds that calls add to a step if noise is larger than these.
    """
    if not values:
        return Figure(float("nan"), None)
    return Figure(median(values), median_interval(values))


def mean_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the mean's 95% interval by Student's distribution, from independent positive values, None below three."""
    n = len(values)
    if n < FEWEST_TRIALS:
        return None
    middle = math.fsum(values) / n
    half = student(n - 1, 0.975) * math.dist(values, [middle] * n) / math.sqrt(n * (n - 1))
    return max(0.0, middle - half), middle + half


@dataclass(frozen=True, slots=True)
class OverlapSummary:
    """One data point (method/collectives.md 8). Seconds are of one call, or one unit of compute, of the slowest rank.

    Factors are overlapping seconds over isolated seconds, trial by trial. `of_sum` and `of_max` are the time of a fixed
    amount of both concurrently, over the sum and over the longer of their isolated times: `of_max` = 1 is perfect. All
    are medians over trials except the collective during compute and its factor, which are means: each trial's calls
    begin at different moments of a unit of compute, and only all trials together cover it evenly.
    """

    collective_alone: Figure
    compute_alone: Figure
    collective_beside: Figure
    compute_beside: Figure
    collective_factor: Figure
    compute_factor: Figure
    of_sum: Figure
    of_max: Figure


def summarize(overlap: Overlap) -> OverlapSummary:
    """Return the figures of a data point with at least one trial."""

    def over_trials(value: Callable[[OverlapTrial], float]) -> Figure:
        return median_figure([value(trial) for trial in overlap.trials])

    def over_calls(value: Callable[[OverlapTrial], float]) -> Figure:
        values = [value(trial) for trial in overlap.trials]
        return Figure(fmean(values), mean_interval(values))

    return OverlapSummary(
        collective_alone=over_trials(lambda trial: max(trial.collective_alone)),
        compute_alone=over_trials(lambda trial: max(trial.compute_alone)),
        collective_beside=over_calls(lambda trial: max(trial.collective_beside)),
        compute_beside=over_trials(lambda trial: max(trial.compute_beside)),
        collective_factor=over_calls(lambda trial: max(trial.collective_beside) / max(trial.collective_alone)),
        compute_factor=over_trials(lambda trial: max(trial.compute_beside) / max(trial.compute_alone)),
        of_sum=over_trials(lambda trial: max(trial.together) / sum(_amounts(trial))),
        of_max=over_trials(lambda trial: max(trial.together) / max(_amounts(trial))),
    )


def _amounts(trial: OverlapTrial) -> tuple[float, float]:
    return max(trial.collective_amount), max(trial.compute_amount)


def spread(overlap: Overlap) -> Interval:
    """Return the 10th and 90th percentile of single calls during compute, in seconds, over all trials."""
    calls = [seconds for trial in overlap.trials for seconds in trial.beside_calls]
    low, high = np.percentile(calls, (10, 90))
    return float(low), float(high)


def strongest(overlaps: Iterable[Overlap]) -> Overlap | None:
    """Return the data point whose collective loses most, of those whose factor is not 1; None if there is none."""
    sure = [one for one in overlaps if one.trials and summarize(one).collective_factor.excludes(1.0)]
    return max(sure, key=lambda one: summarize(one).collective_factor.value, default=None)
