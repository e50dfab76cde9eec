"""The journal of a run file: a JSON line for each trial, so that a run survives if its process is killed.

A journal has the checksum of the file that it continues. Once that file is written again, the journal is obsolete. It
is locked while its run is measured, so that only one process writes a run.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import stat
import warnings
from collections.abc import Callable
from pathlib import Path

from collbench import untrusted
from collbench.model.errors import DroppedLines, RunFileError
from collbench.model.printable import cleaned
from collbench.model.run import DataPoint, Latency, Measurement, Run, StopReason
from collbench.runfile.codec import MOST_BYTES, build, json_fault

_FORMAT = "collbench-journal"
_HEAD = f'{{"format": "{_FORMAT}"'.encode()
_MAX_WORDS = 300  # characters: a value of a line may have any length
# Trials of small messages last 0.1 ms, so a line is made in a fifth of that: tuples and enums are left to json.
_ENCODER = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, default=lambda value: {name: getattr(value, name) for name in value.__slots__}
)


class Journal:
    """An open journal. Each line reaches the kernel at once and so survives a killed process; nothing is synced."""

    def __init__(self, run_file: Path, text: str | None = None) -> None:
        """Lock the file's journal, and begin it if the file holds `text`. Raises OSError, and RunFileError as `check`.

        Until it begins, what it held stays.
        """
        self._path = journal_of(run_file)
        number = _locked(self._path, os.O_RDWR | os.O_CREAT, run_file)
        # Closed by `close`. A name that is not UTF-8 is written as in the run file.
        self._file = os.fdopen(number, "w", encoding="utf-8", errors="backslashreplace", buffering=1)
        if text is not None:
            self.begin(text)

    def begin(self, text: str) -> None:
        """Empty the journal: from now on it continues the file that holds `text`. Raises OSError."""
        self._file.seek(0)
        self._file.truncate()
        self._file.write(f"{_head(text)}\n")

    def add(self, result: Measurement | Latency) -> None:
        """Append the latest trial of a data point, why it was given up, or its single launches. Raises OSError."""
        if isinstance(result, Latency):
            self._file.write(_ENCODER.encode(result) + "\n")
            return
        latest = [] if result.failure else result.samples[-1:]
        trial = Measurement(result.point, latest, result.stop, result.wrong, result.failure)
        self._file.write(_ENCODER.encode(trial) + "\n")

    def close(self) -> None:
        """Close the file and leave it where it is, if it holds anything."""
        with contextlib.suppress(OSError, ValueError):  # a full disk has been reported; it may be closed already
            if not os.fstat(self._file.fileno()).st_size:
                self._path.unlink()
        with contextlib.suppress(OSError):
            self._file.close()

    def remove(self) -> None:
        """Delete and close the file: all of it is in the run file now."""
        with contextlib.suppress(OSError):
            self._path.unlink()  # while it is locked: no other process can use it
        with contextlib.suppress(OSError):
            self._file.close()


def journal_of(run_file: Path) -> Path:
    """Return the path of a run file's journal: the same, and ".journal"."""
    return run_file.with_name(f"{run_file.name}.journal")


def check(run_file: Path) -> None:
    """Raise RunFileError where a run there is being measured, and where the journal's name is another file's.

    Raises OSError for a journal that cannot be written.
    """
    with contextlib.suppress(FileNotFoundError):
        os.close(_locked(journal_of(run_file), os.O_RDWR, run_file))


def _locked(path: Path, flags: int, run_file: Path) -> int:
    """Return the journal's open file, which no other process has. Raises as `check`."""
    while True:
        number = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
        try:
            _lock(number, run_file)
            status = os.fstat(number)
            head = os.pread(number, len(_HEAD), 0) if stat.S_ISREG(status.st_mode) else b"?"
            if not _HEAD.startswith(head):
                raise RunFileError(f"{path} has the name of {run_file}'s journal: move it, or choose another name")
            if why := untrusted.doubt(status, _owners(run_file)):
                raise RunFileError(f"{path}, the journal of {run_file}, is not written to: {why}; choose another name")
            with contextlib.suppress(FileNotFoundError):  # its process has removed it meanwhile: look again
                if os.path.samestat(status, path.lstat()):
                    return number
        except BaseException:
            os.close(number)
            raise
        os.close(number)


def _owners(run_file: Path) -> set[int]:
    """Return whose journal is believed: this user's, and that of the run's owner, as root's files may be nobody's."""
    with contextlib.suppress(OSError):
        return {os.geteuid(), run_file.stat().st_uid}
    return {os.geteuid()}


def _lock(number: int, run_file: Path) -> None:
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise RunFileError(f"{run_file} is being measured by another process: wait, or choose another name") from error
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):  # a file system without locks
            raise


def merge(run: Run, run_file: Path, text: str, check: Callable[[Measurement | Latency, str], None]) -> None:
    """Add to a run the trials and single launches of the journal that continues its file with this text.

    `check` raises ValueError for what the run cannot have: such a line is left out, and a warning names the first. A
    last line that is cut off, as a killed process leaves it, needs none. Raises RunFileError for a journal that cannot
    be read, and for one that another user may have written.
    """
    path = journal_of(run_file)
    try:
        head, *lines = untrusted.read(path, MOST_BYTES, _owners(run_file)).decode("utf-8", "replace").split("\n")
    except FileNotFoundError:
        return
    except OSError as error:
        raise RunFileError(
            f"cannot read {path}, the journal of an unfinished run: {error.strerror}; move it away to read the run "
            "without it"
        ) from error
    if head != _head(text):
        return
    known: dict[DataPoint, Measurement] = {measurement.point: measurement for measurement in run.measurements}
    wrong: list[str] = []
    for number, line in enumerate(lines, 2):
        try:
            trial = _trial(line)
            check(trial, "trial")
        except ValueError as error:
            if number <= len(lines):
                wrong.append(f"line {number} is left out: {str(error)[:_MAX_WORDS]}")
            continue
        if isinstance(trial, Latency):
            run.latencies = [*(one for one in run.latencies if one.point != trial.point), trial]
            continue
        measurement = known.get(trial.point)
        if measurement is None:
            known[trial.point] = trial
            run.measurements.append(trial)
        else:
            measurement.samples += trial.samples
            measurement.stop, measurement.wrong, measurement.failure = trial.stop, trial.wrong, trial.failure
    if wrong:
        others = f"; so are {len(wrong) - 1:,} more" if len(wrong) > 1 else ""
        warnings.warn(f"{path}: {wrong[0]}{others}", DroppedLines, stacklevel=2)


def mark_interrupted(run: Run) -> None:
    """Give every data point of an unfinished run that has no reason to stop this one."""
    for measurement in run.measurements:
        measurement.stop = measurement.stop or StopReason.INTERRUPTED


def _trial(line: str) -> Measurement | Latency:
    """Return what a line holds. Raises ValueError."""
    try:
        data = cleaned(json.loads(line), line)
    except (ValueError, RecursionError) as error:
        raise ValueError(json_fault(error)) from error
    kind = Latency if isinstance(data, dict) and "ranks" in data else Measurement
    trial: Measurement | Latency = build(kind, data, "trial")
    return trial


def _head(text: str) -> str:
    """Return the first line of the journal that continues the file with this text."""
    digest = hashlib.sha256(text.encode("utf-8", errors="backslashreplace")).hexdigest()
    return json.dumps({"format": _FORMAT, "continues": digest}, allow_nan=False)
