"""Blocks that a terminal shows otherwise than a pipe: sentences folded, fewer columns, what colours mean."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text


class Lines(Text):
    """Lines of a name and a sentence, "best 2   GPU0, GPU1: …": a narrow terminal folds each below its sentence."""


class Legend(Text):
    """What colours stand for: shown where there are colours."""


class Summary(Table):
    """A table of which a narrow terminal may leave out columns, where folding would print many rows twice.

    `spare` are the heads of those, the first to go first; `elsewhere` says in a clause where to find them.
    """

    def __init__(self, spare: Sequence[str], elsewhere: str) -> None:
        super().__init__(box=None, pad_edge=False, header_style="")
        self.spare, self.elsewhere = tuple(spare), elsewhere
