"""Links against each other: one way and back, one label, and labels in their order."""

from collections.abc import Collection
from dataclasses import replace
from itertools import combinations

import pytest

from collbench.judge.diagnose import Diagnosis, Kind, Severity, judge
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import Health, Measurement, Path, Run
from tests.builders import gpus, measured, nvml_says, pair_run, paths, smi_says
from tests.judge.checked import (
    Members,
    Rate,
    beside_others,
    faults,
    h200,
    kinds,
    pcie,
    run_on,
    slow,
    the,
    what,
    with_check,
)

BOTH = [(1, 3), (3, 1)]


def test_one_slow_direction() -> None:
    verdict = the(h200(slow([(0, 1)], 0.85)), Kind.ASYMMETRY)
    assert verdict.members == (0, 1)
    assert what(verdict).startswith("GPU0 → GPU1: 15% slower than the 396.1 GB/s of the opposite direction (")
    assert verdict.explains == (Kind.INTRA_LABEL_OUTLIER,)


@pytest.mark.parametrize(("factor", "kind"), [(0.89, Kind.ASYMMETRY), (0.91, Kind.INTRA_LABEL_OUTLIER)])
def test_ten_percent_are_asymmetry_and_less_is_an_outlier(factor: float, kind: Kind) -> None:
    assert the(h200(slow([(0, 1)], factor)), kind).members == (0, 1)


def test_one_slow_pair_blames_the_link() -> None:
    verdict = the(h200(slow(BOTH, 0.92)), Kind.INTRA_LABEL_OUTLIER)
    assert verdict.members == (1, 3)
    assert "GPU1-GPU3: 8% below the 396.0 GB/s of the best NV18 links" in what(verdict)
    assert verdict.cause.name == "one_nvlink"
    assert verdict.measured is not None
    assert 0.92 * 370 < verdict.measured[0] <= verdict.measured[1] <= verdict.measured[2] < 0.93 * 397


def test_new_errors_on_a_link_name_the_cause() -> None:
    run = h200(slow(BOTH, 0.92))
    after = [replace(state, nvlink_errors=7 if gpu == 3 else 0) for gpu, state in enumerate(run.health_after)]
    run = replace(run, health_before=tuple(Health(nvlink_errors=0) for _ in after), health_after=tuple(after))
    verdict = the(run, Kind.INTRA_LABEL_OUTLIER)
    assert verdict.cause.text == "7 new NVLink errors on GPU3"


@pytest.mark.parametrize(
    ("title", "copied", "cause"),
    [
        ("copies on it are as fast as elsewhere", [(0, 2), (2, 0)], "nccl_pair"),
        ("no copies", [], "link_or_nccl"),
        ("copies one way", [(0, 2)], "link_or_nccl"),
        ("copies elsewhere", [(0, 1), (1, 0)], "link_or_nccl"),
    ],
)
@pytest.mark.parametrize("gbs", [280.0, 150.0, 30.0])  # an outlier, far below its link, and as slow as PCIe
def test_a_slow_all_reduce_blames_nccl_only_if_copies_show_a_good_link(
    title: str, copied: list[tuple[int, int]], cause: str, gbs: float
) -> None:
    run = pair_run(4, lambda a, b: gbs if (a, b) == (0, 2) else 326.0)
    copies = [measured(Operation.CE_WRITE, link, [395.0, 396.0, 397.0]) for link in copied]
    for verdict in faults(replace(run, measurements=[*run.measurements, *copies])):
        assert verdict.members == (0, 2), title
        assert verdict.cause.name == ("nccl_path" if cause == "nccl_pair" and gbs < 200 else cause), title


def test_two_classes_of_one_label_do_not_shower() -> None:
    """All pairs across two hidden halves of one label are slower: their GPUs are reported once each, at most."""
    run = pcie({}, lambda _w, m: 22.0 if max(m) < 4 or min(m) > 3 else 11.0, count=8)
    assert len(faults(run)) <= 2


def pix(rate: float, other: float) -> Rate:
    return lambda _work, members: rate if members in ((0, 1), (1, 0)) else other


def test_a_better_label_that_is_beaten() -> None:
    verdict = the(pcie({(0, 1): "PIX"}, pix(15.0, 22.0)), Kind.ORDER_INVERSION)
    assert (verdict.members, verdict.label) == ((0, 1), "PIX")
    assert "32% less than the 22.0 GB/s of PHB pairs" in what(verdict)


