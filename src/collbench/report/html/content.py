"""The content of the HTML page of some runs, as JSON's own types."""

from __future__ import annotations

import math
import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from collbench.choose.problem import left_out
from collbench.choose.select import choose, choose_each, evidence
from collbench.judge.compare import compare
from collbench.judge.diagnose import Kind, Severity, Verdict, coverage, judge
from collbench.judge.fits import Fit, Unfitted
from collbench.judge.outcome import outcome
from collbench.judge.stats import summarize
from collbench.judge.summary import RankedWork, rank_summary
from collbench.judge.tails import Tails, histogram
from collbench.judge.tiers import RankedLink, Ranking
from collbench.machine import labels
from collbench.model.capabilities import capabilities
from collbench.model.errors import UsageError
from collbench.model.operations import Operation, Work
from collbench.model.run import Device, Health, Measurement, Run, tags
from collbench.model.units import TELLING_BYTES, abridged, counted, figure, fixed, format_approximate_size, format_size
from collbench.report import choice_text, sentences
from collbench.report.html.series import as_a_whole, broken, families, overview, ratio_series, series
from collbench.report.prose import NAME_WIDE
from collbench.report.sections import Html, section
from collbench.report.text import tails as tails_text
from collbench.report.text import verdicts
from collbench.report.text.comparison import described, matched
from collbench.report.text.frame import headline, health_lines, notes, nvls, provenance, sim
from collbench.report.text.ranking import by_tier, figures_span, fitted, name, relations
from collbench.report.text.topology import explain_pair, known_limits, label_matrix

# Where a run was measured: environment, devices, labels, health.

_NO_DATA = "–"
_MOST_PATHS = 64  # of more paths the page has only the labels


def _pcie(one: Device | Health) -> str | None:
    return f"gen {one.pcie_generation} ×{one.pcie_width}" if one.pcie_generation and one.pcie_width else None


# The page's name of each reading, and its value.
_READINGS: dict[str, Callable[[Health], object]] = {
    "sm": lambda state: state.sm_clock,
    "memory_clock": lambda state: state.memory_clock,
    "temperature": lambda state: state.temperature,
    "power": lambda state: None if state.power is None else round(state.power),
    "nvlink_errors": lambda state: state.nvlink_errors,
    "nvlink_replays": lambda state: state.nvlink_replays,
    "ecc": lambda state: state.ecc_errors,
    "processes": lambda state: state.processes,
    "used": lambda state: None if state.memory_used is None else format_approximate_size(state.memory_used),
    "pcie": _pcie,
}


def environment(run: Run) -> list[tuple[str, str]]:
    """Return (name, text) of the header of every page, and of the settings of the run."""
    settings = run.settings
    asked = [
        ("command", shlex.join(("collbench", *settings.command))),
        ("elements", f"{settings.dtype}, {settings.redop}, root {settings.root}"),
        ("precision", "default" if settings.precision is None else f"{settings.precision:.2%}"),
        ("sizes", ", ".join(map(format_size, settings.sizes))),
        ("seed", str(settings.seed)),
        ("variables", ", ".join(f"{name}={value}" for name, value in sorted(settings.environment.items())) or "none"),
        ("collbench", run.version),
    ]
    return [*provenance(run), *(pair for pair in asked if pair[1])]


def devices(run: Run) -> list[dict[str, str]]:
    """Return each device's identity and its attachment to the machine."""
    return [
        {
            "tag": device.tag,
            "name": device.name,
            "uuid": device.uuid,
            "pci": device.pci_bus_id or _NO_DATA,
            "memory": format_approximate_size(device.memory_bytes) if device.memory_bytes else _NO_DATA,
            "numa": _NO_DATA if device.numa_node is None else str(device.numa_node),
            "cpus": device.cpu_affinity or _NO_DATA,
            "pcie": _pcie(device) or _NO_DATA,
        }
        for device in run.devices
    ]


def limits(run: Run) -> list[tuple[str, str]]:
    """Return (label, one-way limit with its source) of each distinct one, best label first."""
    return [
        (label, f"{fixed(gbs, 6)} GB/s: {source}" if source else f"{fixed(gbs, 6)} GB/s")
        for label, gbs, source in known_limits(run.paths)
    ]


def paths(run: Run) -> list[str]:
    """Return a sentence on each path; nothing if there are too many to read."""
    return [explain_pair(run.devices, path) for path in run.paths] if len(run.paths) <= _MOST_PATHS else []


