"""`collbench rank`: which links and pairs of a saved run differ, which tie, and their latency and bandwidth."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from collbench import runfile
from collbench.cli.terminal import echo, show_page
from collbench.errors import ExitStatus, UsageError
from collbench.model import Run
from collbench.operations import Operation
from collbench.outcome import outcome
from collbench.units import format_size, parse_size


@click.command(short_help="Rank the links and pairs of a saved run.")
@click.argument("run_file", metavar="RUN.JSON", type=click.Path(path_type=Path))
@click.option("--operation", metavar="OP", help="Only this operation: allreduce, ce-write, …  [default: all]")
@click.option("--size", metavar="SIZE", help="Rank at this size.  [default: the largest, and the smallest up to 64K]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: members are positions in its list of devices.")
def rank(run_file: Path, operation: str | None, size: str | None, as_json: bool) -> None:
    """Say which links and pairs of a saved run differ, and which tie.

    For each operation: tiers of links, pairs or devices, one sentence on whether the choice matters, a heat map, and
    latency and bandwidth fitted over the sizes. Any machine's run will do; what it lacks is named. Exit status: 0; 1
    where too few visits say anything; 1 or 4 where data points failed.

    \b
    Examples:
      collbench rank run.json
      collbench rank run.json --operation allreduce --size 64M
      collbench rank run.json --json
    """
    # Late: numpy takes as long to load as the rest of the program.
    from collbench.affinity.summary import rank_summary
    from collbench.report import ranking

    wanted = None if operation is None else _parse_operation(operation)
    size_bytes = None if size is None else parse_size(size)
    run = runfile.load(run_file)
    summary = rank_summary(run, wanted, size_bytes)
    if not any(ranked.rankings for ranked in summary.works):
        raise UsageError(f"{run_file} has nothing to rank{_asked(wanted, size_bytes)}: {_present(run)}")
    if as_json:
        echo(json.dumps(ranking.as_json(run, summary), indent=1))
    else:
        show_page(ranking.page(run, summary))
    status = max(outcome(run).status, ExitStatus.DONE if summary.judged else ExitStatus.FAILED)
    if status:
        sys.stdout.flush()  # a full disk is told before the status
        raise click.exceptions.Exit(status)


def _parse_operation(text: str) -> Operation:
    plain = text.strip().lower()
    for operation in Operation:
        if plain in (operation.value, operation.value.replace("-", "_")):
            return operation
    raise UsageError(f"--operation '{text}' is unknown: choose from {', '.join(Operation)}")


def _asked(operation: Operation | None, size_bytes: int | None) -> str:
    of = f" of {operation}" if operation else ""
    return of if size_bytes is None else f"{of} at {format_size(size_bytes)}"


def _present(run: Run) -> str:
    """Say what could be ranked instead."""
    works = {found.cell.work for found in run.measurements if found.samples and len(found.cell.members) <= 2}
    if not works:
        return "it holds no link, pair or device: measure with 'collbench pairs' first"
    names = ", ".join(sorted(map(str, works)))
    return f"it holds {names} at {', '.join(map(format_size, run.settings.sizes))}"
