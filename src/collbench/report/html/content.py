"""The content of the HTML page of some runs, as JSON's own types."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from rich.text import Text

from collbench.choose.fitness import left_out
from collbench.choose.select import choose_each, evidence
from collbench.judge.compare import compare
from collbench.judge.diagnose import Severity, Verdict, coverage, judge
from collbench.judge.summary import RankedWork, rank_summary
from collbench.judge.tiers import Ranking, verdict_of
from collbench.model.capabilities import capabilities
from collbench.model.run import Run, tags
from collbench.model.units import counted, format_size
from collbench.report.html.page import Group, Section
from collbench.report.html.series import series
from collbench.report.sections import Html, section
from collbench.report.text import matrix, measured, pairs, tails, verdicts
from collbench.report.text import ranking as ranking_page
from collbench.report.text.comparison import body, matched
from collbench.report.text.frame import headline, health_lines, notes, nvls, provenance
from collbench.report.text.layout import Legend, Lines, Part, only, shown, table
from collbench.report.text.topology import render_topology

# The parts of a run's page below its map: what the commands print of it, and its tables.

_NO_DATA = "–"
_MOST_COMMUNICATORS = 8  # with single launches: all pairs of eight GPUs are 28


def _sections(run: Run, judged: Sequence[Verdict], works: Sequence[RankedWork]) -> list[Section]:
    verdict_blocks = [*verdicts.page(run, judged)]
    undone = [*only(verdict_blocks, "notes")]
    groups = [Group([*only(verdict_blocks, "verdicts")])]
    groups += [Group(undone, f"Not judged: this run lacks the data ({len(undone)})", paper=True)] if undone else []
    communicators = tails.by_communicator(run)[:_MOST_COMMUNICATORS]
    launches = [Group(tails.single_launches(run, by_size)) for by_size in communicators]
    return [
        *([Section("tails", "Tails and stragglers", launches)] if launches else []),
        Section("verdicts", "Verdicts", groups),
        Section("tiers", "Tiers", [*_tiers(run, works)], ranking_page.RELATIONS_LEGEND),
        Section("health", "Health", [*_health(run)]),
        Section("environment", "Environment", [*_environment(run)]),
    ]


def _tiers(run: Run, works: Sequence[RankedWork]) -> Iterator[Group]:
    """Yield the tiers of each work and size, as `show --ranking` prints them."""
    for number, work in enumerate(works):
        for at, one in enumerate(work.rankings):
            title = f"{work.work} at {format_size(one.size_bytes)}: {verdict_of(one)}"
            parts: list[Part] = [ranking_page.tiers_table(run, one), *ranking_page.resolution(one)]
            yield Group(parts, title, opened=number == at == 0, paper=at == 0)
    if not works:
        yield Group([Text("No link, pair or single device was measured.")])


def _health(run: Run) -> Iterator[Group]:
    """Yield the health before and after the run, and how it was measured."""
    health = [f"health    {line}" for line in health_lines(run)]
    yield Group([Lines("\n".join(health)) if health else Text("These devices report no temperatures or errors.")])
    if remarks := notes(run, health=False):
        yield Group([Text("\nHow it was measured"), Lines("\n".join(remarks))])


def _environment(run: Run) -> Iterator[Group]:
    settings, devices = run.settings, run.devices
    asked = [
        ("command", shlex.join(("collbench", *settings.command))),
        ("elements", f"{settings.dtype}, {settings.redop}, root {settings.root}"),
        ("precision", "default" if settings.precision is None else f"{settings.precision:.2%}"),
        ("collbench", run.version),
    ]
    rows = [(device.tag, device.name, device.pci_bus_id or _NO_DATA, device.uuid) for device in devices]
    heads = ("device", "name", "PCI bus id", "UUID")
    blocks: list[Part] = [Lines("\n".join(f"{name:<9} {text}" for name, text in (*provenance(run), *asked) if text))]
    blocks += [Text("\nDevices"), table(*heads, rows=rows, left=heads)]
    yield Group([*blocks, Text("\nLabels"), Text(render_topology(devices, run.paths))])


# What a run means: the three answers of the first screen, verdicts, choices, tiers and fits.


def _answers(run: Run, judged: Sequence[Verdict], shown: Html | None = None) -> list[Html]:
    """Return the first screen: which devices, how fast, is anything wrong.

    Where an annex measured the run, `shown` is what it shows instead of the first two.
    """
    ranking = evidence(run)
    first = [shown] if shown is not None else [_which_devices(run, ranking), _how_fast(run, ranking)]
    return [*first, _is_anything_wrong(run, judged)]


def _which_devices(run: Run, ranking: Ranking | None) -> Html:
    chosen = [] if ranking is None else [*choose_each(run)]
    lines, state = pairs.recommended(run, chosen), "warn" if left_out(run) else ""
    if not chosen:
        why = "the run has no pair" if ranking is None else "no two devices that were measured together are fit"
        return Html("Which devices", "nothing to choose", [why, *lines], state)
    any_of_them = all(one.tied or len(one.members) == len(run.devices) for one in chosen)
    short = "any of them" if any_of_them else tags(chosen[0].members, run.devices)
    return Html("Which devices", short, lines, state)


def _how_fast(run: Run, ranking: Ranking | None) -> Html:
    """Return the rates of the pairs that were ranked; without pairs, those of the first work at its largest size."""
    timed = [one for one in run.measured() or run.measurements if one.samples]
    if ranking is not None:
        timed = [one for one in timed if one.point.work == ranking.work and len(one.point.members) == 2]
    if not timed:
        return Html("How fast", "nothing measured", [])
    line = matrix.rates_line(run, next(iter(matrix.at_largest(timed).values()))).plain
    differ = [] if ranking is None else [verdict_of(ranking)]
    return Html("How fast", line.partition(": ")[2].partition(" at ")[0], [line, *differ])


def _is_anything_wrong(run: Run, judged: Sequence[Verdict]) -> Html:
    failed, covered = headline(run), coverage(run)
    faults = [verdict for verdict in judged if verdict.severity is not Severity.INFO]
    problems = verdicts.counts(faults)
    lines = [failed] if failed else []
    lines += [f"{verdict.kind}: {verdicts.what(verdict, run)}" for verdict in faults[:2]]
    if not problems:
        lines.append(verdicts.conclusion(run, covered, judged).rstrip("."))
    lines += health_lines(run)[:2]
    if not run.complete:
        lines.append("the run was interrupted: some of it is missing")
    if unfit := [one.member for one in left_out(run)]:
        problems.append(f"{tags(unfit, run.devices)} not fit")
    if failed or any(verdict.severity in (Severity.HARD, Severity.FAILURE) for verdict in faults):
        state = "hard"
    else:
        state = "warn" if problems or not covered.any or not run.complete else "ok"
    short = " and ".join(problems) or ("nothing found" if covered.any else "not judged")
    return Html("Is anything wrong", short, lines, state)


# The whole page.


def content(runs: Sequence[tuple[str, Run]], version: str) -> dict[str, Any]:
    """Return the page's content for these named runs; each further one is compared with the first.

    `version` is that of the collbench that makes the page.
    """
    shown = [_run(f"run-{number}", name, run) for number, (name, run) in enumerate(runs)]
    titles = dict.fromkeys(f"{run['title']}{' (sim)' if run['sim'] else ''}" for run in shown)
    return {
        "version": version,
        "title": f"collbench: {' and '.join(titles)}",
        "runs": shown,
        "comparisons": [
            _comparison(runs[0], other, f"run-{number}-over-run-0") for number, other in enumerate(runs[1:], 1)
        ],
    }


def _run(key: str, name: str, run: Run) -> dict[str, Any]:
    judged, works, simulated = judge(run), rank_summary(run), capabilities(run.backend).simulated
    measured_by = section(run)
    annex = None if measured_by is None else measured_by.html(run)
    machine, tags = run.machine, [device.tag for device in run.devices]
    where = f"simulated machine {machine.fabric}" if simulated else machine.hostname
    driver = f"driver {machine.driver}" if machine.driver else ""
    nccl = f"NCCL {machine.nccl}" if machine.nccl else ""
    every_series = series(run)
    return {
        "id": key,
        "name": name,
        "sim": simulated,
        "title": counted(device.name or "device" for device in run.devices),
        "origin": [part for part in (where, f"{run.backend} backend", driver, nccl, nvls(run), run.started) if part],
        "answers": _answers(run, judged, annex),
        "written": _written(run),
        "sections": _sections(run, judged, works),
        "data": {"id": key, "sim": simulated, "tags": tags, "series": every_series},
    }


def _written(run: Run) -> list[Part]:
    """Return the matrices and tables that the command prints: what stands for the maps where no script runs."""
    blocks = [*measured.page(run)]
    parts = [*only(blocks, "matrices"), *only(blocks, "tables")]
    return [part for part in parts if not isinstance(part, Legend) and (not isinstance(part, Text) or part.plain)]


def _comparison(base: tuple[str, Run], other: tuple[str, Run], key: str) -> dict[str, Any]:
    """Return what `compare` finds between two named runs."""
    (base_name, base_run), (name, run) = base, other
    simulated = any(capabilities(one.backend).simulated for one in (base_run, run))
    shape = {"id": key, "sim": simulated, "base": base_name, "other": name}
    if base_run.backend != run.backend:  # `compare` refuses these runs: their backends differ
        return {**shape, "how": f"not compared: {base_run.backend} and {run.backend} backend", "sections": []}
    comparison = compare(base_run, run, 0.0)
    said = [*shown(body(comparison, (base_name, name)), verbose=True)]
    sections = [Section("compare", "What compare finds", [Group(said)])]
    return {**shape, "how": matched(comparison), "sections": sections}
