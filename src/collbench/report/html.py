"""Some runs as one HTML page that contains its script, its style, and its data as JSON.

jinja2 escapes all text, and JSON: data is in a block that the browser does not run. A Content-Security-Policy allows
only this script and this style, by their hashes, and no requests.
"""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from rich.text import Text

from collbench.choose.fitness import left_out
from collbench.choose.select import choose_each, evidence, too_small
from collbench.judge.compare import compare
from collbench.judge.diagnose import Diagnosis, Severity
from collbench.judge.outcome import Outcome, outcome, without_idle
from collbench.judge.physics import Check, Impossible, by_point
from collbench.judge.stats import summarize, time_interval
from collbench.judge.summary import RankedWork, rank_summary
from collbench.judge.tiers import Ranking, kind_of, labels_of, rank_links, verdict_of, work_order
from collbench.model.operations import Endpoints, Operation, Variant, Work
from collbench.model.run import DataPoint, Measurement, Members, Run, StopReason, capabilities, tags
from collbench.model.units import NAME_WIDE, counted, format_size
from collbench.report import collectives, frame, matrix, sentences, verdicts
from collbench.report.comparison import body, matched
from collbench.report.frame import device_names, headline, health_lines, interrupted, notes, nvls, provenance
from collbench.report.layout import Found, Legend, Lines, Part, Table, only, shown, table
from collbench.report.ranking import RELATIONS_LEGEND, recommended, resolution, tiers_table
from collbench.report.topology import render_topology
from collbench.report.views import Html, view


@dataclass(frozen=True, slots=True)
class Panel:
    """Parts of a section that stand together; with a summary a reader opens them. `paper`: they are printed open."""

    parts: Sequence[Part]
    summary: str = ""
    opened: bool = False
    paper: bool = False


@dataclass(frozen=True, slots=True)
class PageSection:
    """A section of a run's page: a key for links, its heading, its groups, and a note above them."""

    key: str
    title: str
    groups: Sequence[Panel]
    note: str = ""


# The parts of a run's page below its map: what the commands print of it, and its tables.

_NO_DATA = "–"
_MAX_COMMUNICATORS = 8  # with single launches: all pairs of eight GPUs are 28


def _sections(diagnosis: Diagnosis, works: Sequence[RankedWork]) -> list[PageSection]:
    run, verdict_blocks = diagnosis.run, [*verdicts.page(diagnosis)]
    undone = [*only(verdict_blocks, "notes")]
    groups = [Panel([*only(verdict_blocks, "verdicts")])]
    groups += [Panel(undone, f"Not judged: this run lacks the data ({len(undone)})", paper=True)] if undone else []
    communicators = collectives.launches_by_communicator(run)[:_MAX_COMMUNICATORS]
    launches = [Panel(collectives.single_launches(run, by_size)) for by_size in communicators]
    return [
        *([PageSection("tails", "Tails and stragglers", launches)] if launches else []),
        PageSection("verdicts", "Verdicts", groups),
        PageSection("tiers", "Tiers", [*_tiers(run, works)], RELATIONS_LEGEND),
        PageSection("health", "Health", [*_health(run)]),
        PageSection("environment", "Environment", [*_environment(run)]),
    ]


def _tiers(run: Run, works: Sequence[RankedWork]) -> Iterator[Panel]:
    """Yield the tiers of each work and size, as `show --ranking` prints them."""
    for number, work in enumerate(works):
        for at, ranking in enumerate(work.rankings):
            title = f"{work.work} at {format_size(ranking.size_bytes)}: {verdict_of(ranking)}"
            parts: list[Part] = [tiers_table(run, ranking), *resolution(ranking)]
            yield Panel(parts, title, opened=number == at == 0, paper=at == 0)
    if not works:
        yield Panel([Text("No link, pair or single device was measured.")])


