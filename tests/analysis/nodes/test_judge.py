"""Who is called slow, from every pair of a small cluster; rates of 100 GB/s and faults put in by hand."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from collbench.analysis.nodes import UNKNOWN, Observation, State, Switches, judge
from tests.analysis.nodes.made import Rate, judged, leaves, names_of, seen, slow


def shared(*members: int, ratio: float = 0.8, also: Rate = lambda _a, _b: 100.0) -> Rate:
    """Return the rate where these nodes share a slow uplink; a node's own fault may be slower than that."""
    crossing = {True: 100 * ratio, False: 100.0}
    return lambda a, b: min(crossing[(a in members) != (b in members)], also(a, b))


@pytest.mark.parametrize(
    ("title", "rate", "known", "found"),
    [
        ("healthy nodes", slow(), (), []),
        ("a slow node", slow(3), (), [3]),
        ("three of them, of different slowness", lambda a, b: min(slow(3)(a, b), slow(7, 8, ratio=0.8)(a, b)), (),
         [3, 7, 8]),
        ("a difference that changes nobody's decision", slow(3, ratio=0.99), (), []),
        ("healthy leaves", slow(), leaves(16, 4), []),
        ("a slow node under a leaf", slow(3), leaves(16, 4), [3]),
        ("a slow uplink is no node's fault", shared(4, 5, 6, 7), leaves(16, 4), []),
        ("a slow node behind it", shared(4, 5, 6, 7, also=slow(6, ratio=0.7)), leaves(16, 4), [6]),
        ("nor where nobody reported of it", shared(4, 5, 6, 7), (), []),
        ("nor is the slow node behind it lost", shared(4, 5, 6, 7, also=slow(6, ratio=0.7)), (), [6]),
    ],
)  # fmt: skip
def test_slow_nodes(title: str, rate: Rate, known: Sequence[Switches], found: list[int]) -> None:
    assert sorted(names_of(judged(16, rate, known))) == found


@pytest.mark.parametrize(
    ("title", "rate", "known", "found"),
    [
        ("healthy", slow(), leaves(16, 4), []),
        ("a leaf's", shared(4, 5, 6, 7), leaves(16, 4), [("leaf1", (4, 5, 6, 7))]),
        ("found", shared(4, 5, 6, 7), (), [("", (4, 5, 6, 7))]),
        ("two, found", lambda a, b: min(shared(1, 2, 3)(a, b), shared(8, 9, 10, ratio=0.5)(a, b)), (),
         [("", (1, 2, 3)), ("", (8, 9, 10))]),
        ("slow nodes share none", slow(4, 5, 6), (), []),
    ],
)  # fmt: skip
def test_slow_uplinks(
    title: str, rate: Rate, known: Sequence[Switches], found: list[tuple[str, tuple[int, ...]]]
) -> None:
    assert sorted((one.name, one.members) for one in judged(16, rate, known).slow_uplinks) == found


def test_the_interval_holds_the_truth_and_the_direction_is_named() -> None:
    found = judge(seen(16, lambda a, b: 50.0 if a == 5 else 100.0, 3, 0.01, one_way=True), 16)
    (one,) = found.slow_nodes
    assert one.node == 5
    assert one.sends.interval[0] < -0.5 < one.sends.interval[1]
    assert (one.sends.state, one.receives.state) == (State.SLOW, State.HEALTHY)
    assert one.worse == one.sends


def test_oversubscription_is_no_fault_and_hides_no_slow_node() -> None:
    found = judged(16, lambda a, b: 50.0 if a // 8 != b // 8 else slow(3)(a, b), leaves(16, 8))
    assert found.across == pytest.approx([-0.5], abs=0.01)
    assert names_of(found) == [3]
    assert found.slow_uplinks == ()


def test_a_node_that_was_never_measured_is_not_called_healthy() -> None:
    pairs = [one for one in seen(8, slow(), 3, 0.01) if 5 not in (one.first, one.second)]
    found = judge(pairs, 8)
    assert (found.nodes[5].sends, found.nodes[5].state) == (UNKNOWN, State.UNDECIDED)


@pytest.mark.parametrize(
    ("title", "pairs", "known", "suspects"),
    [
        ("all is decided", seen(16, slow(), 4, 0.005), (), None),
        ("one slow node has nobody to meet", seen(16, slow(3), 4, 0.005), (), None),
        ("two that hardly met must meet", seen(16, slow(3, 9), 3, 0.005), (), ((3, 9),)),
        ("two that met often are decided", seen(16, slow(3, 9), 4, 0.005), (), None),
        ("one that may be slow needs more pairs", seen(16, slow(3, ratio=0.975), 1, 0.02), (), ()),
    ],
)
def test_where_to_look_next(
    title: str, pairs: list[Observation], known: Sequence[Switches], suspects: tuple[tuple[int, ...], ...] | None
) -> None:
    found = judge(pairs, 16, known)
    assert found.suspects == suspects


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("known", [True, False])
def test_relabelling_the_nodes_permutes_the_answer(seed: int, known: bool) -> None:
    names = random.Random(seed).sample(range(16), 16)
    pairs = seen(16, shared(4, 5, 6, 7, also=slow(1)), 4, 0.01)
    renamed = [Observation(names[one.first], names[one.second], one.gbs) for one in pairs]
    (level,) = leaves(16, 4)
    switches = Switches(level.names, tuple(tuple(names[node] for node in members) for members in level.members))
    found = judge(renamed, 16, (switches,) if known else ())
    assert names_of(found) == [names[1]]
    assert [set(one.members) for one in found.slow_uplinks] == [{names[node] for node in (4, 5, 6, 7)}]
