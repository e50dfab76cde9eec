"""Choose k devices by a run: prediction, tie-breaks, measured finalists (docs/method/choosing.md)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from math import comb
from pathlib import Path
from statistics import median

import numpy as np

from collbench.choose.bands import on_one_plane, predict
from collbench.choose.choice import Candidate, Choice, LeftOut, TieBreak
from collbench.choose.fitness import broken_pairs, left_out, marks
from collbench.choose.problem import (
    Level,
    SelectionProblem,
    decided,
    from_labels,
    in_bus_order,
    members_with,
    numa_level,
    ordered_by,
    paths_by_pair,
    preferred,
    remaining,
    without_clause,
    worst_inside,
)
from collbench.choose.search import FURTHER_ROUNDS, further, search
from collbench.choose.wiring import Rates, Sets, wiring
from collbench.judge.outcome import outcome
from collbench.judge.stats import MIN_TRIALS, Summary, most_measured, simultaneous_quantile, summarize
from collbench.judge.tiers import (
    Estimate,
    Ranking,
    at_least,
    estimates,
    points_of,
    rank_links,
    rank_pairs,
    ties,
    tolerance,
    verdict_of,
)
from collbench.model.errors import NotTrusted, UsageError
from collbench.model.operations import Operation, Work
from collbench.model.run import Measurement, Members, Run, capabilities, ordinary
from collbench.model.units import SMALL_BYTES, TELLING_BYTES, every, fixed, verb

# Which k devices to use: predicted, then tie-broken.


def choose(run: Run, k: int, *, exclude: Collection[int] = (), allow_busy: bool = False) -> Choice:
    """Return the best k devices of the run without those excluded, faulty or, unless `allow_busy`, busy or throttled.

    A set within which something failed is taken only if there is no other; the choice's `failed` says where. Raises
    UsageError for an impossible k, a run without pairs, or if too few devices are left; NotTrusted if there are no
    pairs because measuring failed.
    """
    run = ordinary(run)
    return _best(_Pool(run, left_out(run, exclude, allow_busy=allow_busy)), k, exclude, allow_busy=allow_busy)


def choose_each(run: Run) -> Iterator[Choice]:
    """Yield the choices of 2, 4, 8, … devices, as long as there are enough with measured pairs.

    None where the pairs of an interrupted run say nothing of bandwidth.
    """
    run = ordinary(run)
    k, pool = 2, _Pool(run, left_out(run))
    if pool.ranking is not None and too_small(run, pool.ranking):
        return
    with suppress(UsageError):
        while k <= len(run.devices) - len(pool.out):
            yield _best(pool, k)
            k *= 2


class _Pool:
    """The devices of a run that are not left out, and what their pairs show, which is the same for any number of them.

    `problem` is None without pairs.
    """

    def __init__(self, run: Run, out: tuple[LeftOut, ...]) -> None:
        self.run, self.out = run, out
        gone = {left.member for left in out}
        fit = [position for position in range(len(run.devices)) if position not in gone]
        self.without = without_clause(run.devices, out)
        self.ended, self.ranking = outcome(run), evidence(run, fit)
        self.problem = None if self.ranking is None else from_run(run, fit, self.ranking, self.without)

    def choice(self, k: int) -> Choice:
        """Return the best k, with the failures within them and which of the finalists have none. Raises as `choose`."""
        fit, problem = remaining(self.run.devices, k, self.out), self.problem
        if self.ranking is None and 1 < k < len(fit):
            if self.ended.troubles:
                kinds = ", ".join(dict.fromkeys(trouble.kind for trouble in self.ended.troubles))
                why = f"because measuring failed ({kinds})"
                raise NotTrusted(f"the run has no pair to choose by, {why}", self.ended.status)
            raise UsageError("the run has no pair: measure with 'collbench pairs' first")
        only = k == len(fit) and len(self.run.devices) > 1
        if problem is None and k == 1 and not only:
            # What tells devices apart without pairs: their places, and what failed on them.
            problem = from_labels(self.run.devices, self.run.paths, fit, self.without)
            alone = tuple((place,) for place, position in enumerate(problem.order) if self.ended.within((position,)))
            problem = replace(problem, failed=alone)
        if problem is None or only:
            band = predict(problem.wired) if problem else None
            candidates = (Candidate(tuple(fit), band, default=True),) if band else ()
            of = len(self.run.devices)
            reason = f"{every(k)} devices" if k == of else f"the {k} of {of} devices that {verb(k, 'is', 'are')} left"
            choice = Choice(tuple(fit), reason, band, candidates)
        else:
            choice = decided(problem, k, self.without)
            if self.ranking is not None and self.ranking.trials < MIN_TRIALS:
                few = f"some sets have {self.ranking.trials} of the {MIN_TRIALS} trials needed to estimate noise"
                choice = replace(choice, reason=f"{choice.reason}; uncertain: {few}")
        finalists_left = tuple(replace(some, sound=not self.ended.within(some.members)) for some in choice.finalists)
        failed = self.ended.within(choice.members)
        beaten = tuple(filter(self.ended.impossible, failed))
        return replace(choice, left_out=self.out, failed=failed, impossible=beaten, finalists=finalists_left)


def _best(pool: _Pool, k: int, exclude: Collection[int] = (), *, allow_busy: bool = False) -> Choice:
    """Return the choice from a pool, which has more devices if something failed in every set."""
    choice = pool.choice(k)
    if not choice.failed:
        return choice
    # A slow device is better than one on which work never ends.
    fewer = left_out(pool.run, exclude, allow_busy=allow_busy, allow_throttled=True)
    other = _Pool(pool.run, fewer).choice(k)
    if other.failed:
        return choice
    return replace(other, forgiven=tuple(left for left in pool.out if left.member in other.members))


# What measuring the finalists shows: the fastest, and what it gains over the first k (docs/method/choosing.md 5).


def settle(choice: Choice, verification: Run) -> Choice:
    """Return the choice that all-reduces of the finalists' very members decide, measured in `verification`.

    Its positions are the choice's. The set wins whose interval has the highest lower end, because of several medians
    the highest may be that of the noisiest set; of those that tie with it, the one predicted best. What failed or moved
    wrong data cannot win. Of a set that was measured twice the later measurement counts. A run without any finalist
    leaves the choice as it is.
    """
    points = _points(choice, verification)
    if not points:
        return choice
    from collbench.judge.between_runs import another_run  # late: only what was measured needs it

    summaries = {members: summarize(point) for members, point in points.items()}
    by_set = {
        members: another_run(estimate, points[members])
        for members, estimate in estimates(points, dict.fromkeys(points, "set")).items()
    }
    delta = tolerance(next(iter(points.values())).point.size_bytes)
    measured = [some for some in choice.finalists if some.members in by_set]
    ranked = [some.members for some in measured if some.sound] or [some.members for some in measured]
    top = max((by_set[members] for members in ranked), key=at_least)
    tied = [members for members in ranked if ties(top, by_set[members], delta)]
    winner = choice.members if choice.members in tied else tied[0]
    default = next((some.members for some in choice.finalists if some.default), ())
    gain = _gain(by_set[winner], by_set[default], len(by_set)) if default in by_set and winner != default else None
    # The pages mark simulated rates themselves.
    how = "" if capabilities(verification.backend).simulated else " measured"
    failed = tuple(devices for devices in choice.failed if set(devices) <= set(winner)) or outcome(verification).within(
        winner
    )
    decided_by = (choice.decided_by if winner == choice.members else ()) or (TieBreak.PREDICTED,)
    over = f" (same as the first {len(winner)})" if winner == default else ""
    if gain is not None:
        over = f", {gain[1]:.2f}× ({gain[0]:.2f}–{gain[2]:.2f}) that of the first {len(winner)}"
    return replace(
        choice,
        members=winner,
        reason=f"{fixed(summaries[winner].busbw, 3)} GB/s{how}{over}",
        failed=failed,
        band=next(some.band for some in choice.finalists if some.members == winner),
        finalists=tuple(
            replace(some, measured=_rate(summaries[some.members])) if some.members in ranked else some
            for some in choice.finalists
        ),
        decided_by=decided_by if len(tied) > 1 else (),
        tied=len(tied) == len(choice.finalists) > 1,
        gain=gain,
    )


def _gain(winner: Estimate, default: Estimate, sets: int) -> tuple[float, float, float]:
    """Return the winner's rate over the default's, with its interval.

    The winner is the fastest of several `sets`, so selection raises its figure: the intervals of all gains hold at
    once.
    """
    difference = winner.middle - default.middle
    error = math.hypot(winner.cautious_error, default.cautious_error)
    freedom = min(
        estimate.own_noise.freedom if estimate.own_noise else estimate.freedom for estimate in (winner, default)
    )
    width = error * simultaneous_quantile(freedom, sets - 1)
    return math.exp(difference - width), math.exp(difference), math.exp(difference + width)


def _rate(summary: Summary) -> tuple[float, float, float]:
    low, high = summary.interval or (summary.busbw, summary.busbw)
    return low, summary.busbw, high


def by_finalists(
    choice: Choice, run: Run, measured_sets: Callable[[Iterable[Members]], tuple[Run, Path | None]]
) -> tuple[Choice, list[Path]]:
    """Return the choice, made from `run`, that `measured_sets` of its sound finalists decides, and these files.

    If that leaves other sets a chance, these are measured, too, with the winner and the first k once more, so that all
    that is compared was measured in turn.
    """
    measured, path = measured_sets(some.members for some in choice.finalists if some.sound)
    settled, files = settle(choice, measured), [path]
    for _ in range(FURTHER_ROUNDS):
        more = [some for some in further_finalists(choice, run, measured) if some.sound]
        if not more:
            break
        default = [some.members for some in choice.finalists if some.default and some.sound]
        choice = replace(choice, finalists=(*choice.finalists, *more))
        again = dict.fromkeys([settled.members, *default, *(some.members for some in more)])
        new, path = measured_sets(again)
        measured = replace(measured, measurements=[*measured.measurements, *new.measurements])
        settled, files = settle(choice, measured), [*files, path]
    return settled, [file for file in files if file]


def further_finalists(choice: Choice, run: Run, verification: Run) -> tuple[Candidate, ...]:
    """Return further sets to measure beside the winner: what was measured of the finalists leaves them a chance.

    `choice` was made from `run`. None are left if no other set's bound is above the winner, or if `run` has no pairs.
    """
    gone = {left.member for left in choice.left_out}
    fit = [position for position in range(len(run.devices)) if position not in gone]
    ranking, points = evidence(run, fit), _points(choice, verification)
    if ranking is None or not points:
        return ()
    problem, k = from_run(run, fit, ranking), len(choice.members)
    candidates = search(problem.wired, k, problem.delta)
    candidates = candidates.only(preferred(candidates.sets, problem.failed))
    measured = {
        tuple(sorted(problem.order.index(gpu) for gpu in members)): summarize(point).busbw
        for members, point in points.items()
    }
    # A pair's band is its own measurement. Messages of another size have another share of it, the same for all pairs.
    size_bytes = next(iter(points.values())).point.size_bytes
    there = rank_pairs(run, ranking.operation, size_bytes, fit) if k > 2 else None
    share = (
        median(standing.gbs for standing in there.standings) / median(standing.gbs for standing in ranking.standings)
        if there
        else 0.0
    )
    ended = outcome(run)
    return tuple(
        replace(some, members=members, sound=not ended.within(members))
        for some in further(problem.wired, candidates, measured, problem.delta, share)
        for members in [tuple(sorted(problem.order[index] for index in some.members))]
    )


def _points(choice: Choice, run: Run) -> dict[Members, Measurement]:
    """Return the sound all-reduces of the finalists, at the size that most of them have, then the largest."""
    wanted = {some.members for some in choice.finalists}
    measurements = [
        m
        for m in run.measured()
        if m.point.operation is Operation.ALLREDUCE
        and tuple(sorted(m.point.members)) in wanted
        and not m.wrong
        and not m.failure
    ]
    size = most_measured(Counter(m.point.size_bytes for m in measurements))
    return {tuple(sorted(m.point.members)): m for m in measurements if m.point.size_bytes == size}


# The problem that a run's pairs pose: the fit devices, how they are wired, and what else distinguishes them.

_COPIES = (
    Operation.CE_WRITE,
    Operation.SM_WRITE,
    Operation.CPU_WRITE,
    Operation.CE_READ,
    Operation.SM_READ,
    Operation.CPU_READ,
)
# What training runs comes first; the copies stand in for it where no collective was measured.
_EVIDENCE = (Operation.ALLREDUCE, *_COPIES, Operation.BROADCAST)
# Two directions of a link differ from here on [docs/method/verdicts.md 5, ASYMMETRY].
_ASYMMETRIC = 1.10
# Sets are distinguished by what several noisy pairs show together, up to this much.
_MAX_NOISE = 0.05


def evidence(run: Run, among: Collection[int] | None = None) -> Ranking | None:
    """Return the ranking that decides: the first operation with pairs, at its largest size. None without any.

    An interrupted run may hold few pairs at the largest size; then the largest that has half as many as any decides.
    `among` restricts it to pairs of these positions. Pairs differ or tie only if they do in another run, too, because
    the job has communicators of its own. What a run does to all pairs alike cancels. A run of small all-reduces has the
    first pair of several, and no size that shows bandwidth.
    """
    if run.settings.layers:
        return None
    from collbench.judge.between_runs import another_run  # late: only what was measured needs it

    run = ordinary(run)
    for operation in _EVIDENCE:
        pairs = _sizes(run, operation, among)
        if pairs:
            enough = max(pairs.values()) / 2
            size = max(size for size, count in pairs.items() if count >= enough)
            return rank_pairs(_only(run, among), operation, size, among, another_run)
    return None


def too_small(run: Run, ranking: Ranking) -> bool:
    """Return whether an interrupted run ended before any size that shows bandwidth, though it asks for some."""
    return not run.complete and ranking.size_bytes < TELLING_BYTES <= max(run.settings.sizes, default=0)


def from_run(run: Run, fit: Collection[int], ranking: Ranking, without: str = "") -> SelectionProblem:
    """Return the problem of choosing among a run's fit devices, by the ranking of their pairs.

    How the machine is wired is what all of its devices show, also those that may not be chosen, which `without` names.
    """
    every = in_bus_order(run.devices, range(len(run.devices)))
    order = tuple(position for position in every if position in set(fit))
    index = {position: at for at, position in enumerate(every)}
    rates = _rates(run, ranking, index)
    broken = np.zeros(rates.shape, dtype=bool)
    for pair in broken_pairs(run):
        a, b = (index[member] for member in pair)
        broken[a, b] = broken[b, a] = True
    devices = [run.devices[position] for position in every]
    checks = [check for check in run.interference_checks if check.operation is ranking.operation]
    wired = wiring(devices, paths_by_pair(run.paths, index), rates, checks, broken).of([index[gpu] for gpu in order])
    alike = len({path.label for path in run.paths if set(path.devices) <= set(fit)}) <= 1
    # An interrupted run may lack some pairs, or all but a few at its largest size: not known to tie.
    whole = len(ranking.standings) == comb(len(order), 2) and not wired.missing.any()
    largest = ranking.size_bytes == max(_sizes(run, ranking.operation, fit))
    equal = ranking.all_tied and whole and largest
    return SelectionProblem(
        order=order,
        order_of=ordered_by(devices),
        wired=wired,
        levels=_levels(run, order, ranking),
        delta=max(ranking.delta, min(ranking.noise, _MAX_NOISE)),
        grounds=verdict_of(ranking, without),
        worst=min(standing.gbs for standing in ranking.standings),
        tied=equal and (alike or on_one_plane(wired)) and not wired.broken.any(),
        undecided=ranking.one_tier and not ranking.all_tied and whole and len(ranking.standings) > 1,
        failed=tuple(tuple(map(order.index, some)) for some in outcome(run).within(order) if some),
    )


def _rates(run: Run, ranking: Ranking, index: Mapping[int, int]) -> Rates:
    """Return each pair's rate at the ranking's size, GB/s; 0 if the pair, or one direction of a copy, has no sample."""
    rates = np.zeros((len(index), len(index)))
    one_way = ranking.operation.is_copy
    measured = {
        members: summarize(point).busbw
        for members, point in points_of(run, Work(ranking.operation), ranking.size_bytes).items()
    }
    for (source, target), gbs in measured.items():
        if not one_way or (target, source) in measured:
            a, b = index[source], index[target]
            rates[a, b] = rates[b, a] = min(gbs, measured.get((target, source), gbs))
    for (source, target), more in _faster_ways(run, ranking).items():
        rates[index[source], index[target]] *= more
    return rates


def _sizes(run: Run, operation: Operation, among: Collection[int] | None) -> Counter[int]:
    """Return how many pairs each size of an operation has."""
    points = (m.point for m in run.measured() if m.point.operation is operation and len(m.point.members) == 2)
    return Counter(point.size_bytes for point in points if among is None or set(point.members) <= set(among))


def _only(run: Run, among: Collection[int] | None) -> Run:
    """Return the run with the data points of these positions alone."""
    if among is None or len(among) == len(run.devices):
        return run
    return replace(run, measurements=[m for m in run.measurements if set(m.point.members) <= set(among)])


def _faster_ways(run: Run, ranking: Ranking) -> dict[tuple[int, int], float]:
    """Return links that are faster than the opposite ones, with the ratio: a ranking has a pair's slower direction."""
    for operation in (ranking.operation,) if ranking.operation.is_copy else _COPIES:
        sizes = _sizes(run, operation, None)
        links = rank_links(run, Work(operation), max(sizes)) if sizes else None
        if links:
            rates = {standing.pair: standing.gbs for standing in links.standings}
            more = {link: rate / rates.get(link[::-1], rate) for link, rate in rates.items()}
            return {(a, b): ratio for (a, b), ratio in more.items() if ratio > _ASYMMETRIC}
    return {}


