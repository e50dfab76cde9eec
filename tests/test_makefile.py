"""`make test` without Chromium: root on Debian gets one, once; other systems are neither changed nor stopped."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests import browser as browsers

ROOT = Path(__file__).parent.parent
REPORTED = "make: without Chromium the tests of the report's page are skipped: on Debian, apt install chromium"
INSTALLING = "installing Debian's chromium, for the tests of the report's page"
# Writes its arguments to a file, and installs what the test put next to it.
APT_GET = """#!/bin/sh
cd "$(dirname "$0")" || exit
echo "$*" >> asked
case "$*" in *install*) [ -e offered ] && mv offered chromium ;; esac
"""

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A PATH that holds what make needs and no browser, and a virtual environment that make finds ready."""
    for name in ("make", "bash", "dirname", "mv", "touch", "timeout"):
        path = shutil.which(name)
        assert path
        (tmp_path / "tools").mkdir(exist_ok=True)
        (tmp_path / "tools" / name).symlink_to(path)
    executable(tmp_path / "venv" / "bin" / "python", "")
    return tmp_path / "tools"


def make_browser(tools: Path, user: int, **environment: str) -> str:
    """Run the Makefile's rule as a user; return its output."""
    executable(tools / "id", f"#!/bin/sh\necho {user}\n")
    venv = tools.parent / "venv"
    done = subprocess.run(
        [tools / "make", "-C", ROOT, "--no-print-directory", f"VENV={venv}", f"{venv}/.installed-browser"],
        env={"PATH": str(tools)} | environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout.rstrip("\n")


def apt_calls(tools: Path) -> list[str]:
    path = tools / "asked"
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def test_root_on_debian_gets_one(tools: Path) -> None:
    executable(tools / "apt-get", APT_GET)
    executable(tools / "offered", "")
    assert make_browser(tools, user=0) == INSTALLING
    assert apt_calls(tools) == ["-qq update", "-qq -y install --no-install-recommends chromium"]


def test_a_user_reads_it_and_nothing_is_installed(tools: Path) -> None:
    executable(tools / "apt-get", APT_GET)
    assert make_browser(tools, user=1000) == REPORTED
    assert apt_calls(tools) == []


def test_make_and_the_tests_look_for_the_same_browsers() -> None:
    assert f"BROWSERS := {' '.join(browsers.NAMES)}\n" in (ROOT / "Makefile").read_text(encoding="utf-8")
