"""Measure a request, show its page, and say where the run is, also when something ends it early."""

from __future__ import annotations

import os
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from collbench import runfile
from collbench.backends import opening
from collbench.cli import resuming
from collbench.cli.following import serve_rank_0
from collbench.cli.leaving import Interrupted
from collbench.cli.showing import Showing
from collbench.cli.terminal import progress_bar, say
from collbench.errors import CollbenchError
from collbench.planning import Request
from collbench.world.environment import find_place
from collbench.world.opening import World

if TYPE_CHECKING:
    from collbench.session import Session

_AS_PAGE = Showing()


def measure_and_show(request: Request, path: Path, showing: Showing = _AS_PAGE) -> None:
    """Run the measurement to its end and print it. Whatever interrupts it, what was measured is saved and said."""
    if request.resume and resuming.nothing_left(run := runfile.load(path)):
        say(f"{path} is complete: nothing is left to measure")
        showing.show(run)
        return
    place = find_place(os.environ)
    if place is not None and place.rank > 0:
        serve_rank_0(place, request)
    begun = None if place else opening.begin(request.backend)
    # Late: numpy and the pages take as long to load as the driver to start, and now they do so side by side.
    from collbench.session import Session

    import_module("collbench.report.page")

    with ExitStack() as stack:
        try:
            world = stack.enter_context(World(place, request)) if place else None
            session = Session(request, path, say, world, begun)
        except KeyboardInterrupt as error:
            raise Interrupted("interrupted: nothing was measured, nothing is saved") from error
        _measure_and_show(session, request, path, showing)


def _measure_and_show(session: Session, request: Request, path: Path, showing: Showing) -> None:
    with session:
        try:
            _measure(session, request)
            showing.show(session.run)
        except OSError as error:  # of stdout: a full disk, or a reader that has gone
            if session.failure is not None:
                raise session.failure from error
            error.add_note(f"the run is saved: 'collbench show {path}' prints it")
            raise
        except KeyboardInterrupt as error:
            raise Interrupted(f"interrupted: {_saved(session, path)}") from error
        except CollbenchError as error:
            if session.run.measurements and session.failure is None:
                raise type(error)(f"{error}; {_saved(session, path)}") from error
            raise
        if session.failure is not None:
            raise session.failure
        showing.saved(path)


def _measure(session: Session, request: Request) -> None:
    with progress_bar(f"measuring {request.command[0]}") as progress:
        session.measure(progress)


def _saved(session: Session, path: Path) -> str:
    """Return what became of what was measured."""
    cells = len(session.run.measurements)
    if cells == 0:
        return "nothing was measured, nothing is saved"
    what = f"{cells} cells measured so far are"
    if session.failure is not None:
        return f"{what} lost: {session.failure}"
    command = session.run.settings.command[0]
    return f"{what} saved as {path}: 'collbench show {path}' prints them, 'collbench {command} --resume {path}' goes on"
