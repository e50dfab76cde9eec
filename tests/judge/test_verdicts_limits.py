"""Copies against their path's limit: what a healthy machine does not show, and what each fault does."""

from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest

from collbench.judge.diagnose import Kind, judge
from collbench.judge.diagnose.limits import ExcludedLinks, excluded_links
from collbench.judge.diagnose.readings import Facts, Reading
from collbench.judge.diagnose.verdict import Cause, Verdict
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import Path, Run
from collbench.report.rows import rows
from tests.builders import GIB, gpus, measured, nvml_says, run_of, smi_says
from tests.judge.checked import COPIES, faults, h200, kinds, pcie, run_on, slow, the, trials, undone, what

BOTH = [(0, 1), (1, 0)]
CE_READ = Work(Operation.CE_READ)


def test_the_reference_machine_agrees_and_topo_p_is_explained() -> None:
    (verdict,) = judge(h200())
    assert (verdict.kind, verdict.severity, verdict.members) == (Kind.LABELS_DIFFER, "info", (0, 1, 2, 3))
    assert "NV18" in what(verdict)
    assert "a PCIe host bridge" in what(verdict)
    assert "Both are right" in what(verdict)
    assert undone(h200()) == []


def test_a_degraded_link_is_reported_in_links_worth_and_explains_the_rest() -> None:
    """7 of 18 links carry 7/18 of what the recorded machine's copy engines write, 396.1 GB/s."""
    verdict = the(h200(slow(BOTH, 7 / 18)), Kind.NV_DEGRADED)
    assert verdict.members == (0, 1)
    assert "reaches the rate of 7 of 18 links" in what(verdict)
    assert (verdict.label, verdict.theory_gbs) == ("NV18", 450.0)
    assert verdict.measured is not None
    assert verdict.measured[0] < 396.1 * 7 / 18 < verdict.measured[2] < 0.7 * 450
    assert verdict.cause.text.startswith("only this path: NVLinks are down")
    assert Kind.INTRA_LABEL_OUTLIER in verdict.explains


def test_a_rate_between_those_of_whole_numbers_of_links_is_not_called_one_of_them() -> None:
    assert "reaches 36% of what 18 healthy links do" in what(the(h200(slow(BOTH, 6.5 / 18)), Kind.NV_DEGRADED))


@pytest.mark.parametrize(
    ("case", "factor", "found"),
    [
        ("0.70 of the theory's 450 GB/s, noise included", 0.72 * 450 / 393.8, False),
        ("just below it", 0.67 * 450 / 393.8, True),
    ],
)
def test_the_bound_must_be_below_the_threshold(case: str, factor: float, found: bool) -> None:
    assert (Kind.NV_DEGRADED in kinds(h200(slow(BOTH, factor)))) is found, case


@pytest.mark.parametrize("link", BOTH)
def test_links_that_are_equally_slow_are_not_divided_by_the_slots_rate(link: tuple[int, int]) -> None:
    """One direction lies 1% below what PCIe carries, the opposite one 1% above: neither is called unused."""
    ceiling = Facts(h200()).pcie_ceiling(link) or 0.0

    def share(work: Work, members: tuple[int, ...]) -> float:
        if members not in BOTH or work.variant is not Variant.PLAIN or not work.operation.is_copy:
            return 1.0
        return ceiling * (0.99 if members == link else 1.01) / 396.1

    assert {Kind.NV_DEGRADED, Kind.NV_NOT_USED} & {*kinds(h200(share))} == {Kind.NV_DEGRADED}


def test_a_kernel_alone_that_is_slow_is_no_degraded_link() -> None:
    def rate(work: Work, _members: tuple[int, ...]) -> float:
        return 0.3 if work.operation is Operation.SM_WRITE and work.variant is Variant.PLAIN else 1.0

    assert faults(h200(rate)) == []


