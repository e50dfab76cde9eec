"""A run's rows as an object to look at in Python: its text, its HTML in a notebook, and a data frame."""

from __future__ import annotations

import html
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, overload

from collbench.model.errors import UsageError
from collbench.model.run import Run
from collbench.model.units import columns as aligned
from collbench.report.formats import number
from collbench.report.rows import Column, Row, Type, Value, columns_of, rows

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]

_HOW = {"variant": "plain", "numa_node": None, "registration": "none"}  # how an operation ran, by default so
# What the text and the HTML show of a row, where any row has it; a row holds much more.
_SHOWN = (
    *("operation", *_HOW, "compute", "without", "members", "size_bytes", "ranks", "count", "seconds", "algbw_gbs"),
    *("busbw_gbs", "busbw_low_gbs", "busbw_high_gbs", "call_seconds", "recorded_call_seconds", "collective_factor"),
    *("collective_factor_low", "collective_factor_high", "compute_factor", "failure"),
)
_MOST = 20  # rows
_DTYPES = {Type.WHOLE: "Int64", Type.REAL: "float64", Type.YES_NO: "boolean"}  # the first and the last know "missing"


@dataclass(frozen=True, slots=True, repr=False)
class Table(Sequence[Row]):
    """Figures of a run: a row for each data point, a dict by the names of `columns`, as `collbench export` writes it.

    A name ends in its unit (`size_bytes`, `seconds`, `busbw_gbs`); a column also has its type and meaning. What is
    unknown or does not apply is None.
    """

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]

    @classmethod
    def of(cls, run: Run) -> Table:
        """Return a run's table."""
        return cls(columns_of(run), tuple(rows(run)))

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Table: ...
    def __getitem__(self, index: int | slice) -> Row | Table:
        return Table(self.columns, self.rows[index]) if isinstance(index, slice) else self.rows[index]

    def main(self) -> list[Row]:
        """Return of each row what the text shows, without what is unknown."""
        return [{name: row[name] for name in _SHOWN if row.get(name) is not None} for row in self.rows]

    def ends(self) -> Table:
        """Return each operation's fastest and slowest row at its largest size, and all rows that have no time."""
        works: dict[tuple[Value, ...], list[Row]] = defaultdict(list)
        kept = [row for row in self.rows if row.get("seconds") is None]
        for row in self.rows:
            if row.get("seconds") is not None:
                works[tuple(row[name] for name in ("operation", *_HOW))].append(row)
        for of_work in works.values():
            largest = max(float(row["size_bytes"] or 0) for row in of_work)
            by_time = sorted((row for row in of_work if row["size_bytes"] == largest), key=_seconds)
            kept += by_time[:1] + by_time[1:][-1:]
        return Table(self.columns, tuple(kept))

    def __repr__(self) -> str:
        return "\n".join([*aligned(self._cells()), *self._more()]) if self.rows else "no rows"

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        head, *body = self._cells()
        lines = ["".join(f"<th>{html.escape(name)}</th>" for name in head)]
        lines += ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in body]
        table = "".join(f"<tr>{line}</tr>\n" for line in lines)
        return f"<table>\n{table}</table>\n" + "".join(f"<p>{line}</p>\n" for line in self._more())

    def _cells(self) -> list[list[str]]:
        """Return the names of the columns that are shown, and the first rows as texts."""
        names = [name for name in _SHOWN if any(row.get(name) not in (None, _HOW.get(name)) for row in self.rows)]
        return [names, *([_text(row[name]) for name in names] for row in self.rows[:_MOST])]

    def _more(self) -> list[str]:
        left = len(self.rows) - _MOST
        return [f"… and {left} more rows"] if left > 0 else []

    def to_pandas(self) -> pandas.DataFrame:
        """Return a pandas.DataFrame with all columns, typed. Raises Error without pandas."""
        try:
            frames = import_module("pandas")  # late: only users who have it ask for it
        except ImportError as error:
            raise UsageError("to_pandas needs pandas, which is not installed: pip install pandas") from error
        names = [column.name for column in self.columns]
        frame = frames.DataFrame(list(self.rows), columns=names)
        types = {column.name: _DTYPES[column.type] for column in self.columns if column.type in _DTYPES}
        return frame.astype(types)


def _seconds(row: Row) -> float:
    return float(row["seconds"] or 0)


def _text(value: Value) -> str:
    if value is None:
        return ""
    return number(value) if isinstance(value, float) else str(value)
