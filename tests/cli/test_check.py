"""`collbench check`: exit statuses, and measuring first."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from collbench.measurement.backends.protocol import Step, Timing
from collbench.measurement.backends.sim import SimBackend
from collbench.model.errors import Cause, Failure, FailureKind, StepFailed
from collbench.model.operations import Variant
from collbench.runfile import run_file
from collbench.sim.fabrics import Fault, FaultKind, load
from tests.cli.program import Program, on_gpus
from tests.judge.checked import h200
from tests.native.fakes import Fakes
from tests.sim.made import fabric_text, faulty_file

DATA = Path(__file__).parents[1] / "data" / "h200x4"


@pytest.mark.parametrize(
    ("args", "reported"),
    [
        (("run.json", "--quick", "--devices", "0,1"), "run.json is measured already: leave out --devices, --quick"),
    ],
)
def test_what_cannot_be_judged_is_one_line(program: Program, args: tuple[str, ...], reported: str) -> None:
    run_file.save(h200(), Path("run.json"))
    result = program("check", *args)
    assert (result.status, result.out) == (2, "")
    assert result.line.startswith(reported)


def simulated(program: Program, fault: Fault | None, *args: str, name: str = "hgx-h200") -> tuple[int, str, str]:
    """Check a simulated machine with a fault; return status, page and notices."""
    machine = faulty_file(name, *([fault] if fault else []))
    result = program("check", *machine, "--seed", "3", "-o", "run.json", *args)
    return result.status, result.out, result.err


def measured_again() -> set[tuple[int, ...]]:
    """Return the pairs and GPUs with trials that confirm an accusation, each in ascending order."""
    measurements = run_file.load(Path("run.json")).measurements
    return {tuple(sorted(one.point.members)) for one in measurements if any(s.confirms for s in one.samples)}


def test_each_pair_that_is_accused_by_itself_is_measured_again(program: Program) -> None:
    ring = [(gpu, gpu + 1) for gpu in range(7)]
    pairs = [*ring, (0, 7), (0, 2), (1, 3)]
    faults = [Fault(FaultKind.SLOW_LINK, pair, factor=0.5) for pair in pairs]
    assert program("check", *faulty_file("hgx-h200", *faults), "-o", "run.json").status == 3
    assert measured_again() == {*pairs}


def test_what_few_gpus_share_is_one_verdict_though_their_pairs_slowed_each_other(program: Program) -> None:
    """One copy does not fill it, NCCL's two directions do; measured two at a time, their pairs varied by half."""
    shared = Fault(FaultKind.BOTTLENECK, (0, 1, 2, 3), gbs=400)
    status, page, _ = simulated(program, shared)
    assert (status, page.count("COLLECTIVE_CONTRADICTION")) == (3, 2)
    assert page.startswith("COLLECTIVE_CONTRADICTION 6 NV18 pairs: 18")
    assert "22 of 28 pairs" in page


def test_four_pairs_of_a_slow_gpu_and_its_slot_are_measured_again(program: Program) -> None:
    assert simulated(program, Fault(FaultKind.SLOW_GPU, (2,), factor=0.5))[0] == 3
    assert measured_again() == {(2,), (0, 2), (1, 2), (2, 3), (2, 4)}


def checked_with_slow_sockets(program: Program, base: str, **sockets: float) -> str:
    """Return the page on a shipped machine with another link between its sockets, which ends with 3."""
    machine = {"format": "collbench-fabric", "format_version": 2, "name": "slow-sockets", "base": base}
    Path("slow-sockets.json").write_text(json.dumps(machine | {"sockets": sockets}), encoding="utf-8")
    result = program("check", "--backend", "sim", "--fabric", "slow-sockets.json", "--seed", "3", "-o", "run.json")
    assert result.status == 3
    return result.out


def test_gpus_whose_copies_with_memory_accuse_the_link_between_sockets_are_measured_again(program: Program) -> None:
    page = checked_with_slow_sockets(program, "nvlink-pairs-2x2", gbs=6.0, latency_us=0.6, memory_gbs=80.0)
    said = r"5\.8\d GB/s, theory 31\.5, on copies with host memory between NUMA nodes 0 and 1; 77% below the 2[56]"
    assert re.search(said, " ".join(page.split()))
    assert {(0,), (1,), (2,), (3,)} <= measured_again()


def test_four_gpus_are_enough_where_copies_with_memory_accuse(program: Program) -> None:
    page = checked_with_slow_sockets(program, "hgx-h200", gbs=12.0, latency_us=0.4, memory_gbs=300.0)
    assert "28 of 28 pairs: NV18" in page
    assert len(measured_again()) == 4


