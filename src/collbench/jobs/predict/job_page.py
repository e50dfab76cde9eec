"""The page of `collbench predict` for a recorded job: how long its step takes on other links."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.text import Text

from collbench.jobs.job import Job
from collbench.jobs.page import group_text, micro, milli, size
from collbench.jobs.predict.page import of_times
from collbench.jobs.predict.recorded import PredictedJob
from collbench.jobs.predict.responses import Share
from collbench.model.run import Run
from collbench.model.units import amount, figure
from collbench.report.prose import NARROW, filled, named
from collbench.report.text.frame import sim
from collbench.report.text.layout import Block, Lines, both, more, table

_FEW = 12  # rows, assumptions


def page(job: Job, run: Run, predicted_job: PredictedJob) -> Iterator[Block]:
    """Yield the page: the answer, the bounds, and each call's time there."""
    yield from both("header", Text(filled(headline(run, predicted_job), NARROW) + "\n"))
    bounds_table = table("ms", "recorded", "at least", "as scheduled", "at most", left=("ms",))
    limits, step = predicted_job.bounds, predicted_job.bounds.step
    bounds_table.add_row("step", milliseconds(limits.recorded), *map(milliseconds, step))
    bounds_table.add_row("change", "", *(milliseconds(one - limits.recorded) for one in step))
    bounds_table.add_row("transfers", milliseconds(limits.before), "", milliseconds(limits.after), "")
    yield from both("tables", bounds_table)
    prices = list(predicted_job.prices.items())
    if prices:
        yield from both("tables", Text(f"\n{sim(run)}µs of one call on the new links, isolated"))
        shown = ["waited"] if predicted_job.waited else []
        rows = table("call", "bytes", "group", "least", "middle", "most", *shown, left=("call", "group"))
        for number, price in prices[:_FEW]:
            call = job.calls[number]
            cells = call.operation, size(call.size_bytes), group_text(job, call), *map(micro, price.seconds)
            rows.add_row(*cells, *(_share(predicted_job.waited.get(number)) for _ in shown))
        yield from both("tables", rows)
        yield from both("tables", *more(len(prices) - _FEW, " calls: --json has all"))
    yield from both("notes", Lines("\n" + "\n".join(named(line, NARROW) for line in _notes(job, run, predicted_job))))


def headline(run: Run, predicted_job: PredictedJob) -> str:
    """Return the answer in a sentence."""
    least, middle, most = predicted_job.bounds.step
    between = "" if milli(least) == milli(most) else f" ({milli(least)} to {milli(most)})"
    recorded = milli(predicted_job.bounds.recorded)
    return f"{sim(run)}a step takes {milli(middle)} on the new links{between}; the recorded step took {recorded}"


def _notes(job: Job, run: Run, predicted_job: PredictedJob) -> Iterator[str]:
    if predicted_job.waited:
        unknown = any(share.unknown for share in predicted_job.waited.values())
        yield (
            "waited    share of a longer transfer that delays the next kernel (95% interval), from the calls "
            "in which a rank arrived early and waited" + ("; '?' is unknown: half is assumed" if unknown else "")
        )
    else:
        yield (
            f"{'bounds':<10}the record does not show which transfers compute waits for (one with 'record --gpu-times' "
            "does): one bound assumes that compute waits for all of them, the other that the step hides as much of "
            "them as it can"
        )
    if predicted_job.calibrated:
        yield "times     recorded transfers × the ratio of the measured isolated transfers"
    else:
        yield "times     measured isolated transfers; these runs do not cover the links that the job ran on"
    for assumed in predicted_job.assumed[:_FEW]:
        yield f"assumed   {of_times(assumed, run.devices)}"
    if predicted_job.kept:
        kept = dict.fromkeys(job.calls[number].operation for number in predicted_job.kept)
        calls = amount(len(predicted_job.kept), "call")
        yield f"kept      {', '.join(kept)}: {calls} as recorded: no run covers them"


def _share(share: Share | None) -> str:
    """Return how much of a longer transfer delays the next kernel; "?" where the record shows nothing of it."""
    if share is None or share.unknown:
        return "?"
    low, high = (f"{100 * end:.0f}" for end in (share.low, share.high))
    return f"{100 * share.share:.0f}%" + ("" if low == high else f" ({low} to {high})")


def milliseconds(seconds: float) -> str:
    """Return milliseconds for a table."""
    text = figure(abs(round(seconds, 9)) * 1e3, 2)
    return f"-{text}" if seconds < 0 and float(text) else text


def as_json(job: Job, run: Run, predicted_job: PredictedJob) -> dict[str, Any]:
    """Return the prediction as JSON, in seconds; spans are [least, middle, most] (docs/predict.md)."""
    return {
        "format": "collbench-job-prediction",
        "format_version": 1,
        "backend": run.backend,
        "rank": predicted_job.rank,
        "recorded_step_seconds": predicted_job.bounds.recorded,
        "step_seconds": list(predicted_job.bounds.step),
        "recorded_transfer_seconds": predicted_job.bounds.before,
        "transfer_seconds": predicted_job.bounds.after,
        "calibrated": predicted_job.calibrated,
        "calls": [
            {
                "operation": job.calls[number].operation,
                "size_bytes": job.calls[number].size_bytes,
                "isolated_seconds": list(price.seconds),
                "concurrent_factor": price.concurrent,
                "compute_factor": price.compute,
                "assumed": of_times(price.assumed, run.devices) or None,
                "waited": None
                if (share := predicted_job.waited.get(number)) is None
                else [share.low, share.share, share.high],
            }
            for number, price in predicted_job.prices.items()
        ],
        "kept": [job.calls[number].operation for number in predicted_job.kept],
    }
