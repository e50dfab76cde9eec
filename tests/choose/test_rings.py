"""The best rings and the most of them, by trying all."""

import pathlib
from collections import Counter
from itertools import combinations, pairwise, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.choose.bands import best_ring, chain_table, cut_bound, most_rings, ring_table
from collbench.choose.wiring import Rates
from collbench.machine.labels import nvlink_count
from collbench.machine.nvidia_smi import read_topology


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


DATA = pathlib.Path(__file__).parents[1] / "data"


def dgx_1v() -> Rates:
    read = read_topology(DATA / "topologies" / "dgx-1v.txt")
    return np.array([[float(nvlink_count(read.cells.get((a, b), ""))) for b in read.gpus] for a in read.gpus])


def everyone(n: int) -> Rates:
    return np.ones((n, n)) - np.eye(n)


@pytest.mark.parametrize(
    ("k", "rings", "sets", "without"),
    # docs/method/choosing.md 6: the most directed rings, how many sets reach it; and how many have none.
    [(2, 2, 8, 12), (3, 2, 8, 48), (4, 4, 2, 62), (5, 2, 24, 32), (6, 4, 4, 0), (7, 4, 8, 0), (8, 6, 1, 0)],
)
def test_rings_of_all_sets_of_a_dgx_1v(k: int, rings: int, sets: int, without: int) -> None:
    links = dgx_1v()
    found = Counter(most_rings(links[np.ix_(some, some)]) for some in combinations(range(8), k))
    assert max(found) == rings
    assert (found[rings], found[0]) == (sets, without)


@pytest.mark.parametrize(
    ("n", "rings"),
    # Tillson 1980: the complete directed graph splits into n − 1 directed Hamiltonian cycles for all n but 4 and 6.
    [(2, 1), (3, 2), (4, 2), (5, 4), (6, 4), (7, 6), (8, 7)],
)
def test_one_link_between_all_pairs(n: int, rings: int) -> None:
    assert most_rings(everyone(n)) == rings
    assert cut_bound(everyone(n)) == n - 1


@pytest.mark.parametrize(("n", "bound"), [(16, 1.0), (17, 7.0)])
def test_a_cut_through_the_middle_counts_up_to_sixteen_members(n: int, bound: float) -> None:
    """Eight members and the others, all joined within; one link joins the two parts each way."""
    links = np.zeros((n, n))
    links[:8, :8], links[8:, 8:] = everyone(8), everyone(n - 8)
    links[0, 8] = links[8, 0] = 1.0
    assert cut_bound(links) == bound


@pytest.mark.parametrize("n", [3, 16, 17, 20])
def test_a_member_that_sends_or_receives_little_bounds_all_rings(n: int) -> None:
    sends = everyone(n)
    sends[1] *= 0.25
    assert cut_bound(sends) == cut_bound(sends.T) == 0.25 * (n - 1)


@st.composite
def meshes(draw: st.DrawFn) -> Rates:
    n = draw(st.integers(3, 5))
    links = np.array(draw(st.lists(st.integers(0, 2), min_size=n * n, max_size=n * n)), dtype=float).reshape(n, n)
    np.fill_diagonal(links, 0)
    return links


def by_trying_all(links: Rates) -> int:
    """Return the most rings by trying all rings, each with those after it."""
    n = len(links)
    rings = [[(0, *rest)[i] * n + (*rest, 0)[i] for i in range(n)] for rest in permutations(range(1, n))]

    def most(left: list[float], start: int) -> int:
        best = 0
        for index in range(start, len(rings)):
            if all(left[arc] >= 1 for arc in rings[index]):
                after = [links - (arc in rings[index]) for arc, links in enumerate(left)]
                best = max(best, 1 + most(after, index))
        return best

    return most(links.ravel().tolist(), 0)


@settings(max_examples=30, deadline=None)
@given(meshes())
def test_the_packing_is_the_largest_and_within_its_bound(links: Rates) -> None:
    rings = most_rings(links)
    assert rings == by_trying_all(links)
    assert rings <= cut_bound(links)
