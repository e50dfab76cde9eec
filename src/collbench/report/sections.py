"""What shows a section of a run: the annex's module `section`, which nothing here imports until then."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

from collbench import annexes
from collbench.model.run import Run

if TYPE_CHECKING:
    from collbench.report.rows import Column, Row
    from collbench.report.text.layout import Page


@dataclass(frozen=True, slots=True)
class Html:
    """What the first screen of the HTML page shows: a question with its answer.

    `state` colors it: "ok", "warn" or "hard".
    """

    question: str
    short: str
    lines: Sequence[str] = ()
    state: str = ""


class Section(Protocol):
    """What such a module offers."""

    HELD: str  # what a run holds: "a replay"
    COLUMNS: tuple[Column, ...]  # of its rows, after those that the rows of all runs have
    rows: Callable[[Run], Iterator[Row]]  # without the columns that all runs have
    page: Callable[[Run], Page]  # in the terminal
    html: Callable[[Run], Html]
    failed: Callable[[Run], str]  # the worst that failed, as a clause; "" where devices and a kind of trouble say it


def section(run: Run) -> Section | None:
    """Return what shows a run that an annex measured, loaded now; None for a run of the main house."""
    _, package = annexes.RUNS.get(run.settings.kind, ("", ""))
    return cast("Section", annexes.load(f"{package}.section")) if package else None
