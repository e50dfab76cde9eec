"""What a call that takes seconds reports while it works: nothing by default."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collbench.bench.session import Session
    from collbench.model.run import Run


@contextmanager
def _unseen(_what: str) -> Iterator[Callable[[int, int], None]]:
    yield lambda _done, _total: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Notices:
    """Where a call reports to: `say` takes one line, `progress` draws how far (done, total) it is with what it names.

    The methods report how far a measurement is; these do nothing.
    """

    say: Callable[[str], None] = lambda _text: None
    progress: Callable[[str], AbstractContextManager[Callable[[int, int], None]]] = _unseen

    def starting(self) -> None:
        """Use the moment in which the worker starts."""

    def begun(self, session: Session) -> None:
        """Take note of a session that is about to measure: its run fills meanwhile."""

    def measured(self, run: Run) -> None:
        """Take a run that is done, while its worker ends."""


SILENT = Notices()
