"""Saved runs: `collbench runs` lists them, `show` prints one again, `export` and `report` write one for others."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from collbench import __version__, annexes
from collbench.api import runs as saved
from collbench.cli import options
from collbench.cli.options import option
from collbench.cli.terminal import (
    NOTICES,
    echo,
    is_json,
    json_option,
    leaving,
    say,
    show_answer,
    show_page,
    verbose_option,
)
from collbench.judge.outcome import outcome
from collbench.model.errors import ExitStatus, NotTrusted, RunFileError, UsageError
from collbench.model.run import Run
from collbench.model.units import format_size, parse_size
from collbench.model.values import one_line, printable
from collbench.report.views import view
from collbench.runfile import atomic_write, run_file
from collbench.runfile.codec import document, plain
from collbench.runfile.run_file import load

_LIMIT = 20


@click.command()
@option("--limit N", "List only the newest N.", click.IntRange(min=1), default=_LIMIT)
@json_option("Print JSON: an object with a list of runs.")
def runs(limit: int) -> None:
    """List the runs that were saved without a name, newest first.

    Each line has the run's number, start, backend (sim: simulated), machine, number of devices, command and outcome.
    Commands that read a run take its number for the file; if neither is named, they read the newest.

    \b
    Examples:
      collbench runs
      collbench show 2
      collbench runs --limit 100 --json
    """
    saved_list = saved.runs(limit, notices=NOTICES)
    if is_json():
        rows = [{**plain(run), "path": str(run.path)} for run in saved_list]
        echo(document("runs", {"runs": rows}), end="")
        return
    if not saved_list:
        echo("there is no saved run: measure with 'collbench pairs'")
        return
    from collbench.report.run_list import page

    all_shown = len(saved_list) < limit  # what is missing then cannot be read, which was said
    show_page(page(saved_list, older=0 if all_shown else len(run_file.saved_runs()) - saved_list[-1].number))


# A run, or a file of an annex, printed.

_OF_ANNEXES = annexes.hook("saved files")  # options, formats and words for the latter
_EPILOGS: Mapping[str, str] = _OF_ANNEXES.EPILOGS if _OF_ANNEXES else {}


@click.command(epilog=_EPILOGS.get("show"))
@options.run_file
@option("--ranking", "Show which links and pairs differ and which tie: tiers, heat maps, fits, or --json.")
@option("--operation OP", "With --ranking: only this operation.")
@option("--size SIZE", "With --ranking: only this size.")
@options.apply(*(_OF_ANNEXES.SHOW if _OF_ANNEXES else ()))
@options.json
@verbose_option
def show(file: Path | None, *, ranking: bool, operation: str | None, size: str | None, **others: Any) -> None:
    """Print a saved run again, as its command did.

    --ranking has a row for each operation and size, says whether the choice matters, and ends with status 1 if there
    are too few trials to rank anything. The run may be of any machine; the page names the machine.

    \b
    Examples:
      collbench show run.json
      collbench show run.json --ranking
      collbench show run.json --ranking --operation allreduce --size 64M
    """
    narrowed = operation is not None or size is not None
    if file is not None and (kind := saved.file_kind(file)) is not None:
        if wrong := options.typed_besides(("file", "as_json", "verbose", *kind.OPTIONS)):
            raise UsageError(f"{file} is {kind.NAME}: leave out {', '.join(wrong)}")
        kind.show(file, **{name: others[name] for name in kind.OPTIONS})
    elif any(option not in (None, ()) for option in others.values()):
        raise UsageError(_OF_ANNEXES.NOT_FOR_A_RUN)
    elif ranking:
        _show_ranking(file, operation, size)
    elif narrowed:
        raise UsageError("--operation and --size narrow a ranking: add --ranking")
    else:
        from collbench.cli.measuring import show_run  # late: nothing else here measures
        from collbench.judge.diagnose import Diagnosis

        file = options.named_or_newest(file)
        show_run(Diagnosis(_load(file)), file=file)


def _load(path: Path) -> Run:
    """Return the run in a file. Raises RunFileError, by an annex that knows another tool's file."""
    try:
        return load(path)
    except RunFileError as error:
        others = annexes.hook("not a run")
        if advice := others.advice(path) if others else "":
            raise RunFileError(advice) from error
        raise


def _show_ranking(file: Path | None, named: str | None, size: str | None) -> None:
    # late: numpy takes as long to load as the rest of the program
    from collbench.judge.diagnose import Diagnosis
    from collbench.judge.summary import rank_summary
    from collbench.report import ranking
    from collbench.report.frame import headline

    operation = None if named is None else options.parse_operation(named)
    size_bytes = None if size is None else parse_size(size)
    run_file = options.named_or_newest(file, of_links=True)
    run = _load(run_file)
    works = rank_summary(run, operation, size_bytes)
    if not any(ranked.rankings for ranked in works):
        of = f" of {operation}" if operation else ""
        at = f" at {format_size(size_bytes)}" if size_bytes is not None else ""
        if not any(measurement.samples for measurement in run.measurements) and outcome(run).troubles:
            raise NotTrusted(f"{run_file} has nothing to rank: {headline(run)}", outcome(run).status)
        raise UsageError(f"{run_file} has nothing to rank{of}{at}: {_present(run)}")
    diagnosis = Diagnosis(run)
    page = ranking.page(diagnosis, works, shlex.quote(str(run_file)))
    status = max(outcome(run).status, ExitStatus.DONE if any(ranked.judged for ranked in works) else ExitStatus.FAILED)
    with leaving(status):
        fields = ranking.as_json(diagnosis, works)
        show_answer(page, lambda: document("ranking", {"exit_status": status, **fields}, run.backend))


