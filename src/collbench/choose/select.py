"""Choose k devices: by prediction, then tie-breaks, then measurements of the finalists (docs/method/choosing.md)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from statistics import median
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from collbench.choose.bands import predict
from collbench.choose.choice import EXCLUDED, Candidate, Choice, LeftOut, Members, TieBreak, Unfit
from collbench.choose.problem import (
    Level,
    SelectionProblem,
    decide,
    evidence,
    from_labels,
    from_run,
    left_out,
    what_remains,
)
from collbench.choose.rings import MOST_MEMBERS, Sets, all_sets
from collbench.choose.search import best, finalists, further, search, with_default
from collbench.judge.outcome import outcome
from collbench.judge.registration import ordinary
from collbench.judge.stats import FEWEST_TRIALS, Summary, most_measured, simultaneous_quantile, summarize
from collbench.judge.tiers import estimates, rank_pairs, ties, tolerance
from collbench.machine.labels import labels_within
from collbench.model.capabilities import capabilities
from collbench.model.errors import NotTrusted, UsageError
from collbench.model.operations import Operation
from collbench.model.run import Device, Measurement, Path, Run, device_sets, tags
from collbench.model.units import abridged, amount, every, fixed, verb

__all__ = ["choose", "choose_by_labels", "choose_each", "evidence", "further_finalists", "settle"]

# Which k devices to use, from a run or from labels alone: predicted, then tie-broken.


def choose(run: Run, k: int, *, exclude: Collection[int] = (), allow_busy: bool = False) -> Choice:
    """Return the best k devices of the run without those excluded, faulty or, unless `allow_busy`, busy or throttled.

    A set within which something failed is taken only if there is no other; the choice's `failed` says where. Raises
    UsageError for an impossible k, a run without pairs, or if too few devices are left; NotTrusted if there are no
    pairs because measuring failed.
    """
    run = ordinary(run)
    out = left_out(run, exclude, allow_busy=allow_busy)
    choice = _chosen(run, k, out)
    if not choice.failed:
        return choice
    # A slow device is better than one on which work never ends.
    fewer = left_out(run, exclude, allow_busy=allow_busy, allow_throttled=True)
    other = _chosen(run, k, fewer)
    if other.failed:
        return choice
    return replace(other, forgiven=tuple(one for one in out if one.member in other.members))


def _chosen(run: Run, k: int, out: tuple[LeftOut, ...]) -> Choice:
    """Return the choice without some devices, with the failures within it and which of its finalists have none."""
    fit, ended = _fit(run.devices, k, out), outcome(run)
    ranking = evidence(run, fit)
    if ranking is None and 1 < k < len(fit):
        if ended.troubles:
            kinds = ", ".join(dict.fromkeys(trouble.kind for trouble in ended.troubles))
            raise NotTrusted(
                f"the run has no pair to choose by, because measuring failed ({kinds}): 'collbench show' says where",
                ended.status,
            )
        raise UsageError("the run has no pair: measure with 'collbench pairs' first")
    without = _without(run.devices, out)
    problem = None if ranking is None else from_run(run, fit, ranking, without)
    only = k == len(fit) and len(run.devices) > 1
    if (
        problem is None and k == 1 and not only
    ):  # what tells devices apart without pairs: their places, and what failed on them
        problem = from_labels(run.devices, run.paths, fit, without)
        alone = tuple((place,) for place, position in enumerate(problem.order) if ended.within((position,)))
        problem = replace(problem, failed=alone)
    if problem is None or only:
        band = predict(problem.wired) if problem else None
        candidates = (Candidate(tuple(fit), band, default=True),) if band else ()
        of = len(run.devices)
        reason = f"{every(k)} devices" if k == of else f"the {k} of {of} devices that {verb(k, 'is', 'are')} left"
        choice = Choice(tuple(fit), reason, band, candidates)
    else:
        choice = _decided(problem, k, without)
        if ranking is not None and ranking.trials < FEWEST_TRIALS:
            few = f"some sets have {ranking.trials} of the {FEWEST_TRIALS} trials needed to estimate noise"
            choice = replace(choice, reason=f"{choice.reason}; uncertain: {few}")
    finalists_left = tuple(replace(some, sound=not ended.within(some.members)) for some in choice.finalists)
    failed = ended.within(choice.members)
    beaten = tuple(filter(ended.impossible, failed))
    return replace(choice, left_out=out, failed=failed, impossible=beaten, finalists=finalists_left)


def choose_each(run: Run) -> Iterator[Choice]:
    """Yield the choices of 2, 4, 8, … devices, as long as there are enough with measured pairs."""
    k, left = 2, len(run.devices) - len(left_out(run))
    with suppress(UsageError):
        while k <= left:
            yield choose(run, k)
            k *= 2


def choose_by_labels(
    devices: Sequence[Device], paths: Sequence[Path], k: int, *, exclude: Collection[int] = ()
) -> Choice:
    """Return the k devices that are best by labels alone. Raises UsageError for an impossible k.

    A set with a pair to which nvidia-smi denies P2P is taken only if there is no other, and the reason then says so.
    """
    out = tuple(LeftOut(position, (EXCLUDED,)) for position in sorted(exclude))
    fit, without = _fit(devices, k, out), _without(devices, out)
    problem, denied = from_labels(devices, paths, fit, without), denied_peers(paths, fit)
    places = tuple(tuple(map(problem.order.index, pair)) for pair in denied)
    some_have_peers = len(denied) < math.comb(len(fit), 2)
    problem = replace(problem, failed=places, tied=problem.tied and not (denied and some_have_peers))
    choice = _decided(problem, k, without)
    if choice.heuristic and denied_peers(paths, choice.members):
        apart = np.zeros((len(fit), len(fit)), dtype=bool)  # the search then grows sets without such pairs
        for a, b in places:
            apart[a, b] = apart[b, a] = True
        grown = _decided(replace(problem, wired=replace(problem.wired, broken=apart), tied=False), k, without)
        choice = choice if denied_peers(paths, grown.members) else grown
    reason = choice.reason
    if not choice.tied and choice.band is not None:  # labels have an order, not rates
        between = labels_within(paths, choice.members)
        first = next(some for some in choice.finalists if some.default)
        if k == 2:
            whose = f"the worst pair{without}" if without else "the machine's worst pair"
            reason = f"{between[0]}; {whose} has {labels_within(paths, fit)[-1]}"
        else:
            same = first.members == choice.members
            basis = "a pair without P2P" if denied_peers(paths, first.members) else first.band.basis
            other = f"same as the first {k}" if same else f"the first {k}: {basis}"
            reason = f"{', '.join(between)} over {choice.band.basis} ({other})"
        reason += _HEURISTIC if choice.heuristic else ""
    if not some_have_peers and k > 1:
        reason += "; no pair has P2P"
    elif inside := denied_peers(paths, choice.members):
        names = abridged([device_sets([pair], devices) for pair in inside], _FEW_PAIRS)
        tried = " that was tried" if choice.heuristic else ""
        reason += f"; every set{tried} includes a pair without P2P, this one {names}"
    elif denied and k > 1:
        reason += f"; without {amount(len(denied), 'pair')} that {verb(len(denied), 'has', 'have')} no P2P"
    return replace(choice, reason=f"by labels, nothing was measured: {reason}", left_out=out, estimated=True)


def denied_peers(paths: Sequence[Path], members: Collection[int]) -> list[Members]:
    """Return the pairs among these positions to which `nvidia-smi topo -p2p` denies peer access, one way or both."""
    among = set(members)
    denied = (path.devices for path in paths if any(state.allows is False for state in path.tool_peer_access))
    return [pair for pair in denied if set(pair) <= among]


def _fit(devices: Sequence[Device], k: int, out: tuple[LeftOut, ...]) -> list[int]:
    """Return the positions that may be chosen. Raises UsageError if they are too few."""
    n = len(devices)
    if not 1 <= k <= n:
        raise UsageError(f"cannot choose {k} of {n} devices: choose 1 to {n}")
    gone = {left.member: left for left in out}
    unknown = sorted(set(gone) - set(range(n)))
    if unknown:
        raise UsageError(f"cannot leave out device {unknown[0]}: there are {n}, counted from 0")
    fit = [position for position in range(n) if position not in gone]
    if len(fit) < k:
        named = "; ".join(f"{devices[left.member].tag} ({left.reason})" for left in out)
        busy = any(not {why.sort for why in left.why} & {Unfit.EXCLUDED, Unfit.FAULTY} for left in out)
        left = f"{len(fit)} {verb(len(fit), 'is', 'are')} left without {named}"
        advice = "choose fewer, or add --allow-busy" if busy else "choose fewer"
        raise UsageError(f"cannot choose {k} of {n} devices: {left}; {advice}")
    return fit


_FEW_LEFT_OUT, _FEW_PAIRS = 3, 4  # devices and pairs that a reason names
_HEURISTIC = ", found by a heuristic search"


def _without(devices: Sequence[Device], out: Sequence[LeftOut]) -> str:
    """Return " without GPU3", "" if no device was left out."""
    few = tags([one.member for one in out], devices) if len(out) <= _FEW_LEFT_OUT else f"the {len(out)} left out"
    return f" without {few}" if out else ""


def _decided(problem: SelectionProblem, k: int, without: str) -> Choice:
    """Return the choice among the devices of a problem: by bandwidth where it matters, then by the tie-breaks."""
    tied = k == 1 or problem.tied
    if tied:
        sets, heuristic = _tied_sets(problem, k)
        sets = sets[_preferred(sets, problem.failed)]
        index, used = decide(sets, problem.levels, problem.order_of)
        members = tuple(sets[index].tolist())
        shortlist = with_default(problem.wired, [members]) if k > 1 else ()
        reason = "one device: there is no pair to compare" if k == 1 else problem.grounds
    else:
        candidates = search(problem.wired, k, problem.delta)
        candidates = candidates.only(_preferred(candidates.sets, problem.failed))
        heuristic = candidates.heuristic
        equal = best(candidates, problem.delta)
        levels = problem.levels
        if not heuristic and 2 * k <= len(problem.order):
            costs = what_remains(candidates.sets, candidates.quick, problem.delta)
            levels = (*levels, Level(TieBreak.REMAINDER, costs))
        index, used = decide(candidates.sets[equal], levels, problem.order_of)
        shortlist = finalists(problem.wired, candidates, int(equal[index]), problem.delta)
        members, reason = shortlist[0].members, _why(problem, shortlist, without)
        reason += _HEURISTIC if heuristic else ""

    def positions(some: Members) -> Members:
        return tuple(sorted(problem.order[index] for index in some))

    return Choice(
        members=positions(members),
        reason=reason,
        band=shortlist[0].band if shortlist else None,
        finalists=tuple(replace(some, members=positions(some.members)) for some in shortlist),
        decided_by=used,
        tied=tied,
        heuristic=heuristic,
    )


def _preferred(sets: Sets, failed: Sequence[Members]) -> NDArray[np.bool_]:
    """Return which sets to choose from, one flag each: those without a failure inside, all where there are none."""
    sound = np.ones(len(sets), dtype=bool)
    for some in failed:
        sound &= np.isin(sets, some).sum(axis=1) < len(some)
    return sound if sound.any() else ~sound


def _tied_sets(problem: SelectionProblem, k: int) -> tuple[Sets, bool]:
    """Return the sets for tie-breaks, and whether these are only some: above 16 devices, k in a row."""
    n = len(problem.order)
    if n <= MOST_MEMBERS or k == 1:
        return all_sets(n, k), False
    return np.sort((np.arange(n)[:, None] + np.arange(k)) % n, axis=1), True


def _why(problem: SelectionProblem, shortlist: tuple[Candidate, ...], without: str) -> str:
    """Return the reason, with the rate that the chosen set should reach unless no difference is significant."""
    chosen, default, k = shortlist[0], next(some for some in shortlist if some.default), len(shortlist[0].members)
    if problem.undecided:
        return problem.grounds
    if chosen.band.hi <= 0:
        return f"no set of {k} is without a fault"
    if k == 2 and not chosen.band.unmeasured:
        pair = f"worst {'measured ' if problem.wired.missing.any() else ''}pair"
        whose = f"the {pair}{without}" if without else f"the machine's {pair}"
        best, worst = fixed(chosen.band.lo, 3), fixed(problem.worst, 3)
        return f"{best} GB/s; {whose} reaches {f'{worst} GB/s' if worst != best else 'as much'}"
    other = f"same as the first {k}" if chosen is default else f"the first {k}: {default.band}"
    return f"predicted {chosen.band} over {chosen.band.basis} ({other})"


# What measuring the finalists shows: the fastest, and what it gains over the first k (docs/method/choosing.md 5).


def settle(choice: Choice, verification: Run) -> Choice:
    """Return the choice that all-reduces of the finalists' very members decide, measured in `verification`.

    Its positions are the choice's. The fastest median wins; of those that tie with it, the one predicted best. What
    failed or moved wrong data cannot win. Of a set that was measured twice the later measurement counts. A run without
    any finalist leaves the choice as it is.
    """
    points = _points(choice, verification)
    if not points:
        return choice
    from collbench.judge.between_runs import another_run  # late: only what was measured needs it

    summaries = {members: summarize(point) for members, point in points.items()}
    by_set = {
        members: another_run(one, points[members])
        for members, one in estimates(points, dict.fromkeys(points, "set")).items()
    }
    delta = tolerance(next(iter(points.values())).point.size_bytes)
    measured = [some for some in choice.finalists if some.members in by_set]
    ranked = [some.members for some in measured if some.sound] or [some.members for some in measured]
    top = max((by_set[members] for members in ranked), key=lambda estimate: estimate.middle)
    tied = [members for members in ranked if ties(top, by_set[members], delta)]
    winner = choice.members if choice.members in tied else tied[0]
    default = next((some.members for some in choice.finalists if some.default), ())
    gain = None
    if default in by_set and winner != default:
        # The winner is the fastest of several, so its figure is high by selection: all of their gains hold at once.
        difference = by_set[winner].middle - by_set[default].middle
        error = math.hypot(by_set[winner].cautious_error, by_set[default].cautious_error)
        freedom = min(
            one.own_noise.freedom if one.own_noise else one.freedom for one in (by_set[winner], by_set[default])
        )
        width = error * simultaneous_quantile(freedom, len(by_set) - 1)
        gain = math.exp(difference - width), math.exp(difference), math.exp(difference + width)
    simulated = capabilities(verification.backend).simulated
    failed = tuple(devices for devices in choice.failed if set(devices) <= set(winner)) or outcome(verification).within(
        winner
    )
    decided_by = choice.decided_by if winner == choice.members else (TieBreak.PREDICTED,)
    over = f" (same as the first {len(winner)})" if winner == default else ""
    if gain is not None:
        over = f", {gain[1]:.2f}× ({gain[0]:.2f}–{gain[2]:.2f}) that of the first {len(winner)}"
    return replace(
        choice,
        members=winner,
        reason=f"{fixed(summaries[winner].busbw, 3)} GB/s {'simulated' if simulated else 'measured'}{over}",
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


def _rate(summary: Summary) -> tuple[float, float, float]:
    low, high = summary.interval or (summary.busbw, summary.busbw)
    return low, summary.busbw, high


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
    candidates = candidates.only(_preferred(candidates.sets, problem.failed))
    measured = {
        tuple(sorted(problem.order.index(one) for one in members)): summarize(point).busbw
        for members, point in points.items()
    }
    # A pair's band is its own measurement. Messages of another size have another share of it, the same for all pairs.
    size_bytes = next(iter(points.values())).point.size_bytes
    there = rank_pairs(run, ranking.operation, size_bytes, fit) if k > 2 else None
    share = median(one.gbs for one in there.standings) / median(one.gbs for one in ranking.standings) if there else 0.0
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


# A choice by the devices' own names, with all that explains it: what `collbench select` prints and Python gets.

LABELS = "labels"  # what stands for a backend where nothing was measured and label text was read


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the evidence came from: a backend (LABELS for label text), a host, and words that name the source.

    `fabric` names the simulated machine of a sim run, "" otherwise. `verification` are the files of the runs that
    measured the finalists at `size_bytes`, with commas; "" and None if none did. `operation` at `measured_bytes` is
    what the run's pairs are ranked by, and so what is predicted; None for all-reduces of labels' rates.
    """

    backend: str
    source: str
    machine: str = ""
    fabric: str = ""
    verification: str = ""
    size_bytes: int | None = None
    operation: Operation | None = None
    measured_bytes: int | None = None

    @classmethod
    def of(cls, run: Run, backend: str, source: str) -> Origin:
        """Return it for a run that decides by its pairs."""
        ranking = evidence(run)
        by = (ranking.work.operation, ranking.size_bytes) if ranking else (None, None)
        return cls(backend, source, run.machine.hostname, run.machine.fabric, operation=by[0], measured_bytes=by[1])

    @property
    def simulated(self) -> bool:
        """True if the figures are a simulation's."""
        return self.backend != LABELS and capabilities(self.backend).simulated

    @property
    def acts(self) -> bool:
        """True if CUDA_VISIBLE_DEVICES can choose the devices."""
        return self.backend == LABELS or capabilities(self.backend).nvml