def _health(run: Run) -> Iterator[Panel]:
    """Yield the health before and after the run, and how it was measured."""
    health = [f"health    {line}" for line in health_lines(run)]
    yield Panel([Lines("\n".join(health)) if health else Text("These devices report no temperatures or errors.")])
    if remarks := notes(run):
        yield Panel([Text("\nHow it was measured"), Lines("\n".join(remarks))])


def _environment(run: Run) -> Iterator[Panel]:
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
    yield Panel([*blocks, Text("\nLabels"), Text(render_topology(devices, run.paths))])


# What a run means: the three answers of the first screen, verdicts, choices, tiers and fits.


def _answers(diagnosis: Diagnosis, shown: Html | None) -> list[Html]:
    """Return the first screen: which devices, how fast, is anything wrong.

    Where an annex measured the run, `shown` is what it shows instead of the first two.
    """
    run = diagnosis.run
    ranking = evidence(run)
    first = [shown] if shown is not None else [_which_devices(run, ranking), _how_fast(run, ranking)]
    return [*first, _is_anything_wrong(diagnosis)]


def _which_devices(run: Run, ranking: Ranking | None) -> Html:
    chosen = [] if ranking is None else [*choose_each(run)]
    lines, state = recommended(run, chosen), "warn" if left_out(run) else ""
    if not chosen:
        unfit = "no two devices that were measured together are fit"
        whys = ["the run has no pair"] if ranking is None else [] if too_small(run, ranking) else [unfit]
        return Html("Which devices", "nothing to choose", [*whys, *lines], state)
    any_of_them = all(choice.tied or len(choice.members) == len(run.devices) for choice in chosen)
    short = "any of them" if any_of_them else tags(chosen[0].members, run.devices)
    return Html("Which devices", short, lines, state)


def _how_fast(run: Run, ranking: Ranking | None) -> Html:
    """Return the rates of the pairs that were ranked; without pairs, those of the first work at its largest size."""
    timed = [measurement for measurement in run.measured() or run.measurements if measurement.samples]
    if ranking is not None:
        timed = [pair for pair in timed if pair.point.work == ranking.work and len(pair.point.members) == 2]
    if not timed:
        return Html("How fast", "nothing measured", [])
    line = matrix.rates_line(run, next(iter(matrix.at_largest(timed).values()))).plain
    differ = [] if ranking is None else [verdict_of(ranking)]
    return Html("How fast", line.partition(": ")[2].partition(" at ")[0], [line, *differ])


def _is_anything_wrong(diagnosis: Diagnosis) -> Html:
    run, covered = diagnosis.run, diagnosis.coverage
    failed = headline(run)
    faults = [verdict for verdict in diagnosis.verdicts if verdict.severity is not Severity.INFO]
    problems = verdicts.counts(faults)
    lines = [failed] if failed else []
    lines += [f"{verdict.kind}: {verdicts.what(verdict, run)}" for verdict in faults[:2]]
    if not problems:
        lines.append(verdicts.conclusion(diagnosis).rstrip("."))
    lines += filter(None, [verdicts.against_staging(diagnosis)])
    lines += health_lines(run)[:2]
    if not run.complete:
        lines.append(interrupted(run))
    if unfit := [left.member for left in left_out(run)]:
        problems.append(f"{tags(unfit, run.devices)} not fit")
    if diagnosis.unstaged or diagnosis.far_below:
        problems.append("far below theory")
    elif diagnosis.left_open and not faults:
        problems.append("left open")
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
    diagnosis, works, simulated = Diagnosis(run), rank_summary(run), capabilities(run.backend).simulated
    measured_by = view(run)
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
        "answers": _answers(diagnosis, annex),
        "written": _written(diagnosis),
        "sections": _sections(diagnosis, works),
        "data": {"id": key, "sim": simulated, "tags": tags, "series": every_series},
    }


