"""Rows as a Parquet file, by pyarrow, which the extra collbench[parquet] brings."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from collbench.errors import UsageError
from collbench.exchange.columns import COLUMNS, Type
from collbench.exchange.rows import Row


def as_parquet(found: Sequence[Row]) -> bytes:
    """Return the file's bytes; each column has its type even where all its fields are unknown, and its meaning.

    Raises UsageError without pyarrow.
    """
    arrow, parquet = _pyarrow()
    types = {
        Type.TEXT: arrow.string(),
        Type.WHOLE: arrow.int64(),
        Type.REAL: arrow.float64(),
        Type.YES_NO: arrow.bool_(),
    }
    fields = [arrow.field(one.name, types[one.type], metadata={"meaning": one.meaning}) for one in COLUMNS]
    table = arrow.Table.from_pylist(list(found), schema=arrow.schema(fields))
    sink = arrow.BufferOutputStream()
    parquet.write_table(table, sink)
    return bytes(sink.getvalue())


def _pyarrow() -> tuple[Any, Any]:
    try:
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")  # late: an extra
    except ImportError as error:
        raise UsageError(
            "--format parquet needs pyarrow, which is not installed: pip install 'collbench[parquet]', "
            "or write --format csv"
        ) from error
    return arrow, parquet
