"""The page and the JSON of `collbench check`: what disagrees, why, and how to check it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import permutations
from typing import Any

from rich.text import Text

from collbench.judge.diagnose import Diagnosis, Kind, NotDone, Severity, Verdict
from collbench.judge.diagnose.readings import Reading
from collbench.judge.outcome import outcome
from collbench.machine.labels import is_nvlink, rank_key
from collbench.model.errors import ExitStatus
from collbench.model.run import CommandKind, Run, capabilities, device_sets, tags
from collbench.model.units import abridged, amount, figure, fixed, format_size, grouped, sentence, span, verb
from collbench.report import sentences
from collbench.report.frame import ALARM, alarm, header, headline, origin, sim, unhealthy_lines
from collbench.report.frame import not_judged as not_judged_line
from collbench.report.layout import Block, Found, Lines, Page, Part, both, more, prose, short, whole
from collbench.runfile.codec import document, head, picked

_STYLES = {
    Severity.HARD: "bold red",
    Severity.CONTRADICTION: "bold yellow",
    Severity.FAILURE: "bold red",
    Severity.INFO: "bold cyan",
}
_FAILURES = (Severity.HARD, Severity.FAILURE)
_NOTHING = (
    "no pair has three trials of a copy of 16M or more in both directions, or of a collective of 64M or more: "
    "'collbench check' measures them"
)
_MAX_NAMES = 4  # of pairs
# Depending on the noise of their trials (docs/method/verdicts.md 6).
_FALSE = "3 of 15,602 simulated machines without a fault were accused"
# On the short page: faults with cause and command, and further faults by name.
_MAX_EXPLAINED, _MAX_NAMED = 3, 8


def page(diagnosis: Diagnosis, shortfall: str = "", further: Sequence[Part | Block] = ()) -> Page:
    """Yield the page's blocks, top to bottom.

    The short page has only faults, and explains only the first of them. `shortfall` is what --expect misses, `further`
    what else was examined.
    """
    run, verdicts = diagnosis.run, diagnosis.verdicts
    undone = [not_done(absent, run) for absent in diagnosis.not_judged]
    faults = [verdict for verdict in verdicts if verdict.severity is not Severity.INFO]
    if not any(verdict.severity in _FAILURES or verdict.kind is Kind.IMPOSSIBLE for verdict in faults):
        yield from alarm(run)  # else the conclusion says what failed
    below = diagnosis.below
    worst = faults[0].severity if faults else Severity.CONTRADICTION if below else Severity.INFO
    concluded = Text(conclusion(diagnosis), "" if worst is Severity.INFO else _STYLES[worst])
    if faults or below:
        yield concluded
    elif not diagnosis.coverage.any:
        yield not_judged_line(_NOTHING)
    if shortfall:  # below a verdict of that word it is not said again
        yield Text(shortfall if worst in _FAILURES else f"FAILED: {shortfall}", ALARM)
    judged = [*_judged(diagnosis)]
    if below or not faults:  # below a fault that no figure sees, nothing may read "normal"
        judged += normal_line(diagnosis)
    yield from [] if faults or below else [concluded]
    yield from short(*judged)
    yield from whole("header", Lines(header(run)))
    for verdict in faults[:_MAX_EXPLAINED]:
        yield from both("verdicts", Text(), _found(run, verdict))
    others = faults[_MAX_EXPLAINED:]
    if others:
        heads = (f"\n{finding(verdict, with_cause=True)}" for verdict in others[:_MAX_NAMED])
        yield from short(prose("".join(heads), hang=2))
    yield from short(*more(len(others) - _MAX_NAMED))
    for verdict in (*others, *(note for note in verdicts if note.severity is Severity.INFO)):
        yield from whole("verdicts", Text(), _found(run, verdict))
    yield from whole("verdicts", Text(), *judged, Lines(f"errs      {_FALSE}"))
    yield from whole("notes", *(Lines(f"not done  {line}") for line in undone))
    if further:
        yield from (*([Text()] if faults else []), *further)
    yield from short(Lines(f"\n{origin(run)}"))


# Published figures judge no simulated machine: its pages load neither these nor what words them.


def normal_line(diagnosis: Diagnosis) -> Iterator[Lines]:
    """Yield the reference figure with the worst result, and what no figure judges; nothing for a simulated machine."""
    if not capabilities(diagnosis.run.backend).simulated:
        from collbench.report import reference

        yield from reference.normal_line(diagnosis.references)


def _below(diagnosis: Diagnosis) -> str:
    """Return the first result that is below its band, in one line; "" if there is none."""
    if not diagnosis.below:
        return ""
    from collbench.report import reference

    return reference.below(diagnosis.references)


def against_staging(diagnosis: Diagnosis) -> str:
    """Return on which links copies through host memory may be faster, which this run cannot tell; "" if on none."""
    slow, run = diagnosis.unstaged, diagnosis.run
    if not slow:
        return ""
    links = {reading.members for reading in slow}
    pairs = {(min(link), max(link)): "-" if link[::-1] in links else "→" for link in links}
    names = [tags(link if link in links else link[::-1], run.devices, joint) for link, joint in sorted(pairs.items())]
    reached = f"{span([reading.gbs for reading in slow], figure, '-')} GB/s{sim(run, ' sim')}"
    ask = "a full 'collbench check' tells whether host memory is faster"
    return f"P2P reaches {reached} on {abridged(names, _MAX_NAMES)}; {ask}"


def _judged(diagnosis: Diagnosis) -> Iterator[Lines]:
    """Yield which pairs agree, what was not judged, and what was seen on devices, unless a verdict says it."""
    if healthy := _healthy(diagnosis):
        yield Lines(f"agree     {healthy}")
    yield from (Lines(f"unjudged  {line}") for line in unjudged(diagnosis))
    if diagnosis.left_open and worst_of(diagnosis.run, diagnosis.verdicts):  # else the first line says it
        yield Lines(f"open      {diagnosis.left_open}")
    yield from p2p_line(diagnosis)
    if not any(verdict.cause.seen or verdict.by_other_processes for verdict in diagnosis.verdicts):
        yield from (Lines(f"health    {line}") for line in unhealthy_lines(diagnosis.run))


def by_peer_access(diagnosis: Diagnosis) -> Iterator[Lines]:
    """Yield what a saved run, which has no map of P2P, shows of it; nothing where a line says more, or without P2P."""
    run, facts = diagnosis.run, diagnosis.facts
    links = [] if facts.on_cores or diagnosis.unstaged else [*permutations(range(len(run.devices)), 2)]
    offered = [link for link in links if facts.has_peers(link)]
    if offered:
        rates = [copy.gbs for copy in map(facts.readings.best, offered) if copy]
        seen = "no large copy was measured"
        if rates:
            share = f"{len(rates)} of {amount(len(links), 'link')}"
            seen = f"copies by peer access reached {span(rates, figure, '-')} GB/s{sim(run, ' sim')} on {share}"
        yield Lines(f"p2p       {seen}; the map of P2P is not saved: 'collbench check --map-p2p' makes it")


def unjudged(diagnosis: Diagnosis) -> Iterator[str]:
    """Yield a line for each reason why pairs were not judged."""
    run = diagnosis.run
    missed = diagnosis.coverage.missed.items()
    reasons = grouped((sentences.absence(absence, run), pair) for pair, absence in missed)
    for reason, pairs in reasons.items():
        names = [device_sets([pair], run.devices) for pair in pairs]
        yield f"{abridged(names, _MAX_NAMES, '; ')}: {reason}"


def dumps(
    diagnosis: Diagnosis, exit_status: int | None = None, shortfall: str = "", peers: dict[str, Any] | None = None
) -> str:
    """Return the verdicts as JSON text (docs/check.md): `exit_status` is the command's, `peers` its map of P2P."""
    return document("check", as_json(diagnosis, exit_status, shortfall) | {"p2p": peers})


