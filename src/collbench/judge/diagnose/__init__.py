"""What a run means: where its labels and its measured links disagree, and what was judged (docs/method/verdicts.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, permutations
from statistics import median_high
from typing import TYPE_CHECKING

from collbench.judge.diagnose import links
from collbench.judge.diagnose.collectives import collectives
from collbench.judge.diagnose.devices import (
    counted_errors,
    degraded_slots,
    interference,
    other_processes,
    throttled,
    unsteady,
)
from collbench.judge.diagnose.elements import ends, likeness, of_likeness, with_host_memory
from collbench.judge.diagnose.limits import failures, limits
from collbench.judge.diagnose.readings import COLLECTIVE_BYTES, COPY_BYTES, FAR_BELOW, STAGED, Facts, Reading
from collbench.judge.diagnose.reported import reported
from collbench.judge.diagnose.verdict import Kind, Link, Severity, Verdict, explained
from collbench.judge.outcome import UNANSWERED, Absence, AbsenceKind, Absences, outcome
from collbench.judge.stats import MIN_TRIALS
from collbench.machine.labels import is_nvlink
from collbench.model.errors import ExitStatus
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import Pair, Run, capabilities, ordinary, tags
from collbench.model.units import abridged, figure, format_size, grouped

if TYPE_CHECKING:
    from collbench.judge.references import Answers

__all__ = ["Coverage", "Diagnosis", "Kind", "NotDone", "Severity", "Verdict", "judge"]

# Which pairs of a run could be judged, and why the others could not.

# Healthy NVLinks reach 0.88 (H200) to 0.97 (V100) of theory.
_FEWER_LINKS = 0.8
# What lies so far below its like is measured again, or else said, although noise, or where memory lies, may be the
# reason.
_SUSPECT, _UNLIKE = 0.9, 0.85
# What a pair without any work lacks, if nothing was requested.
_FIRST = Work(Operation.CE_WRITE)


@dataclass(frozen=True, slots=True)
class Coverage:
    """The pairs (ascending positions) that were judged, and why the others were not.

    `alone`: one device, judged by its copies with the host.
    """

    judged: tuple[Pair, ...]
    missed: dict[Pair, Absence]
    alone: bool = False

    @property
    def any(self) -> bool:
        """True if anything was judged."""
        return self.alone or bool(self.judged)

    @property
    def pairs(self) -> int:
        """How many pairs there are."""
        return len(self.judged) + len(self.missed)

    @property
    def lacking(self) -> dict[Pair, Absence]:
        """The pairs that should have been judged; the others are missing by design, for example without peer access."""
        return {pair: absence for pair, absence in self.missed.items() if not absence.by_design}


def coverage(facts: Facts) -> Coverage:
    """Return which pairs of a run were judged.

    A pair is judged by copies of 16 MiB or more both ways, or by a collective of 64 MiB or more on it, three trials
    each, if nothing on it failed, moved wrong data or is unanswered. Smaller messages show no bandwidth to hold
    against a label.
    """
    run = facts.run
    troubles, absences = outcome(run), Absences(run)
    unanswered = {trouble.devices for trouble in troubles.troubles if trouble.kind in UNANSWERED}
    judged: list[Pair] = []
    missed: dict[Pair, Absence] = {}
    for pair in combinations(range(len(run.devices)), 2):
        if troubles.failed(pair):
            missed[pair] = Absence(AbsenceKind.FAILED)
        elif pair not in unanswered and _judged(facts, pair):
            judged.append(pair)
        else:
            missed[pair] = _why(run, absences, pair)
    return Coverage(tuple(judged), missed, len(run.devices) == 1 and bool(facts.readings.host(0)))


def _shown(facts: Facts, link: Link) -> Reading | None:
    """Return a link's fastest copy, or without copies the first collective that was measured on the pair."""
    if (copy := facts.readings.best(link, 1)) is not None:
        return copy
    pair = (min(link), max(link))
    collectives = (facts.readings.of(work).get(pair) for work in facts.readings.works(collective=True))
    return next((reading for reading in collectives if reading), None)


