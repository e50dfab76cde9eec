"""Tails and stragglers: the spread of single launches' times, and which rank comes late (method/statistics.md 6)."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collbench.model.run import DataPoint, Latency, Run
from collbench.model.units import amount, format_size

Times = NDArray[np.float64]

PERCENTILES = (50, 95, 99)
_OUTSIDE = 0.025  # of a 95% interval, on either side
_NANO = 1e-9


@dataclass(frozen=True, slots=True)
class Spread:
    """How times are spread: percentiles and maximum in seconds, and the number of launches.

    Percentiles for which there are too few launches are left out. `interval` is the median's 95% interval, None for too
    few.
    """

    count: int
    percentiles: dict[int, float]
    interval: tuple[float, float] | None
    maximum: float

    def at(self, percent: int) -> float | None:
        """Return one of PERCENTILES in seconds, None if the launches are too few."""
        return self.percentiles.get(percent)


@dataclass(frozen=True, slots=True)
class Lateness:
    """How much later than the median of the others a rank came to the launches, or left them, in seconds.

    `significant`: the whole 95% interval of the median lies above the resolution of the clocks (`resolved`).
    """

    median: float
    interval: tuple[float, float] | None
    resolved: float

    @property
    def significant(self) -> bool:
        """Whether it is later than the others, and no error of the clocks."""
        return self.interval is not None and self.interval[0] > self.resolved


@dataclass(frozen=True, slots=True)
class RankTails:
    """One rank, by its device's position. `own` is the time from its arrival to its leaving, by its own clock.

    The rest needs a common clock, None without one: `last` is the share of the launches to which it came last.
    """

    member: int
    own: Spread
    arrives: Lateness | None
    leaves: Lateness | None
    last: float | None


@dataclass(frozen=True, slots=True, repr=False)
class Tails:
    """The statistics of a data point's single launches.

    `waited` is from the first rank's arrival to the last one's leaving, as a job waits. `transfer` begins with the
    last rank's arrival, None without a common clock; `waited` is then the longest `own` of a launch.
    """

    point: DataPoint
    count: int
    waited: Spread
    transfer: Spread | None
    ranks: tuple[RankTails, ...]

    def __repr__(self) -> str:
        """Return one line, for people."""
        what = f"{self.point.work} at {format_size(self.point.size_bytes)} on {amount(len(self.ranks), 'device')}"
        return f"<Tails of {what}: {self.count} launches, {len(self.late)} late ranks>"

    @property
    def late(self) -> tuple[RankTails, ...]:
        """The ranks that come significantly late, the latest first.

        None for a collective with a root: its ranks leave, and so arrive at the next, at different times by design.
        """
        if self.point.operation.rooted:
            return ()
        late = [rank for rank in self.ranks if rank.arrives is not None and rank.arrives.significant]
        return tuple(sorted(late, key=lambda rank: -rank.arrives.median if rank.arrives else 0.0))


def tails(run: Run) -> list[Tails]:
    """Return the statistics of each data point's single launches, in the run's order; none if none were timed."""
    return [tails_of(latency) for latency in run.latencies]


def tails_of(latency: Latency) -> Tails:
    """Return the statistics of one data point's single launches, without the time that the stamps take."""
    arrived = np.array([rank.arrived for rank in latency.ranks]) * _NANO  # (ranks, launches)
    left = np.array([rank.left for rank in latency.ranks]) * _NANO
    stamps = np.array([rank.stamp_ns for rank in latency.ranks]) * _NANO
    own = left - arrived - stamps[:, None]
    if latency.common_clock:
        ends = (left - stamps[:, None]).max(axis=0)
        waited, transfer = ends - arrived.min(axis=0), ends - arrived.max(axis=0)
    else:
        waited, transfer = own.max(axis=0), None
    return Tails(
        latency.point,
        latency.count,
        spread(waited),
        None if transfer is None else spread(transfer),
        tuple(_rank(latency, index, arrived, left, own) for index in range(len(latency.ranks))),
    )


def spread(values: Times) -> Spread:
    """Return how times are spread; a percentile is the least value that so many are not above (nearest rank)."""
    ordered = np.sort(values)
    percentiles = {
        percent: float(ordered[max(1, math.ceil(len(ordered) * percent / 100)) - 1])
        for percent in PERCENTILES
        if quantile_ranks(len(ordered), percent) is not None
    }
    between = quantile_ranks(len(ordered), 50)
    interval = between and (float(ordered[between[0] - 1]), float(ordered[between[1] - 1]))
    return Spread(len(ordered), percentiles, interval, float(ordered[-1]))


@functools.cache
def quantile_ranks(count: int, percent: int) -> tuple[int, int] | None:
    """Return the ranks, from 1, of the values between which a percentile lies with 95%; None if they are too few.

    By order statistics, of any distribution whose values are independent: as many lie below the percentile as a
    binomial variable says. Source: Conover, Practical Nonparametric Statistics, 3rd ed. (1999), section 3.2.
    """
    share = percent / 100
    total = [math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1) for k in range(count + 1)]
    logs = np.array(total) + np.arange(count + 1) * math.log(share) + np.arange(count, -1, -1) * math.log1p(-share)
    below = np.cumsum(np.exp(logs))  # P(at most k values lie below it)
    low = int(np.searchsorted(below, _OUTSIDE, side="right"))  # the most k with P(fewer than k) within
    above = np.cumsum(np.exp(logs)[::-1])[::-1]  # P(at least k values lie below it)
    within = np.nonzero(above <= _OUTSIDE)[0]
    if low < 1 or not len(within):
        return None
    return low, int(within[0])


def fewest_launches(percent: int) -> int:
    """Return how many launches a percentile needs: of fewer, not even the smallest and the largest bound it with 95%.

    All n lie on one side of it with the larger of its two shares to the power of n.
    """
    share = percent / 100
    return math.ceil(math.log(_OUTSIDE) / math.log(max(share, 1 - share)))


def _rank(latency: Latency, index: int, arrived: Times, left: Times, own: Times) -> RankTails:
    member = latency.point.members[index]
    if not latency.common_clock:
        return RankTails(member, spread(own[index]), None, None, None)
    return RankTails(
        member,
        spread(own[index]),
        _lateness(latency, index, arrived),
        _lateness(latency, index, left),
        float((arrived[index] == arrived.max(axis=0)).mean()),
    )


def _lateness(latency: Latency, index: int, times: Times) -> Lateness:
    clocks = [max(rank.uncertainty_ns, rank.step_ns) for rank in latency.ranks]
    resolved = (clocks[index] + max(clock for other, clock in enumerate(clocks) if other != index)) * _NANO
    return lateness(after_others(times)[index], resolved)


def after_others(times: Times) -> Times:
    """Return how much later each rank is than the median of the others; times and it have shapes (ranks ≥ 2, n)."""
    ordered = np.sort(times, axis=0)
    low, high = (len(times) - 2) // 2, (len(times) - 1) // 2  # the middle of the others, once they are one fewer

    def without_own(index: int) -> Times:
        below = ordered[index]
        latest: Times = np.where(times > below, below, ordered[index + 1])
        return latest

    later: Times = times - (without_own(low) + without_own(high)) / 2
    return later


def lateness(late: Times, resolved: float) -> Lateness:
    """Return the lateness from a rank's seconds after the others, shape (n,); clocks resolve `resolved` seconds."""
    by = spread(late)
    return Lateness(float(np.median(late)), by.interval, resolved)