@dataclass(frozen=True, slots=True)
class Finalist:
    """One of the best sets by its devices' tags; `first` are the first ones by PCI bus id that were not left out.

    `predicted` is (low, high), `measured` (low, median, high) of its 95% interval: all-reduce busbw in GB/s. Labels
    alone predict none.
    """

    devices: tuple[str, ...]
    predicted: tuple[float, float] | None
    measured: tuple[float, float, float] | None = None
    first: bool = False


@dataclass(frozen=True, slots=True)
class Published:
    """What healthy machines of this kind reach with as many devices and such labels: all-reduce busbw in GB/s.

    `gbs` are the lowest and the highest published figure; the highest is None where an acceptance test asks for the
    lowest. `nvls` is "on" or "off" where NVLink SHARP matters.
    """

    gbs: tuple[float, float | None]
    size_bytes: int
    machine: str
    nvls: str | None
    sources: tuple[str, ...]


class Decision(Protocol):
    """What decided between the finalists in place of all-reduces: a dataclass, whose fields the JSON has."""

    def lines(self, sim: str, *, tied: bool) -> Iterator[str]:
        """Yield the page's lines on it; `sim` marks simulated figures, `tied` is the selection's."""


@dataclass(frozen=True, slots=True)
class Omitted:
    """A device that was not considered, by tag and reason."""

    device: str
    reason: str


