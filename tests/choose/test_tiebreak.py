from itertools import combinations

import numpy as np
import pytest

from collbench.choose.bands import all_sets
from collbench.choose.choice import TieBreak
from collbench.choose.problem import Level, decide, different, members_with, what_remains, worst_inside
from collbench.choose.wiring import Sets, Values

COSTS = members_with(np.array([True, False, False, False]))


def test_a_level_is_asked_only_of_those_that_are_left_and_named_only_where_it_decides() -> None:
    asked: list[list[list[int]]] = []

    def alike(sets: Sets) -> Values:
        asked.append(sets.tolist())
        return np.zeros(len(sets))

    some = np.array([[0, 1], [1, 2], [2, 3]])
    assert decide(some, (Level(TieBreak.IN_USE, COSTS), Level(TieBreak.NUMA_NODES, alike)), TieBreak.INDEX) == (
        1,
        (TieBreak.IN_USE, TieBreak.INDEX),
    )
    assert asked == [[[1, 2], [2, 3]]]


def test_the_order_of_positions_decides_last_the_first_position_first() -> None:
    sets = np.array([[1, 2, 3], [0, 3, 4], [0, 2, 5], [0, 2, 6]])
    assert decide(sets, (), TieBreak.INDEX) == (2, (TieBreak.INDEX,))


def test_what_levels_count() -> None:
    sets = np.array([[0, 1, 2], [0, 2, 3], [1, 2, 3]])
    groups = np.array([4, 9, 4, 4])
    assert different(groups)(sets).tolist() == [2, 1, 2]
    assert different(np.array([4, 9, 9, 4]))(sets).tolist() == [2, 2, 2]
    assert different(np.array([1, 0, 2, 1]))(sets).tolist() == [3, 2, 3]
    assert members_with(np.array([True, False, True, True]))(sets).tolist() == [2, 3, 2]
    tiers = np.array([[9.0, 1, 2, 5], [7, 0, 1, 1], [1, 1, 0, 1], [1, 1, 8, 0]])
    assert worst_inside(np.where(np.eye(4), 0, tiers))(sets).tolist() == [7, 8, 8]


@pytest.mark.parametrize(("k", "seed"), [(1, 0), (2, 1), (2, 2), (3, 3), (3, 4)])
def test_what_remains_is_the_best_set_without_these_members(k: int, seed: int) -> None:
    sets = all_sets(7, k)
    values = np.random.default_rng(seed).choice(np.arange(1.0, 40.0), len(sets))
    members = [set(some) for some in combinations(range(7), k)]
    left = [
        max((value for other, value in zip(members, values, strict=True) if not some & other), default=0.0)
        for some in members
    ]
    assert what_remains(sets, values, 0.1)(sets).tolist() == [0.0 if one >= max(left) * 0.9 else 1.0 for one in left]


def test_where_nothing_remains_all_cost_the_same() -> None:
    sets = all_sets(3, 2)
    assert what_remains(sets, np.array([3.0, 2.0, 1.0]), 0.02)(sets).tolist() == [0, 0, 0]
