"""Summaries of a run: rankings of links and pairs, shares of host links, fits over sizes (method/statistics.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collbench.judge.outcome import Outcome, outcome
from collbench.judge.stats import MAD_TO_SIGMA, MIN_TRIALS, huber_weights, row_medians, summarize, trial_seconds
from collbench.judge.tiers import Missing, Ranking, labels_of, points_of, rank_links, work_order
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import DataPoint, Measurement, Members, Run
from collbench.model.units import SMALL_BYTES, fixed, grouped


@dataclass(frozen=True, slots=True)
class RankedWork:
    """One work's rankings, at a large size and then at a small one; and α–β fits over all sizes.

    `unfitted` are links without a fit, and why, as a clause.

    `incomplete` are larger or smaller sizes not ranked because fewer sets of devices have them: (size in bytes, sets).
    """

    work: Work
    rankings: tuple[Ranking, ...]
    fits: tuple[LinkFit, ...]
    unfitted: dict[Members, str]
    incomplete: tuple[tuple[int, int], ...] = ()

    @property
    def judged(self) -> bool:
        """True if a ranking has enough trials to estimate noise."""
        return any(ranking.trials >= MIN_TRIALS for ranking in self.rankings)

    @property
    def missing(self) -> tuple[Missing, ...]:
        """What its rankings lack."""
        return tuple(lack for ranking in self.rankings for lack in ranking.missing)


def rank_summary(run: Run, operation: Operation | None = None, size_bytes: int | None = None) -> tuple[RankedWork, ...]:
    """Return the tiers and fits of every work on links, pairs or devices, or of one operation, in the model's order.

    They are ranked at one size, or at the largest and the smallest. A work that lacks the size asked for has no ranking
    there.
    """
    ended = outcome(run)
    return tuple(
        _ranked(run, ended, work, counts, size_bytes)
        for work, counts in measured_works(run).items()
        if operation in (None, work.operation)
    )


def measured_works(run: Run) -> dict[Work, Counter[int]]:
    """Return each work that ran on links, pairs or devices, in the model's order, with how many of these a size has."""
    works = sorted({measurement.point.work for measurement in run.measurements if measurement.samples}, key=work_order)
    sizes = {
        work: sorted({measurement.point.size_bytes for measurement in run.measured(work.variant)}) for work in works
    }
    counts = {work: Counter({size: len(points_of(run, work, size)) for size in sizes[work]}) for work in works}
    return {work: +counted for work, counted in counts.items() if +counted}


def _ranked(run: Run, ended: Outcome, work: Work, counts: Counter[int], requested: int | None) -> RankedWork:
    most = max(counts.values())
    full = [size for size, count in counts.items() if count == most]
    large, small = max(full), min(full)
    if requested is not None:
        sizes = [requested]
    else:
        sizes = [large, small] if small < large and small <= SMALL_BYTES else [large]
    rankings = [rank_links(run, work, size, ended) for size in sizes]
    passed = [size for size in counts if requested is None and (size > large or (size < small and len(sizes) == 2))]
    fits, unfitted = fit_links(run, work)
    return RankedWork(
        work=work,
        rankings=tuple(filter(None, rankings)),
        fits=fits,
        unfitted=unfitted,
        incomplete=tuple((size, counts[size]) for size in sorted(passed)),
    )


def host_shares(run: Run) -> dict[Work, float]:
    """Return what is left of their isolated rates, as a share of the sum, while all devices copy at once.

    Of each work at its largest size. Where each device copies with its own NUMA node's memory, it is compared with that
    node's. A work is left out if the isolated rate of a device is unknown.
    """
    rates = {measurement.point: summarize(measurement).busbw for measurement in run.measurements if measurement.samples}
    nodes = {point.numa_node for point in rates if point.variant is Variant.HOST}
    shares = {}
    for work, every in grouped((point.work, point) for point in rates if point.variant.at_once).items():
        largest = max(point.size_bytes for point in every)
        concurrent, isolated = [], list[float | None]()
        for point in every:
            if point.size_bytes == largest:
                device = point.members[0]
                node = work.numa_node if work.numa_node in nodes else run.devices[device].numa_node
                concurrent.append(rates[point])
                isolated.append(rates.get(DataPoint(work.operation, (device,), largest, Variant.HOST, node)))
        known = [gbs for gbs in isolated if gbs is not None]
        if len(known) == len(isolated):
            shares[work] = sum(concurrent) / sum(known)
    return shares


