"""The runs that collbench saved without a name of the user's: a list of them, and the newest."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from collbench.api.notices import SILENT, Notices
from collbench.model.errors import RunFileError, UsageError
from collbench.model.run import CommandKind
from collbench.runfile import run_file, saved_runs
from collbench.runfile.saved_runs import SavedRun


def runs(limit: int | None = None, notices: Notices = SILENT) -> tuple[SavedRun, ...]:
    """Return the saved runs that this user alone can have written, newest first; `limit` of them, None for all.

    Files that are no readable run are left out; a notice names the first of them. Reading a run takes 0.1 s.
    """
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise UsageError(f"limit={limit!r} is not a number of runs: write a whole number from 1")
    believed = saved_runs.believed()
    if believed.ignored:
        notices.say(believed.ignored)
    return tuple(islice(_readable(believed.files, notices), limit))


def newest(notices: Notices = SILENT, *, of_links: bool = False) -> Path:
    """Return the newest saved run's file, which a notice names; with `of_links` of those that hold links alone.

    Raises UsageError if none is saved.
    """
    believed = saved_runs.believed()
    if believed.ignored:
        notices.say(believed.ignored)
    files = [path for path in believed.files if not of_links or CommandKind.of(saved_runs.command_of(path)).of_links]
    if not files:
        raise UsageError("there is no saved run: name a run file, or measure with 'collbench pairs' first")
    notices.say(f"the newest saved run, {files[0]}")
    return files[0]


def _readable(files: tuple[Path, ...], notices: Notices) -> Iterator[SavedRun]:
    refused = False
    for path in files:
        try:
            yield _described(path)
        except RunFileError as error:
            if not refused:
                notices.say(f"left out: {error}")
            refused = True


def _described(path: Path) -> SavedRun:
    """Return a run's row in the list. Raises RunFileError."""
    from collbench.analysis.outcome import outcome  # late: numpy

    run = run_file.load(path)
    return SavedRun(
        path=path,
        started=run.started,
        backend=run.backend,
        machine=run.machine.hostname,
        fabric=run.machine.fabric,
        devices=tuple(device.tag for device in run.devices),
        command=run.settings.command,
        complete=run.complete,
        status=outcome(run).status,
    )
