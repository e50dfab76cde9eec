"""The page and the JSON of `collbench check`: what disagrees, why, and how to check it."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from collbench.affinity.verdicts import Kind, Severity, Verdict, not_judged
from collbench.affinity.verdicts.readings import Facts, Reading
from collbench.machine.labels import rank_key
from collbench.model import Run
from collbench.plain import plain
from collbench.report.header import header
from collbench.report.prose import WIDE, filled
from collbench.units import format_size

FORMAT, VERSION = "collbench-check", 1
# Exit statuses of the command (docs/check.md).
AGREE, CONTRADICTION, HARD = 0, 3, 4
_STYLES = {Severity.HARD: "bold red", Severity.CONTRADICTION: "bold yellow", Severity.INFO: "bold cyan"}
_INDENT = 10  # of what follows a field's name
_FAMILY = {True: "collectives", False: "copies"}


def status(verdicts: Iterable[Verdict]) -> int:
    """Return the exit status: 0 agree, 3 a contradiction, 4 data corruption or a hang."""
    worst = {verdict.severity for verdict in verdicts}
    return HARD if Severity.HARD in worst else CONTRADICTION if Severity.CONTRADICTION in worst else AGREE


def page(run: Run, verdicts: Sequence[Verdict], width: int = WIDE) -> Iterator[RenderableType]:
    """Yield the page's blocks, top to bottom; texts are wrapped to `width` columns, commands are not."""
    yield Text(header(run))
    for verdict in verdicts:
        yield Text()
        yield _block(run, verdict, width)
    yield Text(f"\n{filled(_conclusion(verdicts), width)}")
    healthy = _healthy(run, verdicts)
    if healthy:
        yield Text(_field("agree", healthy, width))
    for line in not_judged(run):
        yield Text(_field("not done", line, width))


def dumps(run: Run, verdicts: Sequence[Verdict]) -> str:
    """Return the verdicts as JSON text (docs/check.md)."""
    data = {
        "format": FORMAT,
        "format_version": VERSION,
        "backend": run.backend,
        "hostname": run.machine.hostname,
        "fabric": run.machine.fabric,
        "started": run.started,
        "exit_status": status(verdicts),
        "verdicts": [_plain(run, verdict) for verdict in verdicts],
        "not_judged": list(not_judged(run)),
    }
    return json.dumps(data, ensure_ascii=False, indent=1) + "\n"


def _plain(run: Run, verdict: Verdict) -> dict[str, Any]:
    data: dict[str, Any] = plain(verdict)
    measured = data.pop("measured")
    data["measured_gbs"] = None if measured is None else dict(zip(("lo", "mid", "hi"), measured, strict=True))
    data["devices"] = [run.devices[member].tag for member in verdict.members]
    return data


def _block(run: Run, verdict: Verdict, width: int) -> Text:
    """Return one verdict: its kind and place, then a field a line."""
    place = ", ".join(run.devices[member].tag for member in verdict.members)
    head = Text(str(verdict.kind), style=_STYLES[verdict.severity])
    label = f" ({verdict.label})" if verdict.label else ""
    head.append(f"  {place}{label}", style="")
    fields = [("what", verdict.what)]
    if verdict.theory_gbs is not None:
        fields.append((_theory_name(verdict), f"{verdict.theory_gbs:.4g} GB/s{_sim(run)}{_source(run, verdict)}"))
    if verdict.measured is not None:
        fields.append(("measured", _measured(run, verdict)))
    fields.append(("cause", verdict.cause))
    if verdict.explains:
        fields.append(("explains", ", ".join(verdict.explains)))
    lines = [_field(name, text, width) for name, text in fields]
    lines.append(f"{'check':<{_INDENT}}{verdict.command}")  # in one piece, to be copied
    return Text("\n").join([head, *(Text(f"  {line}".replace("\n", "\n  ")) for line in lines)])


