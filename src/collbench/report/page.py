"""The page that belongs to a run: the one that the command which measured it printed."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType

from collbench.model import Run
from collbench.report import collective, copies, latency, pairs
from collbench.report.outcome import alarm

_PAGES = {"pairs": pairs.page, "check": pairs.page, "copies": copies.page, "latency": latency.page}


def page(run: Run) -> Iterator[RenderableType]:
    """Yield the page's blocks, top to bottom."""
    yield from alarm(run)
    command = run.settings.command[0] if run.settings.command else "pairs"
    yield from _PAGES.get(command, collective.page)(run)
