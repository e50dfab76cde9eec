"""Measure a request, print its page, and report the run's file, also after an interruption."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path

import click

from collbench.api.measuring import MeasureOptions
from collbench.api.sessions import Measured, OpenSession, RequestSession
from collbench.cli.launched import launched
from collbench.cli.options import NCCL_TESTS, TABLE
from collbench.cli.terminal import NOTICES, echo, say, show_page
from collbench.judge.outcome import outcome, timed_points
from collbench.machine.launchers import find_launch
from collbench.measurement.plan import Request
from collbench.model.errors import CollbenchError, ExitStatus, Interrupted, UsageError
from collbench.model.printable import one_line
from collbench.model.run import CommandKind, Run, StopReason
from collbench.model.units import amount
from collbench.runfile import atomic_write, run_file, saved_runs

_RUN, _NOTHING = "json", "nothing"  # besides the layouts of --format
_JSON = ("write", "-J")
_SAME = "--output and -J name the same file, and each needs its own file: choose another one for -J"


@dataclass(frozen=True, slots=True)
class RunPrinter:
    """How a finished run is printed (as a page, nccl-tests' text or JSON, or not at all), and the file of -J."""

    layout: str = TABLE
    json: Path | None = None
    force: bool = False

    @classmethod
    def of(
        cls, measure_options: MeasureOptions, layout: str = TABLE, *, as_json: bool, json: Path | None = None
    ) -> RunPrinter:
        """Return the request of the options. Raises RunFileError if the JSON file could not be written, UsageError."""
        if json is not None:
            same = measure_options.file is not None and measure_options.file.resolve() == json.resolve()
            if same and not atomic_write.is_stream(json):
                raise UsageError(_SAME)
            launch = find_launch(os.environ)
            if launch is None or launch.rank == 0:  # rank 0 writes it
                atomic_write.check(json, *_JSON, force=measure_options.force)
        if as_json and layout == NCCL_TESTS:
            raise UsageError(f"--json and --format {NCCL_TESTS} both say what to print: use only one")
        return cls(_RUN if as_json else layout, json, measure_options.force)

    @property
    def as_nccl_tests(self) -> bool:
        """True where nccl-tests' columns are wanted, which are two: out of place and in place."""
        return self.layout == NCCL_TESTS or self.json is not None

    def show(self, run: Run) -> None:
        """Print the run, and write its JSON. Raises RunFileError, and UsageError if the layout does not suit it."""
        # Late: numpy need not be there before something was measured.
        from collbench.report import nccl_tests
        from collbench.report.text.measured import page

        if self.layout == NCCL_TESTS:
            for line in nccl_tests.lines(run):
                echo(line)
        elif self.layout == _RUN:
            from collbench.report import answer

            echo(run_file.dumps(run, answer.as_json(run)), end="")
        elif self.layout == TABLE:
            show_page(page(run))
        if self.json is not None:
            atomic_write.write(nccl_tests.dumps(run), self.json, *_JSON, force=self.force)

    def report_file(self, path: Path) -> None:
        """Report the run's file: on stderr if stdout is parsed."""
        if self.layout != TABLE:
            say(f"saved {path}")
        else:
            show_page([f"\nsaved     {one_line(str(path))}"])


# Where the caller prints something else of the run.
SILENTLY = RunPrinter(_NOTHING)


def new_file(command: str, backend: str) -> Path | None:
    """Return a new file for a run that the user did not name; None, and a notice says why, if none can be written."""
    return saved_runs.new_run(command, backend, say, advice=", or name a file with --output FILE")


def measure_and_show(request: Request, path: Path | None, printer: RunPrinter) -> None:
    """Measure to the end, print the run, and leave with the status that it earns."""
    leave_with(measured(request, path, printer, []).run)


def measure_with_workers(open_session: Callable[[], OpenSession], page: str, *, as_json: bool) -> None:
    """Measure a session on workers with torch to its end, print it by the module `page`, and leave with its status."""
    printer = RunPrinter(_RUN if as_json else TABLE)
    leave_with(_measured_in(open_session, printer, page, []).run)


def measured(request: Request, path: Path | None, printer: RunPrinter, begun: list[OpenSession]) -> Measured:
    """Measure to the end, print the run, and return it: saved in the named file, else in a new one.

    Where no file can be made it is printed all the same; a named one that cannot be written is refused before anything
    is measured. A resumed file that is complete is only printed. `begun` gets the session once it is open.
    """
    if request.resume and path is not None and nothing_left(run := run_file.load(path)):
        say(f"{path} is complete: there is nothing left to measure")
        printer.show(run)
        return Measured(run, path)
    launch = find_launch(os.environ)
    if launch is not None and launch.rank > 0:
        launched().serve_rank_0(launch, request)
    path = path or new_file(request.name, request.backend)
    page = "collbench.report.text.measured"
    title = f"measuring {request.name}"
    # The page takes as long to load as the GPUs to open.
    meanwhile = partial(import_module, page)
    ranks = None if launch is None else partial(launched().open_ranks, launch)
    open_session = partial(RequestSession, request, path, NOTICES, title, ranks=ranks, meanwhile=meanwhile)
    return _measured_in(open_session, printer, page, begun)


def _measured_in(
    open_session: Callable[[], OpenSession], printer: RunPrinter, page: str, begun: list[OpenSession]
) -> Measured:
    """Measure a session to its end, print its run, say where it is saved, and return it.

    If something interrupts it, what was measured is saved, and the error says where. `page` is the module that prints
    the run; `begun` gets the session once it is open.
    """
    with reporting_what_is_saved(begun), open_session() as session:
        begun.append(session)
        import_module(page)  # while the workers are idle for the last time
        session.measure()
        printer.show(session.run)
    if session.failure is not None:
        raise session.failure
    if session.path is not None:
        printer.report_file(session.path)
    return Measured(session.run, session.path)


@contextmanager
def reporting_what_is_saved(begun: Sequence[OpenSession]) -> Iterator[None]:
    """Add to an error or interruption what was saved of the sessions that were open."""
    try:
        yield
    except OSError as error:  # of stdout: a full disk
        for session in begun:
            if session.failure is not None:
                raise session.failure from error
            if session.path is not None:
                error.add_note(f"the run is saved: 'collbench show {session.path}' prints it")
        raise
    except KeyboardInterrupt as error:
        raise Interrupted(f"interrupted: {_saved(begun)}") from error
    except CollbenchError as error:
        if any(any(timed_points(session.run)) and session.failure is None for session in begun):
            raise error.reworded(f"{error}; {_saved(begun)}") from error
        raise


def nothing_left(run: Run) -> bool:
    """Return whether every data point of a run was measured: none is missing, and none failed."""
    return run.complete and not any(measurement.stop is StopReason.FAILED for measurement in run.measurements)


def leave_with(run: Run) -> None:
    """End the command with the run's exit status, and repeat its reason at the end of the output.

    A run of pairs that labels or tools contradict has the status of `check`.
    """
    from collbench.report.text.frame import headline  # late: numpy
    from collbench.report.text.verdicts import contradiction

    contradicting = contradiction(run) if run.settings.kind is CommandKind.PAIRS else ""
    status = max(outcome(run).status, ExitStatus.CONTRADICTION if contradicting else ExitStatus.DONE)
    if status is ExitStatus.DONE:
        return
    say("; ".join(filter(None, (headline(run), contradicting))))
    raise click.exceptions.Exit(status)


def _saved(sessions: Sequence[OpenSession]) -> str:
    """Return what was saved, as a clause."""
    points, measured = timed_points(sessions[0].run) if sessions else (0, 0)
    if points == 0:
        return "nothing was measured or saved"
    counts = [f"{measured} data points measured so far"] if measured else []
    counts += [f"{amount(points - measured, 'data point')} without a result"] if points > measured else []
    what, session = f"{' and '.join(counts)} are", sessions[0]
    if session.failure is not None:
        return f"{what} lost: {session.failure}"
    if session.path is None:
        return f"{what} lost: they could not be saved"
    command, path = session.run.settings.command_name, session.path
    goes_on = f", 'collbench {command} --resume {path}' continues" if session.run.measurements else ""  # others cannot
    return f"{what} saved as {path}: 'collbench show {path}' prints them{goes_on}"
