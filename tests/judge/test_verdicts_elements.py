"""Which shared element is to blame for slow links: machines made of slots, switches, root complexes and sockets."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import combinations, permutations

import pytest

from collbench.judge.diagnose import Diagnosis, Kind
from collbench.judge.diagnose.readings import CE, SM
from collbench.judge.diagnose.verdict import Cause
from collbench.model.errors import ExitStatus
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import Run
from collbench.report.verdicts import conclusion
from tests.builders import gpus, measured, paths, run_of
from tests.judge.checked import HOST, STAGED, Members, faults, h200, run_on

# Eight GPUs: two below each switch, two switches on each socket.
FULL = 26.0
SWITCHES = ((0, 1), (2, 3), (4, 5), (6, 7))


def labels(count: int = 8, per_socket: int = 4) -> dict[tuple[int, int], str]:
    """Return the labels of the first GPUs, with so many on each socket."""
    return {
        (a, b): "PIX" if a // 2 == b // 2 else "NODE" if a // per_socket == b // per_socket else "SYS"
        for a, b in combinations(range(count), 2)
    }


TREE = labels()


def on_tree(capacity: Mapping[str, float], count: int = 8, per_socket: int = 4) -> Run:
    """Return a run on the first GPUs of a tree: a copy gets the least capacity of what it crosses."""
    tree = labels(count, per_socket)

    def least(*elements: str) -> float:
        return min(capacity.get(element, FULL) for element in elements)

    def rate(work: Work, members: Members) -> float:
        if work.variant is Variant.HOST:
            (gpu,) = members
            way = ("out", "up") if work.operation is Operation.D2H_CE else ("in", "down")
            return least(f"slot {gpu} {way[0]}", f"switch {gpu // 2} {way[1]}")
        a, b = members
        ends, uplinks = (f"slot {a} out", f"slot {b} in"), (f"switch {a // 2} up", f"switch {b // 2} down")
        if work.variant is Variant.STAGED:
            return least(*ends, *uplinks)
        socket = a // per_socket
        inside, across = ("roots", f"root {socket}"), ("roots", "sockets", f"from socket {socket}")
        middle = {"PIX": (f"path {min(a, b)}-{max(a, b)}",), "NODE": (*uplinks, *inside), "SYS": (*uplinks, *across)}[
            tree[min(a, b), max(a, b)]
        ]
        if work.operation.is_collective:
            return 0.8 * min(least(*ends, *middle), rate(Work(Operation.CE_WRITE), (b, a)))
        return least(*ends, *middle)

    links = tuple(replace(path, theory_gbs=31.5) for path in paths(count, "SYS", tree))
    return run_on(gpus(count, "NVIDIA A40"), links, rate, slot=(4, 16))


def slow(*elements: str, at: float = 0.5) -> dict[str, float]:
    return dict.fromkeys(elements, at * FULL)


def slot(gpu: int, *ways: str) -> list[str]:
    return [f"slot {gpu} {way}" for way in ways or ("in", "out")]


UPLINK = ("switch 1 up", "switch 1 down")


def of(cause: Cause) -> tuple[str, tuple[int, ...]]:
    return cause.name, cause.devices


@pytest.mark.parametrize(
    ("title", "capacity", "cause", "pairs"),
    [
        (
            "a slot",
            slow(*slot(3)),
            "GPU3's slot (fewer lanes, a riser, or a lower generation), or its clocks, because all of its links",
            {(3, other) for other in range(8)},
        ),
        (
            "a slot a tenth slower",
            slow(*slot(3), at=0.9),
            "GPU3's slot (fewer lanes, a riser, or a lower generation), or its clocks, because all of its links",
            {(3, other) for other in range(8)},
        ),
        (
            "an uplink",
            slow(*UPLINK),
            "the uplink of the PCIe switch above GPU2, GPU3 (",
            {(gpu, other) for gpu in (2, 3) for other in (0, 1, 4, 5, 6, 7)},
        ),
        (
            "the link between sockets",
            slow("sockets", at=0.25),
            "the link between the sockets of GPU0, GPU1, GPU2, GPU3, GPU4, GPU5, GPU6, GPU7, which copies through host",
            {(a, b) for a in range(4) for b in range(4, 8)},
        ),
        (
            "all root complexes",
            slow("roots", at=0.25),
            "the root complexes between GPU0, GPU1, GPU2, GPU3, GPU4, GPU5, GPU6, GPU7, which forward copies",
            {pair for pair, label in TREE.items() if label != "PIX"},
        ),
        (
            "the root complex of a socket",
            slow("root 0", at=0.25),
            "the root complexes between GPU0, GPU1, GPU2, GPU3, which forward copies",
            {(0, 2), (0, 3), (1, 2), (1, 3)},
        ),
        (
            "the root complex of either socket",
            slow("root 0", "root 1", at=0.25),
            "the root complexes between GPU0, GPU1, GPU2, GPU3, GPU4, GPU5, GPU6, GPU7, which forward copies",
            {pair for pair, label in TREE.items() if label == "NODE"},
        ),
    ],
)
def test_one_slow_element_is_the_one_verdict(
    title: str, capacity: Mapping[str, float], cause: str, pairs: set[Members]
) -> None:
    (verdict,) = faults(on_tree(capacity))
    assert verdict.cause.text.startswith(cause)
    assert {frozenset(pair) for pair in verdict.pairs} == {frozenset(pair) for pair in pairs if pair[0] != pair[1]}


@pytest.mark.parametrize("at", [0.25, 0.6, 0.85])
@pytest.mark.parametrize("ways", [("from",), ("to",), ("from", "to")])
def test_a_root_complex_that_forwards_slowly_inside_its_socket_and_to_the_other_is_one_verdict(
    at: float, ways: tuple[str, ...]
) -> None:
    """Copies with host memory are as fast as ever; at 0.85 of a slot those through it are hardly faster than P2P."""
    leaving = [f"from socket {1 if way == 'from' else 0}" for way in ways]
    (verdict,) = faults(on_tree(slow("root 1", *leaving, at=at)))
    assert of(verdict.cause) == ("forwarding", (4, 5, 6, 7))
    crossing = {(min(link), max(link)) for link in verdict.links | verdict.reach}
    assert {(4, 6), (4, 7), (5, 6), (5, 7)} <= crossing


@pytest.mark.parametrize("at", [0.25, 0.5])
@pytest.mark.parametrize("switches", [*combinations(range(4), 2)])
def test_a_verdict_on_a_part_counts_all_pairs_that_it_is_about(switches: tuple[int, int], at: float) -> None:
    """With two uplinks at the same rate no pair in a socket is slower than others of its label, but crosses one."""
    found = faults(on_tree(slow(*(f"switch {switch} {way}" for switch in switches for way in ("up", "down")), at=at)))
    assert sorted(of(verdict.cause) for verdict in found) == [("uplink", SWITCHES[switch]) for switch in switches]
    crossing = {pair for pair in TREE if {pair[0] // 2, pair[1] // 2} & {*switches} and TREE[pair] != "PIX"}
    assert {pair for verdict in found for pair in verdict.pairs} == crossing
    for verdict in found:
        assert verdict.place.startswith(f"{len(verdict.pairs)} ")
        assert {gpu for pair in verdict.pairs for gpu in pair} == {*verdict.members}


@pytest.mark.parametrize("ways", [("up",), ("up", "down")])
def test_two_uplinks_below_one_root_complex_may_be_that_and_nothing_is_said_twice(ways: tuple[str, ...]) -> None:
    """What crosses both uplinks of a root complex crosses that, too."""
    run = on_tree(slow(*(f"switch {switch} {way}" for switch in (0, 1) for way in ways), at=0.35))
    below_root = (replace(path, label="PHB", ancestor="PHB") if path.label == "NODE" else path for path in run.paths)
    (verdict,) = faults(replace(run, paths=tuple(below_root)))
    first, second = verdict.cause.either
    assert [*map(of, first)] == [("uplink", (0, 1)), ("uplink", (2, 3))]
    assert {name for name, _ in map(of, second)} <= {"uplink", "root", "forwarding_root"}
    named = verdict.cause.text.partition(": both")[0].partition(", or ")[2].split(" and ")
    assert len({*named}) == len(named)
    assert verdict.place.startswith("20 ")


@pytest.mark.parametrize("way", ["in", "out"])
def test_one_direction_of_a_slot_is_its_gpus(way: str) -> None:
    (verdict,) = faults(on_tree(slow(*slot(3, way))))
    assert (verdict.members, verdict.cause.name, verdict.cause.devices) == ((3,), "gpu_direction", (3,))


def test_the_uplink_of_one_of_two_switches_shows_in_copies_with_host_memory_only() -> None:
    """Both uplinks are on every path between the switches: no label promises a better rate."""
    (verdict,) = faults(on_tree(slow(*UPLINK), count=4))
    assert (verdict.kind, of(verdict.cause)) == (Kind.INTRA_LABEL_OUTLIER, ("uplink", (2, 3)))
    assert verdict.pairs == ((0, 2), (0, 3), (1, 2), (1, 3))


@pytest.mark.parametrize("way", [(3, 0), (0, 3)])
def test_a_socket_with_one_gpu_has_a_link_to_the_other_socket_too(way: Members) -> None:
    """GPU3 copies to and from host memory as ever, so it is not its slot."""

    def rate(work: Work, members: Members) -> float:
        across = len(members) == 2 and work.variant is Variant.PLAIN and 3 in members
        slow = across and (work.operation.is_collective or members.index(3) == way.index(3))
        return (18.0 if slow else 24.0) * (0.8 if work.operation.is_collective else 1.0)

    but = dict.fromkeys(((0, 1), (0, 2), (1, 2)), "PIX")
    links = tuple(replace(path, theory_gbs=31.5) for path in paths(4, "SYS", but))
    (verdict,) = faults(run_on(gpus(4, "NVIDIA A40"), links, rate, slot=(4, 16)))
    assert of(verdict.cause) == ("sockets", (0, 1, 2, 3))


def alone_at_its_socket(capacity: Mapping[str, float], bound: bool) -> Run:
    """Return a run on GPU0 to GPU2 below a switch and GPU3 at the other socket; memory lies at the first if not bound.

    Copies between sockets reach 0.85 of a slot, those of GPU3 with the memory of the first socket 0.65.
    """

    def least(*elements: str) -> float:
        return min(capacity.get(element, FULL) for element in elements)

    def rate(work: Work, members: Members) -> float:
        if work.variant is Variant.STAGED:
            return min(rate(HOST[1], members[:1]), rate(HOST[0], members[1:]))
        ends = least(*(f"slot {gpu}" for gpu in members))
        if work.variant is Variant.HOST:
            far = members == (3,) and not bound
            return min(ends, least("sockets"), 0.65 * FULL) if far else ends
        across = min(ends, least("sockets"), 0.85 * FULL) if 3 in members else ends
        return (0.8 if work.operation.is_collective else 1.0) * across

    devices = [replace(device, numa_node=int(at == 3)) for at, device in enumerate(gpus(4, "NVIDIA A40"))]
    below = dict.fromkeys(((0, 1), (0, 2), (1, 2)), "PIX")
    links = tuple(replace(path, theory_gbs=31.5) for path in paths(4, "SYS", below))
    run = run_on(devices, links, rate, slot=(4, 16))
    near: dict[Members, int | None] = {(gpu,): int(gpu == 3) if bound else None for gpu in range(4)}
    points = ((found, found.point) for found in run.measurements)
    measurements = [
        replace(found, point=replace(at, numa_node=near[at.members])) if at.variant is Variant.HOST else found
        for found, at in points
    ]
    return replace(run, measurements=measurements)


@pytest.mark.parametrize(
    ("capacity", "bound", "causes"),
    [
        ({}, False, []),
        ({"slot 3": 0.7 * FULL}, False, []),  # as slow as memory of another socket may be
        ({"slot 3": 0.7 * FULL}, True, [("gpu", (3,))]),
        ({"slot 1": 0.7 * FULL}, False, [("gpu", (1,))]),
        ({"slot 1": 0.7 * FULL}, True, [("gpu", (1,))]),
        ({"slot 3": 0.4 * FULL}, False, ["either"]),
        ({"sockets": 0.4 * FULL}, False, ["either"]),
        ({"slot 3": 0.4 * FULL}, True, [("gpu", (3,))]),
    ],
)
def test_where_memory_lies_decides_what_copies_with_it_tell(
    capacity: dict[str, float], bound: bool, causes: list[object]
) -> None:
    run = alone_at_its_socket(capacity, bound)
    found = [verdict.cause for verdict in faults(run)]
    assert ["either" if cause.either else of(cause) for cause in found] == causes
    for cause in found:
        if cause.either:
            both = {part for parts in cause.either for part in map(of, parts)}
            assert both == {("gpu", (3,)), ("sockets", (0, 1, 2, 3))}
    if not bound and not causes:
        assert Diagnosis(run).left_open.startswith("GPU3 copies with host memory at 16.9 GB/s")


def with_memory_of_both_nodes(far: Mapping[str, float], slot: Mapping[int, float], label: str = "SYS") -> Run:
    """Return a run on GPU0, GPU1 at node 0 and GPU2, GPU3 at node 1; `far` are shares of a slot, by direction."""

    def rate(work: Work, members: Members) -> float:
        ends = min(slot.get(gpu, FULL) for gpu in members)
        if work.variant is Variant.HOST or label != "SYS":
            return ends
        ways = {"up" if a < 2 else "down" for a, b in (members, members[::-1]) if a // 2 != b // 2}
        ways -= {"down" if members[0] < 2 else "up"} if not work.operation.is_collective else set()
        least = min([ends, *(far[way] * FULL for way in ways)])
        return (0.8 if work.operation.is_collective else 1.0) * least

    def across(work: Work, members: Members) -> float:
        to_node_1 = (members[0] < 2) == (work.operation is Operation.D2H_CE)
        return min(rate(work, members), far["up" if to_node_1 else "down"] * FULL)

    devices = [replace(device, numa_node=at // 2) for at, device in enumerate(gpus(4, "NVIDIA A40"))]
    links = paths(4, label, {(0, 1): "PIX", (2, 3): "PIX"} if label == "SYS" else {})
    links = tuple(replace(path, theory_gbs=31.5) for path in links)
    run = run_on(devices, links, rate, slot=(4, 16))
    measurements = [found for found in run.measurements if found.point.variant is not Variant.HOST]
    for rates, other in ((rate, 0), (across, 1)):
        for found in run_on(devices, links, rates, slot=(4, 16)).measurements:
            if found.point.variant is Variant.HOST:
                node = found.point.members[0] // 2
                point = replace(found.point, numa_node=1 - node if other else node)
                measurements.append(replace(found, point=point))
    return replace(run, measurements=measurements)


@pytest.mark.parametrize(
    ("up", "down", "slots", "said"),
    [
        (0.25, 0.25, {}, "copies with host memory between NUMA nodes 0 and 1"),
        (0.38, 0.38, {}, "copies with host memory between NUMA nodes 0 and 1"),
        (0.55, 0.55, {}, "copies with host memory between NUMA nodes 0 and 1"),  # P2P across at 0.46 of theory
        (0.62, 0.62, {}, ""),
        (1.0, 1.0, {3: 0.25 * FULL}, "all links of GPU3"),  # near or far
    ],
)
def test_a_link_between_sockets_shows_in_copies_with_memory_of_the_other_one(
    up: float, down: float, slots: dict[int, float], said: str
) -> None:
    """All pairs across are as slow, and so is what is staged: nothing else tells."""
    found = faults(with_memory_of_both_nodes({"up": up, "down": down}, slots))
    assert [verdict.place for verdict in found] == [said] * bool(said)
    for verdict in found:
        if "NUMA" in verdict.place:
            assert of(verdict.cause) == ("sockets", (0, 1, 2, 3))
            assert verdict.pairs == ((0, 2), (0, 3), (1, 2), (1, 3))
            assert verdict.text.startswith(f"{1 - up:.0%} below the 26")


def test_copies_with_memory_of_the_other_socket_at_half_need_slow_copies_between_gpus_as_a_second_witness() -> None:
    half = {"up": 0.5, "down": 0.5}
    assert len(faults(with_memory_of_both_nodes(half, {}))) == 1
    assert not faults(with_memory_of_both_nodes(half, {}, "NV4")), "GPUs joined by NVLinks do not cross that link"
    run = with_memory_of_both_nodes(half, {})
    denied = replace(run, paths=tuple(replace(path, cuda_peers=False) for path in run.paths))
    assert not faults(denied), "without peer access what GPUs copy goes through host memory, too"


def test_a_slow_slot_and_a_slow_link_between_sockets_are_both_named_though_near_memory_is_slow_for_one_gpu() -> None:
    found = faults(with_memory_of_both_nodes({"up": 0.25, "down": 0.25}, {3: 0.5 * FULL}))
    assert sorted(map(of, (verdict.cause for verdict in found))) == [("gpu", (3,)), ("sockets", (0, 1, 2, 3))]


def test_one_direction_between_sockets_is_named_by_pairs_across_or_else_by_copies_with_memory() -> None:
    (across,) = faults(with_memory_of_both_nodes({"up": 0.25, "down": 1.0}, {}))
    assert (across.kind, of(across.cause)) == (Kind.ASYMMETRY, ("sockets", (0, 1, 2, 3)))
    (by_memory,) = faults(with_memory_of_both_nodes({"up": 0.25, "down": 1.0}, {}, "NV4"))
    assert by_memory.place == "copies with host memory from NUMA node 0 to 1"
    assert by_memory.links == frozenset()
    assert "between their GPUs" not in by_memory.cause.text
    assert not any(by_memory.concerns(pair) for pair in combinations(range(4), 2)), "NVLinks agree with their label"


def test_all_links_between_four_numa_nodes_are_one_verdict_beside_a_slow_slot() -> None:
    def rate(work: Work, members: Members) -> float:
        end = 0.5 * FULL if 3 in members else FULL
        if work.variant in (Variant.HOST, Variant.STAGED):
            return end
        direct = end if members[0] // 2 == members[1] // 2 else 0.3 * FULL
        return (0.8 if work.operation.is_collective else 1.0) * direct

    links = tuple(replace(path, theory_gbs=31.5) for path in paths(8, "SYS", dict.fromkeys(SWITCHES, "NODE")))
    between, of_slot = faults(run_on(gpus(8, "NVIDIA A40"), links, rate, slot=(4, 16)))
    assert len(between.pairs) == 24
    assert of_slot.members == (3,)


def test_a_slow_slot_that_shares_half_of_its_links_with_a_slower_one_is_named() -> None:
    """Bridges join 0-1 and 2-3, so GPU3 has two pairs over PCIe: with GPU1 it reaches what its own slot carries."""
    slots = (15.0, 26.0, 26.0, 20.0)

    def rate(work: Work, members: Members) -> float:
        if members in ((0, 1), (1, 0), (2, 3), (3, 2)) and work.variant is Variant.PLAIN:
            return 50.0 * (0.8 if work.operation.is_collective else 1.0)
        across = 24.0 if len(members) == 2 and work.variant is Variant.PLAIN else 26.0
        return min(across, *(slots[member] for member in members)) * (0.8 if work.operation.is_collective else 1.0)

    links = [
        replace(
            path, theory_gbs=31.5 if path.label == "SYS" else 56.25, ancestor="SYS" if path.label == "SYS" else "PIX"
        )
        for path in paths(4, "SYS", {(0, 1): "NV4", (2, 3): "NV4"})
    ]
    found = faults(run_on(gpus(4, "NVIDIA A40"), links, rate, slot=(4, 16)))
    assert sorted(of(verdict.cause) for verdict in found) == [("gpu", (0,)), ("gpu", (3,))]


def test_a_slot_and_an_uplink_are_both_named() -> None:
    causes_found = {of(verdict.cause) for verdict in faults(on_tree(slow(*slot(6), *UPLINK)))}
    assert causes_found == {("gpu", (6,)), ("uplink", (2, 3))}


@pytest.mark.parametrize("gpu", [1, 2])
def test_a_slot_is_named_beside_a_slower_direction_between_sockets(gpu: int) -> None:
    """Whichever socket it is on: what crosses both is as slow as the direction, and the uplink above it is not."""
    detour, of_slot = faults(on_tree(slow(*slot(gpu)) | slow("from socket 0", at=0.25), count=4, per_socket=2))
    assert (detour.kind, of(of_slot.cause)) == (Kind.P2P_SLOWER_THAN_STAGED, ("gpu", (gpu,)))
    assert {(0, 2), (0, 3), (1, 2), (1, 3)} == detour.links


def test_a_slot_that_slow_forwarding_hides_shows_in_copies_with_host_memory() -> None:
    detour, of_slot = faults(on_tree(slow(*slot(1)) | slow("roots", at=0.25), count=3, per_socket=2))
    assert detour.kind is Kind.P2P_SLOWER_THAN_STAGED
    assert (of_slot.kind, of(of_slot.cause)) == (Kind.INTRA_LABEL_OUTLIER, ("gpu", (1,)))


def test_two_directions_below_a_switch_may_be_its_uplink_and_the_path_between_them() -> None:
    (verdict,) = faults(on_tree(slow(*slot(2, "out"), *slot(3, "out"))))
    assert {tuple(map(of, parts)) for parts in verdict.cause.either} == {
        (("gpu_direction", (2,)), ("gpu_direction", (3,))),
        (("uplink", (2, 3)), ("path", (2, 3))),
    }


def test_what_all_explanations_share_is_named_without_a_doubt() -> None:
    """Beside GPU2's slot, all that is slow out of GPU3 may be due to the uplink above both."""
    found = faults(on_tree(slow(*slot(2), *slot(3, "out"))))
    assert [of(verdict.cause) for verdict in found if not verdict.cause.either] == [("gpu", (2,))]
    (doubtful,) = (verdict.cause for verdict in found if verdict.cause.either)
    assert [*map(of, doubtful.either[0])] == [("gpu_direction", (3,))]
    assert [*map(of, doubtful.either[1])] == [("uplink", (2, 3))]


