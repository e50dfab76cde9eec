"""Rings through a set of devices, and the all-reduce busbw that it is predicted to reach (method/choosing.md 3)."""

from __future__ import annotations

import functools
from dataclasses import replace
from itertools import combinations, permutations

import numpy as np
from numpy.typing import NDArray

from collbench.choose.choice import Band, How
from collbench.choose.wiring import CROWDED, Rates, Sets, Values, Wiring, uplink_limits
from collbench.model.operations import Operation

# How many rings a mesh of NVLinks has room for: arc-disjoint directed Hamiltonian cycles (docs/method/choosing.md 3).
#
# A capacity matrix holds for [src, dst] the NVLinks (whole numbers) or the GB/s of one direction, 0 if there is
# none.

_Arcs = NDArray[np.intp]

# The 7! = 5,040 rings of eight are listed quickly; the 8! = 40,320 of nine are not.
MAX_LISTED = 8
# 2^15 cuts of 16 members; beyond, only the cuts around single members are looked at.
_MAX_CUT = 16
# Each takes a tenth of a millisecond. Twenty find all rings of every set of a DGX-1V, of all full meshes of up to eight
# and of 200 random ones, compared with linear programs.
_TRIES = 20
_ROUNDING = 1e-6


@functools.cache
def _all_rings(k: int) -> _Arcs:
    """Return every directed Hamiltonian cycle of k members as its arcs src·k + dst, shape ((k−1)!, k)."""
    orders = np.array([(0, *rest) for rest in permutations(range(1, k))], dtype=np.intp)
    return orders * k + np.roll(orders, -1, axis=1)


@functools.cache
def _sides(k: int) -> NDArray[np.float64]:
    """Return every way to cut k members in two, as rows of 0 and 1; the last member stays on side 0."""
    return np.array([[cut >> v & 1 for v in range(k)] for cut in range(1, 1 << (k - 1))], dtype=float)


def cut_bound(capacities: Rates) -> float:
    """Return the least capacity out of and into any part of the members: no packing of rings exceeds it."""
    if len(capacities) > _MAX_CUT:
        return float(min(capacities.sum(axis=0).min(), capacities.sum(axis=1).min()))
    part = _sides(len(capacities))
    out = ((part @ capacities) * (1 - part)).sum(axis=1)
    into = ((part @ capacities.T) * (1 - part)).sum(axis=1)
    return float(min(out.min(), into.min()))


def most_rings(links: Rates) -> int:
    """Return how many directed rings fit concurrently if each takes one whole link of every hop.

    Up to eight members it is a packing that exists; beyond, the cut bound, which is never less.
    """
    bound = int(cut_bound(links) + _ROUNDING)
    if bound == 0 or len(links) < 2:
        return 0
    return _greedy(links, bound) if len(links) <= MAX_LISTED else bound


def _greedy(links: Rates, bound: int) -> int:
    """Return the most rings, up to `bound`, found in some tries that each take the least contended ring repeatedly.

    An arc's contention is the number of rings that could use it, over its links. The first two tries take the least
    contended ring, the others a random one of low contention (seeded, so that answers are reproducible). Every second
    try also takes each ring's reverse: NVLinks run both ways, so undirected rings are often the answer.
    """
    random, arcs = np.random.default_rng(0), _all_rings(len(links))
    arcs = arcs[(links.ravel()[arcs] >= 1).all(axis=1)]
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


def _taken(ring: _Arcs, left: Rates, *, twice: bool) -> int:
    """Take a ring from what is left, with `twice` also its reverse if that fits; return how many were taken."""
    left[ring] -= 1
    back = ring % len(ring) * len(ring) + ring // len(ring)
    if not twice or left[back].min() < 1:
        return 1
    left[back] -= 1
    return 2


# The best ring through a set of GPUs, by its slowest hop: what NCCL runs if no packing of NVLinks is possible.

# The table takes 2^n · n values: 8 MB for 16 devices, which is the most that is searched exactly
# (method/choosing.md 4).
MAX_MEMBERS = 16


def all_sets(n: int, k: int) -> Sets:
    """Return every set of k of n positions, shape (sets, k), in lexicographic order."""
    return np.array(list(combinations(range(n), k)), dtype=np.intp).reshape(-1, k)


def masks(sets: Sets) -> NDArray[np.int64]:
    """Return each set as the bits of a number, shape (sets,)."""
    return np.asarray((1 << sets.astype(np.int64)).sum(axis=1), dtype=np.int64)


