import random
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from collbench.measurement.plan import pair_rounds, relabelled
from collbench.model.run import Pair


def check(rounds: list[list[Pair]], n: int) -> None:
    assert sorted(pair for pairs in rounds for pair in pairs) == list(combinations(range(n), 2))  # once each, low first
    for pairs in rounds:
        assert len({device for pair in pairs for device in pair}) == 2 * len(pairs)


def test_every_pair_meets_once_among_disjoint_pairs_in_the_fewest_rounds() -> None:
    for n in range(2, 18):
        rounds = pair_rounds(n)
        check(rounds, n)
        assert len(rounds) == (n if n % 2 else n - 1)
        assert {len(pairs) for pairs in rounds} == {n // 2}


@given(st.integers(2, 17), st.integers())
def test_relabelled_rounds_still_pair_every_device_once(n: int, seed: int) -> None:
    check(relabelled(pair_rounds(n), n, random.Random(seed)), n)


def test_relabelling_gives_a_pair_other_neighbours() -> None:
    rng = random.Random(1)
    neighbours = set()
    for _ in range(20):
        (round_pairs,) = (pairs for pairs in relabelled(pair_rounds(8), 8, rng) if (0, 1) in pairs)
        neighbours.add(frozenset(round_pairs))
    assert len(neighbours) > 10
