"""Runs → all that the page says of them, as JSON's own types. Pure: the same runs give the same page."""

from __future__ import annotations

import json
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Any

from collbench.analysis.choice import Choice
from collbench.analysis.compare import compare
from collbench.analysis.diagnose import Kind, Severity, Verdict, coverage, judge
from collbench.analysis.fits import Bounded, Fit, Unfitted
from collbench.analysis.outcome import outcome
from collbench.analysis.problem import left_out
from collbench.analysis.select import choose, evidence
from collbench.analysis.stats import summarize
from collbench.analysis.summary import RankedWork, rank_summary
from collbench.analysis.tiers import RankedLink, Ranking, Relation
from collbench.machine import labels
from collbench.model.capabilities import capabilities
from collbench.model.errors import UsageError
from collbench.model.operations import Work
from collbench.model.run import Device, Health, Measurement, Run
from collbench.model.units import figure, fixed, format_approximate_size, format_size
from collbench.output import sentences
from collbench.output.html import series as html_series
from collbench.output.html.series import Family, broken, families, series
from collbench.output.text import verdicts
from collbench.output.text.frame import headline, health_lines, notes, nvls, origin_fields
from collbench.output.text.ranking import name
from collbench.output.text.topology import explain_pair

# Where a run was measured and in what state, for the page: environment, devices, labels, health, notes.


_NAME_COLUMNS = 10  # of output/text/frame.py
_NO_DATA = "–"
# Of hundreds of paths only the labels are shown.
_MOST_PATHS = 64


def environment(run: Run) -> list[tuple[str, str]]:
    """Return (name, text) of all that the header of every page says, and of what was asked for."""
    told = list(origin_fields(run).items())
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
    return [*told, *(pair for pair in asked if pair[1])]


def remarks(run: Run) -> list[tuple[str, str]]:
    """Return (name, text) of the lines below every page: convergence, failures, skips, interference."""
    return [_named(line) for line in notes(run, health=False)]


def _named(line: str) -> tuple[str, str]:
    return line[:_NAME_COLUMNS].strip(), line[_NAME_COLUMNS:].strip()


def devices(run: Run) -> list[dict[str, str]]:
    """Return what identifies each device and how it is attached."""
    return [_device(device) for device in run.devices]


def _device(device: Device) -> dict[str, str]:
    generation, width = device.pcie_generation, device.pcie_width
    return {
        "tag": device.tag,
        "name": device.name,
        "uuid": device.uuid,
        "pci": device.pci_bus_id or _NO_DATA,
        "memory": format_approximate_size(device.memory_bytes) if device.memory_bytes else _NO_DATA,
        "numa": _NO_DATA if device.numa_node is None else str(device.numa_node),
        "cpus": device.cpu_affinity or _NO_DATA,
        "pcie": f"gen {generation} ×{width}" if generation and width else _NO_DATA,
    }


def label_matrix(run: Run) -> list[list[str]]:
    """Return the labels as `nvidia-smi topo -m` has them, row and column in the order of the devices."""
    n = len(run.devices)
    matrix = [[labels.SELF if i == j else labels.UNKNOWN for j in range(n)] for i in range(n)]
    for path in run.paths:
        i, j = path.devices
        matrix[i][j] = matrix[j][i] = path.label
    return matrix


def legend(run: Run) -> list[tuple[str, str]]:
    """Return (label, meaning) of the labels that occur."""
    return list(labels.legend(path.label for path in run.paths))


def limits(run: Run) -> list[tuple[str, str]]:
    """Return (label, one-way limit with its source) of each distinct one, best label first."""
    known = {(path.label, path.theory_gbs, path.theory_source) for path in run.paths if path.theory_gbs is not None}
    ordered = sorted(known, key=lambda limit: (labels.rank_key(limit[0]), -limit[1], limit[2]))
    return [
        (label, f"{fixed(gbs, 6)} GB/s: {source}" if source else f"{fixed(gbs, 6)} GB/s")
        for label, gbs, source in ordered
    ]


def paths(run: Run) -> list[str]:
    """Return a sentence on each path, nothing where they are too many to be read."""
    return [explain_pair(run.devices, path) for path in run.paths] if len(run.paths) <= _MOST_PATHS else []


