"""What an annex measured, a list in a run, and the annex's module that shows it. Nothing here imports it until then."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

from collbench.model.run import CommandKind, Run

if TYPE_CHECKING:
    from collbench.report.rows import Column, Row
    from collbench.report.text.layout import Page

# The command that measures it: the name of its list in a run, and the module.
SECTIONS = {
    CommandKind.REPLAY: ("replays", "collbench.jobs.replay.section"),
}


@dataclass(frozen=True, slots=True)
class Html:
    """What the HTML page shows: a question of the first screen with its answer, and maps as JSON's own types."""

    question: str
    short: str
    lines: Sequence[str] = ()
    series: Sequence[dict[str, Any]] = ()


class Section(Protocol):
    """What such a module offers."""

    HELD: str  # what a run holds: "a replay"
    COLUMNS: tuple[Column, ...]  # of its rows, after those that the rows of all runs have
    rows: Callable[[Run], Iterator[Row]]  # without the columns that all runs have
    page: Callable[[Run], Page]  # in the terminal
    html: Callable[[Run], Html]


def section(run: Run) -> Section | None:
    """Return what shows a run that an annex measured, loaded now; None for a run of the main house."""
    for kind, (name, module) in SECTIONS.items():
        if run.settings.kind is kind or getattr(run, name):
            return cast("Section", import_module(module))
    return None