def _written(diagnosis: Diagnosis) -> list[Part]:
    """Return the matrices and tables that the command prints: what stands for the maps where no script runs."""
    blocks = [*frame.run_page(diagnosis)]
    parts = [*only(blocks, "matrices"), *only(blocks, "tables")]
    return [part for part in parts if not isinstance(part, Legend) and (not isinstance(part, Text) or part.plain)]


def _comparison(base: tuple[str, Run], other: tuple[str, Run], key: str) -> dict[str, Any]:
    """Return what `compare` finds between two named runs."""
    (base_name, base_run), (name, run) = base, other
    simulated = any(capabilities(side.backend).simulated for side in (base_run, run))
    shape = {"id": key, "sim": simulated, "base": base_name, "other": name}
    if base_run.backend != run.backend:  # `compare` refuses these runs: their backends differ
        return {**shape, "how": f"not compared: {base_run.backend} and {run.backend} backend", "sections": []}
    comparison = compare(base_run, run, 0.0)
    said = [*shown(body(comparison, (base_name, name)), verbose=True)]
    sections = [PageSection("compare", "What compare finds", [Panel(said)])]
    return {**shape, "how": matched(comparison), "sections": sections}


# The figures of the data points of one work.

# Of each size (ascending) and each set of devices the data point, None where there is none.
Grid = Sequence[Sequence[Measurement | None]]

Bounds = tuple[float | None, float | None, float | None]  # the low end of the 95% interval, the median, the high end

NOTHING: Bounds = (None, None, None)


def _short(value: float | None) -> float | None:
    """Return a figure with five digits: measurements have no more, and the page stays small enough for a mail."""
    if value is None:
        return None
    rounded = float(f"{value:.5g}")
    return int(rounded) if rounded == int(rounded) else rounded


# Figures: each quantity with its 95% interval and shade, which the page's script only looks up.

# The brightness of each share of the best: steeper at the top, where a slow link shows, and without steps, so that
# similar figures look similar.
_BRIGHT = ((0.0, 0.25, 0.50, 0.75, 0.90, 0.95, 0.98, 1.0), (0.0, 4.0, 8.0, 12.0, 16.0, 20.0, 23.0, 24.0))


def figures(work: Work, grid: Grid) -> list[dict[str, Any]]:
    """Return the work's bandwidth, which an access has not, and its time."""
    is_access = work.operation is Operation.CHASE
    unit, scale = ("ns an access", 1e9) if is_access else ("µs", 1e6)
    quantity = "bus bandwidth (busbw)" if work.operation.is_collective else "bandwidth"
    rates = [] if is_access else [_figure(grid, quantity, "GB/s", _rates)]
    return [*rates, _figure(grid, "time", unit, lambda measurement: _times(measurement, scale), least=True)]


def _figure(
    grid: Grid, title: str, unit: str, bounds: Callable[[Measurement], Bounds], *, least: bool = False
) -> dict[str, Any]:
    """Return a figure by size and device set, with the ends of its interval; `least`: the smallest is the best."""
    rows = [[bounds(cell) if cell is not None and cell.samples else NOTHING for cell in row] for row in grid]
    low, value, high = ([[_short(three[end]) for three in row] for row in rows] for end in range(3))
    shape = {"title": title, "unit": unit, "least": least, "shades": [_shades(row, least=least) for row in value]}
    return {**shape, "value": value, "low": low, "high": high}


def _shades(row: Sequence[float | None], *, least: bool) -> str:
    """Return a letter for each figure, from Y for the best shade to A for the worst; "-" where there is no figure."""
    known = [value for value in row if value]
    best = min(known, default=0.0) if least else max(known, default=0.0)
    shares = ((best / value if least else value / best) if value else None for value in row)
    return "".join(
        "-" if share is None else chr(ord("A") + round(float(np.interp(share, *_BRIGHT)))) for share in shares
    )


def _rates(measurement: Measurement) -> Bounds:
    summary = summarize(measurement)
    low, high = summary.interval or (None, None)
    return low, summary.busbw, high


