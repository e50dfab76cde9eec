"""Headless Chromium for tests of pages. Without a browser they are skipped by name.

`make test` installs one where it may (Makefile).
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn

import pytest

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
# Other tests leave a browser little of two cores: pages took thirty times as long as alone.
PATIENCE_MS, PATIENCE_S = 100_000, 400
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def lacking(what: str) -> NoReturn:
    """Skip: a mirror that is out for an hour must not fail the page."""
    pytest.skip(f"{what}: apt-get install chromium, or set COLLBENCH_TEST_BROWSER to a Chromium")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A browser of this machine; playwright's own is never downloaded."""
    program = os.environ.get("COLLBENCH_TEST_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        lacking("Chromium is not installed")
    if importlib.util.find_spec("playwright") is None:
        lacking("the Python package playwright is not installed")
    from playwright.sync_api import Error, sync_playwright

    with sync_playwright() as driver:
        try:
            opened = driver.chromium.launch(executable_path=program, args=list(_FLAGS))
        except Error as error:  # Ubuntu's chromium-browser only asks for a snap
            lacking(f"{program} does not start ({error.message.splitlines()[0]})")
        yield opened
        opened.close()
