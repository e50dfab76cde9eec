"""Tables of ratios, intervals and bars, as text and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

MET, MISSED, NO_BAR = "met", "MISSED", ""


@dataclass(slots=True)
class Table:
    """One part's result: a heading, how to read it, and rows of text. The last column is the verdict."""

    title: str
    note: str
    header: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)

    @property
    def missed(self) -> int:
        """How many rows miss their bar."""
        return sum(row[-1] == MISSED for row in self.rows)


def interval(ratios: Sequence[float]) -> str:
    """Return the median of ratios and, in brackets, the smallest and the largest."""
    return f"{median(ratios):.4f} ({min(ratios):.4f}–{max(ratios):.4f})"


def within(ratios: Sequence[float], bar: float) -> str:
    """Return MET if the median ratio lies within 1 ± `bar`, else MISSED."""
    return MET if abs(median(ratios) - 1) <= bar else MISSED


def not_slower(ratios: Sequence[float], bar: float) -> str:
    """Return MET if rates reach the peer's: the median ratio is 1 − `bar` or more, and one repeat reaches 1."""
    return MET if median(ratios) >= 1 - bar and max(ratios) >= 1 else MISSED


def at_most(value: float, bar: float) -> str:
    """Return MET if a value is at most its bar, else MISSED."""
    return MET if value <= bar else MISSED


def text(table: Table) -> str:
    """Return the table for a terminal: the first column to the left, the rest to the right."""
    widths = [max(len(row[i]) for row in (table.header, *table.rows)) for i in range(len(table.header))]
    lines = [
        "  ".join(
            column.ljust(width) if i == 0 else column.rjust(width) for i, (column, width) in enumerate(row_and_widths)
        ).rstrip()
        for row_and_widths in ([*zip(row, widths, strict=True)] for row in (table.header, *table.rows))
    ]
    return "\n".join((f"== {table.title}", table.note, "", *lines, ""))


def markdown(table: Table) -> str:
    """Return the table as Markdown."""
    rule = "|" + "|".join("---" if i == 0 else "---:" for i in range(len(table.header))) + "|"
    lines = [f"| {' | '.join(row)} |" for row in (table.header, *table.rows)]
    return "\n".join((f"## {table.title}", "", table.note, "", lines[0], rule, *lines[1:], ""))


def size_name(size: int) -> str:
    """Return bytes in the largest binary unit that divides them: 1048576 → "1M"."""
    for shift, letter in ((30, "G"), (20, "M"), (10, "K")):
        if size >= 1 << shift and size % (1 << shift) == 0:
            return f"{size >> shift}{letter}"
    return str(size)