@pytest.mark.parametrize("other", [slot(2), UPLINK])
def test_the_slower_of_two_faults_below_a_switch_is_named_whichever_the_other_is(other: list[str]) -> None:
    """GPU3's slot is at a quarter; what else is slow crosses GPU2's slot and the uplink above both."""
    found = faults(on_tree(slow(*other) | slow(*slot(3), at=0.25)))
    (sure,) = (verdict for verdict in found if not verdict.cause.either)
    (doubtful,) = (verdict for verdict in found if verdict.cause.either)
    every = {frozenset((gpu, other)) for gpu in (2, 3) for other in range(8) if gpu != other}
    assert of(sure.cause) == ("gpu", (3,))
    assert {frozenset(pair) for pair in sure.pairs} == {pair for pair in every if 3 in pair}
    assert {tuple(map(of, parts)) for parts in doubtful.cause.either} == {(("gpu", (2,)),), (("uplink", (2, 3)),)}
    assert {frozenset(link) for link in doubtful.links} == {pair for pair in every if 3 not in pair}


def test_explanations_that_fit_equally_well_are_both_said() -> None:
    """Two slow slots below one switch slow the same copies as its uplink and one of the slots."""
    run = on_tree(slow(*slot(2), *slot(3)))
    (verdict,) = faults(run)
    first, second = verdict.cause.either
    assert [*map(of, first)] == [("gpu", (2,)), ("gpu", (3,))]
    assert ("uplink", (2, 3)) in map(of, second)
    assert verdict.cause.text.startswith("either GPU2 and GPU3, or GPU")
    assert verdict.fix.startswith(GPU2)
    assert UPSTREAM.format("") in verdict.fix


