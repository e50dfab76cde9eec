"""Statistics: medians, intervals over trials, noise, quantiles, Huber's weights (docs/method/statistics.md 1, 2)."""

from __future__ import annotations

import functools
import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from statistics import NormalDist, median  # of a few values; numpy takes 20 µs for the same
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from collbench.model.run import DataPoint, Measurement
from collbench.model.units import DELTA, algbw, grouped

# Statistics of raw times: medians, intervals that rest on trials, and one summary of a measured data point.
#
# All bandwidths that collbench prints, ranks or compares are computed here, from seconds.

# Two trials do not predict a third.
MIN_TRIALS = 3
# The level of intervals that rest on one data point's own trials.
_LEVEL = 0.965
# That quantile of |median| over standard deviation, for three to five values of a normal distribution (drawn again by
# benchmarks/coverage.py --factors). From six values on, order statistics reach the level.
_FACTORS = {3: 3.058, 4: 1.878, 5: 1.509}
# In logs: e^±50 times any duration is still a number to divide by.
_WIDEST = 50.0
MAD_TO_SIGMA = 1.4826  # of a normal distribution
MEDIAN_ERROR = math.sqrt(math.pi / 2)  # of the median of many normal values, over σ/√n
# The median of |a - b| for two values of one normal distribution, in σ: 0.6745 · √2; and its upper quartile.
_DIFFERENCE_OF_TWO, _LARGE_DIFFERENCE_OF_TWO = 0.9539, 1.6268


@dataclass(frozen=True, slots=True)
class Summary:
    """One point in a person's units: the median trial's seconds and GB/s, and busbw's 95% interval (None: too few).

    A trial counts as the median of its batches, because batches of one trial resemble each other; so the interval rests
    on trials, too. `trials` are the busbw of each trial, GB/s, in the order they were made.
    """

    seconds: float
    algbw: float
    busbw: float
    interval: tuple[float, float] | None
    trials: tuple[float, ...]
    launch_seconds: float | None
    concurrent: bool


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the median's 95% interval from independent values, None below three.

    Of three to five it is the median ± a multiple of the standard deviation, in logs, and takes them for normal; from
    six on it is that of the order statistics, interpolated in logs, and assumes no distribution. Source: Hettmansperger
    & Sheather, Statistics & Probability Letters 4 (1986); Nyblom, ibid. 14 (1992). Values of which some are not
    positive, such as differences, have no logs.
    """
    if len(values) < MIN_TRIALS:
        return None
    middle = median(values)
    if min(values) <= 0:
        low, high = _around_median([value - middle for value in sorted(values)])
        return middle + low, middle + high
    low, high = _around_median([math.log(value) - math.log(middle) for value in sorted(values)])
    return middle * math.exp(max(low, -_WIDEST)), middle * math.exp(min(high, _WIDEST))


_trials_interval = functools.lru_cache(1 << 13)(median_interval)  # a page needs each several times


def _around_median(values: Sequence[float]) -> tuple[float, float]:
    """Return the interval of the median of sorted values, three or more."""
    n = len(values)
    if n in _FACTORS:
        center, half = median(values), _FACTORS[n] * math.dist(values, [math.fsum(values) / n] * n) / math.sqrt(n - 1)
        return center - half, center + half
    rank, inner = _order_statistics(n)
    low = (1 - inner) * values[rank - 1] + inner * values[rank]
    return low, (1 - inner) * values[n - rank] + inner * values[n - rank - 1]


@functools.cache
def _order_statistics(n: int) -> tuple[int, float]:
    """Return the highest rank, from either end, that covers enough, and the share of the way to the next one."""
    outside, rank = 1, 1  # of 2^n outcomes, those with fewer than `rank` values below the median
    while 1 - 2 * (further := outside + math.comb(n, rank)) / 2**n >= _LEVEL:
        outside, rank = further, rank + 1
    covers, next_covers = 1 - 2 * outside / 2**n, 1 - 2 * further / 2**n
    excess = (covers - _LEVEL) / (covers - next_covers)
    return rank, (n - rank) * excess / (rank + (n - 2 * rank) * excess)


def time_interval(measurement: Measurement) -> tuple[float, float] | None:
    """Return the 95% interval of a data point's seconds, None below three trials.

    If the noise of its kind is known, it reaches as far as that lets a median err; how close its own trials happen to
    be does not count. If noise is uneven, it also holds the interval of its own trials, or all of them if they are few:
    three of five may be in the other mode.
    """
    trials, noise = trial_seconds(measurement), measurement.noise
    own = _trials_interval(tuple(trials))
    if own is None or noise is None:
        return own
    middle = median(trials)
    errors = student(noise.freedom, 0.975) * median_deviation(len(trials))
    reach = math.exp(min(errors * noise.sigma * noise.widening, _WIDEST))
    low, high = own if noise.uneven else (middle, middle)
    if noise.uneven and len(trials) in _FACTORS:
        low, high = min(low, *trials), max(high, *trials)
    below, above = middle / low, high / middle
    return middle / max(reach, below**noise.widening), middle * max(reach, above**noise.widening)


def half_width(measurement: Measurement) -> float:
    """Return half of the 95% interval of a data point's seconds over their median; infinite below three trials."""
    interval = time_interval(measurement)
    if interval is None:
        return math.inf
    return (interval[1] - interval[0]) / 2 / median(trial_seconds(measurement))


