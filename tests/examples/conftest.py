from __future__ import annotations

from pathlib import Path

import pytest

from tests.examples.programs import FakeProgram


@pytest.fixture
def fake(tmp_path: Path) -> FakeProgram:
    """A fake `collbench` in an empty folder."""
    return FakeProgram(tmp_path)
