"""Options and formats of the main house's commands that are for a recorded job alone; loaded with these commands."""

from __future__ import annotations

import click

from collbench.cli import options
from collbench.cli.options import option

SHOW = (
    option("--rank N", "For a recorded job: show this rank's step.", click.IntRange(min=0)),
    option(
        "--run-file RUN",
        "For a job: run with its calls' rates in isolation.",
        options.FILE,
        name="against",
        multiple=True,
    ),
)
NOT_FOR_A_RUN = "--rank and --run-file are for a recorded job: name its file, as in 'show job.json'"
FORMATS = ("perfetto",)  # of `export`
NO_FORMAT_OF_A_RUN = "--format perfetto is for a recorded job"