def health(run: Run) -> dict[str, Any]:
    """Return the lines of `frame.health_lines`, and each device's state before and after; no rows for CPU cores."""
    rows = []
    after_run = [*run.health_after, *(Health() for _ in run.devices)]  # unknown after an interrupted run
    for device, before, after in zip(run.devices, run.health_before, after_run, strict=False):
        throttle = dict.fromkeys((*before.throttle, *after.throttle))
        row = {"tag": device.tag, "throttle": ", ".join(throttle) or "none"}
        for reading, read in _READINGS.items():  # "before → after", one figure where it did not change
            known = [str(value) for value in (read(before), read(after)) if value is not None]
            row[reading] = " → ".join(dict.fromkeys(known)) or _NO_DATA
        rows.append(row)
    return {"lines": health_lines(run), "rows": rows}


def interference_checks(run: Run) -> Iterator[dict[str, str]]:
    """Yield each pair's isolated and concurrent rate."""
    for check in run.interference_checks:
        yield {
            "what": f"{Work(check.operation, check.variant)} on {tags(check.members, run.devices)}",
            "label": check.label,
            "isolated": fixed(check.isolated_gbs),
            "concurrent": fixed(check.concurrent_gbs),
            "ratio": f"{check.ratio:.3f}",
            "trusted": "yes" if check.trusted else f"no: ±{check.delta:.1%} was allowed",
        }


# What a run means: the three answers of the first screen, verdicts, choices, tiers and fits.

_MOST_FITS = 64  # rows; the map shows α, β and n½ of every set
_MOST_NAMES = 24  # of a tier
_SEVERITIES = {
    Severity.HARD: "hard",
    Severity.CONTRADICTION: "warn",
    Severity.FAILURE: "hard",
    Severity.INFO: "info",
}
# What a verdict's limit is where it is not the theory of a path (docs/check.md).
_LIMITS = {Kind.COLLECTIVE_CONTRADICTION: "capacity of the links", Kind.CONTENTION: "isolated"}


def answers(run: Run, judged: Sequence[Verdict], shown: Html | None = None) -> list[dict[str, Any]]:
    """Return the first screen: which devices, how fast, is anything wrong. Each has a short answer and some lines.

    Where an annex measured the run, `shown` is what it shows instead of the first two.
    """
    if shown is not None:
        return [_answer(shown.question, shown.short, shown.lines), _is_anything_wrong(run, judged)]
    ranking = evidence(run)
    return [_which_devices(run, ranking), _how_fast(run, ranking), _is_anything_wrong(run, judged)]


def _which_devices(run: Run, ranking: Ranking | None) -> dict[str, Any]:
    out = [f"left out {line}" for line in left(run)]
    chosen = [] if ranking is None else [*choose_each(run)]
    if not chosen:
        why = "the run has no pair" if ranking is None else "no two devices that were measured together are fit"
        return _answer("Which devices", "nothing to choose", [why, *out], "warn" if out else "")
    if all(one.tied or len(one.members) == len(run.devices) for one in chosen):
        short, lines = "any of them", [choice_text.reason(chosen[0], run.devices)]
    else:
        short = tags(chosen[0].members, run.devices)
        lines = [f"the best {len(chosen[0].members)}: {choice_text.reason(chosen[0], run.devices)}"]
        lines += [f"best {len(one.members)}: {tags(one.members, run.devices)}" for one in chosen[1:]]
    return _answer("Which devices", short, [*lines, *out], "warn" if out else "")


def _how_fast(run: Run, ranking: Ranking | None) -> dict[str, Any]:
    if ranking is None:
        return _fastest_of_the_rest(run)
    best, worst = ranking.standings[0], ranking.standings[-1]
    what = f"{ranking.operation} at {format_size(ranking.size_bytes)} on each of {len(ranking.standings)} pairs"
    quantity = "bus bandwidth" if ranking.operation.is_collective else "slower direction"
    rate = f"{figure(best.gbs)} GB/s"
    if best.interval is not None:
        rate += f" (95%: {figure(best.interval[0])}–{figure(best.interval[1])})"
    lines = [f"{what}, {quantity}", f"best {name(run, ranking.work, best.members)}: {rate}", choice_text.tiers(ranking)]
    return _answer("How fast", f"{figures_span([worst.gbs, best.gbs], '–')} GB/s", lines)


