"""Marks every test here as one that needs GPUs; which modules are skipped, and why, machine.py says."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let `-m gpu` and `-m "not gpu"` choose."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.gpu)
