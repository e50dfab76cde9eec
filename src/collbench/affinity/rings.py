"""The best ring through a set of GPUs: what NCCL will run, so what a set is worth (METHOD.md §6)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

Rate = Callable[[int, int], float]


def bottleneck_ring(members: Sequence[int], rate: Rate) -> float:
    """Return the slowest edge of the ring that makes it fastest, in `rate`'s unit; two members are their pair.

    `rate(a, b)` is symmetric. Exact; time grows with the number of distinct rates that lie between the bounds.
    """
    if len(members) < 2:
        raise ValueError("a ring needs two members")
    if len(members) == 2:
        return rate(*members)
    rates = {(a, b): rate(a, b) for a in members for b in members if a != b}
    # Every member needs two edges, so no ring beats the worst member's second-best edge.
    bound = min(sorted((rates[a, b] for b in members if b != a), reverse=True)[1] for a in members)
    thresholds = sorted({value for value in rates.values() if value <= bound}, reverse=True)
    # The complete graph has a ring, so the lowest threshold always does.
    return next(limit for limit in thresholds if _has_ring(members, {edge for edge in rates if rates[edge] >= limit}))


def ring_bound(members: Sequence[int], rate: Rate) -> float:
    """Return a cheap upper bound of bottleneck_ring, for pruning."""
    if len(members) == 2:
        return rate(*members)
    return min(sorted((rate(a, b) for b in members if b != a), reverse=True)[1] for a in members)


def _has_ring(members: Sequence[int], edges: Collection[tuple[int, int]]) -> bool:
    """Tell whether a Hamiltonian cycle uses only these edges: depth first, back to the first member."""
    first, rest = members[0], frozenset(members[1:])

    def extend(last: int, left: frozenset[int]) -> bool:
        if not left:
            return (last, first) in edges
        return any((last, following) in edges and extend(following, left - {following}) for following in left)

    return extend(first, rest)
