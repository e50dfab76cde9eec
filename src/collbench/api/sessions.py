"""Measure a request in this process, whose worker process alone starts CUDA, and return what there is of the run."""

from __future__ import annotations

import os
import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from collbench.analysis.outcome import outcome
from collbench.api.notices import Notices
from collbench.backends import factory
from collbench.backends.protocol import OpenWorkers
from collbench.bench.plan import Request
from collbench.distributed.launchers import LaunchEnvironment, join_seconds
from collbench.model.capabilities import capabilities
from collbench.model.errors import BackendError, CollbenchError, DataCorruption, RunFileError
from collbench.model.run import Run
from collbench.output.stale_runs import unfit
from collbench.runfile import run_file
from collbench.runfile.run_file import RunWriter


@dataclass(frozen=True, slots=True)
class Measured:
    """A run, and its file; None if it has none, as `failure` says where that was not wanted."""

    run: Run
    path: Path | None
    failure: RunFileError | None = None


def measure(
    request: Request, path: Path | None, notices: Notices, title: str, launch: LaunchEnvironment | None = None
) -> Measured:
    """Measure the request to its end; the worker has exited when this returns. `title` is the progress bar's title.

    With a `launch`, this process is rank 0 of several that measure. The run is saved as `path`, also if this
    raises: KeyboardInterrupt, DataCorruption, BackendError, MachineError, and UsageError.
    """
    worker = None if launch else factory.begin(request.backend)
    notices.starting()
    from collbench.bench.session import NotResumed, Session  # late: numpy, while the driver starts

    with ExitStack() as stack:
        world = None
        if launch is not None:
            from collbench.distributed.factory import World  # late: a tenth of a second

            world = stack.enter_context(World(launch, request, join_seconds(os.environ), notices.say))
        try:
            session = stack.enter_context(Session(request, path, notices.say, world, worker))
        except NotResumed as error:
            # A run file names no library to load: the user repeats --nccl.
            nccl = "add --nccl PATH to name the one that it was measured with, or " if error.other_nccl else ""
            advice = f"{nccl}measure again, without --resume"
            raise RunFileError(f"{error.path} cannot be resumed here: {unfit(error.why)}; {advice}") from None
        notices.begun(session)
        try:
            with notices.progress(title) as progress:
                session.measure(progress)
        except DataCorruption as error:
            raise explained(error, session.run) from error
        except BackendError as error:
            error.exit_code = max(error.exit_code, outcome(session.run).status)
            raise
        notices.measured(session.run)
        return Measured(session.run, session.path, session.failure)


def explained(error: DataCorruption, run: Run) -> DataCorruption:
    """Return the error with the sentence on which data of the run was wrong; as it is where no facts are known."""
    if error.wrong is None:
        return error
    from collbench.output.sentences import wrong_data  # late: only for a failure

    simulated = "sim: " if capabilities(run.backend).simulated else ""
    return DataCorruption(simulated + wrong_data(error.wrong, run.devices), error.wrong)


def serve(request: Request, launch: LaunchEnvironment, notices: Notices) -> None:
    """Measure this process's part for rank 0 of its launch, until that says to leave. Raises BackendError."""
    from collbench.distributed.factory import join  # late: a tenth of a second

    if not join(launch, request, join_seconds(os.environ), notices.say):
        raise BackendError(f"rank {launch.rank} stops: rank 0 is gone, and its output says why")


def named_nccl(path: str | None) -> str | None:
    """Return the NCCL path that the caller names, else COLLBENCH_NCCL, else None."""
    return path or os.environ.get("COLLBENCH_NCCL")


def new_seed() -> int:
    """Return a random seed that fits on a line."""
    return random.SystemRandom().randrange(10**6)


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
        """Return the run with nothing measured. Raises UsageError if the devices do not suit the request."""

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
        """Measure to the end, and return the run; the workers have exited when this returns."""
        try:
            self.measure()
        finally:
            self.close()
        return Measured(self.run, self.path, self.failure)

    def close(self) -> None:
        """End the workers."""
        self._opened.close()
