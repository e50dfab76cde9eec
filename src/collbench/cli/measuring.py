"""Measure a request, show its page, and say where the run is, also when something ends it early."""

from __future__ import annotations

from pathlib import Path

from collbench.cli.leaving import Interrupted
from collbench.cli.terminal import progress_bar, say, show_page
from collbench.errors import CollbenchError
from collbench.report.page import page
from collbench.session import Request, Session


def measure_and_show(request: Request, path: Path) -> None:
    """Run the measurement to its end and print it. Whatever interrupts it, what was measured is saved and said."""
    try:
        session = Session(request, path, say)
    except KeyboardInterrupt as error:
        raise Interrupted("interrupted: nothing was measured, nothing is saved") from error
    with session:
        try:
            _measure(session, request)
            show_page(page(session.run))
        except KeyboardInterrupt as error:
            raise Interrupted(f"interrupted: {_saved(session, path)}") from error
        except CollbenchError:
            if session.run.measurements and session.failure is None:
                say(f"stopped: {_saved(session, path)}")
            raise
        if session.failure is not None:
            raise session.failure
        show_page([f"\nsaved     {path}"])


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
    return f"{what} saved as {path}: 'collbench show {path}' prints them"
