"""`collbench runs`: the saved runs, newest first; and the newest, where a command was given no file."""

from __future__ import annotations

from pathlib import Path

import click

from collbench.api.runs import newest
from collbench.api.runs import runs as newest_runs
from collbench.cli.terminal import NOTICES, echo
from collbench.runfile.codec import document, plain

_LIMIT = 20


def named_or_newest(file: Path | None, *, of_links: bool = False) -> Path:
    """Return the file that was named, else the newest saved run's. Raises UsageError if none is saved."""
    return newest(NOTICES, of_links=of_links) if file is None else file


def all_named_or_newest(files: tuple[Path, ...], *, of_links: bool = False) -> tuple[Path, ...]:
    """Return the files that were named, else the newest saved run's. Raises UsageError if none is saved."""
    return files or (newest(NOTICES, of_links=of_links),)


@click.command()
@click.option(
    "--limit",
    metavar="N",
    type=click.IntRange(min=1),
    default=_LIMIT,
    show_default=True,
    help="List only the newest N.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON: an object with a list of runs.")
def runs(limit: int, as_json: bool) -> None:
    """List the runs that were saved without a name, newest first.

    Each line has the run's number, start, backend (sim: simulated), machine, number of devices, command and outcome.
    Commands that read a run take its number for the file; if neither is named, they read the newest.

    \b
    Examples:
      collbench runs
      collbench show 2
      collbench runs --limit 100 --json
    """
    saved_list = newest_runs(limit, notices=NOTICES)
    if as_json:
        rows = [{**plain(run), "path": str(run.path)} for run in saved_list]
        echo(document("runs", {"runs": rows}), end="")
        return
    from collbench.report.saved_runs import lines

    for line in lines(saved_list) if saved_list else ["there is no saved run: measure with 'collbench pairs'"]:
        echo(line)
