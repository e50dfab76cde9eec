"""`collbench report`: saved runs as one page that needs nothing else, to look at, print or send."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import click

from collbench import runfile, wholefile
from collbench.cli import options
from collbench.cli.terminal import echo
from collbench.errors import UsageError
from collbench.printable import one_line, printable

_SUFFIXES = (".html", ".htm")
_WORDS = ("write the report as", "--output")
_FILE = click.Path(path_type=Path)


@click.command(short_help="Make one HTML page of saved runs.")
@click.argument("run_files", metavar="RUN.JSON…", nargs=-1, required=True, type=_FILE)
@click.option(
    "-o", "--output", metavar="FILE", type=_FILE, help="Write it here.  [default: the first run's name, .html]"
)
@options.force
def report(run_files: tuple[Path, ...], output: Path | None, force: bool) -> None:
    """Make one HTML page of saved runs, to look at, to print or to send.

    Maps and curves of every operation and size with intervals, tiers, latency and bandwidth, verdicts with cause and
    command, what select would choose, health and environment. Of several runs each is compared with the first. The
    page is one file and asks for nothing else, so it opens without a network. Any machine's run will do.

    \b
    Examples:
      collbench report run.json
      collbench report before.json after.json -o report.html
    """
    path = Path(f"{run_files[0].stem or 'report'}.html") if output is None else output
    _check(path, run_files, force=force)
    runs = [runfile.load(file) for file in run_files]
    from collbench.html.content import content  # late: numpy, jinja2
    from collbench.html.page import render
    from collbench.report.outcome import headline

    text = printable(render(content(list(zip(_names(run_files), runs, strict=True)), version("collbench"))))
    wholefile.write(text, path, *_WORDS, force=force)
    for file, run in zip(run_files, runs, strict=True):
        if failed := headline(run):
            echo(f"{one_line(str(file))}: {failed}")
    echo(f"saved     {one_line(str(path))} ({len(text.encode(errors='backslashreplace')) / 2**20:.1f} MiB)")


def _check(path: Path, run_files: tuple[Path, ...], *, force: bool) -> None:
    """Raise before anything is computed: UsageError for what is no page, RunFileError where none can be written."""
    if path.suffix.lower() not in _SUFFIXES:
        raise UsageError(f"--output {path} is not named as a page: write {path.stem or 'report'}.html")
    wholefile.check(path, *_WORDS, force=force, sources=run_files)


def _names(files: Sequence[Path]) -> list[str]:
    """Return what the page calls each run: its file's name, with as many folders as tell it from the others."""
    paths = [tuple(map(one_line, file.absolute().parts)) for file in files]
    for depth in range(1, max(map(len, paths)) + 1):
        names = [str(Path(*parts[-depth:])) for parts in paths]
        if len(set(names)) == len(names):
            return names
    return [f"{one_line(file.name)} ({number})" for number, file in enumerate(files, 1)]  # the same file twice
