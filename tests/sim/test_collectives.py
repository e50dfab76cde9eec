"""The true bus bandwidth of sets: rings on NVLinks, behind switches and over PCIe."""

from collections import Counter
from dataclasses import replace
from itertools import combinations, permutations

import numpy as np
import pytest

from collbench.judge.stats import summarize
from collbench.model.operations import Operation, Work
from collbench.model.run import Run
from collbench.sim import fabrics
from collbench.sim.collectives import Truth, best_order, best_packing, hops_of, rates
from collbench.sim.fabrics import Bridge, Fabric, Fault, FaultKind
from collbench.sim.network import Medium, Network
from tests.sim import random_fabrics
from tests.sim.made import allreduce_busbw, complete, faulty, mesh, request, simulate, tree

DGX = fabrics.load("dgx-1v")
V100_LINK = 24.17 * DGX.engines.nccl_nvlink


@pytest.mark.parametrize(
    ("k", "rings", "sets"), [(2, 2, 8), (3, 2, 8), (4, 4, 2), (5, 2, 24), (6, 4, 4), (7, 4, 8), (8, 6, 1)]
)
def test_dgx_1v_has_the_expected_rings(k: int, rings: int, sets: int) -> None:
    """docs/method/choosing.md 6: the best number of directed rings for k, and how many sets reach it."""
    truth = Truth(DGX)
    sets_by_rings = Counter(round(truth.busbw(members) / V100_LINK, 3) for members in combinations(range(8), k))
    best = max(sets_by_rings)
    assert (best, sets_by_rings[best]) == (rings, sets)


def test_the_set_without_a_ring_of_nvlinks_is_as_slow_as_it_was_measured() -> None:
    assert allreduce_busbw(DGX, (0, 1, 2, 3, 4)) == pytest.approx(5.6, abs=0.05)  # docs/method/choosing.md


@pytest.mark.parametrize(("count", "cycles"), [(3, 2), (4, 2), (5, 4), (6, 4), (7, 6), (8, 7)])
def test_complete_meshes_hold_as_many_rings_as_is_proven(count: int, cycles: int) -> None:
    """T. W. Tillson, J. Combin. Theory B 29 (1980): n-1 directed Hamiltonian cycles, but fewer for n = 4 and 6."""
    assert allreduce_busbw(complete(count), range(count)) == pytest.approx(10 * cycles)


def test_petersens_graph_has_no_ring() -> None:
    spokes = {(i, i + 5): 1 for i in range(5)}
    outer = {(min(i, (i + 1) % 5), max(i, (i + 1) % 5)): 1 for i in range(5)}
    inner = {(min(5 + i, 5 + (i + 2) % 5), max(5 + i, 5 + (i + 2) % 5)): 1 for i in range(5)}
    network = Network(mesh(10, {**spokes, **outer, **inner}))
    assert best_packing(range(10), network.bundles) == 0.0
    assert best_packing((0, 1, 2, 3, 4), network.bundles) == 20.0  # the outer circle, both ways round


@pytest.mark.parametrize(
    ("title", "fabric", "members", "expected"),
    [
        ("a pair has a ring for each link", complete(2, links=3), (0, 1), 30),
        ("a triangle has two", complete(3), (0, 1, 2), 20),
        ("a square has two", mesh(4, {(0, 1): 1, (1, 2): 1, (2, 3): 1, (0, 3): 1}), range(4), 20),
        ("the fewest links of a circle count", mesh(3, {(0, 1): 4, (1, 2): 4, (0, 2): 1}), (0, 1, 2), 20),
        ("a chain has none, and goes through the host", mesh(3, {(0, 1): 1, (1, 2): 1}), (0, 1, 2), 20 * 0.5),
        (
            "a slow direction slows the rings that take it",
            faulty(complete(3), Fault(FaultKind.SLOW_LINK, (0, 1), factor=0.4, one_way=True)),
            (0, 1, 2),
            14,
        ),
        (
            "a slow link is left out where others do",
            faulty(
                mesh(4, dict.fromkeys(combinations(range(4), 2), 1)), Fault(FaultKind.SLOW_LINK, (0, 1), factor=0.1)
            ),
            range(4),
            20,
        ),
        ("slow collectives", faulty(complete(3), Fault(FaultKind.SLOW_COLLECTIVES, factor=0.25)), (0, 1, 2), 5),
        ("NVLinks that are not used", faulty(complete(2), Fault(FaultKind.NVLINK_UNUSED)), (0, 1), 20),
        ("a bottleneck carries every hop", faulty(complete(3), Fault(FaultKind.BOTTLENECK, gbs=15)), (0, 1, 2), 5),
    ],
)
def test_meshes(title: str, fabric: Fabric, members: tuple[int, ...], expected: float) -> None:
    if title.startswith("a chain"):
        fabric = replace(fabric, engines=replace(fabric.engines, nccl_staged=0.5))
    assert allreduce_busbw(fabric, members) == pytest.approx(expected), title


def test_h200_tends_to_the_measured_bus_bandwidth() -> None:
    """tests/data/h200x4/all_reduce_perf-4-ranks.txt at 4 GiB; …-2-ranks-p2p-disabled.txt at 512 MiB."""
    fabric = fabrics.load("hgx-h200")
    assert allreduce_busbw(fabric, (0, 1, 2, 3)) == pytest.approx(362.5, rel=0.01)
    disabled = faulty(fabric, Fault(FaultKind.P2P_DISABLED))
    assert allreduce_busbw(disabled, (0, 1)) == pytest.approx(27.9, rel=0.01)


