"""CONTRIBUTING.md: every path that it names exists, and it has every package and every dependency."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "collbench"
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def table(heading: str) -> list[list[str]]:
    """Return the rows of the table below a heading, its own head left out."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return [[part.strip() for part in row] for row in rows[1:] if row[0].strip() not in {"annex", "elsewhere"}]


HOMES = table("Where a change goes")


def names_in(home: str) -> list[str]:
    return [match[1] for match in re.finditer(r"`([^`\s]+)`", home)]


def paths_of(room: str, home: str) -> Iterator[list[Path]]:
    """Yield the paths that each name in a row matches, next to the name before, or in room, package or project."""
    folder = own = PACKAGE / names_in(room)[0].rstrip("/") if names_in(room) else PACKAGE
    for name in [*names_in(room), *names_in(home)]:
        roots = (folder, own, PACKAGE, ROOT)
        paths = next((hits for root in roots if (hits := sorted(root.glob(name.rstrip("/"))))), [])
        yield paths
        if paths:
            folder = paths[0] if paths[0].is_dir() else paths[0].parent


def test_each_home_exists() -> None:
    assert len(HOMES) > 10
    for room, home in HOMES:
        assert names_in(room + home), room
        matches = zip(names_in(room + home), paths_of(room, home), strict=True)
        assert [name for name, paths in matches if not paths] == []


def test_every_room_has_a_row() -> None:
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert rooms <= {name.rstrip("/") for room, _ in HOMES for name in names_in(room)}


def test_every_dependency_has_its_reason() -> None:
    rows = {name for names, reason in table("Why each dependency") if reason for name in re.findall(r"[\w-]+", names)}
    extras = PROJECT["optional-dependencies"]
    required = {Requirement(text).name for text in chain(PROJECT["dependencies"], *extras.values())}
    assert sorted(required - rows - {PROJECT["name"]}) == []