def test_of_two_gpus_the_one_that_copies_far_slower_with_host_memory_is_said() -> None:
    run = on_tree(slow(*slot(1), at=0.77), count=2)
    assert faults(run) == []
    assert Diagnosis(run).left_open.startswith("GPU1 copies with host memory at 20.0 GB/s where GPUs like it reach 26")


GPU2 = "sudo lspci -vvv -s 0000:03:00.0 | grep LnkSta:"
UPSTREAM = "sudo lspci -vvv -s $(basename $(readlink -f /sys/bus/pci/devices/0000:03:00.0/../..{})) | grep LnkSta:"


@pytest.mark.parametrize(("label", "above"), [("PIX", ""), ("PXB", "/../..")])
def test_the_command_for_an_uplink_shows_the_switchs_upstream_port(label: str, above: str) -> None:
    """GPU0 and GPU1 are well: their slots tell nothing. PXB: there is a switch above the GPUs' own ones."""
    run = on_tree(slow(*UPLINK))
    paths = (replace(path, label=label, ancestor=label) if path.devices == (2, 3) else path for path in run.paths)
    (verdict,) = faults(replace(run, paths=tuple(paths)))
    assert (of(verdict.cause), verdict.fix) == (("uplink", (2, 3)), UPSTREAM.format(above))


