"""How a call that takes seconds speaks while it works: in silence, unless its caller listens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass


def _silent(_text: str) -> None:
    """Say nothing."""


@contextmanager
def _unseen(_what: str) -> Iterator[Callable[[int, int], None]]:
    yield lambda _done, _total: None


@dataclass(frozen=True, slots=True)
class Notices:
    """Whom a call speaks to: `say` takes one line, `progress` draws how far (done, total) it is with what it names."""

    say: Callable[[str], None] = _silent
    progress: Callable[[str], AbstractContextManager[Callable[[int, int], None]]] = _unseen


SILENT = Notices()
