"""The data points of two runs, and how much these vary beyond their trials (docs/method/statistics.md 7)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import combinations
from statistics import fmean, median, quantiles, variance

from collbench.judge.outcome import unordered
from collbench.judge.stats import MIN_TRIALS, OwnNoise, Variance, chi_square, log_rates, summarize
from collbench.judge.tiers import NOISIER, Estimate, estimates_of, pair_labels
from collbench.model.operations import Operation, Work
from collbench.model.run import Measurement, Path, Run
from collbench.model.units import grouped

# The data points of two runs, each with a key that means the same in both.


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """One data point: the work, the members as positions of the base run, the root's position or None, and the size."""

    work: str
    members: tuple[int, ...]
    root: int | None
    size_bytes: int


def points_by_key(run: Run, positions: Mapping[int, int] | None = None) -> dict[Key, Measurement]:
    """Return the run's data points that have a sample; `positions` maps its devices to those of the base.

    A device that the base lacks becomes a negative member of the key.
    """
    made = {}
    for measurement in run.measurements:
        if measurement.samples:
            point, members = measurement.point, measurement.point.members
            if positions is not None:
                members = tuple(positions.get(member, -1 - member) for member in members)
            rooted = point.operation.rooted and run.settings.root < len(members)
            root = members[run.settings.root] if rooted else None
            key = Key(str(point.work), unordered(point.work, members), root, point.size_bytes)
            made[key] = measurement
    return made


# A data point's log bandwidth with its error, and how far the true value may lie from it (docs/compare.md).

# With fewer degrees of freedom σ̂ says little: then sizes of the same kind are pooled.
_ENOUGH_FREEDOM = 12
_SIZE_CLASSES = (2**16, 2**20, 2**24)


def estimates(points_by_key: Mapping[Key, Measurement], paths: Sequence[Path]) -> dict[Key, Estimate]:
    """Return each data point's log bandwidth with its error; noise is pooled over the links of a label at a size.

    Few trials there, as of one communicator over all GPUs, are pooled with those of like sizes.
    """
    labels = pair_labels(paths)
    logs = {key: log_rates(measurement) for key, measurement in points_by_key.items()}
    kinds = {
        key: f"{key.work} {labels.get(frozenset(key.members), f'{len(key.members)} devices')}" for key in points_by_key
    }
    freedom: dict[tuple[str, int], int] = defaultdict(int)
    for key in points_by_key:
        freedom[kinds[key], key.size_bytes] += len(logs[key]) - 1
    pools = {}
    for key, kind in kinds.items():
        scarce = freedom[kind, key.size_bytes] < _ENOUGH_FREEDOM
        size = f"class {sum(key.size_bytes >= edge for edge in _SIZE_CLASSES)}" if scarce else f"{key.size_bytes} B"
        pools[key] = f"{kind} {size}"
    return estimates_of(logs, pools, points_by_key.values())


# How much they vary from run to run.

# Each run has a process, communicators, memory and clocks of its own. The trials of one run share these, so that they
# do not show how much another run may differ.


class VariationSource(StrEnum):
    """How the variation between runs is known."""

    DEFAULT = "default"  # measured on other machines
    FEW_LINKS = "few links"  # the least that is assumed where too few links show how much they vary
    HISTORY = "history"  # from earlier runs of the base's machine
    COMPARISON = "comparison"  # links or data points of the two runs changed more differently than the default explains


@dataclass(frozen=True, slots=True)
class Variation:
    """Standard deviations of a log bandwidth from run to run: what all links of a run share, or share in this `work`
    alone, and what is a link's own, in all that is measured on it or, beyond that, in this data `point` alone.

    Each is known to so many degrees of freedom. `shift` is by how much all links of two runs differ alike, as a
    difference of logs: up to a bound the runs may be the cause, because two runs do not show how much it varies.
    """

    common: float = 0.0
    own: float = 0.0
    common_freedom: float = 0.0
    own_freedom: float = 0.0
    origin: VariationSource = VariationSource.DEFAULT
    point: float = 0.0
    point_freedom: float = 0.0
    work: float = 0.0
    work_freedom: float = 0.0
    shift: float = 0.0

    @property
    def sigma(self) -> float:
        """The standard deviation of one data point."""
        return math.hypot(self.common, self.own, self.point, self.work)


NO_VARIATION = Variation()


