"""Which links and pairs differ and which tie: estimates with noise, order and tiers (docs/method/statistics.md)."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import combinations, permutations
from statistics import median

from collbench.judge.outcome import Absence, Absences, Outcome, TroubleKind, outcome, unordered
from collbench.judge.stats import (
    MIN_TRIALS,
    OwnNoise,
    Point,
    exceeds,
    log_rates,
    median_deviation,
    most_widening,
    noise_of_kinds,
    own_noise,
    range_quantile,
    resemblance,
    simultaneous_quantile,
    summarize,
    trial_noise,
    widened_by,
    widening,
)
from collbench.model.operations import Endpoints, Operation, Registration, Variant, Work
from collbench.model.run import Measurement, Members, Path, Run
from collbench.model.units import DELTA, TELLING_BYTES, amount, figure, format_size

# Estimates from the trials of a link, and when two links differ: medians, noise, margins (method/statistics.md 2, 3).
#
# Everything is in log bandwidth, so that differences are ratios.


# Below 1 MiB three times as much: the launch of a small message may vary by 6% of its 5 µs.
_SMALL_DELTA = 3 * DELTA
_PUBLISHING_TRIALS = 5  # with fewer trials a difference needs the higher level
_LEVEL, _SCREENING_LEVEL = 0.95, 0.99
# Two one-sided tests, each at 2.5%: the 95% interval of the difference lies within ±δ.
_TIE_CHANCE = 0.025
# σ̂ from differences of trials is as precise as a standard deviation of about half as many (benchmarks/ties.py).
_FREEDOM_SHARE = 0.5
# Of seven equally noisy trials σ̂ exceeds 2.5 times the pool's once in a thousand: such a link is noisier than its
# kind.
NOISIER = 2.5
# From this many on one wild trial may be passed over on either side: 1 − 2 · 8/2^7 = 87% still cover the median.
TRIALS_WITH_AN_OUTLIER = 7


@dataclass(frozen=True, slots=True)
class Estimate:
    """A link's log bandwidth: the median of its trials (ascending), its standard error with degrees of freedom.

    Trials may resemble those before by more than is seen: then errors may be `doubt` times as large.
    `error` is from the noise of all links of its label, `cautious_error` from its own noise if that is much larger. A
    claim that it is equal to another rests on `own_noise` if its trials show that it has noise of its own.
    """

    label: str
    trials: tuple[float, ...]
    middle: float
    error: float
    cautious_error: float
    freedom: float
    own_noise: OwnNoise | None = None
    doubt: float = 1.0

    @property
    def bounds(self) -> tuple[float, float]:
        """The order statistics that hold the median: all trials, from seven on all but the outermost."""
        drop = int(len(self.trials) >= TRIALS_WITH_AN_OUTLIER)
        return self.trials[drop], self.trials[-1 - drop]


def tolerance(size_bytes: int) -> float:
    """Return δ, the ratio up to which a difference changes no decision: 2%, below 1 MiB 6%."""
    return DELTA if size_bytes >= TELLING_BYTES else _SMALL_DELTA


def points_of(run: Run, work: Work, size_bytes: int) -> dict[Members, Measurement]:
    """Return the run's measurements of a work at a size, by members: links and pairs, of host copies single devices."""
    wanted = 1 if work.variant.endpoints is Endpoints.DEVICE else 2
    if work.variant.at_once:
        return {}
    points = (measurement for measurement in run.measured(work.variant) if measurement.point.size_bytes == size_bytes)
    return {
        measurement.point.members: measurement
        for measurement in points
        if measurement.point.operation is work.operation
        and len(measurement.point.members) == wanted
        and measurement.point.work == work
    }


def pair_labels(paths: Iterable[Path]) -> dict[frozenset[int], str]:
    """Return the label of each unordered pair of positions."""
    return {frozenset(path.devices): path.label for path in paths}


def labels_of(run: Run, members: Iterable[Members]) -> dict[Members, str]:
    """Return the label of each link or pair, "host" for a single device, "?" where the run has none."""
    labels = pair_labels(run.paths)
    return {some: "host" if len(some) == 1 else labels.get(frozenset(some), "?") for some in members}


