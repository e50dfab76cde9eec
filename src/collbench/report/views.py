"""What pages show of annexes: a run that one measured, by its module `view`, and what P2P does on each link.

Nothing here imports an annex until then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

from collbench import annexes
from collbench.model.errors import ExitStatus
from collbench.model.run import Run

if TYPE_CHECKING:
    from collbench.report.layout import Page
    from collbench.report.rows import Column, Row


@dataclass(frozen=True, slots=True)
class Html:
    """What the first screen of the HTML page shows: a question with its answer.

    `state` colors it: "ok", "warn" or "hard".
    """

    question: str
    short: str
    lines: Sequence[str] = ()
    state: str = ""


class View(Protocol):
    """What such a module offers."""

    HELD: str  # what a run holds: "a replay"
    COLUMNS: tuple[Column, ...]  # of its rows, after those that the rows of all runs have
    SHOWN: tuple[str, ...]  # of these, what the text of a table shows where any row has it
    rows: Callable[[Run], Iterator[Row]]  # without the columns that all runs have
    page: Callable[[Run], Page]  # in the terminal
    html: Callable[[Run], Html]
    failed: Callable[[Run], str]  # the worst that failed, as a clause; "" where devices and a kind of trouble say it


def view(run: Run) -> View | None:
    """Return what shows a run that an annex measured, loaded now; None for a run of the main house."""
    _, package = annexes.RUNS.get(run.settings.kind, ("", ""))
    return cast("View", annexes.load(f"{package}.view")) if package else None


@dataclass(frozen=True, slots=True)
class PeerAccess:
    """What the annex of P2P found on the links of some devices, and what it makes of a command's status.

    `words` say whether P2P works, `finding` the same with the surest cause, as a clause. `unanswered`: no more is known
    than before. `part` is what the page of `check` shows, `page` that of `check --map-p2p`, and `json` has all of it
    (docs/p2p.md).
    """

    status: ExitStatus
    words: str
    finding: str
    unanswered: bool
    part: Page
    page: Page
    json: dict[str, Any]