def health(run: Run) -> dict[str, Any]:
    """Return the lines of `report.health`, and each device's state before and after; no rows for CPU cores."""
    before, after = run.health_before, run.health_after
    rows = [
        {"tag": device.tag, **_state(first, after[place] if place < len(after) else Health())}
        for place, (device, first) in enumerate(zip(run.devices, before, strict=False))
    ]
    return {"lines": health_lines(run), "rows": rows}


def _state(before: Health, after: Health) -> dict[str, str]:
    """Return each reading as "before → after", one figure where it did not change."""
    return {
        "sm": _change(before.sm_clock, after.sm_clock),
        "memory_clock": _change(before.memory_clock, after.memory_clock),
        "temperature": _change(before.temperature, after.temperature),
        "power": _change(_whole(before.power), _whole(after.power)),
        "throttle": ", ".join(dict.fromkeys((*before.throttle, *after.throttle))) or "none",
        "nvlink_errors": _change(before.nvlink_errors, after.nvlink_errors),
        "nvlink_replays": _change(before.nvlink_replays, after.nvlink_replays),
        "ecc": _change(before.ecc_errors, after.ecc_errors),
        "processes": _change(before.processes, after.processes),
        "used": _change(*(_memory(state.memory_used) for state in (before, after))),
        "pcie": _change(*(_pcie(state) for state in (before, after))),
    }


def _change(before: Any, after: Any) -> str:
    known = [str(value) for value in (before, after) if value is not None]
    return " → ".join(dict.fromkeys(known)) or _NO_DATA


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _memory(used: int | None) -> str | None:
    return None if used is None else format_approximate_size(used)


def _pcie(state: Health) -> str | None:
    return f"gen {state.pcie_generation} ×{state.pcie_width}" if state.pcie_generation and state.pcie_width else None


def audits(run: Run) -> Iterator[dict[str, str]]:
    """Yield each comparison of a pair measured isolated and concurrently with others."""
    for found in run.audits:
        plus = f"{found.operation} {'' if found.variant == 'plain' else found.variant}".strip()
        yield {
            "what": f"{plus} on {', '.join(run.devices[member].tag for member in found.members)}",
            "label": found.label,
            "isolated": fixed(found.isolated_gbs),
            "concurrent": fixed(found.concurrent_gbs),
            "ratio": f"{found.ratio:.3f}",
            "trusted": "yes" if found.trusted else f"no: ±{found.delta:.1%} was allowed",
        }


# What a run means, for the page: the three answers of its first screen, verdicts, choices, tiers and fits.
#
# `analysis` has the answers; here are only the words around them.


_MIB = 2**20
# More rows hide what matters; the map shows α, β and n½ of every place.
_MOST_FITS = 64
_MOST_NAMES = 24  # of a tier
_SEVERITIES = {
    Severity.HARD: "hard",
    Severity.CONTRADICTION: "warn",
    Severity.FAILURE: "hard",
    Severity.INFO: "info",
}
# What a verdict's limit is where it is not the theory of a path (docs/check.md).
_LIMITS = {Kind.COLLECTIVE_CONTRADICTION: "capacity of the links", Kind.CONTENTION: "isolated"}
_FAULTS = (Severity.HARD, Severity.CONTRADICTION, Severity.FAILURE)


def answers(run: Run, judged: Sequence[Verdict]) -> list[dict[str, Any]]:
    """Return the first screen: which devices, how fast, is anything wrong. Each has a short answer and some lines."""
    ranking = evidence(run)
    return [_which(run, ranking), _how_fast(run, ranking), _is_anything_wrong(run, judged)]


def _which(run: Run, ranking: Ranking | None) -> dict[str, Any]:
    out = [f"left out {line}" for line in left(run)]
    chosen = [] if ranking is None else [*_powers_of_two(run, len(run.devices) - len(out))]
    if not chosen:
        why = "the run holds no pair" if ranking is None else "no two devices that were measured together are fit"
        return _answer("Which devices", "nothing to choose", [why, *out], "warn" if out else "")
    if all(one.tied or len(one.members) == len(run.devices) for one in chosen):
        short, lines = "any of them", [chosen[0].reason]
    else:
        short = _tags_of_set(run, chosen[0].members)
        lines = [f"the best {len(chosen[0].members)}: {chosen[0].reason}"]
        lines += [f"best {len(one.members)}: {_tags_of_set(run, one.members)}" for one in chosen[1:]]
    return _answer("Which devices", short, [*lines, *out], "warn" if out else "")


