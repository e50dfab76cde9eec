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
from collbench.cli.program import Launched
from collbench.report.sections import Section
from collbench.runfile.run_file import Results
from tests.cli.program import RANK_0
from tests.golden.commands import KEPT, MACHINES
from tests.test_walls import PACKAGE, ROOT, imports, parsed

ROWS = annexes._ROWS
ALL = tuple(ROWS)


@pytest.mark.parametrize(
    ("module", "offers"),
    [
        *((f"{package}.section", Section) for section, package in annexes.RUNS.values() if section),
        *((f"{package}.results", Results) for section, package in annexes.RUNS.values() if section),
        *((module, FileKind) for module in annexes.FILES.values()),
        (annexes.HOOKS["launch"], Launched),
    ],
)
def test_a_module_has_what_it_is_loaded_for(module: str, offers: type) -> None:
    named = {*offers.__annotations__, *(name for name in vars(offers) if not name.startswith("_"))}
    assert named <= set(vars(import_module(f"collbench.{module}")))


def test_a_row_names_the_annexes_that_its_folder_imports() -> None:
    for name, row in ROWS.items():
        trees = [parsed(path.read_text(encoding="utf-8")) for path in (PACKAGE / name).rglob("*.py")]
        rooms = {imported.split(".")[1] for tree in trees for imported in imports(tree) if "collbench." in imported}
        assert rooms & ROWS.keys() - {name} == {*row.get("needs", ())}, name


def test_type_checkers_see_each_name_of_python_where_its_row_has_it() -> None:
    source = (PACKAGE / "__init__.py").read_text(encoding="utf-8")
    assert (
        annexes.NAMES.items()
        <= {
            alias.name: node.module.removeprefix("collbench.")
            for node in ast.walk(parsed(source))
            if isinstance(node, ast.ImportFrom) and node.module
            for alias in node.names
        }.items()
    )


# What a process without annexes prints: the program's status and output for each command, and the names of Python.
_PROCESS = """
import contextlib, io, json, sys
import collbench
from collbench.cli import main
def ran(words):
    sys.argv = ["collbench", *words]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        status = main()
    return status, out.getvalue(), err.getvalue()
commands, names = json.load(sys.stdin)
lacking = []
for name in names:
    try:
        getattr(collbench, name)
    except AttributeError as error:
        lacking.append(f"{error}"[-len(name) - 1 : -1])
print(json.dumps([list(map(ran, commands)), lacking, dir(collbench)]))
"""


def without(removed: tuple[str, ...], folder: Path) -> Path:
    """Return a folder for PYTHONPATH: the package without the annexes' folders and rows."""
    package = folder / "collbench"
    package.mkdir()
    for path in PACKAGE.iterdir():
        if path.name not in (*removed, "annexes.py"):
            (package / path.name).symlink_to(path)
    lines = (PACKAGE / "annexes.py").read_text(encoding="utf-8").splitlines(keepends=True)
    rows = next(node.value for node in parsed("".join(lines)).body if isinstance(node, ast.AnnAssign))
    assert isinstance(rows, ast.Dict)
    for key, row in zip(reversed(rows.keys), reversed(rows.values), strict=True):
        if isinstance(key, ast.Constant) and key.value in removed:
            del lines[key.lineno - 1 : row.end_lineno]
    (package / "annexes.py").write_text("".join(lines), encoding="utf-8")
    return folder


