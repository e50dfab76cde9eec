import re
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collbench.judge.diagnose import Diagnosis, Kind, Severity, judge
from collbench.model.errors import ExitStatus
from collbench.model.operations import Variant, Work
from collbench.model.run import Health, Run
from collbench.report import frame, verdicts
from collbench.report.html import content
from collbench.sim import fabrics
from collbench.sim.fabrics import Fabric, Fault, FaultKind
from tests.builders import ALL, measured
from tests.judge.checked import HOST, h200, pcie, trials
from tests.report.pages import text
from tests.sim import faults
from tests.sim.made import simulate


def page(run: Run, width: int = 100) -> str:
    return text(verdicts.page(Diagnosis(run)), wide=width)


@pytest.mark.parametrize(
    ("title", "slowed", "healthy"),
    [
        ("both bridges of two", [(0, 1), (2, 3)], 4),
        ("one of them", [(2, 3)], 5),
        ("a pair over the sockets", [(0, 2)], 5),
    ],
)
def test_what_agrees_is_all_but_the_slow_pairs(title: str, slowed: list[tuple[int, int]], healthy: int) -> None:
    slow_links = tuple(Fault(FaultKind.SLOW_LINK, pair, factor=0.5) for pair in slowed)
    asked = replace(ALL, backend="sim", sizes=(2**26, 2**30), command=("pairs",), isolated=True)
    run = simulate(replace(fabrics.load("nvlink-pairs-2x2"), faults=slow_links), asked, 3)
    assert f"agree     {healthy} of 6 pairs: " in page(run), title


def test_a_slow_bridge_of_a_gpu_whose_other_paths_are_slow_may_be_slow_by_that_gpu() -> None:
    slow = (Fault(FaultKind.SLOW_GPU, (1,), factor=0.5),)
    asked = replace(ALL, backend="sim", sizes=(2**26, 2**30), command=("pairs",), isolated=True)
    printed = page(simulate(replace(fabrics.load("nvlink-pairs-2x2"), faults=slow), asked, 3), 200)
    of_pair, of_gpu = re.findall(r"  cause +(.*)", printed)[:2]
    assert of_pair.endswith("; or what slows all PCIe paths of GPU1, too")
    assert "GPU1" in of_gpu
    assert "too" not in of_gpu


@pytest.mark.parametrize(
    ("down", "slow", "found"),
    [
        ({2: 4, 6: 2}, (), ["LINKCOUNT_MISMATCH  GPU2 (NV14)", "LINKCOUNT_MISMATCH  GPU6 (NV16)"]),
        ({2: 2, 6: 4}, (), ["LINKCOUNT_MISMATCH  GPU6 (NV14)", "LINKCOUNT_MISMATCH  GPU2 (NV16)"]),
        ({2: 4}, (2,), ["LINKCOUNT_MISMATCH  GPU2 (NV14)", "NV_DEGRADED  GPU2 (NV14)"]),
    ],
)
def test_links_with_a_label_of_their_own_blame_the_one_gpu_of_them_all(
    down: dict[int, int], slow: tuple[int, ...], found: list[str]
) -> None:
    """Between two GPUs that lost links the label has what is left of the worse one's."""
    lost = tuple(Fault(FaultKind.LINKS_DOWN, (gpu,), links=count) for gpu, count in down.items())
    slower = tuple(Fault(FaultKind.SLOW_GPU, (gpu,), factor=0.6) for gpu in slow)
    asked = replace(ALL, backend="sim", sizes=(2**26,), command=("pairs",))
    printed = page(simulate(replace(fabrics.load("hgx-h200"), faults=lost + slower), asked, 1))
    assert re.findall(r"^(?!LABELS_DIFFER)[A-Z_]+  GPU.*", printed, re.MULTILINE) == found


@pytest.mark.parametrize("busy", [(3,), (1, 3, 5, 7)])
def test_no_pair_of_a_busy_gpu_agrees(busy: tuple[int, ...]) -> None:
    loads = tuple(Fault(FaultKind.FOREIGN_LOAD, (gpu,), factor=0.9) for gpu in busy)
    asked = replace(ALL, backend="sim", sizes=(2**26,), command=("pairs",))
    run = simulate(replace(fabrics.load("hgx-h200"), faults=loads), asked, 1)
    others = 8 - len(busy)
    assert f"agree     {others * (others - 1) // 2} of 28 pairs: " in page(run)