def test_slow_links_are_compared_with_the_rate_that_the_page_gives_of_the_others(program: Program) -> None:
    """Noise decides which of a GPU's four copies is slowest, and kernels copy 5% slower than copy engines."""
    machine = faulty_file("pcie-4-two-bridges", Fault(FaultKind.SLOW_GPU, (2,), factor=0.6))
    page = program("check", *machine, "--quick", "--seed", "7", "-o", "run.json").out
    best = re.search(r"below the ([\d.]+) GB/s of the best (\w+) links", page)
    assert best
    agreeing = re.search(rf"{best[2]} ([\d.]+)(?:-([\d.]+))? of", page)
    assert agreeing
    assert float(agreeing[1]) * 0.99 <= float(best[1]) <= float(agreeing[2] or agreeing[1]) * 1.01


def test_a_slow_link_is_measured_isolated_before_it_is_reported(program: Program) -> None:
    status, page, notices = simulated(program, Fault(FaultKind.SLOW_LINK, (2, 5), factor=0.5))
    assert status == 3
    assert "measuring GPU2-GPU5 once more, isolated" in notices
    assert "NV_DEGRADED  GPU2, GPU5" in page
    assert "not confirmed" not in page
    samples = [s for m in run_file.load(Path("run.json")).measured() if m.point.members == (2, 5) for s in m.samples]
    assert {sample.concurrent for sample in samples} == {True, False}
    mapped = re.search(r"\np2p +P2P works on all 56 simulated links[^\n]*\n", page)
    assert mapped, "asked of this machine only"
    again = program("check", "run.json").out
    by_copies = re.search(r"\np2p +copies by peer access reached [^\n]* on 56 of 56 links; the map [^\n]*\n", again)
    assert by_copies
    assert f"{again}\nsaved     run.json\n".replace(by_copies[0], mapped[0]) == page
    whole = program("check", "run.json", "-v").out.splitlines()
    assert whole.count(page.partition("\n")[0]) == 1


@pytest.mark.parametrize(
    ("kind", "first"),
    [(FaultKind.HANGING_LINK, "HANG GPU3 → GPU1: "), (FaultKind.CORRUPT_LINK, "DATA_CORRUPT GPU3 → GPU1: ")],
)
def test_the_first_line_has_the_direction_although_collectives_fail_both_ways(
    program: Program, kind: FaultKind, first: str
) -> None:
    status, page, _ = simulated(program, Fault(kind, (3, 1), one_way=True), name="nvlink-pairs-2x2")
    assert (status, page.startswith(first)) == (4, True), page.partition("\n")[0]


QUICKLY = [("pairs", "--quick"), ("check", "--quick")]


@pytest.mark.parametrize("command", QUICKLY, ids=lambda words: words[0])
def test_p2p_that_is_slower_than_host_memory_is_the_first_line(program: Program, command: tuple[str, ...]) -> None:
    machine = faulty_file("pcie-4-two-bridges", Fault(FaultKind.P2P_SLOW, (0, 2), factor=0.4))
    result = program(*command, *machine, "--seed", "3", "-o", "run.json")
    assert result.status == 3
    assert result.out.startswith("P2P_SLOWER_THAN_STAGED GPU0-GPU2: ")
    assert "measuring copies through host memory on GPU0-GPU2: P2P is slow there" in result.err


def test_p2p_over_narrow_uplinks_which_host_memory_is_behind_too_is_not_left_open(program: Program) -> None:
    """Eight lanes above each switch: no path between the two carries more than 13.1 GB/s, whichever way it takes."""
    fabric = load("pcie-4-two-bridges")
    narrow = tuple(replace(bridge, up_gbs=13.1, down_gbs=13.1) for bridge in fabric.bridges)
    Path("narrow.json").write_text(fabric_text(replace(fabric, bridges=narrow)), encoding="utf-8")
    machine = ("--backend", "sim", "--fabric", "narrow.json", "--seed", "3")
    result = program("check", "--quick", *machine, "-o", "run.json")
    assert result.status == 0
    assert "host memory" not in result.out
    staged = [m for m in run_file.load(Path("run.json")).measurements if m.point.variant is Variant.STAGED]
    assert len(staged) == 2, "both ways of the slowest of four pairs"
    assert len({frozenset(m.point.members) for m in staged}) == 1


