"""`collbench replay`: the communication of a recorded job's step, on any set of GPUs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from collbench.cli import options
from collbench.cli.measuring import measure_with_workers, new_file
from collbench.cli.terminal import NOTICES
from collbench.jobs import job_file
from collbench.jobs.replay import api as replaying
from collbench.jobs.replay.api import Replaying, ReplayOptions
from collbench.model.operations import Registration
from collbench.model.run import Pauses


@click.command()
@click.argument("job", metavar="JOB", type=options.FILE)
@options.apply(
    click.option(
        "--devices",
        metavar="LIST",
        help="GPUs for the job's ranks, in rank order: nvidia-smi indices or UUIDs.  [default: the first GPUs]",
    ),
    click.option(
        "--compute",
        type=click.Choice([one.value for one in Pauses]),
        default=Pauses.NONE.value,
        show_default=True,
        help="recorded: run matrix products in the recorded pauses; none: stay idle.",
    ),
    click.option(
        "--without",
        type=click.Choice(replaying.WITHOUT),
        help="Replay it also with NCCL_P2P_DISABLE=1, and compare.",
    ),
    click.option(
        "--registration",
        type=click.Choice([one.value for one in Registration]),
        default=Registration.NONE.value,
        show_default=True,
        help="Registered memory, as for collectives.",
    ),
    click.option(
        "--phase",
        metavar="N",
        type=options.COUNT,
        help="Replay phase N of each rank.  [default: the step]",
    ),
    click.option(
        "--trials", metavar="N", type=options.COUNT, help="How often to time the step.  [default: 8; host: 6]"
    ),
    *options.of_workers,
)
def replay(
    job: Path, *, compute: str, registration: str, without: str | None, as_json: bool, **option_values: Any
) -> None:
    """Replay a recorded job's step on these GPUs: the same calls, on the same groups, after the same pauses.

    JOB is a file of 'collbench record' or 'collbench import'. One process for each GPU runs torch's NCCL. The page has
    the communication time of a step and the exposed part: the step's time minus that of the pauses alone. All data is
    verified. On another number of GPUs, only calls that involve all ranks can be replayed.

    \b
    Examples:
      collbench replay job.json
      collbench replay job.json --devices 2,3 --compute recorded
      collbench replay job.json --without p2p
    """
    lacking = () if without is None else (without,)
    replay_options = ReplayOptions(
        pauses=Pauses(compute), registration=Registration(registration), without=lacking, **option_values
    )
    request = replaying.request_of(
        job_file.load(job), job.name, replay_options, options.command_line("replay"), NOTICES
    )
    path = replay_options.output or new_file("replay", request.backend)
    measure_with_workers(partial(Replaying, request, path, NOTICES), "collbench.jobs.replay.page", as_json=as_json)