@pytest.mark.parametrize(
    ("first", "links", "node", "said"),
    [
        ("GPU0-GPU1", [(0, 1), (1, 0)], None, True),
        ("GPU0-GPU1", [(0, 1), (1, 0)], 0, False),
        ("all links of GPU0", [link for link in permutations(range(4), 2) if 0 in link], None, True),
    ],
)
def test_beside_a_verdict_a_gpu_that_copies_slowly_with_host_memory_is_said(
    first: str, links: list[tuple[int, int]], node: int | None, said: bool
) -> None:
    """The first line, which says it where all agrees, has the verdict. Where a verdict has it, it is said once."""
    run = h200(lambda work, ends: 0.6 if (2 in ends if work in HOST else ends in links) else 1.0)
    run = replace(run, devices=tuple(replace(device, numa_node=node) for device in run.devices))
    printed = page(run)
    assert printed.startswith(f"NV_DEGRADED {first}: ")
    assert ("INTRA_LABEL_OUTLIER  GPU2" in printed) is not said
    assert ("\nopen      GPU2 copies with host memory at " in printed) is said


def test_a_verdict_beyond_the_explained_ones_still_says_what_was_found() -> None:
    """With its cause: it was only its kind and its GPU, which read like a page that was cut off."""
    failing = replace(h200(), health_after=tuple(Health(ecc_errors=3) for _ in range(4)))
    printed = text(verdicts.page(Diagnosis(failing)), verbose=False)
    assert printed.count("\n  what      GPU") == 3
    assert "\n\nGPU_ERRORS GPU3: 3 uncorrected ECC errors; cause: " in printed


def tree(**changes: Any) -> Fabric:
    """Return eight PCIe cards without NVLinks, four below each of two switches, with these changes."""
    four = fabrics.load("pcie-4-two-bridges")
    gpus = tuple(
        replace(four.gpus[0], pci_bus_id=f"00000000:{0x20 + at:02X}:00.0", bridge=f"switch{at // 4}") for at in range(8)
    )
    return replace(four, **({"gpus": gpus} | changes))


def test_the_first_line_names_the_part_to_blame_and_the_links_that_show_it() -> None:
    slow_uplink = tuple(replace(one, up_gbs=9.0, down_gbs=9.0) for one in tree().bridges[:1])
    of_uplink = judged(tree(bridges=(*slow_uplink, *tree().bridges[1:])))
    assert of_uplink.startswith("INTRA_LABEL_OUTLIER the uplink of the PCIe switch above GPU0, GPU1, GPU2, GPU3: ")
    assert ", on 16 PHB pairs; " in of_uplink
    of_slot = judged(tree(faults=(Fault(FaultKind.SLOW_GPU, (5,), factor=0.5),)))
    assert of_slot.startswith("INTRA_LABEL_OUTLIER GPU5's slot: ")
    assert ", on all links of GPU5; " in of_slot
    assert "NVLink" not in of_slot


def judged(fabric: Fabric) -> str:
    """Return the page of a check of a machine."""
    copies = (Variant.PLAIN, Variant.STAGED, Variant.HOST)
    asked = replace(ALL, backend="sim", sizes=(2**26,), copies=copies, command=("check",), isolated=True)
    return text(verdicts.page(Diagnosis(simulate(fabric, asked, 1))), verbose=False)


@pytest.mark.parametrize(("gpu", "factor", "kind"), [(2, 0.6, "NV_DEGRADED"), (5, 0.3, "NV_NOT_USED")])
def test_a_gpu_whose_nvlinks_and_pcie_paths_are_slow_has_one_verdict(gpu: int, factor: float, kind: str) -> None:
    """Its NVLinks of two labels carry less than others, or no more than PCIe."""
    slow = Fault(FaultKind.SLOW_GPU, (gpu,), factor=factor)
    printed = judged(replace(fabrics.load("dgx-1v"), faults=(slow,)))
    said = " ".join(printed.split())
    assert said.startswith(f"{kind} all NVLinks of GPU{gpu}: ")
    assert printed.count("\n  what ") == 1
    assert f"; also GPU{gpu}'s slot (" in said
    commands = f"nvidia-smi nvlink -s -i {gpu}; nvidia-smi nvlink -e -i {gpu}; sudo lspci -vvv -s "
    assert commands in said or kind == "NV_NOT_USED"


