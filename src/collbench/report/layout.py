"""What a page consists of: texts, tables, findings, on the short page, the whole one, or both; and drawn as text."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile, zip_longest
from typing import TypeAlias

from rich.text import Text

from collbench.model.units import NAME_WIDE, WIDE, columns, filled, named


class Lines(Text):
    """Lines of a name and a sentence, "best 2   GPU0, GPU1: …": a narrow terminal wraps each below its sentence."""


class Prose(Text):
    """A sentence, or several lines of some.

    Wrapped in a terminal, further lines of a sentence begin `hang` columns to the right of the page's edge.
    """

    hang = 0


def prose(text: str, style: str = "", hang: int = 0) -> Prose:
    """Return such a sentence."""
    made = Prose(text, style)
    made.hang = hang
    return made


class Figures(Text):
    """Figures in columns: the one text that no terminal wraps."""


class Legend(Text):
    """The meaning of colors: shown only where there are colors."""


@dataclass(slots=True)
class Table:
    """Rows of texts below their heads; a cell may have several lines.

    Columns `left` (their indices) are aligned left, the others right. The first `keys` columns name the rows: each part
    of the table begins with them where it is folded.
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: Collection[int] = (0,)
    keys: int = 1

    def part(self, kept: Sequence[int]) -> Table:
        """Return a table of only these columns, by index."""
        rows = [[row[column] for column in kept] for row in self.rows]
        left = [place for place, column in enumerate(kept) if column in self.left]
        keys = sum(column < self.keys for column in kept)
        return replace(self, heads=[self.heads[column] for column in kept], rows=rows, left=left, keys=keys)

    def without(self, heads: Collection[str]) -> Table:
        """Return the table without these columns."""
        return self.part([column for column, head in enumerate(self.heads) if head not in heads])

    def lines(self) -> list[str]:
        """Return the table as lines of aligned columns."""
        texts = [[head.strip() for head in self.heads]]  # blanks tell columns of one name apart
        for row in self.rows:
            texts += map(list, zip_longest(*(cell.split("\n") for cell in row), fillvalue=""))
        return columns(texts, right=[at for at, _ in enumerate(self.heads) if at not in self.left])


def table(
    *heads: str,
    rows: Iterable[Iterable[str]] = (),
    left: Collection[str] | None = None,
    keys: int | None = None,
    optional: Collection[str] = (),
) -> Table:
    """Return a table of these rows: columns `left` (None: the first one) are aligned left, the others right.

    Cells that a row lacks at its end are empty. The first `keys` columns name its rows; None: those aligned left at the
    start, or the first. Columns `optional` are left out where they are empty or "-" in all rows.
    """
    is_left = [index == 0 if left is None else head in left for index, head in enumerate(heads)]
    at_start = len([*takewhile(bool, is_left)]) or 1
    at_left = [index for index, aligned in enumerate(is_left) if aligned]
    cells = [tuple(row) for row in rows]
    padded = [(*row, *[""] * (len(heads) - len(row))) for row in cells]
    empty = [head for at, head in enumerate(heads) if head in optional and all(row[at] in ("", "-") for row in padded)]
    return Table(heads, padded, at_left, at_start if keys is None else keys).without(empty)


@dataclass(frozen=True, slots=True)
class Found:
    """A finding: its kind in a style, where it is, fields of a name and a text, and the command that checks it."""

    kind: str
    where: str
    style: str
    fields: Sequence[tuple[str, str]]
    check: str


Part: TypeAlias = Text | Table | Found

# A page has two lengths: the short one fits a screen; --verbose shows what it leaves out.

SECTIONS = ("header", "health", "labels", "matrices", "tables", "tails", "tiers", "fits", "verdicts", "causes", "notes")


@dataclass(frozen=True, slots=True)
class Block:
    """A part of a page, and the name of its section, "" if it has none.

    `verbose`: it is only on the whole page; False: only on the short one.
    """

    section: str
    part: Part
    verbose: bool | None = None


Page = Iterable[Part | Block]


