"""Precisions and durations as users type them."""

from __future__ import annotations

import pytest

from collbench.model.errors import UsageError
from collbench.model.units import parse_budget, parse_precision


@pytest.mark.parametrize(
    ("text", "ratio"), [("1%", 0.01), ("0.5%", 0.005), ("0.01", 0.01), (".02", 0.02), (" 3% ", 0.03), ("50.%", 0.5)]
)
def test_precisions(text: str, ratio: float) -> None:
    assert parse_precision(text) == pytest.approx(ratio)


@pytest.mark.parametrize("text", ["0", "0%", "100%"])
def test_the_ends_are_no_precisions(text: str) -> None:
    with pytest.raises(UsageError, match=f"--precision {text} is not above 0 and below 100%: write 1%"):
        parse_precision(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("10s", 10), ("500ms", 0.5), ("2min", 120), ("1.5s", 1.5), ("0.25min", 15), (".5s", 0.5)]
)
def test_budgets(text: str, seconds: float) -> None:
    assert parse_budget(text) == pytest.approx(seconds)
