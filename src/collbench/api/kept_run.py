"""A run that is saved again and again while it is measured by workers with torch: of overlap, and of a replay."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from collbench.api.measuring import Measured
from collbench.api.notices import Notices
from collbench.model.errors import CollbenchError, RunFileError
from collbench.model.run import Health, Run
from collbench.runfile import atomic_write, run_file


class KeptRun:
    """A run and its file, if it has one. A save that fails is reported once and stays in `failure`; measuring goes on.

    Raises RunFileError where `path` cannot be written.
    """

    def __init__(self, run: Run, path: Path | None, notices: Notices, *, replace: bool) -> None:
        self._run, self._notices = run, notices
        self._file = None if path is None else run_file.own(path, notices.say, replace=replace)
        self._streams = path is not None and atomic_write.is_stream(path)
        self.failure: RunFileError | None = None

    @property
    def path(self) -> Path | None:
        """Where the run is saved, None for nowhere."""
        return None if self._file is None else self._file.path

    @property
    def empty(self) -> bool:
        """True while nothing was measured."""
        return not self._run.overlaps and not self._run.replays

    def save(self, *, last: bool = False) -> None:
        """Write what was measured so far, nothing where nothing was; into a stream only at last."""
        if self._file is None or self.empty or (self._streams and not last):
            return
        try:
            self._file.write(run_file.dumps(self._run))
            self.failure = None
        except RunFileError as error:
            if self.failure is None:
                self._notices.say(f"{error} (measuring goes on)")
            self.failure = error


class OpenWorkers(Protocol):
    """Workers that a session needs: what they say of their devices, and their end."""

    @property
    def health(self) -> Callable[[], tuple[Health, ...]]:
        """The devices' state now."""

    @property
    def close(self) -> Callable[[], None]:
        """Ends the workers."""


Opened = TypeVar("Opened", bound=OpenWorkers)


class WorkerSession(ABC, Generic[Opened]):
    """A request on open workers. `run` holds what was measured at any moment, and so does the file after each step.

    Opening raises UsageError, MachineError, BackendError, and RunFileError where `path` cannot be written.
    """

    def __init__(self, path: Path | None, notices: Notices, *, replace: bool) -> None:
        if path is not None:
            run_file.check_writable(path, replace=replace)
        self._notices = notices
        self._opened = self._open()
        try:
            self.run: Run = self._begun(self._opened)
            self._kept = KeptRun(self.run, path, notices, replace=replace)
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def _open(self) -> Opened:
        """Start the workers."""

    @abstractmethod
    def _begun(self, opened: Opened) -> Run:
        """Return the run with nothing measured. Raises UsageError where the devices do not suit the request."""

    @abstractmethod
    def _measure(self, opened: Opened, saved: Callable[[], None]) -> None:
        """Measure all of it into `run`, and call `saved` after each step."""

    @property
    def path(self) -> Path | None:
        """Where the run is saved, None for nowhere."""
        return self._kept.path

    @property
    def failure(self) -> RunFileError | None:
        """Why the run is not in its file."""
        return self._kept.failure

    def measure(self) -> None:
        """Measure; what was measured is saved however it ends. Raises MachineError, BackendError, DataCorruption."""
        try:
            self._measure(self._opened, self._kept.save)
        finally:
            if not self._kept.empty:
                with suppress(CollbenchError):  # a GPU that fell off the bus has no health
                    self.run.health_after = self._opened.health()
                self._kept.save(last=True)

    def finish(self) -> Measured:
        """Measure to the end, and return the run; the workers are gone when this returns."""
        try:
            self.measure()
        finally:
            self.close()
        return Measured(self.run, self.path, self.failure)

    def close(self) -> None:
        """End the workers."""
        self._opened.close()
