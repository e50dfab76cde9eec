"""Draws a page as text: sentences wrapped, tables in parts that fit; all that a terminal or a pipe shows of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from rich.text import Text

from collbench.model.units import NAME_WIDE, WIDE, filled, named
from collbench.report.text.layout import Figures, Found, Legend, Lines, Page, Prose, Table, shown


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