def _times(measurement: Measurement, scale: float) -> Bounds:
    low, high = (None if end is None else end * scale for end in time_interval(measurement) or (None, None))
    return low, summarize(measurement).seconds * scale, high


# Series: for each operation and kind of device set a table of sizes × device sets for each quantity, and a note for
# each data point.

_DIRECTED = {
    "link": "row sends to column",
    "pair": "one figure for both directions",
    "device": "each device",
    "group": "each set of devices",
}
_STOPS = {
    StopReason.BUDGET: "time budget reached before it converged",
    StopReason.INTERRUPTED: "interrupted",
    StopReason.FAILED: "stopped after a failure",
}


# What the page's script reads: each figure is a table of sizes × sets of devices. `tiers` has of each set its number
# and the first letter of its relation to the best; `notes` the index in `words` of a text on each data point.
Series = dict[str, Any]


def series(run: Run) -> list[Series]:
    """Return the run's series as JSON's own types, in the model's order of operations, larger sets last."""
    run = without_idle(run)
    groups: dict[tuple[Work, int], dict[tuple[int, Members], Measurement]] = defaultdict(dict)
    for measurement in run.measurements:
        work = measurement.point.work
        ranks = len(measurement.point.members) if work.operation.is_collective else 0
        groups[work, ranks][measurement.point.size_bytes, measurement.point.members] = measurement
    check, run_outcome, impossible_points = Check(run), outcome(run), by_point(run)
    return [
        _series(run, work, groups[work, ranks], check, run_outcome, impossible_points)
        for work, ranks in sorted(groups, key=lambda group: (work_order(group[0]), group[1]))
        if any(measurement.samples for measurement in groups[work, ranks].values())
    ]


def _series(
    run: Run,
    work: Work,
    points: Mapping[tuple[int, Members], Measurement],
    check: Check,
    run_outcome: Outcome,
    impossible_points: Mapping[DataPoint, Impossible],
) -> Series:
    sizes, sets = (sorted(set(part)) for part in zip(*points, strict=True))
    grid = [[points.get((size, devices)) for devices in sets] for size in sizes]
    kind = "device" if work.variant.endpoints is Endpoints.DEVICE_AND_OTHERS else kind_of(work)
    if work.operation.is_collective and len(sets[0]) > 2:
        kind = "group"
    labels = labels_of(run, sets) if kind in ("link", "pair") else {}
    rankings = [None if kind == "group" else rank_links(run, work, size, run_outcome) for size in sizes]
    tiers = list[list[Any]]()
    for ranking in rankings:
        of_sets = {
            standing.members: [standing.tier, standing.relation.value[0]]
            for standing in (ranking.standings if ranking else ())
        }
        tiers.append([of_sets.get(devices, []) for devices in sets] if ranking else [])
    # An access has no rate, and what more than two ranks reach depends on the algorithm.
    limited = work.operation is not Operation.CHASE and kind != "group"
    largest = [next(cell.point for cell in reversed(column) if cell) for column in zip(*grid, strict=True)]
    limits = [check.limit(point, 0.0) if limited else None for point in largest]
    notes = [[_note(run, impossible_points, cell) for cell in row] for row in grid]
    words = list(dict.fromkeys(["", *(note for row in notes for note in row)]))
    return {
        "name": f"{work} over {len(sets[0])} ranks" if kind == "group" else str(work),
        "kind": kind,
        "about": _DIRECTED[kind],
        "sizes": sizes,
        "sets": [list(devices) for devices in sets],
        "names": [device_names(run.devices, work, devices) for devices in sets],
        "figures": figures(work, grid),
        "notes": [[words.index(note) for note in row] for row in notes],
        "words": words,
        "ways": "both ways together" if work.variant is Variant.BOTH_WAYS else "one way",
        "labels": [labels.get(devices, "") for devices in sets],
        "theory": [None if limit is None else _short(limit.gbs) for limit in limits],
        "tiers": tiers,
        "verdicts": ["" if ranking is None else verdict_of(ranking) for ranking in rankings],
        "failed": [[at for at, cell in enumerate(row) if cell and cell.failure and not cell.samples] for row in grid],
        "size_names": [*map(format_size, sizes)],
    }


