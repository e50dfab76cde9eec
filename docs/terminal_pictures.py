#!/usr/bin/env python3
"""Makes the pictures of terminal pages in docs/figures, which docs/pairs.md shows: its commands, in color.

python docs/terminal_pictures.py
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

DOCS = Path(__file__).parent
COLUMNS = 108  # of the widest table
STARTED = "2026-11-28T12:00:00Z"
# Each picture, by the command of docs/pairs.md that prints it: how its run is made, and how it is printed.
SIMULATED = "pairs --backend sim --fabric {} --quick --seed 1 -o {}"
PICTURES = {
    "pairs-sim": (SIMULATED.format("dgx-1v", "dgx.json"), "show dgx.json"),
    "check-sim": (SIMULATED.format("two-cards.json", "broken.json"), "check broken.json"),
}
# The font is the reader's own: a picture loads nothing.
FORMAT = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)


def made(folder: Path, name: str) -> list[str]:
    """Make a picture's run in a folder, as of a day that does not change; return the command that prints it."""
    [machine] = re.findall(r"```json\n(.*?)```", (DOCS / "quickstart.md").read_text("utf-8"), re.DOTALL)
    (folder / "two-cards.json").write_text(machine, encoding="utf-8")
    making, printing = (command.split() for command in PICTURES[name])
    subprocess.run([sys.executable, "-m", "collbench", *making], cwd=folder, check=False, capture_output=True)
    run = folder / making[-1]
    run.write_text(json.dumps(json.loads(run.read_text("utf-8")) | {"started": STARTED}), encoding="utf-8")
    return printing


def picture(page: str, name: str) -> str:
    """Return a page with its colors as SVG."""
    text = Text.from_ansi(page)  # commands to be copied are not wrapped
    console = Console(record=True, width=max(COLUMNS, *map(len, text.plain.splitlines())), file=io.StringIO())
    console.print(text, soft_wrap=True)
    making, printing = PICTURES[name]
    title = f"collbench {making if printing.startswith('show') else printing}"
    return console.export_svg(title=title, theme=MONOKAI, code_format=FORMAT, unique_id=name)


def main() -> None:
    """Write the pictures."""
    colored = {"COLUMNS": str(COLUMNS), "FORCE_COLOR": "1", "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    for name in PICTURES:
        with tempfile.TemporaryDirectory() as folder:
            printing = made(Path(folder), name)
            page = subprocess.run(
                [sys.executable, "-m", "collbench", *printing],
                cwd=folder,
                env=os.environ | colored,
                check=False,
                capture_output=True,
                text=True,
            ).stdout
        (DOCS / "figures" / f"{name}.svg").write_text(picture(page, name), encoding="utf-8")


if __name__ == "__main__":
    main()
