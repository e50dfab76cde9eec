"""One GPU of a simulated machine: its own links are measured and judged, and one device can be chosen from any run."""

from __future__ import annotations

import json
import pathlib

import pytest

from collbench.runfile import run_file
from collbench.sim.fabrics import Fault, FaultKind
from tests.cli.program import Program
from tests.sim.made import faulty_file

ONE = ("--backend", "sim", "--fabric", "hgx-h200", "--devices", "3", "--seed", "1")


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


@pytest.mark.parametrize("quick", [(), ("--quick",)])
def test_a_slot_at_half_width_is_found_on_the_only_gpu(program: Program, quick: tuple[str, ...]) -> None:
    """The truth: this GPU's slot runs at 8 of its 16 lanes, and that of another GPU, which is not looked at."""
    narrow = faulty_file("hgx-h200", Fault(FaultKind.PCIE_DEGRADED, (3,), width=8))
    machine = (*narrow, "--seed", "1", "--expect", "1", "--json")
    found = json.loads(program("check", *quick, *machine, "--devices", "3").out)
    assert (found["exit_status"], [verdict["devices"] for verdict in found["verdicts"]]) == (3, [["GPU3"]])
    healthy = json.loads(program("check", *quick, *machine, "--devices", "4").out)
    assert (healthy["exit_status"], healthy["verdicts"], healthy["not_judged"]) == (0, [], [])
