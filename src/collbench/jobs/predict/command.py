"""`collbench predict`: what communication costs a training step on the best and the worst GPUs of saved runs."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from collbench.api.file_kinds import JOB, format_of
from collbench.api.runs import load_named
from collbench.cli import options
from collbench.cli.runs import all_named_or_newest
from collbench.cli.terminal import echo, leave, show_page, verbose_option
from collbench.jobs import job_file
from collbench.jobs.predict.api import (
    BYTES,
    DEFAULT_BUCKET,
    MOST_LAYERS,
    MOST_MICRO_BATCHES,
    PredictRequest,
    predict_step,
)
from collbench.judge.outcome import outcome
from collbench.model.errors import UsageError
from collbench.model.operations import Registration
from collbench.model.run import Run
from collbench.model.units import parse_size
from collbench.runfile import run_file

_TIME = re.compile(r"(\d{1,9}(?:\.\d{0,9})?|\.\d{1,9})(us|ms|s)", re.ASCII)
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_NUMBER = re.compile(r"\d{1,4}", re.ASCII)
_ALONE, _ON_BEST = "alone", "best"
NO_OVERLAP = "none"
# The options that a recorded job takes.
_OF_A_JOB = ("files", "overlaps", "devices", "recorded", "as_json", "verbose")


def _seconds(_context: click.Context, option: click.Parameter, text: str | None) -> float | None:
    """Return the seconds of "22ms", "0.022s" or "22400us". Raises UsageError."""
    if text is None:
        return None
    match = _TIME.fullmatch(text.strip())
    if match is None and _TIME.fullmatch(f"{text.strip()}s"):
        number = text.strip()
        raise UsageError(f"{option.opts[0]} '{number}' lacks a unit: write {number}ms, {number}s or {number}us")
    if match is None or float(match[1]) == 0:
        raise UsageError(f"{option.opts[0]} '{text}' is not a time above zero: write 22ms, 0.022s or 22400us")
    return float(match[1]) * _SECONDS[match[2]]


def _counts(text: str) -> tuple[int, ...]:
    """Return the numbers of GPUs. Raises UsageError."""
    parts = [part.strip() for part in text.split(",")]
    wrong = next((part for part in parts if not _NUMBER.fullmatch(part) or int(part) < 2), None)
    if wrong is not None:
        raise UsageError(f"--gpus '{wrong}' is not a number of GPUs from 2: write 2,4")
    return tuple(map(int, parts))


_own_options = options.apply(
    click.option("--model", metavar="NAME", help="A network by name: gpt2, llama-3-8b, …"),
    click.option("--params", metavar="COUNT", help="Or its parameters: 124M, 1.5B."),
    click.option(
        "--layers", metavar="N", type=click.IntRange(1, MOST_LAYERS), help="Its number of blocks.  [default: 24]"
    ),
    click.option(
        "--strategy",
        "strategies",
        metavar="LIST",
        default="ddp",
        show_default=True,
        help="ddp, zero1, zero2, zero3, fsdp, hsdp, a list of these, or all.",
    ),
    click.option(
        "--dtype",
        type=click.Choice(list(BYTES)),
        default="bf16",
        show_default=True,
        help="Type of the parameters and gradients that are sent.",
    ),
    click.option(
        "--grad-dtype",
        type=click.Choice(list(BYTES)),
        help="Type of sent gradients: fp32 for DDP with autocast.  [default: --dtype]",
    ),
    click.option(
        "--micro-batches",
        metavar="N",
        type=click.IntRange(1, MOST_MICRO_BATCHES),
        default=1,
        show_default=True,
        help="Micro-batches per step.",
    ),
    click.option(
        "--gpus",
        metavar="LIST",
        callback=options.parsed(_counts),
        help="Numbers of GPUs to predict for: 2,4.  [default: 2, 4, 8, … and all of the runs]",
    ),
    click.option(
        "--step-time",
        "step_seconds",
        metavar="TIME",
        callback=_seconds,
        help="Time of one step of this job, such as 22ms. Without it, only raw times are printed.",
    ),
    click.option(
        "--timed-on",
        type=click.Choice([_ALONE, _ON_BEST]),
        default=_ALONE,
        show_default=True,
        help="Where that step was timed: alone: on one GPU, without communication; best: on the best set of --gpus.",
    ),
    click.option(
        "--gpu-time",
        "gpu_seconds",
        metavar="TIME",
        callback=_seconds,
        help="Sum of that step's kernels in a profiler.  [default: the step time]",
    ),
    click.option(
        "--host-phases",
        metavar="F,B,O",
        help="The host's time in forward, backward and optimizer; only their ratios count.  [default: 1,2,0]",
    ),
    click.option(
        "--head-share",
        metavar="SHARE",
        type=click.FloatRange(0, 1, min_open=True, max_open=True),
        help="Share of the GPU's time that head and loss take, such as 0.41.  [default: their share of multiply-adds]",
    ),
    click.option(
        "--shard", "shards", metavar="N", type=click.IntRange(min=2), help="hsdp: GPUs that hold one copy of the model."
    ),
    click.option(
        "--bucket",
        "bucket_bytes",
        metavar="SIZE",
        default=DEFAULT_BUCKET,
        show_default=True,
        callback=options.parsed(parse_size),
        help="Size of a gradient bucket: DDP's bucket_cap_mb.",
    ),
    click.option(
        "--overlap",
        "overlaps",
        metavar="RUN",
        type=options.FILE_NAME,
        multiple=True,
        help="Run of 'collbench overlap', or none.  [default: the newest that fits]",
    ),
    click.option(
        "--registration",
        metavar="KIND",
        type=click.Choice([kind.value for kind in Registration]),
        default=Registration.NONE.value,
        help="Registered memory of the job: none, buffer or window.  [default: none]",
    ),
    click.option("--devices", metavar="LIST", help="For a job: devices in rank order: 2,3."),
    click.option(
        "--recorded",
        metavar="RUN",
        multiple=True,
        type=options.FILE,
        help="For a job: a run of the links that it used.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/predict.md)."),
    verbose_option,
)


@click.command()
@options.run_files
@_own_options
def predict(
    files: tuple[Path, ...],
    *,
    timed_on: str,
    overlaps: tuple[str, ...],
    registration: str,
    as_json: bool,
    devices: str | None,
    recorded: tuple[Path, ...],
    **option_values: Any,
) -> None:
    """Predict what communication costs a training step on the best and the worst GPUs.

    It reads saved runs of one machine. The run of 'pairs' ranks the sets of GPUs. Runs of allreduce, allgather and
    reducescatter on as many GPUs as you train on make the prediction better. With a recorded job as first file, it
    predicts that job's step on the runs' links.

    \b
    Examples:
      collbench predict run.json --model gpt2 --strategy all --step-time 22ms
      collbench predict pairs.json allgather.json --params 7B --strategy fsdp
      collbench predict job.json run.json --devices 2,3
    """
    if NO_OVERLAP in overlaps and len(overlaps) > 1:
        raise UsageError(f"--overlap {NO_OVERLAP} ignores the cost of overlap: leave the other --overlap out")
    if files and format_of(files[0]) == JOB:
        if others := options.typed_besides(_OF_A_JOB):
            raise UsageError(
                f"{others[0]} describes a network, and a recorded job already has its messages: leave it out"
            )
        factors = [] if NO_OVERLAP in overlaps else load_named(map(Path, overlaps))
        predict_job(files[0], files[1:], devices, recorded, factors, as_json=as_json)
        return
    if devices is not None or recorded:
        if files:
            run_file.load(files[0])  # a file that cannot be read is the more likely mistake
        raise UsageError("--devices and --recorded are for a recorded job: name its file first, before the runs")
    request = PredictRequest(on_best=timed_on == _ON_BEST, registration=Registration(registration), **option_values)
    overlap_runs = () if NO_OVERLAP in overlaps else load_named(map(Path, overlaps)) if overlaps else None
    runs = load_named(all_named_or_newest(files, of_links=True))
    run, answer = predict_step(runs, request, overlap_runs)
    # Late: numpy takes as long to load as the rest of the program.
    from collbench.jobs.predict import page as prediction
    from collbench.report.text.frame import alarm

    if as_json:
        echo(json.dumps(prediction.as_json(run, answer), indent=1, ensure_ascii=False, allow_nan=False))
    else:
        show_page([*(block for _, saved_run in runs for block in alarm(saved_run)), *prediction.page(run, answer)])
    status = max(outcome(saved_run).status for _, saved_run in runs)
    leave(status)


def predict_job(
    job: Path,
    files: tuple[Path, ...],
    devices: str | None,
    recorded: tuple[Path, ...],
    overlaps: Sequence[tuple[str, Run]],
    *,
    as_json: bool,
) -> None:
    """Print what a recorded job's step takes on the links of runs."""
    from collbench.jobs import api as jobs
    from collbench.jobs.predict import job_page as pages
    from collbench.report.text.frame import alarm

    loaded = job_file.load(job)
    runs = load_named(all_named_or_newest(files, of_links=True))
    run, answer = jobs.predict_job(loaded, runs, devices=devices, recorded=load_named(recorded), overlaps=overlaps)
    if as_json:
        echo(json.dumps(pages.as_json(loaded, run, answer), indent=1, ensure_ascii=False, allow_nan=False))
    else:
        show_page([*(block for _, saved_run in runs for block in alarm(saved_run)), *pages.page(loaded, run, answer)])
    leave(max(outcome(saved_run).status for _, saved_run in runs))
