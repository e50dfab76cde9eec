"""Saved files: runs, listed, loaded, ranked, judged and compared; and files of other kinds, with the module of each."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from collbench import annexes, untrusted
from collbench.api import SILENT, Notices, keywords
from collbench.model.errors import RunFileError, UsageError
from collbench.model.operations import Operation, Registration, Variant, Work
from collbench.model.run import Run
from collbench.model.units import format_size, parse_size
from collbench.model.values import one_line
from collbench.runfile import run_file
from collbench.runfile.run_file import SavedRun

if TYPE_CHECKING:
    from collbench.judge.compare import Comparison
    from collbench.judge.diagnose import Verdict
    from collbench.judge.tails import Tails
    from collbench.judge.tiers import Ranking
    from collbench.report.rows import Table


class MeasuredRun(Run):
    """A run as `collbench.load` and the measuring calls return it."""

    __slots__ = ()

    @classmethod
    def of(cls, run: Run) -> MeasuredRun:
        """Return the run as one of these."""
        return cls(**{field.name: getattr(run, field.name) for field in fields(run)})

    def table(self) -> Table:
        """Return the figures: a row for each data point, with the columns of `collbench export` (docs/columns.md)."""
        from collbench.report.rows import Table  # late: numpy

        return Table.of(self)


def load(path: str | os.PathLike[str]) -> MeasuredRun:
    """Load a run file that collbench saved on any machine; `table` has its figures. Raises Error."""
    file = keywords.path(path)
    try:
        return MeasuredRun.of(run_file.load(file))
    except RunFileError as error:
        if (kind := file_kind(file)) is not None:
            raise UsageError(f"{file} is {kind.NAME}: write {kind.CALL.format(str(file))}") from None
        raise error.reworded(str(error).replace(run_file.SAVED, "collbench.runs() lists the saved runs")) from None


NamedRun = tuple[str, Run]


def load_named(files: Iterable[Path]) -> list[NamedRun]:
    """Return each file's printable name and its run. Raises RunFileError."""
    return [(one_line(str(file)), run_file.load(file)) for file in files]


def runs(limit: int | None = None, *, notices: Notices = SILENT) -> tuple[SavedRun, ...]:
    """Return the runs that collbench saved, newest first, `limit` of them. Raises Error.

    They are in files that only this user can have written. Files that are no readable run are left out; a notice names
    the first of them. Reading and judging a run takes 0.1 to 0.5 s.
    """
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise UsageError(f"limit={limit!r} is not a number of runs: write a whole number from 1")
    files = run_file.saved_runs(notices.say)
    return tuple(islice(_readable(files, notices), None if limit is None else min(limit, len(files))))


def _readable(files: tuple[Path, ...], notices: Notices) -> Iterator[SavedRun]:
    from collbench.judge.diagnose import Diagnosis  # late: most commands read no saved runs
    from collbench.report.verdicts import status_of

    refused = False
    for number, path in enumerate(files, 1):
        try:
            run = run_file.load(path)
        except RunFileError as error:
            if not refused:
                notices.say(f"left out: {error}")
            refused = True
            continue
        yield SavedRun(
            number=number,
            path=path,
            started=run.started,
            backend=run.backend,
            machine=run.machine.hostname,
            fabric=run.machine.fabric,
            devices=tuple(device.tag for device in run.devices),
            command=run.settings.command,
            complete=run.complete,
            status=status_of(Diagnosis(run)),
        )


def saved_files(notices: Notices, *, of_links: bool = False) -> list[Path]:
    """Return the saved runs' files, newest first; with `of_links` only of those that measured links.

    Raises UsageError if there are none.
    """
    saved = run_file.saved_runs(notices.say)
    files = [path for path in saved if not of_links or not any(annexes.RUNS.get(run_file.command_of(path), ()))]
    if not files:
        raise UsageError("there is no saved run: name a run file, or measure with 'collbench pairs' first")
    return files


def compare(base: Run, new: Run, *, fail_below: float = 0.05, history: Sequence[Run] = ()) -> Comparison:
    """Return what became faster or slower between two runs, as `collbench compare` judges it. Raises Error.

    `history` are other runs on the base's GPUs: they show how much runs vary.
    """
    from collbench.judge.compare import compare as compared  # late: numpy

    for run in (base, new, *history):
        keywords.check_run(run, "compare")
    if isinstance(fail_below, bool) or not isinstance(fail_below, int | float) or not 0 <= fail_below < 1:
        raise UsageError(f"fail_below={fail_below!r} is not a ratio: write a number from 0 to below 1, such as 0.05")
    return compared(base, new, fail_below, None, history)