def test_nvlinks_that_are_no_faster_than_pcie_are_not_used() -> None:
    verdict = the(h200(slow(BOTH, 38.4 / 393.8)), Kind.NV_NOT_USED)
    assert verdict.members == (0, 1)
    assert "no faster than PCIe" in what(verdict)
    assert verdict.cause.name == "nvlinks_down"


@pytest.mark.parametrize(("unused", "asked"), [(BOTH, False), ([*permutations(range(4), 2)], True)])
def test_the_fabric_manager_is_asked_for_only_where_no_gpu_uses_the_switches(
    unused: list[tuple[int, int]], asked: bool
) -> None:
    verdict = the(h200(slow(unused, 38.4 / 393.8)), Kind.NV_NOT_USED)
    assert ("fabricmanager" in verdict.fix, "fabric manager" in verdict.cause.text) == (asked, asked)


@pytest.mark.parametrize(("gbs", "kind"), [(50.0, Kind.NV_NOT_USED), (200.0, Kind.NV_DEGRADED)])
def test_a_noisy_link_acquits_no_other_and_is_no_better_than_they_are(gbs: float, kind: Kind) -> None:
    """All links are as slow; what the trials of one leave open is within the limits."""
    first = faults(with_a_noisy_link(gbs, (0.55, 1.0, 1.7)))[0]
    assert (first.kind, first.members) == (kind, (0, 1, 2, 3))


def with_a_noisy_link(gbs: float, factors: tuple[float, ...]) -> Run:
    """Return a run in which all copies reach `gbs`, those from GPU0 to GPU1 by these factors more or less."""
    run = h200(lambda work, _members: gbs / 393.8 if work in (Work(op) for op in COPIES) else 1.0)
    noisy = [
        measured(
            found.point.operation, found.point.members, [gbs * factor for factor in factors], found.point.size_bytes
        )
        if found.point.members == (0, 1) and found.point.work in (Work(op) for op in COPIES)
        else found
        for found in run.measurements
    ]
    return replace(run, measurements=noisy)


def test_near_the_bound_a_noisy_link_that_is_above_it_leaves_open_whether_those_like_it_are_below() -> None:
    """Else all links but one would be degraded: two GPUs by name."""
    assert Kind.NV_DEGRADED in kinds(with_a_noisy_link(0.69 * 450, (0.99, 1.0, 1.01)))
    assert Kind.NV_DEGRADED not in kinds(with_a_noisy_link(0.69 * 450, (0.98, 1.04, 1.09)))


def test_refused_peer_access_is_the_cause_of_unused_nvlinks() -> None:
    run = h200(slow(BOTH, 38.4 / 393.8))
    refused = tuple(
        replace(path, cuda_peers=False, peer_access=nvml_says("NS"), tool_peer_access=smi_says("NS"))
        if path.devices == (0, 1)
        else path
        for path in run.paths
    )
    verdict = the(replace(run, paths=refused), Kind.P2P_CAP_MISMATCH)
    assert "implies peer access" in what(verdict)
    assert Kind.NV_NOT_USED in verdict.explains


@pytest.mark.parametrize(
    ("case", "label", "gbs", "kind"),
    [
        ("an NVLink bridge behind a PCIe label", "PHB", 52.0, Kind.HIDDEN_NVLINK),
        ("faster than the bridge of an A40: one pair was mistimed", "PHB", 78.8, Kind.IMPOSSIBLE),
        ("5% over PCIe may be noise of the limit", "PHB", 31.5 * 1.04, Kind.IMPOSSIBLE),
        ("faster than any NVLink", "PHB", 1000.0, Kind.IMPOSSIBLE),
    ],
)
def test_faster_than_the_label_allows(case: str, label: str, gbs: float, kind: Kind) -> None:
    run = pcie({(0, 1): label}, lambda _w, m: gbs if set(m) == {0, 1} else 22.0)
    verdict = the(run, kind)
    assert verdict.members == (0, 1), case


