"""What a call that takes seconds reports while it works: nothing by default."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass


def _unheard(_text: str) -> None:
    pass


@contextmanager
def _unseen(_what: str) -> Iterator[Callable[[int, int], None]]:
    yield lambda _done, _total: None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Notices:
    """Where a call reports to.

    `say` takes one line; `progress` takes a title and gives a function that draws (done, total).
    """

    say: Callable[[str], None] = _unheard
    progress: Callable[[str], AbstractContextManager[Callable[[int, int], None]]] = _unseen

    def __repr__(self) -> str:
        """Return what a signature shows as the default."""
        return "SILENT" if self == SILENT else "Notices(…)"


SILENT = Notices()
