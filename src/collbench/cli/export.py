"""`collbench export`: a run in the formats that other tools read."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import click

from collbench import runfile, wholefile
from collbench.cli import options
from collbench.cli.terminal import echo, say
from collbench.errors import UsageError
from collbench.model import Run
from collbench.printable import printable

_SAVE = ("write the export to", "--output")
_FORMATS = ("csv", "markdown", "json", "nccl-tests", "parquet", "prometheus")
_PARQUET = "parquet"


@click.command(short_help="Write a saved run in other tools' formats.")
@click.argument("run_file", metavar="RUN.JSON", type=click.Path(path_type=Path))
@click.option("--format", "layout", type=click.Choice(_FORMATS), required=True, help="What to write.")
@click.option(
    "-o", "--output", metavar="FILE", type=click.Path(path_type=Path), help="Write here.  [default: standard output]"
)
@options.force
def export(run_file: Path, layout: str, output: Path | None, force: bool) -> None:
    """Write a saved run as other tools read it: one row a cell, columns with units (docs/exchange.md).

    csv, json (records) and parquet have all columns; markdown has those that differ below a head of the others;
    prometheus are gauges for a textfile collector; nccl-tests is what its parsers read.

    \b
    Examples:
      collbench export run.json --format csv -o run.csv
      collbench export run.json --format markdown
      collbench export run.json --format prometheus -o collbench.prom
    """
    if output is not None:
        wholefile.check(output, *_SAVE, force=force, sources=(run_file,))
    run = runfile.load(run_file)
    if not run.measurements and layout != "nccl-tests":
        raise UsageError(f"{run_file} has no cell to export: nothing was measured")
    content = _content(run, layout)
    if isinstance(content, str):
        content = printable(content)
    if output is not None:
        wholefile.write(content, output, *_SAVE, force=force)
        say(f"wrote {output}")
    elif isinstance(content, bytes):
        _print_bytes(content)
    else:
        echo(content, end="")


def _content(run: Run, layout: str) -> str | bytes:
    from collbench.exchange.rows import rows  # late: numpy

    if layout == "nccl-tests":
        from collbench.report import nccl_tests

        return "".join(f"{line}\n" for line in nccl_tests.lines(run))
    if layout == "prometheus":
        from collbench.exchange.prometheus import as_prometheus

        return as_prometheus(run)
    if layout == _PARQUET:
        from collbench.exchange.parquet import as_parquet

        return as_parquet(rows(run))
    from collbench.exchange import text

    texts: dict[str, Callable[[], str]] = {
        "csv": lambda: text.as_csv(rows(run)),
        "json": lambda: text.as_json(rows(run)),
        "markdown": lambda: text.as_markdown(run, rows(run)),
    }
    return texts[layout]()


def _print_bytes(content: bytes) -> None:
    """Write bytes to a pipe. Raises UsageError for a terminal, which they would confuse."""
    if sys.stdout.isatty():
        raise UsageError("--format parquet is no text: name a file with --output FILE, or pipe it")
    sys.stdout.flush()
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()