@dataclass(frozen=True, slots=True)
class PointPair:
    """One data point of both runs before it is judged."""

    key: Key
    base: Measurement
    new: Measurement
    old: Estimate
    now: Estimate
    between: Variation = NO_VARIATION

    @property
    def decided(self) -> bool:
        """True if both runs have the trials that show noise."""
        return min(len(self.old.trials), len(self.now.trials)) >= MIN_TRIALS

    @property
    def difference(self) -> float:
        """The log of new over base bandwidth."""
        return self.now.middle - self.old.middle

    @property
    def of_trials(self) -> float:
        """The variance of the difference that comes from the trials."""
        return self.old.cautious_error**2 + self.now.cautious_error**2


# The parts of a variance that many answers share, of runs, links and works, each as earlier runs show it.
OF_HISTORY = "earlier runs", "links of earlier runs", "works of earlier runs"


def parts_of(weighted: Sequence[tuple[float, PointPair]]) -> Iterator[Variance]:
    """Yield the parts of the variance of a weighted mean of differences.

    A data point's trials, and a part of what varies between the two runs, are its own. The rest is shared by all data
    points, by those of one set of devices, and by those of one work.
    """
    own: dict[frozenset[int], float] = defaultdict(float)
    works: dict[str, float] = defaultdict(float)
    for weight, pair in weighted:
        own[frozenset(pair.key.members)] += weight * pair.between.own
        works[pair.key.work] += weight * pair.between.work
        for run, estimate in (("base", pair.old), ("new", pair.now)):
            yield Variance((weight * estimate.cautious_error) ** 2, estimate.freedom, f"{run} {estimate.label}")
    runs = [pair.between for _, pair in weighted]
    history = all(run.origin is VariationSource.HISTORY for run in runs)
    of_runs, of_links, of_works = OF_HISTORY if history else ("runs", "links", "works")
    links = 2 * sum(deviation**2 for deviation in own.values())
    yield Variance(links, min(run.own_freedom for run in runs), of_links)
    each = 2 * sum(deviation**2 for deviation in works.values())
    yield Variance(each, min(run.work_freedom for run in runs), of_works)
    points = 2 * sum((weight * pair.between.point) ** 2 for weight, pair in weighted)
    yield Variance(points, min(run.point_freedom for run in runs), "points")
    common = sum(weight * pair.between.common for weight, pair in weighted)
    yield Variance(2 * common**2, min(run.common_freedom for run in runs), of_runs)


# How much runs differ on the same GPUs, seconds to minutes apart, on 2 and 4 × H200 and 2 × H100 behind NVSwitches: a
# latency in seconds, the same for all sizes below 16 MiB, and a ratio, which is what is left at large sizes. Estimated
# by benchmarks/repeats_variation.py from 254 runs (benchmarks/results/2026-11-24-between-runs).
_DEFAULTS = {
    "ce-write": (20e-9, 0.001),
    "ce-read": (120e-9, 0.001),
    "copies by kernel": (70e-9, 0.0005),
    "collectives": (80e-9, 0.0015),
    "copies of host memory": (120e-9, 0.007),
}
# All links of a run share at most this part of the standard deviation (four GPUs, all sizes and operations).
_COMMON_SHARE = 0.4
# On another machine the variance may be different: groups of repeats differ in theirs as estimates with two (engine's
# reads) to more than thirty degrees of freedom (kernels) do.
DEFAULT_FREEDOM = 10.0


def varies_as(work: Work) -> str:
    """Return which works vary alike."""
    if work.operation.is_collective:
        return "collectives"
    if work.variant.host_memory:
        return "copies of host memory"
    return "copies by kernel" if work.operation in (Operation.SM_WRITE, Operation.SM_READ) else work.operation.value


def default(work: Work, seconds: float) -> Variation:
    """Return how much a data point that takes so long varies on machines that were measured."""
    latency, ratio = _DEFAULTS.get(varies_as(work), (0.0, 0.0))
    sigma = math.hypot(latency / seconds, ratio)
    own = sigma * math.sqrt(1 - _COMMON_SHARE**2)
    return Variation(_COMMON_SHARE * sigma, own, DEFAULT_FREEDOM, DEFAULT_FREEDOM)