def estimates(points: Mapping[Members, Measurement], labels: Mapping[Members, str]) -> dict[Members, Estimate]:
    """Return the estimate of each data point's link, from busbw in GB/s."""
    logs = {members: log_rates(measurement) for members, measurement in points.items()}
    return estimates_of(logs, labels, points.values())


def estimates_of(
    logs: Mapping[Point, Sequence[float]], labels: Mapping[Point, str], measured: Collection[Measurement] = ()
) -> dict[Point, Estimate]:
    """Return each link's estimate from the logs of its trials; σ̂ of a trial is pooled within a label.

    What was `measured` shows whether trials resemble those before, and whether their noise is uneven.
    """
    uneven = any(timed.noise is not None and timed.noise.uneven for timed in measured)
    noise, freedom = noise_of_kinds(logs, labels, uneven=uneven), Counter[str]()
    wider, widest = _widening(logs, noise, measured)
    for link, given in logs.items():
        freedom[labels[link]] += len(given) - 1
    estimated = {}
    for link, given in logs.items():
        trials, pooled, label = tuple(sorted(given)), noise[link], labels[link]
        own, per_noise = trial_noise([trials]), wider * median_deviation(len(trials))
        estimated[link] = Estimate(
            label=label,
            trials=trials,
            middle=median(trials),
            error=pooled * per_noise,
            cautious_error=(own if own > NOISIER * pooled else pooled) * per_noise,
            freedom=_FREEDOM_SHARE * freedom[label],
            own_noise=own_noise([(trials, pooled)]),
            doubt=widest / wider,
        )
    return estimated


def _widening(
    logs: Mapping[Point, Sequence[float]], noise: Mapping[Point, float], measured: Collection[Measurement]
) -> tuple[float, float]:
    """Return by how much errors are larger as trials resemble those before: as far as seen, and at most.

    The whole run shows it. Points with more trials than the others show it themselves, too: theirs follow each other
    sooner, so that they resemble each other more. So do those of a run that is too short to show the noise of a kind.
    """
    wider, widest = widening(measured), most_widening(measured)
    fewest, most = (count(map(len, logs.values()), default=0) for count in (min, max))
    if widest is not None and fewest < _PUBLISHING_TRIALS:
        return wider, widest
    own = resemblance((trials, noise[point]) for point, trials in logs.items())
    wider, at_most = max(wider, own.seen), own.at_most
    if widest is not None and own.seen == 1:  # of AR(1) in time: ρ of a part of the time between trials of the others
        rho = (widest**2 - 1) / (widest**2 + 1)
        at_most = max(widest, min(at_most, widened_by(rho ** (MIN_TRIALS / most))))
    return wider, max(wider, at_most)


def margin(a: Estimate, b: Estimate, count: int) -> float:
    """Return how far apart two of `count` equal links may look, a ratio: the simultaneous interval of their difference.

    Tukey's and Kramer's: the studentized range's quantile over √2, times the difference's standard error.
    """
    few = min(len(a.trials), len(b.trials)) < _PUBLISHING_TRIALS
    quantile = range_quantile(count, _SCREENING_LEVEL if few else _LEVEL, _freedom(a, b)) / math.sqrt(2)
    return quantile * math.hypot(a.error, b.error)


def differs(top: Estimate, other: Estimate, count: int, delta: float) -> bool:
    """Return whether one of `count` links is slower than another by more than δ, significantly.

    Two further conditions guard against a link that is noisier than its pool, or has a few wild trials: nearly all of
    its trials are slower than the other's median, and nearly all of the other's are faster than its own median. A third
    one guards against trials that resemble those before: equal links differ by no more than the margin at its widest.
    """
    if min(len(top.trials), len(other.trials)) < MIN_TRIALS:
        return False  # a trial or two show no noise, so everything would look certain
    if not (other.bounds[1] < top.middle - delta and top.bounds[0] > other.middle + delta):
        return False
    slower = _by_own_noise(other)
    slower = replace(slower, error=max(slower.error, other.cautious_error))
    return top.middle - other.middle > _least(_by_own_noise(top), slower, count, delta)


def _least(a: Estimate, b: Estimate, count: int, delta: float) -> float:
    """Return how far apart two of `count` links have to be to be called different, a ratio."""
    noise = margin(a, b, count)
    return max(delta + noise, noise * max(a.doubt, b.doubt))


