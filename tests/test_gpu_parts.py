"""`make test-gpu PART=K/N`: the parts of tests/gpu are all of it, and none twice."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gpu.conftest import part_of


@pytest.mark.parametrize("part", ["4/3", "0/3", "a/b"])
def test_what_is_no_part_is_refused_in_a_line(part: str) -> None:
    with pytest.raises(pytest.UsageError, match=f"--part {part}: write K/N"):
        part_of([], part)


def test_the_parts_are_all_tests_and_none_twice() -> None:
    every: list[Any] = [*range(7)]
    parts: list[list[Any]] = [part_of(every, f"{number}/3") for number in (1, 2, 3)]
    assert parts == [[0, 3, 6], [1, 4], [2, 5]]
