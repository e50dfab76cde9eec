"""Which pairs and checks a run allows: what was not judged never agrees."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from collbench.analysis.diagnose.limits import path_limit
from collbench.analysis.diagnose.readings import COLLECTIVE_BYTES, COPY_BYTES, STAGED, Facts
from collbench.analysis.diagnose.verdict import Link
from collbench.analysis.outcome import Absence, AbsenceKind, Absences, TroubleKind, outcome
from collbench.analysis.tiers import FEWEST_VISITS
from collbench.machine.labels import is_nvlink
from collbench.model.capabilities import capabilities
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import Run
from collbench.model.units import format_size

# Which pairs of a run could be judged at all, and why the others could not: what was not judged never agrees.


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
        few = f"{visits} of the {FEWEST_VISITS} trials that the noise needs"
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


# What a run leaves open: the checks that could not be made on what it holds.


_MOST_NAMES = 4


def missing(facts: Facts) -> Iterator[str]:
    """Yield a line for each check that could not be made, and what would make it possible."""
    yield from _cells(facts)
    if not capabilities(facts.run.backend).cores:
        yield from _copies(facts)
        yield from _collectives(facts)
        yield from _sources(facts)


def _cells(facts: Facts) -> Iterator[str]:
    """Name the links that the others of their work were compared without."""
    for work in facts.readings.works(collective=False):
        readings = facts.readings.of(work, 1)
        n = len(facts.run.devices)
        absent = [(a, b) for a in range(n) for b in range(n) if a != b and (a, b) not in readings]
        if absent:
            yield from _absent(facts, work, next(iter(readings.values())).size_bytes, absent)


def _absent(facts: Facts, work: Work, size_bytes: int, links: Sequence[Link]) -> Iterator[str]:
    """Yield a line for each reason why links have no figure."""
    absences, reasons = Absences(facts.run), dict[tuple[AbsenceKind, str], list[Link]]()
    for link in links:
        absence = absences.of(work, link, size_bytes)
        told = "failed" if absence.kind is AbsenceKind.FAILED else absence.reason
        reasons.setdefault((absence.kind, told), []).append(link)
    for (_, told), ours in reasons.items():
        names = ", ".join(facts.tags(link, " → ") for link in ours[:_MOST_NAMES])
        more = f" and {len(ours) - _MOST_NAMES} more" if len(ours) > _MOST_NAMES else ""
        yield f"{work} at {format_size(size_bytes)} on {names}{more}: {told}"


def _copies(facts: Facts) -> Iterator[str]:
    readings = facts.readings
    copies = [r for r in readings.cells if r.work.operation.is_copy and r.work.variant is Variant.PLAIN]
    if not any(reading.size_bytes >= COPY_BYTES for reading in copies):
        yield f"links against their limits: no copy of {format_size(COPY_BYTES)} or more was measured on them"
        return
    unknown = sorted({r.label for r in copies if path_limit(facts, (r.members[0], r.members[1])) is None})
    if unknown:
        yield f"{', '.join(unknown)} links against a limit: their slots or NVLinks are unknown"
    if not readings.of(STAGED, COPY_BYTES):
        yield "peer access against staging: no staged copies (collbench copies --patterns one-way,staged)"


def _collectives(facts: Facts) -> Iterator[str]:
    cells = [r for r in facts.readings.cells if r.work.operation.is_collective]
    if not any(reading.size_bytes >= COLLECTIVE_BYTES for reading in cells):
        yield f"NCCL against the links: no collective of {format_size(COLLECTIVE_BYTES)} or more was measured"
    elif not any(r.work.operation is Operation.ALLREDUCE and len(r.members) == 2 for r in cells):
        yield "NCCL pair by pair: no all-reduce was measured on pairs"


def _sources(facts: Facts) -> Iterator[str]:
    run = facts.run
    asked: dict[str, list[object]] = {
        "nvidia-smi topo -m": [path.tool_label for path in run.paths],
        "nvidia-smi topo -p2p": [path.tool_peer_access or None for path in run.paths],
        "CUDA's peer access": [path.cuda_peers for path in run.paths],
    }
    silent = [name for name, answers in asked.items() if all(answer is None for answer in answers)]
    if silent and run.paths:
        yield f"the labels against {', '.join(silent)}: not in this run"
    states = run.health_after
    over_pcie = any(not is_nvlink(path.label) for path in run.paths)
    if over_pcie and not any(state.pcie_generation or state.pcie_width for state in states):
        yield "PCIe under load: its generation and width were not read"
