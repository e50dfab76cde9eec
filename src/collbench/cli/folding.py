"""Pages on narrow terminals: sentences in several lines; of a table the columns that do not fit in a further one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

from rich.console import RenderableType
from rich.table import Column, Table
from rich.text import Text

from collbench.report.blocks import Lines, Summary
from collbench.report.prose import named

_GAP = 2  # blanks between two columns, as rich sets them
# Up to so many rows a second table is easier to read than to look for.
_FEW_ROWS = 8


def folded(lines: Lines, width: int) -> Text:
    """Return the lines in at most `width` characters each, but for words that are longer; styles stay."""
    return Text("\n").join(part for line in lines.split("\n", allow_blank=True) for part in _folded(line, width))


def _folded(line: Text, width: int) -> Iterator[Text]:
    if len(line) <= width:
        yield line
        return
    end = 0
    for told in named(line.plain, width).split("\n"):
        words = told.strip() if end else told
        start = line.plain.index(words, end)
        end = start + len(words)
        yield Text(told[: len(told) - len(words)]).append_text(line[start:end])


def trim(table: Summary, width: int) -> list[RenderableType]:
    """Return a table of many rows without as many of its spare columns as it takes to fit, and what was left out.

    Folded, if that is not enough, and where there are few rows.
    """
    spare = [column for name in table.spare for column in table.columns if column.header == name]
    if table.row_count <= _FEW_ROWS:
        return list(fold(table, width))
    kept, gone = list(table.columns), list[str]()
    while spare and _width(kept) > width:
        gone.append(str(spare[0].header))
        kept.remove(spare.pop(0))
    told = [named(f"not here  {', '.join(reversed(gone))}: {table.elsewhere}", width)] if gone else []
    return [*fold(_of(kept) if gone else table, width), *map(Text, told)]


def fold(table: Table, width: int) -> list[Table]:
    """Return tables of at most `width` characters that together hold every column of `table`.

    Each begins with the columns that name the rows: the left-aligned ones at the start, or the first. A column that is
    too wide even so has a table to itself, which the terminal may wrap.
    """
    keys = len(list(takewhile(lambda column: column.justify == "left", table.columns))) or 1
    names, values = table.columns[:keys], table.columns[keys:]
    parts: list[list[Column]] = []
    for column in values:
        if parts and _width([*names, *parts[-1], column]) <= width:
            parts[-1].append(column)
        else:
            parts.append([column])
    return [_of([*names, *part]) for part in parts] if len(parts) > 1 else [table]


def _width(columns: list[Column]) -> int:
    cells = ((str(column.header), *map(str, column.cells)) for column in columns)
    return sum(max(map(len, texts)) for texts in cells) + _GAP * (len(columns) - 1)


def _of(columns: list[Column]) -> Table:
    part = Table(box=None, pad_edge=False, header_style="")
    for column in columns:
        part.add_column(column.header, justify=column.justify)
    for row in zip(*(column.cells for column in columns), strict=True):
        part.add_row(*row)
    return part
