"""docs/figures: a picture of a page in a terminal shows what the command prints, and loads nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

import pytest

from docs import terminal_pictures

DOCS = Path(__file__).resolve().parents[1] / "docs"
TEXT = "{http://www.w3.org/2000/svg}text"


def lines(picture: ElementTree.Element) -> list[str]:
    """Return the lines of a picture, from where each of its texts stands and how wide it is drawn."""
    rows: dict[float, list[tuple[float, float, str]]] = defaultdict(list)
    for one in picture.iter(TEXT):
        if "clip-path" in one.attrib:  # the title and the window's buttons have none
            place, wide = float(one.attrib["x"]), float(one.attrib["textLength"])
            rows[float(one.attrib["y"])].append((place, wide, (one.text or "").replace("\xa0", " ")))
    shown = []
    for _, texts in sorted(rows.items()):
        line = ""
        for place, wide, text in sorted(texts):
            line = line.ljust(round(place / (wide / len(text)))) + text
        shown.append(line.rstrip())
    return shown


@pytest.mark.usefixtures("loaded_program")
@pytest.mark.parametrize("name", terminal_pictures.PICTURES)
def test_a_picture_shows_what_its_command_prints(name: str, tmp_path: Path) -> None:
    command = terminal_pictures.made(tmp_path, name)
    terminal = os.environ | {"COLUMNS": "108", "FORCE_COLOR": "1", "TERM": "xterm"}
    words = [sys.executable, "-m", "collbench", *command]
    printed = subprocess.run(words, cwd=tmp_path, env=terminal, capture_output=True, text=True, check=False).stdout
    page = [line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", printed).splitlines()]
    picture = (DOCS / "figures" / f"{name}.svg").read_text(encoding="utf-8")
    drawn = ElementTree.fromstring(picture)  # noqa: S314 - our own file
    assert [line for line in lines(drawn) if line] == [line for line in page if line]
    assert re.findall(r"url\((?!#)|@font-face|<image|href", picture) == []
    assert f"figures/{name}.svg" in (DOCS / "pairs.md").read_text(encoding="utf-8")
