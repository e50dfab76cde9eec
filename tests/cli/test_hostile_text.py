"""Run files and file names may hold any text: no command passes control characters to a terminal, page or table."""

from __future__ import annotations

import csv
import json
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from collbench.runfile import run_file
from tests.builders import gpus, pair_run
from tests.cli.program import Program, save_run
from tests.report.html.runs import hostile
from tests.sim.made import fabric_text

# Red text and a title; C1's CSI; text that reads backwards; a line of its own; a line for readers that end lines at
# that character.
EVIL = "\x1b[31mred\x1b]0;title\x07 \x9b2J \u202ereversed\u2066 \nforged: GPU9 \r\u2028over"
ALLOWED = "\n\t"
WRONG = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def assert_harmless(text: str) -> None:
    obeyed = {char for char in text if unicodedata.category(char) in WRONG and char not in ALLOWED}
    assert obeyed == set()
    assert not any(line.strip().startswith("forged") for line in text.splitlines())


@pytest.mark.parametrize("first", ["=", "+", "-", "@"])
def test_no_text_of_csv_is_a_formula_and_numbers_stay_numbers(program: Program, tmp_path: Path, first: str) -> None:
    evil = f"{first}cmd|' /C calc'!A1"
    run = pair_run(4, lambda _a, _b: 300.0)
    devices = tuple(replace(gpu, name=evil, uuid=evil) for gpu in gpus(4))
    run = replace(run, machine=replace(run.machine, hostname=evil), devices=devices)
    run_file.save(run, tmp_path / "evil.json")
    result = program("export", "evil.json", "--format", "csv")
    rows = list(csv.DictReader(result.out.splitlines()))
    assert {rows[0][name] for name in ("hostname", "gpu_names")} == {f"'{evil}"}
    assert not any(value.startswith(tuple("=+-@")) for row in rows for value in row.values())
    assert all(float(row["algbw_gbs"]) > 0 for row in rows)


# Each command line that reads a run, and the file that it writes, "" for none.
READERS = [
    ("show evil.json", ""),
    ("show --ranking evil.json", ""),
    ("show --ranking evil.json --json", ""),
    ("check evil.json", ""),
    ("check evil.json --json", ""),
    ("compare evil.json evil.json", ""),
    ("compare evil.json evil.json --json", ""),
    ("predict evil.json --params 12B --strategy fsdp", ""),
    ("predict evil.json --params 12B --strategy fsdp --json", ""),
    ("select 2 evil.json --any-machine", ""),
    ("select 2 evil.json --any-machine --format json", ""),
    ("export evil.json --format csv", ""),
    ("export evil.json --format markdown", ""),
    ("export evil.json --format json", ""),
    ("export evil.json --format prometheus", ""),
    ("export evil.json --format nccl-tests", ""),
    ("export evil.json --format csv -o out.csv", "out.csv"),
    ("report evil.json -o out.html", "out.html"),
]


@pytest.mark.parametrize(("args", "file"), READERS, ids=[args for args, _ in READERS])
def test_no_command_prints_a_runs_control_characters(program: Program, args: str, file: str) -> None:
    run_file.save(hostile(EVIL), Path("evil.json"))
    result = program(*args.split())
    assert result.status in ((1,) if args.startswith(("show --ranking", "predict")) else (0, 2, 3, 4)), (
        result.err
    )  # 1: a pair failed
    assert result.out or result.err
    assert_harmless(result.out)
    assert_harmless(result.err)
    if file and result.status == 0:
        assert_harmless(Path(file).read_text(encoding="utf-8"))
    if args.endswith((" --json", "--format json")) and result.status in (0, 1, 3):
        assert json.loads(result.out)


@pytest.mark.parametrize(
    "command",
    [
        *(
            "show",
            "show --ranking",
            "check",
            "predict --params 12B --strategy fsdp",
            "export --format csv",
            "report",
            "compare good.json",
        ),
        *("select 2 --any-machine",),
    ],
)
def test_nor_what_a_file_is_called(program: Program, command: str) -> None:
    """Whether the file exists or not."""
    run_file.save(pair_run(4, lambda a, b: 326.0), Path("good.json"))
    name = "a\x1b[31m\u202eb\x9b\nforged: c"
    for there in (False, True):
        if there:
            run_file.save(pair_run(4, lambda a, b: 326.0), Path(f"{name}.json"))
        result = program(*command.split(), f"{name}.json")
        assert result.status == (0 if there else 2), result.err
        assert_harmless(result.out)
        assert_harmless(result.err)
        assert there or result.err.count("\n") == 1
    for page in Path().glob("*.html"):
        assert_harmless(page.read_text(encoding="utf-8"))


def fabric(change: Callable[[dict[str, object]], object]) -> str:
    from collbench.sim import fabrics

    data = json.loads(fabric_text(fabrics.load("nvlink-pairs-2x2")))
    change(data)
    return json.dumps(data)


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("its name", lambda data: data.update(name=f"fab{EVIL}")),
        ("its source", lambda data: data.update(source=EVIL)),
        ("a key that none knows", lambda data: data.update({EVIL: 1})),
    ],
)
def test_nor_a_simulated_machines(program: Program, what: str, change: Callable[[dict[str, object]], object]) -> None:
    Path("fab.json").write_text(fabric(change), encoding="utf-8")
    args = "allreduce --backend sim --fabric fab.json --sizes 8 --quick --output run.json"
    result = program(*args.split())
    assert result.status in (0, 2), what
    assert_harmless(result.out)
    assert_harmless(result.err)


def test_nothing_in_cli_prints_around_the_console_module() -> None:
    """Output that draws in place (a carriage return, rich's colours) and our own help are exceptions."""
    folder = Path(__file__).parents[2] / "src" / "collbench" / "cli"
    allowed = {"terminal.py", "program.py"}
    speaking = {path.name for path in folder.glob("*.py") if "click.echo(" in path.read_text(encoding="utf-8")}
    by_hand = {"train.py": "ctx.get_help()", "select.py": '"false"'}
    for name in speaking - allowed:
        text = (folder / name).read_text(encoding="utf-8")
        drawn = sum(text.count(start) for start in ('click.echo("\\r', 'click.echo(f"\\r'))
        assert text.count("click.echo(") == text.count(f"click.echo({by_hand.get(name, '?')})") + drawn, name


@pytest.mark.parametrize("output_format", ["env", "docker", "apptainer"])
def test_shell_output_has_no_text_of_a_foreign_run(program: Program, tmp_path: Path, output_format: str) -> None:
    """`eval "$(collbench select …)"` runs what is printed."""
    save_run(tmp_path / "run.json", [replace(gpu, uuid=f"GPU-{gpu.index}'; touch owned; '") for gpu in gpus(4)])
    result = program("select", "2", "run.json", "--any-machine", "--format", output_format)
    assert (result.status, "touch" in result.out) == (2, False)
    assert "which is not a UUID" in result.err
