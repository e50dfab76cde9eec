"""Marks every test here as one that needs GPUs, and runs a part of them; which modules are skipped machine.py says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --part."""
    parser.addoption(
        "--part", metavar="K/N", help="Run only the K-th of N parts that take about as long as each other."
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let `-m gpu`, `-m "not gpu"` and `--part` choose."""
    gpu_tests = [item for item in items if Path(__file__).parent in item.path.parents]
    for item in gpu_tests:
        item.add_marker(pytest.mark.gpu)
    if part := config.getoption("--part", default=None):
        left_out = set(gpu_tests) - set(part_of(gpu_tests, part))
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=list(left_out))


def part_of(tests: list[pytest.Item], part: str) -> list[pytest.Item]:
    """Return every N-th test from the K-th on: tests that take long stand side by side, one for each parameter."""
    number, parts = map(int, match.groups()) if (match := re.fullmatch(r"(\d{1,3})/(\d{1,3})", part)) else (0, 0)
    if not 1 <= number <= parts:
        raise pytest.UsageError(f"--part {part}: write K/N, as in 1/3 for the first of three parts")
    return tests[number - 1 :: parts]
