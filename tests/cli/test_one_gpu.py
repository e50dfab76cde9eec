"""One GPU of a simulated machine: its own links are measured and judged, and one device can be chosen from any run."""

from __future__ import annotations

import json
import pathlib

import pytest

from collbench.runfile import run_file
from collbench.sim.fabrics import Fault, FaultKind
from tests.cli.program import Program, one_line
from tests.sim.made import faulty_file

ONE = ("--backend", "sim", "--fabric", "hgx-h200", "--devices", "3", "--seed", "1")
EIGHT = ("--backend", "sim", "--fabric", "hgx-h200", "--seed", "1")


@pytest.mark.parametrize("command", [("copies", "--patterns", "host,local"), ("copies",), ("latency",), ("check",)])
def test_one_gpu_is_measured_alone_and_shown(program: Program, command: tuple[str, ...]) -> None:
    done = program(*command, *ONE, "-o", "run.json")
    assert done.status == 0, done.err
    run = run_file.load(pathlib.Path("run.json"))
    assert {m.point.members for m in run.measurements} == {(0,)}
    assert run.devices[0].index == 3
    shown = program("show", "run.json")
    assert shown.status == 0, shown.err
    assert "2 GPUs" not in shown.out  # by host copies with the memory of two NUMA nodes
    judged = program("check", "run.json")
    assert judged.status == (1 if command == ("latency",) else 0), judged.err  # 8 bytes show no rate


@pytest.mark.parametrize(
    "command",
    [("pairs",), ("allreduce",), ("latency", "--collectives"), ("copies", "--patterns", "both-ways,one-to-all")],
)
def test_what_needs_a_pair_is_refused_and_says_what_does_not(program: Program, command: tuple[str, ...]) -> None:
    refused = program(*command, *ONE)
    assert refused.status == 2
    assert "needs two or more devices, and here there would be 1 (GPU3)" in one_line(refused.err)
    assert "'collbench copies'" in refused.err


@pytest.mark.parametrize("quick", [(), ("--quick",)])
def test_a_slot_at_half_width_is_found_on_the_only_gpu(program: Program, quick: tuple[str, ...]) -> None:
    """The truth: this GPU's slot runs at 8 of its 16 lanes, and that of another GPU, which is not looked at."""
    narrow = faulty_file("hgx-h200", Fault(FaultKind.PCIE_DEGRADED, (3,), width=8))
    machine = (*narrow, "--seed", "1", "--expect", "1", "--json")
    found = json.loads(program("check", *quick, *machine, "--devices", "3").out)
    assert (found["exit_status"], [verdict["devices"] for verdict in found["verdicts"]]) == (3, [["GPU3"]])
    healthy = json.loads(program("check", *quick, *machine, "--devices", "4").out)
    assert (healthy["exit_status"], healthy["verdicts"], healthy["not_judged"]) == (0, [], [])


@pytest.mark.parametrize("command", [("allreduce", "--quick"), ("copies", "--patterns", "host,local"), ("latency",)])
def test_one_device_is_chosen_from_a_run_without_pairs(program: Program, command: tuple[str, ...]) -> None:
    assert program(*command, *EIGHT, "-o", "run.json").status == 0
    chosen = program("select", "1", "run.json", "--any-machine", "--exclude", "0,2")
    assert chosen.status == 0, chosen.err
    assert chosen.out.startswith("GPU1 ")
    if command[0] != "latency":  # which times pairs
        assert "the run has no pair" in one_line(program("select", "2", "run.json", "--any-machine").err)


def test_a_gpu_on_which_something_failed_is_not_chosen_while_there_are_others(program: Program) -> None:
    assert program("copies", "--patterns", "host,local", *EIGHT, "-o", "run.json").status == 0
    path = pathlib.Path("run.json")
    data = json.loads(path.read_text(encoding="utf-8"))
    first = next(measurement for measurement in data["measurements"] if measurement["point"]["members"] == [0])
    first |= {
        "samples": [],
        "stop": "failed",
        "failure": {"kind": "error", "cause": "reported", "detail": "device lost"},
    }
    path.write_text(json.dumps(data), encoding="utf-8")
    chosen = program("select", "1", "run.json", "--any-machine")
    assert chosen.out.startswith("GPU1 "), chosen.out + chosen.err
