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
        options.RUN,
        name="against",
        multiple=True,
    ),
)
NOT_FOR_A_RUN = "--rank and --run-file are for a recorded job: name its file, as in 'show job.json'"
# What the help of these commands ends with.
EPILOGS = {
    "show": """Of a recorded job (docs/job-page.md) it prints the calls, their rates in the job and in isolation, and
    late ranks.

    \b
      collbench show job.json --run-file run.json
    """,
    "export": """perfetto is for a recorded job: its kernels on each rank's GPU, waiting and transfer apart, for
    ui.perfetto.dev.

    \b
      collbench export job.json --format perfetto -o trace.json
    """,
}
FORMATS = ("perfetto",)  # of `export`
NO_FORMAT_OF_A_RUN = "--format perfetto is for a recorded job"