def _by_own_noise(estimate: Estimate) -> Estimate:
    """Return the estimate with the error of its own noise where its trials show some: the best is often noisy."""
    variance, freedom = _variance(estimate)
    return replace(estimate, error=math.sqrt(variance), freedom=freedom)


def at_least(estimate: Estimate) -> float:
    """Return the lower end of a link's log bandwidth (95%), by its own noise where its trials show that it has some.

    It is the median where no trials show any noise.
    """
    variance, freedom = _variance(estimate)
    return estimate.middle - (math.sqrt(variance) * simultaneous_quantile(freedom, 1) if freedom else 0.0)


def ties(a: Estimate, b: Estimate, delta: float) -> bool:
    """Return whether two links are shown to be equal up to δ. One pair's test, for one that is not the best of many."""
    return a is b or chance_of_no_tie(a, b, delta) <= _TIE_CHANCE


def chance_of_no_tie(a: Estimate, b: Estimate, delta: float) -> float:
    """Return the chance of estimates so near each other if two links differed by δ or more: two one-sided tests.

    Each link counts with its own noise where its trials show that it is noisier than its label, so more noise never
    makes a tie. A trial or two show no noise: then it is 1. [Schuirmann, J. Pharmacokin. Biopharm. 15 (1987)]
    """
    fewest = min(len(a.trials), len(b.trials))
    if fewest < MIN_TRIALS:
        return 1.0
    a, b = map(_by_own_noise, (a, b))
    # Few trials that resemble each other are near each other, whatever their noise.
    error = math.hypot(a.error, b.error) * (max(a.doubt, b.doubt) if fewest < _PUBLISHING_TRIALS else 1.0)
    room = round(delta - abs(a.middle - b.middle), 12)
    if room < 0 or error == 0:
        return float(room < 0)
    if room == 0:  # as of times in whole ticks
        return 0.5
    return exceeds(room / error, _freedom(a, b))


def _variance(estimate: Estimate) -> tuple[float, float]:
    """Return the variance of a link's estimate, and the degrees of freedom that it is known with."""
    if estimate.own_noise is None:
        return estimate.error**2, estimate.freedom
    return (estimate.error * estimate.own_noise.ratio) ** 2, estimate.own_noise.freedom


def tied_with(best: Estimate, others: Mapping[Members, Estimate], delta: float) -> set[Members]:
    """Return the members of those that are equal to the best up to δ; in 97.5% of cases none is wrong.

    By Holm's steps: the clearest tie must be as clear as if all of them were to be shown. [Scand. J. Stat. 6 (1979)]
    """
    chances = sorted((chance_of_no_tie(best, other, delta), members) for members, other in others.items())
    shown: set[Members] = set()
    for left, (chance, members) in zip(range(len(chances), 0, -1), chances, strict=True):
        if chance > _TIE_CHANCE / left:
            break
        shown.add(members)
    return shown


def _freedom(a: Estimate, b: Estimate) -> float:
    """Return the degrees of freedom of a difference (Welch–Satterthwaite), rounded down so that few differ.

    Links of one label share the noise that these are of, unless one of them has its own.
    """
    if (a.label, a.freedom) == (b.label, b.freedom):
        exact = a.freedom
    else:
        parts = sum(part.error**4 / part.freedom for part in (a, b) if part.freedom)
        exact = (a.error**2 + b.error**2) ** 2 / parts if parts else 0.0
    if exact < 1:
        return 0.5
    digit = 10.0 ** (math.floor(math.log10(exact)) - 1)
    return math.floor(exact / digit) * digit


# Which links and pairs differ and which tie: order, tiers and words (docs/method/statistics.md 3).


class Relation(StrEnum):
    """How a link compares with the best of all.

    FAILED: something on it failed or moved wrong data, whatever its rate; IMPOSSIBLE: nothing did, but one of its rates
    is above a physical limit.
    """

    TIED = "tied"
    DIFFERENT = "different"
    UNDECIDED = "undecided"
    FAILED = "failed"
    IMPOSSIBLE = "impossible"