def test_all_that_a_device_sends_at_once_is_limited_by_its_port() -> None:
    """1185 GB/s over a port of 450: three lanes timed one after another [4 × H200]. Two trials are enough."""
    lanes = trials(Work(Operation.CE_WRITE, Variant.ONE_TO_ALL), (2, 0, 1, 3), 1185.0 / 3)
    run = h200()
    verdict = the(
        replace(run, measurements=[*run.measurements, replace(lanes, samples=lanes.samples[:2])]), Kind.IMPOSSIBLE
    )
    assert (verdict.members, verdict.theory_gbs) == ((2,), 450.0)
    assert "port" in what(verdict)


def test_a_small_message_that_beats_its_link_is_impossible_though_too_small_to_be_slow() -> None:
    small = replace(trials(Work(Operation.CE_READ), (0, 1), 700.0, 2**14), samples=[])
    fast = trials(Work(Operation.CE_READ), (0, 1), 700.0, 2**14).samples[:1]
    run = h200()
    assert the(
        replace(run, measurements=[*run.measurements, replace(small, samples=fast)]), Kind.IMPOSSIBLE
    ).members == (0, 1)


@pytest.mark.parametrize(
    ("case", "works"),
    [
        ("a copy of 1 MiB, once", [(Work(Operation.CE_WRITE), (0, 1), 2**20, 1)]),
        ("an all-reduce of two", [(Work(Operation.ALLREDUCE), (0, 1), GIB, 3)]),
        ("one of three, and a copy", [(Work(Operation.ALLREDUCE), (0, 1, 2), GIB, 3), (CE_READ, (0, 1), 2**16, 3)]),
    ],
)
def test_what_hidden_nvlinks_could_carry_is_said_though_no_large_copy_shows_them(case: str, works: list[Any]) -> None:
    """52.5 GB/s over a slot of 31.5: no label allows it, so a page must not pass over it."""
    run = pcie({}, lambda _w, _m: 22.0, count=3)
    found = [(trials(work, members, 52.5, size), many) for work, members, size, many in works]
    run = replace(run, measurements=[replace(one, samples=one.samples[:many]) for one, many in found])
    verdict = the(run, Kind.HIDDEN_NVLINK)
    assert (verdict.members, verdict.label, verdict.theory_gbs) == ((0, 1), "PHB", 31.5), case
    assert verdict.measured is not None
    assert verdict.measured[1] == pytest.approx(52.5, rel=0.01)
    for row in map(dict[str, Any], rows(run)):
        assert row["impossible"] == 0
        assert row["limit_gbs"] > row["busbw_gbs"]


def test_what_hidden_nvlinks_of_several_devices_could_carry_is_said_of_all() -> None:
    run = pcie({}, lambda _w, _m: 22.0)
    run = replace(run, measurements=[trials(Work(Operation.ALLREDUCE), (0, 1, 2, 3), 52.5)])
    verdict = the(run, Kind.HIDDEN_NVLINK)
    assert (verdict.members, verdict.links) == ((0, 1, 2, 3), frozenset())


def test_what_is_slower_over_a_hidden_nvlink_than_its_copies_is_not_impossible() -> None:
    """One NVLink behind a PCIe label: copies reach 36.6 GB/s, an all-reduce 32.6, and the slot 31.5."""
    run = pcie({}, lambda work, m: (36.6 if work.operation.is_copy else 32.6) if set(m) == {0, 1} else 22.0)
    assert [verdict.kind for verdict in faults(run)] == [Kind.HIDDEN_NVLINK]


def test_without_any_slots_rate_only_what_no_pcie_can_carry_is_hidden() -> None:
    links = tuple(Path(pair, "PHB") for pair in ((0, 1), (0, 2), (1, 2)))
    devices = gpus(3)

    def run(gbs: float) -> Run:
        made = run_on(devices, links, lambda _w, _m: gbs)
        return replace(made, devices=devices)

    assert kinds(run(60.0)) == []
    assert Kind.HIDDEN_NVLINK in kinds(run(394.0))


