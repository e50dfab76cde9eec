"""Curves in characters: every mark on the row of its figure, 80 columns, colours only where a terminal has them."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.report.text.curves import Line, Spread
from collbench.report.text.operation import curves_legend, draw_curves
from tests.report.pages import text

SIZES = tuple(8 * 4**power for power in range(14))  # 8 B to 512 MiB, as `pairs` has them


def line(mark: str, rates: dict[int, float]) -> Line:
    return Line(f"line {mark}", mark, 2, {size: Spread(1e-6, gbs, gbs, gbs) for size, gbs in rates.items()})


def rows(lines: list[Line], limits: list[float]) -> dict[float, str]:
    """Return what is drawn, by the GB/s that stand before each row: those at its lower edge."""
    drawn = draw_curves(lines, limits)
    assert drawn is not None
    split = [row.partition("|") for row in text([drawn]).split("\n") if re.match(r" *[\d.e-]+ \|", row)]
    return {float(label): marks for label, _, marks in split}


def row_of(drawn: dict[float, str], mark: str) -> list[float]:
    """Return the lower edges of the rows that hold a mark."""
    return [edge for edge, marks in drawn.items() if mark in marks]


@pytest.mark.parametrize("gbs", [0.004, 0.9, 12.0, 300.0, 896.0])
def test_a_mark_stands_on_the_row_that_holds_its_figure(gbs: float) -> None:
    drawn = rows([line("1", dict.fromkeys(SIZES, gbs)), line("2", dict.fromkeys(SIZES, gbs / 2))], [])
    edges = sorted(drawn)
    for mark, value in (("1", gbs), ("2", gbs / 2)):
        (low,) = row_of(drawn, mark)
        high = edges[edges.index(low) + 1]
        # A row is four dots high, and a mark stands where the nearest dot is.
        assert low - (high - low) / 8 <= value < high + (high - low) / 8
        assert drawn[low].count(mark) == len(SIZES)


def test_theory_lies_across_above_what_it_limits() -> None:
    drawn = rows([line("1", dict.fromkeys(SIZES, 390.0))], [450.0])
    (theory,) = row_of(drawn, "=")
    (curve,) = row_of(drawn, "1")
    assert theory > curve
    assert drawn[theory].count("=") > 20


def test_ticks_name_sizes() -> None:
    drawn = draw_curves([line("1", {2**20: 1.0, 2**30: 2.0})], [])
    assert drawn is not None
    assert text([drawn]).rstrip("\n").split("\n")[-1].split() == ["|", "1M", "4M", "16M", "64M", "256M", "1G"]


def test_one_size_is_no_curve() -> None:
    assert draw_curves([line("1", {8: 1.0})], [450.0]) is None


@given(
    sizes=st.sets(st.integers(1, 2**42), min_size=2, max_size=20),
    gbs=st.floats(1e-6, 2000.0),
    limit=st.floats(1e-3, 2000.0),
)
def test_any_sizes_and_rates_fit_80_columns_and_keep_their_last_mark(sizes: set[int], gbs: float, limit: float) -> None:
    drawn = draw_curves([line("1", dict.fromkeys(sorted(sizes), gbs))], [limit])
    assert drawn is not None
    plain = text([drawn])
    assert max(map(len, plain.split("\n"))) <= 80
    assert "1" in "".join(row.partition("|")[2] for row in plain.split("\n") if "|" in row)
    assert "\u2800" not in plain


def test_colour_is_the_terminals_choice() -> None:
    drawn = draw_curves([line("1", dict.fromkeys(SIZES, 300.0))], [450.0])
    assert drawn is not None
    assert "\x1b[" not in text([drawn])
    assert "\x1b[" not in text([drawn], terminal=True, no_color=True)
    assert "\x1b[38;5;32m" in text([drawn], terminal=True)


def test_the_legend_says_what_each_mark_is() -> None:
    assert curves_legend([line("1", {8: 1.0})], {"NV18": 450.0, "SYS": 15.75}).split("\n") == [
        "  1 line 1, median of 2",
        "  = theory: 450 GB/s NV18, 15.75 GB/s SYS",
    ]
