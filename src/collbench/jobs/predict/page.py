"""The pages and the JSON of `collbench predict`, of a recorded job and of a step before there is a job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.text import Text

from collbench.jobs.job import Job
from collbench.jobs.page import group_text, micro, milli
from collbench.jobs.predict import network, recorded
from collbench.jobs.predict.network import Prediction
from collbench.jobs.predict.recorded import PlacedJob, PredictedJob
from collbench.judge.diagnose import Kind, judge
from collbench.model.run import Run, tags
from collbench.model.units import amount, counted, fixed, format_message_size
from collbench.report.frame import ALARM, interrupted, origin, sim
from collbench.report.layout import Block, Lines, both, listed, prose, table
from collbench.runfile.codec import head, picked

_FEW = 12  # rows, assumptions
_BAND = "band      from full overlap with compute to none"


def training_page(prediction: Prediction) -> Iterator[Block]:
    """Yield the page of a step before there is a job."""
    run, step = prediction.run, prediction.step
    mark = sim(run, " (sim)")
    count = f"{fixed(step.parameters / 1e9)}B" if step.parameters >= 10**9 else f"{fixed(step.parameters / 1e6)}M"
    sent = f"{fixed(step.sent_bytes / 1e9)} GB" if step.sent_bytes >= 10**10 else f"{fixed(step.sent_bytes / 1e6)} MB"
    sentences = (f"One step of {step.strategy} with {count} parameters sends {sent}.", *_sentences(prediction, mark))
    yield from both("header", prose("\n".join(sentences) + "\n"))
    lines: list[str] = []
    if any(case.longer for case in prediction.cases):
        what = f"{sim(run)}ms a step: all messages one after the other, and the worst set's extra time"
        rows = []
        for case in prediction.cases:
            longer = ("-",) * 3 if case.longer is None else tuple(map(_ms, case.longer))
            worst = "-" if case.worst_seconds is None else _ms(case.worst_seconds)
            rows.append((str(case.gpus), _ms(case.best_seconds), worst, *longer))
        heads = ("GPUs", "best set", "worst set", "longer: least", "expected", "most")
        yield from both("tables", Text(what), table(*heads, rows=rows), Text(""))
        (bound, every), (few, many) = network.MEAN_ERROR_MS, network.STEPS
        lines.append(
            f"{_BAND}; expected: {network.SHARE:.0%} of the difference between sets. Between links with and without "
            f"P2P that was wrong by {bound} ms on average for {few} GPU-bound steps, and by {every} ms for all {many}"
        )
    for case in prediction.cases:
        worst = f"; worst {tags(case.worst, run.devices)}" if case.worst else ""
        lines.append(f"sets      {case.gpus} GPUs: best {tags(case.best, run.devices)}{worst}")
    lines += [f"left out  {gpus} GPUs: {why}" for gpus, why in prediction.unpredicted]
    lines += [f"assumed   {text}" for text in prediction.assumed[:_FEW]]
    layers = "" if step.strategy == "ddp" else f", {step.layers} equal layers"
    messages = [
        f"{number} × {operation.value} of {format_message_size(bytes_sent)}"
        for (operation, bytes_sent), number in step.messages.items()
    ]
    lines.append(f"messages  {step.dtype}{layers}: {', '.join(messages)}")
    yield from both("notes", Lines("\n".join([*lines, origin(run)])))


def _sentences(prediction: Prediction, mark: str) -> Iterator[str]:
    for case in prediction.cases:
        if case.longer is None:
            took = f"that takes {_ms(case.best_seconds)} ms{mark}, of which compute hides none to all"
            yield f"On {case.gpus} GPUs {took}; one set was measured."
        else:
            least, expected, most = map(_ms, case.longer)
            worst = "the worst set"
            if case.measured < case.sets:
                worst = f"the worst of the {case.measured} measured sets (of {case.sets})"
            yield f"On {case.gpus} GPUs {worst} lengthens a step by {expected} ms ({least} to {most}){mark}."


_NOTHING = "0.00"


def _ms(seconds: float) -> str:
    """Return milliseconds with three significant digits, at most two of them decimals."""
    value = round(seconds * 1e3, 2) + 0.0  # no -0.00
    return f"{value:.0f}" if abs(value) >= 99.95 else f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}"


def contended(name: str, run: Run) -> Iterator[str]:
    """Yield a line for each sign that something else used the links of a run: then its times are too long."""
    for verdict in judge(run):
        if verdict.kind is Kind.CONTENTION:
            found = ": ".join(filter(None, (verdict.place, verdict.text)))
            yield f"{verdict.kind} in {name}: {found}; {verdict.cause.text}"


def partly(name: str, run: Run) -> Iterator[str]:
    """Yield that a run was interrupted, how much it has, and what that means for a prediction."""
    if not run.complete:
        yield f"{interrupted(run)} in {name}: what it lacks may change the answer"


def training_json(prediction: Prediction) -> dict[str, Any]:
    """Return the prediction as JSON, in seconds; "longer_seconds" is [least, expected, most] (docs/predict.md)."""
    run, step = prediction.run, prediction.step

    def names(members: tuple[int, ...] | None) -> list[str] | None:
        return None if members is None else [run.devices[position].tag for position in members]

    return head("prediction", run.backend) | {
        **picked(run.machine, "fabric", "hostname"),
        **picked(run, "started"),
        **picked(step, "strategy", "parameters", "layers", "dtype"),
        "messages": [
            {"operation": operation.value, "size_bytes": bytes_sent, "count": count}
            for (operation, bytes_sent), count in step.messages.items()
        ],
        "cases": [
            {
                "gpus": case.gpus,
                "best": names(case.best),
                "best_seconds": case.best_seconds,
                "worst": names(case.worst),
                "worst_seconds": case.worst_seconds,
                "longer_seconds": case.longer,
                "measured": case.measured,
                "sets": case.sets,
            }
            for case in prediction.cases
        ],
        "unpredicted": [{"gpus": gpus, "reason": why} for gpus, why in prediction.unpredicted],
        "assumptions": list(prediction.assumed),
    }


def job_page(job: Job, predicted: PredictedJob) -> Iterator[Block]:
    """Yield the page of a recorded job: how much longer its step is on the run's links, and its calls there."""
    run = predicted.here.links.run
    if others := _other_gpus(predicted):
        yield from both("header", prose(others, ALARM))
    answer = sim(run, "sim: ")
    answer += "" if predicted.percent == 100 else f"the runs cover only {predicted.percent}% of the step's bytes; "
    if predicted.here.links is predicted.recorded.links:
        answer += f"if the job ran on {_place(predicted.recorded)} (no --recorded-links): "
    which = f" (rank {predicted.rank}, whose step changes most)" if len(job.ranks) > 1 else ""
    answer += f"{_takes(predicted)}; recorded: {milli(predicted.step)}{which}"
    # A record does not name the models of its GPUs.
    places = (f"assumed   the job ran on {_devices(predicted.recorded)}", f"here      {_devices(predicted.here)}")
    yield from both("header", prose(answer))
    yield from both("header", Lines("\n".join(places) + "\n"))
    rows = []
    for number, (before, after) in predicted.prices.items():
        call = job.calls[number]
        times = micro(before.seconds), micro(after.seconds)
        rows.append((call.operation, format_message_size(call.size_bytes), group_text(job, call), *times))
    calls = table("call", "bytes", "group", "assumed, µs", "here, µs", rows=rows, left=("call", "group"))
    yield from both("tables", Text(f"{sim(run)}isolated calls, on the links assumed for the job and on these"))
    yield from both("tables", *listed(calls, _FEW, " calls: --json has all"))
    lines = [
        f"{_BAND}; the record does not show which transfers compute waits for. The estimate was wrong by "
        f"{recorded.MEAN_ERROR_MS} ms on average for {recorded.JOBS} recorded jobs without P2P"
    ]
    gradients = {job.calls[number].group for number in predicted.prices} - predicted.waiting
    if predicted.gpu_limits and gradients:
        lines.append(
            "estimate  the GPU limits this step: its kernels begin long after the host's calls. Such steps got longer "
            f"by {network.SHARE:.0%} of the change of their parameters' and gradients' messages"
        )
    if predicted.waiting:
        lines.append(
            "estimate  messages of one size, without a long pause, are taken for activations: compute waits for "
            f"{recorded.WAITED:.0%} of their change"
        )
    if job.steps.why:
        lines.append(f"step      {job.steps.why}")
    assumed = dict.fromkeys(price.assumed for both_prices in predicted.prices.values() for price in both_prices)
    lines += [f"assumed   {text}" for text in [assumption for assumption in assumed if assumption][:_FEW]]
    if predicted.kept:
        names = ", ".join(dict.fromkeys(job.calls[number].operation for number in predicted.kept))
        lines.append(f"kept      {names}: {amount(len(predicted.kept), 'call')} as recorded: no run covers them")
    yield from both("notes", Lines("\n" + "\n".join(lines)))


