"""The table of what annexes add to a run: which command measures a section, and the package that knows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from collbench.model.run import CommandKind, Result, Trial


class Results(Protocol):
    """What the module `results` of a section's package offers to the reader of run files."""

    RESULT: type[Result]  # of the section's items
    CALLS: str  # the list of a trial that has a time for each call
    check_calls: Callable[[Result, Trial, str], None]  # raises ValueError, which begins with the text, for a wrong list


@dataclass(frozen=True, slots=True)
class Annex:
    """Who knows a section: the command that measures it, and a package with the modules `results` and `section`."""

    kind: CommandKind
    package: str


# By the name of the section, which is a list in the run file.
SECTIONS = {
    "overlaps": Annex(CommandKind.OVERLAP, "collbench.overlaps"),
    "replays": Annex(CommandKind.REPLAY, "collbench.jobs.replay"),
}
