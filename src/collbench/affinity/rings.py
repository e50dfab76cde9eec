"""The best ring through a set of GPUs, by its slowest hop: what NCCL runs where no packing of NVLinks is possible."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Rates = NDArray[np.float64]
Sets = NDArray[np.intp]

# The table takes 2^n · n values: 8 MB for 16 devices, which is the most that is searched exactly (METHOD.md §6).
MOST_MEMBERS = 16


def all_sets(n: int, k: int) -> Sets:
    """Return every set of k of n positions, shape (sets, k), in lexicographic order."""
    return np.array(list(combinations(range(n), k)), dtype=np.intp).reshape(-1, k)


def masks(sets: Sets) -> NDArray[np.int64]:
    """Return each set as the bits of a number, shape (sets,)."""
    return np.asarray((1 << sets.astype(np.int64)).sum(axis=1), dtype=np.int64)


def ring_table(rates: Rates, k: int) -> Rates:
    """Return for each set of k devices, as a bit mask, the slowest hop of the directed ring that makes it fastest.

    `rates[src, dst]` is directed, 0 where there is no hop; a set without a ring has 0, and so have sets of another
    size. Exact, by the Held-Karp recursion with (max, min): best[set, end] over all paths from the set's lowest member.
    """
    n = len(rates)
    if n > MOST_MEMBERS:
        raise ValueError(f"{n} devices are too many for a table over all sets")
    every = np.arange(1 << n)
    size = sum(every >> v & 1 for v in range(n))
    lowest = every & -every
    best = np.zeros((1 << n, n))
    for v in range(n):
        best[1 << v, v] = np.inf
    for count in range(1, k):
        layer = every[size == count]
        for v in range(1, n):
            longer = layer[(layer >> v & 1 == 0) & (lowest[layer] < 1 << v)]
            best[longer | 1 << v, v] = np.minimum(best[longer], rates[:, v]).max(axis=1, initial=0.0)
    table = np.zeros(1 << n)
    full = every[size == k]
    first = np.log2(lowest[full]).astype(np.intp)
    table[full] = np.minimum(best[full], rates[:, first].T).max(axis=1)
    return table


def best_ring(rates: Rates) -> float:
    """Return the slowest hop of the fastest directed ring through all devices of `rates`, in its unit.

    Exact up to 16; beyond, `ring_bound`.
    """
    n = len(rates)
    if n < 2:
        raise ValueError("a ring needs two members")
    return float(ring_table(rates, n)[-1]) if n <= MOST_MEMBERS else ring_bound(rates)


def ring_bound(rates: Rates) -> float:
    """Return what the slowest hop of a ring cannot exceed: each device is entered and left, and all are connected.

    Where rates are those of a tree of switches the bound is reached.
    """
    n = len(rates)
    bound = min(rates.max(axis=1).min(), rates.max(axis=0).min())
    if n > 2:  # its two hops lead to two others
        bound = min(bound, np.partition(np.maximum(rates, rates.T), -2, axis=1)[:, -2].min())
    best = np.maximum(rates, rates.T)[0].copy()  # Prim's tree, grown from the first device by the fastest hop
    best[0] = -1.0
    for _ in range(n - 1):
        place = int(np.argmax(best))
        bound = min(bound, best[place])
        best = np.where(best < 0, best, np.maximum(best, np.maximum(rates[place], rates[:, place])))
        best[place] = -1.0
    return float(bound)
