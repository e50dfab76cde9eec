"""Each text is read back by the tool that its users read it with, and holds every value to its last digit."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from markdown_it import MarkdownIt

from collbench.model.operations import Operation
from collbench.report import rows as formats
from collbench.report.rows import COLUMNS, Row, Type, rows
from tests.builders import gpus, measured, run_of
from tests.report.hostile import hostile_run

FOUND = rows(hostile_run())


def known(value: Any) -> Any:
    """Return None for what pandas has in an empty field."""
    import pandas as pd  # type: ignore[import-untyped]

    return None if pd.isna(value) else value


def same(frame: Any, table_rows: list[Row]) -> None:
    """Assert that a frame has the rows' columns and values, exactly."""
    assert list(frame.columns) == [column.name for column in COLUMNS]
    for column in COLUMNS:
        read = [known(value) for value in frame[column.name]]
        assert read == [row[column.name] for row in table_rows], column.name


def test_pandas_reads_the_csv() -> None:
    import pandas as pd

    # CSV has no types: what looks like a number ("13.0", a version) becomes one unless pandas is asked.
    texts = {column.name: str for column in COLUMNS if column.type is Type.TEXT}
    same(pd.read_csv(io.StringIO(formats.as_csv(FOUND)), dtype=texts, keep_default_na=False, na_values=[""]), FOUND)


def test_pandas_reads_the_json() -> None:
    import pandas as pd

    same(pd.read_json(io.StringIO(formats.as_json(FOUND)), dtype=False, precise_float=True), FOUND)


def tables(markdown: str) -> list[list[list[str]]]:
    """Return every table of a Markdown text: rows of cells, as text, the head first."""
    all_tables: list[list[list[str]]] = []
    for token in MarkdownIt("commonmark").enable("table").parse(markdown):
        if token.type == "table_open":
            all_tables.append([])
        elif token.type == "tr_open":
            all_tables[-1].append([])
        elif token.type == "inline" and all_tables and token.level > 3:
            all_tables[-1][-1].append(plain(token.children or []))
    return all_tables


def plain(children: list[Any]) -> str:
    """Return the text of a cell. Fails the test where any of it is markup."""
    assert {child.type for child in children} <= {"text", "text_special"}, children
    return "".join(child.content for child in children)


def heads(markdown: str) -> dict[str, str]:
    """Return what the list above the table says."""
    inline = [
        token for token in MarkdownIt("commonmark").parse(markdown.partition("\n\n")[0]) if token.type == "inline"
    ]
    lines = [plain(token.children or []) for token in inline]
    return dict(line.split(": ", 1) for line in lines)


def test_a_markdown_parser_reads_the_table() -> None:
    markdown = formats.as_markdown(hostile_run(), FOUND)
    (table,) = tables(markdown)
    names, *lines = table
    shared = heads(markdown)
    for row, line in zip(FOUND, lines, strict=True):
        read = dict(zip(names, line, strict=True)) | {name: shared[name] for name in shared if name in row}
        for column in COLUMNS:
            wanted = row[column.name]
            rounded = pytest.approx(wanted, rel=5.1e-3) if isinstance(wanted, float) else wanted
            assert as_read(read.get(column.name, ""), column.type) == rounded, column.name


def test_a_reader_of_markdown_gets_no_digits_that_are_noise() -> None:
    measurement = measured(Operation.CE_WRITE, (0, 1), [1000 / 3, 2000 / 7, 2500 / 6], size=2**20)
    markdown = formats.as_markdown(run_of(gpus(2), [measurement]), rows(run_of(gpus(2), [measurement])))
    figures = [cell for name, cell in heads(markdown + "\n\n").items() if name.endswith(("_gbs", "seconds"))]
    assert len(figures) == 5
    assert all(len(re.sub(r"^0\.0*|e.*|\.", "", cell)) <= 3 for cell in figures), figures  # ±20%


def as_read(cell: str, kind: Type) -> Any:
    """Return a cell as what its column holds."""
    if not cell:
        return None
    if kind is Type.YES_NO:
        return cell == "true"
    return int(cell) if kind is Type.WHOLE else float(cell) if kind is Type.REAL else cell
