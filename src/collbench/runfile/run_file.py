"""Runs on disk: versioned JSON, written whole or not at all, also while it is measured; the folder of saved runs.

The format: docs/run-file.md.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import stat
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol, cast

from collbench import annexes, untrusted
from collbench.model.errors import ExitStatus, Failure, RunFileError, UsageError
from collbench.model.operations import Endpoints, Registration
from collbench.model.run import (
    BACKENDS,
    CommandKind,
    DataPoint,
    Latency,
    Measurement,
    Result,
    Run,
    Settings,
    StopReason,
    Trial,
)
from collbench.model.units import DTYPE_BYTES, REDOPS, abridged, amount
from collbench.runfile import atomic_write
from collbench.runfile.codec import FileFormat, attributes, build, plain

# What annexes add to a run.


class Results(Protocol):
    """What the module `results` of a section's package offers to the reader of run files."""

    RESULT: type[Result]  # of the section's items
    CALLS: str  # the list of a trial that has a time for each call
    check_calls: Callable[[Result, Trial, str], None]  # raises ValueError, which begins with the text, for a wrong list


# By the name of the section, which is a list in the run file: a package with the modules `results` and `view`.
SECTIONS = {section: package for section, package in annexes.RUNS.values() if section}

# The file.

SAVED = "'collbench runs' lists the saved runs: a number stands for a file"
_FORMAT = FileFormat("collbench-run", 3, "run", again="measure again", elsewhere=SAVED)
_DOING = "save the run as"
# `train` does not trust a file that others can write. They may read it if the user's umask allows that.
_MODE = 0o644


def save(run: Run, path: Path, *, replace: bool = False) -> None:
    """Write the run to `path` so that a reader, or a crash, meets either the old file or the new one.

    Raises Taken for a file that exists, unless `replace`, and RunFileError for a folder that cannot be written and for
    a full disk; the old file is then untouched.
    """
    atomic_write.write(dumps(run), path, _DOING, force=replace, mode=_MODE)


def check_writable(path: Path, *, replace: bool = False) -> None:
    """Raise RunFileError if a run could not be saved at `path`: a file exists there, unless `replace` is true."""
    atomic_write.check(path, _DOING, force=replace)


def load(path: Path) -> Run:
    """Read a run file. Raises RunFileError: what is wrong, where.

    Data points of an unfinished run that have no reason to stop are marked as interrupted.
    """
    return _ended(loads(_FORMAT.read(path), str(path)))


def again(run: Run) -> Run:
    """Return a run as it is once it has been saved and loaded."""
    return _ended(loads(dumps(run), "the run"))


def _ended(run: Run) -> Run:
    if not run.complete:
        for measurement in run.measurements:
            measurement.stop = measurement.stop or StopReason.INTERRUPTED
    return run


def dumps(run: Run, answer: dict[str, Any] | None = None) -> str:
    """Return the run as JSON text: what it is and its backend in the first line, then a line for each list item.

    `answer`, what the run means, comes before its fields; no file has it. Raises RunFileError for a number that JSON
    has not.
    """
    fields: dict[str, Any] = {} if answer is None else {"answer": answer}
    for name, value in attributes(run).items():
        fields |= {key: value.get(key, []) for key in SECTIONS} if name == "sections" else {name: value}
    try:
        first = _json({**_FORMAT.head, "backend": fields.pop("backend")})[:-1]
        return f"{first},\n" + ",\n".join(f"{_json(key)}: {_lines(value)}" for key, value in fields.items()) + "\n}\n"
    except ValueError as error:
        raise RunFileError(f"the run cannot be saved: {error}") from error


def _lines(value: Any) -> str:
    if is_dataclass(value):
        value = attributes(value)
    if isinstance(value, list | tuple) and value and (isinstance(value[0], dict) or is_dataclass(value[0])):
        return "[\n" + ",\n".join(map(_json, value)) + "\n]"
    if isinstance(value, dict) and any(isinstance(part, list | tuple) for part in value.values()):
        return "{\n" + ",\n".join(f"{_json(name)}: {_lines(part)}" for name, part in value.items()) + "\n}"
    return _json(value)


# It asks `attributes` for what is not JSON's own: a copy of the whole run in JSON's types took twice as long.
_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, default=attributes).encode


def check_there(path: Path) -> None:
    """Raise RunFileError if there is no such file."""
    try:
        path.stat()
    except OSError as error:
        raise _FORMAT.unread(path, error) from error


def loads(text: str, name: str) -> Run:
    """Return the run in JSON text; `name` is the file's, for errors. Raises RunFileError."""
    return _FORMAT.loads(text, name, _build)