def trial_noise(points: Iterable[Sequence[float]], *, uneven: bool = False) -> float:
    """Return σ̂ of one trial, pooled over points' log trials: the median difference of two of a point; 0 without two.

    It holds for any number of trials. Deviations from a data point's own median do not: of three trials one is always
    0, and their MAD shows 57% of σ. A quarter of the trials may be wild. [Rousseeuw & Croux, JASA 88 (1993), section
    3] Where the noise is `uneven`, as of two modes, most differences are of two trials in the same mode: then their
    upper quartile counts, if it shows more, and an eighth may be wild.
    """
    differences = [abs(a - b) for logs in points for a, b in combinations(logs, 2)]
    noise = median(differences) / _DIFFERENCE_OF_TWO if differences else 0.0
    if not uneven or len(differences) < MIN_TRIALS:
        return noise
    return max(noise, sorted(differences)[3 * len(differences) // 4] / _LARGE_DIFFERENCE_OF_TWO)


Point = TypeVar("Point", bound=Hashable)


def noise_of_kinds(
    logs: Mapping[Point, Sequence[float]], kinds: Mapping[Point, Hashable], *, uneven: bool = False
) -> dict[Point, float]:
    """Return σ̂ of one trial of each point, pooled over the log trials of all points of its kind."""
    pools = grouped((kinds[point], trials) for point, trials in logs.items())
    pooled = {kind: trial_noise(parts, uneven=uneven) for kind, parts in pools.items()}
    return {point: pooled[kinds[point]] for point in logs}


def widening(measurements: Iterable[Measurement]) -> float:
    """Return by how much errors are larger because the run's trials resemble those before; 1 where nothing shows it."""
    return max((timed.noise.widening for timed in measurements if timed.noise is not None), default=1.0)


def most_widening(measurements: Iterable[Measurement]) -> float | None:
    """Return by how much they may be larger at most, as far as the run's trials show; None if it notes nothing."""
    noises = [timed.noise for timed in measurements if timed.noise is not None]
    return max((most for noise in noises if (most := noise.most_widening) is not None), default=None)


# Trials count as resembling those before if chance shows as much in one of forty runs; what one of twenty excludes is
# not feared. Few points exclude hardly any ρ: then what is not seen counts up to a limit, at which one of six pairs is
# still found if it is 8% slow and σ is 2% (benchmarks/ties.py).
_RESEMBLING, _EXCLUDED = map(NormalDist().inv_cdf, (0.975, 0.95))
_MAX_CORRELATED, _MAX_UNSEEN, _FEW_POINTS = 0.9, 0.75, 10
# A wild trial shows nothing about the others: further than this from the median, in σ, all trials count as equally far.
_FAR = 3.0


class Resemblance(NamedTuple):
    """By how much errors are larger as trials resemble those before: √((1+ρ)/(1−ρ)), as far as seen, and at most."""

    seen: float = 1.0
    at_most: float = 1.0


def resemblance(points: Iterable[tuple[Sequence[float], float]]) -> Resemblance:
    """Return how much more some points' medians err if trials are AR(1), from each one's log trials in order and its σ.

    Neighbors then differ by less than any two trials. [von Neumann, Ann. Math. Stat. 12 (1941)] `seen` is 1 if chance
    may show as much. `at_most` has the largest ρ that the trials do not exclude, of few points at most 0.75 if none is
    seen. Both are 1 where no trial shows any noise.
    """
    spreads, excesses, counts = [], [], Counter[int]()
    for logs, sigma in points:
        if len(logs) < MIN_TRIALS or sigma <= 0:
            continue
        middle = median(logs)
        near = [min(_FAR, max(-_FAR, (value - middle) / sigma)) for value in logs]
        spreads.append(2 * squares(near))
        excesses.append(spreads[-1] - math.fsum((b - a) ** 2 for a, b in pairwise(near)))
        counts[len(logs)] += 1
    total = math.fsum(spreads)
    if not total:
        return Resemblance()
    # The variance of an excess is 4 (R − 2) σ⁴ with normal noise; few points show that of another noise badly.
    freedom = sum((trials - 1) * count for trials, count in counts.items())
    normal = math.sqrt(sum((trials - 2) * count for trials, count in counts.items())) * total / freedom
    excess, error = math.fsum(excesses), max(normal, math.sqrt(math.fsum(value**2 for value in excesses)))
    at_most = _correlation(1 - (excess + _EXCLUDED * error) / total, counts)
    if excess <= _RESEMBLING * error:
        return Resemblance(1.0, widened_by(min(at_most, _MAX_UNSEEN) if len(excesses) < _FEW_POINTS else at_most))
    return Resemblance(widened_by(_correlation(1 - excess / total, counts)), widened_by(at_most))


def widened_by(rho: float) -> float:
    """Return by how much the errors of medians are larger: √((1+ρ)/(1−ρ))."""
    return math.sqrt((1 + rho) / (1 - rho))


def _correlation(ratio: float, counts: Mapping[int, int]) -> float:
    """Return ρ by the squares of neighbors over those of any two trials; `counts` is of points by number of trials."""
    low, high = 0.0, _MAX_CORRELATED
    neighbors = sum((trials - 1) * count for trials, count in counts.items())
    for _ in range(20):
        rho = (low + high) / 2
        any_two = sum((trials - 1) * count * (1 - _mean_correlation(rho, trials)) for trials, count in counts.items())
        low, high = (rho, high) if (1 - rho) * neighbors > ratio * any_two else (low, rho)
    return low


def _mean_correlation(rho: float, trials: int) -> float:
    """Return the mean correlation of two trials of AR(1)."""
    return 2 * rho / (trials - 1) / (1 - rho) * (1 - (1 - rho**trials) / (trials * (1 - rho)))


# Trials have noise of their own where those of their kind would spread so much once in a hundred cases at most. Each
# such case costs power, as a few trials of a link say little about its noise.
_OWN_NOISE_LEVEL = 0.99


@dataclass(frozen=True, slots=True)
class OwnNoise:
    """How much noisier trials are than those of their kind: a ratio above 1, and the degrees of freedom it rests on."""

    ratio: float
    freedom: float

    def widen(self, quantile: float, chance: float) -> float:
        """Return by how much to multiply `quantile` standard errors, a normal quantile at this one-sided chance."""
        return self.ratio * student(self.freedom, 1 - chance) / quantile


def own_noise(points: Iterable[tuple[Sequence[float], float]]) -> OwnNoise | None:
    """Return how much noisier some points are than their kinds, from each one's log trials and its kind's σ.

    None if they may be equally noisy: a χ² test at 99%. The standard deviation counts, which a second mode or a wild
    trial widens, unlike a robust σ̂: points that have one of these have noise of their own.
    """
    freedom, total = 0, 0.0
    for logs, sigma_of_kind in points:
        if len(logs) > 1 and sigma_of_kind > 0:
            freedom += len(logs) - 1
            total += squares(logs) / sigma_of_kind**2
    return noisier(total, freedom)


def squares(values: Sequence[float]) -> float:
    """Return the sum of the squares of some values around their mean."""
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values)


def noisier(total: float, freedom: int) -> OwnNoise | None:
    """Return how much noisier trials are than their kind, from squares in its variances; None as `own_noise`."""
    if not freedom or total <= chi_square(freedom, _OWN_NOISE_LEVEL):
        return None
    return OwnNoise(math.sqrt(total / freedom), freedom)


@functools.cache
def chi_square(freedom: float, probability: float) -> float:
    """Return the quantile of χ² [Wilson & Hilferty, PNAS 17 (1931): within 1% from two degrees of freedom on]."""
    share = 2 / (9 * freedom)
    return freedom * (1 - share + NormalDist().inv_cdf(probability) * math.sqrt(share)) ** 3


def tie_threshold(noise: float) -> float:
    """Return δ = max(2%, 3σ̂): a smaller difference is not distinguished from noise, or changes no decision."""
    return max(DELTA, 3 * noise)


def trial_seconds(measurement: Measurement) -> list[float]:
    """Return each trial's seconds per iteration, the median of its batches: they share what disturbed the trial."""
    return [_batches_median(sample.seconds) for sample in measurement.samples]


# A page needs the same trials a dozen times: for each ranking, fit, figure and verdict.
_batches_median = functools.lru_cache(1 << 15)(median)


def rate_gbs(point: DataPoint, seconds: float) -> float:
    """Return a data point's rate in GB/s at a time per iteration: algbw of copies, busbw of collectives."""
    factor = point.operation.busbw_factor(len(point.members))
    return algbw(point.moved_bytes, seconds) * factor


def rates_gbs(point: DataPoint, times: Iterable[float]) -> list[float]:
    """Return the same for each of several times per iteration."""
    moved, factor = point.moved_bytes, point.operation.busbw_factor(len(point.members))
    return [algbw(moved, seconds) * factor for seconds in times]


def most_measured(counts: Counter[int]) -> int | None:
    """Return the size in bytes that most data points have, of equally common ones the largest; None for none."""
    return max(counts, key=lambda size: (counts[size], size), default=None)


def summarize(measurement: Measurement) -> Summary:
    """Return the data point's medians and interval. The measurement must hold at least one sample."""
    point, trials = measurement.point, trial_seconds(measurement)
    middle = median(trials)
    interval = time_interval(measurement)
    launches = [s.launch_seconds for s in measurement.samples if s.launch_seconds is not None]
    return Summary(
        seconds=middle,
        algbw=algbw(point.moved_bytes, middle),
        busbw=rate_gbs(point, middle),
        # The slowest time is the lowest bandwidth.
        interval=interval and (rate_gbs(point, interval[1]), rate_gbs(point, interval[0])),
        trials=tuple(rates_gbs(point, trials)),
        launch_seconds=median(launches) if launches else None,
        concurrent=any(sample.concurrent for sample in measurement.samples),
    )


def log_rates(measurement: Measurement) -> list[float]:
    """Return the log of each trial's busbw in GB/s: differences of these are ratios."""
    return [math.log(rate) for rate in rates_gbs(measurement.point, trial_seconds(measurement))]


# Quantiles of normal samples that the tier rule needs; computed, so that any number of pairs and trials works.
#
# scipy.stats.studentized_range has the same within 2e-4 (within 2e-3 at half a degree of freedom and 99%), but its
# import takes 0.8 s and each quantile 60 to 300 ms, where this one takes 0.5 ms.

_Array = NDArray[np.float64]
# ±8 σ holds all but 1e-15 of a normal; 1/200 σ steps give four digits.
_GRID: _Array = np.linspace(-8.0, 8.0, 3201)
# The range of 1,000 normals exceeds 12 σ once in 1e6.
_RANGES: _Array = np.linspace(0.0, 12.0, 241)


def _density(x: _Array) -> _Array:
    return np.exp(-x * x / 2) / math.sqrt(2 * math.pi)


@functools.cache
def _below_grid() -> _Array:
    return np.array([0.5 * (1 + math.erf(x / math.sqrt(2))) for x in _GRID])


@functools.cache
def _range_distribution(n: int) -> _Array:
    """Return P(range of n independent standard normals ≤ w) for each w of `_RANGES`.

    Source: David & Nagaraja, Order Statistics, section 2.3: P = n ∫ φ(x) (Φ(x + w) − Φ(x))^(n−1) dx.
    """
    density, below = n * _density(_GRID), _below_grid()
    inside = (np.interp(_GRID + width, _GRID, below) - below for width in _RANGES)
    return np.array([np.trapezoid(density * part ** (n - 1), _GRID) for part in inside])


@functools.cache
def range_quantile(n: int, probability: float = 0.95, freedom: float = math.inf) -> float:
    """Return w with P(range of n standard normals ≤ w · s) = probability: the studentized range's quantile, in σ.

    `s` is an independent estimate of σ with that many degrees of freedom, which need not be whole; ∞ knows σ.
    """
    spreads, weights = _spread_distribution(freedom)
    chances = _range_distribution(n)
    low, high = 0.0, 1e5  # of a thousand normals with half a degree of freedom the 99% quantile is below
    for _ in range(50):
        middle = (low + high) / 2
        inside = float(weights @ np.interp(middle * spreads, _RANGES, chances))
        low, high = (middle, high) if inside < probability else (low, middle)
    return high


@functools.cache
def _spread_distribution(freedom: float) -> tuple[_Array, _Array]:
    """Return values of s = √(χ²/freedom) and their probabilities."""
    if math.isinf(freedom):
        return np.ones(1), np.ones(1)
    # Below one degree of freedom the density has a pole at 0: steps are finer there, and midpoints leave it out.
    edges = (1 + 8 / math.sqrt(2 * freedom)) * np.linspace(0.0, 1.0, 1001) ** max(1.0, 2 / freedom)
    spreads = (edges[1:] + edges[:-1]) / 2
    logs = (freedom - 1) * np.log(spreads) - freedom * spreads * spreads / 2
    weights = np.exp(logs - logs.max()) * np.diff(edges)
    return spreads, weights / weights.sum()


# Student's distribution. scipy.special has the same to nine digits, but takes 0.2 s of each command to import.

_T_STEPS, _T_PRECISION = 50, 1e-6  # of a step: the error that is left is its square
_SIMULTANEOUS_LEVEL = 0.95


@functools.lru_cache(4096)
def student(freedom: float, probability: float) -> float:
    """Return Student's quantile of a probability in (0.5, 1); degrees of freedom need not be whole.

    By Newton's method in the logarithms of t and of the chance to exceed it, from Fisher's first two corrections of the
    normal quantile on [Abramowitz & Stegun 26.7.5]: the curve is concave, so that from the second step on each comes
    nearer from the same side.
    """
    beyond, z = math.log(1 - probability), NormalDist().inv_cdf(probability)
    corrections = (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    log_t = math.log(z + (corrections if freedom >= 2 else 0.0))  # of fewer degrees they say nothing
    for _ in range(_T_STEPS):
        t = math.exp(log_t)
        chance = exceeds(t, freedom)
        density = math.exp(_log_density(t, freedom))
        step = (math.log(chance) - beyond) * chance / (t * density)
        log_t += step
        if abs(step) < _T_PRECISION:
            break
    return math.exp(log_t)


def simultaneous_quantile(freedom: float, count: int) -> float:
    """Return how many standard errors `count` intervals reach to each side so that with 95% all of them hold.

    By Bonferroni: each gets its share of the 5%. The errors are known to `freedom` degrees of freedom.
    """
    return student(freedom, 1 - (1 - _SIMULTANEOUS_LEVEL) / 2 / max(1, count))


# A factor of a million either way: with two trials quantiles are so large that their exponentials overflow.
_NOTHING_KNOWN = math.log(1e6)


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


def _log_density(t: float, freedom: float) -> float:
    """Return the logarithm of Student's density."""
    scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(freedom * math.pi) / 2
    return scale - (freedom + 1) / 2 * math.log1p(t * t / freedom)


def exceeds(t: float, freedom: float) -> float:
    """Return the chance that Student's variable is above t > 0: half the regularized incomplete beta function.

    Source: NIST Digital Library of Mathematical Functions, 8.17.5 and its continued fraction 8.17.22, which converges
    fast below (a + 1)/(a + b + 2), by Lentz's method; above, that of 1 − x, 8.17.4.
    """
    a, b, x = freedom / 2, 0.5, freedom / (freedom + t * t)
    y = t * t / (freedom + t * t)  # 1 − x, without its rounding
    logs = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(y)
    if x < (a + 1) / (a + b + 2):
        return math.exp(logs) / a * _beta_fraction(a, b, x) / 2
    return (1 - math.exp(logs) / b * _beta_fraction(b, a, y)) / 2


def _beta_fraction(a: float, b: float, x: float) -> float:
    """Return the continued fraction of the incomplete beta function."""
    c = 1.0
    whole = d = 1 / (1 - (a + b) * x / (a + 1))
    for m in range(1, 1000):
        for factor in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d, c = 1 / (1 + factor * d), 1 + factor / c
            whole *= c * d
        if abs(c * d - 1) < 1e-14:
            break
    return whole


_MIN_CHANCE = 1e-12  # no model of noise is surer


def chance_beyond(own: int, peers: int, times: float) -> float:
    """Return the chance that the noise of all of `own` trials is so many times the largest of `peers` trials or more.

    This is exact for exponential noise, and by ranks for any if `times` is 1. Noise whose tail is lighter, such as
    normal noise, is so far out less often.
    """
    draws = own * times
    log = math.lgamma(peers + 1) + math.lgamma(draws + 1) - math.lgamma(peers + draws + 1)
    return max(_MIN_CHANCE, math.exp(log))


@functools.cache
def median_deviation(n: int) -> float:
    """Return the standard deviation of the median of n independent standard normals (MEDIAN_ERROR/√n for large n).

    Source: David & Nagaraja, Order Statistics, sections 2.1 and 2.2: the density of the lower middle, and for an even
    number the joint density of both, whose mean has the variance of either less a quarter of that of their gap.
    """
    rank = (n + 1) // 2
    weight = rank * math.comb(n, rank)
    below, density = _below_grid(), _density(_GRID)
    lower = weight * below ** (rank - 1) * (1 - below) ** (n - rank) * density
    mean = float(np.trapezoid(_GRID * lower, _GRID))
    variance = float(np.trapezoid((_GRID - mean) ** 2 * lower, _GRID))
    if n % 2 == 0:
        # ∫ (y − x)² f(x) dx below y is twice the third integral of f.
        squares_below = 2 * _integral(_integral(_integral(below ** (rank - 1) * density)))
        of_gap = weight * rank * np.trapezoid(squares_below * (1 - below) ** (rank - 1) * density, _GRID)
        variance -= (float(of_gap) - (2 * mean) ** 2) / 4
    return math.sqrt(variance)


def _integral(values: _Array) -> _Array:
    """Return the integral up to each point of `_GRID`."""
    steps = (values[1:] + values[:-1]) / 2 * (_GRID[1] - _GRID[0])
    return np.concatenate(([0.0], np.cumsum(steps)))


# Residuals that count in full, in robust σ: 95% efficient for normal ones [Huber & Ronchetti, Robust Statistics, §4].
_HUBER = 1.345


def row_medians(rows: _Array) -> _Array:
    """Return the median of each of some short rows, as a column; they may have NaN where there is no value.

    np.median takes five times as long, and for NaN loads masked arrays.
    """
    ordered, count = np.sort(rows, axis=-1), (~np.isnan(rows)).sum(axis=-1, keepdims=True)
    low, high = (np.take_along_axis(ordered, at, axis=-1) for at in ((count - 1) // 2, count // 2))
    middle: _Array = (low + high) / 2
    return middle


def huber_weights(residuals: _Array, sigma: float | _Array, least: float | _Array) -> _Array:
    """Return Huber's weights of absolute residuals for a robust scale; none counts as less than `least`."""
    return np.minimum(1.0, _HUBER * sigma / np.maximum(residuals, least))