def _powers_of_two(run: Run, count: int) -> Iterator[Choice]:
    """Yield the choices of 2, 4, 8, … devices, as far as there are any."""
    k = 2
    with suppress(UsageError):  # those that are left share no pair
        while k <= count:
            yield choose(run, k)
            k *= 2


def _how_fast(run: Run, ranking: Ranking | None) -> dict[str, Any]:
    if ranking is None:
        return _fastest_of_the_rest(run)
    best, worst = ranking.standings[0], ranking.standings[-1]
    what = f"{ranking.operation} at {format_size(ranking.size_bytes)} on each of {len(ranking.standings)} pairs"
    quantity = "bus bandwidth" if ranking.operation.is_collective else "slower direction"
    lines = [f"{what}, {quantity}", f"best {name(run, ranking.work, best.members)}: {_rate(best)}", ranking.verdict]
    return _answer("How fast", f"{_range([worst.gbs, best.gbs])} GB/s", lines)


def _fastest_of_the_rest(run: Run) -> dict[str, Any]:
    """Return the answer for a run without pairs: its first work at its largest size."""
    family = next((f for f in families(run) if any(found.samples for found in f.points.values())), None)
    if family is None:
        return _answer("How fast", "nothing measured", [])
    size = max(size for (size, _), found in family.points.items() if found.samples)
    found = [found for (at, _), found in family.points.items() if at == size and found.samples]
    return _answer(
        "How fast", _values(family, [summarize(one) for one in found]), [f"{family.name} at {format_size(size)}"]
    )


def _values(family: Family, summaries: Sequence[Any]) -> str:
    if family.work.operation.value == "chase":
        return f"{_range([one.seconds * 1e9 for one in summaries])} ns"
    return f"{_range([one.busbw for one in summaries])} GB/s"


def _is_anything_wrong(run: Run, judged: Sequence[Verdict]) -> dict[str, Any]:
    counts = Counter(verdict.severity for verdict in judged)
    counts[Severity.HARD] += counts[Severity.FAILURE]
    failed, covered = headline(run), coverage(run)
    told = [
        f"{counts[severity]} {word}{'s' if counts[severity] > 1 else ''}"
        for severity, word in ((Severity.HARD, "failure"), (Severity.CONTRADICTION, "contradiction"))
        if counts[severity]
    ]
    lines = [failed] * bool(failed)
    lines += [f"{verdict.kind}: {sentences.what(verdict, run)}" for verdict in judged if verdict.severity in _FAULTS][
        :2
    ]
    lines += [verdicts.conclusion(covered, judged).rstrip(".")] if not told else []
    lines += health_lines(run)[:2]
    unfit = [run.devices[one.member].tag for one in left_out(run)]
    told += [f"{', '.join(unfit)} not fit"] if unfit else []
    state = "hard" if counts[Severity.HARD] or failed else "warn" if told or not covered.judged else "ok"
    if not run.complete:
        lines.append("the run was interrupted: some of it is missing")
        state = "warn" if state == "ok" else state
    return _answer(
        "Is anything wrong", " and ".join(told) or ("nothing found" if covered.judged else "not judged"), lines, state
    )


def _answer(question: str, short: str, lines: Sequence[str], state: str = "") -> dict[str, Any]:
    return {"question": question, "short": short, "lines": list(lines), "state": state}


def shown_verdicts(run: Run, judged: Sequence[Verdict]) -> dict[str, Any]:
    """Return the verdicts in the words of `collbench check`, and what the run does not allow to judge."""
    data = json.loads(verdicts.dumps(run, judged))
    found = []
    for verdict, one in zip(judged, data["verdicts"], strict=True):
        measured = one["measured_gbs"]
        rates = [(_LIMITS.get(verdict.kind, "theory"), one["theory_gbs"])]
        lines = [(title, f"{fixed(gbs)} GB/s") for title, gbs in rates if gbs is not None]
        if measured:
            span = f"{figure(measured['mid'])} GB/s ({figure(measured['lo'])}–{figure(measured['hi'])})"
            lines.append(("measured", span + ("" if verdict.confirmed else "; not confirmed in isolation")))
        lines.append(("cause", verdict.cause))
        lines += [("explains", ", ".join(verdict.explains))] if verdict.explains else []
        keys = {key: one[key] for key in ("kind", "what", "command", "label", "devices")}
        found.append({**keys, "state": _SEVERITIES[verdict.severity], "lines": lines})
    conclusion = verdicts.conclusion(coverage(run), judged)
    return {"found": found, "not_judged": data["not_judged"], "conclusion": conclusion}


