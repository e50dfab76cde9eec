"""`collbench show`: a saved run on its page again, or one of its operations as heat maps and curves."""

from __future__ import annotations

from pathlib import Path

import click

from collbench import runfile
from collbench.cli.showing import FORMAT, Showing
from collbench.cli.terminal import show_page
from collbench.cli.works import check_size, find_works
from collbench.errors import UsageError
from collbench.units import parse_size


@click.command(short_help="Print a saved run again, or one operation as a picture.")
@click.argument("run_file", metavar="RUN.JSON", type=click.Path(path_type=Path))
@click.option("--operation", metavar="OP", help="Only this operation: heat maps, tiers, and curves over the sizes.")
@click.option("--size", metavar="SIZE", help="Only at this size.  [default: the largest and the smallest, and curves]")
@FORMAT
def show(run_file: Path, operation: str | None, size: str | None, layout: str) -> None:
    """Print a saved run again, as the command that measured it did.

    With an operation of it (allreduce, ce-write, 'ce-write both-ways', …): heat maps and tiers of links and pairs,
    and bandwidth over size with what the path can carry in theory. Any machine's run will do; the page names the
    machine that it came from.

    \b
    Examples:
      collbench show run.json
      collbench show run.json --operation ce-write
      collbench show run.json --operation allreduce --size 64M
      collbench show --format nccl-tests allreduce.json
    """
    showing = Showing(layout)
    size_bytes = None if size is None else parse_size(size)
    if showing.as_nccl_tests and (operation is not None or size is not None):
        raise UsageError("--operation and --size draw pictures, --format nccl-tests prints tables: leave one out")
    run = runfile.load(run_file)
    if operation is None:
        if size is not None:
            raise UsageError(f"--size {size} alone says not what to show: add --operation allreduce, ce-write, …")
        showing.show(run)
        return
    works = find_works(run, operation, run_file)
    if size_bytes is not None:
        works = check_size(run, works, size_bytes, run_file)
    from collbench.report.operation import page  # late: numpy takes as long to load as the rest of the program

    show_page(page(run, works, size_bytes))
