"""The pages of random recorded jobs: short, narrow, and valid JSON."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings

from collbench.jobs import page as pages
from collbench.jobs.calls import report
from collbench.jobs.job import Job, Unknown
from tests.jobs.made import jobs, made_job
from tests.report.pages import text

LINES, COLUMNS = 50, 80


@pytest.mark.parametrize(("captured", "text"), [(True, "its calls count once"), (False, "which calls are of CUDA")])
def test_graphs_that_the_record_cannot_see_are_not_counted_once(captured: bool, text: str) -> None:
    job = made_job([("allreduce", 8)], unknown=(Unknown.GRAPH_REPLAYS,))
    job_report = report(replace(job, calls=tuple(replace(call, captured=captured) for call in job.calls)))
    assert job_report is not None
    assert text in "".join(pages.remarks(job_report))


@given(jobs())
@settings(max_examples=15, deadline=None, database=None, derandomize=True, phases=[Phase.generate])
def test_random_jobs_are_shown_short_and_whole(job: Job) -> None:
    job_report = report(job)
    if job_report is None:
        return
    for verbose in (False, True):
        lines = text(pages.page(job_report), verbose=verbose, columns=COLUMNS).splitlines()
        if not verbose:
            assert len(lines) <= LINES, "\n".join(lines)
            assert max(map(len, lines)) <= COLUMNS, "\n".join(lines)
    json.dumps(pages.as_json(job_report), allow_nan=False)
