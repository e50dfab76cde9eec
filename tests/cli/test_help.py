"""What people read first: --help, --version, and the program without a word."""

from __future__ import annotations

import re
import subprocess
from importlib.metadata import version

import pytest

from collbench.cli.program import cli
from collbench.cli.train import train
from collbench.launch.options import OWN_FLAGS, OWN_VALUES
from tests.cli.program import Program, collbench

COMMANDS = ["pairs", "allreduce", "broadcast", "topo", "show", "train"]  # in the order of a first session


def test_the_commands_are_listed_in_the_order_of_a_first_session(program: Program) -> None:
    listed = program("--help").out.partition("Commands:\n")[2]
    assert [line.split()[0] for line in listed.splitlines()] == COMMANDS == list(cli.commands)


def test_each_command_is_listed_with_a_whole_sentence(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    listed = program("--help").out.partition("Commands:\n")[2]
    for line in listed.splitlines():
        assert re.fullmatch(r"  \w+ +[A-Z][^.]+\.", line), line


@pytest.mark.parametrize("flag", ["--help", "-h"])
@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_is_a_first_screen_with_an_example(
    program: Program, monkeypatch: pytest.MonkeyPatch, command: str, flag: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    said = program(*command.split(), flag)
    assert (said.status, said.err) == (0, "")
    lines = said.out.splitlines()
    assert lines[0].startswith(f"Usage: collbench {command}")
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 50
    assert re.search(rf"Examples?:\n +collbench {command}", said.out)
    assert "\x1b" not in said.out


@pytest.mark.parametrize("width", [60, 80, 200])
def test_help_never_breaks_an_example(program: Program, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert "  collbench pairs --devices 0,2,3 --sizes 1M:1G -o run.json\n" in program("pairs", "--help").out


def test_train_shows_exactly_the_options_that_it_reads(program: Program) -> None:
    shown = {name for option in train.params for name in option.opts}
    assert shown | {"--help"} == OWN_VALUES | OWN_FLAGS
    assert {option.opts[0] for option in train.params if option.to_info_dict()["is_flag"]} == OWN_FLAGS - {"--help"}


def test_help_of_train_stands_before_what_is_wrong_elsewhere(program: Program) -> None:
    assert program("train", "--auto-select", "0", "--help", "missing.py").status == 0


def test_without_a_word_the_help_is_shown_and_the_status_is_2(program: Program) -> None:
    said = program()
    assert (said.status, said.out) == (2, "")
    assert said.err == program("--help").out


def test_the_version_is_the_packages(program: Program) -> None:
    assert program("--version").out == f"collbench {version('collbench')}\n"


def test_python_m_collbench_is_the_same_program(program: Program) -> None:
    done = subprocess.run(collbench("topo", "0"), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, program("topo", "0").err)