def as_json(diagnosis: Diagnosis, exit_status: int | None = None, shortfall: str = "") -> dict[str, Any]:
    """Return the same in JSON's own types."""
    from collbench.report import reference  # late, as above

    run, covered = diagnosis.run, diagnosis.coverage
    return head("check", run.backend) | {
        **picked(run.machine, "hostname", "fabric"),
        **picked(run, "started"),
        "exit_status": int(diagnosis.status if exit_status is None else exit_status),
        "pairs": covered.pairs,
        "judged": len(covered.judged),
        "conclusion": conclusion(diagnosis),
        "left_open": diagnosis.left_open,
        "failed": "; ".join(filter(None, (headline(run), f"FAILED: {shortfall}" if shortfall else ""))),
        "verdicts": found_json(run, diagnosis.verdicts),
        "not_judged": [
            *unjudged(diagnosis),
            *filter(None, [against_staging(diagnosis)]),
            *(not_done(absent, run) for absent in diagnosis.not_judged),
        ],
        "reference": reference.as_json(diagnosis.references),
    }


def found_json(run: Run, verdicts: Iterable[Verdict]) -> list[dict[str, Any]]:
    """Return the verdicts in JSON's own types (docs/check.md)."""
    return [_plain(run, verdict) for verdict in verdicts]


