"""`make test-gpu PART=K/N`: the parts of tests/gpu are all of it, none twice, and each is collected from there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.conftest import part_of

ROOT = Path(__file__).parent.parent
TESTS = "".join(f"def test_{number}() -> None:\n    pass\n" for number in range(7))


def collected(folder: Path, *arguments: str) -> list[str]:
    """Return the tests that pytest would run in a copy of the folder's conftest, with others beside it."""
    command = [sys.executable, "-m", "pytest", "gpu", "other", "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run([*command, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 5), done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if "::" in line]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("gpu", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"test_{name}.py").write_text(TESTS, encoding="utf-8")
    conftest = (ROOT / "tests" / "gpu" / "conftest.py").read_text(encoding="utf-8")
    (tmp_path / "gpu" / "conftest.py").write_text(conftest, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = gpu", encoding="utf-8")
    return tmp_path


def test_the_parts_are_all_tests_and_none_twice(folder: Path) -> None:
    every: list[Any] = [*range(7)]
    parts: list[list[Any]] = [part_of(every, f"{number}/3") for number in (1, 2, 3)]
    assert parts == [[0, 3, 6], [1, 4], [2, 5]]
    assert len(collected(folder, "--part", "1/7")) == 1 + 7  # those elsewhere are not divided
    assert len(collected(folder, "-m", "gpu")) == 7


@pytest.mark.parametrize("part", ["4/3", "0/3", "a/b"])
def test_what_is_no_part_is_refused_in_a_line(part: str) -> None:
    with pytest.raises(pytest.UsageError, match=f"--part {part}: write K/N"):
        part_of([], part)
