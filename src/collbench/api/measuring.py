"""A request of the options that measuring commands share; and a request measured into a run that is saved as it grows.

Only worker processes start CUDA, not this process.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from typing import Any, Protocol, Self

from collbench.api import SILENT, Notices, keywords
from collbench.judge.outcome import corruptions, outcome, timed_points
from collbench.measurement.backends import factory
from collbench.measurement.backends.protocol import OpenDevices, Opened
from collbench.measurement.plan import Request, check_registrations, empty_run, make_plan, read_ports_after
from collbench.model.errors import BackendError, CollbenchError, DataCorruption, FailureKind, RunFileError
from collbench.model.run import CommandKind, Run, capabilities, device_sets
from collbench.runfile import run_file
from collbench.runfile.run_file import RunWriter

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


class LaunchedRanks(Protocol):
    """One process per device, which measure together: a launcher started them, and this process is rank 0."""

    def open(self) -> Opened:
        """Return the backend of all ranks."""


class OpenSession(ABC):
    """A request on open devices. `run` holds what was measured at any moment; the file `path` follows within seconds.

    A save that fails on the way is reported once; measuring continues. A context manager: the worker processes have
    exited at its end.
    """

    _opened: OpenDevices

    def __init__(
        self,
        path: Path | None,
        notices: Notices,
        title: str,
        *,
        force: bool,
        ranks: AbstractContextManager[LaunchedRanks] | None = None,
    ) -> None:
        """Open the devices, before the first trial; `title` is the progress bar's, and with `force` a file is replaced.

        Other `ranks` learn of an error. Raises UsageError, MachineError, BackendError, and RunFileError if `path`
        cannot be written.
        """
        self._notices, self._title = notices, title
        with ExitStack() as stack:
            self._ranks = None if ranks is None else stack.enter_context(ranks)
            if path is not None:
                run_file.check_writable(path, replace=force)
            self.run = self._begin(stack)
            self._writer = RunWriter(self.run, path, notices.say, replace=force)
            self._stack = stack.pop_all()

    @abstractmethod
    def _begin(self, stack: ExitStack) -> Run:
        """Set `_opened`, which the stack is to close, and return the run that begins on it."""

    @abstractmethod
    def _measure(self, progress: Callable[[int, int], None]) -> None:
        """Measure into the run. Raises MachineError, BackendError, DataCorruption."""

    def _read_after(self) -> None:
        """Read the devices' state after measuring. Raises CollbenchError."""
        self.run.health_after = self._opened.health()

    @property
    def path(self) -> Path | None:
        """Where the run is saved, None for nowhere."""
        return self._writer.path

    @property
    def failure(self) -> RunFileError | None:
        """Why the run is not in its file, None if it is."""
        return self._writer.failure

    def measure(self) -> None:
        """Measure; what was measured is saved however it ends. Raises MachineError, BackendError, DataCorruption."""
        try:
            with self._notices.progress(self._title) as progress:
                self._measure(progress)
        except BackendError as error:
            error.exit_code = max(error.exit_code, outcome(self.run).status)
            raise
        finally:
            if timed_points(self.run)[0] or any(corruptions(self.run)):
                with suppress(CollbenchError):  # a GPU that fell off the bus has no health, but what it did is saved
                    self._read_after()
                self._writer.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._stack.close()

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
    """A request for copies, latencies or collectives.

    With `ranks`, which opens them, this process is rank 0 of several that measure.
    """

    _opened: Opened

    def __init__(
        self,
        request: Request,
        path: Path | None,
        notices: Notices,
        title: str,
        *,
        ranks: Callable[[Request, Notices], AbstractContextManager[LaunchedRanks]] | None = None,
    ) -> None:
        self._request = request
        launched = None if ranks is None else ranks(request, notices)
        super().__init__(path, notices, title, force=request.force, ranks=launched)

    def _begin(self, stack: ExitStack) -> Run:
        request = self._request
        check_registrations(request)
        self._opened = factory.open_backend(request) if self._ranks is None else self._ranks.open()
        stack.callback(self._opened.close)
        supported, lacking = request.supported_by(self._opened.machine.nccl)
        self._plan, skipped = make_plan(supported, self._opened.backend)
        # First: the backend makes its communicators while this process reads the devices' health.
        self._opened.backend.reserve(self._plan.largest_bytes())
        collective = (groups for work, groups in self._plan.groups.items() if work.operation.is_collective)
        self._opened.backend.prepare(tuple(dict.fromkeys(members for groups in collective for members in groups)))
        return empty_run(request, self._opened, self._plan, skipped + lacking)

    def _measure(self, progress: Callable[[int, int], None]) -> None:
        from collbench.measurement.sweep import Watcher, sweep, wrong_data  # late: numpy, while the GPUs are opened

        request, backend, rule = self._request, self._opened.backend, self._request.stopping_rule()
        gpu_pairs = request.kind == CommandKind.PAIRS and not capabilities(request.backend).cores
        if confirms := request.kind == CommandKind.CHECK or gpu_pairs:  # what the run accuses is measured again
            from collbench.measurement.confirm import confirm  # late: it judges; now, while NCCL starts
        watcher = Watcher(progress, self._writer.keep, self._opened.flags, self._opened.clock)
        try:
            sweep(backend, self._plan, self.run, rule, random.Random(request.seed), watcher)  # noqa: S311  # no secret
            if confirms:
                confirm(backend, self._plan, self.run, rule, watcher, self._notices.say)
        except DataCorruption as error:
            self.run.skipped.append(wrong_data(error))  # readers of the file must know
            if not rule.around_faults or error.wrong is None:
                raise explained(error, self.run) from error
        _check_success(self.run)

    def _read_after(self) -> None:
        try:
            super()._read_after()
            read_ports_after(self.run, self._opened)
        finally:
            self._opened.backend.close()  # what it holds is released while the run is saved and shown


def _check_success(run: Run) -> None:
    """Raise BackendError if every data point failed; it names a hang first, and on which devices."""
    if run.measurements and not any(measurement.samples for measurement in run.measurements):
        failures = [(lost.point.members, lost.failure) for lost in run.measurements if lost.failure is not None]
        hangs = (failed for failed in failures if failed[1].kind is FailureKind.HANG)
        members, failure = next(hangs, failures[-1])
        where = device_sets([members], run.devices)
        raise BackendError(f"nothing could be measured: {where}: {failure}", failure=failure)


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