def rank(
    run: Run,
    operation: str = "allreduce",
    size: int | str | None = None,
    *,
    variant: str = "plain",
    numa_node: int | None = None,
    registration: str = "none",
) -> Ranking:
    """Return a run's links in tiers: directed links of a copy, pairs of a collective.

    `operation` and `variant` are names from docs/run-file.md, `size` is in bytes or a text as for --sizes ("64M"), None
    for the largest. `numa_node` is the node of the host memory in host copies, if the run has several; `registration`
    is that of a collective's memory. Raises Error, also for what the run did not measure on links.
    """
    from collbench.judge.summary import measured_works  # late: numpy
    from collbench.judge.tiers import rank_links

    keywords.check_run(run, "rank")
    size_bytes = None if size is None else parse_size(keywords.word("size", size))
    wanted = Work(
        keywords.named("operation", operation, Operation),
        keywords.named("variant", variant, Variant),
        numa_node,
        keywords.named("registration", registration, Registration),
    )
    works = measured_works(run)
    work = next((work for work in works if replace(work, skew=None) == wanted), None)  # a run's skew has no name here
    if work is None:
        raise UsageError(_nothing_to_rank(run, wanted, works))
    sizes = works[work]
    if size_bytes is not None and size_bytes not in sizes:
        there = ", ".join(map(format_size, sorted(sizes)))
        raise UsageError(f"cannot rank {work} at {format_size(size_bytes)}: the run has {there}")
    return cast("Ranking", rank_links(run, work, size_bytes or max(sizes)))


def _nothing_to_rank(run: Run, wanted: Work, works: Iterable[Work]) -> str:
    """Return why a run has no ranking of a work, and what it has instead."""
    if ranked := ", ".join(map(str, works)):
        return f"the run has no {wanted} on links or pairs: it has {ranked}"
    points = (measurement.point for measurement in run.measurements if measurement.samples)
    most = max(points, key=lambda point: len(point.members), default=None)
    measured = f"{most.operation} on {len(most.members)} devices at once" if most else "nothing"
    return (
        f"the run has no links to rank: it measured {measured}; run.table() has its figures, and "
        "collbench.measure('pairs') measures every link"
    )


def check(run: Run) -> tuple[Verdict, ...]:
    """Return the problems and notable facts of a run's machine; `explain` turns them into text. Raises Error."""
    from collbench.judge.diagnose import judge  # late: numpy

    keywords.check_run(run, "check")
    return judge(run)


def explain(found: Verdict | Ranking, run: Run) -> str:
    """Return a verdict or a ranking of a run as text, as `check` and `show --ranking` print it. Raises Error."""
    from collbench.judge.diagnose import Verdict  # late: numpy
    from collbench.judge.tiers import Ranking, verdict_of
    from collbench.report import verdicts

    keywords.check_run(run, "explain")
    if isinstance(found, Verdict):
        return verdicts.what(found, run)
    if isinstance(found, Ranking):
        return verdict_of(found)
    raise UsageError(f"cannot explain a {type(found).__name__}: give a verdict or a ranking")


def tails(run: Run) -> tuple[Tails, ...]:
    """Return the statistics of the run's single launches (`--latency N`), one item per data point that has them.

    `transfer` and `waited` are spreads of times in seconds, `late` the ranks that are significantly late. Raises Error
    if `run` is not a run.
    """
    from collbench.judge.tails import tails as all_tails  # late: numpy

    keywords.check_run(run, "judge the tails of", "tails")
    return tuple(all_tails(run))


# Files of annexes: of which kind one is, and the module for it, loaded only then.

MAX_BYTES = 2**30  # a job of a thousand ranks, each with 32 whole repetitions of a thousand calls


class FileKind(Protocol):
    """What the module offers."""

    NAME: str  # "a recorded job"
    CALL: str  # that loads one in Python; "{!r}" is the file
    OPTIONS: tuple[str, ...]  # of `show`, by their parameters' names, that are for such a file alone
    load: Callable[[Path], object]
    show: Callable[..., None]  # prints it
    export: Callable[[Path, str], str]  # the text of --format. Raises UsageError for one that it does not have


def format_of(path: Path) -> str:
    """Return which format of an annex a file has; "" for a run, and where loading it as one says what is wrong."""
    try:
        text = untrusted.read_text(path, MAX_BYTES) if path.is_file() else ""  # a pipe can be read once alone
        fields = json.loads(text) if any(f'"{name}"' in text for name in annexes.FILES) else {}
    except (OSError, ValueError, RecursionError):
        return ""
    named = fields.get("format") if isinstance(fields, dict) else None
    return named if isinstance(named, str) and named in annexes.FILES else ""


def file_kind(path: Path) -> FileKind | None:
    """Return the module for a file; None for a run, and for what cannot be read."""
    name = format_of(path)
    return cast("FileKind", annexes.load(annexes.FILES[name])) if name else None
