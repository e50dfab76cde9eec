"""Copies against their path's limit: what a healthy machine does not show, and what each fault does."""

from dataclasses import replace

import pytest

from collbench.analysis.diagnose import Kind, judge, not_judged
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import Path, Run
from tests.analysis.checked import faults, h200, kinds, pcie, run_on, slow, the, visits
from tests.builders import GIB, gpus, nvml_says, smi_says

BOTH = [(0, 1), (1, 0)]
ROW = [(2, other) for other in (0, 1, 3)] + [(other, 2) for other in (0, 1, 3)]


def relabelled(run: Run, **changes: object) -> Run:
    return replace(run, paths=tuple(replace(path, **changes) for path in run.paths))  # type: ignore[arg-type]


def test_the_reference_machine_agrees_and_topo_p_is_explained() -> None:
    (verdict,) = judge(h200())
    assert (verdict.kind, verdict.severity, verdict.members) == (Kind.LABELS_DIFFER, "info", (0, 1, 2, 3))
    assert "NV18" in verdict.what
    assert "a PCIe host bridge" in verdict.what
    assert "both are right" in verdict.what
    assert not_judged(h200()) == ()


def test_a_degraded_link_is_told_in_links_worth_and_explains_the_rest() -> None:
    """7 of 18 links carry 7/18 of what the recorded machine's copy engines write, 396.1 GB/s."""
    verdict = the(h200(slow(BOTH, 7 / 18)), Kind.NV_DEGRADED)
    assert verdict.members == (0, 1)
    assert "7 of 18 links' worth" in verdict.what
    assert (verdict.label, verdict.theory_gbs) == ("NV18", 450.0)
    assert verdict.measured is not None
    assert verdict.measured[0] < 396.1 * 7 / 18 < verdict.measured[2] < 0.7 * 450
    assert "nvidia-smi nvlink -s -i 0,1" in verdict.command
    assert Kind.INTRA_LABEL_OUTLIER in verdict.explains


def test_one_direction_that_is_degraded_explains_the_asymmetry() -> None:
    verdict = the(h200(slow([(3, 1)], 0.5)), Kind.NV_DEGRADED)
    assert verdict.members == (3, 1)
    assert "GPU3 → GPU1" in verdict.what
    assert Kind.ASYMMETRY in verdict.explains


def test_a_whole_row_blames_the_gpu() -> None:
    verdict = the(h200(slow(ROW, 0.5)), Kind.NV_DEGRADED)
    assert verdict.members == (2,)
    assert "GPU2" in verdict.cause


@pytest.mark.parametrize(
    ("case", "factor", "found"),
    [
        ("0.70 of the theory's 450 GB/s, noise included", 0.72 * 450 / 393.8, False),
        ("just below it", 0.67 * 450 / 393.8, True),
    ],
)
def test_the_bound_must_be_below_the_threshold(case: str, factor: float, found: bool) -> None:
    assert (Kind.NV_DEGRADED in kinds(h200(slow(BOTH, factor)))) is found, case


def test_a_kernel_alone_that_is_slow_is_no_degraded_link() -> None:
    def rate(work: Work, _members: tuple[int, ...]) -> float:
        return 0.3 if work.operation is Operation.SM_WRITE and work.variant is Variant.PLAIN else 1.0

    assert faults(h200(rate)) == []


def test_nvlinks_that_are_no_faster_than_pcie_are_not_used() -> None:
    verdict = the(h200(slow(BOTH, 38.4 / 393.8)), Kind.NV_NOT_USED)
    assert verdict.members == (0, 1)
    assert "no faster than PCIe" in verdict.what
    assert "fabric manager" in verdict.cause


def test_refused_peer_access_is_the_cause_of_unused_nvlinks() -> None:
    run = h200(slow(BOTH, 38.4 / 393.8))
    refused = tuple(
        replace(path, cuda_peers=False, peer_access=nvml_says("NS"), tool_peer_access=smi_says("NS"))
        if path.devices == (0, 1)
        else path
        for path in run.paths
    )
    verdict = the(replace(run, paths=refused), Kind.P2P_CAP_MISMATCH)
    assert "promises peer access" in verdict.what
    assert Kind.NV_NOT_USED in verdict.explains


