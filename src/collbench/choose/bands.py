"""The all-reduce busbw that a set of devices is predicted to reach, as a band (docs/method/choosing.md 3)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from collbench.choose.choice import Band, How
from collbench.choose.rings import (
    MOST_MEMBERS,
    Sets,
    best_ring,
    chain_table,
    cut_bound,
    masks,
    most_rings,
    ring_table,
)
from collbench.choose.wiring import CROWDED, Wiring, uplink_limits
from collbench.model.operations import Operation

Values = NDArray[np.float64]
# What NCCL's all-reduces from 64 MiB on reach over NVLinks on three and four ranks of their busbw on two: 1.06 to
# 1.24 on published and kept machines. On more it is 0.92 to 1.56: beyond 1.25 the switch reduces
# (method/choosing.md 3).
FEW_RANKS = 4
_LEAST_OF_PAIRS, _LEAST_OF_MANY = 0.95, 0.85
_MOST_OF_PAIRS, _MOST_OF_MANY_SWITCHED = 1.25, 1.6
# What a ring over PCIe is sure to keep of its slowest hop: 0.54 was published, of machines whose pairs hardly slow each
# other. With more hops through the host than this, that much of what crowded hops keep.
_FEW_HOPS = 3
_LEAST_OVER_PCIE = 0.5


@dataclass(frozen=True, slots=True)
class Packed:
    """Rings that fit on a mesh of NVLinks concurrently: their number and the least of their total rate, GB/s."""

    rings: int
    gbs: float


def predict(wired: Wiring) -> Band:
    """Return the band of one set, given as the wiring of its members, in GB/s: what it claims to reach.

    It is as wide as the step from pairs to more ranks is uncertain, which is the same for all sets of as many devices.
    """
    band, ranks = by_pairs(wired), len(wired)
    least, hi = 1.0, band.hi
    if band.how is How.PCIE_RING and band.lo:
        crowded = band.hops > _FEW_HOPS  # what more ranks keep is a share of that of crowded hops
        every = np.arange(ranks)[None, :]
        hop = min(band.hi, float(slowest_hop(wired, every)[0]))
        least = _LEAST_OVER_PCIE if crowded else min(1.0, _LEAST_OVER_PCIE * hop / band.lo)
        tree = float(over_tree(wired, every)[0])
        if tree > hi:
            return replace(band, lo=band.lo * least, hi=tree, how=How.TREE)
    elif band.how in (How.NVSWITCH, How.NVLINK_RINGS):
        least, most, limit = _LEAST_OF_PAIRS, _MOST_OF_PAIRS, ceiling(wired)
        if ranks > FEW_RANKS:
            least = _LEAST_OF_MANY
            if band.how is How.NVSWITCH:
                # Each device may then send its message once.
                most, limit = _MOST_OF_MANY_SWITCHED, limit * Operation.ALLREDUCE.busbw_factor(ranks)
        hi = max(hi, min(hi * most, limit))
    return replace(band, lo=band.lo * least, hi=hi)


def by_pairs(wired: Wiring) -> Band:
    """Return the band of one set if as many ranks as it has reach what pairs do: it orders sets of as many devices.

    If NVLinks alone do not make a ring through the set, its ring is over PCIe: no packing mixes the two. If pairs were
    not measured, `lo` is what the others guarantee, and `hi` takes each as slow as the slowest pair of its kind.
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
    packed = packing(wired.nvlink, wired.links)
    lo, hi, hops = (float(values[0]) for values in over_pcie(wired, np.arange(len(wired))[None, :]))
    if packed.rings:
        port = float(wired.port.min())
        high = min(cut_bound(wired.nvlink), port)
        return Band(min(packed.gbs, port), max(high, hi), How.NVLINK_RINGS, rings=packed.rings)
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
    k = sets.shape[1]
    limits, hops = uplink_limits(sets, wired.uplinks, wired.links)
    ring = (
        ring_table(wired.unshared, k)[masks(sets)]
        if k <= MOST_MEMBERS
        else np.full(len(sets), best_ring(wired.unshared))
    )
    hi = np.minimum(ring, limits)
    share = lowest_pair(wired.share, sets)
    # A pair loads the host with two hops. If no check loaded it with more, more may have to share what two have.
    kept = np.where(share > CROWDED, share, np.minimum(share, 2 / np.maximum(hops, 1)))
    return np.minimum(hi, slowest_hop(wired, sets)) * kept, hi, hops


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
    if k == 2 or len(slower) >= MOST_MEMBERS or (slower > 0).sum(axis=1).max() < 2:
        return np.zeros(len(sets))
    return np.asarray(chain_table(slower, k)[masks(sets)] * Operation.ALLREDUCE.busbw_factor(k))


def lowest_pair(values: Values, sets: Sets) -> Values:
    """Return the lowest value of any pair within each set, in either direction."""
    low = np.minimum(values, values.T)
    lowest = np.full(len(sets), np.inf)
    for i, j in combinations(range(sets.shape[1]), 2):
        np.minimum(lowest, low[sets[:, i], sets[:, j]], out=lowest)
    return lowest


def packing(nvlink: Values, links: Values) -> Packed:
    """Return the rings that NCCL packs over NVLinks of these rates (GB/s, directed), and what they carry at least.

    NCCL knows how many links there are, not what each carries, and gives all rings an equal share of the data: the
    slowest link that one of them uses slows all. So it is assumed that they use the set's slowest.
    """
    used = links > 0
    rings = most_rings(links)
    return Packed(rings, rings * float((nvlink[used] / links[used]).min()) if rings else 0.0)
