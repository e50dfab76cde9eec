"""--help, --version, and the program without arguments."""

from __future__ import annotations

import re
import subprocess
from importlib.metadata import version

import click
import pytest

from collbench.api.training import TORCHRUN_FLAGS, TORCHRUN_VALUES
from collbench.cli.program import cli
from collbench.model.operations import COLLECTIVES
from tests.cli.program import Program, collbench

COMMANDS = cli.list_commands(click.Context(cli))


def test_every_command_is_listed_once_in_its_group(program: Program) -> None:
    """Collectives share a sentence; the others have a line each, which is a whole sentence."""
    groups = re.findall(r"^(\w[\w ]+):\n((?:  .+\n)+)", program("--help").out.partition("Options:\n")[2], re.MULTILINE)
    assert [title for title, _ in groups] == ["Measure", "Read", "Choose and train", "Jobs", "Cluster"]
    lines = [line for _, text in groups for line in text.splitlines()]
    collectives = " ".join(lines).partition("pairs: ")[2].partition(".")[0].replace(",", "").split()
    assert set(collectives) == set(COLLECTIVES)
    listed = [found[1] for line in lines if (found := re.fullmatch(r"  (\w+) +[A-Z][^.]+\.", line))]
    assert sorted([*listed, *collectives]) == sorted(COMMANDS)


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_is_a_first_screen_with_an_example(
    program: Program, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = program(*command.split(), "--help")
    assert (result.status, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[0].startswith(f"Usage: collbench {command}")
    assert max(map(len, lines)) <= 80
    assert len([line for line in lines if line not in nccl_section(result.out)]) <= 56
    assert re.search(rf"Examples?:\n +collbench {command}", result.out)
    assert "\x1b" not in result.out
    assert program(*command.split(), "-h").out == result.out


def nccl_section(text: str) -> list[str]:
    """Return the lines of nccl-tests' options, which come last."""
    return text.partition("\nOptions with nccl-tests' names:\n")[2].splitlines()


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("all-reduce", "allreduce"), ("all_gather", "allgather"), ("reduce-scatter", "reducescatter"),
     ("all-to-all", "alltoall"), ("send-recv", "sendrecv")],
)  # fmt: skip
def test_spellings_that_people_type(program: Program, typed: str, meant: str) -> None:
    assert program(typed, "--help").out == program(meant, "--help").out
    assert f"\n  {typed} " not in program("--help").out


@pytest.mark.parametrize("command", ["train", "ablate"])
def test_the_help_lists_no_option_of_torchrun(program: Program, command: str) -> None:
    page = program(command, "--help").out.partition("Options:\n")[2]
    assert "--devices" in page or "--without" in page
    assert not [name for name in TORCHRUN_FLAGS | TORCHRUN_VALUES if f"{name} " in page]


def test_help_of_train_stands_before_what_is_wrong_elsewhere(program: Program) -> None:
    assert program("train", "--auto-select", "0", "--help", "missing.py").status == 0


def test_without_arguments_the_help_is_shown_and_the_status_is_2(program: Program) -> None:
    result = program()
    assert (result.status, result.out) == (2, "")
    assert result.err == program("--help").out


def test_the_version_is_the_packages(program: Program) -> None:
    assert program("--version").out == f"collbench {version('collbench')}\n"


def test_python_m_collbench_is_the_same_program(program: Program) -> None:
    done = subprocess.run(collbench("topo", "0"), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, program("topo", "0").err)