def test_the_command_for_a_slot_shows_that_of_the_slow_gpu_alone() -> None:
    (verdict,) = faults(on_tree(slow(*slot(2))))
    assert (of(verdict.cause), verdict.fix) == (("gpu", (2,)), GPU2)


@pytest.mark.parametrize(
    ("gpus_below", "ways", "name", "members"),
    [
        ((2,), HOST, "gpu", (2,)),
        ((2,), HOST[:1], "gpu_direction", (2,)),
        ((2, 3), HOST, "uplink", (2, 3)),
    ],
)
def test_where_nvlinks_join_all_gpus_copies_with_host_memory_accuse_a_slot_or_uplink(
    gpus_below: Members, ways: tuple[Work, ...], name: str, members: Members
) -> None:
    below = {(0, 1): "PIX", (2, 3): "PIX"}
    run = h200(lambda work, ends: 0.55 if work in ways and ends[0] in gpus_below else 1.0)
    tree = tuple(replace(path, ancestor=below.get(path.devices, "NODE")) for path in run.paths)
    run = replace(run, paths=tree)
    (verdict,) = faults(run)
    assert (verdict.kind, of(verdict.cause)) == (Kind.INTRA_LABEL_OUTLIER, (name, members))
    assert (verdict.members, verdict.pairs, verdict.label) == (members, (), "")
    assert verdict.fix == (UPSTREAM if name == "uplink" else GPU2).format("")
    assert len(Diagnosis(run).healthy) == 6, "it crosses no NVLink"