# Latency and bandwidth of a link: a line over sizes (docs/method/statistics.md 5).

_Array = NDArray[np.float64]
Bounded = tuple[float, float, float]  # the low end of the 95% interval, the estimate, the high end

# Two parameters and a curve that often has a step between protocols: fewer sizes show no line.
MIN_SIZES, MIN_SPAN = 4, 16
_MIN_TRIALS = 2  # from one trial nothing can be resampled
_RESAMPLES = 200
# Rounds of reweighting, after which results move by less than 0.1%; resampled ones begin where the estimate ended.
_ROUNDS, _REDRAWN_ROUNDS = 30, 6
_AT_ONCE = 32  # links that are fitted together: their arrays fit a core's cache
_FLAT = 1e-18  # seconds a byte: 1e9 GB/s, more than anything carries
_EXACT = 1e-6  # a relative residual below any clock's resolution: all points count alike


@dataclass(frozen=True, slots=True)
class LinkFit:
    """One link's α in µs, β in GB/s (busbw) and n½ = α · β in bytes, where half of β is reached; 95% intervals.

    `misfit` is the largest distance of a measured time from the line, as a share of it. `sizes` were fitted.
    """

    members: Members
    label: str
    latency_us: Bounded
    gbs: Bounded
    half_bytes: Bounded
    misfit: float
    sizes: int


def fit_links(run: Run, work: Work) -> tuple[tuple[LinkFit, ...], dict[Members, str]]:
    """Return a fit over all sizes for each link, pair or device that a work was measured on, or why there is none.

    Both are in order of members.

    Intervals come from resampling trials with the run's seed, so the same run gives the same figures.
    """
    sizes = {points.point.size_bytes for points in run.measured(work.variant) if points.point.work == work}
    curves = grouped(point for size in sorted(sizes) for point in points_of(run, work, size).items())
    labels = labels_of(run, curves)
    unfitted = {members: why for members, curve in curves.items() if (why := _no_line(curve))}
    fits: dict[Members, LinkFit] = {}
    shapes = {
        members: tuple((points.point.moved_bytes, len(points.samples)) for points in curve)
        for members, curve in curves.items()
        if members not in unfitted
    }
    for group in grouped(((len(members), shape), members) for members, shape in shapes.items()).values():
        for begin in range(0, len(group), _AT_ONCE):
            some = group[begin : begin + _AT_ONCE]
            for fit in _fits({members: curves[members] for members in some}, labels, run.settings.seed):
                fits[fit.members] = fit
    flat = curves.keys() - fits.keys() - unfitted.keys()
    unfitted |= dict.fromkeys(flat, "time does not grow with size, so there is no bandwidth")
    return tuple(fits[members] for members in sorted(fits)), dict(sorted(unfitted.items()))


def _no_line(curve: list[Measurement]) -> str:
    """Return why no line can be fitted to a curve, "" if one can be tried."""
    smallest, largest = curve[0].point.moved_bytes, curve[-1].point.moved_bytes
    if len(curve) < MIN_SIZES:
        return f"{len(curve)} of the {MIN_SIZES} sizes that a fit needs"
    if largest < MIN_SPAN * smallest:
        return f"sizes span a factor of {fixed(largest / smallest, 3)}, a fit needs {MIN_SPAN}"
    if min(len(measurement.samples) for measurement in curve) < _MIN_TRIALS:
        return "a size has one trial; an interval needs two"
    return ""


