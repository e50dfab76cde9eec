"""Which nodes are called slow, from every pair of a small cluster; rates of 100 GB/s and faults put in by hand."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from collbench.cluster.fit import Observation, RoundKind, fit
from collbench.cluster.nodes import UNKNOWN, State, judge
from collbench.cluster.switches import Switches
from tests.cluster.made import Rate, judged, leaves, seen, slow


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
    assert sorted(judged(16, rate, known).slow_nodes) == found


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
    assert sorted((uplink.name, uplink.members) for uplink in judged(16, rate, known).slow_uplinks) == found


@pytest.mark.parametrize(
    ("title", "sizes", "first", "others", "state"),
    [
        ("as many nodes are under others", (4, 4, 4, 4), 70.0, 100.0, State.SLOW),
        ("and all are oversubscribed", (4, 4, 4, 4), 40.0, 60.0, State.SLOW),
        ("more nodes are under others", (3, 5, 4, 4), 70.0, 100.0, State.SLOW),
        ("fewer are: as many uplinks serve more nodes", (7, 3, 3, 3), 70.0, 100.0, State.EITHER),
        ("all are oversubscribed, and none has as many nodes", (3, 5, 4, 4), 40.0, 60.0, State.EITHER),
    ],
)
def test_uplinks_of_a_given_switch_are_slow_only_if_another_one_should_have_no_more(
    title: str, sizes: tuple[int, ...], first: float, others: float, state: State
) -> None:
    home = [leaf for leaf, size in enumerate(sizes) for _ in range(size)]
    members = tuple(tuple(node for node, leaf in enumerate(home) if leaf == one) for one in range(len(sizes)))
    known = (Switches(("a", "b", "c", "d"), members),)
    rate: Rate = lambda a, b: 100.0 if home[a] == home[b] else first if 0 in (home[a], home[b]) else others  # noqa: E731
    found = judged(16, rate, known)
    assert [(uplink.name, uplink.effect.state) for uplink in found.slow_uplinks] == [("a", state)]
    assert found.accuses == (state is State.SLOW)


def test_the_interval_holds_the_truth() -> None:
    found = judge(seen(16, slow(5, ratio=0.5), 3, 0.01), 16)
    assert found.slow_nodes == (5,)
    assert found.nodes[5].interval[0] < -0.5 < found.nodes[5].interval[1]


def test_oversubscription_is_no_fault_and_hides_no_slow_node() -> None:
    found = judged(16, lambda a, b: 50.0 if a // 8 != b // 8 else slow(3)(a, b), leaves(16, 8))
    assert found.across == pytest.approx([-0.5], abs=0.01)
    assert found.slow_nodes == (3,)
    assert found.slow_uplinks == ()


def test_a_node_that_was_never_measured_is_not_called_healthy() -> None:
    pairs = [one for one in seen(8, slow(), 3, 0.01) if 5 not in (one.first, one.second)]
    found = judge(pairs, 8)
    assert found.nodes[5] == UNKNOWN


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


def test_a_node_behind_a_slow_uplink_that_met_one_slow_neighbour_meets_others_before_it_is_called_slow() -> None:
    """Node 3 is slow itself, behind the uplink of nodes 0 to 5; in the first case, node 0 met only this one of them."""
    pairs = [Observation(a, b, 80.0) for a in range(6) for b in range(6, 16) for _ in range(2)]
    pairs += [Observation(a, b, 100.0) for a in range(6, 16) for b in range(a + 1, 16)]
    pairs += [
        Observation(a, b, 92.0 if 3 in (a, b) else 100.0, kind=RoundKind.AMONG_SUSPECTS)
        for a in range(1, 6)
        for b in range(a + 1, 6)
    ]
    pairs += [Observation(0, 3, 89.0, kind=RoundKind.AMONG_SUSPECTS)] * 4
    assert judge(pairs, 16).suspects == ((0, 1, 2, 3, 4, 5),)
    found = judge([*pairs, Observation(0, 2, 100.0, kind=RoundKind.AMONG_SUSPECTS)], 16)
    assert (0 in found.slow_uplinks[0].members, 0 in found.slow_nodes, found.suspects) == (True, False, None)


@pytest.mark.parametrize("known", [True, False])
def test_relabelling_the_nodes_permutes_the_answer(known: bool) -> None:
    names = random.Random(1).sample(range(16), 16)
    pairs = seen(16, shared(4, 5, 6, 7, also=slow(1)), 4, 0.01)
    renamed = [Observation(names[pair.first], names[pair.second], pair.gbs) for pair in pairs]
    (level,) = leaves(16, 4)
    switches = Switches(level.names, tuple(tuple(names[node] for node in members) for members in level.members))
    found = judge(renamed, 16, (switches,) if known else ())
    assert found.slow_nodes == (names[1],)
    assert [set(uplink.members) for uplink in found.slow_uplinks] == [{names[node] for node in (4, 5, 6, 7)}]


def with_levels(
    nodes: int, seed: int, *, slow_node: int | None = None, times: int = 4, sigma: float = 0.005
) -> list[Observation]:
    """Return `times` rounds of every pair, which has a level of its own, 3.5% off, and varies by `sigma`."""
    rng = random.Random(seed)
    levels = {(a, b): rng.choice([0.965, 1.035]) for a in range(nodes) for b in range(nodes)}

    def rate(a: int, b: int) -> float:
        return slow(*[] if slow_node is None else [slow_node], ratio=0.5)(a, b) * levels[a, b]

    return seen(nodes, rate, times, sigma, seed)


@pytest.mark.parametrize("nodes", [3, 4, 8])
def test_pairs_with_levels_of_their_own_accuse_nobody(nodes: int) -> None:
    """At the family's 5% one of 20 clusters may be judged wrongly; a third to a tenth were."""
    accused = sum(bool(judge(with_levels(nodes, seed), nodes).slow_nodes) for seed in range(20))
    assert accused <= 1