def without_peers(run: Run, gpus: Collection[int]) -> Run:
    """Return the run as of a machine that offers these GPUs no peer access."""
    refused = [
        replace(p, peer_access=nvml_says("GNS"), tool_peer_access=smi_says("GNS"), cuda_peers=False) for p in run.paths
    ]
    of_run = zip(run.paths, refused, strict=True)
    return replace(run, paths=tuple(none if {*gpus} & {*path.devices} else path for path, none in of_run))


def test_no_peer_access_is_the_cause_of_an_inversion_and_no_fault() -> None:
    run = without_peers(pcie({(0, 1): "PIX"}, pix(15.0, 22.0)), range(4))
    (verdict,) = judge(run)
    assert (verdict.kind, verdict.severity) == (Kind.ORDER_INVERSION, Severity.INFO)
    assert verdict.cause.text.startswith("no peer access on PIX pairs")


@pytest.mark.parametrize("staged", [(0,), (0, 1)])
def test_what_goes_through_host_memory_is_no_slow_link_beside_peer_access_nor_the_reverse(staged: Members) -> None:
    run = pcie({}, lambda _w, m: 22.0 if {*staged}.isdisjoint(m) else 12.0)
    assert faults(without_peers(run, staged)) == []
    assert faults(run) != []


@pytest.mark.parametrize(("slow", "alone"), [(((0, 1),), True), (((0, 1), (2, 3)), False)])
def test_other_pairs_of_a_label_are_said_to_be_sound_only_if_all_are(slow: tuple[Members, ...], alone: bool) -> None:
    labels = dict.fromkeys(((0, 1), (2, 3), (4, 5)), "PIX")
    links = tuple(replace(path, theory_gbs=31.5) for path in paths(6, "PHB", labels))
    run = run_on(gpus(6, "NVIDIA A40"), links, lambda _w, m: 12.0 if tuple(sorted(m)) in slow else 22.0, slot=(4, 16))
    inverted = [verdict for verdict in faults(run) if verdict.kind is Kind.ORDER_INVERSION]
    assert len(inverted) == len(slow)
    assert {"other PIX pairs are not slow" in verdict.cause.text for verdict in inverted} == {alone}


@pytest.mark.parametrize(
    ("case", "labels", "rate"),
    [
        ("equal rates of NODE and SYS", {(0, 1): "NODE", (2, 3): "SYS"}, lambda _w, _m: 22.0),
        ("PHB as fast as PXB", {(0, 1): "PXB"}, lambda _w, _m: 22.0),
        ("less than 10% apart", {(0, 1): "PIX"}, pix(20.4, 22.0)),
    ],
)
def test_labels_name_paths_not_rates(case: str, labels: dict[Members, str], rate: Rate) -> None:
    assert faults(pcie(labels, rate)) == [], case


def test_what_ran_beside_others_is_marked_and_over_pcie_not_compared() -> None:
    nvlink = the(beside_others(h200(slow(BOTH, 0.92))), Kind.INTRA_LABEL_OUTLIER)
    assert not nvlink.confirmed
    assert the(h200(slow(BOTH, 0.92)), Kind.INTRA_LABEL_OUTLIER).confirmed
    run = pcie({}, lambda _w, m: 12.0 if set(m) == {0, 3} else 22.0)
    assert kinds(run) == [Kind.INTRA_LABEL_OUTLIER]
    assert kinds(beside_others(run)) == []


def test_an_interference_check_that_trusts_a_label_confirms_it() -> None:
    run = beside_others(h200(slow(BOTH, 0.92)))
    run = with_check(with_check(run, Operation.CE_WRITE, "NV18", 1.0), Operation.CE_READ, "NV18", 1.0)
    assert the(run, Kind.INTRA_LABEL_OUTLIER).confirmed