def what_is_left_open(facts: Facts, rates: Mapping[str, Sequence[Reading]], found: Iterable[Verdict]) -> str:
    """Return a clause on what is much slower than its like and yet no verdict, "" if nothing is.

    Trials that vary much leave open whether a pair is slow; and copies with host memory whether a slot is, or memory
    lies at another socket where that is not known. What was `found` may say the latter.
    """
    said = frozenset[int]().union(*map(_slow_with_host_memory, found))
    for alike in _copies_alike(facts, rates):
        if far := _far_from_median(alike):
            low, usual = far
            rates_of = f"{figure(low.gbs)} GB/s where {low.label} links reach {figure(usual)}"
            link = tags(low.members, facts.run.devices, " → ")
            return f"{link} reaches {rates_of}, and noise leaves open whether it is slow"
    shown = (reading for label in rates for reading in rates[label] if not facts.labelled(reading.members))
    for alike in grouped((ends(facts, reading.members), reading) for reading in shown).values():
        if far := _far_from_median(alike):
            low, usual = far
            rates_of = f"{figure(low.gbs)} GB/s where others without a label reach {figure(usual)}"
            return f"{tags(low.members, facts.run.devices, ' → ')} reaches {rates_of}: nothing tells which path it has"
    for hosts in with_host_memory(facts):
        for alike in grouped((likeness(facts, reading.members), reading) for reading in hosts).values():
            if below := _far_from_median(alike):
                low, usual = below
                slow = sorted(reading.members[0] for reading in alike if reading.gbs < _UNLIKE * usual)
                if said.issuperset(slow):
                    continue
                one = ("copies", "it", "its slot is")
                copy, them, slots = one if len(slow) == 1 else ("copy", "them", "their slots are")
                rates_of = f"{figure(low.gbs)} GB/s where GPUs like {them} reach {figure(usual)}"
                nodes = {device.numa_node for device in facts.run.devices}
                may_be_far = low.work.numa_node is None and (len(nodes) > 1 or None in nodes)
                why = f"{slots} slow, or an uplink above{', or that memory is at another socket' if may_be_far else ''}"
                return f"{tags(slow, facts.run.devices)} {copy} with host memory at {rates_of}: {why}"
    return ""


def _slow_with_host_memory(verdict: Verdict) -> frozenset[int]:
    """Return the devices whose copies with host memory a verdict may explain; none where it is about a pair alone."""
    alone = len(verdict.members) == 1 or verdict.by_other_processes or not verdict.links
    if verdict.severity is Severity.INFO or not (alone or verdict.reach):
        return frozenset()
    return frozenset(verdict.members).union(verdict.cause.devices)


def _copies_alike(facts: Facts, rates: Mapping[str, Sequence[Reading]]) -> Iterator[list[Reading]]:
    """Return the copies among what shows the rates of links, those together that should be equal."""
    copies = (reading for label in rates for reading in rates[label] if reading.work.operation.is_copy)
    return _alike(facts, copies)


def _collectives_alike(facts: Facts) -> Iterator[list[Reading]]:
    """Yield for each collective its readings on pairs that should be equal."""
    for work in facts.readings.works(collective=True):
        pairs = (reading for reading in facts.readings.of(work, COLLECTIVE_BYTES).values() if len(reading.members) == 2)
        yield from _alike(facts, pairs)


def _alike(facts: Facts, readings: Iterable[Reading]) -> Iterator[list[Reading]]:
    """Yield the readings that should be equal: of like links with one label."""
    for of_label in grouped((reading.label, reading) for reading in readings).values():
        yield from of_likeness(facts, of_label)