def ring_table(rates: Rates, k: int) -> Rates:
    """Return for each set of k devices, as a bit mask, the slowest hop of the directed ring that makes it fastest.

    `rates[src, dst]` is directed, 0 if there is no hop; a set without a ring, or of another size, has 0. Exact, by the
    Held-Karp recursion with (max, min): best[set, end] over all paths from the set's lowest member.
    """
    n = len(rates)
    if n > MAX_MEMBERS:
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
    return float(ring_table(rates, len(rates))[-1]) if len(rates) <= MAX_MEMBERS else ring_bound(rates)


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


# What a set is predicted to reach.

# All-reduce busbw from 64 MiB on over NVLinks, as a multiple of that on two ranks: 1.06 to 1.24 on three and four ranks
# of published and kept machines, 0.92 to 1.56 on more; beyond 1.25 the switch reduces (method/choosing.md 3).
FEW_RANKS = 4
_MIN_OF_PAIRS, MIN_OF_MANY = 0.95, 0.85
MAX_OF_PAIRS, MAX_OF_MANY_SWITCHED = 1.25, 1.6
# A ring over PCIe keeps at least this share of its slowest hop: 0.54 was published for machines whose pairs hardly slow
# each other. With more than so many hops through the host, it is the share of what crowded hops keep.
_FEW_HOPS = 3
MIN_OVER_PCIE = 0.5


def predict(wired: Wiring) -> Band:
    """Return the band of one set, given as the wiring of its members, in GB/s: what it claims to reach.

    Its width is the uncertainty of the step from pairs to more ranks, the same for all sets of one size.
    """
    band, ranks = by_pairs(wired), len(wired)
    least, hi = 1.0, band.hi
    if band.how is How.PCIE_RING and band.lo:
        crowded = band.hops > _FEW_HOPS  # `least` is then a share of what crowded hops keep
        every = np.arange(ranks)[None, :]
        hop = min(band.hi, float(slowest_hop(wired, every)[0]))
        least = MIN_OVER_PCIE if crowded else min(1.0, MIN_OVER_PCIE * hop / band.lo)
        tree = float(over_tree(wired, every)[0])
        if tree > hi:
            return replace(band, lo=band.lo * least, hi=tree, how=How.TREE)
    elif band.how in (How.NVSWITCH, How.NVLINK_RINGS):
        least, most, limit = _MIN_OF_PAIRS, MAX_OF_PAIRS, ceiling(wired)
        if ranks > FEW_RANKS:
            least = MIN_OF_MANY
            if band.how is How.NVSWITCH:
                # Each device may then send its message once.
                most, limit = MAX_OF_MANY_SWITCHED, limit * Operation.ALLREDUCE.busbw_factor(ranks)
        hi = max(hi, min(hi * most, limit))
    return replace(band, lo=band.lo * least, hi=hi)


def by_pairs(wired: Wiring) -> Band:
    """Return the band of one set as if its ranks reached what pairs do: it orders sets of one size.

    If NVLinks alone do not make a ring through the set, its ring is over PCIe: no packing mixes the two. If pairs were
    not measured, `lo` is what the others guarantee, and `hi` takes each as fast as the fastest pair of its kind.
    """
    least = _predict(wired)
    if wired.labelled is not None and (wired.labelled.links != wired.links).any():
        other = _predict(wired.labelled)
        least = replace(least, lo=min(least.lo, other.lo), hi=max(least.hi, other.hi))
    if wired.filled is None or wired.broken.any():
        return least
    filled = _predict(wired.filled)
    unmeasured = int(np.triu(wired.missing).sum())
    return Band(min(least.lo, filled.hi), filled.hi, filled.how, filled.hops, unmeasured, filled.rings)


def _predict(wired: Wiring) -> Band:
    if wired.broken.any():
        return Band(0.0, 0.0, How.BROKEN)
    if len(wired) == 2:
        rate = float(min(wired.rates[0, 1], wired.rates[1, 0]))
        return Band(rate, rate, How.PAIR)
    if on_one_plane(wired):
        slowest = float(wired.rates[~np.eye(len(wired), dtype=bool)].min())
        return Band(slowest, max(slowest, best_ring(wired.rates)), How.NVSWITCH)
    rings, packed_gbs = packing(wired.nvlink, wired.links)
    lo, hi, hops = (float(values[0]) for values in over_pcie(wired, np.arange(len(wired))[None, :]))
    if rings:
        port = float(wired.port.min())
        high = min(cut_bound(wired.nvlink), port)
        return Band(min(packed_gbs, port), max(high, hi), How.NVLINK_RINGS, rings=rings)
    return Band(lo, hi, How.PCIE_RING, hops)


def on_one_plane(wired: Wiring) -> bool:
    """Return whether one NVSwitch joins all devices."""
    return bool(wired.plane[0] >= 0 and (wired.plane == wired.plane[0]).all())


