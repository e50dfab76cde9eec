"""How many rings a mesh of NVLinks holds at once: arc-disjoint directed Hamiltonian cycles, weighed by their rate.

A ring runs at its slowest link; of each direction of a bundle no more rings can take links than it has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Arc = tuple[int, int]
Links = Mapping[Arc, tuple[int, float]]
Cycle = tuple[Arc, ...]

# Up to here all cycles are listed (7! = 5040 at most) and the packing is exact; larger meshes are searched.
_EXACT_GPUS = 8
_TRIES = 12  # of the greedy search; it met the cut bound within a few on every mesh that we saw
_ENOUGH = 1 - 1e-9
# Steps of one search for a cycle, for meshes too large to list.
_MOST_STEPS = 20_000


def best_packing(members: Sequence[int], links: Links) -> float:
    """Return the GB/s of the best set of rings through all members, 0.0 where there is no ring.

    `links` are (how many, GB/s of each) by direction. Exact up to 8 members; above, a search that may fall short.
    """
    inside = {arc: found for arc, found in links.items() if arc[0] in members and arc[1] in members and found[0] > 0}
    if len(members) == 2:
        a, b = members
        there, back = inside.get((a, b)), inside.get((b, a))
        return min(there[0], back[0]) * min(there[1], back[1]) if there and back else 0.0
    bound = _cut_bound(members, inside)
    if bound == 0.0:
        return 0.0
    cycles = hamiltonian_cycles(members, inside) if len(members) <= _EXACT_GPUS else None
    if cycles is not None and not cycles:
        return 0.0
    found = _greedy(members, inside, cycles, bound)
    if found >= bound * _ENOUGH or cycles is None:
        return found
    return max(found, _exact(cycles, inside))


def hamiltonian_cycles(members: Sequence[int], arcs: Links) -> list[Cycle]:
    """Return every directed cycle that passes each member once."""
    onward = {a: [b for b in members if (a, b) in arcs] for a in members}
    first = members[0]
    found: list[Cycle] = []
    way = [first]

    def extend() -> None:
        if len(way) == len(members):
            if (way[-1], first) in arcs:
                found.append(tuple(zip(way, [*way[1:], first], strict=True)))
            return
        for after in onward[way[-1]]:
            if after not in way:
                way.append(after)
                extend()
                way.pop()

    extend()
    return found


def _cut_bound(members: Sequence[int], arcs: Links) -> float:
    """Return the least GB/s that leaves or enters any part of the members: each ring crosses each cut both ways."""
    place = {member: number for number, member in enumerate(members)}
    weight = np.zeros((len(members), len(members)))
    for (a, b), (count, rate) in arcs.items():
        weight[place[a], place[b]] = count * rate
    if len(members) > _EXACT_GPUS:
        return float(min(weight.sum(axis=0).min(), weight.sum(axis=1).min()))
    parts = _parts(len(members))
    leaving = np.einsum("pi,ij,pj->p", parts, weight, 1 - parts)
    return float(leaving.min())  # a part's complement is a part too, so both directions are in


def _parts(count: int) -> NDArray[np.float64]:
    """Return every part of `count` members but none and all, shape (parts, members), 1 for inside."""
    numbers = np.arange(1, 2**count - 1)
    return (numbers[:, None] >> np.arange(count) & 1).astype(float)


def _greedy(members: Sequence[int], arcs: Links, cycles: list[Cycle] | None, bound: float) -> float:
    """Return the best of a few packings, each by taking the ring that leaves most until there is none."""
    rng = np.random.default_rng(0)  # a search must always find the same
    best = 0.0
    for _ in range(_TRIES):
        left = {arc: count for arc, (count, _) in arcs.items()}
        total = 0.0
        order = None if cycles is None else [cycles[place] for place in rng.permutation(len(cycles))]
        while True:
            ring = _roomiest(order, left, arcs) if order is not None else _some_cycle(members, left, rng)
            if ring is None:
                break
            total += min(arcs[arc][1] for arc in ring)
            for arc in ring:
                left[arc] -= 1
            order = None if order is None else [other for other in order if all(left[arc] > 0 for arc in other)]
        best = max(best, total)
        if best >= bound * _ENOUGH:
            break
    return best


def _roomiest(cycles: list[Cycle], left: Mapping[Arc, int], arcs: Links) -> Cycle | None:
    """Return the fastest ring, of those as fast the one whose tightest arcs have the most links left."""
    return max(
        cycles,
        key=lambda ring: (min(arcs[arc][1] for arc in ring), sum(1 - 1 / left[arc] for arc in ring)),
        default=None,
    )


def _some_cycle(members: Sequence[int], left: Mapping[Arc, int], rng: np.random.Generator) -> Cycle | None:
    """Return a ring found by trying the next members with the most links first, None where the steps run out."""
    first = members[0]
    way, steps = [first], 0

    def extend() -> bool:
        nonlocal steps
        steps += 1
        if steps > _MOST_STEPS:
            return False
        if len(way) == len(members):
            return left.get((way[-1], first), 0) > 0
        ways = [b for b in members if b not in way and left.get((way[-1], b), 0) > 0]
        for after in sorted(ways, key=lambda b: (-left[way[-1], b], rng.random())):
            way.append(after)
            if extend():
                return True
            way.pop()
        return False

    return tuple(zip(way, [*way[1:], first], strict=True)) if extend() else None


def _exact(cycles: list[Cycle], arcs: Links) -> float:
    """Return the most GB/s over all packings, as an integer program."""
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    rows = {arc: number for number, arc in enumerate(arcs)}
    used = np.array([rows[arc] for ring in cycles for arc in ring])
    by = np.repeat(np.arange(len(cycles)), len(cycles[0]))
    crosses: csr_array[np.float64] = csr_array((np.ones(len(used)), (used, by)), shape=(len(rows), len(cycles)))
    rates = np.array([min(arcs[arc][1] for arc in ring) for ring in cycles])
    room = LinearConstraint(crosses, ub=np.array([count for count, _ in arcs.values()]))
    solved = milp(-rates, constraints=room, integrality=np.ones(len(cycles), dtype=np.int64), bounds=Bounds(0, np.inf))
    return float(-solved.fun) if solved.success else 0.0