@pytest.mark.parametrize(
    ("virtualization", "who"), [("vGPU", "the virtual machine (vGPU)"), ("none", "a virtual machine or the driver")]
)
def test_hidden_nvlinks_name_the_virtual_machine_if_there_is_one(virtualization: str, who: str) -> None:
    run = pcie({}, lambda _w, _m: 52.0)
    run = replace(run, machine=replace(run.machine, virtualization=virtualization))
    (hidden,) = (verdict for verdict in judge(run) if verdict.kind is Kind.HIDDEN_NVLINK)
    assert hidden.cause.text.startswith(f"{who} hides NVLinks")


def test_two_trials_show_no_noise_and_are_not_judged() -> None:
    run = h200(slow(BOTH, 0.2))
    few = [replace(found, samples=found.samples[:2]) for found in run.measurements]
    assert faults(replace(run, measurements=few)) == []


def test_what_pcie_carries_at_most_is_the_slower_slots_or_what_was_measured() -> None:
    run = h200()
    slots = (replace(run.devices[0], pcie_generation=4, pcie_width=8), *run.devices[1:])
    known = Facts(replace(run, devices=slots))
    assert (known.pcie_ceiling((0, 1)), known.pcie_ceiling((1, 2))) == (15.75, 63.0)
    unknown = tuple(replace(gpu, pcie_generation=None) if gpu.index == 1 else gpu for gpu in run.devices)
    fast = [  # staged copies between others are no evidence
        trials(found.point.work, found.point.members, 100.0)
        if found.point.variant is Variant.STAGED and set(found.point.members) == {2, 3}
        else found
        for found in run.measurements
    ]
    facts = Facts(replace(run, devices=unknown, measurements=fast))
    host = max(facts.readings.interval(reading)[2] for reading in facts.readings.host(0))
    assert facts.pcie_ceiling((0, 1)) == pytest.approx(host)
    assert 55.0 < host < 55.2
    staged = [found for found in fast if found.point.variant is not Variant.HOST]
    assert Facts(replace(run, devices=unknown, measurements=staged)).pcie_ceiling((0, 1)) == pytest.approx(
        38.4, rel=0.01
    )
    plain = [found for found in staged if found.point.variant is Variant.PLAIN]
    assert Facts(replace(run, devices=unknown, measurements=plain)).pcie_ceiling((0, 1)) is None


@pytest.mark.parametrize(
    ("variant", "where"), [(Variant.PLAIN, "GPU0 → GPU1: 3000 GB/s"), (Variant.BOTH_WAYS, "GPU0-GPU1: 3000 GB/s")]
)
def test_what_beats_a_link_is_reported_of_its_ways_with_all_rates(variant: Variant, where: str) -> None:
    rates = {Operation.SM_READ: 1000.0, Operation.CE_READ: 2000.0, Operation.SM_WRITE: 3000.0}
    run = h200()
    kept = [m for m in run.measurements if not (m.point.work.operation in rates and set(m.point.members) == {0, 1})]
    ways = 2 if variant is Variant.BOTH_WAYS else 1
    fast = [trials(Work(op, variant), (0, 1), gbs / ways) for op, gbs in rates.items()]
    fast = [replace(found, samples=[replace(found.samples[2], seconds=found.samples[2].seconds[:1])]) for found in fast]
    verdict = the(replace(run, measurements=[*kept, *fast]), Kind.IMPOSSIBLE)
    assert verdict.members == (0, 1)
    assert what(verdict).startswith(where)
    assert "3 batches" in what(verdict)
    assert verdict.measured == pytest.approx((1000.0, 2000.0, 3000.0))
    (one,) = (v for v in judge(replace(run, measurements=[*kept, fast[0]])) if v.kind is Kind.IMPOSSIBLE)
    assert "1 batch)" in what(one)


