"""Which k devices to use: predicted, tie-broken, settled by measuring the finalists (docs/method.md 11)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from collbench.analysis import problem
from collbench.analysis.bands import predict
from collbench.analysis.choice import FAULTY, Band, Candidate, Choice, LeftOut, Members, Unfit, Verified, Why
from collbench.analysis.outcome import named, outcome
from collbench.analysis.problem import (
    Level,
    Rates,
    SelectionProblem,
    decide,
    evidence,
    from_labels,
    from_rates,
    from_run,
    what_remains,
)
from collbench.analysis.rings import MOST_MEMBERS, Sets, all_sets
from collbench.analysis.search import best, finalists, search
from collbench.analysis.stats import summarize
from collbench.analysis.tiers import estimates, margin, ties, tolerance
from collbench.model.capabilities import capabilities
from collbench.model.errors import UsageError
from collbench.model.operations import Operation
from collbench.model.run import Device, Measurement, Path, Run
from collbench.model.units import fixed

# What measuring the finalists shows: the fastest, and what it gains over the first k (docs/method.md 11.5).


def settle(choice: Choice, verification: Run) -> Choice:
    """Return the choice that all-reduces of the finalists' very members decide, measured in `verification`.

    Its positions are the choice's. The fastest median wins; of those that tie with it, the one predicted best. What
    failed or moved wrong data cannot win. A run without any finalist leaves the choice as it is.
    """
    points = _points(choice, verification)
    if not points:
        return choice
    found = estimates(points, dict.fromkeys(points, "set"))
    delta = tolerance(next(iter(points.values())).point.size_bytes)
    top = max(found.values(), key=lambda estimate: estimate.middle)
    ranked = [some.members for some in choice.finalists if some.members in found]
    tied = [members for members in ranked if ties(top, found[members], delta)]
    winner = choice.members if choice.members in tied else tied[0]
    default = next((some.members for some in choice.finalists if some.default), ())
    gain, over = None, f" on the first {len(winner)}" if winner == default else ""
    if default in found and winner != default:
        # The ratio of two medians, its 95 % interval from the noise pooled over all finalists' trials.
        difference = found[winner].middle - found[default].middle
        width = margin(found[winner], found[default], 2)
        gain = math.exp(difference - width), math.exp(difference), math.exp(difference + width)
        over = f", {gain[1]:.2f}× ({gain[0]:.2f}–{gain[2]:.2f}) the first {len(winner)}"
    summaries = {members: summarize(points[members]) for members in ranked}
    how = "in sim" if capabilities(verification.backend).simulated else "measured"
    reason = f"{fixed(summaries[winner].busbw, 3)} GB/s {how}{over}"
    failed = tuple(place for place in choice.failed if set(place) <= set(winner)) or outcome(verification).within(
        winner
    )
    decided_by = choice.decided_by if winner == choice.members else "the predicted order"
    return replace(
        choice,
        members=winner,
        reason=reason + including(verification, failed),
        failed=failed,
        band=next(some.band for some in choice.finalists if some.members == winner),
        decided_by=decided_by if len(tied) > 1 else "",
        tied=len(tied) == len(choice.finalists) > 1,
        verified=tuple(Verified(members, one.busbw, one.interval) for members, one in summaries.items()),
        gain=gain,
    )


def including(run: Run, failed: Sequence[Members]) -> str:
    """Return the words without which no set with a failed place is reported."""
    return f"; includes failed {named(run, failed)}" if failed else ""


def _points(choice: Choice, run: Run) -> dict[Members, Measurement]:
    """Return the sound all-reduces of the finalists, at the size that most of them have, then the largest."""
    wanted = {some.members for some in choice.finalists}
    found = [
        m
        for m in run.measured()
        if m.point.operation is Operation.ALLREDUCE
        and tuple(sorted(m.point.members)) in wanted
        and not m.wrong
        and not m.failure
    ]
    sizes = Counter(m.point.size_bytes for m in found)
    size = max(sizes, key=lambda size: (sizes[size], size), default=None)
    return {tuple(sorted(m.point.members)): m for m in found if m.point.size_bytes == size}


# Which k devices to use, from a run or from labels alone: predicted, then tie-broken.

__all__ = [
    "Band",
    "Candidate",
    "Choice",
    "LeftOut",
    "Verified",
    "choose",
    "choose_by_labels",
    "choose_by_rates",
    "choose_each",
    "evidence",
    "settle",
]


def choose(run: Run, k: int, *, exclude: Collection[int] = (), allow_busy: bool = False) -> Choice:
    """Return the best k devices of the run without those excluded, faulty or, unless `allow_busy`, busy or throttled.

    A set with a place where something failed is taken only where there is no other, and its reason says so. Raises
    UsageError for a k that cannot be, a run without pairs, or too few devices that are left.
    """
    choice = _chosen(run, k, exclude, allow_busy=allow_busy)
    failed = outcome(run).within(choice.members)
    return replace(choice, failed=failed, reason=choice.reason + including(run, failed))


def _chosen(run: Run, k: int, exclude: Collection[int], *, allow_busy: bool) -> Choice:
    out = problem.left_out(run, exclude, allow_busy=allow_busy)
    fit = _fit(run.devices, k, out)
    ranking = evidence(run, fit)
    if ranking is None and k < len(fit):
        raise UsageError("the run holds no pair: measure with 'collbench pairs' first")
    if ranking is None or k == len(fit):
        return _all(run, fit, out, None if ranking is None else from_run(run, fit, ranking))
    return replace(_decided(from_run(run, fit, ranking), k), left_out=out)


def choose_each(run: Run) -> Iterator[Choice]:
    """Yield the choices of 2, 4, 8, … devices, as far as those that are left share pairs."""
    k, left = 2, len(run.devices) - len(problem.left_out(run))
    with suppress(UsageError):
        while k <= left:
            yield choose(run, k)
            k *= 2


def choose_by_labels(
    devices: Sequence[Device], paths: Sequence[Path], k: int, *, exclude: Collection[int] = ()
) -> Choice:
    """Return the k devices that labels alone promise most of. Raises UsageError for a k that cannot be."""
    out = tuple(LeftOut(position, (Why(Unfit.EXCLUDED),)) for position in sorted(exclude))
    fit = _fit(devices, k, out)
    choice = _decided(from_labels(devices, paths, fit), k)
    reason = f"estimated from labels, not measured: {choice.reason}"
    return replace(choice, left_out=out, reason=reason, estimated=True)


def choose_by_rates(devices: Sequence[Device], rates: Rates, k: int, paths: Sequence[Path] = ()) -> Choice:
    """Return the best k devices by a matrix of rates, GB/s, row source and column destination; 0 is not measured.

    For machines too large for a run of all pairs. Raises UsageError for a k that cannot be.
    """
    _fit(devices, k, ())
    return _decided(from_rates(devices, rates, paths), k)


def _fit(devices: Sequence[Device], k: int, out: tuple[LeftOut, ...]) -> list[int]:
    """Return the positions that may be chosen. Raises UsageError where they are too few."""
    n = len(devices)
    if not 1 <= k <= n:
        raise UsageError(f"cannot choose {k} of {n} devices: choose 1 to {n}")
    gone = {left.member: left for left in out}
    unknown = sorted(set(gone) - set(range(n)))
    if unknown:
        raise UsageError(f"cannot leave out device {unknown[0]}: there are {n}, counted from 0")
    fit = [position for position in range(n) if position not in gone]
    if len(fit) < k:
        names = "; ".join(f"{devices[left.member].tag} ({left.reason})" for left in out)
        for_good = {Unfit.EXCLUDED, *FAULTY}
        forgiven = any(not {one.kind for one in left.why} & for_good for left in out)
        advice = "choose fewer, or add --allow-busy" if forgiven else "choose fewer"
        raise UsageError(f"cannot choose {k} of {n} devices: {len(fit)} are left without {names}; {advice}")
    return fit


def _all(run: Run, fit: Sequence[int], out: tuple[LeftOut, ...], case: SelectionProblem | None) -> Choice:
    members = tuple(sorted(fit))
    band = predict(case.wired) if case else None
    reason = f"all {len(fit)} devices" if not out else f"the {len(fit)} of {len(run.devices)} devices that are left"
    found = (Candidate(members, band, default=True),) if band else ()
    return Choice(members, reason, band, found, out)


def _decided(case: SelectionProblem, k: int) -> Choice:
    """Return the choice among the devices of a case: by bandwidth where it matters, then by the tie-breaks."""
    if k == 1 or case.tied:
        sets, heuristic = _tied_sets(case, k)
        index, words = decide(sets, case.levels, case.order_of)
        members = tuple(sets[index].tolist())
        pair = "one device has no pair to compare" if k == 1 else case.verdict
        return _choice(case, members, pair, _with_default(case, members), words, tied=True, heuristic=heuristic)
    field = search(case.wired, k, case.delta)
    equal = best(field, case.delta)
    levels = case.levels
    if not field.heuristic and 2 * k <= len(case.order):
        costs = what_remains(field.sets, field.quick, case.delta)
        levels = (*levels, Level("the best remainder for the next job", costs))
    index, words = decide(field.sets[equal], levels, case.order_of)
    chosen = int(equal[index])
    found = finalists(case.wired, field, chosen, case.delta)
    why = _why(case, found) + (", the best of a heuristic search" if field.heuristic else "")
    return _choice(case, found[0].members, why, found, words, tied=False, heuristic=field.heuristic)


def _tied_sets(case: SelectionProblem, k: int) -> tuple[Sets, bool]:
    """Return the sets that tie-breaks decide among; beyond 16 devices a few: the first k from each device on."""
    n = len(case.order)
    if n <= MOST_MEMBERS or k == 1:
        return all_sets(n, k), False
    return np.sort((np.arange(n)[:, None] + np.arange(k)) % n, axis=1), True


def _with_default(case: SelectionProblem, members: Members) -> tuple[Candidate, ...]:
    if len(members) < 2:
        return ()
    default = tuple(range(len(members)))
    return tuple(
        Candidate(some, predict(case.wired.of(some)), default=some == default)
        for some in dict.fromkeys([members, default])
    )


def _why(case: SelectionProblem, found: tuple[Candidate, ...]) -> str:
    """Return in half a sentence what rate the chosen set should reach; nothing where nothing is significant."""
    chosen, default = found[0], next(some for some in found if some.default)
    if case.undecided:
        return case.verdict
    if len(chosen.members) == 2 and not chosen.band.unmeasured:
        worst = "worst measured pair" if case.wired.missing.any() else "worst pair"
        return f"it reaches {fixed(chosen.band.lo, 3)} GB/s, the machine's {worst} {fixed(case.worst, 3)} GB/s"
    k = len(chosen.members)
    first = "the same set" if chosen is default else _reaches(default.band)
    over = f" over {chosen.band.basis}" if chosen.band.hi > 0 else ""
    return f"predicted {_reaches(chosen.band)}{over} (the first {k}: {first})"


def _reaches(band: Band) -> str:
    """Return what rate a set reaches, or why it reaches none."""
    return str(band) if band.hi > 0 else f"nothing, {band.how}"


def _choice(
    case: SelectionProblem,
    members: Members,
    reason: str,
    found: tuple[Candidate, ...],
    words: str,
    *,
    tied: bool,
    heuristic: bool,
) -> Choice:
    """Return the choice in the run's positions."""

    def positions(some: Members) -> Members:
        return tuple(sorted(case.order[index] for index in some))

    return Choice(
        members=positions(members),
        reason=reason,
        band=found[0].band if found else None,
        finalists=tuple(replace(some, members=positions(some.members)) for some in found),
        decided_by=words,
        tied=tied,
        heuristic=heuristic,
    )


