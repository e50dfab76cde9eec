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
from collbench.jobs.replay import measure as replaying
from collbench.jobs.replay.measure import Replaying


@click.command()
@click.argument("job", metavar="JOB", type=options.FILE)
@options.apply(
    click.option(
        "--devices",
        metavar="LIST",
        help="GPUs for the job's ranks, in rank order: nvidia-smi indices or UUIDs.  [default: the first GPUs]",
    ),
    click.option(
        "--without",
        metavar="WHAT",
        callback=options.parsed(replaying.parse_without),
        help="Replay it also without p2p, nvlink, shm or ib (several with commas), in turn, and compare.",
    ),
    click.option(
        "--trials", metavar="N", type=options.COUNT, help="How often to time the step.  [default: 8; host: 6]"
    ),
    *options.of_workers,
)
def replay(job: Path, *, as_json: bool, **values: Any) -> None:
    """Replay a recorded job's step on these GPUs: the same calls, on the same groups, after the same pauses.

    JOB is a file of 'collbench record' or 'collbench import'. One process for each GPU runs torch's NCCL. The page has
    the communication time of a step and the exposed part: the step's time minus that of the pauses alone. All data is
    verified. On another number of GPUs, only calls that involve all ranks can be replayed.

    \b
    Examples:
      collbench replay job.json
      collbench replay job.json --devices 2,3
      collbench replay job.json --without p2p
    """
    request = replaying.request_of(job_file.load(job), job.name, values, options.command_line("replay"), NOTICES)
    path = values["output"] or new_file("replay", request.backend)
    measure_with_workers(partial(Replaying, request, path, NOTICES), "collbench.jobs.replay.section", as_json=as_json)
