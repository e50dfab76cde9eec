"""Measure a request, show its page, and say where the run is, also when something ends it early."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from collbench.analysis.outcome import outcome
from collbench.backends import factory
from collbench.bench.plan import Request
from collbench.cli import options
from collbench.cli.nonzero_ranks import serve_rank_0
from collbench.cli.terminal import echo, progress_bar, say, show_page
from collbench.distributed.factory import World
from collbench.distributed.launchers import find_place, join_seconds
from collbench.model.errors import BackendError, CollbenchError, ExitStatus, Interrupted, UsageError
from collbench.model.printable import one_line
from collbench.model.run import Run
from collbench.runfile import atomic_write, run_file, saved_runs

if TYPE_CHECKING:
    from collbench.bench.session import Session


# How a run is shown: as its page, or as nccl-tests prints it; and the JSON file beside it.


_TABLE, NCCL_TESTS, _RUN = "table", "nccl-tests", "json"
_JSON = ("write", "-J")
_SAME = "--output and -J name the same file, and each writes its own: choose another one for -J"

FORMAT = click.option(
    "--format",
    "layout",
    type=click.Choice((_TABLE, NCCL_TESTS)),
    default=_TABLE,
    show_default=True,
    help="nccl-tests: print what its parsers read, in and out of place.",
)


@dataclass(frozen=True, slots=True)
class Showing:
    """Where a finished run goes: stdout, as a page, as nccl-tests' text or as JSON, and the file of -J."""

    layout: str = _TABLE
    json: Path | None = None
    force: bool = False

    @classmethod
    def asked(cls, given: Mapping[str, Any]) -> Showing:
        """Return what the options ask for. Raises RunFileError if the JSON file could not be written, UsageError."""
        json, run = given.get("output_file"), given.get("resume") or given.get("output")
        if json is not None:
            if run is not None and run.resolve() == json.resolve() and not atomic_write.is_stream(json):
                raise UsageError(_SAME)
            place = find_place(os.environ)
            if place is None or place.rank == 0:  # who writes it
                atomic_write.check(json, *_JSON, force=given["force"])
        layout = given["layout"]
        if given["as_json"] and layout == NCCL_TESTS:
            raise UsageError(f"--json and --format {NCCL_TESTS} both say what to print: leave one out")
        return cls(_RUN if given["as_json"] else layout, json, given["force"])

    @property
    def as_nccl_tests(self) -> bool:
        """True where nccl-tests' columns are wanted, which are two: out of place and in place."""
        return self.layout == NCCL_TESTS or self.json is not None

    def begun(self, run: Run) -> None:
        """Take note of a run that is about to be measured, or taken up; it fills while it is."""

    def show(self, run: Run) -> None:
        """Print the run, and write its JSON. Raises RunFileError, and UsageError where the layout does not suit it."""
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
        """Return how the command ends once this run is shown."""
        return outcome(run).status

    def saved(self, path: Path) -> None:
        """Say where the run is: on stderr where stdout is a parser's."""
        if self.layout != _TABLE:
            say(f"saved {path}")
        else:
            show_page([f"\nsaved     {one_line(str(path))}"])


# Measure a request, show its page, and say where the run is, also when something ends it early.


_AS_PAGE = Showing()


def measure_and_show(request: Request, path: Path | None, showing: Showing = _AS_PAGE) -> Path | None:
    """Run the measurement to its end, print it, and return where it is saved: in the named file, else in a new one.

    Whatever interrupts it, what was measured is saved and said. Where no file can be made it is printed all the same,
    and None returned; a named one that cannot be written is refused before anything is measured.
    """
    if request.resume and path is not None and options.nothing_left(run := run_file.load(path)):
        say(f"{path} is complete: nothing is left to measure")
        showing.begun(run)
        showing.show(run)
        _leave(run, showing)
        return path
    place = find_place(os.environ)
    if place is not None and place.rank > 0:
        serve_rank_0(place, request)
    advice = ", or name a file with --output FILE"
    path = path or saved_runs.new_run(request.name, request.backend, say, advice=advice)
    begun = None if place else factory.begin(request.backend)
    # Late: numpy and the pages take as long to load as the driver to start, and now they do so side by side.
    from collbench.bench.session import Session

    import_module("collbench.output.text.measured")

    with ExitStack() as stack:
        try:
            world = stack.enter_context(World(place, request, join_seconds(os.environ), say)) if place else None
            session = Session(request, path, say, world, begun)
        except KeyboardInterrupt as error:
            raise Interrupted("interrupted: nothing was measured, nothing is saved") from error
        _measure_and_show(session, request, showing)
    return session.path


def _measure_and_show(session: Session, request: Request, showing: Showing) -> None:
    showing.begun(session.run)
    with session:
        try:
            _measure(session, request)
            showing.show(session.run)
        except OSError as error:  # of stdout: a full disk
            if session.failure is not None:
                raise session.failure from error
            if session.path is not None:
                error.add_note(f"the run is saved: 'collbench show {session.path}' prints it")
            raise
        except KeyboardInterrupt as error:
            raise Interrupted(f"interrupted: {_saved(session)}") from error
        except CollbenchError as error:
            if isinstance(error, BackendError):
                error.exit_code = max(error.exit_code, outcome(session.run).status)
            if session.run.measurements and session.failure is None:
                raise error.retold(f"{error}; {_saved(session)}") from error
            raise
        if session.failure is not None:
            raise session.failure
        if session.path is not None:
            showing.saved(session.path)
    _leave(session.run, showing)


def _leave(run: Run, showing: Showing) -> None:
    """End the command with the status that the run earns, and its reason once more where the reader's eye is."""
    status = showing.status(run)
    if status is ExitStatus.DONE:
        return
    from collbench.output.text.frame import headline

    say(headline(run))
    raise click.exceptions.Exit(status)


def _measure(session: Session, request: Request) -> None:
    with progress_bar(f"measuring {request.name}") as progress:
        session.measure(progress)


def _saved(session: Session) -> str:
    """Return what became of what was measured."""
    points = len(session.run.measurements)
    if points == 0:
        return "nothing was measured, nothing is saved"
    what = f"{points} data points measured so far are"
    if session.failure is not None:
        return f"{what} lost: {session.failure}"
    if session.path is None:
        return f"{what} lost: they could not be saved"
    command, path = session.run.settings.command_name, session.path
    return f"{what} saved as {path}: 'collbench show {path}' prints them, 'collbench {command} --resume {path}' goes on"
