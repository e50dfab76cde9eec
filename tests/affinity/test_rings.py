from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.affinity.rings import bottleneck_ring, ring_bound


class Rate:
    def __init__(self, rates: Mapping[frozenset[int], float]) -> None:
        self.rates = rates

    def __call__(self, a: int, b: int) -> float:
        return self.rates[frozenset((a, b))]


def best_of_all_rings(members: Sequence[int], rate: Rate) -> float:
    """Return the answer by trying every order."""
    first, *rest = members
    rings = ([first, *order, first] for order in permutations(rest))
    return max(min(rate(a, b) for a, b in pairwise(ring)) for ring in rings)


@st.composite
def machines(draw: st.DrawFn) -> tuple[tuple[int, ...], Rate]:
    members = tuple(draw(st.lists(st.integers(0, 15), min_size=2, max_size=6, unique=True)))
    few = st.sampled_from([9.5, 24.2, 48.3])  # labels make many rates equal
    rates = draw(st.sampled_from([few, st.floats(1, 400)]))
    return members, Rate({frozenset(pair): draw(rates) for pair in combinations(members, 2)})


@given(machines())
def test_the_slowest_edge_of_the_best_ring_is_exact(machine: tuple[tuple[int, ...], Rate]) -> None:
    members, rate = machine
    assert bottleneck_ring(members, rate) == best_of_all_rings(members, rate)
    assert ring_bound(members, rate) >= bottleneck_ring(members, rate)


@given(machines(), st.data())
def test_the_order_of_the_members_does_not_matter(machine: tuple[tuple[int, ...], Rate], data: st.DataObject) -> None:
    members, rate = machine
    assert bottleneck_ring(data.draw(st.permutations(members)), rate) == bottleneck_ring(members, rate)


@pytest.mark.parametrize(
    ("title", "fast", "members", "ring"),
    [
        ("a pair is its link", [(0, 1)], (0, 1), 10.0),
        ("a triangle needs all three", [(0, 1), (1, 2)], (0, 1, 2), 1.0),
        ("a square needs no diagonal", [(0, 1), (1, 2), (2, 3), (0, 3)], (0, 1, 2, 3), 10.0),
        ("a star has no ring", [(0, 1), (0, 2), (0, 3)], (0, 1, 2, 3), 1.0),
        (
            "two triangles that meet in one device",
            [(0, 1), (1, 2), (0, 2), (2, 3), (3, 4), (2, 4)],
            (0, 1, 2, 3, 4),
            1.0,
        ),
    ],
)
def test_rings_of_named_graphs(title: str, fast: list[tuple[int, int]], members: tuple[int, ...], ring: float) -> None:
    edges = {frozenset(edge) for edge in fast}
    assert bottleneck_ring(members, lambda a, b: 10.0 if frozenset((a, b)) in edges else 1.0) == ring


def test_one_device_has_no_ring() -> None:
    with pytest.raises(ValueError, match="two members"):
        bottleneck_ring([3], lambda a, b: 1.0)
