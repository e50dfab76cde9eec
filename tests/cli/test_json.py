"""--json: every command that prints a page prints JSON instead, and nothing else on stdout.

What they print is in the golden set; only what it lacks is printed here.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click
import pytest

from collbench.cli.program import cli
from collbench.model.operations import COLLECTIVES
from collbench.runfile import run_file
from tests.cli.program import Program
from tests.golden.commands import SIMULATED

TESTS = Path(__file__).parents[1]
SIM = ("--backend", "sim", "--fabric", "nvlink-pairs-2x2")
# What has no figures of a backend: published ones, several runs, this machine's setup, and a job's own record.
WITHOUT_BACKEND = {"references", "reference-rate", "runs", "doctor", "job-report"}


def golden() -> dict[str, str]:
    """Return what the golden set's commands with --json print on stdout."""
    texts = [file.read_text(encoding="utf-8") for file in sorted((TESTS / "golden" / "expected").glob("*-json.txt"))]
    split = (text.partition("    # in a pipe\n") for text in texts)
    return {
        command.removeprefix("$ collbench "): output.partition("--- stdout\n")[2].partition("\n--- ")[0]
        for command, _, output in split
        if " --json" in command
    }


PRINTED = golden()
NOT_GOLDEN = ["topo 0 1 --backend sim --fabric dgx-1v", "reference 8xH100 allreduce --size 1G", "doctor --backend host"]


def says_what_it_is(text: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(text)
    assert list(answer)[:2] == ["format", "format_version"]
    assert answer["format"].startswith("collbench-")
    assert answer["format_version"] >= 1
    return answer


@pytest.mark.parametrize("command", PRINTED)
def test_all_of_stdout_is_json_that_says_what_it_is_and_whether_it_is_simulated(command: str) -> None:
    answer = says_what_it_is(PRINTED[command])
    if answer["format"].removeprefix("collbench-") not in WITHOUT_BACKEND:
        simulated = " --backend sim " in command or not SIMULATED.keys().isdisjoint(command.split())
        assert (answer["backend"] == "sim") == simulated


@pytest.mark.parametrize("command", NOT_GOLDEN)
def test_so_is_what_the_golden_set_lacks(program: Program, command: str) -> None:
    answer = says_what_it_is(program(*command.split(), "--json").out)
    assert (answer.get("backend") == "sim") == (" sim " in command)


def test_every_command_that_prints_json_is_tried() -> None:
    context = click.Context(cli)
    commands = {name: cli.get_command(context, name) for name in cli.list_commands(context)}
    with_json = {name for name, one in commands.items() if one and any("--json" in param.opts for param in one.params)}
    tried = {command.split()[0] for command in [*PRINTED, *NOT_GOLDEN]} | {*COLLECTIVES}  # which are one function
    assert with_json - {"ablate"} == tried  # it trains: tests/ablations/test_command.py has it


def test_the_documents_name_every_format() -> None:
    text = (TESTS.parent / "docs" / "README.md").read_text(encoding="utf-8")
    item = re.search(r"^- JSON: .*?^\n", text, re.MULTILINE | re.DOTALL)
    assert item is not None
    tried = {json.loads(text)["format"] for text in PRINTED.values()}
    others = {"collbench-ablation", "collbench-reference-rate", "collbench-doctor"}
    assert set(re.findall(r"`(collbench-[\w-]+)`", item[0])) == tried | others


def test_what_is_printed_is_what_is_saved(program: Program) -> None:
    printed = program("pairs", *SIM, "--quick", "--seed", "1", "--sizes", "1M", "-o", "out.json", "--json").out
    assert printed == program("show", "out.json", "--json").out
    assert run_file.loads(printed, "stdout").settings.seed == 1