def _fastest_of_the_rest(run: Run) -> dict[str, Any]:
    """Return the answer for a run without pairs: its first work at its largest size."""
    family = next((f for f in families(run) if any(measurement.samples for measurement in f.points.values())), None)
    if family is None:
        return _answer("How fast", "nothing measured", [])
    size = max(size for (size, _), measurement in family.points.items() if measurement.samples)
    summaries = [summarize(one) for (at, _), one in family.points.items() if at == size and one.samples]
    if family.work.operation is Operation.CHASE:
        rates = f"{figures_span([one.seconds * 1e9 for one in summaries], '–')} ns"
    else:
        rates = f"{figures_span([one.busbw for one in summaries], '–')} GB/s"
    return _answer("How fast", rates, [f"{family.name} at {format_size(size)}"])


def _is_anything_wrong(run: Run, judged: Sequence[Verdict]) -> dict[str, Any]:
    failed, covered = headline(run), coverage(run)
    faults = [verdict for verdict in judged if verdict.severity is not Severity.INFO]
    problems = verdicts.counts(faults)
    lines = [failed] if failed else []
    lines += [f"{verdict.kind}: {sentences.what(verdict, run)}" for verdict in faults[:2]]
    if not problems:
        lines.append(verdicts.conclusion(run, covered, judged).rstrip("."))
    lines += health_lines(run)[:2]
    if not run.complete:
        lines.append("the run was interrupted: some of it is missing")
    if unfit := [one.member for one in left_out(run)]:
        problems.append(f"{tags(unfit, run.devices)} not fit")
    if failed or any(_SEVERITIES[verdict.severity] == "hard" for verdict in faults):
        state = "hard"
    else:
        state = "warn" if problems or not covered.any or not run.complete else "ok"
    short = " and ".join(problems) or ("nothing found" if covered.any else "not judged")
    return _answer("Is anything wrong", short, lines, state)


def _answer(question: str, short: str, lines: Sequence[str], state: str = "") -> dict[str, Any]:
    return {"question": question, "short": short, "lines": list(lines), "state": state}


def shown_verdicts(run: Run, judged: Sequence[Verdict]) -> dict[str, Any]:
    """Return the verdicts as `collbench check` prints them, and what could not be judged."""
    data = verdicts.as_json(run, judged)
    shown = []
    for verdict, one in zip(judged, data["verdicts"], strict=True):
        lines = []
        if verdict.theory_gbs is not None:
            lines.append((_LIMITS.get(verdict.kind, "theory"), f"{fixed(verdict.theory_gbs)} GB/s"))
        if verdict.measured is not None:
            low, middle, high = map(figure, verdict.measured)
            confirmed = "" if verdict.confirmed else "; not confirmed in isolation"
            lines.append(("measured", f"{middle} GB/s ({low}–{high}){confirmed}"))
        lines.append(("cause", one["cause"]))
        lines += [("explains", ", ".join(verdict.explains))] if verdict.explains else []
        keys = {key: one[key] for key in ("kind", "what", "command", "label", "devices")}
        shown.append({**keys, "state": _SEVERITIES[verdict.severity], "lines": lines})
    conclusion = verdicts.conclusion(run, coverage(run), judged)
    return {"found": shown, "not_judged": data["not_judged"], "conclusion": conclusion}


def choice(run: Run, k: int) -> dict[str, Any]:
    """Return what `collbench select` would choose from this run, with the reason, or why it would refuse."""
    try:
        chosen = choose(run, k)
    except UsageError as error:
        return {
            "k": k,
            "devices": "–",
            "predicted": "",
            "reason": choice_text.refusal(error),
            "decided_by": "",
            "finalists": [],
        }
    return {
        "k": k,
        "devices": tags(chosen.members, run.devices),
        "predicted": choice_text.band(chosen.band) if chosen.band else "",
        "reason": choice_text.reason(chosen, run.devices) + (" (heuristic)" if chosen.heuristic else ""),
        "decided_by": choice_text.tie_breaks(chosen.decided_by),
        "finalists": [
            {
                "devices": tags(one.members, run.devices),
                "predicted": f"{choice_text.band(one.band)} ({choice_text.band_basis(one.band)})",
                "note": f"the first {k}" if one.default else "",
            }
            for one in chosen.finalists
        ],
    }


