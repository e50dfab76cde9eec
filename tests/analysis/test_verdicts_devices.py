"""Other people's processes, PCIe slots, peer access that does not pay, and pairs that disturb each other."""

from dataclasses import replace

import pytest

from collbench.analysis.diagnose import Kind, judge
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import Health, Run
from tests.analysis.checked import audited, faults, flagged, h200, pcie, slow, the
from tests.builders import nvml_says, shared, smi_says

ROW = [(3, other) for other in (0, 1, 2)] + [(other, 3) for other in (0, 1, 2)]


def test_a_foreign_process_is_contention_and_explains_its_gpus_slow_links() -> None:
    run = flagged(h200(slow(ROW, 0.5)), shared(3))
    verdict = the(run, Kind.CONTENTION)
    assert verdict.members == (3,)
    assert "on GPU3 in " in verdict.what
    assert "--query-compute-apps" in verdict.command
    assert {Kind.NV_DEGRADED, Kind.ASYMMETRY} & set(verdict.explains) == {Kind.NV_DEGRADED}


def test_a_foreign_process_does_not_explain_other_gpus() -> None:
    run = flagged(h200(slow([(0, 1), (1, 0)], 0.5)), shared(3, 2))
    assert [(v.kind, v.members) for v in faults(run)] == [(Kind.CONTENTION, (3,)), (Kind.NV_DEGRADED, (0, 1))]


@pytest.mark.parametrize("when", ["before", "after"])
def test_processes_that_only_health_saw(when: str) -> None:
    states = tuple(Health(processes=int(gpu == 1)) for gpu in range(4))
    run = replace(h200(), **{f"health_{when}": states})  # type: ignore[arg-type]
    verdict = the(run, Kind.CONTENTION)
    assert (verdict.members, verdict.what) == ((1,), f"Another process was on GPU1 {when} measuring.")


def test_a_process_that_has_only_opened_a_gpu_is_not_blamed() -> None:
    """As torch does on an NVSwitch machine: it copies between GPUs 0 and 1, and opens all four [4 × H200]."""
    run = flagged(flagged(h200(), shared(0)), shared(2))
    works = Health(processes=1, others_memory=782 * 2**20, utilization=99)
    rests = Health(processes=1, others_memory=526 * 2**20, utilization=2)
    states = (works, Health(), rests, Health())
    assert the(replace(run, health_before=states), Kind.CONTENTION).members == (0,)


def test_nobody_else_is_no_contention() -> None:
    states = tuple(Health(processes=0) for _ in range(4))
    assert faults(replace(h200(), health_before=states, health_after=states)) == []


def test_nvlinks_that_slow_each_other_down() -> None:
    verdict = the(audited(h200(), Operation.CE_WRITE, "NV18", 0.6), Kind.CONTENTION)
    assert "beside others at 0.60 of their speed alone (ce-write)" in verdict.what
    assert (verdict.label, verdict.members) == ("NV18", (0, 1, 2, 3))


@pytest.mark.parametrize(
    ("case", "label", "ratio", "found"),
    [
        ("PHB pairs share the host bridge, as the label says", "PHB", 0.5, False),
        ("pairs below one bridge share nothing", "PIX", 0.5, True),
        ("the audit's own tolerance", "PIX", 0.99, False),
    ],
)
def test_pcie_paths_share_what_their_labels_name(case: str, label: str, ratio: float, found: bool) -> None:
    run = pcie({(0, 1): "PIX", (2, 3): "PIX"}, lambda _w, _m: 22.0)
    run = audited(run, Operation.CE_WRITE, label, ratio)
    assert ([v.kind for v in faults(run)] == [Kind.CONTENTION]) is found, case


def test_a_noisy_audit_is_no_contention() -> None:
    """Visits that vary by 3 %: an audit of three visits may lie 5 % off by chance."""
    run = h200()
    noisy = [
        replace(
            m, samples=[replace(s, seconds=(s.seconds[0] * f,) * 2) for s, f in zip(m.samples, SPREAD, strict=True)]
        )
        for m in run.measurements
    ]
    assert faults(audited(replace(run, measurements=noisy), Operation.CE_WRITE, "NV18", 0.95)) == []


SPREAD = (0.97, 1.03, 1.0, 0.98, 1.02)


def slot(run: Run, generation: int | None, width: int | None, gpu: int = 2) -> Run:
    states = list(run.health_after)
    states[gpu] = Health(pcie_generation=generation, pcie_width=width)
    return replace(run, health_after=tuple(states))