def _note(run: Run, impossible_points: Mapping[DataPoint, Impossible], measurement: Measurement | None) -> str:
    """Return what a reader must know of one data point."""
    if measurement is None:
        return ""
    notes = []
    if impossible := impossible_points.get(measurement.point):
        limit = impossible.capacity.gbs
        notes.append(f"impossible: {impossible.rate_gbs:.1f} GB/s, the limit is {limit:.1f} GB/s")
    if measurement.failure:
        notes.append(f"failed: {sentences.failure(measurement.failure, run.devices)}")
    if measurement.wrong:
        notes.append(f"{measurement.wrong} wrong elements")
    if measurement.stop in _STOPS:
        notes.append(_STOPS[measurement.stop])
    if any(sample.concurrent for sample in measurement.samples):
        notes.append("measured concurrently with others")
    notes += sorted({sentences.flag(flag, run.devices) for sample in measurement.samples for flag in sample.flags})
    return "; ".join(dict.fromkeys(notes))


# The page as text: the pieces in `pieces/`, filled with the content.

_STYLES = ("base.css", "parts.css", "map.css", "print.css")
_SCRIPTS = ("dom.js", "words.js", "grid.js", "chart.js", "view.js", "main.js")
_LONG = 40  # characters of a cell that wraps
_STATES = {"bold red": "hard", "bold yellow": "warn", "bold cyan": "info"}  # by the style of what was found


def _kind(part: Part) -> dict[str, Any]:
    """Return what the template draws of a part, by its kind."""
    if isinstance(part, Table):
        longest = [max((len(row[at]) for row in part.rows), default=0) for at, _ in enumerate(part.heads)]
        looks = ("number" if at not in part.left else "text" if long > _LONG else "" for at, long in enumerate(longest))
        return {"columns": list(zip(part.heads, looks, strict=True)), "rows": part.rows}
    if isinstance(part, Found):
        return {"found": part, "state": _STATES[part.style]}
    text, heads = part.plain.strip("\n"), part.plain.startswith("\n")
    if isinstance(part, Lines) and ("\n" in text or not heads):
        return {"facts": [(line[:NAME_WIDE].strip(), line[NAME_WIDE:].strip()) for line in text.split("\n")]}
    return {"lined" if "\n" in text else "head" if heads else "text": text}


def render(content: Mapping[str, Any]) -> str:
    """Return the page as text, from what `content` returns."""
    loader = PackageLoader("collbench.report", "pieces")
    environment = Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    style, script = (
        "".join(loader.get_source(environment, name)[0] for name in names) for names in (_STYLES, _SCRIPTS)
    )
    # One scope, so that nothing becomes a global name.
    script = f'(() => {{\n"use strict";\n{script}}})();\n'
    return environment.get_template("page.html").render(
        content,
        policy=_policy(script, style),
        style=Markup(style),  # noqa: S704  # our own file, not a machine's words
        script=Markup(script),  # noqa: S704  # likewise
        kind=_kind,
    )


def _policy(script: str, style: str) -> str:
    """Return the Content-Security-Policy. Its hashes are of the exact bytes between the tags."""
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {_hash(script)}",
            f"style-src {_hash(style)}",
            "img-src data:",  # an empty icon, so that no browser asks a server for one
            "base-uri 'none'",
            "form-action 'none'",
            "require-trusted-types-for 'script'",  # innerHTML and similar APIs throw
        )
    )


def _hash(text: str) -> str:
    # The files end lines with \n, as HTML reads them, so the hash is of the bytes in the page.
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
