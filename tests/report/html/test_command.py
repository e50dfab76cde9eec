"""`collbench report`: what it writes, what it refuses, and the commands of docs/report.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from collbench.runfile import run_file
from tests.cli.program import Program
from tests.report.html.runs import by_hand

DOCS = Path(__file__).parents[3] / "docs" / "report.md"


@pytest.fixture
def saved(program: Program) -> Program:
    """The program, with a run beside it."""
    run_file.save(by_hand(), Path("run.json"))
    return program


@pytest.mark.parametrize(
    ("what", "arguments", "line"),
    [
        ("a page named as a run", "run.json -o run.json", "--output run.json is not named as a page: write run.html"),
        ("a page without a name", "run.json -o .", "--output . is not named as a page: write report.html"),
        (
            "a folder in the way",
            "run.json -o folder.html",
            "cannot write the report as folder.html: it is a folder; choose another place with --output FILE",
        ),
        (
            "a file where a folder should be",
            "run.json -o run.json/x.html",
            "cannot write the report as run.json/x.html: a part of that path is a file, not a folder; choose another "
            "place with --output FILE",
        ),
        ("no such run", "none.json", "cannot read run file none.json: No such file or directory"),
        ("no run at all", "", "there is no saved run: name a run file, or measure with 'collbench pairs' first"),
        ("what is no run", "run.html.json", "run.html.json is JSON but not a collbench run"),
        ("one of two is no run", "run.json run.html.json", "run.html.json is JSON but not a collbench run"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(saved: Program, what: str, arguments: str, line: str) -> None:
    Path("folder.html").mkdir()
    Path("run.html.json").write_text("{}", encoding="utf-8")
    before = sorted(Path().rglob("*"))
    said = saved("report", *arguments.split())
    assert (said.status, said.out) == (2, ""), what
    assert line in said.line
    assert sorted(Path().rglob("*")) == before


def test_the_commands_of_the_document_work(program: Program) -> None:
    commands = re.findall(r"^    collbench (.*)$", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(commands) == 5
    for command in commands:  # on half as many GPUs as there, which takes a fifth of the time
        smaller = command.replace("--fabric dgx-1v", "--fabric nvlink-pairs-2x2")
        assert program(*smaller.split()).status == 0, command
    assert sorted(path.name for path in Path().glob("*.html")) == ["both.html", "report.html", "run.html"]