@dataclass(frozen=True, slots=True)
class RankedLink:
    """One link, pair or device: bandwidth in GB/s with its 95% interval, seconds, tier (1 is best), and relation."""

    members: Members
    label: str
    gbs: float
    interval: tuple[float, float] | None
    seconds: float
    tier: int
    relation: Relation

    @property
    def pair(self) -> tuple[int, int]:
        """The two members. Raises ValueError for a single device."""
        first, second = self.members
        return first, second


@dataclass(frozen=True, slots=True)
class Missing:
    """A set of devices that a ranking lacks, and why."""

    size_bytes: int
    members: Members
    absence: Absence


@dataclass(frozen=True, slots=True, repr=False)
class Ranking:
    """All links, pairs or devices (`kind`) of one work and size, best first.

    Ratios: `spread` is (best − worst) / best; `delta` the largest difference that changes no decision; `noise` how far
    apart equal sets may look; `significant` how far apart sets of typical noise have to be to be different. `equal`:
    each is shown to be within δ of the best. `trials` is the smallest number that any set got. `failed` are the sets
    where something failed, moved wrong data or was faster than the hardware can be, `impossible` those of them with
    only the last, `missing` those without a figure.
    """

    work: Work
    size_bytes: int
    kind: str
    standings: tuple[RankedLink, ...]
    delta: float
    noise: float
    significant: float
    spread: float
    equal: bool
    trials: int
    failed: tuple[Members, ...] = ()
    impossible: tuple[Members, ...] = ()
    missing: tuple[Missing, ...] = ()

    def __repr__(self) -> str:
        """Return one line, for people."""
        what = f"{self.work} at {format_size(self.size_bytes)}"
        best, worst = self.standings[0], self.standings[-1]
        ends = f"{figure(best.gbs)} GB/s on {best.members} to {figure(worst.gbs)} GB/s on {worst.members}"
        kind = amount(len(self.standings), self.kind)
        return f"<Ranking of {kind} by {what}: {amount(self.tiers, 'tier')}, {ends}>"

    @property
    def sets(self) -> int:
        """How many sets of devices there are, with a figure or without."""
        return len(self.standings) + len(self.missing)

    @property
    def lacking(self) -> tuple[Members, ...]:
        """The sets without a figure though there should be one."""
        return tuple(lack.members for lack in self.missing if not lack.absence.by_design)

    @property
    def excused(self) -> int:
        """How many sets have no figure by design, such as copies by kernels without peer access."""
        return len(self.missing) - len(self.lacking)

    @property
    def operation(self) -> Operation:
        """What was timed."""
        return self.work.operation

    @property
    def tiers(self) -> int:
        """How many tiers there are."""
        return self.standings[-1].tier

    @property
    def one_tier(self) -> bool:
        """True if none differs significantly from the best; that may also mean that too little was measured."""
        return self.tiers == 1

    @property
    def all_tied(self) -> bool:
        """True if all sets are shown to be equal up to δ: the choice is free.

        Each is compared with the best at 2.5%: that none differs by more is wrong in 2.5% at most, whatever the
        noise. A ranking that lacks sets, or one with a set that failed, shows nothing of the kind.
        """
        return self.equal and self.one_tier and not self.failed and not self.lacking


def rank_links(run: Run, work: Work, size_bytes: int, ended: Outcome | None = None) -> Ranking | None:
    """Return the ranking of what a work was measured on: directed links, unordered pairs or devices; None if nothing.

    `ended` is the run's outcome if it is known already; the run may then hold this work at this size alone.
    """
    points = points_of(run, work, size_bytes)
    sets = tuple(sets_of(work, range(len(run.devices))))
    estimated = estimates(points, labels_of(run, points))
    return _ranking(run, ended or outcome(run), work, kind_of(work), sets, points, estimated)