def _fits(
    curves: Mapping[Members, Sequence[Measurement]], labels: Mapping[Members, str], seed: int
) -> Iterator[LinkFit]:
    """Fit links of as many devices, with the same sizes and as many trials of each; none where time does not grow."""
    points = list(zip(*curves.values(), strict=True))  # of all links, by size
    sizes = np.array([links[0].point.moved_bytes for links in points], dtype=float)
    trials = [
        np.array([trial_seconds(measurement) for measurement in links]) for links in points
    ]  # each (links, trials)
    times = np.hstack([row_medians(part) for part in trials])  # (links, sizes)
    alpha, beta, weights = _line(sizes, times, np.ones_like(times), _ROUNDS)
    misfit = np.max(np.abs((alpha[:, None] + beta[:, None] * sizes) / times - 1), axis=1)
    slopes = np.flatnonzero(beta > _FLAT)
    rng = np.random.default_rng(seed)
    draws = (rng.integers(part.shape[1], size=(_RESAMPLES, part.shape[1])) for part in trials)
    medians = [row_medians(part[slopes][:, drawn]) for part, drawn in zip(trials, draws, strict=True)]
    redrawn = np.concatenate(medians, axis=-1).reshape(-1, len(sizes))  # (links · resamples, sizes)
    again = _line(sizes, redrawn, np.repeat(weights[slopes], _RESAMPLES, axis=0), _REDRAWN_ROUNDS)
    alphas, betas = (drawn.reshape(len(slopes), _RESAMPLES) for drawn in again[:2])
    factor = points[0][0].point.operation.busbw_factor(len(points[0][0].point.members))
    latencies = _bounded(alpha[slopes] * 1e6, alphas * 1e6)
    rates = _bounded(factor / beta[slopes] / 1e9, factor / betas / 1e9)
    halves = _bounded(alpha[slopes] / beta[slopes], alphas / betas)
    links = list(curves)
    for link, latency_us, gbs, half_bytes in zip(slopes.tolist(), latencies, rates, halves, strict=True):
        members = links[link]
        yield LinkFit(members, labels[members], latency_us, gbs, half_bytes, float(misfit[link]), len(sizes))


def _line(sizes: _Array, times: _Array, weights: _Array, rounds: int) -> tuple[_Array, _Array, _Array]:
    """Return α in seconds (not negative), 1/β in seconds a byte, and the weights of each row of times (rows, sizes).

    Least squares of *relative* residuals, because times span five orders of magnitude; those that stand out count less.
    """
    for _ in range(rounds):
        alpha, beta = _weighted_line(sizes / times, 1 / times, weights)
        far = np.abs((alpha[:, None] + beta[:, None] * sizes) / times - 1)
        scale = np.maximum(MAD_TO_SIGMA * row_medians(far), _EXACT)
        weights = huber_weights(far, scale, _EXACT * scale)
    return alpha, beta, weights


def _weighted_line(x: _Array, one: _Array, weights: _Array) -> tuple[_Array, _Array]:
    """Return α and 1/β that bring α · one + x/β nearest to 1, row by row; where α would be negative it is 0."""
    aa, ab, bb = ((weights * u * v).sum(axis=1) for u, v in ((one, one), (one, x), (x, x)))
    a, b = ((weights * u).sum(axis=1) for u in (one, x))
    determinant = aa * bb - ab * ab
    alpha = np.maximum((a * bb - b * ab) / determinant, 0.0)
    # With α at its bound the line through the origin is best; otherwise both follow from the normal equations.
    beta = np.where(alpha > 0, (b * aa - a * ab) / determinant, b / bb)
    return alpha, np.maximum(beta, _FLAT)


def _bounded(estimates: _Array, drawn: _Array) -> list[Bounded]:
    """Return each estimate with the interval that its row of redrawn ones gives."""
    lows, highs = np.percentile(drawn, [2.5, 97.5], axis=1)
    columns = (np.minimum(lows, estimates), estimates, np.maximum(highs, estimates))
    return list(zip(*(column.tolist() for column in columns), strict=True))