def another_run(estimate: Estimate, measurement: Measurement) -> Estimate:
    """Return the estimate of a data point as it holds for another run, beside data points of that run."""
    own = default(measurement.point.work, summarize(measurement).seconds).own
    error, freedom = _with(estimate.error, estimate.freedom, own)
    noisy = estimate.own_noise
    if noisy is not None and error:
        its_error, its_freedom = _with(estimate.error * noisy.ratio, noisy.freedom, own)
        noisy = OwnNoise(its_error / error, its_freedom)
    cautious = math.hypot(estimate.cautious_error, own)
    return replace(estimate, error=error, cautious_error=cautious, freedom=freedom, own_noise=noisy)


def _with(of_trials: float, freedom: float, own: float) -> tuple[float, float]:
    """Return an error with what varies from run to run, and its degrees of freedom (Welch and Satterthwaite's)."""
    error = math.hypot(of_trials, own)
    doubt = of_trials**4 / freedom + own**4 / DEFAULT_FREEDOM if freedom else 0.0
    return error, error**4 / doubt if doubt else freedom


def with_shown(known: Variation, shown: Variation) -> Variation:
    """Return what a default and two or more runs say together, each by its degrees of freedom; not below the default.

    Source: Smyth, Statistical Applications in Genetics and Molecular Biology 3 (2004), section 4.
    """
    common_freedom = known.common_freedom + shown.common_freedom
    own_freedom = known.own_freedom + shown.own_freedom
    common = known.common_freedom * known.common**2 + shown.common_freedom * shown.common**2
    own = known.own_freedom * known.own**2 + shown.own_freedom * shown.own**2
    return replace(
        known,
        common=max(known.common, math.sqrt(common / common_freedom)),
        own=max(known.own, math.sqrt(own / own_freedom)),
        common_freedom=common_freedom,
        own_freedom=own_freedom,
        origin=shown.origin,
    )


# Points of one kind of work at one size, on as many devices, vary alike; each set of devices counts once, because what
# slows a link for a run may slow all of its works.


def _alike(points: Mapping[Key, Measurement]) -> list[list[Key]]:
    kinds = {key: varies_as(measurement.point.work) for key, measurement in points.items()}
    return list(grouped(((kind, key.size_bytes, len(key.members)), key) for key, kind in kinds.items()).values())


def from_history(points: Mapping[Key, Measurement], runs: Sequence[Mapping[Key, Estimate]]) -> dict[Key, Variation]:
    """Return what two or more runs of one machine show of the points that all of them have (analysis of variance).

    What all links share in a run is that of their work alone as far as works changed unlike each other, and what is a
    link's own is that of the data point as far as its works did.
    """
    shared = {key: measurement for key, measurement in points.items() if all(key in run for run in runs)}
    freedom = len(runs) - 1
    shown: dict[Key, Variation] = {}
    for of_size in grouped(((key.size_bytes, len(key.members)), key) for key in shared).values() if freedom else ():
        shown |= _of_machine({key: shared[key] for key in of_size}, runs)
    return shown


def _of_machine(points: Mapping[Key, Measurement], runs: Sequence[Mapping[Key, Estimate]]) -> dict[Key, Variation]:
    """Return what runs show of the points of one size on as many devices."""
    freedom, sets = len(runs) - 1, len({frozenset(key.members) for key in points})
    levels = {key: [run[key].middle for run in runs] for key in points}
    trials = {key: fmean(run[key].error ** 2 for run in runs) for key in points}
    # What is left of each point's variance when that of its trials is taken away.
    left = {key: variance(levels[key]) - trials[key] for key in points}
    rows = grouped((key.work, key) for key in points)
    means = {
        work: [fmean(level) for level in zip(*(levels[key] for key in row), strict=True)] for work, row in rows.items()
    }
    totals, together = _of_works(points, left, means, sets)
    alike = _alike_share([[(means[work], together[work]) for work in rows]])
    apart = {key: [a - b for a, b in zip(levels[key], means[key.work], strict=True)] for key in points}
    by_link = _alike_share(
        [(apart[key], totals[key.work] - together[key.work]) for key in of_link]
        for of_link in _by_link(points).values()
    )
    others = min(DEFAULT_FREEDOM, freedom * (len(rows) - 1))
    usual_together = median(together[work] for work in rows)
    shown = {}
    for keys in _alike(points):
        work, works = keys[0].work, len({key.work for key in keys})
        of_runs, own = together[work], totals[work] - together[work]
        usual = max(0.0, median(left[key] for key in keys))
        # Six runs show little of one work alone: it varies as most works do at least.
        of_work = (others * usual_together + freedom * works * of_runs) / (others + freedom * works)
        pooled = Variation(
            common=math.sqrt(alike * of_runs),
            work=math.sqrt((1 - alike) * max(of_runs, of_work)),
            own=math.sqrt(by_link * own),
            point=math.sqrt((1 - by_link) * own),
            common_freedom=freedom,
            work_freedom=freedom * works + others,
            own_freedom=freedom * max(1, sets - 1),
            point_freedom=freedom * max(1, sets - 1) * works,
            origin=VariationSource.HISTORY,
        )
        for key in keys:
            noisier = left[key] > max(totals[work], NOISIER**2 * usual)
            alone = replace(pooled, own=math.sqrt(max(0.0, left[key] - of_runs)), own_freedom=freedom, point=0.0)
            shown[key] = alone if noisier else pooled
    return shown


