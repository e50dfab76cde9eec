"""What the main house asks of a recorded job's file; `api/runs.py` finds this module by the file's format."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from collbench.api.runs import format_of, load_named
from collbench.cli.terminal import show_answer
from collbench.jobs import job_file
from collbench.jobs.job import JOB
from collbench.model.errors import UsageError
from collbench.model.values import one_line
from collbench.runfile.codec import document

NAME, CALL, OPTIONS = "a recorded job", "collbench.load_job({!r})", ("rank", "against")
load = job_file.load


def show(file: Path, rank: int | None, against: tuple[Path, ...]) -> None:
    """Print what a recorded job's step says."""
    from collbench.jobs import api as jobs  # late: numpy
    from collbench.jobs import page as pages

    report = jobs.report(load(file), rank, load_named(against), one_line(str(file)))
    show_answer(pages.page(report), lambda: document("job-report", pages.as_json(report)))


def export(file: Path, layout: str) -> str:
    """Return a recorded job for another tool. Raises UsageError."""
    from collbench.jobs import perfetto  # late: numpy

    if layout != "perfetto":
        raise UsageError(f"{one_line(str(file))} is a recorded job: export it with --format perfetto")
    return perfetto.as_json(load(file))


def html(files: Sequence[Path]) -> str:
    """Return the page of a recorded job, against runs that are named after it. Raises UsageError for two jobs."""
    from collbench.jobs import api as jobs  # late: numpy
    from collbench.jobs.page import html_page

    if any(format_of(file) == JOB for file in files[1:]):
        raise UsageError("a recorded job has a page of its own: name it first, and after it runs to compare it with")
    job_report = jobs.report(load(files[0]), runs=load_named(files[1:]), name=one_line(str(files[0])))
    return html_page(job_report, one_line(files[0].name), version("collbench"))