def rank_pairs(
    run: Run,
    operation: Operation,
    size_bytes: int,
    among: Collection[int] | None = None,
    as_known: Callable[[Estimate, Measurement], Estimate] = lambda estimate, _measurement: estimate,
) -> Ranking | None:
    """Return the unordered pairs of a run in tiers, None without any. A copy counts by its slower direction.

    A ring needs both directions: a pair with only one measured has no figure. `among` are the positions whose
    pairs there should be, all by default. `as_known` may widen an estimate, for example for another run.
    """
    work = Work(operation)
    points = points_of(run, work, size_bytes)
    estimated = {
        members: as_known(estimate, points[members])
        for members, estimate in estimates(points, labels_of(run, points)).items()
    }
    of_size = (m for m in run.measurements if m.point.size_bytes == size_bytes and m.point.work == work)
    untried = {frozenset(measurement.point.members) for measurement in of_size if measurement.untried}
    slower: dict[Members, Members] = {}
    for members, own in estimated.items():
        pair = (min(members), max(members))
        if frozenset(pair) in untried:
            continue
        other = slower.get(pair)
        if other is None or (own.middle, members) < (estimated[other].middle, other):
            slower[pair] = members
    positions = range(len(run.devices)) if among is None else sorted(among)
    return _ranking(
        run,
        outcome(run),
        work,
        "pair",
        tuple(combinations(positions, 2)),
        {pair: points[members] for pair, members in slower.items()},
        {pair: estimated[members] for pair, members in slower.items()},
    )


def kind_of(work: Work) -> str:
    """Return what one standing of a work is: "device", "pair" or "link"."""
    if work.variant.endpoints is Endpoints.DEVICE or work.variant.at_once:
        return "device"
    return "pair" if work.operation.is_collective or work.variant is Variant.BOTH_WAYS else "link"


def work_order(work: Work) -> tuple[int, int, int, int]:
    """Return the sort key of a work in the model's order: plain works first, then by operation and NUMA node."""
    node = -1 if work.numa_node is None else work.numa_node
    known = list(Registration).index(work.registration)
    return list(Variant).index(work.variant), list(Operation).index(work.operation), known, node


def sets_of(work: Work, positions: Sequence[int]) -> Iterator[Members]:
    """Return the links, pairs or devices among ascending positions that a work may run on."""
    kind = kind_of(work)
    if kind == "device":
        return ((position,) for position in positions)
    return (combinations if kind == "pair" else permutations)(positions, 2)


def _ranking(
    run: Run,
    ended: Outcome,
    work: Work,
    kind: str,
    sets: tuple[Members, ...],
    points: Mapping[Members, Measurement],
    estimated: Mapping[Members, Estimate],
) -> Ranking | None:
    """Return the ranking of the `estimated` sets, from `points` of one size. `sets`, each a `kind`, were expected."""
    if not estimated:
        return None
    size_bytes = next(iter(points.values())).point.size_bytes
    order = sorted(estimated, key=lambda members: (_rank(estimated[members]), members))
    delta = tolerance(size_bytes)
    ordered = [estimated[members] for members in order]
    tiers = tiers_of(ordered, delta)
    # The others are compared with the best one that is as steady as its label: the highest may owe its place to noise,
    # unless it alone is significantly faster than all steady ones.
    steady = (best for best, tier in zip(order, tiers, strict=True) if tier == 1 and estimated[best].own_noise is None)
    top = next(steady, order[0])
    best, others = estimated[top], {members: estimated[members] for members in order if members != top}
    tied = tied_with(best, others, delta) | ({top} if len(best.trials) >= MIN_TRIALS else set())
    # Of those that only a noisier one leaves behind by more than δ, that one may be the best. And a steady one that
    # ties with no other ties with nothing.
    tied = {members for members in tied if ordered[0].middle - estimated[members].middle <= delta}
    if tied == {top} != {order[0]}:
        tied = set()

    def standing(members: Members, tier: int) -> RankedLink:
        summary, estimate = summarize(points[members]), estimated[members]
        if wrong := ended.kinds(members):
            relation = Relation.IMPOSSIBLE if wrong == {TroubleKind.IMPOSSIBLE} else Relation.FAILED
        elif differs(best, estimate, len(order), delta):
            relation = Relation.DIFFERENT
        else:
            relation = Relation.TIED if members in tied else Relation.UNDECIDED
        return RankedLink(members, estimate.label, summary.busbw, summary.interval, summary.seconds, tier, relation)

    there = {unordered(work, members) for members in estimated}
    absent = [some for some in sets if some not in there]
    absences = Absences(run) if absent else None
    return Ranking(
        work=work,
        size_bytes=size_bytes,
        kind=kind,
        standings=tuple(map(standing, order, tiers)),
        delta=delta,
        noise=max((margin(best, other, len(ordered)) for other in others.values()), default=0.0),
        significant=max((_least(best, other, len(ordered), delta) for other in others.values()), default=delta),
        spread=1 - math.exp(ordered[-1].middle - ordered[0].middle),
        equal=all(ties(best, other, delta) for other in others.values()),
        trials=min(len(estimate.trials) for estimate in ordered),
        failed=tuple(some for some in sets if ended.kinds(some)),
        impossible=tuple(some for some in sets if ended.kinds(some) == {TroubleKind.IMPOSSIBLE}),
        missing=tuple(Missing(size_bytes, some, absences.of(work, some, size_bytes)) for some in absent if absences),
    )


