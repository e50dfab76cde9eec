"""Nodes under leaves that nobody reported: rates of a round from what its pairs share, worked out here by hand."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from collbench.cluster.fit import RoundKind
from collbench.cluster.measure import Round, Surveyed, survey_nodes
from collbench.cluster.nodes import State, judge
from collbench.cluster.switches import Switches

Pair = tuple[int, int]


def under_leaves(
    sizes: Sequence[int], ratio: float, slow: dict[int, float], slow_leaf: int | None = None
) -> Callable[[Sequence[Pair]], list[float]]:
    """Return the rates of pairs that run at once, 100 at most: those that leave a leaf share its nodes ÷ `ratio`.

    Half of that if the leaf is slow.
    """
    leaf_of = [leaf for leaf, size in enumerate(sizes) for _ in range(size)]

    def rates(pairs: Sequence[Pair]) -> list[float]:
        users = Counter(leaf_of[node] for a, b in pairs if leaf_of[a] != leaf_of[b] for node in (a, b))
        return [
            100
            * min(
                slow.get(a, 1.0),
                slow.get(b, 1.0),
                *(
                    sizes[leaf_of[node]] / ratio / users[leaf_of[node]] / (1 + (leaf_of[node] == slow_leaf))
                    for node in (a, b)
                    if leaf_of[a] != leaf_of[b]
                ),
            )
            for a, b in pairs
        ]

    return rates


def lognormal(noise: random.Random) -> float:
    return noise.lognormvariate(0, 0.01)


def ceiling(noise: random.Random) -> float:
    """Return noise that makes no pair faster."""
    return math.exp(-abs(noise.gauss(0, 0.02)))


def surveyed(
    sizes: Sequence[int],
    ratio: float,
    slow: dict[int, float],
    seed: int,
    rounds: int = 40,
    noise: Callable[[random.Random], float] = lognormal,
    known: Sequence[Switches] = (),
    *,
    slow_leaf: int | None = None,
) -> Surveyed:
    rates, rng = under_leaves(sizes, ratio, slow, slow_leaf), random.Random(seed)

    def measure(pairs: tuple[Pair, ...]) -> list[float]:
        return [rate * noise(rng) for rate in rates(pairs)]

    return survey_nodes(sum(sizes), known, measure, lambda made: made < rounds, seed)


def leaves_of(sizes: Sequence[int]) -> list[set[int]]:
    """Return the nodes of each leaf."""
    return [set(range(sum(sizes[:leaf]), sum(sizes[: leaf + 1]))) for leaf in range(len(sizes))]


LEAVES = [(8, 8, 8, 8), (12, 5, 9, 6), (3, 20, 4, 5), (4, 4, 4, 4), (6, 3, 7)]


@pytest.mark.parametrize(("sizes", "ratio"), [(LEAVES[0], 1.5), (LEAVES[1], 4.0), (LEAVES[2], 4.0), (LEAVES[4], 1.5)])
def test_no_healthy_node_is_slow_behind_oversubscribed_uplinks(sizes: tuple[int, ...], ratio: float) -> None:
    assert surveyed(sizes, ratio, {}, seed=sum(sizes)).judgement.slow_nodes == ()


@pytest.mark.parametrize(
    ("sizes", "rate", "ratio"),
    [
        (LEAVES[0], 0.6, 4.0),
        (LEAVES[1], 0.85, 1.5),
        (LEAVES[2], 0.6, 1.5),
        (LEAVES[3], 0.85, 4.0),
        (LEAVES[4], 0.6, 4.0),
    ],
)
def test_a_slow_node_behind_them_is_named_or_in_doubt(sizes: tuple[int, ...], rate: float, ratio: float) -> None:
    found = surveyed(sizes, ratio, {2: rate}, 1).judgement
    assert found.nodes[2].state in (State.SLOW, State.EITHER)
    assert {*found.slow_nodes} <= {2}


def test_of_two_nodes_alone_under_a_switch_the_healthy_one_is_not_slow() -> None:
    """The pair is as fast as its slow node, and alone their uplink carries two thirds of a node: both look slow."""
    found = [surveyed((2, 2, 4, 4), 3.0, {0: rate}, seed).judgement for rate, seed in ((0.5, 0), (0.5, 1), (0.66, 0))]
    assert [{*judged.slow_nodes} - {0} for judged in found] == [set()] * 3
    assert all(judged.nodes[0].state in (State.SLOW, State.EITHER) for judged in found)
    assert any(judged.slow_nodes for judged in found[:2])


def test_nor_where_that_uplink_explains_all_slow_pairs() -> None:
    found = surveyed((6, 2), 3.0, {0: 0.77, 7: 0.53}, 0).judgement
    assert {*found.slow_nodes} <= {0, 7}
    assert found.nodes[0].state is State.SLOW


def test_a_slow_uplink_that_is_busy_in_two_rounds_of_eight_is_said_without_a_name() -> None:
    """It carries four nodes of six: most of their pairs are fast, so none of them is low."""
    found = surveyed((6, 6, 6), 0.72, {}, 1, slow_leaf=0).judgement
    assert not found.slow_nodes
    assert not found.slow_uplinks
    assert found.across == pytest.approx((-0.3,), abs=0.02)
    assert not found.accuses


def test_pairs_that_noise_slows_are_no_uplinks() -> None:
    def wild(noise: random.Random) -> float:
        return lognormal(noise) * (noise.uniform(0.4, 0.9) if noise.random() < 0.05 else 1.0)

    found = [surveyed((12, 12, 12), 0.5, {}, seed, noise=wild).judgement for seed in range(4)]
    assert [judged.across for judged in found] == [()] * 4


def test_where_the_levels_differ_it_is_named() -> None:
    found = surveyed((8, 8, 8, 8), 4.0, {2: 0.8}, 0).judgement
    assert found.slow_nodes == (2,)
    assert found.nodes[2].interval[0] < -0.2 < found.nodes[2].interval[1]


def test_a_node_that_was_never_fast_is_in_doubt_while_rounds_are_few() -> None:
    found = surveyed((4, 4, 4, 4), 4.0, {2: 0.8}, 1, rounds=8).judgement
    assert found.slow_nodes == ()
    assert found.nodes[2].state is State.EITHER
    assert found.across[0] < -0.4


def test_in_quiet_rounds_pairs_that_are_fast_stay_and_no_node_has_two_partners() -> None:
    done = surveyed((12, 5, 9, 6), 4.0, {2: 0.8}, 2)
    quiet = [planned for planned in done.rounds if planned.kind is RoundKind.QUIET]
    assert quiet
    assert all(len({node for pair in planned.pairs for node in pair}) == 2 * len(planned.pairs) for planned in quiet)


@pytest.mark.parametrize(("sizes", "seed"), [((4,) * 12, 1), ((8,) * 6, 4)])
def test_a_node_that_was_once_as_fast_as_others_is_not_slow(sizes: tuple[int, ...], seed: int) -> None:
    """Its own leaf is busy in most quiet rounds, too, with others that are suspects."""
    found = surveyed(sizes, 1.5, {}, seed, noise=lambda rng: rng.lognormvariate(0, 0.03)).judgement
    assert found.slow_nodes == ()


def test_a_slow_node_is_measured_again_before_the_survey_ends() -> None:
    done = surveyed((16,), 1.0, {5: 0.8}, 1)
    again: list[Round] = [planned for planned in done.rounds if planned.kind is RoundKind.CONFIRMING]
    assert len(again) == 2
    assert all(5 in {node for pair in planned.pairs for node in pair} for planned in again)
    assert done.judgement.slow_nodes == (5,)


def test_without_sharing_the_judgement_is_that_of_all_pairs() -> None:
    done = surveyed((16,), 1.0, {}, 1)
    assert (len(done.rounds), done.judgement.across) == (8, ())
    assert judge(done.seen, 16) == done.judgement


@pytest.mark.parametrize(("sizes", "seed"), [((16, 16, 16, 16), 4), ((8, 8, 8, 8), 10)])
def test_rounds_in_which_an_uplink_was_less_busy_do_not_make_a_node_slow(sizes: tuple[int, ...], seed: int) -> None:
    """Two quiet rounds at the full rate, but below the mean of such noise, and others a little slower than these."""
    assert surveyed(sizes, 1.5, {}, seed, noise=ceiling).judgement.slow_nodes == ()


def test_nodes_of_two_leaves_are_not_said_to_share_an_uplink() -> None:
    """Two small leaves beside a large one, all oversubscribed: nodes of both small ones look alike."""
    sizes = (6, 9, 33)
    for uplink in surveyed(sizes, 3.0, {}, 1).judgement.slow_uplinks:
        assert any({*uplink.members} <= leaf for leaf in leaves_of(sizes))
        assert uplink.effect.state is State.EITHER, "with the same uplinks as others, for each of its nodes"


@pytest.mark.parametrize(
    ("sizes", "slow", "seed"), [((11, 11, 8, 8), {}, 0), ((12, 12, 12), {}, 4), ((8, 8, 8), {0: 0.6}, 4)]
)
def test_all_nodes_of_a_slow_leaf_share_its_uplink(sizes: tuple[int, ...], slow: dict[int, float], seed: int) -> None:
    """By chance some of them seldom met it while it was busy, and look healthy, or a little slow by themselves."""
    found = surveyed(sizes, 1.0, slow, seed, slow_leaf=1).judgement
    assert {*found.slow_nodes} == {*slow}
    assert [{*uplink.members} for uplink in found.slow_uplinks] == [leaves_of(sizes)[1]]


def test_with_switches_given_no_healthy_node_is_slow_where_a_slower_uplink_hides_the_others() -> None:
    sizes = (32, 12, 8, 6, 3, 3)
    members = tuple(tuple(sorted(leaf)) for leaf in leaves_of(sizes))
    known = (Switches(tuple(f"leaf{number}" for number in range(len(sizes))), members),)
    assert surveyed(sizes, 1.5, {}, 0, known=known).judgement.slow_nodes == ()


def fair(pairs: Sequence[Pair], leaf_of: Sequence[int], uplinks: Sequence[float]) -> list[float]:
    """Return the rates of pairs that run at once, 100 at most, whose leaves' uplinks share what they carry fairly."""
    left, rates = dict(enumerate(uplinks)), dict.fromkeys(pairs, 100.0)
    crossing = {pair: {leaf_of[node] for node in pair} for pair in pairs if leaf_of[pair[0]] != leaf_of[pair[1]]}
    while crossing:
        users = Counter(leaf for leaves in crossing.values() for leaf in leaves)
        full = min(users, key=lambda leaf: left[leaf] / users[leaf])
        rate = min(100.0, left[full] / users[full])
        for pair in [pair for pair, leaves in crossing.items() if full in leaves]:
            rates[pair] = rate
            for leaf in crossing.pop(pair):
                left[leaf] -= rate
    return [rates[pair] for pair in pairs]


@pytest.mark.parametrize("seed", [12, 19, 33])
def test_uplinks_beside_a_slow_one_are_not_slow_though_its_pairs_leave_them_unlike_shares(seed: int) -> None:
    rng, size, leaves = random.Random(seed), 4, 5
    nodes = [node // size for node in range(size * leaves)]
    uplinks = [100.0 * size / 2 / (1 + (leaf == 1)) for leaf in range(leaves)]
    known = (Switches(tuple(f"leaf{leaf}" for leaf in range(leaves)), tuple(map(tuple, leaves_of((size,) * leaves)))),)
    done = survey_nodes(
        len(nodes),
        known,
        lambda pairs: [rate * lognormal(rng) for rate in fair(pairs, nodes, uplinks)],
        lambda made: made < 25,
        seed,
    )
    slow = [uplink.name for uplink in done.judgement.uplinks if uplink.effect.state is State.SLOW]
    assert slow == ["leaf1"]