def _present(run: Run) -> str:
    """Say what could be ranked instead."""
    from collbench.judge.summary import measured_works

    if not (works := measured_works(run)):
        return "it holds no link, pair or device: measure with 'collbench pairs' first"
    return f"it holds {', '.join(map(str, works))} at {', '.join(map(format_size, run.settings.sizes))}"


# A run for other tools and readers.

_EXPORTING = "write the export to"
_FORMATS = ("csv", "markdown", "json", "nccl-tests", "prometheus", *(_OF_ANNEXES.FORMATS if _OF_ANNEXES else ()))
_OF_MEASUREMENTS = ("nccl-tests", "prometheus")


@click.command(epilog=_EPILOGS.get("export"))
@options.run_file
@option("--format", "What to write.", click.Choice(_FORMATS), name="output_format", required=True)
@option("-o, --output FILE", "Write to this file.  [default: -, standard output]", options.EXPORTED)
@options.force
def export(file: Path | None, output_format: str, output: Path | None, force: bool) -> None:
    """Write a saved run in other tools' formats: one row per data point, columns with units (docs/columns.md).

    csv and json (records) have all columns and digits; markdown has three or four digits, and lists columns with a
    single value above its table; prometheus has some dozens of gauges for a textfile collector; nccl-tests is the text
    that nccl-tests prints.

    \b
    Examples:
      collbench export run.json --format csv -o run.csv
      collbench export run.json --format markdown
      collbench export run.json --format prometheus -o collbench.prom
    """
    run_file = options.named_or_newest(file)
    if output is not None:
        atomic_write.check(output, _EXPORTING, force=force, sources=(run_file,))
    content = printable(_other(run_file, output_format) or _run(run_file, output_format))
    if output is not None:
        atomic_write.write(content, output, _EXPORTING, force=force)
        say(f"wrote {output}")
    else:
        echo(content, end="")


def _other(file: Path, output_format: str) -> str:
    """Return the text of a file of another kind; "" for a run."""
    kind = saved.file_kind(file)
    if kind is None and _OF_ANNEXES and output_format in _OF_ANNEXES.FORMATS:
        load(file)  # if it is no run either, that says why
        raise UsageError(f"{_OF_ANNEXES.NO_FORMAT_OF_A_RUN}, and {one_line(str(file))} is a run")
    return "" if kind is None else kind.export(file, output_format)


def _run(run_file: Path, output_format: str) -> str:
    run = load(run_file)
    measured_by = view(run)
    if measured_by is not None and output_format in _OF_MEASUREMENTS:
        held = measured_by.HELD
        raise UsageError(f"{run_file} holds {held}, which {output_format} has no form for: write csv, json or markdown")
    if not run.measurements and not any(run.results) and output_format != "nccl-tests":
        raise UsageError(f"{run_file} has no data point to export: nothing was measured")
    from collbench.report import nccl_tests, rows  # late: numpy

    writers: dict[str, Callable[[], str]] = {
        "csv": lambda: rows.as_csv(rows.rows(run), rows.columns_of(run)),
        "json": lambda: rows.as_json(rows.rows(run)),
        "markdown": lambda: rows.as_markdown(run, rows.rows(run)),
        "nccl-tests": lambda: "".join(f"{line}\n" for line in nccl_tests.lines(run)),
        "prometheus": lambda: rows.as_prometheus(run),
    }
    return writers[output_format]()


_SUFFIXES = (".html", ".htm")
_REPORTING = "write the report as"


@click.command()
@options.run_files
@option("-o, --output FILE", "Write it to this file.  [default: the first run's name, .html]", options.OUTPUT)
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
    """
    run_files = options.all_named_or_newest(files)
    path = Path(f"{run_files[0].stem or 'report'}.html") if output is None else output
    _check(path, run_files, force=force)
    if kind := next(filter(None, map(saved.file_kind, run_files)), None):
        raise UsageError(f"{kind.NAME} has no HTML page: 'collbench show' prints it")
    runs = [load(file) for file in run_files]
    from collbench.report.frame import headline
    from collbench.report.html import (
        content,  # late: numpy, jinja2
        render,
    )

    text = render(content(list(zip(_names(run_files), runs, strict=True)), __version__))
    for file, run in zip(run_files, runs, strict=True):
        if failed := headline(run):
            echo(f"{one_line(str(file))}: {failed}")
    _save(text, path, force=force)


def _save(text: str, path: Path, *, force: bool) -> None:
    text = printable(text)
    atomic_write.write(text, path, _REPORTING, force=force)
    echo(f"saved     {one_line(str(path))}")


def _check(path: Path, run_files: tuple[Path, ...], *, force: bool) -> None:
    """Raise before anything is computed: UsageError for what is no page, RunFileError if none can be written."""
    page = path.suffix.lower() in _SUFFIXES
    if page or atomic_write.is_stream(path):  # that /dev/full is full matters more than its name
        atomic_write.check(path, _REPORTING, force=force, sources=run_files)
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