def test_a_slot_with_half_of_its_lanes() -> None:
    run = slot(pcie({}, lambda _w, m: 11.0 if 2 in m else 22.0), 4, 8)
    host = [
        replace(m, samples=[replace(s, seconds=(s.seconds[0] * 2,) * 2) for s in m.samples])
        if m.cell.variant is Variant.HOST and m.cell.members == (2,)
        else m
        for m in run.measurements
    ]
    verdict = the(replace(run, measurements=host), Kind.PCIE_DEGRADED)
    assert verdict.members == (2,)
    assert "gen 4 ×8 right after measuring, at best gen 4 ×16" in verdict.what
    assert verdict.command == "sudo lspci -vvv -s 0000:03:00.0 | grep LnkSta:"
    assert Kind.INTRA_LABEL_OUTLIER in verdict.explains
    assert verdict.theory_gbs == 31.5
    assert verdict.measured is not None
    assert verdict.measured[0] < 12.0 < verdict.measured[2]


def test_copies_with_any_numa_nodes_memory_show_what_a_slot_carries() -> None:
    run = slot(pcie({}, lambda _w, _m: 22.0), 3, 16)
    on_node = [
        replace(m, cell=replace(m.cell, numa_node=1)) if m.cell.variant is Variant.HOST else m for m in run.measurements
    ]
    assert faults(replace(run, measurements=on_node)) == []


@pytest.mark.parametrize(
    ("case", "generation", "width"),
    [
        ("gen 3, but 24 GB/s were copied: it had gone to rest when it was read", 3, 16),
        ("the best that it can do", 4, 16),
        ("not told", None, None),
    ],
)
def test_slots_that_are_well(case: str, generation: int | None, width: int | None) -> None:
    assert faults(slot(pcie({}, lambda _w, _m: 22.0), generation, width)) == [], case


def test_a_slow_slot_does_not_explain_nvlinks() -> None:
    run = slot(h200(slow(ROW, 0.85)), 5, 1, gpu=3)
    host = [m for m in run.measurements if m.cell.variant is not Variant.HOST]
    kinds = [v.kind for v in faults(replace(run, measurements=host))]
    assert kinds == [Kind.PCIE_DEGRADED, Kind.INTRA_LABEL_OUTLIER]


def via_host(gbs: float, staged: float) -> Run:
    """Return a run whose pair 0-1 copies at `gbs` directly and all at `staged` through host memory."""
    run = pcie({}, lambda work, m: gbs if work.operation.is_copy and set(m) == {0, 1} else 22.0)
    scale = 9.0 / staged
    return replace(
        run,
        measurements=[
            replace(m, samples=[replace(s, seconds=(s.seconds[0] * scale,) * 2) for s in m.samples])
            if m.cell.variant is Variant.STAGED
            else m
            for m in run.measurements
        ],
    )


def test_peer_access_that_is_slower_than_host_memory() -> None:
    """nccl#814: 9.9 GB/s with peer access, 22 without."""
    verdict = the(via_host(9.9, 21.0), Kind.P2P_SLOWER_THAN_STAGED)
    assert verdict.members == (0, 1)
    assert "through host memory, which carries 21.0 GB/s" in verdict.what
    assert "ACS or the IOMMU" in verdict.cause
    assert Kind.INTRA_LABEL_OUTLIER in verdict.explains


@pytest.mark.parametrize(("direct", "staged"), [(22.0, 21.0), (20.5, 21.0)])
def test_peer_access_that_pays_or_nearly(direct: float, staged: float) -> None:
    assert Kind.P2P_SLOWER_THAN_STAGED not in [v.kind for v in judge(via_host(direct, staged))]


def test_without_peer_access_both_are_staged() -> None:
    run = via_host(9.9, 21.0)
    told = {"cuda_peers": False, "peer_access": nvml_says("GNS"), "tool_peer_access": smi_says("GNS")}
    refused = tuple(replace(path, **told) for path in run.paths)  # type: ignore[arg-type]  # a table of fields
    kinds = [v.kind for v in judge(replace(run, paths=refused))]
    assert Kind.P2P_SLOWER_THAN_STAGED not in kinds


def test_copies_beside_others_are_not_compared_with_staged_ones() -> None:
    run = via_host(9.9, 21.0)
    plain = Work(Operation.CE_WRITE)
    busy = [
        replace(m, samples=[replace(s, concurrent=True) for s in m.samples]) if m.cell.work == plain else m
        for m in run.measurements
    ]
    kinds = [v.kind for v in judge(replace(run, measurements=busy))]
    assert Kind.P2P_SLOWER_THAN_STAGED not in kinds