def _takes(predicted: PredictedJob) -> str:
    """Return "a step takes 2.23 ms longer on these links (0.37 to 2.33 ms)"."""
    if predicted.same_figures:
        return "nothing changes, because the same measurements describe the job's links and these"
    least, expected, most = predicted.change
    shorter = most <= 0 and least < 0
    low, high = (_ms(end) for end in (sorted((abs(least), abs(most))) if shorter else (least, most)))
    took = _ms(abs(expected))
    how = "shorter" if expected < 0 else "longer"
    change = "as long" if took == _NOTHING else f"{took} ms {how}"
    ends = "" if low == high else f" ({low} to {high} ms{f' {how}' if took == _NOTHING else ''})"
    return f"a step takes {change} on these links{ends}"


def _place(placed: PlacedJob) -> str:
    """Return "GPU2, GPU3 of vm"."""
    machine = placed.links.run.machine
    return f"{', '.join(device.tag for device in placed.devices)} of {machine.fabric or machine.hostname}"


def _devices(placed: PlacedJob) -> str:
    """Return "GPU2, GPU3 of vm: 2 × NVIDIA H200"."""
    return f"{_place(placed)}: {counted(device.name for device in placed.devices)}"


def _other_gpus(predicted: PredictedJob) -> str:
    """Return that the GPUs taken for the job's are of another model than those of the run; "" if they are not."""
    old, new = (counted(device.name for device in placed.devices) for placed in (predicted.recorded, predicted.here))
    if old == new:
        return ""
    return f"other GPUs: links of {old} before, of {new} here: only the links change, computing stays as recorded"


def job_json(job: Job, predicted: PredictedJob) -> dict[str, Any]:
    """Return the prediction as JSON, in seconds; "longer_seconds" is [least, expected, most] (docs/predict.md)."""
    return head("job-prediction", predicted.here.links.run.backend) | {
        "recorded_gpus": [device.name for device in predicted.recorded.devices],
        "gpus": [device.name for device in predicted.here.devices],
        "recorded_links_given": predicted.here.links is not predicted.recorded.links,
        "rank": predicted.rank,
        "recorded_step_seconds": predicted.step,
        "longer_seconds": predicted.change,
        "gpu_limits": predicted.gpu_limits,
        "calls": [
            {
                **picked(job.calls[number], "operation", "size_bytes"),
                "recorded_seconds": before.seconds,
                "seconds": after.seconds,
                "assumed": after.assumed or before.assumed or None,
            }
            for number, (before, after) in predicted.prices.items()
        ],
        "kept": [job.calls[number].operation for number in predicted.kept],
        "bytes_share": predicted.covered,
    }