def choices(run: Run) -> dict[str, Any]:
    """Return the choice for each number of devices; where several but not all are refused alike, the reason."""
    of_each = [choice(run, k) for k in range(1, len(run.devices) + 1)]
    several = of_each[1:-1] or of_each[:1]
    reasons = {"" if one["predicted"] or one["finalists"] else one["reason"] for one in several}
    no_choice = reasons.pop() if len(reasons) == 1 else ""
    return {"choices": [] if no_choice else of_each, "no_choice": no_choice}


def left(run: Run) -> list[str]:
    """Return a line for each device that is left out of every choice."""
    return [f"{run.devices[one.member].tag}: {choice_text.left_out(one)}" for one in left_out(run)]


def ranked(run: Run, work: RankedWork) -> dict[str, Any]:
    """Return a work's tiers and fits, as `show --ranking` prints them."""
    fits = [fit for fit in work.fits if isinstance(fit, Fit)]
    reasons = Counter(sentences.no_line(fit) for fit in work.fits if isinstance(fit, Unfitted))
    heads = ("latency", "gbs", "half", "misfit")
    return {
        "work": str(work.work),
        "rankings": [_ranking(run, ranking) for ranking in work.rankings],
        "fits": [
            {"name": name(run, work.work, fit.members), "label": fit.label} | dict(zip(heads, fitted(fit), strict=True))
            for fit in fits[:_MOST_FITS]
        ],
        "more_fits": max(0, len(fits) - _MOST_FITS),
        "unfitted": [f"{count} without a fit: {reason}" for reason, count in reasons.items()],
    }


def _ranking(run: Run, ranking: Ranking) -> dict[str, Any]:
    small = ranking.size_bytes < TELLING_BYTES
    return {
        "size": format_size(ranking.size_bytes),
        "unit": "µs" if small else "GB/s",
        "kind": ranking.kind,
        "verdict": choice_text.tiers(ranking),
        "tiers": [
            {
                "tier": tier,
                "range": figures_span([s.seconds * 1e6 if small else s.gbs for s in standings], "–"),
                "count": len(standings),
                "names": _names(run, ranking, standings),
                "labels": ", ".join(dict.fromkeys(standing.label for standing in standings)),
                "relation": relations(standings),
            }
            for tier, standings in by_tier(ranking).items()
        ],
    }


def _names(run: Run, ranking: Ranking, standings: Sequence[RankedLink]) -> str:
    if len(standings) == len(ranking.standings) > 1:
        return f"all {len(standings)}"
    return abridged([name(run, ranking.work, standing.members) for standing in standings], _MOST_NAMES)


# Single launches: a table of percentiles and a histogram of each size, for each communicator.

_MOST_COMMUNICATORS = 8  # all pairs of eight GPUs are 28
_BINS, _BAR, _HIGH, _TEXT = 32, 18, 120, 20  # bins; pixels: a bar's width, the picture's height, the ticks' height
_TICKS_EVERY = 8


def single_launches(run: Run) -> Iterator[dict[str, Any]]:
    """Yield the part of each of the first communicators, with the histogram of the largest size first."""
    for by_size in tails_text.by_communicator(run)[:_MOST_COMMUNICATORS]:
        yield {
            "title": f"{sim(run)}{tails_text.title(run, by_size)}",
            "lines": [line[NAME_WIDE:] for line in tails_text.lines(run, by_size)],
            "heads": tails_text.HEADS,
            "rows": list(tails_text.figures(by_size)),
            "histograms": [_histogram(one, sim(run)) for one in reversed(by_size)],
        }


def _histogram(one: Tails, prefix: str) -> dict[str, Any]:
    """Return a histogram's bars and ticks in pixels, and its title after `prefix`.

    Heights are logarithmic, so that a single launch among thousands is visible.
    """
    edges, counts = histogram(one.transfer_seconds or one.waited_seconds, _BINS)
    names = [tails_text.micro(edge) for edge in edges]
    unit = _HIGH / math.log1p(max(counts))
    bars = []
    for index, count in enumerate(counts):
        height = round(math.log1p(count) * unit, 1)
        title = f"{names[index]} to {names[index + 1]} µs: {count}"
        bars.append(
            {"x": index * _BAR, "y": round(_HIGH - height, 1), "width": _BAR - 1, "height": height, "title": title}
        )
    ticks = [{"x": _TEXT + index * _BAR, "text": names[index]} for index in range(0, _BINS, _TICKS_EVERY)]
    size = format_size(one.point.size_bytes)
    return {
        "title": f"{prefix}{one.count} launches of {size} by duration in µs; the height is logarithmic",
        "width": _BINS * _BAR,
        "height": _HIGH + _TEXT,
        "bars": bars,
        "ticks": ticks,
    }