def test_a_slot_with_too_few_lanes_is_one_verdict_where_nvlinks_join_all_gpus() -> None:
    run = h200(lambda work, ends: 0.5 if work in (*HOST, STAGED) and 2 in ends else 1.0)
    states = [replace(state, pcie_width=8) if at == 2 else state for at, state in enumerate(run.health_after)]
    (verdict,) = faults(replace(run, health_after=tuple(states)))
    assert (verdict.kind, verdict.members) == (Kind.PCIE_DEGRADED, (2,))
    assert verdict.explains == (Kind.INTRA_LABEL_OUTLIER,)


@pytest.mark.parametrize("far", [0.65, 0.75])
def test_where_no_numa_node_is_known_memory_may_be_far_from_half_of_the_gpus(far: float) -> None:
    """A virtual machine hides the sockets: copies of GPU2 and GPU3 cross the link between them."""
    run = h200(lambda work, ends: far if work in HOST and ends[0] > 1 else 1.0)
    run = replace(run, devices=tuple(replace(device, numa_node=None) for device in run.devices))
    assert faults(run) == []
    assert "another socket" in Diagnosis(run).left_open


def test_a_link_is_not_taken_for_its_gpus_port_because_noise_hides_the_others() -> None:
    """GPU0 → GPU3 is slow; what GPU0 exchanges with others varies so much that it may be slow as well."""
    rng, links = random.Random(56), tuple(permutations(range(4), 2))

    def rates(link: Members) -> list[float]:
        wild, healthy = 0 in link and 3 not in link, 12.0 if link == (0, 3) else 20.0
        return [healthy * (rng.choice((0.98, 0.97, 0.6)) if wild else rng.gauss(1, 1e-3)) for _ in range(3)]

    found = [measured(work.operation, link, rates(link)) for work in (*CE, *SM) for link in links]
    (verdict,) = faults(run_of(gpus(4, "NVIDIA A40"), found, paths(4, "PHB")))
    assert (verdict.kind, verdict.members) == (Kind.ASYMMETRY, (0, 3))