def _plain(run: Run, verdict: Verdict) -> dict[str, Any]:
    measured = verdict.measured
    return picked(verdict, "kind", "severity", "members", "label", "theory_gbs") | {
        "cause": verdict.cause.text,
        "command": verdict.fix,
        "what": what(verdict, run),
        **picked(verdict, "explains", "confirmed"),
        "measured_gbs": None if measured is None else dict(zip(("lo", "mid", "hi"), measured, strict=True)),
        "devices": [run.devices[position].tag for position in verdict.members],
    }


def _found(run: Run, verdict: Verdict) -> Found:
    """Return one verdict: its kind and devices, then a field a line."""
    devices, fields = set(verdict.members), [("what", what(verdict, run))]
    if verdict.theory_gbs is not None:
        paths = (p for p in run.paths if set(p.devices) <= devices and p.label == verdict.label)
        path = next((p for p in paths if p.theory_gbs == verdict.theory_gbs), None)
        source = path.theory_source if path and verdict.limit == "theory" and len(devices) > 1 else ""
        gbs, source = f"{fixed(verdict.theory_gbs)} GB/s{sim(run, ' sim')}", source.removeprefix("sim: ")
        fields.append((verdict.limit, f"{gbs}: {source}" if source else gbs))
    if verdict.measured is not None:
        low, middle, high = map(figure, verdict.measured)
        confirmed = "" if verdict.confirmed else "; not confirmed in isolation"
        fields.append(("measured", f"{middle} GB/s{sim(run, ' sim')} ({low}-{high}){confirmed}"))
    fields.append(("cause", verdict.cause.text))
    if verdict.explains:
        fields.append(("explains", ", ".join(verdict.explains)))
    return Found(verdict.kind, _where(run, verdict), _STYLES[verdict.severity], fields, verdict.fix)


def _where(run: Run, verdict: Verdict) -> str:
    return tags(verdict.members, run.devices) + (f" ({verdict.label})" if verdict.label else "")


def conclusion(diagnosis: Diagnosis) -> str:
    """Return the worst that was found, and where, and how much more; how many pairs were judged, if not all."""
    run, covered = diagnosis.run, diagnosis.coverage
    share = pairs_judged(len(covered.judged), covered.pairs)
    if worst := worst_of(run, diagnosis.verdicts) or _below(diagnosis):
        return worst if len(covered.judged) == covered.pairs else f"{worst}. {sentence(share)}"
    if covered.alone:
        return f"{run.devices[0].tag}: slot, health and copies with host memory agree. One GPU has no pair to judge."
    if not covered.judged:
        return sentence(share)
    judged = f"{sentence(share)} " if covered.missed else ""
    if diagnosis.unstaged:
        return f"{judged}Nothing contradicts the labels, but P2P may be slower than host memory."
    of_these = "For these, labels" if covered.missed else "Labels"
    but = f", but {diagnosis.left_open}" if diagnosis.left_open else _far_below_theory(diagnosis.far_below)
    return f"{judged}{of_these}, tools and measurement agree{but}."


def _far_below_theory(far: Mapping[str, float]) -> str:
    """Return the clause for labels whose links all reach far less than theory, with the most of each kind."""
    clauses = []
    for kind, down in (("NVLink", ", so NVLinks or an NVSwitch may be down"), ("PCIe", "")):
        labels = [label for label in sorted(far, key=rank_key) if is_nvlink(label) is (kind == "NVLink")]
        if labels:
            most = max(far[label] for label in labels)
            clauses.append(
                f"{' and '.join(labels)} pairs reach at most {most:.0%} of what {kind} allows in theory{down}"
            )
    return f" with one another, but {', and '.join(clauses)}" if clauses else ""


def worst_of(run: Run, verdicts: Sequence[Verdict]) -> str:
    """Return the first of the verdicts that are faults, and how many more there are; "" if none is one."""
    faults = [verdict for verdict in verdicts if verdict.severity is not Severity.INFO]
    if not faults:
        return ""
    return "; ".join([finding(faults[0]), *counts(faults[1:], "more ")]) + sim(run, " (sim)")


def counts(verdicts: Sequence[Verdict], more: str = "") -> list[str]:
    """Return how many failures and how many contradictions there are: ["1 failure", "2 contradictions"]."""
    hard = sum(verdict.severity in _FAILURES for verdict in verdicts)
    soft = sum(verdict.severity is Severity.CONTRADICTION for verdict in verdicts)
    return [amount(count, f"{more}{kind}") for count, kind in ((hard, "failure"), (soft, "contradiction")) if count]


def contradiction(diagnosis: Diagnosis) -> str:
    """Return the worst contradiction in a run of GPUs, in one line, else what is below its band; "" if nothing is.

    What failed and impossible rates are left to the headline. Of CPU cores other programs disturb single pairs.
    """
    if capabilities(diagnosis.run.backend).cores:
        return ""
    return worst_contradiction(diagnosis) or _below(diagnosis)