@pytest.mark.parametrize(
    ("case", "label", "gbs", "kind"),
    [
        ("NVLinks behind a PCIe label", "PHB", 180.0, Kind.HIDDEN_NVLINK),
        ("5 % over PCIe may be noise of the limit", "PHB", 31.5 * 1.04, Kind.IMPOSSIBLE),
        ("faster than any NVLink", "PHB", 1000.0, Kind.IMPOSSIBLE),
    ],
)
def test_faster_than_the_label_allows(case: str, label: str, gbs: float, kind: Kind) -> None:
    run = pcie({(0, 1): label}, lambda _w, m: gbs if set(m) == {0, 1} else 22.0)
    verdict = the(run, kind)
    assert verdict.members == (0, 1), case


def test_more_than_the_nvlinks_can_carry_is_a_wrong_clock() -> None:
    verdict = the(h200(slow([(0, 1)], 470 / 393.8)), Kind.IMPOSSIBLE)
    assert verdict.members == (0, 1)
    assert "timing is wrong" in verdict.cause


def test_reads_that_a_cache_served_are_impossible_though_the_copy_engines_are_not() -> None:
    """64 MiB in L2 were read at 3,350 GB/s where a full GPU left no room to rotate [4 × H200]."""
    run = h200(lambda work, members: 3350 / 376 if (work, members) == (Work(Operation.SM_READ), (0, 1)) else 1.0)
    assert [(v.kind, v.members) for v in faults(run)] == [(Kind.IMPOSSIBLE, (0, 1))]


def test_all_that_a_device_sends_at_once_is_limited_by_its_port() -> None:
    """1185 GB/s over a port of 450: three lanes timed one after another [4 × H200]. Two visits are enough."""
    lanes = visits(Work(Operation.CE_WRITE, Variant.ONE_TO_ALL), (2, 0, 1, 3), 1185.0 / 3)
    run = h200()
    verdict = the(
        replace(run, measurements=[*run.measurements, replace(lanes, samples=lanes.samples[:2])]), Kind.IMPOSSIBLE
    )
    assert (verdict.members, verdict.theory_gbs) == ((2,), 450.0)
    assert "port" in verdict.what


def test_a_small_message_that_beats_its_link_is_impossible_though_too_small_to_be_slow() -> None:
    small = replace(visits(Work(Operation.CE_READ), (0, 1), 700.0, 2**14), samples=[])
    fast = visits(Work(Operation.CE_READ), (0, 1), 700.0, 2**14).samples[:1]
    run = h200()
    assert the(
        replace(run, measurements=[*run.measurements, replace(small, samples=fast)]), Kind.IMPOSSIBLE
    ).members == (0, 1)


def test_a_hidden_nvlink_makes_no_outlier_of_the_others() -> None:
    run = pcie({}, lambda _w, m: 180.0 if set(m) == {0, 1} else 22.0)
    assert [verdict.kind for verdict in faults(run)] == [Kind.HIDDEN_NVLINK]


def test_without_any_slots_rate_only_what_no_pcie_can_carry_is_hidden() -> None:
    links = tuple(Path(pair, "PHB") for pair in ((0, 1), (0, 2), (1, 2)))
    devices = gpus(3)

    def run(gbs: float) -> Run:
        made = run_on(devices, links, lambda _w, _m: gbs)
        return replace(made, devices=devices)

    assert kinds(run(60.0)) == []
    assert Kind.HIDDEN_NVLINK in kinds(run(394.0))


def test_small_messages_show_latency_and_are_not_judged() -> None:
    run = h200(slow(BOTH, 0.2))
    small = [replace(found, cell=replace(found.cell, size_bytes=64 * 2**10)) for found in run.measurements]
    run = replace(run, measurements=small)
    assert faults(run) == []
    assert any("no copy of 16M or more" in line for line in not_judged(run))


def test_the_size_that_most_links_have_is_judged() -> None:
    """One link lacks the largest size: all are judged at the next, so none is compared with another size."""
    run = h200(slow(BOTH, 0.3))
    larger = [
        replace(
            found,
            cell=replace(found.cell, size_bytes=2 * GIB),
            samples=[replace(sample, seconds=tuple(2 * s for s in sample.seconds)) for sample in found.samples],
        )
        for found in run.measurements
        if found.cell.members != (0, 1)
    ]
    assert the(replace(run, measurements=[*run.measurements, *larger[:3]]), Kind.NV_DEGRADED).members == (0, 1)


def test_two_visits_show_no_noise_and_are_not_judged() -> None:
    run = h200(slow(BOTH, 0.2))
    few = [replace(found, samples=found.samples[:2]) for found in run.measurements]
    assert faults(replace(run, measurements=few)) == []
