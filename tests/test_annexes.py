"""Each annex is a folder and a row: the program works without both, and says in one line what it lacks."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from collbench import annexes
from collbench.api.runs import FileKind
from collbench.report.views import View
from collbench.runfile.run_file import SECTIONS, Results
from tests.cli.program import RANK_0
from tests.golden.commands import KEPT, MACHINES
from tests.test_walls import PACKAGE, ROOT, imports, parsed

ROWS = annexes._ROWS
ALL = tuple(ROWS)


@pytest.mark.parametrize(
    ("module", "offers"),
    [
        *((f"{package}.view", View) for package in SECTIONS.values()),
        *((f"{package}.results", Results) for package in SECTIONS.values()),
        *((module, FileKind) for module in annexes.FILES.values()),
    ],
)
def test_a_module_has_what_it_is_loaded_for(module: str, offers: type) -> None:
    assert set(offers.__annotations__) <= set(vars(import_module(f"collbench.{module}")))


def test_a_row_names_the_annexes_that_its_folder_imports() -> None:
    for name, row in ROWS.items():
        trees = [parsed(path.read_text(encoding="utf-8")) for path in (PACKAGE / name).rglob("*.py")]
        rooms = {imported.split(".")[1] for tree in trees for imported in imports(tree) if "collbench." in imported}
        assert rooms & ROWS.keys() - {name} == {*row.get("needs", ())}, name


def test_the_table_says_what_each_part_of_a_row_is() -> None:
    described = re.findall(r"^# (\w+)  +", (PACKAGE / "annexes.py").read_text(encoding="utf-8"), re.MULTILINE)
    assert {*described} == {part for row in ROWS.values() for part in row}


def test_type_checkers_find_each_name_of_python_in_its_module() -> None:
    shown = {*imports(parsed((PACKAGE / "__init__.py").read_text(encoding="utf-8")))}
    assert {f"collbench.{module}.{name}" for name, module in annexes.NAMES.items()} <= shown


# A process with some package, told commands and names of Python: what it answers to each, and which names it has.
_PROCESS = """
import contextlib, io, json, sys
import collbench
from collbench.cli import main
def ran(words):
    sys.argv = ["collbench", *words]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        status = main()
    return status, out.getvalue(), err.getvalue()
def has(name):
    try:
        return bool(getattr(collbench, name))
    except AttributeError:
        return name in dir(collbench)
commands, names = json.load(sys.stdin)
print(json.dumps([list(map(ran, commands)), list(filter(has, names))]))
"""
Answer = tuple[int, str, str]  # the exit status, stdout, stderr


def asked(path: Path, commands: list[list[str]], names: list[str], folder: Path, **variables: str) -> Any:
    """Return a list of Answers and the names; the package is in `path`, and the process runs in `folder`."""
    environment = {"PYTHONPATH": str(path), "HOME": str(folder), "PATH": os.defpath, "COLUMNS": "80", **variables}
    told = json.dumps([commands, names])
    run = [sys.executable, "-c", _PROCESS]
    ended = subprocess.run(run, input=told, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def without(removed: tuple[str, ...], folder: Path) -> Path:
    """Return a folder for PYTHONPATH: the package without the annexes' folders and rows."""
    package = folder / "collbench"
    package.mkdir()
    for path in PACKAGE.iterdir():
        # Two tables of one second and size would be one to a shared __pycache__.
        if path.name not in (*removed, "annexes.py", "__pycache__"):
            (package / path.name).symlink_to(path)
    lines = (PACKAGE / "annexes.py").read_text(encoding="utf-8").splitlines(keepends=True)
    rows = next(node.value for node in parsed("".join(lines)).body if isinstance(node, ast.AnnAssign))
    assert isinstance(rows, ast.Dict)
    for key, row in zip(reversed(rows.keys), reversed(rows.values), strict=True):
        if isinstance(key, ast.Constant) and key.value in removed:
            del lines[key.lineno - 1 : row.end_lineno]
    (package / "annexes.py").write_text("".join(lines), encoding="utf-8")
    return folder