def _far_from_median(alike: Sequence[Reading]) -> tuple[Reading, float] | None:
    """Return the slowest of some readings with their median, in GB/s (of two the faster), if it lies far below that."""
    low, usual = min(alike, key=lambda reading: reading.gbs), _usual(alike)
    return (low, usual) if low.gbs < _UNLIKE * usual else None


def _usual(alike: Iterable[Reading]) -> float:
    return median_high(reading.gbs for reading in alike)  # of two the faster


def _judged(facts: Facts, pair: Pair) -> bool:
    if facts.readings.best(pair) is not None and facts.readings.best((pair[1], pair[0])) is not None:
        return True
    works = facts.readings.works(collective=True)
    return any(set(members) == set(pair) for work in works for members in facts.readings.of(work, COLLECTIVE_BYTES))


def _why(run: Run, absences: Absences, pair: Pair) -> Absence:
    """Return why a pair was not judged: by design only if all that was requested for it is absent by design."""
    there = [m for m in run.measurements if set(m.point.members) == set(pair) and _could_judge(m.point.work)]
    given_up = next((measurement for measurement in there if measurement.failure), None)
    if given_up is not None:
        return absences.of(given_up.point.work, given_up.point.members)
    large = [
        measurement
        for measurement in there
        if measurement.point.size_bytes
        >= (COLLECTIVE_BYTES if measurement.point.operation.is_collective else COPY_BYTES)
    ]
    if large:
        trials = max(len(measurement.samples) for measurement in large)
        if trials < MIN_TRIALS:
            return Absence(AbsenceKind.FEW_TRIALS, trials=trials, needed=MIN_TRIALS)
        return Absence(AbsenceKind.ONE_WAY)
    if there:
        return Absence(AbsenceKind.SMALL)
    # What was requested, on any pair, and what was skipped.
    works = {work: None for work in map(Work, run.settings.operations) if _could_judge(work)}
    works |= {
        skip.work: None for skip in run.skipped if skip.work is not None and skip.members and _could_judge(skip.work)
    }
    reasons = [absences.of(work, pair) for work in works] or [absences.of(_FIRST, pair)]
    # A skip is not the reason if an interrupted run did not reach other works on the pair.
    first_kinds = AbsenceKind.NOT_REACHED, AbsenceKind.SKIPPED
    first = min(reasons, key=lambda reason: [reason.kind is not kind for kind in first_kinds])
    return first if all(reason.by_design for reason in reasons) else replace(first, by_design=False)


def _could_judge(work: Work) -> bool:
    return work.variant is Variant.PLAIN and (work.operation.is_copy or work.operation.is_collective)


# The checks that could not be made with the data of a run.


_MAX_NAMES = 4  # of links
# A check that a run has no data for, in words, and why, if the words do not say it.
NotDone = tuple[str, Absence | None]


def missing(facts: Facts) -> Iterator[NotDone]:
    """Yield the checks that could not be made."""
    yield from _points(facts)
    if not facts.on_cores and len(facts.run.devices) > 1:
        yield from _copies(facts)
        yield from _collectives(facts)
        yield from _sources(facts)


def _points(facts: Facts) -> Iterator[NotDone]:
    """Yield the links without a figure of a work, by the reason: the other links were compared without them."""
    absences, n = Absences(facts.run), len(facts.run.devices)
    for work in facts.readings.works(collective=False):
        readings = facts.readings.of(work, 1)
        size_bytes = next(iter(readings.values())).size_bytes
        unread = [link for link in permutations(range(n), 2) if link not in readings]
        reasons = grouped((_reason(absences.of(work, link, size_bytes)), link) for link in unread)
        for absence, alike in reasons.items():
            names = abridged([tags(link, facts.run.devices, " → ") for link in alike], _MAX_NAMES)
            yield f"{work} at {format_size(size_bytes)} on {names}", absence


def _reason(absence: Absence) -> Absence:
    """Return the absence without what differs from link to link, to group links by the reason."""
    skipped = absence.skipped
    return replace(absence, failure=None, skipped=skipped and replace(skipped, work=None, members=()))