def choices(run: Run) -> list[dict[str, Any]]:
    """Return for k = 1 … n what `collbench select` would choose from this run, and why, or why it would refuse."""
    return [_choice(run, k) for k in range(1, len(run.devices) + 1)]


def _choice(run: Run, k: int) -> dict[str, Any]:
    try:
        chosen = choose(run, k)
    except UsageError as error:
        return {"k": k, "devices": "–", "predicted": "", "reason": str(error), "decided_by": "", "finalists": []}
    return {
        "k": k,
        "devices": _tags_of_set(run, chosen.members),
        "predicted": str(chosen.band) if chosen.band else "",
        "reason": chosen.reason + (" (heuristic)" if chosen.heuristic else ""),
        "decided_by": chosen.decided_by,
        "finalists": [
            {
                "devices": _tags_of_set(run, one.members),
                "predicted": f"{one.band} ({one.band.basis})",
                "note": f"the first {k}" if one.default else "",
            }
            for one in chosen.finalists
        ],
    }


def left(run: Run) -> list[str]:
    """Return a line for each device that no choice takes."""
    return [f"{run.devices[one.member].tag}: {one.reason}" for one in left_out(run)]


def ranked(run: Run, works: Iterable[RankedWork]) -> list[dict[str, Any]]:
    """Return each work's tiers at a large and a small size, and its fits, as `collbench rank` prints them."""
    return [
        {
            "work": str(work.work),
            "rankings": [_ranking(run, ranking) for ranking in work.rankings],
            "fits": [_fit(run, work, fit) for fit in islice(_fits(work), _MOST_FITS)],
            "more_fits": max(0, len([*_fits(work)]) - _MOST_FITS),
            "unfitted": _unfitted(work),
        }
        for work in works
    ]


def _ranking(run: Run, ranking: Ranking) -> dict[str, Any]:
    small = ranking.size_bytes < _MIB
    tiers: dict[int, list[RankedLink]] = defaultdict(list)
    for standing in ranking.standings:
        tiers[standing.tier].append(standing)
    return {
        "size": format_size(ranking.size_bytes),
        "unit": "µs" if small else "GB/s",
        "kind": ranking.kind,
        "verdict": ranking.verdict,
        "tiers": [
            {
                "tier": tier,
                "range": _range([s.seconds * 1e6 if small else s.gbs for s in standings]),
                "count": len(standings),
                "names": _names(run, ranking, standings),
                "labels": ", ".join(dict.fromkeys(standing.label for standing in standings)),
                "relation": _relations(standings),
            }
            for tier, standings in tiers.items()
        ],
    }


def _names(run: Run, ranking: Ranking, standings: Sequence[RankedLink]) -> str:
    if len(standings) == len(ranking.standings) > 1:
        return f"all {len(standings)}"
    names = [name(run, ranking.work, standing.members) for standing in standings[:_MOST_NAMES]]
    more = len(standings) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")


def _relations(standings: Sequence[RankedLink]) -> str:
    counts = Counter(standing.relation for standing in standings)
    if len(counts) == 1:
        return standings[0].relation.value
    return ", ".join(f"{counts[word]} {word}" for word in Relation if counts[word])


def _fits(work: RankedWork) -> Iterator[Fit]:
    return (fit for fit in work.fits if isinstance(fit, Fit))


def _fit(run: Run, work: RankedWork, fit: Fit) -> dict[str, Any]:
    return {
        "name": name(run, work.work, fit.members),
        "label": fit.label,
        "latency": _bounded(fit.latency_us),
        "gbs": _bounded(fit.gbs),
        "half": format_approximate_size(round(fit.half_bytes[1])),
        "misfit": f"{fit.misfit:.0%}",
    }


def _unfitted(work: RankedWork) -> list[str]:
    reasons = Counter(fit.reason for fit in work.fits if isinstance(fit, Unfitted))
    return [f"{count} without a fit: {reason}" for reason, count in reasons.items()]


def _bounded(values: Bounded) -> str:
    low, middle, high = values
    return f"{figure(middle)} [{figure(low)}, {figure(high)}]"


def _rate(standing: RankedLink) -> str:
    if standing.interval is None:
        return f"{figure(standing.gbs)} GB/s"
    return f"{figure(standing.gbs)} GB/s (95 %: {figure(standing.interval[0])}–{figure(standing.interval[1])})"


