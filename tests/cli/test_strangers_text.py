"""A run file and a file's name may say anything: no command lets a terminal, a page or a table obey it."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from collbench.model.run import Flag, FlagKind, Run
from collbench.runfile import run_file
from tests.builders import gpus, in_words, pair_run
from tests.cli.program import Program
from tests.sim.made import fabric_text

# Red text and a title; C1's CSI; text that reads backwards; a line of its own; a line for readers that end lines there.
EVIL = "\x1b[31mred\x1b]0;title\x07 \x9b2J \u202ereversed\u2066 \nforged: GPU9 \r\u2028over"
ALLOWED = "\n\t"
WRONG = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def evil_run() -> Run:
    run = pair_run(4, lambda a, b: 300.0 if (a, b) != (0, 1) else 10.0)
    failed = replace(run.measurements[-1], samples=[], failure=in_words(f"hang: {EVIL}"))
    for found in run.measurements:
        found.samples[:] = [
            replace(sample, flags=(Flag(FlagKind.OTHER, (0,), reason=f"shared: {EVIL}"),)) for sample in found.samples
        ]
    return replace(
        run,
        version=f"1.0{EVIL}",
        machine=replace(run.machine, hostname=f"host{EVIL}", driver=f"580{EVIL}", nccl=f"2.28{EVIL}"),
        devices=tuple(replace(gpu, name=f"H200{EVIL}") for gpu in gpus(4)),
        paths=tuple(replace(path, label=f"NV18{EVIL}") for path in run.paths),
        settings=replace(run.settings, command=("pairs", EVIL), environment={f"NCCL_{EVIL}": EVIL}),
        measurements=[*run.measurements[:-1], failed],
        complete=False,
    )


def assert_harmless(text: str) -> None:
    obeyed = {char for char in text if unicodedata.category(char) in WRONG and char not in ALLOWED}
    assert obeyed == set()
    assert not any(line.strip().startswith("forged") for line in text.splitlines())


# What reads a run, and the file that it writes, "" for none.
READERS = [
    ("show evil.json", ""),
    ("show evil.json --format nccl-tests", ""),
    ("show evil.json --operation allreduce", ""),
    ("rank evil.json", ""),
    ("rank evil.json --json", ""),
    ("check evil.json", ""),
    ("check evil.json --json", ""),
    ("compare evil.json evil.json", ""),
    ("compare evil.json evil.json --json", ""),
    ("predict evil.json --model gpt2", ""),
    ("predict evil.json --model gpt2 --json", ""),
    ("select 2 --from evil.json --elsewhere", ""),
    ("select 2 --from evil.json --elsewhere --format json", ""),
    ("export evil.json --format csv", ""),
    ("export evil.json --format markdown", ""),
    ("export evil.json --format json", ""),
    ("export evil.json --format prometheus", ""),
    ("export evil.json --format nccl-tests", ""),
    ("export evil.json --format csv -o out.csv", "out.csv"),
    ("report evil.json -o out.html", "out.html"),
    ("plot evil.json --kind heatmap -o out.svg", "out.svg"),
    ("pairs --resume evil.json", ""),
]


@pytest.mark.parametrize(("words", "file"), READERS, ids=[words for words, _ in READERS])
def test_no_command_lets_a_runs_text_be_obeyed(program: Program, words: str, file: str) -> None:
    run_file.save(evil_run(), Path("evil.json"))
    said = program(*words.split())
    assert said.status in ((1,) if words.startswith("rank") else (0, 2, 3, 4)), said.err  # 1: a pair failed
    assert said.out or said.err
    assert_harmless(said.out)
    assert_harmless(said.err)
    if file and said.status == 0:
        assert_harmless(Path(file).read_text(encoding="utf-8"))
    if words.endswith((" --json", "--format json")) and said.status in (0, 1, 3):
        assert json.loads(said.out)


@pytest.mark.parametrize(
    "command",
    [
        *("show", "rank", "check", "predict --model gpt2", "export --format csv", "report", "compare good.json"),
        *("select 2 --elsewhere --from", "plot --kind heatmap -o out.svg", "pairs --resume"),
    ],
)
def test_nor_what_a_file_is_called(program: Program, command: str) -> None:
    """Of one that is there as of one that is not."""
    run_file.save(pair_run(4, lambda a, b: 300.0), Path("good.json"))
    name = "a\x1b[31m\u202eb\x9b\nforged: c"
    for there in (False, True):
        if there:
            run_file.save(pair_run(4, lambda a, b: 300.0), Path(f"{name}.json"))
        said = program(*command.split(), f"{name}.json")
        assert said.status == (0 if there else 2), said.err
        assert_harmless(said.out)
        assert_harmless(said.err)
        assert there or said.err.count("\n") == 1
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
    words = "allreduce --backend sim --fabric fab.json --sizes 8 --quick --output run.json"
    said = program(*words.split())
    assert said.status in (0, 2), what
    assert_harmless(said.out)
    assert_harmless(said.err)


def test_nothing_in_cli_speaks_but_by_the_home_of_this() -> None:
    """What draws in place (a carriage return, rich's colours) and help of our own are by hand."""
    folder = Path(__file__).parents[2] / "src" / "collbench" / "cli"
    allowed = {"terminal.py", "exit_codes.py"}
    speaking = {path.name for path in folder.glob("*.py") if "click.echo(" in path.read_text(encoding="utf-8")}
    by_hand = {"ablate.py": "ctx.get_help()", "train.py": "ctx.get_help()", "select.py": '"false"'}
    for name in speaking - allowed:
        text = (folder / name).read_text(encoding="utf-8")
        drawn = sum(text.count(start) for start in ('click.echo("\\r', 'click.echo(f"\\r'))
        assert text.count("click.echo(") == text.count(f"click.echo({by_hand.get(name, '?')})") + drawn, name
