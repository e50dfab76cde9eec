"""Which k devices to use, from a run or from labels alone: predicted, tie-broken, settled by measuring finalists."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from collbench.affinity import fitness
from collbench.affinity.bands import predict
from collbench.affinity.case import Case, Rates, evidence, from_labels, from_rates, from_run
from collbench.affinity.choice import FAULTY, Band, Candidate, Choice, LeftOut, Members, Unfit, Verified, Why
from collbench.affinity.finalists import finalists
from collbench.affinity.rings import MOST_MEMBERS, Sets, all_sets
from collbench.affinity.search import best, search
from collbench.affinity.settle import including, settle
from collbench.affinity.tiebreak import Level, decide, what_remains
from collbench.errors import UsageError
from collbench.model import Device, Path, Run
from collbench.outcome import outcome
from collbench.units import fixed

__all__ = [
    "Band",
    "Candidate",
    "Choice",
    "LeftOut",
    "Verified",
    "choose",
    "choose_by_labels",
    "choose_by_rates",
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
    out = fitness.left_out(run, exclude, allow_busy=allow_busy)
    fit = _fit(run.devices, k, out)
    ranking = evidence(run, fit)
    if ranking is None and k < len(fit):
        raise UsageError("the run holds no pair: measure with 'collbench pairs' first")
    if ranking is None or k == len(fit):
        return _all(run, fit, out, None if ranking is None else from_run(run, fit, ranking))
    return replace(_decided(from_run(run, fit, ranking), k), left_out=out)


def choose_by_labels(
    devices: Sequence[Device], paths: Sequence[Path], k: int, *, exclude: Collection[int] = ()
) -> Choice:
    """Return the k devices that labels alone promise most of. Raises UsageError for a k that cannot be."""
    out = tuple(LeftOut(place, (Why(Unfit.EXCLUDED),)) for place in sorted(exclude))
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
    fit = [place for place in range(n) if place not in gone]
    if len(fit) < k:
        names = "; ".join(f"{devices[left.member].tag} ({left.reason})" for left in out)
        advice = "choose fewer, or add --allow-busy" if any(map(_forgiven, out)) else "choose fewer"
        raise UsageError(f"cannot choose {k} of {n} devices: {len(fit)} are left without {names}; {advice}")
    return fit


def _forgiven(left: LeftOut) -> bool:
    """Return whether --allow-busy would bring a device back."""
    return not {one.kind for one in left.why} & {Unfit.EXCLUDED, *FAULTY}


def _all(run: Run, fit: Sequence[int], out: tuple[LeftOut, ...], case: Case | None) -> Choice:
    members = tuple(sorted(fit))
    band = predict(case.wired) if case and len(fit) > 1 else None
    reason = f"all {len(fit)} devices" if not out else f"the {len(fit)} of {len(run.devices)} devices that are left"
    found = (Candidate(members, band, default=True),) if band else ()
    return Choice(members, reason, band, found, out)


def _decided(case: Case, k: int) -> Choice:
    """Return the choice among the devices of a case: by bandwidth where it matters, then by the tie-breaks."""
    if k == 1 or case.tied:
        sets, heuristic = _tied_sets(case, k)
        place, words = decide(sets, case.levels, case.order_of)
        members = tuple(sets[place].tolist())
        pair = "one device has no pair to compare" if k == 1 else case.verdict
        return _choice(case, members, pair, _with_default(case, members), words, tied=True, heuristic=heuristic)
    field = search(case.wired, k, case.delta)
    equal = best(field, case.delta)
    rest = () if field.heuristic or 2 * k > len(case.order) else (_remainder(field.sets, field.quick, case.delta),)
    place, words = decide(field.sets[equal], (*case.levels, *rest), case.order_of)
    chosen = int(equal[place])
    found = finalists(case.wired, field, chosen, case.delta)
    why = _why(case, found) + (", the best of a heuristic search" if field.heuristic else "")
    return _choice(case, found[0].members, why, found, words, tied=False, heuristic=field.heuristic)


def _tied_sets(case: Case, k: int) -> tuple[Sets, bool]:
    """Return the sets that tie-breaks decide among; beyond 16 devices a few: the first k from each device on."""
    n = len(case.order)
    if n <= MOST_MEMBERS or k == 1:
        return all_sets(n, k), False
    return np.sort((np.arange(n)[:, None] + np.arange(k)) % n, axis=1), True


def _remainder(sets: Sets, values: np.typing.NDArray[np.float64], delta: float) -> Level:
    return Level("the best remainder for the next job", what_remains(sets, values, delta))


def _with_default(case: Case, members: Members) -> tuple[Candidate, ...]:
    if len(members) < 2:
        return ()
    default = tuple(range(len(members)))
    return tuple(
        Candidate(some, predict(case.wired.of(some)), default=some == default)
        for some in dict.fromkeys([members, default])
    )


def _why(case: Case, found: tuple[Candidate, ...]) -> str:
    """Return in half a sentence what the chosen set is predicted to carry; nothing where nothing is certain."""
    chosen, default = found[0], next(some for some in found if some.default)
    if case.undecided:
        return case.verdict
    if len(chosen.members) == 2 and not chosen.band.unmeasured:
        worst = "worst measured pair" if case.wired.missing.any() else "worst pair"
        return f"it carries {fixed(chosen.band.lo, 3)} GB/s, the machine's {worst} {fixed(case.worst, 3)}"
    k = len(chosen.members)
    beside = f"the first {k} themselves" if chosen is default else f"the first {k} {_carries(default.band)}"
    return f"predicted {chosen.band} ({chosen.band.basis}), {beside}"


def _carries(band: Band) -> str:
    """Return what a set carries, in words where it carries nothing."""
    return str(band) if band.hi > 0 else f"nothing: {band.how}"


def _choice(
    case: Case,
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
        return tuple(sorted(case.order[place] for place in some))

    return Choice(
        members=positions(members),
        reason=reason,
        band=found[0].band if found else None,
        finalists=tuple(replace(some, members=positions(some.members)) for some in found),
        decided_by=words,
        tied=tied,
        heuristic=heuristic,
    )