def _range(values: Sequence[float]) -> str:
    low, high = figure(min(values)), figure(max(values))
    return low if low == high else f"{low}–{high}"


def _tags_of_set(run: Run, members: Sequence[int]) -> str:
    return ", ".join(run.devices[member].tag for member in members)


# Runs → all that the page says of them, as JSON's own types. Pure: the same runs give the same page.


def content(runs: Sequence[tuple[str, Run]], version: str) -> dict[str, Any]:
    """Return what the page shows of these runs, each with the name that it goes by; the first one is the base.

    The rest is compared with it. `version` is that of the collbench that makes the page.
    """
    told = [_run(f"run-{number}", name, run) for number, (name, run) in enumerate(runs)]
    rest = list(zip(told[1:], runs[1:], strict=True))
    titles = dict.fromkeys(f"{run['title']}{' (sim)' if run['sim'] else ''}" for run in told)
    return {
        "version": version,
        "title": f"collbench: {' and '.join(titles)}",
        "runs": told,
        "comparisons": [_comparison(told[0], runs[0][1], page, run) for page, (_, run) in rest],
    }


def _run(key: str, name: str, run: Run) -> dict[str, Any]:
    judged, works = judge(run), _works(run)
    return {
        "id": key,
        "name": name,
        "sim": capabilities(run.backend).simulated,
        "title": _devices(run),
        "origin": _origin(run),
        "answers": answers(run, judged),
        "verdicts": shown_verdicts(run, judged),
        "choices": choices(run),
        "left_out": left(run),
        "ranked": ranked(run, works),
        "health": health(run),
        "environment": environment(run),
        "remarks": remarks(run),
        "devices": devices(run),
        "labels": label_matrix(run),
        "legend": legend(run),
        "limits": limits(run),
        "paths": paths(run),
        "audits": list(audits(run)),
        "data": {
            "id": key,
            "sim": capabilities(run.backend).simulated,
            "tags": _tags(run),
            "series": series(run, works),
        },
    }


def _works(run: Run) -> list[RankedWork]:
    """Return `rank`'s summary of each work. One by one: it looks at all data points for each size."""
    points: dict[Work, list[Measurement]] = defaultdict(list)
    for found in run.measurements:
        points[found.cell.work].append(found)
    ended = outcome(run)
    parts = (replace(run, measurements=[*found, *broken(run, found)]) for found in points.values())
    pages = (rank_summary(part, ended=ended).works for part in parts)
    order = [family.work for family in families(run)]
    return sorted((one for works in pages for one in works), key=lambda ranked: order.index(ranked.work))


def _comparison(base_page: dict[str, Any], base: Run, page: dict[str, Any], run: Run) -> dict[str, Any]:
    key = f"{page['id']}-over-{base_page['id']}"
    shape = {
        "id": key,
        "sim": base_page["sim"] or page["sim"],
        "base": base_page["name"],
        "other": page["name"],
    }
    told = {"how": "", "differences": [], "whole": [], "overview": []}
    data = {"id": key, "sim": shape["sim"], "tags": _tags(base), "series": []}
    if base.backend != run.backend:  # `compare` refuses these: their figures are of different things
        return {**shape, **told, "how": f"not compared: {base.backend} and {run.backend} backend", "data": data}
    found = compare(base, run, 0.0)
    data["series"] = html_series.ratio_series(found, base_page["data"]["series"])
    return {
        **shape,
        "how": found.match.told,
        "differences": [(one.what, one.base or "none", one.new or "none") for one in found.differences],
        "whole": html_series.as_a_whole(found),
        "overview": html_series.overview(data["series"]),
        "data": data,
    }


def _tags(run: Run) -> list[str]:
    return [device.tag for device in run.devices]


def _devices(run: Run) -> str:
    """Name the devices: "8 × Tesla V100-SXM2-16GB"."""
    kinds = Counter(device.name or "device" for device in run.devices)
    return ", ".join(f"{count} × {name}" for name, count in kinds.items())


def _origin(run: Run) -> list[str]:
    """Return where and when, in a few words each: host or simulated machine, versions, start."""
    machine = run.machine
    versions = [f"driver {machine.driver}"] if machine.driver else []
    versions += [f"NCCL {machine.nccl}"] if machine.nccl else []
    told = nvls(run)
    where = f"simulated machine {machine.fabric}" if capabilities(run.backend).simulated else machine.hostname
    parts = [where, f"{run.backend} backend", *versions, told, run.started]
    return [part for part in parts if part]
