"""Half of the nodes or more are slow: the median node is no reference, and a pair is as fast as its slower node."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.cluster.fit import Observation
from collbench.cluster.nodes import UNKNOWN, State, choose_nodes, judge
from collbench.cluster.switches import Switches
from tests.cluster.made import judged, leaves, seen, slow


@pytest.mark.parametrize(
    ("count", "ratio", "known"),
    [(7, 0.5, ()), (8, 0.7, ()), (13, 0.7, ()), (8, 0.5, leaves(16, 8)), (10, 0.7, leaves(16, 8))],
)
def test_the_slow_ones_are_named_and_the_fast_ones_chosen(
    count: int, ratio: float, known: tuple[Switches, ...]
) -> None:
    found = judged(16, slow(*range(count), ratio=ratio), known)
    assert sorted(found.slow_nodes) == list(range(count))
    assert found.slow_uplinks == ()
    assert found.typical_gbs == pytest.approx(100, rel=0.03)
    choice = choose_nodes(found, 3, known)
    assert set(choice.members) <= set(range(count, 16))
    assert choice.band is not None
    assert choice.band[0] < 100 < choice.band[1]


@given(st.integers(6, 20), st.integers(0, 10**6), st.floats(0.4, 0.8), st.sampled_from([0.0, 0.005, 0.02]))
def test_no_healthy_node_is_called_slow(nodes: int, seed: int, ratio: float, noise: float) -> None:
    rng = random.Random(seed)
    bad = set(rng.sample(range(nodes), rng.randrange(nodes - 2)))  # three or more are fast
    found = judge(seen(nodes, slow(*bad, ratio=ratio), 4, noise, seed), nodes)
    assert {*found.slow_nodes} == bad


def test_of_two_fast_nodes_nothing_is_certain() -> None:
    """They may share a switch, and the others each be behind uplinks of their own."""
    found = judged(5, slow(0, 1, 2, ratio=0.5))
    assert found.slow_nodes == ()
    assert found.fast_pair == (3, 4)
    assert [node.state for node in found.nodes] == [State.UNDECIDED] * 3 + [State.HEALTHY] * 2
    assert found.suspects is None, "every pair was measured: more rounds show nothing else"
    assert choose_nodes(found, 2).members == (3, 4)
    assert choose_nodes(found, 3).reason.startswith("the slowest reaches 51% of the typical rate")  # 50% and noise


def test_a_lost_node_shifts_no_others_name() -> None:
    pairs = [
        Observation(a + 1, b + 1, gbs)
        for a, b, gbs in ((one.first, one.second, one.gbs) for one in seen(5, slow(0, 1, 2, ratio=0.5), 4, 0.01))
    ]
    found = judge(pairs, 6)
    assert (found.fast_pair, found.nodes[0]) == ((4, 5), UNKNOWN)


def test_a_slow_leaf_is_not_eight_slow_nodes() -> None:
    """Nodes that are fast with each other: their uplinks are slow, or those of the other leaf."""
    found = judged(16, lambda a, b: 100.0 if (a < 8) == (b < 8) else 30.0)
    assert found.slow_nodes == ()


def test_oversubscribed_uplinks_of_leaves_that_nobody_reported_are_no_nodes_fault() -> None:
    found = judged(16, lambda a, b: 100.0 if a // 4 == b // 4 else 50.0)
    assert found.slow_nodes == ()


def test_a_pair_that_was_measured_once_decides_nothing_about_the_others() -> None:
    """Most pairs are missing: each node met one other."""
    observations = [one for one in seen(8, slow(0, 1, 2, 3, 4, ratio=0.5), 1, 0.01) if one.second == one.first + 1]
    found = judge(observations, 8)
    assert {*found.slow_nodes} <= {0, 1, 2, 3, 4}
