from itertools import combinations, pairwise, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.choose.bands import all_sets, best_ring, chain_table, masks, ring_table
from collbench.choose.wiring import Rates


def by_trying_every_order(rates: Rates) -> float:
    rings = ([0, *order, 0] for order in permutations(range(1, len(rates))))
    return max(min(float(rates[a, b]) for a, b in pairwise(ring)) for ring in rings)


@st.composite
def machines(draw: st.DrawFn) -> Rates:
    """Directed rates; few distinct ones, as labels make them, or many, or links that are missing."""
    n = draw(st.integers(2, 6))
    rate = draw(st.sampled_from([st.sampled_from([0.0, 9.5, 24.2, 48.3]), st.floats(1, 400)]))
    rates = np.array(draw(st.lists(rate, min_size=n * n, max_size=n * n))).reshape(n, n)
    np.fill_diagonal(rates, 0)
    return rates


@given(machines())
def test_the_slowest_hop_of_the_best_ring_is_exact(rates: Rates) -> None:
    assert best_ring(rates) == by_trying_every_order(rates)


@given(machines(), st.data())
def test_the_table_holds_the_best_ring_of_every_set(rates: Rates, data: st.DataObject) -> None:
    k = data.draw(st.integers(2, len(rates)))
    table = ring_table(rates, k)
    sets = all_sets(len(rates), k)
    assert [tuple(some) for some in sets.tolist()] == list(combinations(range(len(rates)), k))
    for some, mask in zip(sets, masks(sets), strict=True):
        assert table[mask] == by_trying_every_order(rates[np.ix_(some, some)])


@given(machines(), st.data())
def test_the_table_holds_the_best_chain_of_every_set(rates: Rates, data: st.DataObject) -> None:
    k = data.draw(st.integers(2, len(rates)))
    table = chain_table(rates, k)
    for some in combinations(range(len(rates)), k):
        orders = permutations(some)
        best = max(min(rates[hop] for hop in pairwise(order)) for order in orders)
        assert table[sum(1 << one for one in some)] == best


@given(machines(), st.data())
def test_the_order_of_the_members_does_not_matter(rates: Rates, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(rates))))
    assert best_ring(rates[np.ix_(order, order)]) == best_ring(rates)


@pytest.mark.parametrize(
    ("title", "fast", "n", "ring"),
    [
        ("a pair is its link", [(0, 1)], 2, 10.0),
        ("a triangle needs all three", [(0, 1), (1, 2)], 3, 1.0),
        ("a square needs no diagonal", [(0, 1), (1, 2), (2, 3), (0, 3)], 4, 10.0),
        ("a star has no ring", [(0, 1), (0, 2), (0, 3)], 4, 1.0),
        ("two triangles that meet in one device", [(0, 1), (1, 2), (0, 2), (2, 3), (3, 4), (2, 4)], 5, 1.0),
    ],
)
def test_rings_of_named_graphs(title: str, fast: list[tuple[int, int]], n: int, ring: float) -> None:
    rates = np.ones((n, n)) - np.eye(n)
    for a, b in fast:
        rates[a, b] = rates[b, a] = 10.0
    assert best_ring(rates) == ring


def test_a_ring_of_one_way_links_counts_in_that_direction() -> None:
    rates = np.zeros((4, 4))
    rates[[0, 1, 2, 3], [1, 2, 3, 0]] = 5.0
    assert best_ring(rates) == best_ring(rates.T) == 5.0


def test_one_device_has_no_ring() -> None:
    with pytest.raises(ValueError, match="two members"):
        best_ring(np.zeros((1, 1)))


def test_many_devices_get_an_upper_bound_not_a_table() -> None:
    assert best_ring(np.full((20, 20), 3.0) - 3.0 * np.eye(20)) == 3.0
    with pytest.raises(ValueError, match="17 devices are too many"):
        ring_table(np.ones((17, 17)), 2)
