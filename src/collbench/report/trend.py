"""The page of `collbench compare` for many runs: each work at its largest size by date, then the last by the first."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from collbench.comparison.trend import Line, Trend
from collbench.report import comparison
from collbench.units import figure, format_size


def page(trend: Trend, names: tuple[str, ...]) -> Iterator[RenderableType]:
    """Yield the page's blocks; `names` are the files', by date as the runs are."""
    yield from comparison.alarms(trend.last)
    simulated = "sim: SIMULATED machines, nothing below was measured on a GPU" if _sim(trend) else ""
    yield Text(f"backend   {simulated or trend.runs[0].backend}")
    yield Text("\n".join(_runs(trend, names)))
    for line in trend.lines:
        yield Text(f"\n{'sim: ' if simulated else ''}{_title(line)}")
        yield _table(trend, line)
    yield Text(f"\nrun {len(trend.runs)} against run 1, cell by cell")
    yield from comparison.body(trend.last, (names[0], names[-1]))


def _sim(trend: Trend) -> bool:
    return trend.runs[0].backend == "sim"


def _runs(trend: Trend, names: tuple[str, ...]) -> Iterator[str]:
    """Yield a line for each run, and one for each thing that differs from the run before it."""
    for number, (run, steps, name) in enumerate(zip(trend.runs, trend.steps, names, strict=True), 1):
        yield f"run {number:<5} {run.started} {name}"
        yield from (f"          {one.what}: {one.base or 'none'} → {one.new or 'none'}" for one in steps)


def _title(line: Line) -> str:
    places = "" if line.places == 1 else f", {line.places} places"
    return f"{line.work} at {format_size(line.size_bytes)}, GB/s{places}"


def _table(trend: Trend, line: Line) -> Table:
    table = Table(box=None, pad_edge=False, header_style="")
    for title, justify in (("run", "left"), ("date", "left"), ("median", "right"), ("change", "right")):
        table.add_column(title, justify=justify)  # type: ignore[arg-type]
    for title, justify in (("worst", "right"), ("where", "left"), ("worse than run 1", "left")):
        table.add_column(title, justify=justify)  # type: ignore[arg-type]
    devices = trend.runs[0].devices
    for point in line.points:
        where = "-".join(devices[member].tag for member in point.worst if member >= 0)
        worse = f"{point.worse} of {point.cells}" if point.worse else ("no" if point.run else "-")
        change = f"{point.change:+.1%}" if point.run else "-"
        date = trend.runs[point.run].started[:16].replace("T", " ")
        worst = figure(point.worst_gbs)
        table.add_row(str(point.run + 1), date, figure(point.median_gbs), change, worst, where, worse)
    return table