def on_four_nodes(slower: Collection[Members] = (), per_node: int = 2) -> Run:
    """Return a run on four NUMA nodes, two to a socket: copies between sockets are healthy at four fifths of others."""
    count = 4 * per_node
    labels = {pair: "PHB" for pair in combinations(range(count), 2) if pair[0] // per_node == pair[1] // per_node}

    def rate(work: Work, members: Members) -> float:
        if work.variant is not Variant.PLAIN:
            return {Variant.STAGED: 14.0}.get(work.variant, 25.0)
        sockets = {member // (2 * per_node) for member in members}
        label = labels.get((min(members), max(members)))
        return (0.7 if members in slower else 1.0) * (22.0 if label else 20.0 if len(sockets) == 1 else 16.0)

    devices = [replace(device, numa_node=at // per_node) for at, device in enumerate(gpus(count, "NVIDIA A40"))]
    links = tuple(replace(path, theory_gbs=31.5) for path in paths(count, "SYS", labels))
    return run_on(devices, links, rate, slot=(4, 16))


@pytest.mark.parametrize("per_node", [1, 2])
def test_numa_nodes_of_one_socket_are_nearer_than_others_though_the_label_is_the_same(per_node: int) -> None:
    run = on_four_nodes(per_node=per_node)
    assert faults(run) == []
    assert Diagnosis(run).left_open == ""


@pytest.mark.parametrize("slow_pair", [(0, 2), (1, 7), (2, 3)])
def test_a_slow_pair_between_two_of_many_numa_nodes_is_slower_than_others_between_these(slow_pair: Members) -> None:
    (verdict,) = faults(on_four_nodes([slow_pair, slow_pair[::-1]]))
    assert (verdict.kind, verdict.members) == (Kind.INTRA_LABEL_OUTLIER, slow_pair)


@pytest.mark.parametrize("slow_pair", [(0, 2), (1, 3)])
def test_with_one_gpu_on_each_of_four_nodes_a_pair_slower_than_all_others_is_slow(slow_pair: Members) -> None:
    (verdict,) = faults(on_four_nodes([slow_pair, slow_pair[::-1]], per_node=1))
    assert (verdict.kind, verdict.members) == (Kind.INTRA_LABEL_OUTLIER, slow_pair)
    assert "30% below the 16.0 GB/s" in what(verdict)


@pytest.mark.parametrize("far", [[(0, 2), (1, 3)], [(0, 2), (0, 3)]])
def test_two_pairs_of_them_may_be_farther_apart(far: list[Members]) -> None:
    """The diagonals of a ring of four sockets: nothing tells them from pairs that are slow."""
    assert faults(on_four_nodes([*far, *(pair[::-1] for pair in far)], per_node=1)) == []


def test_with_one_gpu_on_each_node_copies_with_host_memory_show_which_slot_is_slow() -> None:
    """Its pairs are like no others, so their rates neither show its slot nor clear it."""
    healthy = on_four_nodes(per_node=1)

    def through_slot(found: Measurement) -> Measurement:
        """Return what the slot of GPU3 leaves of it: 10 GB/s."""
        point = found.point
        least = point.size_bytes / 10e9 * point.work.operation.busbw_factor(len(point.members))
        samples = [replace(one, seconds=tuple(max(took, least) for took in one.seconds)) for one in found.samples]
        return replace(found, samples=samples) if 3 in point.members else found

    first = faults(replace(healthy, measurements=[through_slot(found) for found in healthy.measurements]))[0]
    assert (3,) in [first.members, *(cause.devices for some in first.cause.either for cause in some)]


@pytest.mark.parametrize("label", ["N/A", "?"])
def test_links_without_a_label_are_compared_with_their_opposites_only(label: str) -> None:
    """GPU0 and GPU2 may be on two sockets: half of what others carry is no fault."""

    def rate(_work: Work, members: Members) -> float:
        return 13.0 if {*members} == {0, 2} else 21.0 if members == (2, 1) else 26.0

    found = Diagnosis(pcie(dict.fromkeys(combinations(range(4), 2), label), rate))
    assert [(verdict.kind, verdict.members) for verdict in found.verdicts] == [(Kind.ASYMMETRY, (2, 1))]
    others = "GPU0 → GPU2 reaches 13.0 GB/s where others without a label reach 26.0: nothing tells which path it has"
    assert found.left_open == others


def test_links_between_hosts_have_no_order() -> None:
    links = (Path((0, 1), "NET"), Path((0, 2), "SYS"), Path((1, 2), "SYS"))
    run = pair_run(3, lambda a, b: 40.0 if (a, b) == (0, 1) else 10.0, links=links)
    assert Kind.ORDER_INVERSION not in kinds(run)
    assert gpus(3) == run.devices
