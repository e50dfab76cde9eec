import pathlib
from collections import Counter
from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.choose.bands import cut_bound, most_rings
from collbench.choose.wiring import Rates
from collbench.machine.labels import nvlink_count
from collbench.machine.nvidia_smi import read_topology

DATA = pathlib.Path(__file__).parents[1] / "data"


def dgx_1v() -> Rates:
    labels = read_topology(DATA / "topologies" / "dgx-1v.txt").labels
    return np.array([[float(nvlink_count(label)) for label in row] for row in labels])


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


@settings(max_examples=40, deadline=None)
@given(meshes(), st.data())
def test_the_names_of_the_members_do_not_matter(links: Rates, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(links))))
    renamed = links[np.ix_(order, order)]
    assert most_rings(renamed) == most_rings(links)
    assert cut_bound(renamed) == cut_bound(links)