def _copies(facts: Facts) -> Iterator[NotDone]:
    readings = facts.readings
    copies = [r for r in readings.points if r.work.operation.is_copy and r.work.variant is Variant.PLAIN]
    if not any(reading.size_bytes >= COPY_BYTES for reading in copies):
        least = format_size(COPY_BYTES)
        yield f"links against their limits: no copy of {least} or more was measured on them", None
        return
    unknown = sorted({r.label for r in copies if facts.limit(r.members) is None})
    if unknown:
        labels = ", ".join(unknown)
        yield f"{labels} links against their limits: their PCIe slots or NVLinks are unknown", None
    if not readings.of(STAGED, COPY_BYTES):
        yield "peer access against staging: no staged copies (collbench copies --patterns one-way,staged)", None


def _collectives(facts: Facts) -> Iterator[NotDone]:
    points = [r for r in facts.readings.points if r.work.operation.is_collective]
    if not any(reading.size_bytes >= COLLECTIVE_BYTES for reading in points):
        yield f"NCCL against the links: no collective of {format_size(COLLECTIVE_BYTES)} or more was measured", None
    elif not any(r.work.operation is Operation.ALLREDUCE and len(r.members) == 2 for r in points):
        yield "NCCL on each pair: no all-reduce was measured on pairs", None


def _sources(facts: Facts) -> Iterator[NotDone]:
    run = facts.run
    answers_of: dict[str, list[object]] = {
        "nvidia-smi topo -m": [path.tool_label for path in run.paths],
        "nvidia-smi topo -p2p": [path.tool_peer_access or None for path in run.paths],
        "CUDA's peer access": [path.cuda_peers for path in run.paths],
    }
    silent = [source for source, answers in answers_of.items() if all(answer is None for answer in answers)]
    if silent and run.paths:
        yield f"the labels against {', '.join(silent)}: not recorded in this run", None
    over_pcie = any(not is_nvlink(path.label) for path in run.paths)
    if over_pcie and not any(state.pcie_generation or state.pcie_width for state in run.health_after):
        yield "PCIe under load: its generation and width were not read", None


# The rules, and all that they and the above find.

_STATUS = {
    Severity.HARD: ExitStatus.UNTRUSTED,
    Severity.CONTRADICTION: ExitStatus.CONTRADICTION,
    Severity.FAILURE: ExitStatus.FAILED,
    Severity.INFO: ExitStatus.DONE,
}
# Each yields the verdicts of one rule. Links that a blamed element slows show no inversion of labels.
_RULES: tuple[Callable[[Facts], Iterable[Verdict]], ...] = (
    failures,
    reported,
    other_processes,
    interference,
    counted_errors,
    degraded_slots,
    limits,
    links.staging,
    links.asymmetries,
    links.outliers,
    links.below_elements,
    links.far_memory,
    collectives,
    unsteady,
)


