"""Tests that run in several processes at once: each runs once, and none that fails or ends its process is missed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = """import os, pytest, time
@pytest.fixture
def broken():
    yield
    raise OSError("late")
def test_ends_badly(broken): ...
@pytest.mark.parametrize("number", range(30))
def test_passes(number, tmp_path):
    print("captured")
    with open("ran", "a") as file:
        file.write(f"{number} {os.getpid()}\\n")
def test_fails():
    time.sleep(0.5)
    assert "left" == "right"
def test_ends_its_process():
    time.sleep(0.5)
    os._exit(0)
"""


def test_each_runs_once_and_no_failure_is_missed(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS, encoding="utf-8")
    options = [
        "-c",
        "/dev/null",
        "--rootdir",
        ".",
        "-p",
        "no:cacheprovider",
        "-p",
        "tests.forked",
        "--jobs",
        "3",
        "test_it.py",
    ]
    command = [sys.executable, "-m", "pytest", *options, "test_it.py"]
    variables = {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    ran = [line.split() for line in (tmp_path / "ran").read_text(encoding="utf-8").splitlines()]
    assert sorted(int(number) for number, _ in ran) == [*range(30)]
    assert len({process for _, process in ran}) > 1
    assert "captured" not in done.stdout
    assert "assert 'left' == 'right'" in done.stdout
    assert "OSError: late" in done.stdout
    assert "the process that had this test before it has ended" in done.stdout
    assert "2 failed, 31 passed, 1 error in" in done.stdout
