"""Which pairs of a run could be judged at all, and why the others could not: what was not judged never agrees."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations

from collbench.absence import Absence, AbsenceKind, Absences
from collbench.affinity.verdicts.readings import COLLECTIVE_BYTES, COPY_BYTES, FEWEST_VISITS, Facts
from collbench.model import Run
from collbench.operations import Operation, Variant, Work
from collbench.outcome import TroubleKind, outcome

Pair = tuple[int, int]
# What a run without any work of a pair lacks first.
_FIRST = Work(Operation.CE_WRITE)


@dataclass(frozen=True, slots=True)
class NotJudged:
    """A pair (ascending positions) that could not be judged, and why."""

    pair: Pair
    absence: Absence


@dataclass(frozen=True, slots=True)
class Coverage:
    """The pairs that were judged, and those that were not."""

    judged: tuple[Pair, ...]
    missed: tuple[NotJudged, ...]

    @property
    def pairs(self) -> int:
        """How many pairs there are."""
        return len(self.judged) + len(self.missed)

    @property
    def lacking(self) -> tuple[NotJudged, ...]:
        """The pairs that should have been judged: for the others there is a reason by design, as no peer access."""
        return tuple(one for one in self.missed if not one.absence.by_design)


def coverage(run: Run) -> Coverage:
    """Return which pairs of a run were judged.

    A pair is judged by copies of 16 MiB or more both ways, or by a collective of 64 MiB or more on it, three visits
    each, if nothing on it failed, moved wrong data or was left untried. Smaller messages show no bandwidth to hold
    against a label.
    """
    facts, troubles, absences = Facts(run), outcome(run), Absences(run)
    untried = {one.devices for one in troubles.troubles if one.kind is TroubleKind.UNTRIED}
    judged: list[Pair] = []
    missed: list[NotJudged] = []
    for pair in combinations(range(len(run.devices)), 2):
        if troubles.failed(pair):
            missed.append(NotJudged(pair, Absence(AbsenceKind.FAILED, "failed")))
        elif pair not in untried and _judged(facts, pair):
            judged.append(pair)
        else:
            missed.append(NotJudged(pair, _why(run, absences, pair)))
    return Coverage(tuple(judged), tuple(missed))


def _judged(facts: Facts, pair: Pair) -> bool:
    if facts.readings.best(pair) is not None and facts.readings.best((pair[1], pair[0])) is not None:
        return True
    works = facts.readings.works(collective=True)
    return any(set(members) == set(pair) for work in works for members in facts.readings.of(work, COLLECTIVE_BYTES))


def _why(run: Run, absences: Absences, pair: Pair) -> Absence:
    """Return why a pair was not judged: by design only where all that was asked for on it is absent by design."""
    there = [m for m in run.measurements if set(m.cell.members) == set(pair) and _could_judge(m.cell.work)]
    given_up = next((found for found in there if found.failure), None)
    if given_up is not None:
        return absences.of(given_up.cell.work, given_up.cell.members)
    large = [found for found in there if found.cell.size_bytes >= _least(found.cell.work)]
    if large:
        visits = max(len(found.samples) for found in large)
        few = f"{visits} of the {FEWEST_VISITS} visits that tell noise"
        return Absence(AbsenceKind.FEW_VISITS, few if visits < FEWEST_VISITS else "measured one way only")
    if there:
        return Absence(AbsenceKind.NOT_MEASURED, "small messages only")
    # What was asked for, on whatever pairs it was measured; and what no pair has because it was refused.
    works = {work: None for work in map(Work, run.settings.operations) if _could_judge(work)}
    works |= {one.work: None for one in run.skipped if one.work is not None and _could_judge(one.work)}
    reasons = [absences.of(work, pair) for work in works] or [absences.of(_FIRST, pair)]
    told = next((reason for reason in reasons if reason.kind is AbsenceKind.SKIPPED), reasons[0])
    return told if all(reason.by_design for reason in reasons) else replace(told, by_design=False)


def _could_judge(work: Work) -> bool:
    return work.variant is Variant.PLAIN and (work.operation.is_copy or work.operation.is_collective)


def _least(work: Work) -> int:
    return COLLECTIVE_BYTES if work.operation.is_collective else COPY_BYTES
