"""Rows in the formats of other tools: CSV, JSON records, a Markdown table, Parquet."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Sequence
from importlib import import_module

from collbench.model.capabilities import capabilities
from collbench.model.errors import UsageError
from collbench.model.run import Run
from collbench.model.units import fixed
from collbench.report.rows import COLUMNS, Column, Row, Type, Value, columns_of

# CSV, JSON and Parquet keep all digits of numbers. Markdown is for readers: it has as many as the interval warrants.

_MOST_DIGITS, _FEWEST_DIGITS = 4, 3
_NARROW = 0.005  # half an interval as a share of the rate, up to which the fourth digit means something
_SMALL = 1e-4  # smaller numbers are shorter in scientific notation: 2.1934e-06
# What CommonMark allows a backslash to escape; before letters it would be shown. Inside a word, _ is no markup.
_MARKS = re.compile(r"([\\`*{}\[\]<>()#+!|~&$]|(?<![0-9A-Za-z])_|_(?![0-9A-Za-z]))")
_FORMULA = re.compile(r"[=+\-@\t\r]")  # what a cell begins with that a spreadsheet computes
_LINES = re.compile(r"[\x00-\x1f\x7f\u2028\u2029]")


def as_csv(rows: Sequence[Row], columns: Sequence[Column] = COLUMNS) -> str:
    """Return CSV with a head (RFC 4180, lines end in LF): texts are quoted, numbers are not, None is empty.

    A text that a spreadsheet would take for a formula gets an apostrophe before it.
    """
    file = io.StringIO()
    lines = csv.writer(file, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
    lines.writerow([column.name for column in columns])
    lines.writerows([_no_formula(value) for value in row.values()] for row in rows)
    return file.getvalue()


def _no_formula(value: Value) -> Value:
    return f"'{value}" if isinstance(value, str) and _FORMULA.match(value) else value


def as_json(rows: Sequence[Row]) -> str:
    """Return a JSON list of records, one per line; None is null."""
    return "[\n" + ",\n".join(json.dumps(row, ensure_ascii=False, allow_nan=False) for row in rows) + "\n]\n"


def as_markdown(run: Run, rows: Sequence[Row]) -> str:
    """Return a list of the values that all rows share, the backend first, and a table of the other columns."""
    names = [column.name for column in columns_of(run)]
    shared = [name for name in names if len({row[name] for row in rows}) == 1]
    kept = [name for name in names if name not in shared]
    origin = (
        "sim: SIMULATED, nothing here was measured on a GPU" if capabilities(run.backend).simulated else run.backend
    )
    head = [f"- backend: {_escaped(origin)}"]
    head += [
        f"- {_escaped(name)}: {_shown(rows[0][name], _digits(rows[0]))}"
        for name in shared
        if name != "backend" and rows[0][name] is not None
    ]
    if not kept:  # one data point: the head is all of it
        return "\n".join(head) + "\n"
    table = [_line(map(_escaped, kept)), _line("---" for _ in kept)]
    table += [_line(_shown(row[name], _digits(row)) for name in kept) for row in rows]
    return "\n".join([*head, "", *table]) + "\n"


def _digits(row: Row) -> int:
    """Return how many significant digits a row's numbers have: the last one is noisy."""
    low, middle, high = (row.get(name) for name in ("busbw_low_gbs", "busbw_gbs", "busbw_high_gbs"))
    if not (isinstance(low, float) and isinstance(middle, float) and isinstance(high, float)) or not middle:
        return _FEWEST_DIGITS
    return _MOST_DIGITS if (high - low) / 2 <= _NARROW * middle else _FEWEST_DIGITS


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def number(value: float, digits: int = _MOST_DIGITS) -> str:
    """Return a number for readers: a small one with an exponent."""
    return fixed(value, digits) if abs(value) >= _SMALL or value == 0 else f"{value:.{digits - 1}e}"


def _shown(value: Value, digits: int) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return number(value, digits)
    return _escaped(value) if isinstance(value, str) else str(value)


def _escaped(text: str) -> str:
    """Return text that Markdown renders unchanged: on one line, with all markup escaped."""
    marked = _LINES.sub(lambda match: f"&#{ord(match[0])};", _MARKS.sub(r"\\\1", text))
    return re.sub(r"^ | $", "&#32;", marked)  # Markdown strips blanks at the ends of a cell


def as_parquet(rows: Sequence[Row], columns: Sequence[Column] = COLUMNS) -> bytes:
    """Return the file's bytes; each column has its type, even if all its values are None, and its meaning.

    Raises UsageError without pyarrow.
    """
    try:
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")  # late: an extra
    except ImportError as error:
        raise UsageError(
            "--format parquet needs pyarrow, which is not installed: pip install pyarrow, or write --format csv"
        ) from error
    types = {
        Type.TEXT: arrow.string(),
        Type.WHOLE: arrow.int64(),
        Type.REAL: arrow.float64(),
        Type.YES_NO: arrow.bool_(),
    }
    fields = [arrow.field(one.name, types[one.type], metadata={"meaning": one.meaning}) for one in columns]
    table = arrow.Table.from_pylist(list(rows), schema=arrow.schema(fields))
    sink = arrow.BufferOutputStream()
    parquet.write_table(table, sink)
    return bytes(sink.getvalue())
