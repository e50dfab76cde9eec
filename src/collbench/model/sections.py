"""The table of what annexes add to a run: which command measures a section, and the package that knows it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from collbench.model.failures import Failure
from collbench.model.run import CommandKind, Flag


class Trial(Protocol):
    """One trial of a result, or of a data point of the main house."""

    @property
    def flags(self) -> tuple[Flag, ...]:
        """What was wrong with the machine meanwhile."""


class Result(Protocol):
    """One item of a section, a dataclass of the annex: what was measured on some devices.

    A trial's lists have a time for each member, besides its flags and what `Results.CALLS` names.
    """

    @property
    def members(self) -> tuple[int, ...]:
        """Positions in the order of ranks."""

    @property
    def trials(self) -> Sequence[Trial]:
        """All trials, none if it failed before the first was finished."""

    @property
    def failure(self) -> Failure | None:
        """Why it was given up."""

    @property
    def wrong_data(self) -> bool:
        """True if something was not what it should be."""


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
