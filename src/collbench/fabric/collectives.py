"""The true bus bandwidth of NCCL's rings on a set of GPUs, GB/s: what a choice of devices is judged against.

Behind one NVSwitch a ring is as fast as the slowest port and path that it may take. On a mesh of NVLinks NCCL lays as
many rings as it can. Where no ring of NVLinks exists, one ring takes NVLinks and PCIe as they come, and its hops share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from collbench.fabric.model import Fabric, FaultKind
from collbench.fabric.network import Medium, Network
from collbench.fabric.orders import best_order, hops_of
from collbench.fabric.rates import max_min, network_of
from collbench.fabric.rings import best_packing

Members = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rings:
    """What NCCL gets on a set: `limit` GB/s of all rings together before NCCL's `share`, and what a GB/s of it takes.

    `loads` hold only what other sets may use too. `latency_us` is the slowest hop's.
    """

    limit: float
    share: float
    latency_us: float
    loads: Mapping[int, float] = field(default_factory=dict)


def allreduce_busbw(fabric: Fabric, members: Sequence[int]) -> float:
    """Return the busbw in GB/s of a large all-reduce on these GPUs, alone; other collectives reach the same."""
    return truth_of(fabric).busbw(tuple(members))


@lru_cache(maxsize=4)
def truth_of(fabric: Fabric) -> Truth:
    """Return the fabric's true bandwidths; the last few fabrics are kept with what was asked of them."""
    return Truth(fabric)


class Truth:
    """The bus bandwidths of a fabric's sets. Each is computed once: ask one `Truth` for many."""

    def __init__(self, fabric: Fabric) -> None:
        self._network = network_of(fabric)
        engines = fabric.engines
        self._shares = {
            Medium.NVLINK: engines.nccl_nvlink,
            Medium.PCIE: engines.nccl_pcie,
            Medium.STAGED: engines.nccl_staged,
        }
        self._hops = hops_of(self._network, self._shares)
        self._slow = fabric.faults_of(FaultKind.SLOW_COLLECTIVES)
        self._switched = [frozenset(switch.gpus) for switch in fabric.switches]
        self._nvlinked, self._own = _ways(self._network)
        self._alike = _all_alike(self._nvlinked, self._own)
        self._known: dict[Members, Rings] = {}

    def busbw(self, members: Members) -> float:
        """Return the busbw in GB/s of these GPUs, alone."""
        return self.concurrent([members])[0]

    def concurrent(self, groups: Sequence[Members]) -> list[float]:
        """Return each set's busbw in GB/s while all of them run."""
        rings = [self.rings(members) for members in groups]
        capacity, loads = self._network.capacity, [found.loads for found in rings]
        rates = max_min(capacity, loads, [found.limit for found in rings])
        return [rate * found.share for rate, found in zip(rates, rings, strict=True)]

    def rings(self, members: Members) -> Rings:
        """Return what NCCL finds on these GPUs; the order in which they are named does not matter."""
        key = tuple(sorted(members))
        if key not in self._known:
            self._known[key] = self._slowed(key, self._find(key))
        return self._known[key]

    def _find(self, members: Members) -> Rings:
        inside = frozenset(members)
        if self._is_switched(inside):
            return self._on_a_switch(members)
        packed = best_packing(members, self._network.bundles) if self._network.bundles else 0.0
        mixed = self._around(members)
        if packed * self._shares[Medium.NVLINK] < mixed.limit * mixed.share:
            return mixed
        bundles = [link for link in permutations(members, 2) if link in self._network.bundles]
        latency = max(self._network.collective[link].latency_us for link in bundles)
        return Rings(packed, self._shares[Medium.NVLINK], latency, self._bottlenecks(inside))

    def _is_switched(self, inside: frozenset[int]) -> bool:
        if not any(inside <= switch for switch in self._switched):
            return False
        return self._alike is not None or bool(self._nvlinked[np.ix_(tuple(inside), tuple(inside))].all())

    def _on_a_switch(self, members: Members) -> Rings:
        """All rings of NCCL's take one order, which knows of no slow path: the slowest that it may meet counts."""
        limit = self._alike or float(self._own[np.ix_(members, members)].min())
        latency = self._network.collective[members[0], members[1]].latency_us
        return Rings(limit, self._shares[Medium.NVLINK], latency, self._bottlenecks(frozenset(members)))

    def _bottlenecks(self, inside: frozenset[int]) -> dict[int, float]:
        """Return the bottlenecks that hops among these GPUs cross, each as often as there are hops."""
        hops = {place: len(inside & gpus) for place, gpus in self._network.shared}
        return {place: float(count) for place, count in hops.items() if count > 1}

    def _around(self, members: Members) -> Rings:
        """Return the best ring of single hops, with what its hops take of each resource together."""
        order, rate = best_order(self._network, self._hops, members)
        routes = [self._network.collective[link] for link in zip(order, [*order[1:], order[0]], strict=True)]
        slowest = min((route.medium for route in routes), key=lambda medium: self._shares[medium])
        share = self._shares[slowest]
        loads: dict[int, float] = {}
        for route in routes:
            for place in route.resources:
                loads[place] = loads.get(place, 0.0) + share / self._shares[route.medium]
        latency = max(route.latency_us for route in routes)
        return Rings(min(rate / share, math.inf), share, latency, loads)

    def _slowed(self, members: Members, rings: Rings) -> Rings:
        left = math.prod(fault.factor for fault in self._slow if fault.covers(*members))
        return Rings(rings.limit * left, rings.share, rings.latency_us, rings.loads) if left != 1 else rings


def _ways(network: Network) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Return for each (src, dst) whether collectives go by NVLink, and what the way carries but for bottlenecks, GB/s.

    The diagonals are True and infinite: they limit nothing.
    """
    count, shared = len(network.fabric.gpus), {place for place, _ in network.shared}
    nvlinked, own = np.ones((count, count), dtype=bool), np.full((count, count), np.inf)
    for link, route in network.collective.items():
        nvlinked[link] = route.medium is Medium.NVLINK
        own[link] = min(network.capacity[place] for place in route.resources if place not in shared)
    return nvlinked, own


def _all_alike(nvlinked: NDArray[np.bool_], own: NDArray[np.float64]) -> float | None:
    """Return the one rate of all ways where all are NVLinks, GB/s: a healthy switch needs no look at each set."""
    rates = own[np.isfinite(own)]
    return float(rates[0]) if nvlinked.all() and (rates == rates[0]).all() else None
