"""`collbench predict`: how much longer a step is on other links, of a recorded job, or of a network by its size."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from collbench.api.runs import JOB, format_of, load_named, newest
from collbench.cli import options
from collbench.cli.terminal import NOTICES, echo, leave, show_page
from collbench.jobs import job_file
from collbench.jobs.predict.step import BYTES, MOST_LAYERS, STRATEGIES, Step, parse_parameters
from collbench.judge.outcome import outcome
from collbench.model.errors import UsageError
from collbench.model.printable import one_line
from collbench.runfile import run_file

if TYPE_CHECKING:
    from collbench.jobs.api import NamedRuns
    from collbench.report.text.layout import Block

_NUMBER = re.compile(r"\d{1,4}", re.ASCII)
_OF_A_JOB = ("files", "devices", "recorded_links", "as_json")


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
        "--recorded-links",
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
    recorded_links: tuple[Path, ...],
    params: str | None,
    gpus: tuple[int, ...] | None,
    as_json: bool,
    **step_options: Any,
) -> None:
    """Predict how much longer a step takes on other links: without P2P, on another pair.

    With a recorded job as first file, it predicts the change of that job's step from the links that it used
    (--recorded-links) to those of the runs. Without a job, it predicts from the number of parameters what a step's
    collectives take on the fastest and the slowest GPUs that were measured. Without a run, it takes the newest saved
    run that was measured, never a simulated one.

    \b
    Examples:
      collbench predict job.json without-p2p.json --recorded-links with-p2p.json
      collbench predict job.json pairs.json --devices 2,3
      collbench predict pairs.json --params 124M --strategy fsdp
    """
    is_job = bool(files) and format_of(files[0]) == JOB
    if is_job:
        _check_of_a_job()
    else:
        _check_of_a_network(files, params, for_a_job=devices is not None or bool(recorded_links))
    run_files = files[is_job:]
    taken = () if run_files else (newest(NOTICES, of_links=True, simulated=False),)
    runs, used = load_named(run_files or taken), load_named(recorded_links)
    if is_job:
        blocks, fields = _of_a_job(files[0], runs, devices, used)
    else:
        blocks, fields = _of_a_network(runs, Step(parse_parameters(params or ""), **step_options), gpus)
    # Late, as in these functions: numpy takes as long to load as the rest of the program.
    from rich.text import Text

    from collbench.jobs.predict.page import contended
    from collbench.report.text.frame import ALARM, alarm

    lines = [line for name, run in (*runs, *used) for line in contended(name, run)]
    if as_json:
        echo(json.dumps({**fields, "contention": lines}, indent=1, ensure_ascii=False, allow_nan=False))
    else:
        source = [Text(f"From the newest saved run, {one_line(str(path))}:\n") for path in taken]
        alarms = [block for _, run in runs for block in alarm(run)]
        show_page([*source, *alarms, *(Text(line, style=ALARM) for line in lines), *blocks])
    leave(max(outcome(run).status for _, run in runs))


def _check_of_a_job() -> None:
    if others := options.typed_besides(_OF_A_JOB):
        raise UsageError(f"{others[0]} describes a network, and a recorded job already has its messages: leave it out")


def _check_of_a_network(files: Sequence[Path], params: str | None, *, for_a_job: bool) -> None:
    if files:
        run_file.load(files[0])  # a file that cannot be read is the more likely mistake
    if for_a_job:
        raise UsageError("--devices and --recorded-links are for a recorded job: name its file first, before the runs")
    if params is None:
        raise UsageError("name a recorded job first, or give the network's parameters: --params 124M")


_Answer = tuple[Iterable["Block"], dict[str, Any]]  # a page, and the fields of its JSON


def _of_a_job(file: Path, runs: NamedRuns, devices: str | None, used: NamedRuns) -> _Answer:
    from collbench.jobs import api as jobs
    from collbench.jobs.predict import page

    job = job_file.load(file)
    predicted = jobs.predict_job(job, runs, devices=devices, recorded=used)
    return page.job_page(job, predicted), page.job_json(job, predicted)


def _of_a_network(runs: NamedRuns, step: Step, gpus: tuple[int, ...] | None) -> _Answer:
    from collbench.jobs.predict import page, training
    from collbench.jobs.predict.links import Links

    prediction = training.predict_step(Links(runs), step, gpus)
    return page.training_page(prediction), page.training_json(prediction)