def asked(
    path: Path, commands: list[list[str]], names: list[str], folder: Path, **variables: str
) -> tuple[list[tuple[int, str, str]], list[str], list[str]]:
    """Return what a process with this package answers: to each command, which names it lacks, and which it has."""
    environment = {"PYTHONPATH": str(path), "HOME": str(folder), "PATH": os.defpath, "COLUMNS": "80", **variables}
    process = subprocess.run(
        [sys.executable, "-c", _PROCESS],
        input=json.dumps([commands, names]),
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    answer: Any = json.loads(process.stdout)
    return [*map(tuple, answer[0])], answer[1], answer[2]


def is_one_line(error: str) -> bool:
    return error.startswith("collbench: ") and error.count("\n") == 1


_RUN = (ROOT / KEPT["h200x4.json"]).read_text(encoding="utf-8")
_FILES = {"collbench-job": "ddp-job.json", "collbench-ablation": "ablation.json"}


@pytest.mark.parametrize("removed", [*((name,) for name in ALL), ALL], ids=[*ALL, "all"])
def test_a_house_without_an_annex_says_what_it_lacks(removed: tuple[str, ...], tmp_path: Path) -> None:
    gone = [row for name, row in ROWS.items() if {name, *row.get("needs", ())} & {*removed}]
    stay = [row for row in ROWS.values() if row not in gone]
    commands = [name for row in gone for name in row.get("commands", {})]
    names = [name for row in gone for name in row.get("names", {})]
    kinds = [kind for row in gone for kind in row.get("runs", {})]
    formats = [name for row in gone for name in row.get("files", {})]
    for kind in kinds:
        (tmp_path / f"{kind}-run.json").write_text(_RUN.replace('"kind": "pairs"', f'"kind": "{kind}"', 1))
    files = [*(f"{kind}-run.json" for kind in kinds), *(str(ROOT / KEPT[_FILES[name]]) for name in formats)]
    others = [name for row in stay for name in row.get("commands", {})]
    (help_page, *refused), lacking, offered = asked(
        without(removed, tmp_path),
        [["--help"], *([name] for name in commands), *(["show", file] for file in files), ["--version"]]
        + [[name, "--help"] for name in others],
        names,
        tmp_path,
    )
    helped, refused = refused[len(refused) - len(others) - 1 :], refused[: len(commands) + len(files)]
    assert [status for status, *_ in (help_page, *helped)] == [0] * (2 + len(others))
    listed = re.findall(r"^  (\w+)  ", help_page[1].partition("Options:")[2], re.MULTILINE)
    assert {*others, "pairs"} <= {*listed}
    assert not {*commands} & {*listed}
    assert lacking == names
    assert not {*names} & {*offered}
    assert all(status == 2 and is_one_line(error) for status, _, error in refused), refused
    for name, (_, _, error) in zip(commands, refused, strict=False):
        assert error.startswith(f"collbench: no such command '{name}'")
    for name, (_, _, error) in zip(kinds, refused[len(commands) :], strict=False):
        assert f"'{name}', which no command of this collbench measures" in error
    for name, (_, _, error) in zip(formats, refused[len(commands) + len(kinds) :], strict=False):
        assert f'its format is "{name}"' in error
        assert "show" not in error


_COMMANDS = """
topo --topology dgx-1v.txt
select 2 --topology dgx-1v.txt
pairs @4 --quick -o pairs.json
show pairs.json --ranking
show h200x4.json --verbose
export h200x4.json --format markdown
report pairs.json -o page.html
latency @4 --verbose -o latency.json
check @4 --quick -o check.json
allreduce @4 --sizes 64M --format nccl-tests -o allreduce.json
"""


def test_the_main_house_prints_the_same_without_annexes(tmp_path: Path) -> None:
    commands = [
        [part for word in line.split() for part in MACHINES.get(word, word).split()]
        for line in _COMMANDS.strip().splitlines()
    ]
    answers = []
    for path in (PACKAGE.parent, without(ALL, tmp_path)):
        folder = tmp_path / path.name
        folder.mkdir(exist_ok=True)
        for name in ("dgx-1v.txt", "h200x4.json"):
            (folder / name).write_bytes((ROOT / KEPT[name]).read_bytes())
        printed, *_ = asked(path, commands, [], folder)
        answers.append([(status, re.sub(r"\d{4}-\d\d-\d\dT[\d:]+Z", "", out), err) for status, out, err in printed])
    assert answers[0] == answers[1]
    assert {status for status, *_ in answers[0]} <= {0, 1}


def test_without_its_annex_one_of_several_processes_says_so(tmp_path: Path) -> None:
    (answer,), *_ = asked(without(("ranks",), tmp_path), [["pairs", "--backend", "host"]], [], tmp_path, **RANK_0)
    assert answer[:2] == (2, "")
    assert is_one_line(answer[2])
