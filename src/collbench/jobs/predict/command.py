"""`collbench predict`: how much longer a step is on other links, of a recorded job, or of a network by its size."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click

from collbench.api.file_kinds import JOB, format_of
from collbench.api.runs import load_named, newest
from collbench.cli import options
from collbench.cli.terminal import NOTICES, echo, leave, show_page
from collbench.jobs import job_file
from collbench.jobs.predict.step import BYTES, MOST_LAYERS, STRATEGIES, Step, parse_parameters
from collbench.judge.outcome import outcome
from collbench.model.errors import UsageError
from collbench.model.printable import one_line
from collbench.runfile import run_file

_NUMBER = re.compile(r"\d{1,4}", re.ASCII)
_OF_A_JOB = ("files", "devices", "recorded", "as_json")


def _counts(text: str) -> tuple[int, ...]:
    """Return the numbers of GPUs. Raises UsageError."""
    parts = [part.strip() for part in text.split(",")]
    wrong = next((part for part in parts if not _NUMBER.fullmatch(part) or int(part) < 2), None)
    if wrong is not None:
        raise UsageError(f"--gpus '{wrong}' is not a number of GPUs from 2: write 2,4")
    return tuple(map(int, parts))


@click.command()
@options.run_files
@options.apply(
    click.option("--devices", metavar="LIST", help="For a job: devices in rank order: 2,3."),
    click.option(
        "--recorded",
        metavar="RUN",
        multiple=True,
        type=options.FILE,
        help="For a job: a run of the links that it used.  [default: the same runs, on the job's devices]",
    ),
    click.option("--params", metavar="COUNT", help="Without a job: the network's parameters: 124M, 1.5B."),
    click.option(
        "--strategy",
        type=click.Choice(list(STRATEGIES)),
        default="ddp",
        show_default=True,
        help="How it is trained.",
    ),
    click.option(
        "--layers",
        metavar="N",
        type=click.IntRange(1, MOST_LAYERS),
        default=24,
        show_default=True,
        help="zero3, fsdp: its layers, each sent as one message.",
    ),
    click.option(
        "--dtype",
        type=click.Choice(list(BYTES)),
        default="bf16",
        show_default=True,
        help="Type of what is sent: fp32 for DDP with autocast.",
    ),
    click.option(
        "--gpus",
        metavar="LIST",
        callback=options.parsed(_counts),
        help="Numbers of GPUs to predict for: 2,4.  [default: all that the runs have]",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/predict.md)."),
)
def predict(
    files: tuple[Path, ...],
    *,
    devices: str | None,
    recorded: tuple[Path, ...],
    params: str | None,
    gpus: tuple[int, ...] | None,
    as_json: bool,
    **step_options: Any,
) -> None:
    """Predict how much longer a step takes on other links: without P2P, on another pair.

    With a recorded job as first file, it predicts the change of that job's step from the links that it used
    (--recorded) to those of the runs. Without a job, it predicts from the number of parameters what a step's
    collectives take on the fastest and the slowest GPUs that were measured. Without a run, it takes the newest saved
    run that was measured, never a simulated one.

    \b
    Examples:
      collbench predict job.json without-p2p.json --recorded with-p2p.json
      collbench predict job.json pairs.json --devices 2,3
      collbench predict pairs.json --params 124M --strategy fsdp
    """
    is_job = bool(files) and format_of(files[0]) == JOB
    if is_job:
        if others := options.typed_besides(_OF_A_JOB):
            raise UsageError(
                f"{others[0]} describes a network, and a recorded job already has its messages: leave it out"
            )
    else:
        if files:
            run_file.load(files[0])  # a file that cannot be read is the more likely mistake
        if devices is not None or recorded:
            raise UsageError("--devices and --recorded are for a recorded job: name its file first, before the runs")
        if params is None:
            raise UsageError("name a recorded job first, or give the network's parameters: --params 124M")
    run_files = files[is_job:]
    taken = () if run_files else (newest(NOTICES, of_links=True, simulated=False),)
    runs = load_named(run_files or taken)
    # Late: numpy takes as long to load as the rest of the program.
    from rich.text import Text

    from collbench.jobs import api as jobs
    from collbench.jobs.predict import page, training
    from collbench.jobs.predict.links import Links
    from collbench.report.text.frame import ALARM, alarm

    used = load_named(recorded)
    contended = [line for name, saved_run in (*runs, *used) for line in page.contended(name, saved_run)]
    if is_job:
        job = job_file.load(files[0])
        run, changed = jobs.predict_job(job, runs, devices=devices, recorded=used)
        blocks, fields = page.job_page(job, run, changed), page.job_json(job, run, changed)
    else:
        step = Step(parse_parameters(params or ""), **step_options)
        prediction = training.predict_step(Links(runs), step, gpus)
        blocks, fields = page.training_page(prediction), page.training_json(prediction)
    if as_json:
        echo(json.dumps({**fields, "contention": contended}, indent=1, ensure_ascii=False, allow_nan=False))
    else:
        source = [Text(f"From the newest saved run, {one_line(str(path))}:\n") for path in taken]
        alarms = [block for _, saved_run in runs for block in alarm(saved_run)]
        show_page([*source, *alarms, *(Text(line, style=ALARM) for line in contended), *blocks])
    leave(max(outcome(saved_run).status for _, saved_run in runs))
