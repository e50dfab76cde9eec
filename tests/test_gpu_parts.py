"""`make test-gpu PART=K/N`: the parts of tests/gpu are all of it, none twice, and each is collected from there."""

from __future__ import annotations

import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest

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
    every = [f"gpu/test_gpu.py::test_{number}" for number in range(7)]
    parts = [collected(folder, "-m", "gpu", "--part", f"{number}/3") for number in (1, 2, 3)]
    assert sorted(chain.from_iterable(parts)) == every
    assert [len(part) for part in parts] == [3, 2, 2]
    assert len(collected(folder, "--part", "1/7")) == 1 + 7  # those elsewhere are not divided
    assert len(collected(folder)) == 14


@pytest.mark.parametrize("part", ["4/3", "a/b"])
def test_what_is_no_part_is_refused_in_a_line(folder: Path, part: str) -> None:
    command = [sys.executable, "-m", "pytest", "gpu", "--part", part]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 4
    assert f"ERROR: --part {part}: write K/N" in done.stderr