def test_a_card_of_another_product_is_compared_with_its_own_kind() -> None:
    """Its slot's limit is that of the others: only its name says that it may be slower."""
    run = on_tree(slow(*slot(5), at=0.6))
    assert [verdict.members for verdict in faults(run)] == [(5,)]
    devices = tuple(replace(one, name="NVIDIA L40S") if one.index != 5 else one for one in run.devices)
    assert faults(replace(run, devices=devices)) == []


def test_of_equally_slow_nvlinks_none_is_degraded_alone() -> None:
    """All reach 0.70 of theory: some by chance a little less."""

    def share(work: Work, members: Members) -> float:
        if (
            work.operation not in (Operation.CE_WRITE, Operation.CE_READ)
            or len(members) != 2
            or work.variant is not Variant.PLAIN
        ):
            return 1.0
        return 0.70 * 450 / 392 * (0.982 if members[0] == 2 else 1.005)

    assert [verdict for verdict in faults(h200(share)) if verdict.kind is Kind.NV_DEGRADED] == []


DOUBLES = ((0, 6), (1, 2), (3, 5), (4, 7))
SINGLES = ((0, 1), (0, 4), (1, 5), (2, 6), (2, 7), (3, 4), (3, 6), (5, 7))


def mesh(share: Callable[[tuple[int, int]], float]) -> Run:
    """Return a run of eight GPUs with one or two NVLinks, or none, between two; their pairs reach a share of it."""
    count = dict.fromkeys(SINGLES, 1) | dict.fromkeys(DOUBLES, 2)

    def rate(work: Work, members: Members) -> float:
        pair = min(members), max(members)
        if work.variant is not Variant.PLAIN or pair not in count:
            return 10.0
        return 24.2 * count[pair] * share(pair) * (0.9 if work.operation.is_collective else 1.0)

    links = tuple(
        replace(path, nvlinks=count.get(path.devices, 0), theory_gbs=25.0 * count.get(path.devices, 0) or 15.75)
        for path in paths(8, "PHB", {pair: f"NV{number}" for pair, number in count.items()})
    )
    return run_on(gpus(8, "Tesla V100-SXM2-32GB"), links, rate, slot=(3, 16))


