"""A run that is saved again and again while it is measured by workers with torch: of overlap, and of a replay."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

from collbench.api.measuring import Measured
from collbench.api.notices import Notices
from collbench.backends.protocol import OpenWorkers
from collbench.bench.run_writer import RunWriter
from collbench.model.errors import CollbenchError, RunFileError
from collbench.model.run import Run
from collbench.runfile import run_file

Workers = TypeVar("Workers")


class WorkerSession(ABC, Generic[Workers]):
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
            self._writer = RunWriter(self.run, path, notices.say, replace=replace)
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def _open(self) -> OpenWorkers[Workers]:
        """Start the workers."""

    @abstractmethod
    def _begun(self, opened: OpenWorkers[Workers]) -> Run:
        """Return the run with nothing measured. Raises UsageError where the devices do not suit the request."""

    @abstractmethod
    def _measure(self, opened: OpenWorkers[Workers], saved: Callable[[], None]) -> None:
        """Measure all of it into `run`, and call `saved` after each step."""

    @property
    def path(self) -> Path | None:
        """Where the run is saved, None for nowhere."""
        return self._writer.path

    @property
    def failure(self) -> RunFileError | None:
        """Why the run is not in its file."""
        return self._writer.failure

    def measure(self) -> None:
        """Measure; what was measured is saved however it ends. Raises MachineError, BackendError, DataCorruption."""
        try:
            self._measure(self._opened, self._writer.rewrite)
        finally:
            if self.run.overlaps or self.run.replays:
                with suppress(CollbenchError):  # a GPU that fell off the bus has no health
                    self.run.health_after = self._opened.health()
                self._writer.end()

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
