"""CONTRIBUTING.md: every home that it names exists, every room and every dependency is in it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "collbench"
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def table(heading: str) -> list[list[str]]:
    """Return the rows of the table below a heading, its own head left out."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return [[part.strip() for part in row] for row in rows[1:]]


HOMES = table("Where a change goes")


def names_in(home: str) -> list[str]:
    return [found[1] for found in re.finditer(r"`([^`\s]+)`", home)]


def places(home: str) -> Iterator[list[Path]]:
    """Yield what each name of a row's second column matches: beside the name before, in the package or the project."""
    folder = PACKAGE
    for name in names_in(home):
        found = next((hits for root in (folder, PACKAGE, ROOT) if (hits := sorted(root.glob(name.rstrip("/"))))), [])
        yield found
        if found:
            folder = found[0] if found[0].is_dir() else found[0].parent


@pytest.mark.parametrize(("change", "home"), HOMES)
def test_a_home_exists(change: str, home: str) -> None:
    assert names_in(home)
    assert [name for name, found in zip(names_in(home), places(home), strict=True) if not found] == []


def test_every_room_has_a_row() -> None:
    named = {path for _, home in HOMES for found in places(home) for path in found}
    rooms = {path.parent for path in PACKAGE.glob("*/__init__.py")}
    assert [room.name for room in sorted(rooms) if not any(path.is_relative_to(room) for path in named)] == []


def test_every_dependency_has_its_reason() -> None:
    rows = {name for names, reason in table("Why each dependency") if reason for name in re.findall(r"[\w-]+", names)}
    extras = PROJECT["optional-dependencies"]
    wanted = {Requirement(text).name for text in chain(PROJECT["dependencies"], *extras.values())}
    assert sorted(wanted - rows - {PROJECT["name"]}) == []