class Diagnosis:
    """What is wrong with a run's machine and what was not judged, each found when it is first asked for.

    Page, headline, JSON and exit status of a command take the same one.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.facts = Facts(ordinary(run))

    @cached_property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The verdicts, strongest first."""
        found = [verdict for rule in _RULES for verdict in rule(self.facts)]
        found += links.inversions(self.facts, frozenset[Link]().union(*(verdict.reach for verdict in found)))
        standing = explained(found)
        # No kind explains throttled GPUs, and these explain nothing.
        standing = [*standing, *throttled(self.facts, standing)]
        ranks = list(Severity)
        return tuple(sorted(standing, key=lambda verdict: ranks.index(verdict.severity)))

    @cached_property
    def coverage(self) -> Coverage:
        """Which pairs were judged at all."""
        return coverage(self.facts)

    @cached_property
    def healthy(self) -> tuple[Pair, ...]:
        """The judged pairs without a fault, and without a slow reading."""
        left_open = {frozenset(reading.members) for reading in self.unstaged}
        return tuple(
            pair
            for pair in self.coverage.judged
            if frozenset(pair) not in left_open and not any(verdict.concerns(pair) for verdict in self.verdicts)
        )

    @cached_property
    def rates(self) -> dict[str, list[Reading]]:
        """What shows the rates of their links, by label."""
        readings = (_shown(self.facts, link) for a, b in self.healthy for link in ((a, b), (b, a)))
        return grouped((reading.label, reading) for reading in readings if reading)

    @property
    def far_below(self) -> dict[str, float]:
        """The labels whose healthy links all copy far below their theory, with the most that one reaches.

        Where all links are slow none is slower than others, and labels imply no rate of a path over PCIe: less than
        half. Over NVLinks less than 0.8 of copies from 64 MiB on: a lost plane of six NVSwitches leaves 0.76 to 0.81. A
        collective or a small copy reaches less on healthy links, too.
        """
        shares = dict[str, float]()
        for label, readings in self.rates.items():
            least_bytes, far = (COLLECTIVE_BYTES, _FEWER_LINKS) if is_nvlink(label) else (COPY_BYTES, FAR_BELOW)
            large = (reading for reading in readings if reading.size_bytes >= least_bytes)
            copies = [reading for reading in large if reading.work.operation.is_copy]
            of_theory = [copy.gbs / limit for copy in copies if (limit := self.facts.limit(copy.members))]
            if len(of_theory) == len(readings) and max(of_theory) < far:
                shares[label] = max(of_theory)
        return shares

    @property
    def suspects(self) -> list[Pair]:
        """The pairs far below their like without a verdict, the slowest first: more trials may tell why."""
        groups = (*_copies_alike(self.facts, self.rates), *_collectives_alike(self.facts))
        usuals = ((_usual(alike), alike) for alike in groups)
        shares = [
            (reading.gbs / usual, (min(reading.members), max(reading.members)))
            for usual, alike in usuals
            for reading in alike
        ]
        return list(dict.fromkeys(pair for share, pair in sorted(shares) if share < _SUSPECT and pair in self.healthy))

    @cached_property
    def left_open(self) -> str:
        """What is much slower than its like without a verdict, as a clause."""
        return what_is_left_open(self.facts, self.rates, self.verdicts)

    @cached_property
    def not_judged(self) -> tuple[NotDone, ...]:
        """The checks that the run has no data for, with what is missing."""
        return tuple(missing(self.facts))

    @cached_property
    def unstaged(self) -> list[Reading]:
        """The copies by P2P that copies through host memory may beat, which the run does not tell."""
        return links.unstaged(self.facts, self.verdicts)

    @property
    def doubtful(self) -> bool:
        """True if something without a verdict is far below its like or theory, or may be slower than host memory."""
        return bool(self.left_open or self.unstaged or self.far_below)

    @cached_property
    def references(self) -> Answers:
        """How published figures judge the run."""
        from collbench.judge import references  # late: most simulated runs need none

        return references.judge(self.run, references.load())

    @property
    def below(self) -> bool:
        """True if something is significantly below published figures, which judge no simulated machine."""
        return not capabilities(self.run.backend).simulated and self.references.below

    @property
    def status(self) -> ExitStatus:
        """The exit status: the worst of verdicts and failures; a run in which nothing was judged does not pass."""
        worst = max((_STATUS[verdict.severity] for verdict in self.verdicts), default=ExitStatus.DONE)
        judged = ExitStatus.DONE if self.coverage.any else ExitStatus.FAILED
        normal = ExitStatus.CONTRADICTION if self.below else ExitStatus.DONE
        return max(worst, judged, normal, outcome(self.run).status)


def judge(run: Run) -> tuple[Verdict, ...]:
    """Return the verdicts on a run, strongest first."""
    return Diagnosis(run).verdicts
