"""Tables: what they leave out, and on narrow terminals folded between columns, none lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from collbench.judge.diagnose import Diagnosis
from collbench.judge.summary import rank_summary
from collbench.report import frame, layout, ranking
from collbench.report.layout import Table, drawn, fold, shown
from tests.report.pages import pairs_run

CELLS = st.text(alphabet="abcxyz0123.-", min_size=1, max_size=12)


def table(*columns: tuple[str, ...], keys: int = 1) -> Table:
    """Return a table of columns, each a header and its cells; the first `keys` name its rows."""
    return Table([head for head, *_ in columns], [*zip(*(cells for _, *cells in columns), strict=True)], keys=keys)


WIDE = table(("tier", "1"), ("pair", "GPU0-GPU1"), ("read", "1.5"), ("write", "2.5"), ("order", "3.5"), keys=2)


@pytest.mark.parametrize(
    ("case", "width", "parts"),
    [
        ("it fits exactly", 35, [["tier", "pair", "read", "write", "order"]]),
        ("one column too many", 34, [["tier", "pair", "read", "write"], ["tier", "pair", "order"]]),
        ("room for one", 22, [["tier", "pair", "read"], ["tier", "pair", "write"], ["tier", "pair", "order"]]),
        ("room for none", 3, [["tier", "pair", "read"], ["tier", "pair", "write"], ["tier", "pair", "order"]]),
    ],
)
def test_the_columns_that_name_the_rows_come_again(case: str, width: int, parts: list[list[str]]) -> None:
    assert [list(part.heads) for part in fold(WIDE, width)] == parts


@given(
    st.lists(st.lists(CELLS, min_size=3, max_size=3).map(tuple), min_size=2, max_size=8),
    st.integers(1, 2),
    st.integers(1, 100),
)
def test_every_cell_is_kept_and_every_line_that_can_fit_does(
    columns: list[tuple[str, ...]], keys: int, width: int
) -> None:
    names = min(keys, len(columns) - 1)
    parts = fold(table(*columns, keys=names), width)
    kept = [column for part in parts for column in [*zip(part.heads, *part.rows, strict=True)][names:]]
    assert kept == columns[names:]
    for part in parts:
        assert len(part.heads) == names + 1 or max(map(len, part.lines())) <= width


@pytest.mark.parametrize(
    ("cells", "heads"),
    [(("-", "5.0"), ["size", "launch", "flags"]), (("-", "-"), ["size", "flags"]), (("", "-"), ["size", "flags"])],
)
def test_only_an_optional_column_without_any_figure_is_left_out(cells: tuple[str, str], heads: list[str]) -> None:
    rows = [("1K", cells[0], ""), ("2K", cells[1], "")]
    made = layout.table("size", "launch", "flags", rows=rows, optional=("size", "launch"))
    assert list(made.heads) == heads
    assert [row[0] for row in made.rows] == ["1K", "2K"]


def test_of_a_page_only_figures_are_wider_than_a_narrow_terminal() -> None:
    run = pairs_run(4, lambda a, b: 250.0 if (a, b) == (0, 1) else 300.0)
    parts = [*shown([*frame.run_page(Diagnosis(run)), *ranking.page(Diagnosis(run), rank_summary(run))], verbose=True)]
    figures = "\n".join(part.plain for part in parts if isinstance(part, layout.Figures))
    lines = "\n".join(text.plain for text in drawn(parts, verbose=True, wide=40, columns=40)).splitlines()
    assert {line for line in lines if len(line) > 40} <= {*figures.splitlines()}
    assert len({line for line in lines if len(line) > 30}) > 10


def test_in_a_pipe_each_sentence_is_one_line_whatever_part_it_is() -> None:
    sentence = " ".join(["a word"] * 40)
    found = layout.Found("KIND", "GPU0", "red", [("cause", sentence)], "command")
    parts: list[layout.Part] = [
        layout.prose(sentence, hang=2),
        layout.Lines(f"cause     {sentence}"),
        Text(sentence),
        found,
    ]
    lines = "\n".join(text.plain for text in drawn(parts, verbose=False)).splitlines()
    assert [line for line in lines if sentence in line] == [
        sentence,
        f"cause     {sentence}",
        sentence,
        f"  cause     {sentence}",
    ]
    narrow = "\n".join(text.plain for text in drawn(parts, verbose=False, wide=60, columns=60)).splitlines()
    assert max(map(len, narrow)) <= 60