@pytest.mark.parametrize(
    ("worth", "reported"),
    [(1.2, "7% of what 18 healthy links do"), (0.5, "3% of what 18"), (8.0, "the rate of 8 of 18 links")],
)
def test_links_worth(worth: float, reported: str) -> None:
    """In slots of PCIe gen 3 ×4 even half an NVLink is faster than PCIe."""
    run = h200(slow(BOTH, worth / 18))
    narrow = tuple(replace(gpu, pcie_generation=3, pcie_width=4) for gpu in run.devices)
    plain = [found for found in run.measurements if found.point.variant is Variant.PLAIN]
    (verdict,) = (v for v in judge(replace(run, devices=narrow, measurements=plain)) if v.kind is Kind.NV_DEGRADED)
    assert f"reaches {reported}" in what(verdict)


@pytest.mark.parametrize(
    ("title", "label", "alone", "isolated", "speaks"),
    [
        ("over PCIe what ran alone", "PHB", True, True, True),
        ("what an interference check found to be as fast as alone", "PHB", True, False, True),
        ("not where the label mixes unlike paths", "PIX", True, False, False),
        ("even there what ran alone", "PIX", True, True, True),
        ("what ran beside others", "PHB", False, False, False),
        ("over NVLink all", "NV18", False, False, True),
    ],
)
def test_what_may_be_compared_with_its_like(title: str, label: str, alone: bool, isolated: bool, speaks: bool) -> None:
    excluded = ExcludedLinks(frozenset({(2, 3)}), frozenset({"PIX"}), frozenset())
    reading = Reading(Work(Operation.CE_WRITE), (0, 1), GIB, label, 1.0, 0.1, alone, isolated, ())
    assert excluded.comparable(reading) is speaks
    assert not excluded.comparable(replace(reading, members=(2, 3)))


@pytest.mark.parametrize(
    ("cuda", "nvml", "peers"),
    [(True, "OK", True), (None, None, True), (None, "OK", True), (False, "OK", False), (True, "CNS", False)],
)
def test_who_has_peer_access(cuda: bool | None, nvml: str | None, peers: bool) -> None:
    path = Path((0, 1), "PHB", peer_access=None if nvml is None else nvml_says(nvml), cuda_peers=cuda)
    facts = Facts(run_of(gpus(3), [], [path]))
    assert facts.has_peers((1, 0)) is peers
    assert not facts.has_peers((0, 2))


def finding(kind: Kind, label: str) -> Verdict:
    return Verdict(kind, (), "", "", Cause("", ""), label, links=frozenset({(0, 1)}))


@pytest.mark.parametrize(
    ("title", "virtual", "refused", "findings", "labels"),
    [
        ("labels that tell what is there", "none", False, [], set()),
        ("a virtual machine's", "pass-through", False, [], {"PHB", "PIX"}),
        ("one whose copies meet in host memory", "none", True, [], {"PIX"}),
        ("one that hides NVLinks", "none", False, [finding(Kind.HIDDEN_NVLINK, "PHB")], {"PHB"}),
        ("not one that is slow", "none", False, [finding(Kind.NV_DEGRADED, "PHB")], set()),
    ],
)
def test_labels_that_mix_unlike_paths(
    title: str, virtual: str, refused: bool, findings: list[Verdict], labels: set[str]
) -> None:
    paths = (Path((0, 1), "PIX", cuda_peers=not refused), Path((0, 2), "PHB", cuda_peers=True))
    run = run_of(gpus(3), [], paths)
    facts = Facts(replace(run, machine=replace(run.machine, virtualization=virtual)))
    assert excluded_links(facts, findings).labels == labels


@pytest.mark.parametrize(
    ("kind", "links", "unused"),
    [
        (Kind.HIDDEN_NVLINK, True, False),
        (Kind.IMPOSSIBLE, True, False),
        (Kind.NV_NOT_USED, False, True),
        (Kind.NV_DEGRADED, False, False),
    ],
)
def test_links_that_nobody_is_compared_with(kind: Kind, links: bool, unused: bool) -> None:
    excluded = excluded_links(Facts(run_of(gpus(2), [])), [finding(kind, "NV18")])
    both = frozenset(BOTH)
    assert (excluded.links, excluded.unused) == (both if links else frozenset(), both if unused else frozenset())