def worst_contradiction(diagnosis: Diagnosis) -> str:
    """Return the worst verdict that is a contradiction, in one line, but for IMPOSSIBLE; "" if there is none."""
    found = [
        verdict
        for verdict in diagnosis.verdicts
        if verdict.severity is Severity.CONTRADICTION and verdict.kind is not Kind.IMPOSSIBLE
    ]
    return worst_of(diagnosis.run, found)


def status_of(diagnosis: Diagnosis) -> ExitStatus:
    """Return the status with which the run's command ended, as far as the run shows it."""
    kind, status = diagnosis.run.settings.kind, outcome(diagnosis.run).status
    if kind == CommandKind.CHECK:
        return diagnosis.status
    return max(status, ExitStatus.CONTRADICTION) if kind == CommandKind.PAIRS and contradiction(diagnosis) else status


def contradicted(diagnosis: Diagnosis, name: str) -> Iterator[Lines]:
    """Yield the worst contradiction in a run, and which command explains it; `name` is the run's in a command line."""
    if worst := contradiction(diagnosis):
        yield explained_by_check(worst, name)


def explained_by_check(worst: str, name: str) -> Lines:
    """Return the line of a contradiction with the command that explains it."""
    return Lines(f"{worst}: 'collbench check {name}' explains it", style=ALARM)


def p2p_line(diagnosis: Diagnosis) -> list[Lines]:
    """Return the line of `against_staging`, none where P2P is not that slow."""
    staging = against_staging(diagnosis)
    return [Lines(f"p2p       {staging}")] if staging else []


def _healthy(diagnosis: Diagnosis) -> str:
    """Return how many pairs have no fault, with the rates of each label; "" if all have one."""
    run, rates = diagnosis.run, diagnosis.rates
    figures = "; ".join(_rates(run, label, rates[label]) for label in sorted(rates, key=rank_key))
    count = f"{len(diagnosis.healthy)} of {amount(diagnosis.coverage.pairs, 'pair')}{': ' if figures else ''}{figures}"
    return count if diagnosis.healthy else ""


def _rates(run: Run, label: str, readings: Sequence[Reading]) -> str:
    reached = span([reading.gbs for reading in readings], figure, "-")
    limits = {path.theory_gbs for path in run.paths if path.label == label and path.theory_gbs is not None}
    of = f" of {fixed(limits.pop(), 6)}" if len(limits) == 1 else ""
    family = "collectives" if readings[0].work.operation.is_collective else "copies"
    return f"{label} {reached}{of} GB/s{sim(run, ' sim')} ({family}, {format_size(readings[0].size_bytes)})"


# Verdicts in words, and checks that could not be made.


def not_done(check: NotDone, run: Run) -> str:
    """Return which check could not be made, and what would make it possible."""
    text, absence = check
    return f"{text}: {sentences.absence(absence, run)}" if absence else text


def what(verdict: Verdict, run: Run) -> str:
    """Return what was found, with the failure or the wrong data that shows it."""
    text = f"{verdict.place}: {verdict.text}." if verdict.text else f"{verdict.place}."
    if verdict.failure is not None:
        return f"{text} {sentences.failure(verdict.failure, run.devices).rstrip('.')}."
    if verdict.skipped is not None:
        return f"{verdict.place}: {sentences.skipped_reason(verdict.skipped, run).rstrip('.')}."
    return text


def pairs_judged(count: int, of: int) -> str:
    """Return "no pair was judged", "3 of 6 pairs were judged"."""
    return f"{count} of {amount(of, 'pair')} {verb(count, 'was', 'were')} judged" if count else "no pair was judged"


def finding(verdict: Verdict, *, with_cause: bool = False) -> str:
    """Return a verdict in one line: its kind, the part to blame or the place, the rates, the cause that was seen.

    What was found stands for a cause that was not seen; `with_cause` adds the probable one where no part is named.
    """
    rates = ""
    if verdict.measured is not None and verdict.theory_gbs is not None and verdict.kind is not Kind.IMPOSSIBLE:
        rates = f"{figure(verdict.measured[1])} GB/s, {verdict.limit} {fixed(verdict.theory_gbs)}"
    unsure = "" if verdict.confirmed else "not confirmed in isolation"
    where, part = verdict.place, verdict.cause.part
    if part and rates:
        rates, where = f"{rates}, on {where}", part
    found = (verdict.cause.text, rates) if verdict.cause.seen else (rates, verdict.text)
    cause = f"cause: {verdict.cause.text}" if with_cause and not (part or verdict.cause.seen) else ""
    said = "; ".join(filter(None, (*found, unsure, cause)))
    return f"{verdict.kind} {where}{': ' if said else ''}{said}"
