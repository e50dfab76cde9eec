"""Runs → all that the page says of them, as JSON's own types. Pure: the same runs give the same page."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from collbench.affinity.summary import RankedWork, rank_summary
from collbench.affinity.verdicts import judge
from collbench.comparison.compare import compare
from collbench.html import facts, findings, ratios
from collbench.html.cells import broken, series
from collbench.html.families import families
from collbench.model import Measurement, Run
from collbench.operations import Work
from collbench.report.nvls import nvls

_SIM = "sim"


def content(runs: Sequence[tuple[str, Run]], version: str) -> dict[str, Any]:
    """Return what the page shows of these runs, each with the name that it goes by; the first one is the base.

    The rest is compared with it. `version` is that of the collbench that makes the page.
    """
    told = [_run(f"run-{number}", name, run) for number, (name, run) in enumerate(runs)]
    rest = list(zip(told[1:], runs[1:], strict=True))
    return {
        "version": version,
        "title": _page_title(told),
        "runs": told,
        "comparisons": [_comparison(told[0], runs[0][1], page, run) for page, (_, run) in rest],
    }


def _page_title(told: Sequence[dict[str, Any]]) -> str:
    titles = dict.fromkeys(f"{run['title']}{' (sim)' if run['sim'] else ''}" for run in told)
    return f"collbench: {' and '.join(titles)}"


def _run(key: str, name: str, run: Run) -> dict[str, Any]:
    judged, works = judge(run), _works(run)
    return {
        "id": key,
        "name": name,
        "sim": run.backend == _SIM,
        "title": _devices(run),
        "origin": _origin(run),
        "answers": findings.answers(run, judged),
        "verdicts": findings.told_verdicts(run, judged),
        "choices": findings.choices(run),
        "left_out": findings.left(run),
        "ranked": findings.ranked(run, works),
        "health": facts.health(run),
        "environment": facts.environment(run),
        "remarks": facts.remarks(run),
        "devices": facts.devices(run),
        "labels": facts.label_matrix(run),
        "legend": facts.legend(run),
        "limits": facts.limits(run),
        "paths": facts.paths(run),
        "audits": list(facts.audits(run)),
        "data": {"id": key, "sim": run.backend == _SIM, "tags": _tags(run), "series": series(run, works)},
    }


def _works(run: Run) -> list[RankedWork]:
    """Return `rank`'s summary of each work. One by one: it looks at all cells of a run for each size of each work."""
    cells: dict[Work, list[Measurement]] = defaultdict(list)
    for found in run.measurements:
        cells[found.cell.work].append(found)
    alone = (rank_summary(replace(run, measurements=[*found, *broken(run, found)])).works for found in cells.values())
    order = [family.work for family in families(run)]
    return sorted((one for works in alone for one in works), key=lambda ranked: order.index(ranked.work))


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
    data["series"] = ratios.ratio_series(found, base_page["data"]["series"])
    return {
        **shape,
        "how": found.match.told,
        "differences": [(one.what, one.base or "none", one.new or "none") for one in found.differences],
        "whole": ratios.as_a_whole(found),
        "overview": ratios.overview(data["series"]),
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
    where = f"simulated machine {machine.fabric}" if run.backend == _SIM else machine.hostname
    parts = [where, f"{run.backend} backend", *versions, told, run.started]
    return [part for part in parts if part]
