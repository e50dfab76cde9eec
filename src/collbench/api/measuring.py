"""A request of the options that measuring commands share; and a request measured into a run that is saved as it grows.

Only worker processes start CUDA, not this process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from collbench.api import SILENT, Notices, keywords
from collbench.judge.outcome import outcome
from collbench.measurement.backends import factory
from collbench.measurement.plan import Request
from collbench.model.capabilities import capabilities
from collbench.model.errors import BackendError, DataCorruption, RunFileError
from collbench.model.run import CommandKind, Run
from collbench.runfile import run_file
from collbench.runfile.run_file import RunWriter

if TYPE_CHECKING:
    from collbench.measurement.session import LaunchedRanks

# Generous: twenty times what a sweep of four GPUs takes without it, and no one waits longer without having asked.
_SECONDS_FOR_PRECISION = 60.0


def request_of(
    command: str, values: Mapping[str, Any], command_line: Sequence[str], notices: Notices = SILENT
) -> Request:
    """Return what a measuring command's options, by name, ask for: one that has the name of a Request's field sets it.

    Besides these, `budget` is in seconds. A notice says where "auto" takes CPU cores. Raises UsageError.
    """
    precision, budget = values.get("precision"), values.get("budget")
    named = keywords.fields_of(Request, values)
    named["backend"] = resolved_backend(values["backend"], values.get("fabric"), notices)
    return Request(
        command=tuple(command_line),
        budget_seconds=_SECONDS_FOR_PRECISION if precision and budget is None else budget,
        kind=CommandKind.of(command),
        **named,
    )


def resolved_backend(backend: str, fabric: str | None, notices: Notices) -> str:
    """Return the backend's name, with "auto" the one that there is here; a notice says where it takes CPU cores.

    Raises UsageError for a fabric that does not go with the backend.
    """
    keywords.check_fabric(backend, fabric)
    name, reason = factory.resolve(backend)
    if reason is not None:
        notices.say(f"measuring CPU cores (host backend): {reason}")
    return name


# A request on open devices.


class OpenSession(ABC):
    """A request on open devices. `run` holds what was measured at any moment; the file `path` follows within seconds.

    A context manager: the worker processes have exited at its end.
    """

    run: Run
    _writer: RunWriter

    @property
    def path(self) -> Path | None:
        """Where the run is saved, None for nowhere."""
        return self._writer.path

    @property
    def failure(self) -> RunFileError | None:
        """Why the run is not in its file, None if it is."""
        return self._writer.failure

    @abstractmethod
    def measure(self) -> None:
        """Measure; what was measured is saved however it ends. Raises MachineError, BackendError, DataCorruption."""

    @abstractmethod
    def close(self) -> None:
        """End the worker processes."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def finish(self) -> Self:
        """Measure to the end; the worker processes have exited when this returns."""
        with self:
            self.measure()
        return self

    def saved_run(self) -> Run:
        """Return the run as its file has it. Raises RunFileError if it could not be saved."""
        if self.failure is not None:
            raise self.failure
        return run_file.again(self.run)


class RequestSession(OpenSession):
    """A request for copies, latencies or collectives. `title` is the progress bar's.

    With `ranks`, which opens them, this process is rank 0 of several that measure. Opening raises UsageError,
    MachineError, BackendError, and RunFileError if `path` cannot be written.
    """

    def __init__(
        self,
        request: Request,
        path: Path | None,
        notices: Notices,
        title: str,
        *,
        ranks: Callable[[Request, Notices], AbstractContextManager[LaunchedRanks]] | None = None,
    ) -> None:
        # numpy and more, which takes as long to load as the GPUs to open
        load = partial(import_module, "collbench.measurement.sweep")
        begun = None if ranks else factory.begin(request.backend, load)
        from collbench.measurement.session import Session  # late: while the driver starts

        self._notices, self._title = notices, title
        with ExitStack() as stack:
            world = None if ranks is None else stack.enter_context(ranks(request, notices))
            self._session = stack.enter_context(Session(request, path, notices.say, world, begun))
            self.run, self._writer = self._session.run, self._session.writer
            self._stack = stack.pop_all()

    def measure(self) -> None:
        """Measure; what was measured is saved however it ends. Raises BackendError, DataCorruption."""
        try:
            with self._notices.progress(self._title) as progress:
                self._session.measure(progress)
        except DataCorruption as error:
            raise explained(error, self.run) from error
        except BackendError as error:
            error.exit_code = max(error.exit_code, outcome(self.run).status)
            raise

    def close(self) -> None:
        """End the worker process."""
        self._stack.close()


def measure(request: Request, path: Path | None, notices: Notices, title: str) -> OpenSession:
    """Measure the request to its end, and save it as `path`. Raises what a RequestSession does."""
    return RequestSession(request, path, notices, title).finish()


def explained(error: DataCorruption, run: Run) -> DataCorruption:
    """Return the error with the sentence on which data of the run was wrong; as it is where no facts are known."""
    if error.wrong is None:
        return error
    from collbench.report.sentences import wrong_data  # late: only for a failure

    simulated = "sim: " if capabilities(run.backend).simulated else ""
    return DataCorruption(simulated + wrong_data(error.wrong, run.devices, run.paths), error.wrong)


def wrong_data_of(run: Run) -> list[str]:
    """Return a sentence for all wrong data around which a run was measured."""
    return [str(explained(DataCorruption("", left.wrong), run)) for left in run.skipped if left.wrong is not None]
