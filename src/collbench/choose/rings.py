"""Rings through sets of devices: how many a mesh of NVLinks has room for, the fastest one (method/choosing.md 3)."""

from __future__ import annotations

import functools
from itertools import combinations, permutations

import numpy as np
from numpy.typing import NDArray

# How many rings a mesh of NVLinks has room for: arc-disjoint directed Hamiltonian cycles (docs/method/choosing.md 3).
#
# A capacity matrix holds for [src, dst] the NVLinks (whole numbers) or the GB/s of one direction, 0 if there is
# none.

Capacities = NDArray[np.float64]
_Arcs = NDArray[np.intp]

# The 7! = 5,040 rings of eight are listed quickly; the 8! = 40,320 of nine are not.
MOST_LISTED = 8
# 2^15 cuts of 16 members; beyond, only the cuts around single members are looked at.
_MOST_CUT = 16
# Each takes a tenth of a millisecond. Twenty find all rings of every set of a DGX-1V, of all full meshes of up to eight
# and of 200 random ones, compared with linear programs.
_TRIES = 20
_ROUNDING = 1e-6


@functools.cache
def _all_rings(k: int) -> _Arcs:
    """Return every directed Hamiltonian cycle of k members as its arcs src·k + dst, shape ((k−1)!, k)."""
    orders = np.array([(0, *rest) for rest in permutations(range(1, k))], dtype=np.intp)
    return orders * k + np.roll(orders, -1, axis=1)


def _rings(capacities: Capacities) -> _Arcs:
    """Return the rings all of whose arcs have capacity."""
    arcs = _all_rings(len(capacities))
    return arcs[(capacities.ravel()[arcs] > 0).all(axis=1)]


@functools.cache
def _sides(k: int) -> NDArray[np.float64]:
    """Return every way to cut k members in two, as rows of 0 and 1; the last member stays on side 0."""
    return np.array([[cut >> v & 1 for v in range(k)] for cut in range(1, 1 << (k - 1))], dtype=float)


def cut_bound(capacities: Capacities) -> float:
    """Return the least capacity out of and into any part of the members: no packing of rings exceeds it."""
    if len(capacities) > _MOST_CUT:
        return float(min(capacities.sum(axis=0).min(), capacities.sum(axis=1).min()))
    part = _sides(len(capacities))
    out = ((part @ capacities) * (1 - part)).sum(axis=1)
    into = ((part @ capacities.T) * (1 - part)).sum(axis=1)
    return float(min(out.min(), into.min()))


def most_rings(links: Capacities) -> int:
    """Return how many directed rings fit concurrently if each takes one whole link of every hop.

    Up to eight members it is a packing that exists; beyond, the cut bound, which is never less.
    """
    bound = int(cut_bound(links) + _ROUNDING)
    if bound == 0 or len(links) < 2:
        return 0
    return _greedy(_rings(links), links, bound) if len(links) <= MOST_LISTED else bound


def _greedy(arcs: _Arcs, links: Capacities, bound: int) -> int:
    """Return the most rings, up to `bound`, found in some tries that each take the least contended ring repeatedly.

    An arc's contention is the number of rings that could use it, over its links. The first two tries take the least
    contended ring, the others a random one of low contention (seeded, so that answers are reproducible). Every second
    try also takes each ring's reverse: NVLinks run both ways, so undirected rings are often the answer.
    """
    random = np.random.default_rng(0)
    best = 0
    for attempt in range(_TRIES):
        left, rings, fitting = links.ravel().copy(), 0, arcs
        while len(fitting := fitting[(left[fitting] >= 1).all(axis=1)]):
            contention = np.bincount(fitting.ravel(), minlength=left.size) / np.maximum(left, 1)
            blur = random.uniform(1.0, 1.3, len(fitting)) if attempt > 1 else 1.0
            index = np.argmin(contention[fitting].sum(axis=1) * blur)
            rings += _taken(fitting[index], left, twice=attempt % 2 == 1)
        best = max(best, rings)
        if best >= bound:
            break
    return best


def _taken(ring: _Arcs, left: Capacities, *, twice: bool) -> int:
    """Take a ring from what is left, with `twice` also its reverse if that fits; return how many were taken."""
    left[ring] -= 1
    back = ring % len(ring) * len(ring) + ring // len(ring)
    if not twice or left[back].min() < 1:
        return 1
    left[back] -= 1
    return 2


# The best ring through a set of GPUs, by its slowest hop: what NCCL runs if no packing of NVLinks is possible.

Rates = NDArray[np.float64]
Sets = NDArray[np.intp]

# The table takes 2^n · n values: 8 MB for 16 devices, which is the most that is searched exactly
# (method/choosing.md 4).
MOST_MEMBERS = 16


def all_sets(n: int, k: int) -> Sets:
    """Return every set of k of n positions, shape (sets, k), in lexicographic order."""
    return np.array(list(combinations(range(n), k)), dtype=np.intp).reshape(-1, k)


def masks(sets: Sets) -> NDArray[np.int64]:
    """Return each set as the bits of a number, shape (sets,)."""
    return np.asarray((1 << sets.astype(np.int64)).sum(axis=1), dtype=np.int64)


def ring_table(rates: Rates, k: int) -> Rates:
    """Return for each set of k devices, as a bit mask, the slowest hop of the directed ring that makes it fastest.

    `rates[src, dst]` is directed, 0 if there is no hop; a set without a ring has 0, and so have sets of another
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


def chain_table(rates: Rates, k: int) -> Rates:
    """Return for each set of k devices, as a bit mask, the slowest hop of the chain that makes it fastest; else 0.

    A chain is a ring through one more device, which joins its ends.
    """
    closed = np.full((len(rates) + 1, len(rates) + 1), np.inf)
    closed[1:, 1:] = rates
    return ring_table(closed, k + 1)[1::2]


def best_ring(rates: Rates) -> float:
    """Return the slowest hop of the fastest directed ring through all devices of `rates`, in its unit.

    Exact up to 16; beyond, `ring_bound`.
    """
    n = len(rates)
    if n < 2:
        raise ValueError("a ring needs two members")
    return float(ring_table(rates, n)[-1]) if n <= MOST_MEMBERS else ring_bound(rates)


def ring_bound(rates: Rates) -> float:
    """Return an upper bound of a ring's slowest hop: a ring enters and leaves each device and connects all.

    A tree of switches reaches the bound.
    """
    n = len(rates)
    bound = min(rates.max(axis=1).min(), rates.max(axis=0).min())
    if n > 2:  # its two hops lead to two others
        bound = min(bound, np.partition(np.maximum(rates, rates.T), -2, axis=1)[:, -2].min())
    best = np.maximum(rates, rates.T)[0].copy()  # Prim's tree, grown from the first device by the fastest hop
    best[0] = -1.0
    for _ in range(n - 1):
        index = int(np.argmax(best))
        bound = min(bound, best[index])
        best = np.where(best < 0, best, np.maximum(best, np.maximum(rates[index], rates[:, index])))
        best[index] = -1.0
    return float(bound)
