"""What the commands do: typed functions, which Python users call as `collbench.NAME` (docs/python.md).

A call that takes seconds reports by Notices while it works: nothing by default.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Notices:
    """Where a call reports to.

    `say` takes one line; `progress` takes a title and gives a function that draws (done, total).
    """

    say: Callable[[str], None] = lambda _text: None
    progress: Callable[[str], AbstractContextManager[Callable[[int, int], None]]] = lambda _what: nullcontext(
        lambda _done, _total: None
    )

    def __repr__(self) -> str:
        """Return what a signature shows as the default."""
        return "SILENT" if self == SILENT else "Notices(…)"


SILENT = Notices()
