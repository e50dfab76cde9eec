"""`check` with the map of P2P, and `check --map-p2p`, on simulated machines."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from collbench.model.errors import MachineError
from collbench.runfile import run_file
from collbench.sim.fabrics import Fault, FaultKind, load
from tests.cli.program import Program
from tests.cli.test_check import simulated
from tests.judge.checked import h200
from tests.sim.made import QUIET, fabric_text, faulty_file


def test_the_page_says_what_p2p_does_and_what_is_worse_comes_first(program: Program) -> None:
    two = "titan-rtx-nv2"
    _, page, _ = simulated(program, None, name=two)
    assert "p2p       P2P works on all 2 simulated links (sim).\n" in page
    assert "cause" not in page
    status, page, _ = simulated(program, Fault(FaultKind.P2P_DISABLED), "--force", name=two)
    assert status == 3
    assert "p2p       P2P works on all 2 simulated links; NCCL uses it on none (sim).\n" in page
    assert "fix       unset NCCL_P2P_DISABLE\n" in page
    status, page, _ = simulated(program, Fault(FaultKind.HANGING_LINK, (0, 1), one_way=True), "--force", name=two)
    assert status == 4
    assert "p2p       P2P is broken on 1 of 2 links: GPU0→GPU1 hangs (sim).\n" in page
    answer = json.loads(program("check", "run.json", "--json").out)
    assert answer["p2p"] is None, "a saved run has no such map"
    assert " on 1 of 2 links; the map of P2P is not saved: " in program("check", "run.json").out
    program("allreduce", "--backend", "sim", "--fabric", two, "--sizes", "1G", "-o", "sums.json")
    assert "p2p       no large copy was measured; the map " in program("check", "sums.json").out


def test_a_slot_without_its_lanes_is_named_though_copies_through_the_host_are_slower_still(program: Program) -> None:
    machine = faulty_file("pcie-4-two-bridges", Fault(FaultKind.PCIE_DEGRADED, (1,), width=1))
    mapped = program("check", "--map-p2p", *machine, "--seed", "3")
    assert mapped.status == 3
    assert "P2P works, but is slow on 6 of 12 links: PCIe lanes are missing: GPU1 x1 of x16 (sim).\n" in mapped.out
    assert "\nfix       reseat the card and its riser" in mapped.out


def test_a_check_calls_the_same_links_slow_as_the_map(program: Program) -> None:
    four = load("pcie-4-two-bridges")
    roots = (replace(four.host_bridges[0], peer_gbs=13.7),)  # host copies of 64M are 1.34 times as fast, of 16M 1.32
    Path("root.json").write_text(fabric_text(replace(four, name="root", host_bridges=roots, noise=QUIET)), "utf-8")
    machine = ("--backend", "sim", "--fabric", "root.json")
    said = "P2P works, but is slow on 8 of 12 links: "
    assert f"answer    {said}" in program("check", "--map-p2p", *machine).out
    assert f"p2p       {said}" in program("check", *machine).out


def test_verdicts_are_printed_where_p2p_cannot_be_examined(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: object, **__: object) -> None:
        raise MachineError("NVML: GPU is lost")

    monkeypatch.setattr("collbench.p2p.examine.examine", lost)
    status, page, notices = simulated(program, None)
    assert status == 1
    assert "agree     28 of 28 pairs: NV18" in page
    assert "P2P could not be examined: NVML: GPU is lost" in notices
    status, page, _ = simulated(program, Fault(FaultKind.SLOW_LINK, (2, 5), factor=0.5), "--force")
    assert status == 3, "the worse status"
    assert "NV_DEGRADED  GPU2, GPU5" in page


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--quick", "--sizes", "1M"), "--map-p2p measures no run: leave out --sizes, --quick"),
        (("run.json",), "--map-p2p examines this machine, not run.json"),
        (("--backend", "host"), "CPU cores have no P2P"),
        ((), "no GPU to examine: "),
    ],
)
def test_the_map_of_p2p_takes_what_names_gpus_only(
    program: Program, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], message: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    run_file.save(h200(), Path("run.json"))
    result = program("check", "--map-p2p", *args)
    assert (result.status, result.out) == (2, "")
    assert message in result.line
