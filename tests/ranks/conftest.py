"""What the tests of several processes share."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def _loaded(loaded_program: None) -> None:
    """What these tests start has its modules at once."""
