"""`collbench show`: a saved run, a recorded job, or an ablation, printed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from collbench.api import file_kinds
from collbench.cli import options
from collbench.cli.measuring import RunPrinter
from collbench.cli.runs import named_or_newest
from collbench.cli.terminal import echo, leave, show_page, verbose_option
from collbench.judge.outcome import outcome
from collbench.model.errors import ExitStatus, NotTrusted, RunFileError, UsageError
from collbench.model.run import Run
from collbench.model.units import format_size, parse_size
from collbench.runfile import run_file as runfile_run_file
from collbench.runfile.codec import document


@click.command()
@options.run_file
@click.option(
    "--ranking",
    is_flag=True,
    help="Show which links and pairs differ and which tie: tiers, heat maps, fits, or --json.",
)
@click.option("--operation", metavar="OP", help="With --ranking: only this operation.")
@click.option("--size", metavar="SIZE", help="With --ranking: only this size.")
@click.option("--rank", metavar="N", type=click.IntRange(min=0), help="For a recorded job: show this rank's step.")
@click.option(
    "--run-file",
    "against",
    metavar="RUN",
    multiple=True,
    type=options.FILE,
    help="For a job: run with its calls' rates in isolation.",
)
@options.json
@verbose_option
def show(
    file: Path | None,
    *,
    ranking: bool,
    operation: str | None,
    size: str | None,
    as_json: bool,
    **of_job: Any,
) -> None:
    """Print a saved run or ablation again, as its command did, or the step of a recorded job.

    --ranking has a row for each operation and size, says whether the choice matters, and ends with status 1 if there
    are too few trials to rank anything. The run may be of any machine; the page names the machine. For a job
    (docs/job-page.md) it prints its calls, their rates in the job and in isolation, and late ranks.

    \b
    Examples:
      collbench show run.json
      collbench show run.json --ranking
      collbench show run.json --ranking --operation allreduce --size 64M
      collbench show job.json --run-file run.json
    """
    narrowed = operation is not None or size is not None
    if file is not None and (kind := file_kinds.kind_of(file)) is not None:
        if others := options.typed_besides(("file", "as_json", "verbose", *kind.OPTIONS)):
            raise UsageError(f"{file} is {kind.NAME}: leave out {', '.join(others)}")
        kind.show(file, as_json=as_json, **{name: of_job[name] for name in kind.OPTIONS})
    elif any(option not in (None, ()) for option in of_job.values()):
        raise UsageError("--rank and --run-file are for a recorded job: name its file, as in 'show job.json'")
    elif ranking:
        _show_ranking(file, operation, size, as_json=as_json)
    elif narrowed:
        raise UsageError("--operation and --size narrow a ranking: add --ranking")
    else:
        RunPrinter.of(as_json=as_json).show(_load(named_or_newest(file)))


def _load(path: Path) -> Run:
    """Return the run in a file. Raises RunFileError, which names `collbench import` for another tool's trace."""
    try:
        return runfile_run_file.load(path)
    except RunFileError as error:
        if title := file_kinds.trace_title(path):
            raise RunFileError(
                f"{path} is {title}, not a run: convert it with 'collbench import {path}', then 'collbench show "
                "job.json' prints it"
            ) from error
        raise


def _show_ranking(file: Path | None, named: str | None, size: str | None, *, as_json: bool) -> None:
    # late: numpy takes as long to load as the rest of the program
    from collbench.judge.summary import is_judged, rank_summary
    from collbench.report.text import ranking
    from collbench.report.text.frame import headline

    operation = None if named is None else options.parse_operation(named)
    size_bytes = None if size is None else parse_size(size)
    run_file = named_or_newest(file, of_links=True)
    run = _load(run_file)
    works = rank_summary(run, operation, size_bytes)
    if not any(ranked.rankings for ranked in works):
        of = f" of {operation}" if operation else ""
        at = f" at {format_size(size_bytes)}" if size_bytes is not None else ""
        if not any(measurement.samples for measurement in run.measurements) and outcome(run).troubles:
            raise NotTrusted(f"{run_file} has nothing to rank: {headline(run)}", outcome(run).status)
        raise UsageError(f"{run_file} has nothing to rank{of}{at}: {_present(run)}")
    if as_json:
        echo(document("ranking", ranking.as_json(run, works)), end="")
    else:
        show_page(ranking.page(run, works))
    leave(max(outcome(run).status, ExitStatus.DONE if is_judged(works) else ExitStatus.FAILED))


def _present(run: Run) -> str:
    """Say what could be ranked instead."""
    works = {
        measurement.point.work
        for measurement in run.measurements
        if measurement.samples and len(measurement.point.members) <= 2
    }
    if not works:
        return "it holds no link, pair or device: measure with 'collbench pairs' first"
    names = ", ".join(sorted(map(str, works)))
    return f"it holds {names} at {', '.join(map(format_size, run.settings.sizes))}"
