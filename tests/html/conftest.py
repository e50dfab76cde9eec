"""Headless Chromium for the page's tests, and the program. Without a browser they are skipped by name; not in CI."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.program import Program

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# No sandbox: as root, in a container, Chromium has none. The others keep it from asking Google for updates.
_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def _lacking(what: str) -> None:
    if os.environ.get("CI") == "true":
        pytest.fail(
            f"{what} is missing, and CI tests the page: run 'apt-get install chromium' and install the extra test"
        )
    pytest.skip(f"{what} is not installed: apt-get install chromium, or set COLLBENCH_TEST_BROWSER to a Chromium")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A browser of this machine; playwright's own is never downloaded."""
    program = os.environ.get("COLLBENCH_TEST_BROWSER") or next(filter(None, map(shutil.which, _NAMES)), None)
    if program is None:
        _lacking("Chromium")
    if importlib.util.find_spec("playwright") is None:
        _lacking("the Python package playwright")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=program, args=list(_FLAGS))
        yield opened
        opened.close()


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Program:
    """The program, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return Program(monkeypatch, capsys)
