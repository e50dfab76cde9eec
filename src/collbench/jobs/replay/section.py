"""How a run of `collbench replay` is shown: its page, its rows for other tools, and its answer in HTML."""

from __future__ import annotations

from collections.abc import Iterator

from collbench.jobs.replay.page import answer, replay_page
from collbench.jobs.replay.steps import summarize
from collbench.model.run import Run
from collbench.model.units import fixed
from collbench.report.rows import Column, Row, Type, devices_of, outcome_of
from collbench.report.sections import Html

HELD = "a replay"
page, draw = replay_page, None


def failed(_run: Run) -> str:
    """Return nothing: a step is lost as a whole, on its devices."""
    return ""


def html(run: Run) -> Html:
    """Return the answer of a run's first arm."""
    question = "Communication of a step"
    first = next((arm for arm in run.replays if arm.trials), None)
    if first is None:
        return Html(question, "nothing measured")
    milliseconds = summarize(first).communication.value * 1e3
    return Html(question, f"{fixed(milliseconds, 2)} ms a step", [answer(run)])


# A row for each kind of call of each arm, with the figures of its step.
COLUMNS = (
    Column("job", Type.TEXT, "the recorded job's file"),
    Column("phase", Type.WHOLE, "which phase of the job's first rank, from 1"),
    Column("world_size", Type.WHOLE, "ranks of the replay, one process for each device"),
    Column("recorded_ranks", Type.WHOLE, "ranks of the job"),
    Column("members", Type.TEXT, "the devices in rank order, comma-separated: GPU0,GPU1"),
    Column("compute", Type.TEXT, "compute in the pauses: none, or recorded (matrix products of the recorded length)"),
    Column("registration", Type.TEXT, "registered memory: none, buffer or window"),
    Column("without", Type.TEXT, "what NCCL was denied: p2p, nvlink, shm or ib, comma-separated; empty for nothing"),
    Column("operation", Type.TEXT, "a collective, p2p for sends and receives, or mixed"),
    Column("size_bytes", Type.WHOLE, "bytes; the message size as nccl-tests defines it"),
    Column("ranks", Type.WHOLE, "ranks in the call"),
    Column("count", Type.WHOLE, "how many such calls a step has"),
    Column("call_seconds", Type.REAL, "s; one such call within the step, on the rank that waited least"),
    Column("recorded_call_seconds", Type.REAL, "s; the same in the job; empty if unknown"),
    Column("trials", Type.WHOLE, "how often the step was measured"),
    *(
        Column(f"{name}_seconds{end}", Type.REAL, f"s a step; {meaning}{edge}")
        for name, meaning in (
            ("step", "pauses and calls, slowest rank"),
            ("pauses", "the pauses alone"),
            ("exposed", "step less the pauses alone"),
            ("communication", "the calls of the rank that has most, without waiting"),
            ("back_to_back", "the calls without pauses"),
        )
        for end, edge in (("", ""), ("_low", "; its 95% interval, from"), ("_high", "; to"))
    ),
    Column("recorded_communication_seconds", Type.REAL, "s a step; the job's own communication; empty if unknown"),
    Column("flags", Type.TEXT, "flags of the devices during the measurement, each once, separated by semicolons"),
    Column("failure", Type.TEXT, "why the arm failed; such a row may have no figures"),
    Column("wrong", Type.WHOLE, "elements that did not arrive as sent; empty where none was compared"),
)


def rows(run: Run) -> Iterator[Row]:
    """Yield the rows of a run's arms."""
    for arm in run.replays:
        row: Row = {
            **devices_of(run, arm.members),
            **outcome_of(run, arm.trials, arm.failure),
            "job": arm.job,
            "phase": arm.phase + 1,
            "world_size": len(arm.members),
            "recorded_ranks": arm.recorded_ranks,
            "compute": arm.pauses.value,
            "registration": arm.registration.value,
            "without": ",".join(arm.without) or None,
            "recorded_communication_seconds": arm.recorded_seconds,
            "wrong": arm.wrong,
        }
        summary = summarize(arm) if arm.trials else None
        if summary is not None:
            row |= {
                **summary.step.columns("step_seconds"),
                **summary.pauses.columns("pauses_seconds"),
                **summary.exposed.columns("exposed_seconds"),
                **summary.communication.columns("communication_seconds"),
                **summary.alone.columns("back_to_back_seconds"),
            }
        for number, call in enumerate(arm.calls):
            yield {
                **row,
                "operation": call.operation,
                "size_bytes": call.size_bytes,
                "ranks": call.ranks,
                "count": call.count,
                "call_seconds": summary.by_kind[number].value if summary else None,
                "recorded_call_seconds": call.recorded_seconds,
            }