def _theory_name(verdict: Verdict) -> str:
    """Return what the limit is: a collective's is what its links carry, an audit's the rate alone."""
    if verdict.kind is Kind.COLLECTIVE_CONTRADICTION:
        return "links"
    return "alone" if verdict.kind is Kind.CONTENTION else "theory"


def _source(run: Run, verdict: Verdict) -> str:
    if _theory_name(verdict) != "theory" or len(verdict.members) < 2:
        return ""
    path = next((p for p in run.paths if set(p.devices) <= set(verdict.members) and p.label == verdict.label), None)
    return f": {path.theory_source}" if path and path.theory_source else ""


def _measured(run: Run, verdict: Verdict) -> str:
    low, middle, high = verdict.measured or (0.0, 0.0, 0.0)
    confirmed = "" if verdict.confirmed else "; not confirmed alone"
    return f"{_figure(middle)} GB/s{_sim(run)} ({_figure(low)}-{_figure(high)}){confirmed}"


def _sim(run: Run) -> str:
    """Return the word that no simulated figure goes without."""
    return " sim" if run.backend == "sim" else ""


def _figure(gbs: float) -> str:
    return f"{gbs:.1f}" if gbs >= 10 else f"{gbs:.2f}"


def _conclusion(verdicts: Sequence[Verdict]) -> str:
    hard = sum(verdict.severity is Severity.HARD for verdict in verdicts)
    soft = sum(verdict.severity is Severity.CONTRADICTION for verdict in verdicts)
    told = [
        f"{count} {word}{'s' if count > 1 else ''}"
        for count, word in ((hard, "failure"), (soft, "contradiction"))
        if count
    ]
    return f"{' and '.join(told).capitalize()}." if told else "Labels, tools and measurement agree."


def _healthy(run: Run, verdicts: Sequence[Verdict]) -> str:
    """Return a line on the pairs that nothing was found on, with the rates of each label; "" where there is none."""
    pairs = [frozenset(path.devices) for path in run.paths]
    bad = {pair for pair in pairs for verdict in verdicts if _concerns(verdict, pair)}
    well = [pair for pair in pairs if pair not in bad]
    if not well:
        return ""
    facts = Facts(run)
    rates: dict[str, list[Reading]] = defaultdict(list)
    for pair in well:
        for link in (tuple(sorted(pair)), tuple(sorted(pair, reverse=True))):
            reading = _reading(facts, (link[0], link[1]))
            if reading is not None:
                rates[reading.label].append(reading)
    words = "; ".join(_rates(run, label, rates[label]) for label in sorted(rates, key=rank_key))
    return f"{len(well)} of {len(pairs)} pairs{': ' if words else ''}{words}"


def _reading(facts: Facts, link: tuple[int, int]) -> Reading | None:
    """Return what stands for a link: its fastest copy, else the first collective that was measured on the pair."""
    copy = facts.readings.best(link, 1)
    if copy is not None:
        return copy
    pair = (min(link), max(link))
    there = (facts.readings.of(work).get(pair) for work in facts.readings.works(collective=True))
    return next((reading for reading in there if reading), None)


def _rates(run: Run, label: str, readings: Sequence[Reading]) -> str:
    low, high = (_figure(pick(reading.gbs for reading in readings)) for pick in (min, max))
    span = low if low == high else f"{low}-{high}"
    limits = {path.theory_gbs for path in run.paths if path.label == label and path.theory_gbs is not None}
    of = f" of {limits.pop():g}" if len(limits) == 1 else ""
    family = _FAMILY[readings[0].work.operation.is_collective]
    return f"{label} {span}{of} GB/s{_sim(run)} ({family}, {format_size(readings[0].size_bytes)})"


def _concerns(verdict: Verdict, pair: frozenset[int]) -> bool:
    """Return whether a verdict that is a fault is about this pair."""
    if verdict.severity is Severity.INFO:
        return False
    return bool(pair & set(verdict.members)) if len(verdict.members) == 1 else pair <= set(verdict.members)


def _field(name: str, text: str, width: int) -> str:
    return filled(text, width - 2, f"{name:<{_INDENT}}", " " * _INDENT)
