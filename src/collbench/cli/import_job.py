"""`collbench import`: a job that another tool traced."""

from __future__ import annotations

from pathlib import Path

import click

from collbench.cli import options
from collbench.cli.record import summary
from collbench.cli.terminal import NOTICES, say
from collbench.model.job import IMPORTED

_FILE = click.Path(path_type=Path)


@click.command(name="import", short_help="Import a job that another tool traced.")
@options.apply(
    click.option(
        "-o", "--output", metavar="FILE", type=_FILE, help="Save the job in this file.  [default: job.json, here]"
    ),
    click.option(
        "--from",
        "kind",
        type=click.Choice([one.value for one in IMPORTED]),
        help="Format of the traces.  [default: recognized from content]",
    ),
    options.force,
)
@click.argument("files", nargs=-1, required=True, metavar="TRACE...", type=_FILE)
def import_job(output: Path | None, kind: str | None, force: bool, files: tuple[Path, ...]) -> None:
    """Convert the traces of a job's ranks to one job file, which show, replay and predict read.

    Each TRACE is one rank's: an export of torch.profiler, a dump of torch's Flight Recorder, JSON lines of NCCL
    Inspector, a trace of torch's ExecutionTraceObserver, or a Chakra trace; it may be gzipped. What a trace does not
    contain stays unknown in the job; docs/import.md lists it.

    \b
    Examples:
      collbench import trace-0.json.gz trace-1.json.gz
      collbench import -o job.json /tmp/nccl_trace_rank_*
      collbench import --from nccl-inspector inspector-logs/*.log
    """
    from collbench.api import jobs  # late: tempfile, subprocess

    path = output or Path("job.json")
    say(summary(jobs.import_job(files, path, kind=kind, force=force, notices=NOTICES), path, "imported"))


COMMANDS = {"import": import_job}  # "import" is a word of Python's