# The whole page.


def content(runs: Sequence[tuple[str, Run]], version: str) -> dict[str, Any]:
    """Return the page's content for these named runs; each further one is compared with the first.

    `version` is that of the collbench that makes the page.
    """
    shown = [_run(f"run-{number}", name, run) for number, (name, run) in enumerate(runs)]
    rest = list(zip(shown[1:], runs[1:], strict=True))
    titles = dict.fromkeys(f"{run['title']}{' (sim)' if run['sim'] else ''}" for run in shown)
    return {
        "version": version,
        "title": f"collbench: {' and '.join(titles)}",
        "runs": shown,
        "comparisons": [_comparison(shown[0], runs[0][1], page, run) for page, (_, run) in rest],
    }


def _run(key: str, name: str, run: Run) -> dict[str, Any]:
    judged, works, simulated = judge(run), _works(run), capabilities(run.backend).simulated
    tags = [device.tag for device in run.devices]
    measured_by = section(run)
    shown = None if measured_by is None else measured_by.html(run)
    maps = () if shown is None else shown.series
    return {
        "id": key,
        "name": name,
        "sim": simulated,
        "title": counted(device.name or "device" for device in run.devices),
        "origin": _origin(run),
        "answers": answers(run, judged, shown),
        "verdicts": shown_verdicts(run, judged),
        **choices(run),
        "left_out": left(run),
        "ranked": [ranked(run, work) for work in works],
        "health": health(run),
        "environment": environment(run),
        "remarks": [(line[:NAME_WIDE].strip(), line[NAME_WIDE:].strip()) for line in notes(run, health=False)],
        "devices": devices(run),
        "labels": label_matrix(len(run.devices), run.paths),
        "legend": list(labels.legend(path.label for path in run.paths)),
        "limits": limits(run),
        "paths": paths(run),
        "interference_checks": list(interference_checks(run)),
        "tails": list(single_launches(run)),
        "data": {"id": key, "sim": simulated, "tags": tags, "series": [*series(run, works), *maps]},
    }


def _works(run: Run) -> list[RankedWork]:
    """Return the ranking of each work, computed one by one: `rank_summary` reads all data points for each size."""
    points: dict[Work, list[Measurement]] = defaultdict(list)
    for measurement in run.measurements:
        points[measurement.point.work].append(measurement)
    run_outcome = outcome(run)
    parts = (replace(run, measurements=[*measurements, *broken(run, measurements)]) for measurements in points.values())
    pages = (rank_summary(part, ended=run_outcome).works for part in parts)
    order = [family.work for family in families(run)]
    return sorted((one for works in pages for one in works), key=lambda ranked: order.index(ranked.work))


def _comparison(base_page: dict[str, Any], base: Run, page: dict[str, Any], run: Run) -> dict[str, Any]:
    key = f"{page['id']}-over-{base_page['id']}"
    data = {"id": key, "sim": base_page["sim"] or page["sim"], "tags": base_page["data"]["tags"], "series": []}
    shape = {"id": key, "sim": data["sim"], "base": base_page["name"], "other": page["name"], "data": data}
    if base.backend != run.backend:  # `compare` refuses these runs: their backends differ
        how = f"not compared: {base.backend} and {run.backend} backend"
        return {**shape, "how": how, "differences": [], "whole": [], "overview": []}
    comparison = compare(base, run, 0.0)
    data["series"] = ratio_series(comparison, base_page["data"]["series"])
    return {
        **shape,
        "how": matched(comparison),
        "differences": [
            (what, old or "none", now or "none")
            for what, old, now in (described(one, comparison.base.devices) for one in comparison.differences)
        ],
        "whole": as_a_whole(comparison),
        "overview": overview(data["series"]),
    }


def _origin(run: Run) -> list[str]:
    """Return host or simulated machine, versions and start as short texts."""
    machine = run.machine
    where = f"simulated machine {machine.fabric}" if capabilities(run.backend).simulated else machine.hostname
    driver = f"driver {machine.driver}" if machine.driver else ""
    nccl = f"NCCL {machine.nccl}" if machine.nccl else ""
    return [part for part in (where, f"{run.backend} backend", driver, nccl, nvls(run), run.started) if part]