def refused(answer: Answer) -> str:
    """Return the line with which a command was refused."""
    status, out, error = answer
    assert (status, out, error.count("\n")) == (2, "", 1), error
    return error.removeprefix("collbench: ")


_FILES = {"collbench-job": "ddp-job.json", "collbench-ablation": "ablation.json", "collbench-nodes": "survey.json"}


# Two that others need, and all; what each needs is in its row (above).
@pytest.mark.parametrize("removed", [("overlaps",), ("ranks",), ALL], ids=["overlaps", "ranks", "all"])
def test_what_was_an_annex_is_refused_as_what_never_was(removed: tuple[str, ...], tmp_path: Path) -> None:
    gone = [row for name, row in ROWS.items() if {name, *row.get("needs", ())} & {*removed}]

    def of(part: str, rows: list[dict[str, Any]] = gone) -> list[str]:
        return [name for row in rows for name in row.get(part, {})]

    run = (ROOT / KEPT["h200x4.json"]).read_text(encoding="utf-8")
    for kind in of("runs"):
        (tmp_path / kind).write_text(run.replace('"kind": "pairs"', f'"kind": "{kind}"', 1), encoding="utf-8")
    stay = of("commands", [row for row in ROWS.values() if row not in gone])
    said: dict[tuple[str, ...], str] = {
        **{(command,): f"no such command '{command}'" for command in of("commands")},
        **{("show", kind): f"'{kind}', which no command of this collbench measures" for kind in of("runs")},
        **{("show", str(ROOT / KEPT[_FILES[name]])): f'its format is "{name}"\n' for name in of("files")},
    }
    helps = [["--help"], *([command, "--help"] for command in stay)]
    answers, has = asked(without(removed, tmp_path), [*helps, *map(list, said)], of("names"), tmp_path)
    assert has == []
    assert [status for status, *_ in answers[: len(helps)]] == [0] * len(helps)
    listed = re.findall(r"^  (\w+)  ", answers[0][1].partition("\nMeasure:")[2], re.MULTILINE)
    assert {*listed} & annexes.COMMANDS.keys() == {*stay}
    for answer, words in zip(answers[len(helps) :], said.values(), strict=True):
        assert words in refused(answer)


# Commands that print no times, or simulated ones.
_COMMANDS = """
topo --topology dgx-1v.txt
pairs @2 --sizes 1M -o pairs.json
show h200x4.json --verbose
export h200x4.json --format markdown
report pairs.json -o page.html
allreduce @2 --sizes 1M --format nccl-tests -o allreduce.json
"""


def test_the_main_house_prints_the_same_without_annexes(tmp_path: Path) -> None:
    lines = _COMMANDS.strip().splitlines()
    commands = [[part for word in line.split() for part in MACHINES.get(word, word).split()] for line in lines]
    printed = []
    for path in (PACKAGE.parent, without(ALL, tmp_path)):
        folder = tmp_path / f"in-{path.name}"
        folder.mkdir()
        for name in ("dgx-1v.txt", "h200x4.json"):
            (folder / name).write_bytes((ROOT / KEPT[name]).read_bytes())
        answers, _ = asked(path, commands, [], folder)
        assert {status for status, *_ in answers} == {0}
        printed.append([(re.sub(r"\d{4}-\d\d-\d\dT[\d:]+Z", "", out), error) for _, out, error in answers])
    assert printed[0] == printed[1]


def test_one_of_several_processes_says_that_their_annex_is_not_there(tmp_path: Path) -> None:
    (answer,), _ = asked(without(("ranks",), tmp_path), [["pairs", "--backend", "host"]], [], tmp_path, **RANK_0)
    assert "one of several processes" in refused(answer)


def test_check_without_the_annex_of_p2p_has_no_map(tmp_path: Path) -> None:
    (answer,), _ = asked(without(("p2p",), tmp_path), [["check", "--map-p2p", "--backend", "sim"]], [], tmp_path)
    assert "no map of P2P" in refused(answer)
