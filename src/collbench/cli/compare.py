"""`collbench compare`: a run against others, or against figures of healthy machines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from collbench.cli import options
from collbench.cli.terminal import echo, leave, show_page, verbose_option
from collbench.judge.outcome import outcome
from collbench.model.errors import ExitStatus, NotTrusted, UsageError
from collbench.model.operations import Operation
from collbench.model.printable import one_line
from collbench.model.run import Run
from collbench.model.units import parse_share
from collbench.runfile import run_file


@click.command()
@click.argument("files", metavar="BASE.JSON NEW.JSON", nargs=-1, type=options.RUN)
@click.option(
    "--fail-below",
    metavar="SHARE",
    default="5%",
    show_default=True,
    help="Exit with 3 if something is slower than the base by significantly more than this.",
)
@click.option(
    "--history",
    metavar="FILE",
    type=options.RUN,
    multiple=True,
    help="Another run on the base's GPUs: it shows how much runs vary. Give it several times.",
)
@options.operation
@click.option("--reference", is_flag=True, help="Compare one run with published figures for its kind of machine.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of the page (docs/compare.md).")
@verbose_option
def compare(
    files: tuple[Path, ...],
    fail_below: str,
    history: tuple[Path, ...],
    operation: Operation | None,
    reference: bool,
    as_json: bool,
) -> None:
    """Show what became faster or slower from one run to another.

    The page first lists other differences between the runs: NCCL, driver, variables. Then it lists the changes that are
    statistically significant, then counts. --reference says whether one run is normal for its kind of machine. Exit
    status: 0; 3 for a regression; 1 if nothing could be judged or data points are missing; 1 or 4 if the new run
    failed.

    \b
    Examples:
      collbench compare base.json new.json
      collbench compare base.json new.json --fail-below 3% --operation allreduce
      collbench compare base.json new.json --history older.json
      collbench compare run.json --reference
    """
    limit = _parse_share(fail_below)
    run_files = options.all_named_or_newest(files, of_links=True) if reference else files
    _check_count(run_files, history, reference=reference)
    runs = [run_file.load(path) for path in run_files]
    earlier = [run_file.load(path) for path in history]
    _check_alike([*runs, *earlier], [*run_files, *history])
    if reference:
        status = _reference(runs[0], operation, as_json=as_json)
    else:
        (base, new), (base_file, new_file) = runs, run_files
        status = _changes((base, new), (base_file, new_file), limit, operation, earlier, as_json=as_json)
    leave(status)


def _check_count(paths: Sequence[Path], history: Sequence[Path], *, reference: bool) -> None:
    """Raise UsageError for runs that there is nothing to compare with."""
    if reference and history:
        raise UsageError("--history belongs to a comparison of runs, not to --reference: keep one of them")
    if reference and len(paths) > 1:
        raise UsageError(f"--reference judges one run, {len(paths)} were given: keep only one")
    if not paths:
        raise UsageError("name the base and the new run, or judge one with --reference; 'collbench runs' lists them")
    if not reference and len(paths) == 1:
        raise UsageError(f"{paths[0]} is one run: name a second run to compare it with, or add --reference")
    if len(paths) > 2:
        raise UsageError(
            f"{len(paths)} runs were given: name a base and a new run, and other runs of the base's GPUs by --history"
        )
    seen: dict[Path, Path] = {}
    for path in (*paths, *history):
        first = seen.setdefault(path.resolve(), path)
        if first is not path:
            raise UsageError(f"{path} and {first} are the same file: name each run once")


def _check_alike(runs: Sequence[Run], paths: Sequence[Path]) -> None:
    """Raise UsageError for runs of different backends: their figures are not comparable."""
    for run, path in zip(runs, paths, strict=True):
        if run.backend != runs[0].backend:
            raise UsageError(
                f"{paths[0]} is of the {runs[0].backend} backend and {path} of the {run.backend} backend: "
                "their figures measure different things; compare runs of the same backend"
            )


def _changes(
    runs: tuple[Run, Run],
    paths: tuple[Path, Path],
    limit: float,
    wanted: Operation | None,
    history: Sequence[Run],
    *,
    as_json: bool,
) -> int:
    """Print what changed from the first run to the second; return the status."""
    # Late: numpy takes as long to load as the rest of the program.
    from collbench.judge.compare import compare as compared
    from collbench.report.text import comparison

    found = compared(*runs, limit, wanted, history)
    if not found.changes:
        _nothing(runs, paths, wanted)
    if as_json:
        echo(comparison.as_json(found), end="")
    else:
        show_page(comparison.page(found, (one_line(str(paths[0])), one_line(str(paths[1])))))
    return found.status


def _nothing(runs: tuple[Run, Run], paths: tuple[Path, Path], wanted: Operation | None) -> None:
    """Raise NotTrusted where failures left nothing to compare, UsageError if the runs are of different things."""
    of = f" of {wanted}" if wanted else ""
    from collbench.report.text.frame import headline  # late: numpy

    if failed := [f"{path} {headline(run)}" for run, path in zip(runs, paths, strict=True) if outcome(run).troubles]:
        raise NotTrusted(
            f"no data point{of} was measured in both runs: {'; '.join(failed)}",
            max(ExitStatus.FAILED, outcome(runs[1]).status),
        )
    raise UsageError(
        f"{paths[0]} and {paths[1]} have no data point{of} in common: measure both with the same command and sizes"
    )


def _reference(run: Run, wanted: Operation | None, *, as_json: bool) -> int:
    from collbench.judge.references import judge, load
    from collbench.report.text import reference

    answers = judge(run, load(), wanted)
    status = answers.status
    if as_json:
        echo(reference.dumps(answers, status), end="")
    else:
        show_page(reference.page(answers))
    return status


def _parse_share(text: str) -> float:
    """Return the ratio that `text` names: "5%" or "0.05". Raises UsageError."""
    ratio = parse_share(text)
    if ratio is None or ratio >= 1:
        raise UsageError(f"--fail-below '{text}' is not a share from 0 to below 100%: write 5%, 2.5% or 0.05")
    return ratio
