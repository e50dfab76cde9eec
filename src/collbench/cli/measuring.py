"""Measure a request, print its page, and report the run's file, also after an interruption."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

from collbench.analysis.outcome import outcome
from collbench.api.measuring import MeasureOptions
from collbench.api.notices import Notices
from collbench.api.sessions import Measured, measure
from collbench.bench.plan import Request
from collbench.cli.nonzero_ranks import serve_rank_0
from collbench.cli.terminal import echo, progress_bar, say, show_page
from collbench.distributed.launchers import find_launch
from collbench.model.errors import CollbenchError, ExitStatus, Interrupted, RunFileError, UsageError
from collbench.model.printable import one_line
from collbench.model.run import Run, StopReason
from collbench.runfile import atomic_write, run_file, saved_runs

if TYPE_CHECKING:
    from collbench.api.sessions import WorkerSession
    from collbench.bench.session import Session


_TABLE, NCCL_TESTS, _RUN = "table", "nccl-tests", "json"
_JSON = ("write", "-J")
_SAME = "--output and -J name the same file, and each needs its own file: choose another one for -J"

FORMAT = click.option(
    "--format",
    "layout",
    type=click.Choice((_TABLE, NCCL_TESTS)),
    default=_TABLE,
    show_default=True,
    help="nccl-tests: print the text of nccl-tests, in and out of place.",
)


JSON = click.option("--json", "as_json", is_flag=True, help="Print the run file's JSON, not the page.")


@dataclass(frozen=True, slots=True)
class Showing(Notices):
    """Where a finished run goes: stdout, as a page, as nccl-tests' text or as JSON, and the file of -J."""

    layout: str = _TABLE
    json: Path | None = None
    force: bool = False
    say: Callable[[str], None] = field(default=say, compare=False, kw_only=True)
    progress: Callable[[str], AbstractContextManager[Callable[[int, int], None]]] = field(
        default=progress_bar, compare=False, kw_only=True
    )
    sessions: list[Session] = field(default_factory=list, compare=False, kw_only=True)  # those that were begun

    @classmethod
    def of(
        cls, measure_options: MeasureOptions, layout: str = _TABLE, *, as_json: bool, json: Path | None = None
    ) -> Showing:
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

    def starting(self) -> None:
        """Load the page: it takes as long as the driver to start."""
        import_module("collbench.output.text.measured")

    def begun(self, session: Session) -> None:
        """Keep the session, for what becomes of it if something ends it early."""
        self.sessions.append(session)

    def measured(self, run: Run) -> None:
        """Print the run."""
        self.show(run)

    def show(self, run: Run) -> None:
        """Print the run, and write its JSON. Raises RunFileError, and UsageError if the layout does not suit it."""
        # Late: numpy need not be there before something was measured.
        from collbench.output import nccl_tests
        from collbench.output.text.measured import page

        if self.layout == NCCL_TESTS:
            for line in nccl_tests.lines(run):
                echo(line)
        elif self.layout == _RUN:
            echo(run_file.dumps(run).rstrip("\n"))
        else:
            show_page(page(run))
        if self.json is not None:
            atomic_write.write(nccl_tests.dumps(run), self.json, *_JSON, force=self.force)

    def status(self, run: Run) -> ExitStatus:
        """Return the command's exit status for this run."""
        return outcome(run).status

    def tell_saved(self, path: Path) -> None:
        """Report the run's file: on stderr if stdout is parsed."""
        if self.layout != _TABLE:
            say(f"saved {path}")
        else:
            show_page([f"\nsaved     {one_line(str(path))}"])


def measure_and_show(request: Request, path: Path | None, showing: Showing | None = None) -> Measured:
    """Run the measurement to its end, print it, and return it: saved in the named file, else in a new one.

    Whatever interrupts it, what was measured is saved and said. Where no file can be made it is printed all the same;
    a named one that cannot be written is refused before anything is measured.
    """
    showing = showing or Showing()
    if request.resume and path is not None and nothing_left(run := run_file.load(path)):
        say(f"{path} is complete: there is nothing left to measure")
        showing.show(run)
        leave(run, showing)
        return Measured(run, path)
    launch = find_launch(os.environ)
    if launch is not None and launch.rank > 0:
        serve_rank_0(launch, request)
    advice = ", or name a file with --output FILE"
    path = path or saved_runs.new_run(request.name, request.backend, say, advice=advice)
    with telling_what_is_saved(showing.sessions):
        done = measure(request, path, showing, f"measuring {request.name}", launch)
    if done.failure is not None:
        raise done.failure
    if done.path is not None:
        showing.tell_saved(done.path)
    leave(done.run, showing)
    return done


class Kept(Protocol):
    """The part of a session that knows the run's file."""

    run: Run

    @property
    def path(self) -> Path | None:
        """The run's file, None for nowhere."""

    @property
    def failure(self) -> RunFileError | None:
        """Why the run is not in its file."""


@contextmanager
def telling_what_is_saved(sessions: Sequence[Kept]) -> Iterator[None]:
    """Add to an error or interruption what was saved of the sessions begun."""
    try:
        yield
    except OSError as error:  # of stdout: a full disk
        for session in sessions:
            if session.failure is not None:
                raise session.failure from error
            if session.path is not None:
                error.add_note(f"the run is saved: 'collbench show {session.path}' prints it")
        raise
    except KeyboardInterrupt as error:
        raise Interrupted(f"interrupted: {_saved(sessions)}") from error
    except CollbenchError as error:
        if any(_points(session.run) and session.failure is None for session in sessions):
            raise error.reworded(f"{error}; {_saved(sessions)}") from error
        raise


def measured_by_workers(session: WorkerSession[Any], showing: Showing, page: str) -> None:
    """Measure a session to its end, print its page, and leave with the status that its run earns."""
    try:
        import_module(f"collbench.output.text.{page}")  # while the workers are idle for the last time
        with telling_what_is_saved([session]):
            session.measure()
            showing.show(session.run)
    finally:
        session.close()
    if session.failure is not None:
        raise session.failure
    if session.path is not None:
        showing.tell_saved(session.path)
    leave(session.run, showing)


def nothing_left(run: Run) -> bool:
    """Return whether every data point of a run was measured: none is missing, and none failed."""
    return run.complete and not any(measurement.stop is StopReason.FAILED for measurement in run.measurements)


def leave(run: Run, showing: Showing) -> None:
    """End the command with the run's exit status, and repeat its reason at the end of the output."""
    status = showing.status(run)
    if status is ExitStatus.DONE:
        return
    from collbench.output.text.frame import headline

    say(headline(run))
    raise click.exceptions.Exit(status)


def _saved(sessions: Sequence[Kept]) -> str:
    """Return what was saved, as a clause."""
    points = _points(sessions[0].run) if sessions else 0
    if points == 0:
        return "nothing was measured or saved"
    what, session = f"{points} data points measured so far are", sessions[0]
    if session.failure is not None:
        return f"{what} lost: {session.failure}"
    if session.path is None:
        return f"{what} lost: they could not be saved"
    command, path = session.run.settings.command_name, session.path
    goes_on = f", 'collbench {command} --resume {path}' continues" if session.run.measurements else ""  # others cannot
    return f"{what} saved as {path}: 'collbench show {path}' prints them{goes_on}"


def _points(run: Run) -> int:
    return len(run.measurements) + len(run.overlaps) + len(run.replays)
