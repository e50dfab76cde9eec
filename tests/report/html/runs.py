"""Runs for the page's tests: a recorded one, one whose figures are known by hand, and one from a hostile machine."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from itertools import combinations, permutations
from pathlib import Path as FilePath
from statistics import median
from typing import Any

from collbench.measurement.plan import Request
from collbench.model.operations import Operation, Work
from collbench.model.run import Health, InterferenceCheck, Machine, Measurement, Path, Run, Sample
from collbench.report.html import content, render
from collbench.report.layout import Table
from collbench.runfile import run_file
from collbench.sim import fabrics
from tests.builders import ALL, GIB, gpus, in_words, left_out, measured, run_of, throttled
from tests.sim.made import simulate

RECORDED = FilePath(__file__).parents[3] / "benchmarks" / "results" / "2026-11-21-4xh200-peers" / "pairs.json"
MIB = 2**20
SIM_PAIRS = replace(
    ALL, backend="sim", sizes=(64, 2**20, 2**26, 2**28), collectives=(Work(Operation.ALLREDUCE),), command=("pairs",)
)
# It would run, or break out of its place, wherever text is taken for a page.
EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'><svg onload=alert(3)>&lt;{{7*7}}\u2028\u202e"


def page(*runs: Run) -> str:
    """Return the page of these runs, by the names a.json, b.json, …"""
    return render(content([(f"{'abc'[at]}.json", run) for at, run in enumerate(runs)], "0.1.0"))


@cache
def usual_page() -> str:
    """Return a page of two runs and their comparison, one of them simulated."""
    return page(by_hand(), simulated("nvlink-pairs-2x2"))


def recorded() -> Run:
    return run_file.load(RECORDED)


@cache
def recorded_content() -> dict[str, Any]:
    """Return what the page says of the recorded run: made once, as it takes a second."""
    return content([("pairs.json", recorded())], "0.1.0")


def recorded_gbs(operation: str, devices: list[int], size: int) -> float:
    """Return GB/s of a link or pair of two, by hand from the file's text."""
    return size / recorded_seconds(operation, devices, size) / 1e9


def recorded_seconds(operation: str, devices: list[int], size: int) -> float:
    """Return a data point's time as docs/run-file.md says to read it: the median of the trials' medians."""
    points = json.loads(RECORDED.read_text(encoding="utf-8"))["measurements"]
    wanted = {"operation": operation, "members": devices, "size_bytes": size}
    point = next(point for point in points if {key: point["point"][key] for key in wanted} == wanted)
    return float(median(median(sample["seconds"]) for sample in point["samples"]))


def simulated(name: str = "dgx-1v", request: Request = SIM_PAIRS) -> Run:
    return simulate(fabrics.load(name), request, 7)


def by_hand(slow: float = 400.0) -> Run:
    """Return a run of 4 GPUs at 1 MiB and 1 GiB: all links 400 GB/s but 0 → 1, which is `slow` at 1 GiB.

    Its pairs reach 300 GB/s.
    """
    points = [
        measured(Operation.CE_WRITE, link, slow if link == (0, 1) and size == GIB else 400.0, size)
        for size in (MIB, GIB)
        for link in permutations(range(4), 2)
    ]
    points += [measured(Operation.ALLREDUCE, pair, 300.0) for pair in combinations(range(4), 2)]
    links = [Path(pair, "NV18", "PHB", 18, 450.0, "18 × 25 GB/s") for pair in combinations(range(4), 2)]
    return run_of(gpus(4), points, links)


def hostile(evil: str = EVIL) -> Run:
    """Return a run in which every text that a machine or a user may write is this one."""
    run = by_hand()
    device = replace(run.devices[0], uuid=evil, name=evil, pci_bus_id=evil, cpu_affinity=evil, host=evil)
    links = [replace(path, label=evil, ancestor=evil, theory_source=evil) for path in run.paths]
    failed = Measurement(replace(run.measurements[0].point, size_bytes=64), [], None, 0, failure=in_words(evil))
    flagged = Sample((0.001, 0.002), 1, concurrent=True, flags=(throttled(0, evil),))
    run.measurements[1].samples.append(flagged)
    state = Health(sm_clock=1, temperature=90, throttle=(evil,))
    return replace(
        run,
        version=evil,
        started=evil,
        machine=Machine(evil, evil, evil, evil, evil, evil, evil, evil, evil),
        devices=(device, *run.devices[1:]),
        paths=tuple(links),
        settings=replace(run.settings, environment={evil: evil}, command=(evil,), launcher=evil, processes=4),
        measurements=[*run.measurements, failed],
        skipped=[left_out(evil)],
        interference_checks=[InterferenceCheck(Operation.CE_WRITE, (0, 1), evil, 1.0, 0.5, 0.5, 0.02, trusted=False)],
        health_before=(state,) * 4,
        health_after=(state,) * 4,
    )


def printed(page: dict[str, Any], key: str) -> list[Any]:
    """Return the parts of a section of a run's page, or of a comparison's; a table is a list of its rows."""
    section = next(section for section in page["sections"] if section.key == key)
    parts = [part for group in section.groups for part in group.parts]
    return [part.rows if isinstance(part, Table) else part for part in parts]


def series(reported: dict[str, Any], name: str) -> dict[str, Any]:
    """Return one series of the first run."""
    one_series: dict[str, Any] = next(one for one in reported["runs"][0]["data"]["series"] if one["name"] == name)
    return one_series


def figures(one_series: dict[str, Any], size: int, devices: list[int], title: str) -> tuple[Any, Any, Any]:
    """Return (low, value, high) of a figure of one data point."""
    figure = next(figure for figure in one_series["figures"] if figure["title"] == title)
    row = one_series["sizes"].index(size)
    low, value, high = (figure[end][row][one_series["sets"].index(devices)] for end in ("low", "value", "high"))
    return low, value, high