@pytest.mark.parametrize(("times", "sigma"), [(100, 0.1), (4, 0.3)])
def test_three_nodes_whose_pairs_leave_no_residual_accuse_nobody(times: int, sigma: float) -> None:
    """Three effects explain three pairs exactly: what is known of their scatter comes from their rounds, and from δ."""
    accused = sum(bool(judge(with_levels(3, seed, times=times, sigma=sigma), 3).slow_nodes) for seed in range(20))
    assert accused <= 1


def test_a_node_at_half_rate_is_slow_where_only_two_measurements_are_without_it() -> None:
    rates = {(0, 1): [100.0, 99.0], (0, 2): [50.0, 50.5, 49.5], (1, 2): [49.0, 50.0, 50.5]}
    found = judge([Observation(*pair, gbs) for pair, own in rates.items() for gbs in own], 3)
    assert [node.state for node in found.nodes] == [State.HEALTHY, State.HEALTHY, State.SLOW]


@pytest.mark.parametrize("nodes", [3, 4, 8])
def test_a_node_at_half_rate_stands_out_from_such_pairs(nodes: int) -> None:
    named = [judge(with_levels(nodes, seed, slow_node=seed % nodes), nodes).slow_nodes for seed in range(6)]
    assert all(seed % nodes in nodes_named for seed, nodes_named in enumerate(named))
    assert sum(len(nodes_named) > 1 for nodes_named in named) <= 1


def test_two_disturbed_rounds_of_the_only_pair_under_a_leaf_accuse_nobody() -> None:
    """Their mean is 10% below the others, and no other pair shows what both nodes reach under their leaf."""
    pairs = seen(8, slow(), 6, 0.01)
    disturbed = [one for one in pairs if one.pair == (2, 3)][:2]
    pairs = [replace(one, gbs=65.0) if one in disturbed else one for one in pairs]
    found = judge(pairs, 8, leaves(8, 2))
    assert found.slow_nodes == ()
    assert found.nodes[2].ratio == pytest.approx(0, abs=0.01)


def test_repeating_the_same_pairs_makes_nothing_more_certain() -> None:
    """Rounds without noise add nothing to what is known of a pair: intervals and answer stay."""
    rounds = [seen(6, lambda a, b: 100.0 * (1 + 0.01 * ((3 * a + b) % 5)), n) for n in (2, 40)]
    few, many = (judge(pairs, 6) for pairs in rounds)
    for node, other in zip(few.nodes, many.nodes, strict=True):
        assert other.interval == pytest.approx(node.interval, rel=1e-6)


def test_many_noisy_rounds_know_the_nodes_no_better_than_few_precise_ones() -> None:
    """A pair's mean has the same error in both, and three pairs show nothing of their own levels."""
    few, many = (fit(with_levels(3, 1, times=times, sigma=sigma)) for times, sigma in ((4, 0.005), (400, 0.05)))
    assert (many.errors >= few.errors).all()


def test_no_number_of_rounds_tells_two_nodes_apart() -> None:
    found = judge(seen(2, slow(1, ratio=0.5), 8, 0.02), 2)
    assert ([node.state for node in found.nodes], found.suspects) == ([State.UNDECIDED] * 2, None)


def test_where_rounds_vary_more_of_them_narrow_the_intervals() -> None:
    few, many = (judge(seen(6, slow(), n, 0.02), 6) for n in (2, 32))
    widths = [[node.interval[1] - node.interval[0] for node in found.nodes] for found in (few, many)]
    assert all(1.5 * late < early for early, late in zip(*widths, strict=True))


@pytest.mark.parametrize(
    ("title", "pairs", "ended"),
    [
        ("every pair was measured, and pairs differ", with_levels(4, 4), True),
        ("rounds differ as much as pairs", with_levels(4, 6, sigma=0.04), False),
        ("rounds differ, not pairs", seen(4, slow(2, ratio=0.97), 2, 0.03), False),
        (
            "a pair is missing",
            [one for one in with_levels(4, 4) if {one.first, one.second} != {0, 1}],
            False,
        ),
    ],
)
def test_rounds_end_where_they_would_not_decide(title: str, pairs: list[Observation], ended: bool) -> None:
    found = judge(pairs, 4)
    assert State.UNDECIDED in {node.state for node in found.nodes}
    assert (found.suspects is None) is ended


def test_pairs_that_do_not_distinguish_nodes_accuse_no_uplink() -> None:
    def rate(a: int, b: int) -> float:
        """Return the rate under leaves of two nodes, oversubscribed, the first one more."""
        return 100.0 if a // 2 == b // 2 else 50.0 if min(a, b) > 1 else 30.0

    found = judge(seen(8, rate, 4, 0.01), 8, leaves(8, 2))
    assert found.judged == 0
    assert [(uplink.name, uplink.effect.state) for uplink in found.slow_uplinks] == [("leaf0", State.EITHER)]
    assert not found.accuses
