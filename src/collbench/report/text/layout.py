"""The parts of a page: blocks of the short and the whole page, wrapped sentences, folded tables, shades."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import RenderableType
from rich.table import Column, Table
from rich.text import Text

from collbench.report.prose import NAME_WIDE, filled, named

# A page has two lengths: the short one fits a screen; --verbose shows what it leaves out.

SECTIONS = ("header", "health", "labels", "matrices", "tables", "tails", "tiers", "fits", "verdicts", "notes")


class On(Enum):
    """The length of page that has a block."""

    BOTH = "both"
    SHORT = "short"
    WHOLE = "whole"


@dataclass(frozen=True, slots=True)
class Block:
    """A part of a page, and the name of its section, "" if it has none."""

    section: str
    drawn: RenderableType
    on: On = On.BOTH


Page = Iterable["RenderableType | Block"]


def shown(page: Page, *, verbose: bool) -> Iterator[RenderableType]:
    """Yield what the short or the whole page shows; the short one ends with the sections that it leaves out.

    What is no Block is on both pages.
    """
    hidden, left_out = On.SHORT if verbose else On.WHOLE, set[str]()
    for block in page:
        if not isinstance(block, Block):
            yield block
        elif block.on is not hidden:
            yield block.drawn
        else:
            left_out.add(block.section)
    names = [name for name in SECTIONS if name in left_out]
    if names and not verbose:
        yield Lines(f"more      --verbose also shows {', '.join(names)}")


def whole(section: str, *blocks: RenderableType) -> Iterator[Block]:
    """Yield blocks that the short page leaves out."""
    return (Block(section, block, On.WHOLE) for block in blocks)


def short(*blocks: RenderableType) -> Iterator[Block]:
    """Yield blocks that only the short page has."""
    return (Block("", block, On.SHORT) for block in blocks)


def both(section: str, *blocks: RenderableType) -> Iterator[Block]:
    """Yield blocks of a section that stand on both pages."""
    return (Block(section, block) for block in blocks)


def more(count: int, where: str = "") -> Iterator[Text]:
    """Yield a line below a table that leaves out `count` rows; nothing if it has all."""
    if count > 0:
        yield Text(f"and {count} more{where}")


def only(page: Page, section: str) -> Iterator[RenderableType]:
    """Yield the blocks of one section of the whole page."""
    return (one.drawn for one in page if isinstance(one, Block) and one.section == section and one.on is not On.SHORT)


# Tables.

_PLAIN: dict[str, Any] = {"box": None, "pad_edge": False, "header_style": ""}  # of a table: no lines, no colors


class Folding(Table):
    """A table whose first `keys` columns name its rows: each part of it begins with them where it is folded.

    Of many rows a narrow terminal leaves out columns instead of printing all rows twice: `spare` are the heads of these
    columns, the first to go first; `elsewhere` says in a clause where to find them.
    """

    def __init__(self, keys: int, spare: Sequence[str], elsewhere: str) -> None:
        super().__init__(**_PLAIN)
        self.keys, self.spare, self.elsewhere = keys, spare, elsewhere


def table(
    *heads: str,
    rows: Iterable[Iterable[str]] = (),
    left: Collection[str] | None = None,
    keys: int | None = None,
    spare: Sequence[str] = (),
    elsewhere: str = "",
) -> Folding:
    """Return a table of these rows: columns `left` (None: the first one) are aligned left, the others right.

    The first `keys` columns name its rows; None: those aligned left at the start, or the first. The rest is as in
    Folding.
    """
    is_left = [index == 0 if left is None else head in left for index, head in enumerate(heads)]
    at_start = len([*takewhile(bool, is_left)]) or 1
    filled = Folding(at_start if keys is None else keys, spare, elsewhere)
    for head, aligned in zip(heads, is_left, strict=True):
        filled.add_column(head, justify="left" if aligned else "right")
    for row in rows:
        filled.add_row(*row)
    return filled


def listed(
    *heads: str, rows: Sequence[Iterable[str]], most: int, where: str = "", **style: Any
) -> list[RenderableType]:
    """Return the table of the first `most` rows, and below it how many more there are, and `where`."""
    return [table(*heads, rows=rows[:most], **style), *more(len(rows) - most, where)]


# Narrow terminals: sentences in several lines, tables in several parts.

_GAP = 2  # blanks between two columns, as rich sets them
_FEW_ROWS = 8  # up to this many rows, a second table with the remaining columns is easy to read


def folded(lines: Lines, width: int) -> Text:
    """Return the lines wrapped to `width` characters with their styles; a longer word stays whole."""
    return Text("\n").join(part for line in lines.split("\n", allow_blank=True) for part in _folded(line, width))


def _folded(line: Text, width: int) -> Iterator[Text]:
    if len(line) <= width:
        yield line
        return
    end = 0
    for piece in named(line.plain, width).split("\n"):
        text = piece.strip() if end else piece
        start = line.plain.index(text, end)
        end = start + len(text)
        yield Text(piece[: len(piece) - len(text)]).append_text(line[start:end])


def trim(table: Folding, width: int) -> list[RenderableType]:
    """Return a table without as many of its spare columns as `width` requires, and a line that names these.

    The table is folded if that does not suffice, or if it has few rows.
    """
    spare = [column for name in table.spare for column in table.columns if column.header == name]
    if table.row_count <= _FEW_ROWS:
        spare = []
    kept, hidden = list(table.columns), list[str]()
    while spare and _width(kept) > width:
        hidden.append(str(spare[0].header))
        kept.remove(spare.pop(0))
    pieces = [named(f"hidden    {', '.join(reversed(hidden))}: {table.elsewhere}", width)] if hidden else []
    return [*fold(_of(kept, table.keys) if hidden else table, width), *map(Text, pieces)]


def fold(table: Folding, width: int) -> list[Folding]:
    """Return tables of at most `width` characters that together hold every column of `table`.

    Each begins with the columns that name the rows. A column that is still too wide gets its own table, which the
    terminal may wrap.
    """
    names, values = table.columns[: table.keys], table.columns[table.keys :]
    parts: list[list[Column]] = []
    for column in values:
        if parts and _width([*names, *parts[-1], column]) <= width:
            parts[-1].append(column)
        else:
            parts.append([column])
    return [_of([*names, *part], table.keys) for part in parts] if len(parts) > 1 else [table]


def _width(columns: list[Column]) -> int:
    cells = ((str(column.header), *map(str, column.cells)) for column in columns)
    lines = ((line for text in texts for line in text.split("\n")) for texts in cells)
    return sum(max(map(len, texts)) for texts in lines) + _GAP * (len(columns) - 1)


def _of(columns: list[Column], keys: int) -> Folding:
    part = Folding(keys, (), "")
    for column in columns:
        part.add_column(column.header, justify=column.justify)
    for row in zip(*(column.cells for column in columns), strict=True):
        part.add_row(*row)
    return part


# Blocks that look different in a terminal than in a pipe.


class Lines(Text):
    """Lines of a name and a sentence, "best 2   GPU0, GPU1: …": a narrow terminal wraps each below its sentence."""


@dataclass(frozen=True, slots=True)
class Found:
    """A finding: its kind in a style, where it is, fields of a name and a text, and the command that checks it.

    In a terminal it is `width` columns wide, except for the command, which is to be copied.
    """

    kind: str
    where: str
    style: str
    fields: Sequence[tuple[str, str]]
    check: str
    width: int

    def __rich__(self) -> Text:
        head = Text(filled(f"{self.kind}  {self.where}", self.width, rest="  "))
        head.stylize(self.style, 0, len(self.kind))
        fields = [named(f"{name:<{NAME_WIDE}}{text}", self.width - 2) for name, text in self.fields]
        lines = [*fields, f"{'check':<{NAME_WIDE}}{self.check}"]
        return Text("\n").join([head, *(Text(f"  {line}".replace("\n", "\n  ")) for line in lines)])


class Legend(Text):
    """The meaning of colors: shown only where there are colors."""


# The shades of all matrices.

# Viridis in 256-color numbers, which every terminal with colors has; safe for the color-blind, because lightness rises
# with the value. Each shade begins at a share of the best.
_RAMP = (
    (0.98, "black on color(227)"),
    (0.95, "black on color(149)"),
    (0.90, "black on color(77)"),
    (0.75, "black on color(36)"),
    (0.50, "white on color(31)"),
    (0.25, "white on color(60)"),
    (0.00, "white on color(54)"),
)
_ALIKE = 0.02  # figures within 2% have one shade, even if a step lies between them


def styles(shares: NDArray[np.float64]) -> NDArray[np.object_]:
    """Return the style of each share of the best, of any shape; "" for NaN.

    From the best down, shares within 2% of the first of their group have its shade.
    """
    shades = np.full(shares.shape, "", dtype=object)
    left = np.isfinite(shares)
    while left.any():
        top = shares[left].max()
        group = left & (shares >= top * (1 - _ALIKE))
        shades[group] = next(style for least, style in _RAMP if top >= least)
        left &= ~group
    return shades


def legend(before: str = "") -> Legend:
    """Return a line that explains the shades; `before` are line breaks."""
    text = Legend(f"{before}shade: share of the best")
    for share, style in _RAMP:
        text.append(" ")
        text.append(f" {share:.0%} " if share else " less ", style=style)
    return text
