"""The folder of runs that the user did not name; only files that no other user can write are trusted."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from collbench import untrusted
from collbench.model.errors import ExitStatus, UsageError
from collbench.model.units import abridged, amount
from collbench.runfile import atomic_write

RUNS, FINALISTS = "runs", "finalists"


def state_folder(name: str) -> Path:
    """Return $XDG_STATE_HOME/collbench/NAME. Raises UsageError without a home."""
    state = os.environ.get("XDG_STATE_HOME")
    try:
        return (Path(state) if state else Path.home() / ".local" / "state") / "collbench" / name
    except RuntimeError as error:
        raise UsageError("there is no home folder", "set XDG_STATE_HOME to a folder") from error


def new_name(*parts: str) -> str:
    """Return a file's stem that sorts by time and that no other process takes, whatever its host and its clock."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    return "-".join((stamp, *parts, secrets.token_hex(4)))


def new_run(what: str, backend: str, say: Callable[[str], None], folder: str = RUNS, advice: str = "") -> Path | None:
    """Return a new file for a run; None, and `say` why, where none can be written. `advice` ends that line."""
    try:
        folder_of_runs = state_folder(folder)
        atomic_write.make_private(folder_of_runs)
        atomic_write.try_folder(folder_of_runs)
    except UsageError as error:
        say(f"the run will not be saved: {error}{advice}")
    except OSError as error:
        why = f"cannot write {folder_of_runs}: {atomic_write.reason(error)}"
        say(f"the run will not be saved: {why}: set XDG_STATE_HOME to a folder that can be written{advice}")
    else:
        return folder_of_runs / f"{new_name(backend, what)}.json"
    return None


def is_ours(path: Path | None) -> bool:
    """Return whether a run's file is one of those whose names were not asked for."""
    try:
        return path is not None and path.parent == state_folder(RUNS)
    except UsageError:
        return False


def command_of(path: Path) -> str:
    """Return the command that saved a run, from its file name: "pairs"; "" for a name that is not ours."""
    parts = path.stem.split("-")  # the time, the backend, the command, a random word
    return "-".join(parts[2:-1])


def backend_of(path: Path) -> str:
    """Return the backend of a saved run, from its file name: "sim"; "" for a name that is not ours."""
    return next(iter(path.stem.split("-")[1:]), "")


@dataclass(frozen=True, slots=True)
class SavedRun:
    """A run's row in the list of runs."""

    number: int  # 1 for the newest; commands take it for the file's name
    path: Path
    started: str
    backend: str
    machine: str
    fabric: str  # the simulated machine's name, "" for a real machine
    devices: tuple[str, ...]  # their names by position ("GPU0")
    command: tuple[str, ...]  # the words after `collbench`
    complete: bool
    status: ExitStatus  # with which the command ended, as far as the run shows it


def believed(say: Callable[[str], None] = lambda _line: None) -> tuple[Path, ...]:
    """Return the runs that may choose devices without being named, newest first: no other user can have written them.

    `say` takes a line on those that are left out.
    """
    try:
        folder = state_folder(RUNS)
        paths = sorted(folder.glob("*.json"), reverse=True)
    except (UsageError, OSError):
        return ()
    if paths and (why := _distrusted(folder, stat.S_ISDIR)):
        say(f"ignoring the saved runs in {folder}: {why}; chmod 700 it once they are yours")
        return ()
    doubts = {path: why for path in paths if (why := _distrusted(path, stat.S_ISREG))}
    if doubts:
        shown, why = abridged([str(path) for path in doubts], 1), next(iter(doubts.values()))
        say(f"ignoring {shown}: {why}; name a run with its file to use it anyway")
    return tuple(path for path in paths if path not in doubts)


def numbered(number: int, files: tuple[Path, ...]) -> Path:
    """Return the file with this number among the saved runs, 1 for the newest. Raises UsageError."""
    if 1 <= number <= len(files):
        return files[number - 1]
    advice = f"'collbench runs' lists {amount(len(files), 'run')}" if files else "measure with 'collbench pairs' first"
    raise UsageError(f"there is no saved run {number}: {advice}")


def _distrusted(path: Path, is_kind: Callable[[int], bool]) -> str:
    """Return why another user may have written a file or folder, or what a link leads to; "" if none can have."""
    try:
        file_status = path.stat()
    except OSError as error:
        return f"it cannot be examined ({error.strerror})"
    if not is_kind(file_status.st_mode):
        return "it is a file of another kind"
    return untrusted.doubt(file_status, {os.geteuid()})
