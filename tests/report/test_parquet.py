"""pandas reads the Parquet file back, and pyarrow its types."""

from __future__ import annotations

import io

from collbench.report.rows import COLUMNS, Type, as_parquet, rows
from tests.report.hostile import hostile_run
from tests.report.test_text import same

TYPES = {Type.TEXT: "string", Type.WHOLE: "int64", Type.REAL: "double", Type.YES_NO: "bool"}


def test_pandas_reads_every_value() -> None:
    import pandas as pd  # type: ignore[import-untyped]

    table_rows = rows(hostile_run())
    same(pd.read_parquet(io.BytesIO(as_parquet(table_rows)), dtype_backend="numpy_nullable"), table_rows)


def test_a_column_has_its_type_even_where_it_is_empty() -> None:
    import pyarrow.parquet  # type: ignore[import-untyped]

    failed = rows(hostile_run())[-1:]
    schema = pyarrow.parquet.read_schema(io.BytesIO(as_parquet(failed)))
    assert {field.name: str(field.type) for field in schema} == {one.name: TYPES[one.type] for one in COLUMNS}
    assert schema.field("seconds").metadata == {b"meaning": b"s; one iteration, median of the trials"}
