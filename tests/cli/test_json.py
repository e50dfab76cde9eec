"""--json: every command that prints a page prints JSON instead, and nothing else on stdout."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click
import pytest

from collbench.cli.program import cli
from collbench.jobs import job_file
from collbench.model.operations import COLLECTIVES
from collbench.runfile import run_file
from tests.builders import gpus
from tests.cli.program import Program, save_run
from tests.jobs.replay.made import data_parallel

DOCS = Path(__file__).parents[2] / "docs"
SIM = ("--backend", "sim", "--fabric", "nvlink-pairs-2x2")
MEASURING = ("--quick", "--seed", "1", "--sizes", "1M", "-o", "out.json")


@pytest.fixture
def saved(program: Program) -> Program:
    """The program, two runs, and a recorded job."""
    for name in ("run.json", "other.json"):
        save_run(Path(name), gpus(4))
    job_file.save(data_parallel(2, (2**28, 2**27)), Path("job.json"))
    return program


# What every command prints, with the "format" that it says.
PRINTED = [
    ("collbench-run", ("pairs", *SIM, *MEASURING)),
    ("collbench-run", ("copies", *SIM, *MEASURING)),
    ("collbench-run", ("latency", *SIM, "--quick", "-o", "out.json")),
    ("collbench-run", ("allreduce", *SIM, *MEASURING)),
    ("collbench-run", ("overlap", *SIM, "--sizes", "64M", "-o", "out.json")),
    ("collbench-run", ("replay", "job.json", *SIM, "-o", "out.json")),
    ("collbench-run", ("show", "run.json")),
    ("collbench-check", ("check", *SIM, *MEASURING)),
    ("collbench-check", ("check", "run.json")),
    ("collbench-selection", ("select", "2", *SIM, "--no-verify")),
    ("collbench-selection", ("select", "2", "run.json", "--any-machine", "--format", "json")),
    ("collbench-topology", ("topo", *SIM)),
    ("collbench-topology", ("topo", "0", "1", *SIM)),
    ("collbench-nodes", ("nodes", "--backend", "sim", "--fabric-cluster", "thin-32")),
    ("collbench-job-report", ("show", "job.json")),
    ("collbench-ranking", ("show", "--ranking", "run.json")),
    ("collbench-comparison", ("compare", "run.json", "other.json")),
    ("collbench-reference", ("compare", "run.json", "--reference")),
    ("collbench-references", ("reference", "H100")),
    ("collbench-reference-rate", ("reference", "8 x H100", "allreduce", "--size", "1G")),
    ("collbench-prediction", ("predict", "run.json", "--params", "12B", "--strategy", "fsdp")),
    (
        "collbench-job-prediction",
        ("predict", "job.json", "run.json", "--devices", "0,1", "--recorded-links", "run.json"),
    ),
    ("collbench-p2p", ("check", "--map-p2p", "--backend", "sim", "--fabric", "dgx-1v")),
    ("collbench-runs", ("runs",)),
    ("collbench-doctor", ("doctor", "--backend", "host")),
]


@pytest.mark.parametrize(("name", "args"), PRINTED, ids=[" ".join(args) for _, args in PRINTED])
def test_all_of_stdout_is_json_that_says_what_it_is(saved: Program, name: str, args: tuple[str, ...]) -> None:
    printed = saved(*args, *(() if "--format" in args else ("--json",)))
    answer = json.loads(printed.out)
    assert list(answer)[:2] == ["format", "format_version"]
    assert (answer["format"], type(answer["format_version"])) == (name, int)
    assert answer["format_version"] >= 1


# What has no figures of a backend: published ones, several runs, this machine's setup, and a job's own record.
WITHOUT_BACKEND = {
    "collbench-references",
    "collbench-reference-rate",
    "collbench-runs",
    "collbench-doctor",
    "collbench-job-report",
}


def test_a_script_tells_simulated_figures_by_the_same_key_everywhere(saved: Program) -> None:
    for name in ("run.json", "other.json"):
        assert saved("pairs", *SIM, "--quick", "--seed", "1", "-o", name, "--force").status == 0
    for name, args in PRINTED:
        if name not in WITHOUT_BACKEND and "-o" not in args:
            printed = saved(*args, *(() if "--format" in args else ("--json",)))
            assert json.loads(printed.out).get("backend") == "sim", args


def test_every_command_that_prints_json_is_tried() -> None:
    context = click.Context(cli)
    commands = {name: cli.get_command(context, name) for name in cli.list_commands(context)}
    with_json = {name for name, one in commands.items() if one and any("--json" in param.opts for param in one.params)}
    tried = {args[0] for _, args in PRINTED} | {*COLLECTIVES}  # which are one function
    assert with_json - {"ablate"} == tried  # it trains: tests/ablations/test_command.py has it


def test_the_documents_name_every_format() -> None:
    item = re.search(r"^- JSON: .*?^\n", (DOCS / "README.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert item is not None
    assert set(re.findall(r"`(collbench-[\w-]+)`", item[0])) == {"collbench-ablation", *(name for name, _ in PRINTED)}


def test_what_is_printed_is_what_is_saved(saved: Program) -> None:
    printed = saved("pairs", *SIM, *MEASURING, "--json").out
    assert printed == saved("show", "out.json", "--json").out
    assert run_file.loads(printed, "stdout").settings.seed == 1
