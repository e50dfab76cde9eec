"""The page of a run, as the command that measured it printed it."""

from __future__ import annotations

from collbench.judge.diagnose import Diagnosis
from collbench.model.run import CommandKind
from collbench.report import sections
from collbench.report.text.frame import ALARM, alarm, headline, interrupted
from collbench.report.text.layout import Lines, Page


def page(diagnosis: Diagnosis, name: str = "RUN.JSON") -> Page:
    """Yield the page's blocks, top to bottom; `name` is the run's in a command line."""
    run = diagnosis.run
    yield from alarm(run)
    if not run.complete and not headline(run):
        yield Lines(interrupted(run), style=ALARM)
    if run.settings.kind in {*CommandKind}:  # an annex's command has verdicts of its own
        from collbench.report.text.verdicts import contradicted  # late: the judge

        yield from contradicted(diagnosis, name)
    yield from _of_command(diagnosis)


def _of_command(diagnosis: Diagnosis) -> Page:
    """Return the page of the command that measured a run, and load only this one."""
    run = diagnosis.run
    kind, measured_by = run.settings.kind, sections.section(run)
    if len(run.devices) == 1 and kind != CommandKind.LATENCY:
        kind = CommandKind.COPIES  # a check of one GPU copies with host memory
    if run.settings.layers:
        from collbench.report.text.collectives import small_allreduces_page

        return small_allreduces_page(run)
    if measured_by:
        return measured_by.page(run)
    if kind == CommandKind.COPIES:
        from collbench.report.text.copies import copies_page

        return copies_page(diagnosis)
    if kind == CommandKind.LATENCY:
        from collbench.report.text.copies import latency_page

        return latency_page(run)
    # No collective command measures copies, but a file may hold both.
    if kind in (CommandKind.PAIRS, CommandKind.CHECK) or not all(
        measurement.point.operation.is_collective for measurement in run.measurements
    ):
        from collbench.report.text.ranking import pairs_page

        return pairs_page(diagnosis)
    from collbench.report.text.collectives import collectives_page

    return collectives_page(diagnosis)
