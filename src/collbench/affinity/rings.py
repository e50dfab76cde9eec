"""The best ring through a set of GPUs: what NCCL will run, so what a set is worth (METHOD.md §6)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence

Rate = Callable[[int, int], float]


def bottleneck_ring(members: Sequence[int], rate: Rate) -> float:
    """Return the slowest edge of the ring that makes it fastest, in `rate`'s unit; two members are their pair.

    `rate(a, b)` is symmetric. Exact; time grows with 2^members.
    """
    if len(members) < 2:
        raise ValueError("a ring needs two members")
    if len(members) == 2:
        return rate(*members)
    rates = {(a, b): rate(a, b) for a in members for b in members if a != b}
    bound = ring_bound(members, rate)
    thresholds = sorted({value for value in rates.values() if value <= bound}, reverse=True)
    # The complete graph has a ring, so the lowest threshold always does; what has one keeps it below.
    place = bisect_left(thresholds, True, key=lambda limit: _has_ring(members, {e for e in rates if rates[e] >= limit}))
    return thresholds[place]


def ring_bound(members: Sequence[int], rate: Rate) -> float:
    """Return a cheap upper bound of bottleneck_ring: every member needs two edges, so its second-best one limits it."""
    if len(members) == 2:
        return rate(*members)
    return min(sorted((rate(a, b) for b in members if b != a), reverse=True)[1] for a in members)


def _has_ring(members: Sequence[int], edges: Collection[tuple[int, int]]) -> bool:
    """Tell whether a Hamiltonian cycle uses only these edges, in 2^members steps.

    Bit sets of the members but the first: `ends[visited]` holds where a path from the first through `visited` can end.
    """
    first, *rest = members
    near = [sum(1 << j for j, b in enumerate(rest) if (a, b) in edges) for a in rest]
    home = sum(1 << j for j, b in enumerate(rest) if (first, b) in edges)
    ends = [0] * (1 << len(rest))
    for j in range(len(rest)):
        ends[1 << j] = home & 1 << j
    for visited, reached in enumerate(ends):
        for j, neighbours in enumerate(near):
            if neighbours & reached and not visited >> j & 1:
                ends[visited | 1 << j] |= 1 << j
    return bool(ends[-1] & home)
