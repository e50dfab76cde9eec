"""--json: every command that prints a page prints JSON instead, and nothing else on stdout."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from collbench.runfile import run_file
from tests.builders import gpus
from tests.cli.program import Program, save_run

SIM = ("--backend", "sim", "--fabric", "nvlink-pairs-2x2")
MEASURING = ("--quick", "--seed", "1", "--sizes", "1M", "-o", "out.json")


@pytest.fixture
def saved(program: Program) -> Program:
    """The program, and two runs."""
    for name in ("run.json", "other.json"):
        save_run(Path(name), gpus(4))
    return program


@pytest.mark.parametrize(
    "args",
    [
        ("pairs", *SIM, *MEASURING),
        ("copies", *SIM, *MEASURING),
        ("latency", *SIM, "--quick", "-o", "out.json"),
        ("allreduce", *SIM, *MEASURING),
        ("check", *SIM, *MEASURING),
        ("check", "run.json"),
        ("select", "2", *SIM, "--no-verify"),
        ("select", "2", "run.json", "--elsewhere", "--format", "json"),
        ("topo", *SIM),
        ("topo", "0", "1", *SIM),
        ("nodes", "--backend", "sim", "--fabric-cluster", "thin-32"),
        ("show", "run.json"),
        ("rank", "run.json"),
        ("compare", "run.json", "other.json"),
        ("compare", "run.json", "--reference"),
        ("predict", "run.json", "--model", "gpt2"),
        ("runs",),
        ("doctor", "--backend", "host"),
    ],
    ids=" ".join,
)
def test_all_of_stdout_is_json(saved: Program, args: tuple[str, ...]) -> None:
    answer = json.loads(saved(*args, "--json").out)
    assert isinstance(answer, dict | list)


def test_what_is_printed_is_what_is_saved(saved: Program) -> None:
    printed = saved("pairs", *SIM, *MEASURING, "--json").out
    assert printed == saved("show", "out.json", "--json").out
    assert run_file.loads(printed, "stdout").settings.seed == 1


@pytest.mark.parametrize(
    "args",
    [
        ("select", "2", "run.json", "--elsewhere", "--format", "list"),
        ("show", "run.json", "--format", "nccl-tests"),
        ("show", "run.json", "--operation", "allreduce"),
        ("show", "run.json", "--section", "health"),
    ],
)
def test_two_ways_to_print_are_refused(saved: Program, args: tuple[str, ...]) -> None:
    result = saved(*args, "--json")
    assert (result.status, result.out) == (2, "")
    assert "use only one" in result.line or "leave out" in result.line