def _levels(run: Run, order: tuple[int, ...], ranking: Ranking) -> tuple[Level, ...]:
    """Return the tie-breaks of method/choosing.md 4, except the remainder and the PCI bus id, which need no run."""
    busy, suspect = marks(run, order)
    of_failed = {position for pair in broken_pairs(run) for position in pair}
    return (
        Level(TieBreak.IN_USE, members_with(np.array(busy))),
        Level(TieBreak.SUSPECT, members_with(np.array(suspect))),
        Level(TieBreak.FAILED_PAIRS, members_with(np.isin(order, [*of_failed]))),
        Level(TieBreak.LATENCY, _latencies(run, order, ranking)),
        numa_level([run.devices[position] for position in order]),
    )


def _latencies(run: Run, order: tuple[int, ...], ranking: Ranking) -> Callable[[Sets], Rates]:
    """Return the function that finds each set's worst tier of latency; all are 1 unless every pair has a small size."""
    tiers = np.ones((len(order), len(order)))
    sizes = _sizes(run, ranking.operation, order)
    size = min(sizes)
    if size <= SMALL_BYTES and size < ranking.size_bytes and sizes[size] >= sizes[ranking.size_bytes]:
        ranking_here = rank_pairs(_only(run, order), ranking.operation, size, order)
        for standing in ranking_here.standings if ranking_here else ():
            a, b = (order.index(member) for member in standing.pair)
            tiers[a, b] = tiers[b, a] = standing.tier
    return worst_inside(tiers)