@pytest.mark.parametrize(("share", "said"), [(0.81, True), (0.84, False)])
def test_where_all_nvlinks_carry_less_than_healthy_ones_the_first_line_says_so_and_nothing_is_accused(
    share: float, said: bool
) -> None:
    """Healthy ones here reach 24.2 of 25 GB/s; of this GPU there is no published rate."""
    diagnosis = Diagnosis(replace(mesh(lambda _: share), devices=gpus(8, "Quadro GV100")))
    assert diagnosis.status is ExitStatus.DONE
    clause = (
        ", but NV2 and NV1 pairs reach at most 78% of what NVLink allows in theory, so NVLinks or an NVSwitch may be"
    )
    assert (clause in conclusion(diagnosis)) is said
    assert diagnosis.far_below.keys() == ({"NV1", "NV2"} if said else set())


def test_a_double_link_that_is_slow_is_not_one_of_two_gpus() -> None:
    """Its GPUs have no other double one, so that a port as slow as this link would slow nothing else."""
    (verdict,) = faults(mesh(lambda pair: 0.656 if pair == (1, 2) else 1.0))
    assert (verdict.kind, verdict.members) == (Kind.NV_DEGRADED, (1, 2))
    assert verdict.cause.name == "nvlinks_degraded"


def test_single_nvlinks_of_a_slow_gpu_are_used_if_its_double_ones_are() -> None:
    """At 0.6 of their rate they carry 14.5 GB/s, less than a slot of 15.75, and the double ones 29."""
    found = faults(mesh(lambda pair: 0.6 if 2 in pair else 1.0))
    assert (found[0].kind, found[0].members) == (Kind.NV_DEGRADED, (2,))
    assert Kind.NV_NOT_USED not in {verdict.kind for verdict in found}
    one_down = faults(mesh(lambda pair: 0.5 if pair == (2, 7) else 1.0))
    assert [(verdict.kind, verdict.members) for verdict in one_down] == [(Kind.NV_NOT_USED, (2, 7))]


