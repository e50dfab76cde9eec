"""The page of a run, as the command that measured it printed it."""

from __future__ import annotations

from collbench.judge.outcome import timed_points
from collbench.model.run import CommandKind, Run
from collbench.model.units import amount
from collbench.report import sections
from collbench.report.text.collectives import collectives_page
from collbench.report.text.copies import copies_page, latency_page
from collbench.report.text.frame import ALARM, alarm, headline
from collbench.report.text.layout import Lines, Page
from collbench.report.text.pairs import pairs_page
from collbench.report.text.verdicts import contradiction

_PAGES = {
    CommandKind.PAIRS: pairs_page,
    CommandKind.CHECK: pairs_page,
    CommandKind.COPIES: copies_page,
    CommandKind.LATENCY: latency_page,
}


def page(run: Run) -> Page:
    """Yield the page's blocks, top to bottom."""
    yield from alarm(run)
    if not run.complete and not headline(run):
        _, timed = timed_points(run)
        resumable = run.measurements and run.settings.kind is not CommandKind.NODES
        goes_on = "; --resume RUN.JSON measures the others" if resumable else ""
        yield Lines(f"INTERRUPTED: {amount(timed, 'data point')} measured{goes_on}", style=ALARM)
    judged = run.settings.kind.of_links and run.settings.kind is not CommandKind.NODES  # which has verdicts of its own
    if judged and (contradicting := contradiction(run)):
        yield Lines(f"{contradicting}: 'collbench check RUN.JSON' explains it", style=ALARM)
    collectives_only = all(measurement.point.operation.is_collective for measurement in run.measurements)
    kind, measured_by = run.settings.kind, sections.section(run)
    if len(run.devices) == 1 and kind is not CommandKind.LATENCY:
        kind = CommandKind.COPIES  # a check of one GPU copies with host memory
    if run.settings.layers:
        from collbench.report.text.small_allreduces import page as small_allreduces  # late: few runs need it

        yield from small_allreduces(run)
        return
    # No collective command measures copies, but a file may hold both.
    by_content = collectives_page if collectives_only else pairs_page
    yield from (measured_by.page if measured_by else _PAGES.get(kind, by_content))(run)
