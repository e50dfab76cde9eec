"""The exit statuses of every command that measures or judges; the first line names the failure and its devices."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest

from collbench.judge.diagnose import Diagnosis, judge
from collbench.model.errors import FailureKind
from collbench.model.operations import Operation
from collbench.model.run import Measurement, Run
from collbench.report.verdicts import contradiction
from collbench.runfile import run_file
from collbench.sim.fabrics import Fault, FaultKind
from tests.builders import gpus, in_words, measured, paths, run_of
from tests.cli.program import Program
from tests.judge.checked import failed, h200
from tests.sim.made import faulty_file

HANGS = Fault(FaultKind.HANGING_LINK, (2, 3))
PLACE = "FAILED: GPU2-GPU3: "


def machine(name: str, *faults: Fault) -> tuple[str, ...]:
    """Return the options that simulate a machine with these faults."""
    return (*faulty_file(name, *faults), "--seed", "3", "--output", "run.json")


@pytest.mark.parametrize(
    "args",
    [
        ("copies", "--sizes", "1M"),
        ("latency",),
        ("allreduce", "--pairs", "--sizes", "1M"),
        ("alltoall", "--pairs", "--sizes", "1M", "--format", "nccl-tests"),
    ],
    ids=lambda args: args[0],
)
def test_a_pair_that_hangs_is_the_first_line_and_the_status_of_what_measures(
    program: Program, args: tuple[str, ...]
) -> None:
    result = program(*args, *machine("nvlink-pairs-2x2", HANGS))
    assert result.status == 4, result.err
    assert "GPU2-GPU3: " in result.out.splitlines()[0]
    assert "hang" in result.out.splitlines()[0].lower()
    shown = program("show", "run.json")
    assert (shown.status, PLACE in shown.out.splitlines()[0]) == (0, True)
    assert {m.failure.kind for m in run_file.load(Path("run.json")).measurements if m.failure} == {FailureKind.HANG}


SLOW = Fault(FaultKind.SLOW_LINK, (0, 3), factor=0.33)
NO_P2P = Fault(FaultKind.P2P_DISABLED, (), words="NCCL_P2P_DISABLE=1")
NARROW = Fault(FaultKind.PCIE_DEGRADED, (2,), width=4)
LARGE = ("--sizes", "64M")


def test_the_command_that_explains_a_run_without_a_name_names_that_run(program: Program) -> None:
    first, *_ = program("pairs", *LARGE, *faulty_file("dgx-1v", SLOW), "--seed", "3").out.splitlines()
    command = re.search(r"'collbench (check .*)' explains it$", first)
    assert command
    explained = program(*shlex.split(command[1]))
    assert explained.out.startswith("NV_DEGRADED GPU0-GPU3: ")
    assert explained.status == 3


@pytest.mark.parametrize(
    ("name", "faults", "first"),
    [
        ("titan-rtx-nv2", (NO_P2P,), "NV_NOT_USED GPU0-GPU1: "),
        ("pcie-4-two-bridges", (NARROW,), "PCIE_DEGRADED GPU2: "),
        ("dgx-1v", (SLOW, replace(SLOW, devices=(5, 6))), "NV_DEGRADED GPU0-GPU3: "),
    ],
)
def test_pairs_begins_with_what_contradicts_labels_and_has_the_status_of_check(
    program: Program, name: str, faults: tuple[Fault, ...], first: str
) -> None:
    result = program("pairs", *LARGE, *machine(name, *faults))
    trouble, answer, *_ = result.out.splitlines()
    assert (result.status, trouble.startswith(first), answer.startswith("best 2 ")) == (3, True, True), trouble
    assert trouble.endswith(" (sim): 'collbench check run.json' explains it")
    assert ("; 1 more contradiction" in trouble) == (len(faults) > 1)
    assert first in result.err.splitlines()[-1]
    checked = program("check", "run.json", "--json")
    assert (checked.status, json.loads(checked.out)["verdicts"][0]["kind"]) == (3, first.split(maxsplit=1)[0])
    shown = program("show", "run.json")
    assert (shown.status, shown.out.splitlines()[0]) == (0, trouble)
    chosen = program("select", "2", "run.json", "--any-machine").out.splitlines()
    assert chosen[1].startswith(f"check     {first}")


def test_json_has_the_status_of_every_command_that_judges(program: Program) -> None:
    """In a printed run it is that of measuring it: `show` ends with 0."""
    measuring = program("pairs", "--sizes", "1M,64M", "--json", *machine("pcie-4-two-bridges", NARROW))
    assert (measuring.status, json.loads(measuring.out)["answer"]["exit_status"]) == (3, 3)
    shown = program("show", "run.json", "--json")
    assert (shown.status, json.loads(shown.out)["answer"]["exit_status"]) == (0, 3)
    Path("again.json").write_bytes(Path("run.json").read_bytes())
    for command, status in {
        "show run.json --ranking": 0,
        "check run.json": 3,
        "compare run.json again.json": 0,
        "compare run.json --reference": 1,
        "reference H100 gather": 1,
        "reference 8xH100 allreduce --size 1G --busbw 311": 3,
        "select 2 run.json --any-machine": 0,
        "predict run.json --params 124M --gpus 2": 0,
        "nodes --backend sim --fabric-cluster thin-32 --seed 1": 0,
    }.items():
        answered = program(*shlex.split(command), "--json")
        assert (answered.status, json.loads(answered.out)["exit_status"]) == (status, status), command
    examined = program("doctor", "--backend", "host", "--json")  # of this machine
    assert json.loads(examined.out)["exit_status"] == examined.status


def test_pairs_of_cores_are_not_judged_by_labels_that_collbench_made() -> None:
    slow = copies_of_cores(slow=(0, 1))
    assert judge(slow)
    assert contradiction(Diagnosis(slow)) == ""


def copies_of_cores(slow: tuple[int, int]) -> Run:
    """Return copies between four cores, of which one link has half of the others' rate."""
    points = [
        measured(Operation.CPU_WRITE, link, 5.0 if link == slow else 10.0, 2**24, 9)
        for link in permutations(range(4), 2)
    ]
    cores = [replace(gpu, uuid=f"CPU-{gpu.index}", name="AMD EPYC") for gpu in gpus(4)]
    return run_of(cores, points, paths(4, "NODE"), backend="host")


