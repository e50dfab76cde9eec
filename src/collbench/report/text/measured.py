"""The page of any run, as the command that measured it printed it, and its single sections."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rich.console import RenderableType
from rich.text import Text

from collbench.judge.outcome import timed_points
from collbench.model.capabilities import capabilities
from collbench.model.run import CommandKind, Run
from collbench.model.units import amount
from collbench.report import sections
from collbench.report.text.collectives import collectives_page
from collbench.report.text.copies import copies_page, latency_page
from collbench.report.text.frame import ALARM, alarm, headline
from collbench.report.text.layout import Block, Lines, Page, only
from collbench.report.text.pairs import pairs_page
from collbench.report.text.topology import render_topology
from collbench.report.text.verdicts import contradiction

_PAGES: dict[CommandKind, Callable[[Run], Page]] = {
    CommandKind.PAIRS: pairs_page,
    CommandKind.CHECK: pairs_page,
    CommandKind.COPIES: copies_page,
    CommandKind.LATENCY: latency_page,
}


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
    # No collective command measures copies, but a file may hold both.
    default = collectives_page if collectives_only else pairs_page
    show = _PAGES.get(run.settings.kind, default)
    if show is pairs_page and len(run.devices) == 1:
        show = copies_page  # a check of one GPU copies with host memory
    measured_by = sections.section(run)
    yield from (show if measured_by is None else measured_by.page)(run)


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
