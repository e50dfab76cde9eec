"""The HTML page of a recorded job: the answer, one step with a bar for each call, and the tables of the text page."""

from __future__ import annotations

from importlib import resources
from typing import Any

from rich.table import Table

from collbench.jobs.calls import Bar, Report, Timeline, timeline
from collbench.jobs.job import Job
from collbench.jobs.page import (
    call_table,
    exposed_text,
    gpu_table,
    group_text,
    headline,
    milli,
    origin,
    rank_table,
    remarks,
    size_text,
    timeline_text,
)
from collbench.report.html.page import render_plain

# The page shows the first of more ranks or calls: a browser draws about ten thousand bars at once.
_MOST_RANKS, _MOST_BARS, _MOST_ROWS = 32, 16_000, 500
_LEFT, _WIDE, _BAR, _LANE, _TEXT, _TICKS = 60, 1000, 14, 18, 20, 5  # of the picture, in its own units
_FILLS = ("#2f78c4", "#d9822b", "#3a9b5c", "#a3529e", "#c2403d", "#7a8b99", "#b8a11f", "#3aa6a6")


def render(report: Report, name: str, version: str) -> str:
    """Return the page; `name` is the job's file."""
    template = resources.files("collbench.jobs").joinpath("job.html").read_text(encoding="utf-8")
    return render_plain(template, content(report, name, version))


def content(report: Report, name: str, version: str) -> dict[str, Any]:
    """Return the page's content; `name` is the job's file."""
    job_timeline = timeline(report.job)
    tables = [
        _table(f"The step of rank {report.rank}, in order: µs of one call, GB/s of busbw", call_table(report)),
        _table("Per step, ms", rank_table(report.ranks)),
        *([_table("How the GPU's time passes, ms", gpu_table(report.gpu))] if report.gpu else []),
    ]
    return {
        "title": name,
        "version": version,
        "answer": headline(report),
        "gpu": exposed_text(report),
        "lines": [" ".join(line.split()) for line in (*origin(report), *remarks(report))],
        "timeline": None if job_timeline is None else _picture(report.job, job_timeline),
        "tables": tables,
    }


def _table(title: str, text_table: Table) -> dict[str, Any]:
    rows = list(zip(*(column.cells for column in text_table.columns), strict=True))
    remaining = len(rows) - _MOST_ROWS
    more = f"and {remaining} more rows: collbench show --json has all" if remaining > 0 else ""
    heads = [str(column.header) for column in text_table.columns]
    return {"title": title, "heads": heads, "rows": rows[:_MOST_ROWS], "more": more}


def _picture(job: Job, job_timeline: Timeline) -> dict[str, Any]:
    names = dict.fromkeys(job.calls[bar.call].operation for _, bars in job_timeline.lanes for bar in bars)
    fills = {name: _FILLS[at % len(_FILLS)] for at, name in enumerate(names)}
    scale = _WIDE / job_timeline.seconds if job_timeline.seconds > 0 else 0.0
    shown = job_timeline.lanes[:_MOST_RANKS]
    each = _MOST_BARS // len(shown)
    lanes = [
        {
            "name": f"rank {rank}",
            "y": at * _LANE,
            "text": at * _LANE + _BAR - 3,
            "bars": [_bar(job, bar, scale, fills) for bar in bars[:each]],
        }
        for at, (rank, bars) in enumerate(shown)
    ]
    about = [timeline_text(job, job_timeline)]
    if len(job_timeline.lanes) > len(shown):
        about.append(f"the first {len(shown)} of {len(job_timeline.lanes)} ranks")
    if any(len(bars) > each for _, bars in shown):
        about.append(f"the first {each} calls of each rank")
    ticks = [
        {
            "x": _LEFT + _WIDE * at // _TICKS,
            "anchor": "start" if at == 0 else "end" if at == _TICKS else "middle",
            "text": milli(job_timeline.seconds * at / _TICKS),
        }
        for at in range(_TICKS + 1)
    ]
    return {
        "about": "; ".join(about),
        "width": _LEFT + _WIDE,
        "height": len(shown) * _LANE + _TEXT,
        "bar": _BAR,
        "lanes": lanes,
        "ticks": ticks,
        "legend": [{"name": name, "fill": fill} for name, fill in fills.items()],
    }


def _bar(job: Job, bar: Bar, scale: float, fills: dict[str, str]) -> dict[str, Any]:
    call = job.calls[bar.call]
    took = "kernel time unknown" if bar.seconds is None else f"kernel {milli(bar.seconds)}, waiting included"
    return {
        "x": round(_LEFT + bar.start * scale, 2),
        "width": round(max(1.0, (bar.seconds or 0.0) * scale), 2),
        "fill": fills[call.operation],
        "title": f"{call.operation} {size_text(job, call)} {call.dtype} of {group_text(job, call)}: from "
        f"{milli(bar.start)}, {took}",
    }