def saved(run: Run, name: str = "run.json") -> None:
    run_file.save(run, Path(name))


def without_measurement() -> Run:
    return replace(h200(), measurements=[])


def latency_alone() -> Run:
    return run_of(
        gpus(4), [measured(Operation.CE_WRITE, (a, b), 0.002, 8) for a in range(4) for b in range(4) if a != b]
    )


def one_trial() -> Run:
    return replace(h200(), measurements=[replace(m, samples=m.samples[:1]) for m in h200().measurements])


@pytest.mark.parametrize(
    ("what", "run"),
    [("no measurement", without_measurement()), ("latency alone", latency_alone()), ("one trial each", one_trial())],
    ids=["nothing", "latency", "one trial"],
)
@pytest.mark.parametrize("args", [(), ("--expect", "4")], ids=["plain", "expect"])
def test_nothing_judged_is_no_agreement(program: Program, what: str, run: Run, args: tuple[str, ...]) -> None:
    saved(run)
    result = program("check", "run.json", *args)
    assert result.status == 1, what
    assert result.out.startswith("not judged: "), what
    assert "collbench check" in result.out.splitlines()[0], what
    assert "agree" not in result.out, what
    answer = json.loads(program("check", "run.json", "--json", *args).out)
    assert (answer["exit_status"], answer["pairs"], answer["judged"]) == (1, 6, 0), what


@pytest.mark.parametrize("run", [h200(), failed(h200(), Operation.CE_WRITE, (2, 3), "words")], ids=["sound", "failed"])
def test_a_shortfall_is_reported_first_and_in_json(program: Program, run: Run) -> None:
    saved(run)
    result = program("check", "run.json", "--expect", "8")
    head = result.out.split("agree")[0]
    assert result.status != 0
    assert result.out.startswith(("FAILED: ", "HANG "))
    missed = result.err.splitlines()[-1].removeprefix("collbench: ")
    assert missed in " ".join(head.split())
    answer = json.loads(program("check", "run.json", "--expect", "8", "--json").out)
    assert missed in answer["failed"]


@pytest.mark.parametrize(
    ("what", "args"),
    [
        ("compare", ("compare", "base.json", "run.json")),
        ("reference", ("compare", "run.json", "--reference")),
        ("show --ranking", ("show", "--ranking", "run.json")),
        ("select", ("select", "4", "run.json", "--any-machine")),
        ("check", ("check", "run.json")),
    ],
)
@pytest.mark.parametrize(("kind", "status"), [(FailureKind.HANG, 4), (None, 1)])
def test_what_judges_a_run_with_a_failed_pair_ends_with_its_status(
    program: Program, what: str, args: tuple[str, ...], kind: FailureKind | None, status: int
) -> None:
    saved(h200(), "base.json")
    saved(failed(h200(), Operation.CE_WRITE, (2, 3), "words", kind))
    result = program(*args)
    assert result.status == status, what
    where = result.out if what == "select" else result.out.splitlines()[0]
    assert re.search("GPU2( → |→|-)GPU3", where), what
    assert "Normal" not in result.out, what
    assert "all pairs tie" not in result.out.lower(), what


def test_a_choice_without_the_failed_pair_is_a_good_one_and_one_with_it_is_not_acted_on(program: Program) -> None:
    saved(failed(h200(), Operation.CE_WRITE, (2, 3), "words"))
    sound = program("select", "3", "run.json", "--any-machine")
    assert (sound.status, "includes failed" in sound.out) == (0, False)
    acting = program("select", "4", "run.json", "--any-machine", "--format", "env")
    assert (acting.status, acting.out) == (4, "false\n")


def lacking(run: Run, pair: set[int]) -> Run:
    kept: list[Measurement] = [m for m in run.measurements if set(m.point.members) != pair]
    return replace(run, measurements=kept)


@pytest.mark.parametrize(
    ("what", "new", "status"),
    [
        ("the same", h200(), 0),
        ("a pair is missing", lacking(h200(), {0, 1}), 1),
        ("too few trials", one_trial(), 1),
    ],
)
def test_a_comparison_that_could_not_be_made_does_not_pass(program: Program, what: str, new: Run, status: int) -> None:
    saved(h200(), "base.json")
    saved(new)
    result = program("compare", "base.json", "run.json")
    assert result.status == status, what
    assert result.out.startswith("not judged: ") is bool(status), what


def test_runs_whose_common_points_failed_are_no_usage_error(program: Program) -> None:
    run = h200()
    run.measurements = [replace(run.measurements[0], samples=[], failure=in_words("it hung", FailureKind.HANG))]
    saved(run, "base.json")
    saved(run)
    result = program("compare", "base.json", "run.json")
    assert (result.status, result.out) == (4, "")
    assert "no data point was measured in both runs: base.json FAILED: GPU0→GPU1: 1 data point, hang" in result.err
