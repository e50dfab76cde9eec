"""Fixtures of the command-line tests: the program in this process, and simulated GPUs in another."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.program import Program


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Program:
    """The program, in an empty folder and with no saved runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("CUDA_VISIBLE_DEVICES", "COLLBENCH_NCCL"):
        monkeypatch.delenv(name, raising=False)
    return Program(monkeypatch, capsys)


@pytest.fixture(scope="module", autouse=True)
def _loaded(loaded_program: None) -> None:
    """Processes that these tests start have collbench's modules loaded already."""
