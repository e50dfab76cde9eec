from itertools import combinations, pairwise, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.choose.bands import best_ring, chain_table, ring_table
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
def test_the_table_holds_the_best_chain_of_every_set(rates: Rates, data: st.DataObject) -> None:
    k = data.draw(st.integers(2, len(rates)))
    table = chain_table(rates, k)
    for some in combinations(range(len(rates)), k):
        orders = permutations(some)
        best = max(min(rates[hop] for hop in pairwise(order)) for order in orders)
        assert table[sum(1 << one for one in some)] == best


def test_many_devices_get_an_upper_bound_not_a_table() -> None:
    assert best_ring(np.full((20, 20), 3.0) - 3.0 * np.eye(20)) == 3.0
    with pytest.raises(ValueError, match="17 devices are too many"):
        ring_table(np.ones((17, 17)), 2)