def _rank(estimate: Estimate) -> tuple[float, int, float, tuple[float, ...]]:
    """Return the sort key for best first; of equal ones first the most precise, with which the others are compared.

    Positions decide only after it, because renumbering devices should change nothing else.
    """
    return -estimate.middle, -len(estimate.trials), estimate.cautious_error, estimate.trials


def tiers_of(ordered: Sequence[Estimate], delta: float) -> list[int]:
    """Return each link's tier: a new one is opened if a link differs from the *top* of its tier, so steps do not chain.

    The new tier begins below the widest gap between the top and that link. So links of one kind stay together, even
    if only some of them differ from the top significantly.
    """
    starts = [0]
    for index, estimate in enumerate(ordered):
        while differs(ordered[starts[-1]], estimate, len(ordered), delta):
            starts.append(_below_widest_gap(ordered, starts[-1], index))
    return [bisect_right(starts, index) for index in range(len(ordered))]


def _below_widest_gap(ordered: Sequence[Estimate], top: int, last: int) -> int:
    """Return the index below the widest gap between neighbors from `top` to `last`; of equal gaps the last one."""
    gaps = {p: round(ordered[p - 1].middle - ordered[p].middle, 9) for p in range(top + 1, last + 1)}
    return max(gaps, key=lambda p: (gaps[p], p))


def verdict_of(ranking: Ranking, without: str = "") -> str:
    """Return a clause on whether what was ranked differs; `without` names devices left out: " without GPU3"."""
    kind = ranking.kind
    if ranking.sets == 1 and not ranking.failed:
        return f"there is one {kind}, so there is nothing to choose"
    failed = wrong_sets(ranking, f" of {ranking.sets} {kind}s")
    if len(ranking.standings) == 1:
        why = "; ".join(failed) or f"only one of {ranking.sets} {kind}s was measured"
        return f"{why}, so there is nothing to compare"
    if ranking.all_tied:
        what = "bandwidth" if ranking.size_bytes >= TELLING_BYTES else "latency"
        subject = f"{len(ranking.standings)} measured {kind}s of {ranking.sets}" if ranking.excused else f"{kind}s"
        among = " among them" if without else ""
        return f"all {subject}{without} tie within {ranking.spread:.1%}: the choice{among} does not affect {what}"
    if failed:
        doubts = "".join(f"{count}; " for count in failed)
    else:
        doubts = f"{len(ranking.standings)} of {ranking.sets} {kind}s were measured; " if ranking.lacking else ""
    if ranking.one_tier:
        other = "other " if failed else ""
        slower = f": the worst looks {ranking.spread:.1%} slower than the best" if round(ranking.spread, 3) else ""
        return f"{doubts}no {other}{kind}{without} differs significantly{slower}"
    slower = f"is {ranking.spread:.0%} slower than"
    if ranking.size_bytes < TELLING_BYTES:  # the page has times
        slower = f"takes {figure(1 / (1 - ranking.spread))} times as long as"
    return f"{doubts}{ranking.tiers} tiers: the worst {kind}{without} {slower} the best"


def wrong_sets(ranking: Ranking, of: str = "") -> list[str]:
    """Return how many sets failed, "1 failed", and how many only have a rate above a limit."""
    above_limit = len(ranking.impossible)
    counts = ((len(ranking.failed) - above_limit, "failed"), (above_limit, "with a rate above the limit"))
    return [f"{count}{of} {outcome}" for count, outcome in counts if count]
