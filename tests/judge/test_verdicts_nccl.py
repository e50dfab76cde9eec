"""NCCL against the links: far below them, and why."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from collbench.judge.diagnose import Kind, judge
from collbench.judge.diagnose.readings import Facts
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import Path, Run
from collbench.report.verdicts import finding
from tests.builders import GIB, gpus, measured, nvml_says, smi_says, throttled
from tests.judge.checked import (
    Members,
    beside_others,
    faults,
    flagged,
    h200,
    pcie,
    run_on,
    slow,
    the,
    undone,
    with_check,
)

BRIDGES: dict[Members, str] = {(0, 1): "PIX", (2, 3): "PIX"}
PAIRS = [(a, b) for a in range(4) for b in range(a + 1, 4)]
# all_reduce_perf on two of the recorded machine's GPUs at 512 MiB: 27.9 GB/s with NCCL_P2P_DISABLE=1, 312.2 without.
DISABLED = 27.9 / 312.2


def with_settings(run: Run, environment: Mapping[str, str]) -> Run:
    return replace(run, settings=replace(run.settings, environment=dict(environment)))


def test_a_disabled_peer_to_peer_is_named_as_the_cause_of_one_verdict() -> None:
    run = with_settings(h200(slow(PAIRS, DISABLED, copies=False)), {"NCCL_P2P_DISABLE": "1", "NCCL_DEBUG": "WARN"})
    verdict = the(run, Kind.NV_NOT_USED)
    assert verdict.explains == (Kind.COLLECTIVE_CONTRADICTION,)
    assert verdict.members == (0, 1, 2, 3)
    assert verdict.cause.text.startswith("the environment variable NCCL_P2P_DISABLE=1 disables direct transfers")
    assert verdict.fix == "env -u NCCL_P2P_DISABLE collbench allreduce --devices 0,1 --sizes 64M"
    assert verdict.measured is not None
    assert verdict.measured[0] < 326.08 * DISABLED < verdict.measured[2]


def test_what_nccl_sends_through_memory_of_an_unknown_socket_is_compared_within_a_socket() -> None:
    """It lies at that of GPU0 and GPU1: those of the other one are farther."""

    def rate(work: Work, members: Members) -> float:
        far = work.operation.is_collective and {2, 3} & {*members}
        return 9.0 if far else 12.0

    run = pcie(BRIDGES, rate)
    run = replace(run, devices=tuple(replace(gpu, numa_node=gpu.index // 2) for gpu in run.devices))
    assert faults(with_settings(run, {"NCCL_P2P_DISABLE": "1"})) == []
    assert [verdict.kind for verdict in faults(run)] == [Kind.INTRA_LABEL_OUTLIER]


@pytest.mark.parametrize("gpus", [(2,), (2, 3)])
def test_a_variable_that_slows_nccl_hides_no_slow_copies(gpus: tuple[int, ...]) -> None:
    """All links of a GPU are slow, or those of one pair."""

    def share(work: Work, members: Members) -> float:
        if work.operation.is_collective:
            return DISABLED
        return 0.8 if {*gpus} <= {*members} and len(members) == 2 else 1.0

    unused, outlier = faults(with_settings(h200(share), {"NCCL_P2P_DISABLE": "1"}))
    assert (unused.kind, unused.cause.name) == (Kind.NV_NOT_USED, "NCCL_P2P_DISABLE")
    assert (outlier.kind, outlier.members) == (Kind.INTRA_LABEL_OUTLIER, gpus)


def test_what_a_variable_slows_is_one_verdict_beside_pairs_that_it_does_not() -> None:
    """Copies of a throttled GPU3 are as slow as NCCL, which is so over host memory."""

    def share(work: Work, members: Members) -> float:
        slow_copies = work.variant is Variant.PLAIN and 3 in members
        return 0.1 if slow_copies or work.operation.is_collective else 1.0

    run = flagged(h200(share), throttled(3))
    unused = [v for v in faults(with_settings(run, {"NCCL_P2P_DISABLE": "1"})) if v.kind is Kind.NV_NOT_USED]
    assert [v.pairs for v in unused] == [((0, 1), (0, 2), (1, 2))]


def test_nccl_that_a_variable_sends_through_host_memory_disturbs_its_neighbors() -> None:
    """Without the variable, pairs below one bridge share nothing."""
    run = with_check(pcie(BRIDGES, lambda _work, _members: 22.0), Operation.ALLREDUCE, "PIX", 0.5)
    assert the(run, Kind.CONTENTION).cause.name == "bridge_detour"
    assert faults(with_settings(run, {"NCCL_P2P_DISABLE": "1"})) == []


def test_what_the_copies_carry_is_the_limit_of_a_contradiction() -> None:
    contradiction = the(h200(slow(PAIRS, 0.3, copies=False)), Kind.COLLECTIVE_CONTRADICTION)
    assert contradiction.theory_gbs is not None
    assert 390 < contradiction.theory_gbs < 397


def test_without_copies_a_contradiction_says_theory_and_blames_no_nccl() -> None:
    run = h200(slow(PAIRS, 0.3, copies=False))
    bare = replace(run, measurements=[m for m in run.measurements if m.point.operation.is_collective])
    copied, uncopied = (the(either, Kind.COLLECTIVE_CONTRADICTION) for either in (run, bare))
    assert copied.text.startswith("NCCL reaches 25% of the capacity of its slowest link (")
    assert " GB/s, links 39" in finding(copied)
    assert uncopied.text.startswith("22% of what NVLink allows in theory (")
    assert " GB/s, theory 450" in finding(uncopied)
    assert uncopied.cause.name == "link_or_nccl"


def test_on_links_of_several_labels_the_capacity_and_the_rates_are_those_of_one() -> None:
    """It once held the rates on all links against the capacity of the fastest ones: 35%, beside a text with 40%."""
    many = {(0, 1), (2, 3)}
    links = [
        Path(pair, f"NV{count}", "PHB", count, count * 25.0, "", nvml_says("OK"), f"NV{count}", smi_says("OK"))
        for pair in PAIRS
        for count in (8 if pair in many else 4,)
    ]

    def rate(work: Work, members: Members) -> float:
        if work.variant is not Variant.PLAIN:
            return 20.0
        return (0.4 if work.operation.is_collective else 1.0) * (196.0 if {*members} in map(set, many) else 98.0)

    verdict = the(run_on(gpus(4), links, rate, slot=(4, 16)), Kind.COLLECTIVE_CONTRADICTION)
    assert verdict.text.startswith("NCCL reaches 40% of the capacity of its slowest link (")
    assert (verdict.label, len(verdict.pairs)) == ("NV8", 6)
    assert verdict.theory_gbs == pytest.approx(196.0, rel=0.01)
    assert verdict.measured is not None
    assert verdict.measured == pytest.approx([0.4 * 196.0] * 3, rel=0.01)


@pytest.mark.parametrize(("share", "kind"), [(DISABLED, Kind.NV_NOT_USED), (0.3, Kind.COLLECTIVE_CONTRADICTION)])
def test_without_a_variable_the_log_tells(share: float, kind: Kind) -> None:
    verdict = the(h200(slow(PAIRS, share, copies=False)), kind)
    assert verdict.cause.name == "nccl_path"
    assert verdict.fix.startswith("NCCL_DEBUG=INFO NCCL_DEBUG_FILE=/tmp/nccl.%p collbench allreduce --devices 0,1 ")


def test_pairs_that_are_only_slow_are_no_part_of_those_that_use_no_nvlinks() -> None:
    shares: dict[tuple[int, ...], float] = {pair: DISABLED if 0 in pair else 0.3 for pair in PAIRS}
    run = h200(lambda work, members: 1.0 if work.operation.is_copy else shares.get(members, 1.0))
    assert [v.kind for v in faults(run)] == [Kind.NV_NOT_USED, Kind.COLLECTIVE_CONTRADICTION]


@pytest.mark.parametrize(
    ("environment", "cause"),
    [
        ({"NCCL_PROTO": "LL"}, "NCCL_PROTO"),
        ({"NCCL_ALGO": "Tree"}, "NCCL_ALGO"),
        ({"NCCL_MAX_NCHANNELS": "1"}, "NCCL_MAX_NCHANNELS"),
        ({"NCCL_P2P_LEVEL": "0", "NCCL_PROTO": "LL"}, "NCCL_P2P_LEVEL"),
        ({"NCCL_P2P_DISABLE": "0", "NCCL_SHM_DISABLE": "1"}, "NCCL_SHM_DISABLE"),
        ({"NCCL_IB_DISABLE": "1"}, "NCCL_IB_DISABLE"),
        ({"NCCL_P2P_DISABLE": "0"}, "nccl_path"),
        ({"NCCL_VERSION": "2.28.9"}, "nccl_path"),
    ],
)
def test_the_variable_that_slows_nccl_is_named(environment: Mapping[str, str], cause: str) -> None:
    run = with_settings(h200(slow(PAIRS, 0.4, copies=False)), environment)
    found = the(run, Kind.COLLECTIVE_CONTRADICTION).cause
    assert found.name == cause
    assert cause not in environment or f" {cause}={environment[cause]} " in found.text


def test_over_pcie_nccl_may_take_host_memory() -> None:
    """Between NUMA nodes NCCL does so by itself: half of a peer copy contradicts nothing, a fifth does."""

    def run(gbs: float) -> Run:
        return pcie({}, lambda work, _m: gbs if work.operation is Operation.ALLREDUCE else 22.0)

    assert faults(run(11.0)) == []
    assert the(run(4.4), Kind.COLLECTIVE_CONTRADICTION).members == (0, 1, 2, 3)


def test_all_devices_at_once_without_any_copy() -> None:
    """all_reduce_perf on all four recorded GPUs at 1 GiB: 354.5 GB/s busbw; S/t is two thirds of it."""
    healthy = replace(h200(), measurements=[measured(Operation.ALLREDUCE, (0, 1, 2, 3), 236.3, GIB)])
    assert faults(healthy) == []
    slow_one = replace(healthy, measurements=[measured(Operation.ALLREDUCE, (0, 1, 2, 3), 20.0, GIB)])
    assert the(slow_one, Kind.NV_NOT_USED).members == (0, 1, 2, 3)
    assert any("no copy" in line for line in undone(slow_one))


def test_gloo_is_not_compared_with_copies() -> None:
    run = replace(h200(slow(PAIRS, DISABLED, copies=False)), backend="host")
    assert [v for v in judge(run) if v.kind is Kind.COLLECTIVE_CONTRADICTION] == []


@pytest.mark.parametrize(
    ("title", "label", "peers", "share", "contradicts"),
    [
        ("below one switch, through host memory: both ways meet on its uplink", "PIX", False, 0.27, False),
        ("far below even that", "PIX", False, 0.1, True),
        ("below one switch with peer access", "PIX", True, 0.27, True),
        ("two host bridges' uplinks, through host memory", "SYS", False, 0.27, True),
        ("as NCCL was on a DGX-1V without an NVLink ring, 5.6 of 9.5 GB/s", "SYS", False, 5.6 / 9.5, False),
    ],
)
def test_what_two_ways_through_one_uplink_may_reach(
    title: str, label: str, peers: bool, share: float, contradicts: bool
) -> None:
    run = pcie(dict.fromkeys(PAIRS, label), lambda work, _m: 9.5 * (share if work.operation.is_collective else 1.0))
    word = "OK" if peers else "CNS"
    paths = [
        replace(path, peer_access=nvml_says(word), tool_peer_access=smi_says(word), cuda_peers=peers)
        for path in run.paths
    ]
    found = {verdict.kind for verdict in faults(replace(run, paths=tuple(paths)))}
    assert (Kind.COLLECTIVE_CONTRADICTION in found) is contradicts, title


def test_over_pcie_only_what_ran_alone_is_held_against_the_links() -> None:
    run = pcie({}, lambda work, _m: 4.4 if work.operation is Operation.ALLREDUCE else 22.0)
    busy = [
        beside_others(replace(run, measurements=[found])).measurements[0]
        if found.point.operation is Operation.ALLREDUCE
        else found
        for found in run.measurements
    ]
    assert faults(replace(run, measurements=busy)) == []


def test_all_devices_at_once_are_heard_though_others_ran_beside_them() -> None:
    run = beside_others(replace(h200(), measurements=[measured(Operation.ALLREDUCE, (0, 1, 2, 3), 20.0, GIB)]))
    assert not the(run, Kind.NV_NOT_USED).confirmed


@pytest.mark.parametrize(("beside", "found"), [(1.0002, False), (0.9998, True)])
def test_far_below_is_half_of_what_the_slower_way_surely_carries(beside: float, found: bool) -> None:
    readings = Facts(h200()).readings
    copies = [readings.best(link) for link in ((0, 1), (1, 0))]
    allowed = min(readings.interval(copy)[0] for copy in copies if copy)
    high = readings.interval(readings.of(Work(Operation.ALLREDUCE))[0, 1])[2]
    run = h200(slow([(0, 1)], 0.5 * allowed / high * beside, copies=False))
    assert (Kind.COLLECTIVE_CONTRADICTION in [v.kind for v in faults(run)]) is found


def test_over_pcie_theory_alone_contradicts_no_collective() -> None:
    run = pcie({}, lambda _w, _m: 2.0)
    alone = [found for found in run.measurements if found.point.operation is Operation.ALLREDUCE]
    assert faults(replace(run, measurements=alone)) == []


def test_unused_nvlinks_are_put_down_to_any_variable_where_none_is_about_paths() -> None:
    run = h200(slow(PAIRS, DISABLED, copies=False))
    unused = faults(with_settings(run, {"NCCL_PROTO": "LL"}))[0]
    assert unused.kind is Kind.NV_NOT_USED
    assert unused.cause.name == "NCCL_PROTO"
    both = faults(with_settings(run, {"NCCL_PROTO": "LL", "NCCL_SHM_DISABLE": "1"}))[0]
    assert both.cause.name == "NCCL_SHM_DISABLE"


def test_a_throttled_gpu_slows_its_collectives() -> None:
    run = flagged(h200(slow([(1, 2)], 0.3, copies=False)), throttled(1, "HW slowdown"))
    verdict = faults(run)[-1]
    assert verdict.kind is Kind.COLLECTIVE_CONTRADICTION
    assert verdict.cause.text.startswith("GPU1 was throttled (HW slowdown) in ")
    assert verdict.fix == "nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER -i 1"


@pytest.mark.parametrize(
    ("title", "label", "environment", "share", "contradicts"),
    [
        ("0.606 of half an uplink", "PIX", {"NCCL_P2P_DISABLE": "1"}, 0.606 / 2, True),
        (
            "a variable that forbids nothing: P2P, which keeps 0.6 and more",
            "PXB",
            {"NCCL_P2P_LEVEL": "SYS"},
            0.6,
            False,
        ),
        ("no variable: slow, but by what is not known", "PIX", {}, 0.606 / 2, False),
        (
            "each GPU has an uplink of its own, which host memory fills as P2P does",
            "PHB",
            {"NCCL_P2P_DISABLE": "1"},
            0.4,
            False,
        ),
    ],
)
def test_below_one_switch_a_variable_that_forbids_p2p_is_found(
    title: str, label: str, environment: dict[str, str], share: float, contradicts: bool
) -> None:
    """Both GPUs send up the one uplink, and each receives from it: half of what a single copy gets is left of it."""
    run = pcie(dict.fromkeys(PAIRS, label), lambda work, _m: 26.3 * (share if work.operation.is_collective else 1.0))
    found = faults(with_settings(run, environment))
    assert [verdict.kind for verdict in found] == [Kind.COLLECTIVE_CONTRADICTION] * contradicts, title
    assert all(verdict.cause.name in environment for verdict in found)