NARROW = (Bridge("a", "root0", 10, 10), Bridge("b", "root0", 10, 10))


@pytest.mark.parametrize(
    ("title", "bridge_of_gpu", "peers", "expected"),
    [
        ("under one switch", "aaa", True, 20),
        ("over the uplinks once", "aabb", True, 10),
        ("named across, ordered well all the same", "abab", True, 10),
        ("each through the host: two share an uplink", "aabb", False, 5),
    ],
)
def test_pcie_rings_share_uplinks(title: str, bridge_of_gpu: str, peers: bool, expected: float) -> None:
    fabric = replace(tree(list(bridge_of_gpu), NARROW), pcie_peers=peers)
    assert allreduce_busbw(fabric, range(len(bridge_of_gpu))) == pytest.approx(expected), title


def small_fabrics() -> list[Fabric]:
    drawn = [random_fabrics.make(np.random.default_rng(seed)) for seed in range(60)]
    return [fabric for fabric in drawn if len(fabric.gpus) <= 6]


def test_no_order_of_a_ring_beats_the_one_that_is_found() -> None:
    for fabric in small_fabrics():
        network, shares = Network(fabric), dict.fromkeys(Medium, 1.0)
        hops, every = hops_of(network, shares), tuple(range(len(fabric.gpus)))
        if best_packing(every, network.bundles) > 0 or fabric.switches:
            continue  # not the order's to find
        orders = [(0, *rest) for rest in permutations(every[1:])]
        assert best_order(network, hops, every)[1] == pytest.approx(rates(hops, orders).max()), fabric.name


@pytest.mark.parametrize("seed", range(4))
def test_relabelling_the_gpus_changes_no_truth(seed: int) -> None:
    rng = np.random.default_rng(seed)
    fabric = next(fabric for fabric in iter(lambda: random_fabrics.make(rng), None) if len(fabric.gpus) <= 8)
    new = [int(index) for index in rng.permutation(len(fabric.gpus))]  # new[i] is what GPU i is called now
    renamed = relabelled(fabric, new)
    before, after = Truth(fabric), Truth(renamed)
    for k in (2, 3, len(new) - 1, len(new)):
        for members in list(combinations(range(len(new)), k))[:10]:
            there = tuple(new[gpu] for gpu in members)
            assert after.busbw(there) == pytest.approx(before.busbw(members)), (fabric.name, members)


def relabelled(fabric: Fabric, new: list[int]) -> Fabric:
    gpus = [fabric.gpus[new.index(index)] for index in range(len(new))]
    bundles = tuple(replace(b, gpus=(new[b.gpus[0]], new[b.gpus[1]])) for b in fabric.bundles)
    switches = tuple(replace(s, gpus=tuple(new[gpu] for gpu in s.gpus)) for s in fabric.switches)
    faults = tuple(replace(f, devices=tuple(new[gpu] for gpu in f.devices)) for f in fabric.faults)
    return replace(fabric, gpus=tuple(gpus), bundles=bundles, switches=switches, faults=faults)


# What ranks send directly to each other crosses the paths between them, which NCCL's rings may avoid.

FOUR = tree(("a", "a", "b", "b"), NARROW)  # uplinks carry 10 GB/s each way, slots 20


@pytest.mark.parametrize(
    ("operation", "devices", "busbw"),
    [
        (Operation.SENDRECV, "0,1,2,3", 10),  # one message over each uplink
        (Operation.SENDRECV, "0,2,1,3", 5),  # two
        (Operation.ALLTOALL, "0,1,2,3", 7.5),  # 4 of S/4 over each uplink, 3 of S/4 for each rank
        (Operation.SCATTER, "0,1,2", 10),  # the root's S/3 over the uplink, and S/3 below its switch
        (Operation.GATHER, "0,1", 20),
    ],
)
def test_direct_messages_share_what_they_cross(operation: Operation, devices: str, busbw: float) -> None:
    (measurement,) = on_all(FOUR, 2**32, operation, devices=devices).measurements
    assert summarize(measurement).busbw == pytest.approx(busbw, rel=0.01)


def test_on_dgx_1v_messages_between_sockets_are_no_faster_than_staged_copies_of_the_same_pairs() -> None:
    """Twelve of the 16 messages one way between its halves have no NVLink: they share the sockets' 19 GB/s."""
    size = 2**28
    run = on_all(DGX, size, Operation.ALLTOALL, Operation.SENDRECV)
    exchange, ring = (summarize(measurement).busbw for measurement in run.measurements)
    copies = simulate(DGX, request(sizes=(size,), collectives=()), seed=1)
    slowest = min(summarize(one).busbw for one in copies.measured() if one.point.operation is Operation.CE_WRITE)
    assert ring <= slowest
    message_gbs = exchange / 7  # busbw counts the seven that a rank sends
    assert message_gbs <= slowest
    assert 12 * message_gbs <= DGX.sockets.gbs


def on_all(fabric: Fabric, size: int, *operations: Operation, devices: str | None = None) -> Run:
    """Return the run of collectives over all of these devices."""
    asked = request(copies=(), collectives=tuple(map(Work, operations)), pairs=False, devices=devices, sizes=(size,))
    return simulate(fabric, asked, seed=1)