def test_where_copies_through_host_memory_fail_one_way_the_other_way_does_not_settle_it(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight lanes above each switch: what works is slower than P2P, and the page would say that all agrees."""
    time = SimBackend.time

    def failing(backend: SimBackend, step: Step) -> Timing:
        if step.work.variant is Variant.STAGED and any(a < b for a, b in step.groups):
            raise StepFailed("no pinned memory is left")
        return time(backend, step)

    monkeypatch.setattr(SimBackend, "time", failing)
    fabric = load("pcie-4-two-bridges")
    narrow = tuple(replace(bridge, up_gbs=13.1, down_gbs=13.1) for bridge in fabric.bridges)
    Path("narrow.json").write_text(fabric_text(replace(fabric, bridges=narrow)), encoding="utf-8")
    result = program("check", "--quick", "--backend", "sim", "--fabric", "narrow.json", "--seed", "3", "-o", "run.json")
    assert re.search(r"not measured on GPU\d → GPU\d: .*no pinned memory is left", result.err)
    assert "P2P reaches" in result.out


@pytest.mark.parametrize(("command", "both"), [(QUICKLY[0], True), (QUICKLY[1], False)], ids=["pairs", "check"])
def test_copies_through_host_memory_that_hang_are_on_the_page_in_the_file_and_in_the_status(
    program: Program, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], both: bool
) -> None:
    """No other copy shows what hangs here: only these cross the host's memory."""
    time = SimBackend.time
    hang = Failure(FailureKind.HANG, Cause.NO_ANSWER, seconds=5.0)

    def hanging(backend: SimBackend, step: Step) -> Timing:
        if step.work.variant is Variant.STAGED and any(both or a < b for a, b in step.groups):
            raise StepFailed(failure=hang)
        return time(backend, step)

    monkeypatch.setattr(SimBackend, "time", hanging)
    slow = tuple(Fault(FaultKind.P2P_SLOW, pair, factor=0.4) for pair in ((0, 1), (0, 2)))
    machine = faulty_file("pcie-4-two-bridges", *slow)
    result = program(*command, *machine, "--seed", "3", "-o", "run.json")
    assert result.status == 4
    hung = [measurement for measurement in run_file.load(Path("run.json")).measurements if measurement.failure]
    assert {(one.point.variant, one.failure) for one in hung} == {(Variant.STAGED, hang)}
    assert {one.point.members for one in hung} >= ({(0, 1), (1, 0)} if both else {(0, 1)})
    first = result.out.splitlines()[0]
    assert re.match(r"(HANG|FAILED:).*GPU0", first), first
    shown = program(*command[:1], "run.json", "--json") if command[0] == "check" else program("show", "run.json")
    assert "hang" in shown.out
    assert shown.status == (4 if command[0] == "check" else 0)


def test_pairs_of_one_label_in_slots_of_two_generations_are_both_measured_through_host_memory(program: Program) -> None:
    """Below each switch P2P has two fifths of the slots' rate, of gen 4 and of gen 3, and host memory more."""
    fabric = load("pcie-4-two-bridges")
    old = tuple(replace(gpu, pcie_generation=3, pcie_gbs=13.1) for gpu in fabric.gpus[2:])
    slow = tuple(Fault(FaultKind.P2P_SLOW, pair, factor=0.4) for pair in ((0, 1), (2, 3)))
    text = fabric_text(replace(fabric, gpus=fabric.gpus[:2] + old, faults=slow))
    Path("two.json").write_text(text, encoding="utf-8")
    result = program("check", "--quick", "--backend", "sim", "--fabric", "two.json", "--seed", "3", "-o", "run.json")
    staged = [m for m in run_file.load(Path("run.json")).measurements if m.point.variant is Variant.STAGED]
    assert {frozenset(m.point.members) for m in staged} >= {frozenset({0, 1}), frozenset({2, 3})}
    assert result.out.startswith("P2P_SLOWER_THAN_STAGED both PIX pairs: ")


def test_gpus_are_measured_with_what_cuda_and_nvidia_smi_say(fakes: Fakes, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    body = f'[ "$2" = -m ] && exec cat {DATA}/nvidia-smi-topo-m.txt; exec cat {DATA}/nvidia-smi-topo-p2p-r.txt'
    (tools / "nvidia-smi").write_text(f"#!/bin/sh\n{body}\n")
    (tools / "nvidia-smi").chmod(0o755)
    args = ("check", "--backend", "cuda", "--sizes", "16K", "--budget", "10ms", "--output", "run.json", "-v")
    done = on_gpus(fakes, args, {"PATH": f"{tools}:/usr/bin:/bin"}, gpus=2)
    assert done.code == 1, done.stderr
    assert done.stdout.startswith("not judged: ")
    run = run_file.load(tmp_path / "run.json")
    assert {(p.tool_label, p.tool_peer_access, p.cuda_peers) for p in run.paths} == {("NV18", ("OK", "OK"), True)}
    assert {(d.pcie_generation, d.pcie_width) for d in run.devices} == {(5, 16)}
    assert "not done  links against their limits: no copy of 16M or more was measured" in done.stdout
