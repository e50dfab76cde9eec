"""What the tests of the command line share."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def _loaded(loaded_program: None) -> None:
    """Processes that these tests start have collbench's modules loaded already."""
