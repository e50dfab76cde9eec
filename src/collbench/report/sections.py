"""What an annex measured, a list in a run, and the annex's module that shows it. Nothing here imports it until then."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

from collbench.model.run import CommandKind, Run

if TYPE_CHECKING:
    from pathlib import Path

    from collbench.report.plot.figure import Named, Picture
    from collbench.report.rows import Column, Row
    from collbench.report.text.layout import Page

# The command that measures it: the name of its list in a run, and the module.
SECTIONS = {
    CommandKind.OVERLAP: ("overlaps", "collbench.overlaps.section"),
    CommandKind.REPLAY: ("replays", "collbench.jobs.replay.section"),
}


@dataclass(frozen=True, slots=True)
class Html:
    """What the HTML page shows: a question of the first screen with its answer, and maps as JSON's own types."""

    question: str
    short: str
    lines: Sequence[str] = ()
    series: Sequence[dict[str, Any]] = ()


# Draws figures of a kind from named runs, one of which has such a section, for these operations and this size.
Draw: TypeAlias = "Callable[[str, Sequence[tuple[Path, Named]], Sequence[str], int | None], Picture]"


class Section(Protocol):
    """What such a module offers."""

    @property
    def HELD(self) -> str:  # noqa: N802
        """What a run holds: "a replay"."""

    @property
    def COLUMNS(self) -> tuple[Column, ...]:  # noqa: N802
        """Those of its rows, after those that the rows of all runs have."""

    def rows(self, run: Run) -> Iterator[Row]:
        """Yield its rows, without the columns that all runs have."""

    def page(self, run: Run) -> Page:
        """Return its page in the terminal."""

    def html(self, run: Run) -> Html:
        """Return what the HTML page shows."""

    def failed(self, run: Run) -> str:
        """Return what failed, the worst first, as a clause; "" where its devices and the kind of trouble say it."""

    @property
    def draw(self) -> Draw | None:
        """What draws its figures; None for a section without."""


def section(run: Run) -> Section | None:
    """Return what shows a run that an annex measured, loaded now; None for a run of the main house."""
    for kind, (name, module) in SECTIONS.items():
        if run.settings.kind is kind or getattr(run, name):
            return cast("Section", import_module(module))
    return None