def _build(fields: dict[str, Any]) -> Run:
    run: Run = build(Run, fields | {"sections": {}}, "run")
    _check_settings(run)
    for number, path in enumerate(run.paths):
        _check_members(path.devices, range(len(run.devices)), f"run.paths[{number}].devices")
    by_name: dict[str, Sequence[Measurement | Latency]] = {"measurements": run.measurements, "latencies": run.latencies}
    for name, results in by_name.items():
        for number, result in enumerate(results):
            _check_result(run, result, f"run.{name}[{number}]")
    run.sections = {name: _section(run, name, fields[name]) for name in SECTIONS if fields.get(name, []) != []}
    for number, check in enumerate(run.interference_checks):
        _check_members(check.members, range(len(run.devices)), f"run.interference_checks[{number}].members")
    for number, left in enumerate(run.skipped):
        for members in (left.members, left.wrong.members if left.wrong else ()):
            _check_members(members, range(len(run.devices)), f"run.skipped[{number}].members", fewest=0)
    return run


def _check_settings(run: Run) -> None:
    """Raise ValueError where settings make no sense, so that no reader of the run has to check them."""
    settings = run.settings
    if run.backend not in BACKENDS:
        raise ValueError(f"run.backend is '{run.backend}', not one of {', '.join(BACKENDS)}")
    if settings.kind not in {*CommandKind, *annexes.RUNS}:
        raise ValueError(f"run.settings.kind is '{settings.kind}', which no command of this collbench measures")
    if settings.dtype not in DTYPE_BYTES:
        raise ValueError(f"run.settings.dtype is '{settings.dtype}', not one of {', '.join(DTYPE_BYTES)}")
    if settings.redop not in REDOPS:
        raise ValueError(f"run.settings.redop is '{settings.redop}', not one of {', '.join(REDOPS)}")
    sizes = settings.requested_sizes
    if sizes is not None and not sizes:
        raise ValueError("run.settings.requested_sizes is [], not null or sizes")
    _check_root(settings, max(1, len(run.devices)))
    for members in settings.sets:
        _check_members(members, range(len(run.devices)), "run.settings.sets")


def _check_root(settings: Settings, ranks: int) -> None:
    if settings.root >= ranks:
        raise ValueError(f"run.settings.root is {settings.root}, but {ranks} ranks count from 0")


def _check_result(run: Run, result: Measurement | Latency, where: str) -> None:
    """Raise ValueError where fields of the right type make no sense, so that no judge of the run has to check them."""
    positions, point = range(len(run.devices)), result.point
    fewest = 1 if point.variant.endpoints is Endpoints.DEVICE else 2
    _check_members(point.members, positions, f"{where}.point.members", fewest)
    if point.operation.rooted:
        _check_root(run.settings, len(point.members))
    if point.registration is not Registration.NONE and not point.operation.is_collective:
        raise ValueError(f"{where}.point.registration is '{point.registration}', which is for collectives")
    _check_skew(point, f"{where}.point")
    on_a_link = point.variant.endpoints in (Endpoints.LINK, Endpoints.PAIR)
    if not point.operation.is_collective and on_a_link and len(point.members) != 2:
        raise ValueError(f"{where}.point.members are {len(point.members)}, but a copy has a source and a destination")
    if isinstance(result, Latency):
        _check_latency(result, where)
    else:
        _check_failure(result.failure, positions, f"{where}.failure")
        if not all(sample.seconds for sample in result.samples) or not (result.samples or result.failure):
            raise ValueError(f"{where} has no batch times")
    flags = result.flags if isinstance(result, Latency) else (flag for trial in result.samples for flag in trial.flags)
    for flag in flags:
        _check_members(flag.devices, positions, f"{where}: a flag's devices", fewest=0)


def _check_skew(point: DataPoint, where: str) -> None:
    if point.skew is None:
        return
    if not point.operation.irregular:
        raise ValueError(f"{where}.skew is set, which is for alltoallv")
    try:
        _ = point.blocks
    except ValueError as error:
        raise ValueError(f"{where}.skew: {error}") from None


def _check_latency(latency: Latency, where: str) -> None:
    if not latency.point.operation.is_collective:
        raise ValueError(f"{where}.point.operation is '{latency.point.operation}', not a collective")
    if len(latency.ranks) != len(latency.point.members):
        raise ValueError(f"{where} has {len(latency.ranks)} ranks, but {len(latency.point.members)} members")
    counts = {len(times) for rank in latency.ranks for times in (rank.arrived, rank.left)}
    if len(counts) != 1 or 0 in counts:
        raise ValueError(f"{where} does not have as many launches of each rank, and at least one")


