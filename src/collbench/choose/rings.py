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

# The 7! = 5,040 rings of eight are listed quickly; the 8! = 40,320 of nine make every linear program slow.
MOST_LISTED = 8
# 2^15 cuts of 16 members; beyond, only the cuts around single members are looked at.
_MOST_CUT = 16
# Greedy tries (0.1 ms each) before a linear program (4 ms) is asked whether there can be more rings, and after it. With
# the 200 no ring was missed in 40 meshes of seven and eight made to be hard, which a whole-number program (up to a
# second each) solved for comparison; nine of them could not reach the linear program's bound.
_FEW_TRIES, _MANY_TRIES = 8, 200
# Steps of the search for one ring among more than eight members; a missed ring lowers the lower bound.
_STEPS = 2000
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

    Always a packing that exists. Beyond eight members it may not be the largest.
    """
    bound = int(cut_bound(links) + _ROUNDING)
    if bound == 0 or len(links) < 2:
        return 0
    if len(links) > MOST_LISTED:
        return _count_one_by_one(links, bound)
    arcs = _rings(links)
    if not len(arcs):
        return 0
    rings = _greedy(arcs, links, bound, _FEW_TRIES)
    if rings < bound:
        bound = min(bound, int(_fractional(arcs, links) + _ROUNDING))
        rings = max(rings, _greedy(arcs, links, bound, _MANY_TRIES))
    return rings


def fractional_rings(capacities: Capacities) -> float:
    """Return the highest total rate of rings that may each use any share of their hops, in the capacities' unit.

    Exact for up to eight members; beyond, the cut bound, which is never less.
    """
    if len(capacities) > MOST_LISTED:
        return cut_bound(capacities)
    arcs = _rings(capacities)
    return _fractional(arcs, capacities) if len(arcs) else 0.0


def _greedy(arcs: _Arcs, links: Capacities, bound: int, tries: int) -> int:
    """Return the most rings, up to `bound`, found in some tries that each take the least contended ring repeatedly.

    An arc's contention is the number of rings that could use it, over its links. The first two tries take the least
    contended ring, the others a random one of low contention (seeded, so that answers are reproducible). Every second
    try also takes each ring's reverse: NVLinks run both ways, so undirected rings are often the answer.
    """
    random = np.random.default_rng(0)
    best = 0
    for attempt in range(tries):
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


def _fractional(arcs: _Arcs, capacities: Capacities) -> float:
    from scipy.optimize import linprog  # late: a third of a second

    use = np.zeros((capacities.size, len(arcs)))  # which arc (row) each ring (column) uses
    use[arcs.T, np.arange(len(arcs))] = 1
    used = np.flatnonzero(use.any(axis=1))
    solved = linprog(-np.ones(len(arcs)), A_ub=use[used], b_ub=capacities.ravel()[used], method="highs")
    return float(np.sum(np.asarray(solved.x)))


def _count_one_by_one(links: Capacities, bound: int) -> int:
    """Return how many rings a depth-first search finds one after the other, up to the bound."""
    left = [[int(value + _ROUNDING) for value in row] for row in links]
    for rings in range(bound):
        ring = _one_ring(left)
        if not ring:
            return rings
        for here, there in zip(ring, [*ring[1:], ring[0]], strict=True):
            left[here][there] -= 1
    return bound


def _one_ring(left: list[list[int]]) -> list[int]:
    """Return a ring over links that are left, as its members in order; empty if the search gave up.

    It goes first to where most links are left, among these to the member with the fewest ways on (Warnsdorff's rule).
    """
    k = len(left)
    path, steps = [0], 0
    choices = [_next_choices(left, path)]
    while path and steps < _STEPS:
        steps += 1
        if len(path) == k and left[path[-1]][0]:
            return path
        if choices[-1]:
            path.append(choices[-1].pop())
            choices.append(_next_choices(left, path))
        else:
            path.pop()
            choices.pop()
    return []


def _next_choices(left: list[list[int]], path: list[int]) -> list[int]:
    """Return the members that can come next, the best last."""
    here, rest = path[-1], set(range(len(left))) - set(path)
    onward = {there: sum(left[there][after] > 0 for after in rest) for there in rest if left[here][there]}
    return sorted(onward, key=lambda there: (left[here][there], -onward[there], there))


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