def test_every_kind_of_the_method_is_documented() -> None:
    documented = (Path(__file__).parents[2] / "docs" / "check.md").read_text()
    assert [kind for kind in Kind if f"`{kind}`" not in documented] == []


def nccl_at(gbs: float, name: str = "NVIDIA H100 80GB HBM3") -> Run:
    """Return a run whose copies are healthy, and whose collectives on pairs reach so many GB/s."""
    run = h200(lambda work, _: gbs / 326.08 if work.operation.is_collective else 1.0)
    run.devices = tuple(replace(device, name=name) for device in run.devices)
    return run


def test_without_p2p_the_first_line_names_the_fault_and_no_rate_reads_normal() -> None:
    """Before NCCL's curves were figures, "rates" named only the copies of H100, which are normal."""
    run = nccl_at(26.0)
    run.settings.environment["NCCL_P2P_DISABLE"] = "1"
    for printed in (text(frame.run_page(Diagnosis(run)), verbose=False), page(run)):
        assert printed.startswith("NV_NOT_USED ")
        assert "rates     allreduce at 1G on 2 GPUs: below, 26.0 to 26.0 GB/s" in printed
    # Of other GPUs no figure sees NCCL's rate.
    unknown = nccl_at(26.0, "NVIDIA H200 NVL")
    pairs = text(frame.run_page(Diagnosis(unknown)), verbose=False)
    assert pairs.startswith("NV_NOT_USED ")
    assert "rates" not in pairs + page(unknown)


def test_check_says_what_is_below_normal_where_labels_and_copies_agree() -> None:
    """280 GB/s is no contradiction to a link of 450, but healthy pairs of H100 reach 304 or more."""
    diagnosis = Diagnosis(nccl_at(280.0))
    assert [one for one in diagnosis.verdicts if one.severity is not Severity.INFO] == []
    first = "allreduce at 1G on 2 GPUs: below, 280.0 to 280.0 GB/s, lowest on GPU0-GPU1"
    assert text(verdicts.page(diagnosis), verbose=False).startswith(first)
    assert text(frame.run_page(diagnosis), verbose=False).startswith(first)
    assert diagnosis.status is ExitStatus.CONTRADICTION
    assert verdicts.contradiction(diagnosis).startswith(first)
    told = verdicts.as_json(diagnosis)
    below = [one["operation"] for one in told["reference"]["answers"] if one["standing"] == "below"]
    assert (told["exit_status"], below) == (3, ["allreduce"])
    healthy = Diagnosis(nccl_at(320.0))
    assert (healthy.status, verdicts.contradiction(healthy)) == (ExitStatus.DONE, "")


@pytest.mark.parametrize("kind", ["asymmetry", "intra-label-outlier", "order-inversion"])
def test_the_rate_the_percent_and_what_it_is_of_multiply_out(kind: str) -> None:
    asked = replace(ALL, backend="sim", sizes=(2**26,), command=("pairs",), isolated=True)
    fabric = faults.with_fault(fabrics.load("pcie-4-two-bridges"), kind, np.random.default_rng(1))[0]
    verdict = judge(simulate(fabric, asked, 1))[0]
    assert verdict.kind.lower().replace("_", "-") == kind
    assert verdict.measured is not None
    assert verdict.theory_gbs is not None
    said = re.search(r"(\d+)% (?:slower than|less than|below) the ([\d.]+) GB/s of", verdicts.finding(verdict))
    assert said, verdicts.finding(verdict)
    share, base = 1 - int(said[1]) / 100, float(said[2])
    assert verdict.measured[1] == pytest.approx(share * base, abs=0.006 * base)
    assert f"{verdict.measured[1]:.1f} GB/s, theory {verdict.theory_gbs:.3g}" in verdicts.finding(verdict)


