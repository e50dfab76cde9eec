"""docs/quickstart.md, then docs/pairs.md: their commands work one after the other, and print what the pages show."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from tests.cli.program import Program

DOCS = Path(__file__).parent.parent / "docs"
PAGE, OUTPUTS = ((DOCS / name).read_text(encoding="utf-8") for name in ("quickstart.md", "pairs.md"))
LEFT_OUT = "…"
STATUSES = {
    "pairs --backend sim --fabric two-cards.json --quick --seed 1 -o broken.json": 3,
    "check broken.json": 3,
}


def sessions(page: str) -> list[tuple[str, str]]:
    """Return each "$ collbench …" with what the page shows below it, indentation cut off."""
    code = re.sub(r"^    ", "", "\n".join(re.findall(r"^    .*|^$", page, re.MULTILINE)), flags=re.MULTILINE)
    shown = re.split(r"^\$ collbench (.+)$", code, flags=re.MULTILINE)[1:]
    return list(zip(shown[::2], shown[1::2], strict=True))


def test_each_command_prints_what_the_page_shows(program: Program, tmp_path: Path) -> None:
    (file,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "two-cards.json").write_text(file, encoding="utf-8")
    wrong = []
    for command, shown in [*sessions(PAGE), *sessions(OUTPUTS)]:
        result = program(*shlex.split(command))
        assert result.status == STATUSES.get(command, 0), (command, result.err)
        # Later sections' commands without "$" follow the last output: it ends at the page's next empty line.
        parts = [part.strip("\n") for part in re.split(rf"^{LEFT_OUT}$", shown.split("\n\n")[0], flags=re.MULTILINE)]
        positions = [result.out.find(f"{part}\n") for part in parts if part]
        wrong += [(command, part) for part in parts if part and f"{part}\n" not in result.out]
        assert positions == sorted(positions), command
    assert wrong == []