@dataclass(frozen=True, slots=True, repr=False)
class Selection:
    """The chosen devices and why; rates are all-reduce busbw in GB/s, predicted as (low, high).

    `environment` is what makes CUDA see them alone. `decided_by` names the tie-breaks, "" if bandwidth decided;
    `tied`: the choice does not affect bandwidth; `heuristic`: not all sets were looked at; `estimated`: from labels
    alone, nothing was measured. `gain` is chosen over first ones, as measured: (low, median, high), 1.0 for none.
    `failed` are sets of devices within it on which something failed or moved wrong data. `contradiction` is the worst
    that `check` finds in the evidence, on any device, "" for none. `job` is what the finalists' replays of a recorded
    job showed; None for none. `published` are reference figures, where labels decided and the GPUs have a name.
    """

    devices: tuple[Device, ...]
    environment: dict[str, str]
    reason: str
    origin: Origin
    predicted: tuple[float, float] | None = None
    predicted_how: str = ""
    finalists: tuple[Finalist, ...] = ()
    gain: tuple[float, float, float] | None = None
    decided_by: str = ""
    tied: bool = False
    heuristic: bool = False
    estimated: bool = False
    left_out: tuple[Omitted, ...] = ()
    failed: tuple[str, ...] = ()
    contradiction: str = ""
    job: Decision | None = None
    published: tuple[Published, ...] = ()

    def __repr__(self) -> str:
        return f"<Selection of {self}>"

    def __str__(self) -> str:
        """Return one line: which devices and why."""
        return f"{', '.join(device.tag for device in self.devices)}: {self.reason} ({self.origin.source})"