def test_a_throttled_gpu_without_a_peer_to_be_compared_with_is_said() -> None:
    slow = Fault(FaultKind.THROTTLED_GPU, (0,), factor=0.5, words="SW thermal slowdown")
    asked = replace(ALL, backend="sim", sizes=(2**26,), command=("pairs",), isolated=True)
    machine = fabrics.load("pcie-4-two-bridges")
    two = replace(machine, gpus=machine.gpus[:2], faults=(slow,))
    shown = page(simulate(two, asked, 1))
    assert shown.startswith("THROTTLED GPU0: throttled in 100% of its trials (SW thermal slowdown) (sim)")
    assert "health    throttled: SW thermal slowdown on GPU0 in " in shown
    assert "health" not in page(simulate(replace(two, faults=()), asked, 1))


def test_a_much_slower_link_that_noise_excuses_is_not_said_to_agree_without_a_word() -> None:
    """Trials in two modes: the pair is 20% slower, and its intervals hold the others' rates."""

    def rate(_work: Work, members: tuple[int, ...]) -> float:
        return 0.8 if {*members} == {1, 2} else 1.0

    run = h200(rate)
    modes = (1.0, 0.72, 1.0, 1.3, 0.75)
    noisy = [
        measured(found.point.operation, found.point.members, [gbs * mode for mode in modes], found.point.size_bytes)
        if {*found.point.members} == {1, 2} and found.point.work.operation.is_copy
        else found
        for found in run.measurements
        if found.point.work.variant is Variant.PLAIN and not found.point.operation.is_collective
        for gbs in (316.0,)
    ]
    first = page(replace(run, measurements=noisy)).partition("\n")[0]
    assert re.search(
        r"agree, but GPU[12] → GPU[12] reaches 316.0 GB/s where NV18 links reach 39\d\.\d, and noise", first
    ), first


def test_a_gpu_whose_slot_may_be_slow_is_not_said_to_agree_without_a_word() -> None:
    """With memory on an unknown socket two thirds of the others' rate may be the way there."""
    run = pcie({}, lambda _w, _m: 22.0)
    slow = [
        trials(found.point.work, found.point.members, 16.0)
        if found.point.members == (3,) and found.point.work.variant is Variant.HOST
        else found
        for found in run.measurements
    ]
    devices = tuple(replace(device, numa_node=None if device.index else 0) for device in run.devices)
    shown = page(replace(run, measurements=slow, devices=devices)).partition("\n")[0]
    assert "agree, but GPU3 copies with host memory at 16.0 GB/s where GPUs like it reach 24.0: its slot is" in shown


@pytest.mark.parametrize("name", fabrics.names())
@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_links_that_are_all_slow_are_not_said_to_agree_without_a_word(name: str, factor: float) -> None:
    machine = fabrics.load(name)
    faults = (Fault(FaultKind.SLOW_GPU, tuple(range(len(machine.gpus))), factor=factor),) if factor < 1 else ()
    asked = replace(ALL, backend="sim", sizes=(2**26,), command=("pairs",), isolated=True)
    run = simulate(replace(machine, faults=faults), asked, 1)
    first = page(run).partition("\n")[0]
    assert first.startswith("Labels, tools and measurement agree.") is (factor == 1), first
    wrong = content([(name, run)], "1")["runs"][0]["answers"][-1]
    assert (wrong.short == "nothing found", wrong.state == "ok") == (factor == 1, factor == 1)


@pytest.mark.parametrize("name", fabrics.names())
def test_a_collective_is_not_held_to_what_a_path_allows(name: str) -> None:
    """Between the sockets of the healthy DGX-1V an all-reduce has 36% of the path's theory."""
    asked = replace(ALL, backend="sim", sizes=(2**26,), copies=(), pairs=True, command=("allreduce",))
    diagnosis = Diagnosis(simulate(fabrics.load(name), asked, 1))
    assert diagnosis.rates
    assert verdicts.conclusion(diagnosis) == "Labels, tools and measurement agree."


def test_a_whole_page_says_how_often_healthy_machines_are_accused_as_the_method_does() -> None:
    said = re.search(r"errs +(.*) simulated machines without a fault were accused", page(h200()))
    method = (Path(__file__).parents[2] / "docs/method/verdicts.md").read_text().partition("**Error rate**")[2]
    assert said is not None
    assert f"{said[1]} healthy machines are accused" in " ".join(method.split())
