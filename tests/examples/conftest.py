from __future__ import annotations

from pathlib import Path

import pytest

from tests.examples.programs import Stand


@pytest.fixture
def stand(tmp_path: Path) -> Stand:
    """A fake `collbench` in an empty folder."""
    return Stand(tmp_path)