def _section(run: Run, name: str, data: Any) -> list[Result]:
    """Return what an annex measured. Raises ValueError where a trial does not have one time for each rank."""
    positions = range(len(run.devices))
    annex = cast("Results", annexes.load(f"{SECTIONS[name]}.results"))
    results: list[Result] = build(list[annex.RESULT], data, f"run.{name}")  # type: ignore[name-defined]  # late
    for number, result in enumerate(results):
        where = f"run.{name}[{number}]"
        _check_members(result.members, positions, f"{where}.members", fewest=1)
        _check_failure(result.failure, positions, f"{where}.failure")
        for index, trial in enumerate(result.trials):
            at = f"{where}.trials[{index}]"
            annex.check_calls(result, trial, at)
            for by_rank, times in plain(trial).items():
                if not isinstance(times, list) or by_rank in ("flags", annex.CALLS):
                    continue
                if len(times) != len(result.members):
                    members = f"there are {len(result.members)} members"
                    raise ValueError(f"{at}.{by_rank} has {len(times)} times, but {members}")
            for flag in trial.flags:
                _check_members(flag.devices, positions, f"{where}: a flag's devices", fewest=0)
    return results


def _check_failure(failure: Failure | None, positions: range, where: str) -> None:
    if failure is None:
        return
    for devices in (failure.devices, *failure.groups):
        _check_members(devices, positions, f"{where}: its devices", fewest=0)
    _check_failure(failure.because, positions, f"{where}.because")


def _check_members(members: tuple[int, ...], positions: range, where: str, fewest: int = 2) -> None:
    if len(members) < fewest or len(set(members)) < len(members) or not set(members) <= set(positions):
        raise ValueError(f"{where} is {list(members)}, not two or more distinct places in a list of {len(positions)}")


# While a run is measured, its file is written so often that a killed process costs a second of measuring, and so
# seldom that writing takes at most a twentieth of the time: a run of many GPUs is a file of 10 MB.
_PERIOD_S, _TIMES_AS_LONG = 1.0, 20


class RunWriter:
    """Writes the run whole with its first result, then about every second, and at the end.

    Nothing is written until there is something to keep. A stream (/dev/null) gets the run at the end only; without a
    path the run is kept nowhere. `replace` replaces an older file. If another file has appeared at `path` meanwhile,
    the run goes to a new file next to it, which is then `path`. A failure is reported once through `warn` and stays in
    `failure` until a later write succeeds; measuring goes on.
    """

    def __init__(
        self,
        run: Run,
        path: Path | None,
        warn: Callable[[str], None],
        *,
        replace: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run, self._warn, self._clock = run, warn, clock
        self._file = None if path is None else atomic_write.OwnFile(path, _DOING, warn, force=replace, mode=_MODE)
        self._streams = path is None or atomic_write.is_stream(path)
        self._due = -math.inf  # by the clock: the next write
        self._kept = False
        self.failure: RunFileError | None = None

    @property
    def path(self) -> Path | None:
        """Where the run is, None for nowhere."""
        return None if self._file is None else self._file.path

    def keep(self) -> None:
        """Write what was measured so far, unless that was done a moment ago; a new result may have come."""
        begin = self._clock()
        if self._file is None or self._streams or begin < self._due:
            return
        if not self._run.measurements and not any(self._run.results):
            return
        try:
            self._file.write(dumps(self._run))
            self.failure, self._kept = None, True
        except RunFileError as error:
            if self.failure is None:
                self._warn(f"{error} (measuring continues)")
            self.failure = error
        now = self._clock()
        self._due = now + max(_PERIOD_S, _TIMES_AS_LONG * (now - begin))

    def end(self) -> None:
        """Write the run whole. A failure is for the caller to raise.

        What could not be read again is a failure, too: what was written before is then the better one.
        """
        if self._file is None:
            return
        if self._streams:  # Ctrl-C may come while a pipe waits for its reader
            self.failure = RunFileError(f"nothing reads {self._file.path}")
        try:
            text = dumps(self._run)
            loads(text, "the run")
            self._file.write(text)
            self.failure = None
        except RunFileError as error:
            left = f"; {self._file.path} has only the first results" if self._kept else ""
            self.failure = RunFileError(f"{error}{left}")


# The folder of runs that the user did not name; only files that no other user can write are trusted.

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


def saved_runs(say: Callable[[str], None] = lambda _line: None) -> tuple[Path, ...]:
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
