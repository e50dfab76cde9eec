"""Measure a request, show its page, and say where the run is, also when something ends it early."""

from __future__ import annotations

import os
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import click

from collbench import runfile
from collbench.backends import opening
from collbench.cli import places, resuming
from collbench.cli.following import serve_rank_0
from collbench.cli.leaving import Interrupted
from collbench.cli.showing import Showing
from collbench.cli.terminal import progress_bar, say
from collbench.errors import BackendError, CollbenchError, ExitStatus
from collbench.model import Run
from collbench.outcome import outcome
from collbench.planning import Request
from collbench.world.environment import find_place, join_seconds
from collbench.world.opening import World

if TYPE_CHECKING:
    from collbench.session import Session

_AS_PAGE = Showing()


def measure_and_show(request: Request, path: Path | None, showing: Showing = _AS_PAGE) -> Path | None:
    """Run the measurement to its end, print it, and return where it is saved: in the named file, else in a new one.

    Whatever interrupts it, what was measured is saved and said. Where no file can be made it is printed all the same,
    and None returned; a named one that cannot be written is refused before anything is measured.
    """
    if request.resume and path is not None and resuming.nothing_left(run := runfile.load(path)):
        say(f"{path} is complete: nothing is left to measure")
        showing.begun(run)
        showing.show(run)
        _leave(run, showing)
        return path
    place = find_place(os.environ)
    if place is not None and place.rank > 0:
        serve_rank_0(place, request)
    path = path or places.new_run(request.command[0], request.backend, advice=", or name a file with --output FILE")
    begun = None if place else opening.begin(request.backend)
    # Late: numpy and the pages take as long to load as the driver to start, and now they do so side by side.
    from collbench.session import Session

    import_module("collbench.report.page")

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
    from collbench.report.outcome import headline

    say(headline(run))
    raise click.exceptions.Exit(status)


def _measure(session: Session, request: Request) -> None:
    with progress_bar(f"measuring {request.command[0]}") as progress:
        session.measure(progress)


def _saved(session: Session) -> str:
    """Return what became of what was measured."""
    cells = len(session.run.measurements)
    if cells == 0:
        return "nothing was measured, nothing is saved"
    what = f"{cells} cells measured so far are"
    if session.failure is not None:
        return f"{what} lost: {session.failure}"
    if session.path is None:
        return f"{what} lost: they could not be saved"
    command, path = session.run.settings.command[0], session.path
    return f"{what} saved as {path}: 'collbench show {path}' prints them, 'collbench {command} --resume {path}' goes on"
