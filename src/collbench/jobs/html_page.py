"""The HTML page of a recorded job: the answer, one step with a bar for each call, and the tables of the text page."""

from __future__ import annotations

from collections import defaultdict
from importlib import resources
from typing import Any

from collbench.jobs import page
from collbench.jobs.calls import Report, shown_phase
from collbench.jobs.job import MICRO, Call, Job, Phase, Sample, Unknown
from collbench.report.html.page import Group, render_plain
from collbench.report.text.layout import Lines, only

# The picture shows the first of more ranks or calls: a browser draws about ten thousand bars at once.
_MOST_RANKS, _MOST_BARS = 32, 16_000
_LEFT, _WIDE, _BAR, _LANE, _TEXT, _TICKS = 60, 1000, 14, 18, 20, 5  # of the picture, in its own units
_FILLS = ("#2f78c4", "#d9822b", "#3a9b5c", "#a3529e", "#c2403d", "#7a8b99", "#b8a11f", "#3aa6a6")


def render(report: Report, name: str, version: str) -> str:
    """Return the page; `name` is the job's file."""
    template = resources.files("collbench.jobs").joinpath("job.html").read_text(encoding="utf-8")
    return render_plain(template, content(report, name, version))


def content(report: Report, name: str, version: str) -> dict[str, Any]:
    """Return the page's content; `name` is the job's file."""
    facts = [*page.origin(report), *page.remarks(report)]
    return {
        "title": name,
        "version": version,
        "answer": page.headline(report),
        "gpu": page.exposed_text(report),
        "facts": Group([Lines("\n".join(facts))]),
        "timeline": _picture(report.job),
        "tables": Group([*only(page.page(report), "tables")]),
    }


Kept = dict[int, tuple[str, Phase, Sample]]  # of a rank: its host, its step, and one repetition of it
Bars = list[tuple[Call, float, float]]  # when a call or its kernel began, s, and how long the kernel ran, 0 if unknown


def _kept(job: Job) -> tuple[int, Kept]:
    """Return the repetition that most ranks kept whole, and what they kept; nothing if no times of calls are known."""
    kept: dict[int, Kept] = defaultdict(dict)
    for rank in sorted(job.ranks, key=lambda one: one.rank) if Unknown.PAUSES not in job.unknown else ():
        phase = shown_phase(rank)
        for sample in phase.samples if phase is not None else ():
            if phase is not None and sample.starts:
                kept[sample.repetition][rank.rank] = rank.host, phase, sample
    repetition = max(kept, key=lambda one: (len(kept[one]), -one), default=0)
    return repetition, kept[repetition]


def _timed(job: Job, kept: Kept) -> tuple[dict[int, Bars], bool, bool]:
    """Return the bars of each rank, whether they begin with kernels, and whether all ranks share a clock."""
    on_gpu = all(sample.gpu_starts and all(sample.gpu_starts) for _, _, sample in kept.values())
    hosts = {host for host, _, _ in kept.values()}
    one_clock = len(kept) == 1 or (len(hosts) == 1 and hosts != {""})
    begins = {rank: sample.gpu_starts if on_gpu else sample.starts for rank, (_, _, sample) in kept.items()}
    first = min(map(min, begins.values()))
    bars = {}
    for rank, (_, phase, sample) in kept.items():
        origin = first if one_clock else min(begins[rank])
        lengths = sample.gpu or (0.0,) * len(phase.positions)
        bars[rank] = [
            (call, (begin - origin) * MICRO, length * MICRO)
            for call, begin, length in zip(job.called(phase), begins[rank], lengths, strict=True)
        ]
    return bars, on_gpu, one_clock


def _picture(job: Job) -> dict[str, Any] | None:
    """Return one repetition of the step, a lane of bars for each rank; None if none was kept."""
    repetition, kept = _kept(job)
    if not kept:
        return None
    bars, on_gpu, one_clock = _timed(job, kept)
    seconds = max(start + length for own in bars.values() for _, start, length in own)
    names = dict.fromkeys(call.operation for own in bars.values() for call, _, _ in own)
    fills = {name: _FILLS[at % len(_FILLS)] for at, name in enumerate(names)}
    scale = _WIDE / seconds if seconds > 0 else 0.0
    shown = list(bars.items())[:_MOST_RANKS]
    each = _MOST_BARS // len(shown)
    what, first = "sequence" if job.steps.source is None else "step", "kernel" if on_gpu else "call"
    about = [f"{what} (repetition {repetition}), {page.milli(seconds)} from the first {first}"]
    if not one_clock:
        about.append(f"hosts have no common clock: each rank starts at its own first {first}")
    if len(bars) > len(shown):
        about.append(f"the first {len(shown)} of {len(bars)} ranks")
    if any(len(own) > each for _, own in shown):
        about.append(f"the first {each} calls of each rank")
    return {
        "about": "; ".join(about),
        "width": _LEFT + _WIDE,
        "height": len(shown) * _LANE + _TEXT,
        "bar": _BAR,
        "lanes": [
            {
                "name": f"rank {rank}",
                "y": at * _LANE,
                "text": at * _LANE + _BAR - 3,
                "bars": [_bar(job, *bar, scale, fills) for bar in own[:each]],
            }
            for at, (rank, own) in enumerate(shown)
        ],
        "ticks": [
            {
                "x": _LEFT + _WIDE * at // _TICKS,
                "anchor": "start" if at == 0 else "end" if at == _TICKS else "middle",
                "text": page.milli(seconds * at / _TICKS),
            }
            for at in range(_TICKS + 1)
        ],
        "legend": [{"name": name, "fill": fill} for name, fill in fills.items()],
    }


def _bar(job: Job, call: Call, start: float, seconds: float, scale: float, fills: dict[str, str]) -> dict[str, Any]:
    took = f"kernel {page.milli(seconds)}, waiting included" if seconds > 0 else "kernel time unknown"
    return {
        "x": round(_LEFT + start * scale, 2),
        "width": round(max(1.0, seconds * scale), 2),
        "fill": fills[call.operation],
        "title": f"{call.operation} {page.size_text(job, call)} {call.dtype} of {page.group_text(job, call)}: from "
        f"{page.milli(start)}, {took}",
    }