def shown(page: Page, *, verbose: bool) -> Iterator[Part]:
    """Yield what the short or the whole page shows; the short one ends with the sections that it leaves out.

    What is no Block is on both pages.
    """
    left_out = set[str]()
    for block in page:
        if not isinstance(block, Block):
            yield block
        elif block.verbose in (None, verbose):
            yield block.part
        else:
            left_out.add(block.section)
    names = [name for name in SECTIONS if name in left_out]
    if names and not verbose:
        yield Lines(f"more      --verbose also shows {', '.join(names)}")


def whole(section: str, *parts: Part) -> Iterator[Block]:
    """Yield parts that the short page leaves out."""
    return (Block(section, part, verbose=True) for part in parts)


def short(*parts: Part) -> Iterator[Block]:
    """Yield parts that only the short page has."""
    return (Block("", part, verbose=False) for part in parts)


def both(section: str, *parts: Part) -> Iterator[Block]:
    """Yield parts of a section that stand on both pages."""
    return (Block(section, part) for part in parts)


def only(page: Page, section: str) -> Iterator[Part]:
    """Yield the parts of one section of the whole page."""
    return (
        block.part
        for block in page
        if isinstance(block, Block) and block.section == section and block.verbose is not False
    )


def more(count: int, where: str = "") -> Iterator[Text]:
    """Yield a line below a table that leaves out `count` rows; nothing if it has all."""
    if count > 0:
        yield Text(f"and {count} more{where}")


def listed(every: Table, most: int, where: str = "") -> list[Part]:
    """Return the first `most` rows of a table, and below them how many more there are, and `where`."""
    return [replace(every, rows=every.rows[:most]), *more(len(every.rows) - most, where)]


# How a terminal or a pipe shows a page: sentences wrapped, tables in parts that fit.


def drawn(
    page: Page, *, verbose: bool, wide: int = WIDE, columns: int | None = None, colored: bool = False
) -> Iterator[Text]:
    """Yield the texts of a page's parts, top to bottom, with their styles.

    Sentences are `wide` columns wide. `columns` are those of the terminal, None for a pipe: there no line is wrapped,
    because its reader searches lines. The command that checks a finding stays whole, because it is to be copied.
    """
    for part in shown(page, verbose=verbose):
        if isinstance(part, Table):
            folded = [part] if columns is None else fold(part, columns)
            yield Text("\n\n".join("\n".join(part.lines()) for part in folded))
        elif isinstance(part, Found):
            yield _found(part, sys.maxsize if columns is None else wide)
        elif colored or not isinstance(part, Legend):
            hang = part.hang if isinstance(part, Prose) else NAME_WIDE if isinstance(part, Lines) else 0
            yield part if columns is None or isinstance(part, Figures) else _wrapped(part, wide, hang)


def _found(found: Found, width: int) -> Text:
    text = Text(filled(f"{found.kind}  {found.where}", width, rest="  "))
    text.stylize(found.style, 0, len(found.kind))
    for name, words in found.fields:
        text.append(f"\n{named(f'{name:<{NAME_WIDE}}{words}', width - 2)}".replace("\n", "\n  "))
    return text.append(f"\n  {'check':<{NAME_WIDE}}{found.check}")


# Sentences in several lines.


def _wrapped(text: Text, width: int, hang: int) -> Text:
    """Return the lines wrapped to `width` characters with their styles; a longer word stays whole."""
    return Text("\n").join(part for line in text.split("\n", allow_blank=True) for part in _parts(line, width, hang))


def _parts(line: Text, width: int, hang: int) -> Iterator[Text]:
    if len(line) <= width:
        yield line
        return
    end = 0
    for piece in named(line.plain, width, hang).split("\n"):
        text = piece.strip() if end else piece
        start = line.plain.index(text, end)
        end = start + len(text)
        yield Text(piece[: len(piece) - len(text)]).append_text(line[start:end])


# Tables in several parts.


def fold(table: Table, width: int) -> list[Table]:
    """Return tables of at most `width` characters that together hold every column of `table`.

    Each begins with the columns that name the rows. A column that is still too wide gets its own table, which the
    terminal may wrap.
    """
    names = [*range(table.keys)]
    parts: list[list[int]] = []
    for column in range(table.keys, len(table.heads)):
        if parts and max(map(len, table.part([*names, *parts[-1], column]).lines())) <= width:
            parts[-1].append(column)
        else:
            parts.append([column])
    return [table.part([*names, *part]) for part in parts] if len(parts) > 1 else [table]