def _of_works(
    points: Mapping[Key, Measurement], left: Mapping[Key, float], means: Mapping[str, Sequence[float]], sets: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Return each work's variance from run to run, and the part in which all sets of devices vary together.

    `means` are those of all its points in each run.
    """
    totals: dict[str, float] = {}
    together: dict[str, float] = {}
    for keys in _alike(points):
        of_kind = {key.work for key in keys}
        total = max(0.0, fmean(left[key] for key in keys))
        of_means = fmean(variance(means[work]) for work in of_kind)
        both = (of_means - total / sets) * sets / (sets - 1) if sets > 1 else total
        totals |= dict.fromkeys(of_kind, total)
        together |= dict.fromkeys(of_kind, min(total, max(0.0, both)))
    return totals, together


def _alike_share(groups: Iterable[Sequence[tuple[Sequence[float], float]]]) -> float:
    """Return the share of their variance that series of one group have in common; 1 if no group has two.

    Each series has its values, one of each run, and its variance without the noise of trials, which no two share.
    """
    covariance, most = 0.0, 0.0
    for group in groups:
        sums = [math.fsum(values) for values in zip(*(series for series, _ in group), strict=True)]
        deviations = [math.sqrt(part) for _, part in group]
        covariance += variance(sums) - math.fsum(variance(series) for series, _ in group)
        most += math.fsum(deviations) ** 2 - math.fsum(part for _, part in group)
    return min(1.0, max(0.0, covariance / most)) if most > 0 else 1.0


def with_history(known: Variation, shown: Variation, trials: float) -> Variation:
    """Return how much a point varies, from a default and earlier runs; `trials` are of one run's, a variance.

    Where runs vary significantly more than trials and default explain (χ² at 95%, as if all points varied together),
    the default says nothing of this machine. Otherwise both count, each by its degrees of freedom.
    """
    freedom = shown.common_freedom
    if (shown.sigma**2 + trials) * freedom > chi_square(freedom, 0.95) * (known.sigma**2 + trials):
        return shown
    common, own = math.hypot(shown.common, shown.work), math.hypot(shown.own, shown.point)
    return with_shown(known, replace(shown, common=common, own=own))


# With fewer links that are not all the same, a real change of one of them could pass for variation.
MIN_LINKS = 6
# So nothing shows how much these vary, and a change in two runs is a claim only if runs that vary by 2% hardly make it
# (benchmarks/between_runs.py).
OF_FEW_LINKS = 0.006
# The scale of fewer works is that of the two that happen to be most alike.
_MIN_UNLIKE = 4
# With fewer works at a size one direction's copies could be half of them.
_MIN_WORKS = 9
# Runs may be the reason for a shift of all links up to this, a difference of logs: with δ 6%, by which two runs differ
# once in thirty times if runs vary by 2% as a whole.
MAX_SHIFT = 0.04
# Two runs show no larger standard deviation than this, twice the 2% up to which an unchanged machine is hardly called
# changed. A larger one is a change: one of four GPUs at half rate slows half of the links, each differently.
MAX_BETWEEN = 0.04
# Chance does not spread links by so many times what trials and default explain.
_MORE = 1.3
# A link varies by at most this share of what the other links do. With the quantiles of a comparison it has changed if
# it lies four of their standard deviations beyond δ, as one of six links that vary by 2% does in 3% of comparisons.
_OF_OTHERS = 0.72


_Rows = list[list[Key]]  # the links of each work, those of one-way copies in each direction


def from_changes(changes: Mapping[Key, PointPair]) -> dict[Key, Variation]:
    """Return how much points vary from run to run, as two runs show it.

    Points change as all links of their kind do, as their link does in all works, as their work does on all links, and
    by themselves. What is clearly more than trials and default explain counts. Fewer links than `MIN_LINKS` show only
    how data points vary.
    """
    found = {key: pair.between for key, pair in changes.items()}
    for of_size in grouped(((key.size_bytes, len(key.members)), key) for key in changes).values():
        if rows := _rows(of_size):
            found |= _with_points(changes, rows)
            found |= _with_links(changes, rows, found)
            found |= _with_each_work(changes, rows, found)
        else:
            found |= _with_works(changes, of_size)
    for keys in _alike({key: pair.base for key, pair in changes.items()}):
        if rows := _rows(keys):
            shown = _with_links(changes, rows, found)
            shift = _shift(_of_links({key: changes[key].difference for key in shown}))
            found |= {key: replace(variation, shift=shift) for key, variation in shown.items()}
            continue
        for key in keys:
            variation = found[key]
            if 0 < variation.own < OF_FEW_LINKS:
                origin = variation.origin if variation.point > OF_FEW_LINKS else VariationSource.FEW_LINKS
                found[key] = replace(variation, own=OF_FEW_LINKS, origin=origin)
    return found


def _rows(keys: Sequence[Key]) -> _Rows:
    """Return the rows that have enough links; copies from each of eight GPUs to all others are of one set."""
    rows = grouped(((key.work, key.members != tuple(sorted(key.members))), key) for key in keys)
    return [row for row in rows.values() if len({frozenset(key.members) for key in row}) >= MIN_LINKS]


def _of_links(values: Mapping[Key, float]) -> dict[frozenset[int], float]:
    """Return the median of each link's values."""
    return {link: median(values[key] for key in of_link) for link, of_link in _by_link(values).items()}


def _by_link(keys: Iterable[Key]) -> dict[frozenset[int], list[Key]]:
    return grouped((frozenset(key.members), key) for key in keys)


def _with_points(changes: Mapping[Key, PointPair], rows: _Rows) -> dict[Key, Variation]:
    """Return how much points of one size vary by themselves: differently from their work and their link.

    This takes several works: none are returned for one work, or if they show nothing.
    """
    left: dict[Key, float] = {}
    for row in rows:
        middle = median(changes[key].difference for key in row)
        left |= {key: changes[key].difference - middle for key in row}
    links = _of_links(left)
    spread = median(_scale([left[key] - links[frozenset(key.members)] for key in row]) ** 2 for row in rows)
    spread *= len(rows) / max(1, len(rows) - 1)  # what is left of so many values without their middle
    return _of_points(changes, [*left], spread, (len(rows) - 1) * (min(map(len, rows)) - 1) / 2)


def _of_points(
    changes: Mapping[Key, PointPair], keys: Sequence[Key], spread: float, freedom: float
) -> dict[Key, Variation]:
    """Return what the spread of these points' differences says of each; none if trials and default explain it."""
    trials = fmean(changes[key].of_trials for key in keys)
    if spread <= _MORE**2 * (trials + 2 * fmean(changes[key].between.sigma ** 2 for key in keys)):
        return {}
    point = min(MAX_BETWEEN, math.sqrt((spread - trials) / 2))
    return {
        key: replace(changes[key].between, point=point, point_freedom=freedom, origin=VariationSource.COMPARISON)
        for key in keys
    }


def _with_works(changes: Mapping[Key, PointPair], keys: Sequence[Key]) -> dict[Key, Variation]:
    """Return how much points of one size vary by themselves where few links can show it: differently from their link.

    The scale withstands that almost half of a link's works changed, as those in one direction do if that is slower.
    """
    works = [of_link for of_link in _by_link(keys).values() if len(of_link) >= _MIN_WORKS]
    if not works:
        return {}
    known = [key for of_link in works for key in of_link]
    spread = median(_scale([changes[key].difference for key in of_link]) ** 2 for of_link in works)
    return _of_points(changes, known, spread, (len(known) - len(works)) / 2)


def _with_links(changes: Mapping[Key, PointPair], rows: _Rows, found: Mapping[Key, Variation]) -> dict[Key, Variation]:
    """Return how much points vary with their links if these changed unlike each other.

    No point varies less than was `found`. The scale withstands that up to half of the links truly became slower. If
    only one did, the others limit what it varies by.
    """
    keys = [key for row in rows for key in row]
    links = _of_links({key: changes[key].difference for key in keys})
    # What trials, and each point's own variation, leave in the middle of several works.
    trials = fmean(changes[key].of_trials for key in keys) / len(rows)
    point = fmean(found[key].point ** 2 for key in keys) / len(rows)
    spread = _scale([*links.values()]) ** 2
    expected = trials + 2 * (fmean(changes[key].between.sigma ** 2 for key in keys) + point)
    more = min(MAX_BETWEEN, math.sqrt((spread - trials) / 2 - point)) if spread > _MORE**2 * expected else 0.0
    of_all = Variation(own=more, own_freedom=(len(links) - 1) / 2, origin=VariationSource.COMPARISON)
    most = dict.fromkeys(links, 0.0)
    for link in links if more else ():
        others = [value for other, value in links.items() if other != link]
        most[link] = _OF_OTHERS * math.sqrt(max(0.0, (variance(others) - trials) / 2 - point))
    shown = {}
    for key in keys:
        together, variation = with_shown(changes[key].between, of_all), found[key]
        own = min(together.own, most[frozenset(key.members)])
        if own > variation.own:
            variation = replace(variation, own=own, own_freedom=together.own_freedom, origin=VariationSource.COMPARISON)
        shown[key] = variation
    return shown


def _with_each_work(
    changes: Mapping[Key, PointPair], rows: _Rows, found: Mapping[Key, Variation]
) -> dict[Key, Variation]:
    """Return how much all links of a work vary together if works of one size changed unlike each other.

    The scale withstands that up to half of the works truly changed, as all collectives do with another NCCL.
    """
    by_work = grouped((key.work, key) for row in rows for key in row)
    if len(by_work) < _MIN_UNLIKE:
        return {}
    keys = [key for of_work in by_work.values() for key in of_work]
    trials = fmean(changes[key].of_trials for key in keys) * len(by_work) / len(keys)
    spread = _scale([median(changes[key].difference for key in of_work) for of_work in by_work.values()]) ** 2
    if spread <= _MORE**2 * (trials + 2 * fmean(changes[key].between.sigma ** 2 for key in keys)):
        return {}
    of_all = Variation(
        common=min(MAX_BETWEEN, math.sqrt((spread - trials) / 2)),
        common_freedom=(len(by_work) - 1) / 2,
        origin=VariationSource.COMPARISON,
    )
    together = {key: with_shown(changes[key].between, of_all) for key in keys}
    return {
        key: replace(found[key], work=both.common, work_freedom=both.common_freedom, origin=both.origin)
        for key, both in together.items()
    }


def _shift(links: Mapping[frozenset[int], float]) -> float:
    """Return by how much all links changed alike, as far as two runs may differ, by each link's difference."""
    low, _, high = quantiles(links.values(), n=4, method="inclusive")
    return min(MAX_SHIFT, max(0.0, low)) + max(-MAX_SHIFT, min(0.0, high))


def _scale(values: Sequence[float]) -> float:
    """Return the standard deviation of normal values by Q_n, half of which may be wild.

    Source: Rousseeuw & Croux, JASA 88 (1993), section 3. The factor for few values is their program's for ten or more,
    within 3% of its table for six to nine.
    """
    count = len(values)
    half = count // 2 + 1
    differences = sorted(abs(a - b) for a, b in combinations(values, 2))
    factor = count / (count + (1.4 if count % 2 else 3.8))
    return 2.2219 * factor * differences[half * (half - 1) // 2 - 1]


def in_both(
    base: Mapping[Key, Measurement],
    new: Mapping[Key, Measurement],
    paths: Sequence[Path],
    history: Sequence[Mapping[Key, Measurement]],
) -> list[PointPair]:
    """Return the data points that both runs have, with their estimates and how much these vary between runs.

    `paths` are the base's, `history` other runs of its machine. No data point varies less than by default.
    """
    old, now = estimates(base, paths), estimates(new, paths)
    found = [
        PointPair(
            key,
            base[key],
            new[key],
            old[key],
            now[key],
            default(base[key].point.work, summarize(base[key]).seconds),
        )
        for key in base
        if key in new
    ]
    if history:
        of_machine = from_history(base, [old, *(estimates(run, paths) for run in history)])
        seen = {
            pair.key: with_history(pair.between, of_machine[pair.key], pair.of_trials / 2)
            for pair in found
            if pair.key in of_machine
        }
    else:
        seen = from_changes({pair.key: pair for pair in found if pair.decided})
    return [replace(pair, between=seen.get(pair.key, pair.between)) for pair in found]