# A choice by the devices' own names, with all that explains it: what `collbench select` prints and Python gets.

LABELS = "labels"  # what stands for a backend where nothing was measured and label text was read


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the evidence came from: a backend (LABELS for label text), a host, and words that name the source.

    `fabric` names the simulated machine of a sim run, "" otherwise. `verification` is the file of the run that measured
    the finalists at `size_bytes`; "" and None where none did. `operation` at `measured_bytes` is what the run's pairs
    are ranked by, and so what is predicted; None for all-reduces of labels' rates.
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
        """True where the figures are a simulation's."""
        return self.backend != LABELS and capabilities(self.backend).simulated

    @property
    def acts(self) -> bool:
        """True where CUDA_VISIBLE_DEVICES can choose the devices."""
        return self.backend == LABELS or capabilities(self.backend).visible


@dataclass(frozen=True, slots=True)
class Finalist:
    """One of the best sets by its devices' tags; `first` are the first ones by PCI bus id that were not left out.

    `predicted` is (low, high), `measured` (low, median, high) of its 95 % interval: all-reduce busbw in GB/s.
    """

    devices: tuple[str, ...]
    predicted: tuple[float, float]
    measured: tuple[float, float, float] | None = None
    first: bool = False


@dataclass(frozen=True, slots=True)
class Omitted:
    """A device that was not considered, by tag and reason."""

    device: str
    reason: str


