"""The Makefile installs a browser only where the tests find none."""

from __future__ import annotations

from pathlib import Path

from tests import browser as browsers

ROOT = Path(__file__).parent.parent


def test_make_and_the_tests_look_for_the_same_browsers() -> None:
    assert f"BROWSERS := {' '.join(browsers.NAMES)}\n" in (ROOT / "Makefile").read_text(encoding="utf-8")