@pytest.mark.parametrize("slow_gpus", [(0, 1, 2), (0, 1, 2, 3), (1, 3, 4, 6, 7)])
def test_each_of_several_slow_gpus_is_named_and_no_pair(slow_gpus: tuple[int, ...]) -> None:
    links = tuple(
        replace(path, nvlinks=18, theory_gbs=450.0)
        for path in paths(8, "PHB", dict.fromkeys(combinations(range(8), 2), "NV18"))
    )

    def rate(work: Work, members: Members) -> float:
        if work.variant is not Variant.PLAIN:
            return 38.0
        full = 326.0 if work.operation.is_collective else 392.0
        return full * (1.0 if {*members}.isdisjoint(slow_gpus) else 0.6)

    found = faults(run_on(gpus(8), links, rate))
    assert sorted(verdict.members for verdict in found) == [(gpu,) for gpu in slow_gpus]
    assert {verdict.kind for verdict in found} == {Kind.NV_DEGRADED}


@pytest.mark.parametrize("slow_gpus", [(0, 4, 5), (0, 1, 2, 3, 4)])
def test_several_slow_gpus_over_pcie_are_named_and_no_uplink_above_two_of_them(slow_gpus: tuple[int, ...]) -> None:
    """Pairs below one switch do not cross its uplink, and are as slow."""
    run = on_tree(slow(*(element for gpu in slow_gpus for element in slot(gpu)), at=0.7))
    without_hosts = [found for found in run.measurements if found.point.variant is not Variant.HOST]
    for seen in (run, replace(run, measurements=without_hosts)):
        assert sorted(of(verdict.cause) for verdict in faults(seen)) == [("gpu", (gpu,)) for gpu in slow_gpus]


@pytest.mark.parametrize(
    ("capacity", "causes"),
    [
        (
            slow(*slot(6)) | slow("switch 0 up", "switch 0 down", at=0.6) | slow("root 1", at=0.25),
            [("forwarding", (4, 5, 6, 7)), ("gpu", (6,)), ("uplink", (0, 1))],
        ),
        (
            slow(*slot(6)) | slow(*slot(1, "out"), at=0.6) | slow("root 0", at=0.25),
            [("forwarding", (0, 1, 2, 3)), ("gpu_direction", (1,)), ("gpu", (6,))],
        ),
        (
            slow("switch 0 up", "switch 0 down", at=0.6)
            | slow("switch 2 up", "switch 2 down", at=0.4)
            | slow(*slot(7)),
            [("uplink", (4, 5)), ("gpu", (7,)), ("uplink", (0, 1))],
        ),
        (  # two links that are slow alone are no two ways to explain the same
            slow(*slot(0), at=0.6)
            | slow("switch 1 up", "switch 1 down", at=0.4)
            | slow("path 4-5", at=0.7)
            | slow("path 6-7", at=0.6),
            [("peer_detour", ()), ("peer_detour", ()), ("uplink", (2, 3)), ("gpu", (0,))],
        ),
    ],
)
def test_of_three_slow_elements_and_more_each_is_named_once(
    capacity: Mapping[str, float], causes: list[tuple[str, tuple[int, ...]]]
) -> None:
    assert [of(verdict.cause) for verdict in faults(on_tree(capacity))] == causes


def test_a_gpu_whose_nvlinks_are_slow_and_its_pcie_too_is_one_verdict() -> None:
    nvlinks = dict.fromkeys(combinations(range(4), 2), "NV2")
    links = tuple(
        replace(path, nvlinks=2 * (path.label == "NV2"), theory_gbs=50.0) for path in paths(8, "PHB", nvlinks)
    )

    def rate(work: Work, members: Members) -> float:
        share = 0.8 if 2 in members and work.variant is not Variant.STAGED else 1.0
        over_nvlink = len(members) == 2 and max(members) < 4 and work.variant is Variant.PLAIN
        return share * (48.0 if over_nvlink else 22.0) * (0.8 if work.operation.is_collective else 1.0)

    (verdict,) = faults(run_on(gpus(8), links, rate))
    assert of(verdict.cause) == ("gpu", (2,))
    assert len(verdict.pairs) == 7