@dataclass(frozen=True, slots=True)
class Selection:
    """The chosen devices and why; rates are all-reduce busbw in GB/s, predicted as (low, high).

    `environment` is what makes CUDA see them alone. `decided_by` names the tie-break, "" where bandwidth decided;
    `tied`: the choice does not affect bandwidth; `heuristic`: not all sets were looked at; `estimated`: from labels
    alone, nothing was measured. `binding` says on which NUMA nodes the devices' processes belong, "" where the evidence
    does not compare nodes. `gain` is chosen over first ones, as measured: (low, median, high), 1.0 for none. `failed`
    are places within the set where something failed or moved wrong data.
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
    binding: str = ""
    failed: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return one line: which devices and why."""
        return f"{', '.join(device.tag for device in self.devices)}: {self.reason} ({self.origin.source})"


def selection_by_name(
    choice: Choice, devices: Sequence[Device], environment: Mapping[str, str], origin: Origin, binding: str = ""
) -> Selection:
    """Return the choice among these devices, whose positions it holds, by name."""

    def tags(members: Sequence[int]) -> tuple[str, ...]:
        return tuple(devices[member].tag for member in members)

    measured = {}
    for found in choice.verified:
        low, high = found.interval or (found.gbs, found.gbs)
        measured[found.members] = low, found.gbs, high
    return Selection(
        devices=tuple(devices[member] for member in choice.members),
        environment=dict(environment),
        reason=choice.reason,
        origin=origin,
        predicted=(choice.band.lo, choice.band.hi) if choice.band else None,
        predicted_how=choice.band.basis if choice.band else "",
        finalists=tuple(
            Finalist(tags(one.members), (one.band.lo, one.band.hi), measured.get(one.members), one.default)
            for one in choice.finalists
        ),
        gain=choice.gain,
        decided_by=choice.decided_by,
        tied=choice.tied,
        heuristic=choice.heuristic,
        estimated=choice.estimated,
        left_out=tuple(Omitted(devices[left.member].tag, left.reason) for left in choice.left_out),
        binding=binding,
        failed=tuple(", ".join(tags(place)) for place in choice.failed),
    )
