"""Wide tables on narrow terminals: the columns that do not fit come in a further table, none is lost."""

from __future__ import annotations

from itertools import takewhile

from rich.table import Column, Table

_GAP = 2  # blanks between two columns, as rich sets them


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
