"""The HTML page of a recorded job: the answer, the facts and the tables of the text page."""

from __future__ import annotations

from importlib import resources

from collbench.jobs import page
from collbench.jobs.calls import Report
from collbench.report.html.page import Group, render_plain
from collbench.report.text.layout import Lines, only


def render(report: Report, name: str, version: str) -> str:
    """Return the page; `name` is the job's file."""
    content = {
        "title": name,
        "version": version,
        "answers": page.answers(report),
        "facts": Group([Lines("\n".join([*page.origin(report), *page.remarks(report)]))]),
        "tables": Group([*only(page.page(report), "tables")]),
    }
    return render_plain(resources.files("collbench.jobs").joinpath("job.html").read_text(encoding="utf-8"), content)
