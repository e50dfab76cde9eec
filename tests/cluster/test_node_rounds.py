"""Rounds of pairs of nodes: disjoint, random by seed, then pairs of suspects; how long they take."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from itertools import product

import pytest

from collbench.cluster.fit import RoundKind
from collbench.cluster.measure import (
    SCREENING,
    Round,
    Surveyed,
    apart,
    matching,
    next_round,
    round_seconds,
    screening,
    start_seconds,
    survey_cluster,
    survey_nodes,
)
from collbench.cluster.nodes import Judgement, State
from collbench.cluster.simulated import NodeFault, UplinkFault, named

LEAVES = tuple(tuple(range(first, first + 4)) for first in range(0, 16, 4))

_AMONG, _MIXED = RoundKind.AMONG_SUSPECTS, RoundKind.SUSPECTS_AND_OTHERS


def nodes_of(planned: Round) -> list[int]:
    return [node for pair in planned.pairs for node in pair]


@pytest.mark.parametrize(("nodes", "resting"), [(2, 0), (3, 1), (16, 0), (127, 1)])
def test_a_round_has_every_node_once(nodes: int, resting: int) -> None:
    for group, make in product(((), (0, 1, 2)), (matching, apart)):
        groups = (tuple(node for node in group if node < nodes),) if group else ()
        pairs = make(nodes, groups, random.Random(1))
        assert len({node for pair in pairs for node in pair}) == 2 * len(pairs) == nodes - resting


def test_pairs_lie_within_groups_or_apart() -> None:
    leaf = {node: index for index, members in enumerate(LEAVES) for node in members}
    for seed in range(50):
        assert all(leaf[a] == leaf[b] for a, b in matching(16, LEAVES, random.Random(seed)))
        assert not any(leaf[a] == leaf[b] for a, b in apart(16, LEAVES, random.Random(seed)))


def test_of_an_odd_number_the_node_that_is_left_over_parts_a_pair_of_one_group() -> None:
    drawn = {apart(3, ((0, 1), (2,)), random.Random(seed)) for seed in range(50)}
    assert drawn == {((0, 2),), ((1, 2),)}


def test_a_group_that_cannot_be_parted_is_paired_all_the_same() -> None:
    assert len(apart(4, ((0, 1, 2, 3),), random.Random(1))) == 2


@pytest.mark.parametrize("nodes", [3, 8, 16, 64])
def test_the_screening_gives_every_node_its_measurements_and_no_pair_twice_too_early(nodes: int) -> None:
    rounds = screening(nodes, (), random.Random(1))
    assert len(rounds) == SCREENING
    met = Counter(frozenset(pair) for planned in rounds for pair in planned.pairs)
    every = nodes * (nodes - 1) // 2
    assert max(met.values()) <= -(-sum(met.values()) // every) + 1
    if nodes > SCREENING:
        assert max(met.values()) == 1
        assert set(Counter(node for planned in rounds for node in nodes_of(planned)).values()) == {SCREENING}


def test_where_leaves_are_known_pairs_lie_within_them_and_apart_in_turn() -> None:
    kinds = [planned.kind for planned in screening(16, LEAVES, random.Random(1))]
    assert kinds == ["within leaves", "between leaves"] * 4


def test_one_node_has_no_rounds() -> None:
    assert screening(1, (), random.Random(1)) == []


def found(suspects: tuple[tuple[int, ...], ...] | None) -> Judgement:
    return Judgement((), (), 100.0, (), 0.01, suspects)


@pytest.mark.parametrize(
    ("title", "suspects", "kinds"),
    [
        ("nothing is suspicious", None, [None] * 4),
        ("suspects meet, and every third time others", ((1, 2, 5),), [_MIXED, _AMONG, _AMONG, _MIXED]),
        ("somebody is open, nobody in particular", (), [_MIXED] * 4),
    ],
)
def test_after_the_screening(
    title: str, suspects: tuple[tuple[int, ...], ...] | None, kinds: list[RoundKind | None]
) -> None:
    rng = random.Random(1)
    rounds = [next_round(found(suspects), 16, (), SCREENING + made, rng) for made in range(4)]
    assert [planned and planned.kind for planned in rounds] == kinds


@pytest.mark.parametrize(("most", "count"), [(0, 8), (10, 10)])
def test_the_screening_is_made_whatever_the_time_and_ends_a_survey_that_has_no_more(most: int, count: int) -> None:
    def survey() -> Surveyed:
        noise = random.Random(3)
        return survey_nodes(9, (), lambda pairs: [noise.uniform(50, 100) for _ in pairs], lambda made: made < most, 4)

    assert len(survey().rounds) == count
    assert survey().rounds == survey().rounds, "a seed makes the same rounds again"


@pytest.mark.parametrize(
    ("changes", "slow"),
    [
        ({}, []),
        ({"nodes": 24}, []),  # one of three leaves sends and receives
        ({"pod_leaves": 2, "leaf_nodes": 4, "leaf_oversubscription": 1.0, "pod_oversubscription": 2.0}, []),
        ({"slow_uplinks": (UplinkFault("leaf1", 0.7, 0.7),)}, ["leaf1"]),
        ({"slow_nodes": (NodeFault(5, 0.9, 0.9), NodeFault(20, receives=0.7))}, [20, 5]),
    ],
    ids=["healthy", "three leaves", "pods", "an uplink", "two nodes"],
)
def test_a_survey_names_what_is_slow_behind_oversubscribed_uplinks(
    changes: dict[str, object], slow: list[object]
) -> None:
    cluster = replace(named("thin-32"), **changes)  # type: ignore[arg-type]
    judgement = survey_cluster(cluster, 75, 512 * 2**20, 1).judgement
    assert [*judgement.slow_nodes] + [uplink.name for uplink in judgement.slow_uplinks] == slow
    assert all(node.state in (State.HEALTHY, State.SLOW) for node in judgement.nodes)


def test_a_round_is_start_traffic_and_messages() -> None:
    """512 MiB over 16 ranks at 400 GB/s: 536,870,912 × 1.875 / 4e11 = 2.517 ms, 8 + 48 times; 3 × 1,024 × 180 µs."""
    assert round_seconds(128, 8, 512 * 2**20, 400.0) == pytest.approx(1.5 + 56 * 0.0025166 + 0.55296, rel=1e-4)


def test_1024_gpus_meet_in_ten_seconds() -> None:
    assert start_seconds(128, 8) == pytest.approx(0.65 + 10.24)


def test_batches_on_slow_networks_are_short() -> None:
    """512M at 1 GB/s takes 1 s: seven batches of one call, not of eight."""
    fixed = round_seconds(4, 8, 8, 400.0)
    assert round_seconds(4, 8, 512 * 2**20, 1.0) == pytest.approx(fixed + 7 * 512 * 2**20 * 2 * 15 / 16 / 1e9, rel=1e-3)
