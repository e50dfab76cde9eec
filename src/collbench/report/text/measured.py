"""The page of any run, as the command that measured it printed it, and its single sections."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import cast

from rich.console import RenderableType
from rich.text import Text

from collbench.judge.outcome import timed_points
from collbench.model.capabilities import capabilities
from collbench.model.run import CommandKind, Run
from collbench.model.units import amount
from collbench.report import sections
from collbench.report.text.frame import ALARM, alarm, headline
from collbench.report.text.layout import Block, Lines, Page, only
from collbench.report.text.topology import render_topology
from collbench.report.text.verdicts import contradiction

# The module and function of each command's page; another run's goes by what it holds.
_PAIRS, _COLLECTIVES = ("report.text.pairs", "pairs_page"), ("report.text.collectives", "collectives_page")
_PAGES = {
    CommandKind.PAIRS: _PAIRS,
    CommandKind.CHECK: _PAIRS,
    CommandKind.COPIES: ("report.text.copies", "copies_page"),
    CommandKind.LATENCY: ("report.text.copies", "latency_page"),
}


def page_of(kind: CommandKind, *, collectives_only: bool) -> Callable[[Run], Page]:
    """Return what makes the page of a run of this kind, loaded now."""
    # No collective command measures copies, but a file may hold both.
    module, name = _PAGES.get(kind, _COLLECTIVES if collectives_only else _PAIRS)
    return cast("Callable[[Run], Page]", getattr(import_module(f"collbench.{module}"), name))


def page(run: Run) -> Iterator[RenderableType | Block]:
    """Yield the page's blocks, top to bottom."""
    yield from alarm(run)
    if not run.complete and not headline(run):
        _, timed = timed_points(run)
        goes_on = "; --resume RUN.JSON measures the others" if run.measurements else ""  # only these can be resumed
        yield Lines(f"INTERRUPTED: {amount(timed, 'data point')} measured{goes_on}", style=ALARM)
    judged = run.settings.kind.of_links and run.settings.kind is not CommandKind.NODES  # which has verdicts of its own
    if judged and (contradicting := contradiction(run)):
        yield Lines(f"{contradicting}: 'collbench check RUN.JSON' explains it", style=ALARM)
    collectives_only = all(measurement.point.operation.is_collective for measurement in run.measurements)
    kind, measured_by = run.settings.kind, sections.section(run)
    if len(run.devices) == 1 and kind is not CommandKind.LATENCY:
        kind = CommandKind.COPIES  # a check of one GPU copies with host memory
    shown = measured_by.page if measured_by else page_of(kind, collectives_only=collectives_only)
    yield from shown(run)


def section(run: Run, wanted: str) -> Iterator[RenderableType]:
    """Yield one of layout.SECTIONS of a run, or a line that the run has no such section."""
    from collbench.judge.diagnose import judge  # late: few pages need them
    from collbench.judge.summary import rank_summary
    from collbench.report.text import ranking, verdicts

    pages: dict[str, Callable[[], Page]] = {
        "tiers": lambda: ranking.page(run, rank_summary(run)),
        "fits": lambda: ranking.page(run, rank_summary(run)),
        "verdicts": lambda: verdicts.page(run, judge(run)),
        "labels": lambda: [Block("labels", Text(render_topology(run.devices, run.paths).rstrip("\n")))],
    }
    parts = list(only(pages.get(wanted, lambda: page(run))(), wanted))
    yield from alarm(run)
    if wanted != "header" and capabilities(run.backend).simulated:
        yield Text(f"sim: SIMULATED machine '{run.machine.fabric}', nothing here was measured on a GPU")
    yield from parts or [Text(f"this run has no {wanted}")]
