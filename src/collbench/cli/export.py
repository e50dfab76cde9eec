"""`collbench export` and `collbench report`: a saved run for other tools and readers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

import click

from collbench.api import file_kinds
from collbench.cli import options
from collbench.cli.runs import all_named_or_newest, named_or_newest
from collbench.cli.terminal import echo, say
from collbench.model.errors import UsageError
from collbench.model.printable import one_line, printable
from collbench.report.sections import section
from collbench.runfile import atomic_write
from collbench.runfile import run_file as runfile_run_file

_SAVE = ("write the export to", "--output")
_FORMATS = ("csv", "markdown", "json", "nccl-tests", "prometheus", "perfetto")
_OF_MEASUREMENTS = ("nccl-tests", "prometheus")


@click.command()
@options.run_file
@click.option("--format", "layout", type=click.Choice(_FORMATS), required=True, help="What to write.")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=options.FILE,
    help="Write to this file.  [default: standard output]",
)
@options.force
def export(file: Path | None, layout: str, output: Path | None, force: bool) -> None:
    """Write a saved run in other tools' formats: one row per data point, columns with units (docs/columns.md).

    csv and json (records) have all columns and digits; markdown has three or four digits, and lists columns with a
    single value above its table; prometheus has some dozens of gauges for a textfile collector; nccl-tests is the text
    that nccl-tests prints. perfetto is for a recorded job: its kernels on each rank's GPU,
    waiting and transfer apart, for ui.perfetto.dev.

    \b
    Examples:
      collbench export run.json --format csv -o run.csv
      collbench export job.json --format perfetto -o trace.json
      collbench export run.json --format markdown
      collbench export run.json --format prometheus -o collbench.prom
    """
    run_file = named_or_newest(file)
    if output is not None:
        atomic_write.check(output, *_SAVE, force=force, sources=(run_file,))
    content = printable(_other(run_file, layout) or _run(run_file, layout))
    if output is not None:
        atomic_write.write(content, output, *_SAVE, force=force)
        say(f"wrote {output}")
    else:
        echo(content, end="")


def _other(file: Path, layout: str) -> str:
    """Return the text of a file of another kind; "" for a run."""
    kind = file_kinds.kind_of(file)
    if kind is None and layout == "perfetto":
        runfile_run_file.load(file)  # if it is no run either, that says why
        raise UsageError(f"--format perfetto is for a recorded job, and {one_line(str(file))} is a run")
    return "" if kind is None else kind.export(file, layout)


def _run(run_file: Path, layout: str) -> str:
    run = runfile_run_file.load(run_file)
    measured_by = section(run)
    if measured_by is not None and layout in _OF_MEASUREMENTS:
        held = measured_by.HELD
        raise UsageError(f"{run_file} holds {held}, which {layout} has no form for: write csv, json or markdown")
    if not run.measurements and not any(run.results) and layout != "nccl-tests":
        raise UsageError(f"{run_file} has no data point to export: nothing was measured")
    from collbench.report import nccl_tests, prometheus, rows  # late: numpy

    writers: dict[str, Callable[[], str]] = {
        "csv": lambda: rows.as_csv(rows.rows(run), rows.columns_of(run)),
        "json": lambda: rows.as_json(rows.rows(run)),
        "markdown": lambda: rows.as_markdown(run, rows.rows(run)),
        "nccl-tests": lambda: "".join(f"{line}\n" for line in nccl_tests.lines(run)),
        "prometheus": lambda: prometheus.as_prometheus(run),
    }
    return writers[layout]()


_SUFFIXES = (".html", ".htm")
_REPORT_REFUSAL = ("write the report as", "--output")


@click.command()
@options.run_files
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=options.FILE,
    help="Write it to this file.  [default: the first run's name, .html]",
)
@options.force
def report(files: tuple[Path, ...], output: Path | None, force: bool) -> None:
    """Make one HTML page of saved runs, to view, print or send.

    The page has maps and curves of every operation and size with intervals, tiers, latency and bandwidth, verdicts with
    cause and command, health and environment. Each further run is compared with the first.
    The page is one file and loads nothing else, so it opens without a network. The runs may be of any machine.

    \b
    Examples:
      collbench report run.json
      collbench report before.json after.json -o report.html
      collbench report job.json run.json    # a recorded job, its links
    """
    run_files = all_named_or_newest(files)
    path = Path(f"{run_files[0].stem or 'report'}.html") if output is None else output
    _check(path, run_files, force=force)
    if kind := next(filter(None, map(file_kinds.kind_of, run_files)), None):
        _save(kind.html(run_files), path, force=force)
        return
    runs = [runfile_run_file.load(file) for file in run_files]
    from collbench.report.html.content import content  # late: numpy, jinja2
    from collbench.report.html.page import render
    from collbench.report.text.frame import headline

    text = render(content(list(zip(_names(run_files), runs, strict=True)), version("collbench")))
    for file, run in zip(run_files, runs, strict=True):
        if failed := headline(run):
            echo(f"{one_line(str(file))}: {failed}")
    _save(text, path, force=force)


def _save(text: str, path: Path, *, force: bool) -> None:
    text = printable(text)
    atomic_write.write(text, path, *_REPORT_REFUSAL, force=force)
    echo(f"saved     {one_line(str(path))}")


def _check(path: Path, run_files: tuple[Path, ...], *, force: bool) -> None:
    """Raise before anything is computed: UsageError for what is no page, RunFileError if none can be written."""
    page = path.suffix.lower() in _SUFFIXES
    if page or atomic_write.is_stream(path):  # that /dev/full is full matters more than its name
        atomic_write.check(path, *_REPORT_REFUSAL, force=force, sources=run_files)
    if not page:
        raise UsageError(f"--output {path} is not named as a page: write {path.stem or 'report'}.html")


def _names(files: Sequence[Path]) -> list[str]:
    """Return what the page calls each run: its file's name, with as many folders as distinguish it from the others."""
    paths = [tuple(map(one_line, file.absolute().parts)) for file in files]
    for depth in range(1, max(map(len, paths)) + 1):
        names = [str(Path(*parts[-depth:])) for parts in paths]
        if len(set(names)) == len(names):
            return names
    return [f"{one_line(file.name)} ({number})" for number, file in enumerate(files, 1)]  # the same file twice
