"""Measure a request, show its page, and say where the run is, also when something ends it early."""

from __future__ import annotations

from pathlib import Path

from collbench.cli.terminal import progress_bar, say, show_page
from collbench.errors import CollbenchError
from collbench.report.page import page
from collbench.session import Request, Session


def measure_and_show(request: Request, path: Path) -> None:
    """Run the measurement to its end and print it. Whatever interrupts it, what was measured is saved and said."""
    with Session(request, path, say) as session:
        try:
            with progress_bar(f"measuring {request.command[0]}") as progress:
                session.measure(progress)
        except (CollbenchError, KeyboardInterrupt) as error:
            cells = len(session.run.measurements)
            if cells and session.failure is None:
                cause = "interrupted" if isinstance(error, KeyboardInterrupt) else "stopped"
                say(f"{cause}: {cells} cells measured so far are saved as {path}")
            raise
        show_page(page(session.run))
        if session.failure is not None:
            raise session.failure
        show_page([f"\nsaved     {path}"])
