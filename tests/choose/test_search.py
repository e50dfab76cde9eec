from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.choose.bands import by_pairs
from collbench.choose.search import best, grown, search
from collbench.choose.wiring import Wiring, wiring
from collbench.model.run import Path
from tests.builders import gpus

V100 = {"NV1": 24.2, "NV2": 48.3, "PIX": 11.0, "PHB": 10.0, "SYS": 9.5}


@st.composite
def machines(draw: st.DrawFn) -> Wiring:
    """Six devices: a mesh of single and double NVLinks, a hierarchy of PCIe, or any mixture of both."""
    labels = draw(st.sampled_from([("NV1", "NV2", "SYS"), ("PIX", "PHB", "SYS"), tuple(V100)]))
    paths, rates = {}, np.zeros((6, 6))
    for pair in combinations(range(6), 2):
        paths[pair] = Path(pair, draw(st.sampled_from(labels)))
        rates[pair] = rates[pair[::-1]] = V100[paths[pair].label]
    return wiring(gpus(6), paths, rates)


@settings(max_examples=20, deadline=None)
@given(machines(), st.integers(2, 5))
def test_all_sets_together_are_judged_as_each_alone(machine: Wiring, k: int) -> None:
    found = search(machine, k, 0.02)
    bands = [by_pairs(machine.of(members)) for members in combinations(range(6), k)]
    top = max(band.lo for band in bands)
    for index, band in enumerate(bands):
        if band.lo >= top * 0.98:  # others need only be seen to lie below
            assert (found.lo[index], found.hops[index]) == (pytest.approx(band.lo), band.hops)
            assert found.hi[index] == pytest.approx(band.hi)
        else:
            assert found.lo[index] < top * 0.98
    places = best(found, 0.02).tolist()
    assert places
    assert all(bands[index].lo >= top * 0.98 for index in places)


def test_one_member_below_a_switch_has_its_chains_share_of_a_hop_in_every_search() -> None:
    # Below one switch GPUs 0, 4, 5, below another 1, 2, 3; NVLinks lead across alone. Of {0, 1, 2} all are chained
    # by NVLinks through 0, so each has a third of a hop over PCIe: 1/3 below the first switch, one below the second.
    linked = {(0, 1), (0, 2), (0, 3), (1, 4), (1, 5), (2, 4), (2, 5), (3, 4), (3, 5)}
    paths = {pair: Path(pair, "NV1" if pair in linked else "PIX") for pair in combinations(range(6), 2)}
    rates = np.zeros((6, 6))
    for pair, path in paths.items():
        rates[pair] = rates[pair[::-1]] = V100[path.label]
    machine = wiring(gpus(6), paths, rates)
    for members, hops in zip(combinations(range(6), 3), search(machine, 3, 0.02).hops, strict=True):
        assert hops == by_pairs(machine.of(members)).hops, members
    assert search(machine, 3, 0.02).hops[0] == pytest.approx(4 / 3)


def half_duplex_hosts(memory_gbs: float, slot_gbs: float) -> tuple[Wiring, dict[tuple[int, ...], float]]:
    """Return six devices on two host bridges, and what the ring of each set of three reaches.

    Both directions of a pair share the memory that hops on one bridge go through; a ring's single hop does not share.
    """
    paths, rates = {}, np.zeros((6, 6))
    for pair in combinations(range(6), 2):
        near = pair[0] // 3 == pair[1] // 3
        paths[pair] = Path(pair, "PHB" if near else "SYS")
        rates[pair] = rates[pair[::-1]] = min(slot_gbs, memory_gbs / 2) if near else slot_gbs
    reached = dict[tuple[int, ...], float]()
    for some in combinations(range(6), 3):
        ring = zip(some, (*some[1:], some[0]), strict=True)
        hosts = [a // 3 for a, b in ring if a // 3 == b // 3]
        reached[some] = min(slot_gbs, memory_gbs / max(hosts.count(0), hosts.count(1)))
    return wiring(gpus(6), paths, rates), reached


@pytest.mark.parametrize("memory_gbs", [30.0, 40.0, 50.0, 70.0, 100.0])
def test_no_ring_over_pcie_exceeds_the_bound_though_a_hop_may_be_faster_than_its_pair(memory_gbs: float) -> None:
    machine, reached = half_duplex_hosts(memory_gbs, slot_gbs=40.0)
    bounds = search(machine, 3, 0.02).bound
    assert all(bound >= gbs for bound, gbs in zip(bounds, reached.values(), strict=True))
    assert max(bounds) <= 40.0


def test_of_more_than_eight_in_a_mesh_only_one_ring_is_sure() -> None:
    """Cuts allow sixteen, one for each link of a GPU to the other eight; no packing of so many is known to exist."""
    paths = {pair: Path(pair, "NV2", nvlinks=2) for pair in combinations(range(10), 2)}
    rates = np.where(np.eye(10), 0.0, V100["NV2"])
    found = search(wiring(gpus(10, name="made"), paths, rates), 9, 0.02)
    assert found.lo == pytest.approx(V100["NV2"] / 2)


def test_a_matrix_of_a_thousand_devices_finds_the_fast_island() -> None:
    """Eight of 1,024 at 300 GB/s among themselves, 40 elsewhere; the islands of the others have 200."""
    node = np.arange(1024) // 8
    rates = np.where(np.equal.outer(node, node), 200.0, 40.0)
    rates[-8:, -8:] = 300.0
    np.fill_diagonal(rates, 0)
    found = search(wiring(gpus(1024), {}, rates), 8, 0.02)
    assert found.sets[best(found, 0.02)].tolist() == [[*range(1016, 1024)]]


@settings(max_examples=12, deadline=None)
@given(st.permutations(range(20)), st.integers(2, 6), st.integers(0, 99))
def test_renaming_many_devices_renames_the_best_bandwidth_found(names: list[int], k: int, seed: int) -> None:
    rates = np.random.default_rng(seed).choice([10.0, 20.0, 40.0], (20, 20))
    rates = np.triu(rates, 1) + np.triu(rates, 1).T
    here, there = (search(wiring(gpus(20), {}, some), k, 0.02) for some in (rates, rates[np.ix_(names, names)]))
    assert here.lo.max() == there.lo.max()


def test_growing_leaves_broken_pairs_apart_where_it_can() -> None:
    rates = np.full((20, 20), 10.0) - 10 * np.eye(20)
    broken = np.zeros((20, 20), dtype=bool)
    broken[0, 1] = broken[1, 0] = True
    sets = grown(wiring(gpus(20), {}, rates, broken=broken), 3)
    assert [some for some in sets if {0, 1} <= set(some)] == [(0, 1, 2)]  # the default, whatever it is worth
