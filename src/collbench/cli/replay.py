"""`collbench replay`: the communication of a recorded job's step, on any set of GPUs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from collbench.api import replaying
from collbench.api.replaying import Replaying, ReplayOptions
from collbench.cli import options
from collbench.cli.measuring import JSON, Showing, measured_by_workers
from collbench.cli.terminal import NOTICES, say, verbose_option
from collbench.model.operations import Registration
from collbench.model.run import Pauses
from collbench.runfile import job_file, saved_runs


@click.command(short_help="Time the communication of a recorded job's step.")
@click.argument("job", metavar="JOB", type=click.Path(path_type=Path))
@options.apply(
    click.option(
        "--devices",
        metavar="LIST",
        help="GPUs for the job's ranks, in their order: nvidia-smi indices or UUIDs.  [default: as many as ranks]",
    ),
    click.option(
        "--compute",
        type=click.Choice([one.value for one in Pauses]),
        default=Pauses.NONE.value,
        show_default=True,
        help="In the recorded pauses compute matrix products for as long, or nothing.",
    ),
    click.option(
        "--without",
        type=click.Choice(replaying.WITHOUT),
        help="Replay it a second time, with NCCL_P2P_DISABLE=1, and compare.",
    ),
    click.option(
        "--registration",
        type=click.Choice([one.value for one in Registration]),
        default=Registration.NONE.value,
        show_default=True,
        help="What NCCL knows of the memory, as for collectives.",
    ),
    click.option(
        "--phase",
        metavar="N",
        type=click.IntRange(min=1),
        help="Replay phase N of each rank.  [default: the step, which repeats most]",
    ),
    click.option("--trials", metavar="N", type=click.IntRange(min=1), help="How often.  [default: 8; host: 6]"),
    options.backend,
    options.fabric,
    options.output,
    options.force,
    options.seed,
    JSON,
    verbose_option,
)
def replay(job: Path, *, compute: str, registration: str, without: str | None, as_json: bool, **given: Any) -> None:
    """Replay a recorded job's step on these GPUs: the same calls, on the same groups, after the same pauses.

    JOB is a file of 'collbench record' or 'collbench import'. Runs torch's NCCL in one process for each GPU. Prints
    the communication of a step, and how much of it is exposed: the step with its calls, less the pauses alone. All
    data are verified. On another number of GPUs only what all ranks do together can be replayed.

    \b
    Examples:
      collbench replay job.json
      collbench replay job.json --devices 2,3 --compute recorded
      collbench replay job.json --without p2p
    """
    lacking = () if without is None else (without,)
    asked = ReplayOptions(pauses=Pauses(compute), registration=Registration(registration), without=lacking, **given)
    request = replaying.request_of(job_file.load(job), job.name, asked, ("replay", *sys.argv[2:]), NOTICES)
    showing = Showing("json" if as_json else "table")
    advice = ", or name a file with --output FILE"
    path = asked.output or saved_runs.new_run("replay", request.backend, say, advice=advice)
    measured_by_workers(Replaying(request, path, showing), showing, "replay")
