"""The fake NVIDIA libraries, built once a session."""

from __future__ import annotations

import pytest

from tests.native.fakes import Fakes, build


@pytest.fixture(scope="session")
def fakes(tmp_path_factory: pytest.TempPathFactory) -> Fakes:
    """Simulated GPUs that have everything."""
    return build(tmp_path_factory.mktemp("fakes"))