def ceiling(wired: Wiring) -> float:
    """Return what the member with the narrowest port sends to the others at most, GB/s; ∞ if that is not known.

    Through a switch a device can send at its port's rate to any other device; over direct links it sends to each over
    their own links, and without NVLinks at its slot's rate.
    """
    if wired.filled is not None:
        return ceiling(wired.filled)
    switched, ports = on_one_plane(wired), []
    for position, links in enumerate(wired.links):
        others = np.arange(len(wired)) != position
        joined, apart = (wired.capacity[position, others & used] for used in (links > 0, links == 0))
        nvlink = joined.max(initial=0.0) if switched else joined.sum()
        ports.append(max(min(nvlink, wired.port[position]), apart.max(initial=0.0)))
    return float(min(ports))


def over_pcie(wired: Wiring, sets: Sets) -> tuple[Values, Values, Values]:
    """Return for each set both ends of the band of its ring of single hops, GB/s, and its hops through the host.

    Some hops may use NVLinks, which never makes a ring faster than its slowest hop over PCIe.
    """
    limits, hops = uplink_limits(sets, wired.uplinks, wired.links)
    hi = np.minimum(_best_rings(wired.unshared, sets), limits)
    share = lowest_pair(wired.share, sets)
    # A pair loads the host with two hops. If no check loaded it with more, more may have to share what two have.
    kept = np.where(share > CROWDED, share, np.minimum(share, 2 / np.maximum(hops, 1)))
    return np.minimum(hi, slowest_hop(wired, sets)) * kept, hi, hops


def over_pcie_bound(wired: Wiring, sets: Sets) -> Values:
    """Return for each set what no ring of single hops exceeds, GB/s.

    The two directions of a pair may share a host bridge, its memory or a link, but a ring's hop goes one way: it may be
    twice as fast, though not faster than each end is with any other device over PCIe.
    """
    rates = np.maximum(wired.unshared, wired.rates)
    over = np.where(wired.links > 0, 0.0, np.minimum(rates, rates.T))
    ends = np.minimum.outer(over.max(axis=1), over.max(axis=1))
    hops = np.where(wired.links > 0, rates, np.maximum(rates, np.minimum(2 * rates, ends)))
    limits, _ = uplink_limits(sets, wired.uplinks, wired.links)
    return np.minimum(_best_rings(hops, sets), limits)


def _best_rings(rates: Rates, sets: Sets) -> Values:
    """Return the highest bottleneck of any ring through each set; above 16 members `rates` are the only set's."""
    if sets.shape[1] > MAX_MEMBERS:
        return np.full(len(sets), best_ring(rates))
    return ring_table(rates, sets.shape[1])[masks(sets)]


def slowest_hop(wired: Wiring, sets: Sets) -> Values:
    """Return the slowest hop between any two of each set: NCCL's ring may use it though the best ring does not."""
    return lowest_pair((wired.filled or wired).unshared, sets)


def over_tree(wired: Wiring, sets: Sets) -> Values:
    """Return the most that each set's all-reduce reaches if NCCL runs its tree over NVLinks, GB/s; 0 if it cannot.

    Within a node the tree is a chain: the whole message goes up and down each hop. Only a mesh has chains through more
    than two devices.
    """
    nvlink, k = (wired.filled or wired).nvlink, sets.shape[1]
    slower = np.minimum(nvlink, nvlink.T)
    if k == 2 or len(slower) >= MAX_MEMBERS or (slower > 0).sum(axis=1).max() < 2:
        return np.zeros(len(sets))
    return np.asarray(chain_table(slower, k)[masks(sets)] * Operation.ALLREDUCE.busbw_factor(k))


def lowest_pair(values: Values, sets: Sets) -> Values:
    """Return the lowest value of any pair within each set, in either direction."""
    low = np.minimum(values, values.T)
    lowest = np.full(len(sets), np.inf)
    for i, j in combinations(range(sets.shape[1]), 2):
        np.minimum(lowest, low[sets[:, i], sets[:, j]], out=lowest)
    return lowest


def packing(nvlink: Values, links: Values) -> tuple[int, float]:
    """Return how many rings NCCL packs over NVLinks of these rates (GB/s, directed), and what they carry at least.

    NCCL knows how many links there are, not what each carries, and gives all rings an equal share of the data: the
    slowest link that one of them uses slows all. So it is assumed that they use the set's slowest. Of more than eight
    members only one ring is sure.
    """
    used = links > 0
    rings = most_rings(links)
    sure = rings if len(links) <= MAX_LISTED else min(rings, 1)
    return rings, sure * float((nvlink[used] / links[used]).min()) if rings else 0.0
