"""The page of a run, as the command that measured it printed it."""

from __future__ import annotations

from collections.abc import Callable

from collbench.model.run import CommandKind, Run
from collbench.report import sections
from collbench.report.text.frame import ALARM, alarm, headline, interrupted
from collbench.report.text.layout import Lines, Page


def page(run: Run, name: str = "RUN.JSON") -> Page:
    """Yield the page's blocks, top to bottom; `name` is the run's in a command line."""
    yield from alarm(run)
    if not run.complete and not headline(run):
        yield Lines(interrupted(run), style=ALARM)
    if run.settings.kind.of_links and run.settings.kind is not CommandKind.NODES:  # which has verdicts of its own
        from collbench.report.text.verdicts import contradicted  # late: the judge

        yield from contradicted(run, name)
    yield from _of_command(run)(run)


def _of_command(run: Run) -> Callable[[Run], Page]:
    """Return the page of the command that measured a run, and load only this one."""
    kind, measured_by = run.settings.kind, sections.section(run)
    if len(run.devices) == 1 and kind is not CommandKind.LATENCY:
        kind = CommandKind.COPIES  # a check of one GPU copies with host memory
    if run.settings.layers:
        from collbench.report.text.collectives import small_allreduces_page as shown
    elif measured_by:
        return measured_by.page
    elif kind is CommandKind.COPIES:
        from collbench.report.text.copies import copies_page as shown
    elif kind is CommandKind.LATENCY:
        from collbench.report.text.copies import latency_page as shown
    # No collective command measures copies, but a file may hold both.
    elif kind in (CommandKind.PAIRS, CommandKind.CHECK) or not all(
        measurement.point.operation.is_collective for measurement in run.measurements
    ):
        from collbench.report.text.ranking import pairs_page as shown
    else:
        from collbench.report.text.collectives import collectives_page as shown
    return shown
