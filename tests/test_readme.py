"""The README: outputs are from committed runs, the index links every page, and it takes five minutes to read."""

from __future__ import annotations

import re
import shlex
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from collbench.ablations import ablation as ablations
from collbench.ablations import page as ablation_page
from tests.cli.program import Program
from tests.report.pages import text

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
RESULTS = ROOT / "benchmarks" / "results"
RUN = RESULTS / "2026-11-21-4xh200-peers" / "pairs.json"
LEFT_OUT = "…"  # a line of its own, where a page goes on


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Program:
    monkeypatch.setenv("NO_COLOR", "1")
    return Program(monkeypatch, capsys)


def sessions(document: str) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the arguments of each "$ collbench …" and the output below it, in the parts between omitted lines.

    The first or last part is "" where the output begins or ends with omitted lines.
    """
    for block in re.findall(r"^    \$ collbench (.+(?:\n    .+)*)", document, re.MULTILINE):
        command, *lines = re.sub(r"^    ", "", block, flags=re.MULTILINE).splitlines()
        parts = re.split(rf"^{LEFT_OUT}$", "\n".join(lines), flags=re.MULTILINE)
        yield shlex.split(command), [part.strip("\n") for part in parts]


def page(args: list[str], program: Program, folder: Path) -> str:
    """Return what a command of the README prints, from the recording that it was taken from."""
    if args[0] == "ablate":
        return text(
            ablation_page.page(ablations.load(RESULTS / "2026-11-23-2xh200-ablation" / "ablate-second-machine.json"))
        )
    if args == ["pairs"]:  # the same page, without measuring
        with tarfile.open(RESULTS / "2026-11-21-4xh200-judging" / "runs.tar.gz") as archive:
            archive.extract("busy.json", folder, filter="data")
        args = ["show", str(folder / "busy.json")]
    result = program(*(str(RUN) if word == "run.json" else word for word in args))
    assert (result.status, result.err) == (0, "")
    return result.out.replace(str(folder / "busy.json"), "1")  # a new run is the newest, which is number 1


@pytest.mark.parametrize(("args", "parts"), list(sessions(README)), ids=lambda value: value[0].partition("\n")[0])
def test_an_output_is_the_one_of_a_committed_run(
    args: list[str], parts: list[str], program: Program, tmp_path: Path
) -> None:
    printed = page(args, program, tmp_path)
    shown = [part for part in parts if part]
    positions = [printed.find(f"{part}\n") for part in shown]
    assert [part for part, position in zip(shown, positions, strict=True) if position < 0] == []
    assert positions == sorted(positions)
    assert printed.startswith(parts[0]), f"the page begins with lines that no {LEFT_OUT} stands for"
    assert printed.rstrip("\n").endswith(parts[-1]), f"the page goes on, and no {LEFT_OUT} says so"


def test_it_shows_outputs_at_all() -> None:
    assert {args[0] for args, _ in sessions(README)} >= {"pairs", "ablate", "compare"}


def test_it_takes_five_minutes() -> None:
    assert len(README.splitlines()) < 150


def test_every_link_to_a_file_of_the_project_leads_somewhere() -> None:
    for document in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").glob("*.md")):
        targets = [part.split(")")[0] for part in document.read_text(encoding="utf-8").split("](")[1:]]
        missing = [target for target in targets if not (document.parent / target.split("#")[0]).exists()]
        assert missing == [], document.name


def test_every_page_is_in_the_index_which_the_readme_names() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert "](docs/README.md)" in README
    assert sorted(name for name in pages if f"]({name}): " not in index) == []
