"""Which sets are worth measuring, on fields made by hand: what is predicted of them is given, not computed."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from collbench.choose.bands import all_sets
from collbench.choose.search import MAX_FINALISTS, Candidates, finalists, further
from collbench.choose.wiring import Wiring, wiring
from collbench.model.run import Path
from tests.builders import gpus

Members = tuple[int, ...]


def machine(
    n: int = 6, slow: Mapping[Any, float] | None = None, hosts: tuple[Members, ...] = (), within: str = "PHB"
) -> Wiring:
    """Return n devices whose pairs have 40 GB/s over PCIe, except `slow` ones.

    Those of `hosts` share a host bridge, or what the label `within` says.
    """
    paths, rates = {}, np.zeros((n, n))
    for pair in combinations(range(n), 2):
        paths[pair] = Path(pair, within if any(set(pair) <= set(host) for host in hosts) else "SYS")
        rates[pair] = rates[pair[::-1]] = (slow or {}).get(pair, 40.0)
    return wiring(gpus(n), paths, rates)


def field(n: int, k: int, lo: Any, hi: Any, hops: Any = 0.0, tree: Any = 0.0) -> Candidates:
    """Return all sets of k of n devices; each value is that of all of them, or one for each."""
    sets = all_sets(n, k)
    low, high, hop, trees = (
        np.broadcast_to(np.asarray(value, dtype=float), len(sets)) for value in (lo, hi, hops, tree)
    )
    return Candidates(sets, low, high, hop, low, trees, high, heuristic=False)


def picked(
    wired: Wiring,
    chosen: Members,
    lo: Mapping[Any, float] | None = None,
    hi: Mapping[Any, float] | None = None,
    hops: Mapping[Any, float] | None = None,
    usual: float = 100.0,
) -> list[Members]:
    """Return the finalists where all sets are alike except for what is given; the chosen one is among them."""
    k = len(chosen)
    members = list(combinations(range(len(wired)), k))
    ends = [np.array([(given or {}).get(some, usual) for some in members]) for given in (lo, hi)]
    hop = np.array([(hops or {}).get(some, 0.0) for some in members])
    with np.errstate(all="raise"):
        found = finalists(wired, field(len(wired), k, ends[0], ends[1], hop), members.index(chosen), 0.02)
    assert [some.members for some in found if some.default] == [tuple(range(k))]
    return [some.members for some in found]


def test_of_sets_alike_in_all_those_follow_that_share_the_fewest_devices() -> None:
    assert picked(machine(8), (0, 1)) == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert picked(machine(6), (0, 1)) == [(0, 1), (2, 3), (4, 5), (0, 2)]


@pytest.mark.parametrize(
    ("title", "lo", "hops", "members"),
    [
        ("by what they surely carry", {(4, 5): 95, (3, 5): 90, (2, 5): 85, (1, 5): 80}, {}, [(4, 5), (3, 5), (2, 5)]),
        ("by hops, the fewest first", {}, {(4, 5): 4.0, (3, 5): 3, (2, 5): 2}, [(2, 5), (3, 5), (4, 5)]),
        ("by what they carry before hops", {(4, 5): 95}, {(3, 5): 3}, [(3, 5), (4, 5), (0, 2)]),
        ("by rates below 1 GB/s too", {(4, 5): 0.9, (3, 5): 0.5, (2, 5): 0.0}, {}, [(4, 5), (3, 5), (2, 5)]),
    ],
)
def test_one_of_each_kind_goes_first(
    title: str, lo: dict[Members, float], hops: dict[Members, float], members: list[Members]
) -> None:
    assert picked(machine(), (0, 1), lo=lo, hops=hops) == [(0, 1), *members]


def test_rates_within_a_step_of_delta_are_one_kind() -> None:
    assert picked(machine(), (0, 1), lo={(4, 5): 99.9, (3, 5): 95.0}) == [(0, 1), (3, 5), (2, 4), (0, 2)]


@pytest.mark.parametrize("within", ["PHB", "NODE"])
def test_how_many_share_a_host_bridge_or_a_numa_node_makes_a_kind(within: str) -> None:
    """No pair shows what they share there: three below one bridge are tried beside two and one, which go first."""
    wired = machine(hosts=((0, 2, 4), (1, 3, 5)), within=within)
    assert picked(wired, (0, 1, 2)) == [(0, 1, 2), (0, 2, 4), (0, 3, 5), (1, 3, 4)]
    assert picked(wired, (0, 2, 4)) == [(0, 2, 4), (0, 1, 2), (0, 3, 5), (1, 3, 4)]
    uneven = machine(slow={(0, 3): 30.0, (1, 4): 20.0, (2, 5): 10.0}, hosts=((0, 2, 4), (1, 3, 5)), within=within)
    assert picked(uneven, (0, 1, 2)) == [(0, 1, 2), (0, 2, 4), (0, 1, 3), (3, 4, 5)]


def test_what_is_inside_tells_sets_apart_that_nothing_else_does() -> None:
    """Sets with more inside go first; they are a kind of their own only after those that carry less or cross more."""
    wired = machine(slow={(2, 5): 30.0, (2, 4): 39.9})
    assert picked(wired, (0, 1)) == [(0, 1), (2, 5), (3, 4), (0, 2)]
    assert picked(wired, (0, 1), lo={(0, 5): 90.0, (1, 5): 80.0}) == [(0, 1), (0, 5), (1, 5), (2, 5)]
    lacks_one = {(0, 1): 39.99, (2, 3): 39.99}
    assert picked(machine(slow=lacks_one), (4, 5)) == [(4, 5), (0, 2), (1, 3), (0, 3), (0, 1)]


@pytest.mark.parametrize(
    ("title", "lo", "hi", "hops", "members"),
    [
        ("those that are δ below could be", 100.0, 100.0, 0, [(2, 3)]),
        ("those beyond its lower end could be", 97.0, 120.0, 0, [(2, 3), (2, 4)]),
        ("a PCIe ring may keep 0.6 of what it carries alone", 150.0, 163.0, 2, [(2, 3), (2, 4)]),
        ("or of more still", 150.0, 166.0, 2, [(2, 3)]),
        ("or what it surely carries where that is less", 90.0, 500.0, 2, [(2, 3), (2, 4), (2, 5)]),
    ],
)
def test_only_sets_that_could_be_as_good_are_measured(
    title: str, lo: float, hi: float, hops: int, members: list[Members]
) -> None:
    """All others carry at most 10 GB/s, these at most 98, 97 and 88.5."""
    able: dict[Members, float] = {(2, 3): 98.0, (2, 4): 97.0, (2, 5): 88.5}
    found = picked(machine(), (4, 5), lo={(4, 5): lo}, hi={(4, 5): hi, **able}, hops={(4, 5): hops}, usual=10.0)
    assert found[0] == (4, 5)
    assert set(found) == {(4, 5), (0, 1), *members}


def more(
    measured: Mapping[Members, float], lo: float, hi: Mapping[Any, float], hops: float = 0.0, share: float = 1.0
) -> list[Members]:
    """Return the further sets of two of six devices, of which most reach at least `lo` and at most 100 GB/s."""
    members = list(combinations(range(6), 2))
    most = [hi.get(some, 100.0) for some in members]
    wired = machine(hosts=((0, 1, 2), (3, 4, 5)))
    return [some.members for some in further(wired, field(6, 2, lo, most, hops), measured, 0.02, share)]


def test_a_set_whose_bound_is_above_all_that_was_measured_is_measured_too() -> None:
    """It was predicted to be as good as the finalists, which turned out half as good, like all that look like them."""
    assert more({(0, 1): 50.0, (0, 2): 50.0}, 50.0, {}) == [(0, 3)]


@pytest.mark.parametrize(
    ("title", "measured", "lo", "hops", "share"),
    [
        ("the best reaches all bounds", {(0, 1): 99.0, (0, 2): 50.0}, 50.0, 0.0, 1.0),
        ("what looks as they do reaches as much", {(0, 1): 70.0, (0, 3): 70.0}, 50.0, 4.0, 1.0),
        ("messages of this size reach so much", {(0, 1): 70.0}, 50.0, 0.0, 0.7),
        ("a narrow band that is nearly reached", {(0, 1): 90.0}, 99.0, 0.0, 1.0),
    ],
)
def test_no_set_is_measured_that_cannot_win(
    title: str, measured: dict[Members, float], lo: float, hops: float, share: float
) -> None:
    assert more(measured, lo, {}, hops, share) == []


@pytest.mark.parametrize("within", ["PHB", "NODE"])
def test_what_a_crowded_set_keeps_over_pcie_says_nothing_about_a_less_crowded_one(within: str) -> None:
    """A host bridge or a NUMA node may carry what three ring hops of two and one load it with, but not of three.

    In whatever order three are, they have one ring.
    """
    wired = machine(hosts=((0, 2, 4), (1, 3, 5)), within=within)
    alike = field(6, 3, 30.0, 100.0, 3.0)
    found = [some.members for some in further(wired, alike, {(0, 2, 4): 50.0}, 0.02, 1.0)]
    assert found == [(0, 1, 2)]
    assert further(wired, alike, {(0, 2, 4): 50.0, (0, 1, 2): 60.0}, 0.02, 1.0) == ()


@pytest.mark.parametrize(("reached", "expected"), [(20.0, 0), (70.0, 1)])
def test_one_set_with_a_tree_shows_whether_nccl_runs_trees(reached: float, expected: int) -> None:
    """Bands promise 40 GB/s over PCIe, trees 80 and 75: what the first one reaches shows what the second one does."""
    sets, trees = list(combinations(range(6), 3)), {(0, 1, 2): 80.0, (3, 4, 5): 75.0}
    alike = field(6, 3, 20.0, 40.0, 3.0, [trees.get(some, 0.0) for some in sets])
    wired = machine(hosts=((0, 1, 2), (3, 4, 5)))
    with np.errstate(all="raise"):
        assert (0, 1, 2) in [some.members for some in finalists(wired, alike, sets.index((0, 1, 3)), 0.02)]
        found = further(wired, alike, {(0, 1, 3): 39.5, (0, 1, 2): reached}, 0.02, 1.0)
    assert [some.members for some in found] == []
    found = further(wired, alike, {(0, 1, 3): 39.5, (3, 4, 5): reached}, 0.02, 1.0)
    assert [some.members for some in found] == [(0, 1, 2)] * expected


def test_a_narrow_band_that_is_missed_by_far_proves_nothing() -> None:
    assert len(more({(0, 1): 50.0}, 99.0, {})) == MAX_FINALISTS


def left_out(slow: float, n: int = 6, k: int = 5, reached: float = 50.0) -> list[Members]:
    """Return further sets beside two of k devices that reach half of what one ring over PCIe may, as all others may.

    Three pairs have `slow` GB/s, the others with their label 40, and none of the sets is without a slow one.
    """
    wired = machine(n, slow=dict.fromkeys([(0, 5), (1, 4), (2, 3)], slow))
    alike_in_pairs = [tuple(range(k)), (0, 1, *range(n - k + 2, n))]
    alike = field(n, k, 30.0, 100.0, k)
    return [some.members for some in further(wired, alike, dict.fromkeys(alike_in_pairs, reached), 0.02, 1.0)]


def test_what_nccls_ring_crosses_in_some_sets_it_may_avoid_in_others_that_look_alike() -> None:
    """Without 2 or without 3 the slow pairs have the same places; the set without 3 was measured."""
    assert set(left_out(15.0)) == {tuple(sorted({*range(6)} - {gone})) for gone in (0, 1, 4)}


@pytest.mark.parametrize(
    ("title", "given"),
    [
        ("no pair is slow for its label", {"slow": 38.0}),
        ("a finalist reaches what was predicted", {"slow": 15.0, "reached": 99.0}),
    ],
)
def test_no_set_is_measured_for_the_order_of_its_ring_if(title: str, given: dict[str, Any]) -> None:
    assert left_out(**given) == []


def threes(ends: Mapping[Any, tuple[float, float]]) -> Candidates:
    """Return all sets of three of six devices with these ends of their bands; others reach 10 GB/s."""
    bands = [ends.get(some, (10.0, 10.0)) for some in combinations(range(6), 3)]
    return field(6, 3, *zip(*bands, strict=True))


def test_a_set_with_fewer_rings_than_links_allow_says_nothing_about_one_with_a_slow_link() -> None:
    """Two of three rings fit on the first set, all that were promised on the second; the third may avoid its link."""
    ends = {(0, 1, 2): (40.0, 60.0), (3, 4, 5): (40.0, 40.0), (0, 1, 3): (20.0, 58.0)}
    found = further(machine(slow={(0, 3): 10.0}), threes(ends), {(0, 1, 2): 39.5, (3, 4, 5): 39.0}, 0.02, 1.0)
    assert [some.members for some in found] == [(0, 1, 3)]


@pytest.mark.parametrize(("most", "expected"), [(42.0, [(3, 4, 5)]), (32.0, [])])
def test_more_than_two_gpus_may_reach_a_quarter_more_of_their_nvlinks_than_pairs_do(
    most: float, expected: list[Members]
) -> None:
    """Nobody knows what the measured wide band shows; the other was predicted to reach less."""
    wired, ends = machine(slow={(3, 5): 10.0}), {(0, 1, 2): (30.0, 60.0), (3, 4, 5): (20.0, most)}
    assert [some.members for some in further(wired, threes(ends), {(0, 1, 2): 42.3}, 0.02, 1.0)] == expected


def test_of_sets_that_nccl_cannot_tell_apart_one_is_measured() -> None:
    """Two by two on three host bridges, in the order of bus ids: a ring of four is known for each order of bridges."""
    wired, alike = machine(hosts=((0, 1), (2, 3), (4, 5))), field(6, 4, 30.0, 100.0, 4.0)
    found = [some.members for some in further(wired, alike, {(0, 1, 2, 3): 50.0}, 0.02, 1.0)]
    orders = [[some[place] // 2 == some[place + 1] // 2 for place in range(3)] for some in found]
    assert sorted(orders) == [[False, False, True], [False, True, False], [True, False, False]]


@pytest.mark.parametrize(
    ("title", "measured", "expected"),
    [
        ("one set on two host bridges lost", {(0, 2, 4, 6): 20.0, (0, 1, 2, 3): 15.0}, [(4, 5, 6, 7)]),
        ("two did", {(0, 2, 4, 6): 20.0, (0, 1, 2, 3): 15.0, (0, 1, 4, 5): 16.0}, []),
        ("none was measured", {(0, 2, 4, 6): 20.0}, []),
        ("one won", {(0, 2, 4, 6): 20.0, (0, 1, 2, 3): 21.0}, []),
    ],
)
def test_a_set_of_fewest_hops_through_the_host_is_not_judged_by_one_other(
    title: str, measured: Mapping[Members, float], expected: list[Members]
) -> None:
    """GPU1 may be slow in one direction, which a pair whose directions share a slower host bridge does not show."""
    wired, sets = machine(8, hosts=((0, 1), (2, 3), (4, 5), (6, 7))), list(combinations(range(8), 4))
    hops = [len({member // 2 for member in some}) for some in sets]
    found = field(8, 4, 10.0, [18.0 + some[0] / 100 for some in sets], hops)
    assert [some.members for some in further(wired, found, measured, 0.02, 1.0)] == expected, title
