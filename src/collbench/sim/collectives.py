"""The true bus bandwidth of NCCL's rings on simulated GPUs, GB/s: what a choice of devices is judged against."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import permutations
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from collbench.model.run import Members
from collbench.sim.fabrics import Fabric, FaultKind
from collbench.sim.network import Medium, Network, max_min, network_of

# How many rings fit on a mesh of NVLinks: arc-disjoint directed Hamiltonian cycles, weighted by their rate. A ring runs
# at its slowest link; no more rings can use a direction of a bundle than it has links.

Arc = tuple[int, int]
Links = Mapping[Arc, tuple[int, float]]
Cycle = tuple[Arc, ...]

# Up to here all cycles are listed (7! = 5040 at most) and the packing is exact; larger meshes are searched.
_EXACT_GPUS = 8
_TRIES = 12  # of the greedy search; it met the cut bound within a few on every mesh that we saw
_ENOUGH = 1 - 1e-9
# Steps of one search for a cycle, for meshes too large to list.
_MAX_STEPS = 20_000


def best_packing(members: Sequence[int], links: Links) -> float:
    """Return the GB/s of the best set of rings through all members, 0.0 if there is no ring.

    `links` are (how many, GB/s of each) by direction. Exact up to 8 members; above, a search that may fall short.
    """
    inside = {arc: bundle for arc, bundle in links.items() if arc[0] in members and arc[1] in members and bundle[0] > 0}
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
    packed = _greedy(members, inside, cycles, bound)
    if packed >= bound * _ENOUGH or cycles is None:
        return packed
    return max(packed, _exact(cycles, inside))


def hamiltonian_cycles(members: Sequence[int], arcs: Links) -> list[Cycle]:
    """Return every directed cycle that passes each member once."""
    onward = {a: [b for b in members if (a, b) in arcs] for a in members}
    first = members[0]
    cycles: list[Cycle] = []
    path = [first]

    def extend() -> None:
        if len(path) == len(members):
            if (path[-1], first) in arcs:
                cycles.append(tuple(zip(path, [*path[1:], first], strict=True)))
            return
        for after in onward[path[-1]]:
            if after not in path:
                path.append(after)
                extend()
                path.pop()

    extend()
    return cycles


def _cut_bound(members: Sequence[int], arcs: Links) -> float:
    """Return the least GB/s that leaves or enters any part of the members: each ring crosses each cut both ways."""
    index = {member: number for number, member in enumerate(members)}
    weight = np.zeros((len(members), len(members)))
    for (a, b), (count, rate) in arcs.items():
        weight[index[a], index[b]] = count * rate
    if len(members) > _EXACT_GPUS:
        return float(min(weight.sum(axis=0).min(), weight.sum(axis=1).min()))
    numbers = np.arange(1, 2 ** len(members) - 1)
    parts = (numbers[:, None] >> np.arange(len(members)) & 1).astype(float)  # every one but none and all, 1 for inside
    leaving = np.einsum("pi,ij,pj->p", parts, weight, 1 - parts)
    return float(leaving.min())  # a part's complement is a part too, so both directions are in


def _greedy(members: Sequence[int], arcs: Links, cycles: list[Cycle] | None, bound: float) -> float:
    """Return the best of a few packings, each by taking the ring that leaves most until there is none."""
    rng = np.random.default_rng(0)  # a search must always find the same
    best = 0.0
    for _ in range(_TRIES):
        left = {arc: count for arc, (count, _) in arcs.items()}
        total = 0.0
        order = None if cycles is None else [cycles[index] for index in rng.permutation(len(cycles))]
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
    """Return the fastest ring; of equal ones, the one whose tightest arcs have the most links left."""
    return max(
        cycles,
        key=lambda ring: (min(arcs[arc][1] for arc in ring), sum(1 - 1 / left[arc] for arc in ring)),
        default=None,
    )


def _some_cycle(members: Sequence[int], left: Mapping[Arc, int], rng: np.random.Generator) -> Cycle | None:
    """Return a ring found by trying the next members with the most links first, None if the steps run out."""
    first = members[0]
    path, steps = [first], 0

    def extend() -> bool:
        nonlocal steps
        steps += 1
        if steps > _MAX_STEPS:
            return False
        if len(path) == len(members):
            return left.get((path[-1], first), 0) > 0
        choices = [b for b in members if b not in path and left.get((path[-1], b), 0) > 0]
        for after in sorted(choices, key=lambda b: (-left[path[-1], b], rng.random())):
            path.append(after)
            if extend():
                return True
            path.pop()
        return False

    return tuple(zip(path, [*path[1:], first], strict=True)) if extend() else None


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


# In which order a ring that leaves the NVLinks should pass the GPUs: neighbors in the PCIe tree one after another. A
# ring that passes each branch of the tree in one go crosses each uplink once each way, which no order can better.
# NVLinks, and links with a limit of their own, make other orders worth a search.

Order = tuple[int, ...]
Figures: TypeAlias = NDArray[np.float64]
_FEW_GPUS = 5  # 4! = 24 orders: no search is quicker than trying them
_EXACT_ORDER_GPUS = 8  # 7! = 5040 orders, where 2-opt from a few starts falls short of the bound
_STARTS = 3


@dataclass(frozen=True, slots=True)
class Hops:
    """The hops of collectives on a network, as arrays by (src, dst), so that many orders are evaluated together."""

    capacity: Figures  # GB/s by resource
    loads: Figures  # [src, dst, resource]: 1 for a resource that the hop uses, else 0
    shares: Figures  # of a path's rate that NCCL gets
    alone: Figures  # GB/s of a hop that has its path to itself


def hops_of(network: Network, shares: Mapping[Medium, float]) -> Hops:
    """Return the hops of a network as arrays, so that many orders are evaluated together."""
    count, routes = len(network.fabric.gpus), network.collective
    loads = np.zeros((count, count, len(network.capacity)))
    part = np.ones((count, count))
    alone = np.zeros((count, count))
    for (a, b), route in routes.items():
        loads[a, b, list(route.resources)] = 1
        part[a, b] = shares[route.medium]
        alone[a, b] = network.alone_gbs(route) * part[a, b]
    return Hops(np.array(network.capacity), loads, part, alone)


def rates(hops: Hops, orders: Sequence[Order]) -> Figures:
    """Return each order's GB/s: that of its slowest hop, all hops at once and sharing what they cross alike."""
    ring = np.array(orders)
    after = np.roll(ring, -1, axis=1)
    crossed = hops.loads[ring, after]  # (orders, hops, resources)
    load = crossed.sum(axis=1)
    room = np.divide(hops.capacity, load, out=np.full(load.shape, np.inf), where=load > 0)
    each = np.where(crossed > 0, room[:, None, :], np.inf).min(axis=2) * hops.shares[ring, after]
    return np.asarray(each.min(axis=1))


def best_order(network: Network, hops: Hops, members: Order) -> tuple[Order, float]:
    """Return the best ring order that was found, and its GB/s."""
    start = _tree_order(network, members)
    rate = float(rates(hops, [start])[0])
    bound = _bound(network, hops, members)
    if not _worth_a_search(network, members) or rate >= bound * _ENOUGH:
        return start, rate
    if len(members) > _FEW_GPUS:
        rng = np.random.default_rng(0)  # a search must always find the same
        starts = [start, *(tuple(rng.permutation(members).tolist()) for _ in range(_STARTS - 1))]
        best = max((_improved(hops, order) for order in starts), key=lambda improved: improved[1])
        if best[1] >= bound * _ENOUGH or len(members) > _EXACT_ORDER_GPUS:
            return best
    orders = [(members[0], *rest) for rest in permutations(members[1:])]
    values = rates(hops, orders)
    return orders[int(values.argmax())], float(values.max())


def _tree_order(network: Network, members: Order) -> Order:
    """Return the members with those of a socket, host bridge, NVLink island and bridge one after another."""
    island = _islands(network, members)

    def branch_key(gpu: int) -> tuple[object, ...]:
        root = network.tree.root(gpu)
        branch = tuple(bridge.name for bridge in reversed(network.tree.above(gpu)))
        return root.numa_node, root.name, branch[:1], island[gpu], branch, gpu

    return tuple(sorted(members, key=branch_key))


def _islands(network: Network, members: Order) -> dict[int, int]:
    """Return each member's lowest fellow that NVLinks lead to among the members."""
    island = {member: member for member in members}
    for _ in members:
        for a in members:
            for b in members:
                if a != b and network.collective[a, b].medium is Medium.NVLINK:
                    island[a] = island[b] = min(island[a], island[b])
    return island


def _worth_a_search(network: Network, members: Order) -> bool:
    inside = set(members)
    if network.fabric.unreachable or any({a, b} <= inside for a, b in network.private):
        return True
    routes = network.collective
    return any(routes[link].medium is Medium.NVLINK for link in permutations(members, 2))


def _bound(network: Network, hops: Hops, members: Order) -> float:
    """Return the limit of rings that do not run on NVLinks alone: each island's fastest hop out, and in."""
    island = _islands(network, members)
    parts = [[m for m in members if island[m] == first] for first in dict.fromkeys(island.values())]
    if len(parts) == 1:
        slow = [link for link in permutations(members, 2) if network.collective[link].medium is not Medium.NVLINK]
        return float(max((hops.alone[link] for link in slow), default=np.inf))
    limits = []
    for part in parts:
        others = [member for member in members if member not in part]
        limits += [hops.alone[np.ix_(part, others)].max(), hops.alone[np.ix_(others, part)].max()]
    return float(min(limits))


def _improved(hops: Hops, order: Order) -> tuple[Order, float]:
    """Return the order after 2-opt: parts are reversed, and members moved, as long as that helps."""
    best = float(rates(hops, [order])[0])
    while True:
        others = [*_turned(order), *_moved(order)]
        values = rates(hops, others)
        if values.max() <= best * (1 + 1e-9):
            return order, best
        order, best = others[int(values.argmax())], float(values.max())


def _turned(order: Order) -> list[Order]:
    n = len(order)
    return [(*order[:i], *order[i:j][::-1], *order[j:]) for i in range(1, n - 1) for j in range(i + 2, n + 1)]


def _moved(order: Order) -> list[Order]:
    n = len(order)
    rests = [(*order[:i], *order[i + 1 :]) for i in range(n)]
    return [(*rests[i][:j], order[i], *rests[i][j:]) for i in range(1, n) for j in range(1, n) if i != j]


# The true bus bandwidth of NCCL's rings on a set of GPUs, GB/s: what a choice of devices is judged against.
# Behind one NVSwitch a ring is as fast as the slowest port and path that it may take. On a mesh of NVLinks NCCL lays
# as many rings as it can. Where no ring of NVLinks exists, one ring takes NVLinks and PCIe as they come, and its hops
# share.

Messages: TypeAlias = Mapping[Arc, float]  # that go from rank to rank: each link's part of the collective's size


@dataclass(frozen=True, slots=True)
class Rings:
    """What NCCL gets on a set of GPUs."""

    limit: float  # GB/s of all rings together, before NCCL's share
    share: float  # of it that NCCL gets
    latency_us: float  # of the slowest hop
    loads: Mapping[int, float] = field(default_factory=dict)  # what a GB/s takes of resources that other sets may use


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
        self._nvlinked, self._own = _link_rates(self._network)
        self._alike = _all_alike(self._nvlinked, self._own)
        self._known: dict[Members, Rings] = {}

    def busbw(self, members: Members) -> float:
        """Return the busbw in GB/s of these GPUs, alone."""
        return self.concurrent([members])[0]

    def concurrent(self, groups: Sequence[Members]) -> list[float]:
        """Return each set's busbw in GB/s while all of them run."""
        rings = [self.rings(members) for members in groups]
        capacity, loads = self._network.capacity, [ring.loads for ring in rings]
        rates = max_min(capacity, loads, [ring.limit for ring in rings])
        return [rate * ring.share for rate, ring in zip(rates, rings, strict=True)]

    def exchanged(self, groups: Sequence[Messages]) -> list[float]:
        """Return for each group the ns that a byte of its collective takes its direct messages, while all groups run.

        0 for a group without any. What a resource carries for all groups takes as long as it does at its capacity.
        """
        loads = [self._loads(messages) for messages in groups]
        every: dict[int, float] = defaultdict(float)
        for load in loads:
            for resource, part in load.items():
                every[resource] += part
        capacity = self._network.capacity
        return [max((every[resource] / capacity[resource] for resource in load), default=0.0) for load in loads]

    def _loads(self, messages: Messages) -> dict[int, float]:
        """Return what each resource carries of a byte, NCCL's overhead included."""
        loads: dict[int, float] = defaultdict(float)
        for link, part in messages.items():
            route = self._network.collective[link]
            for resource in route.resources:
                loads[resource] += part / self._shares[route.medium]
        return loads

    def rings(self, members: Members) -> Rings:
        """Return what NCCL finds on these GPUs; the order in which they are named does not matter."""
        key = tuple(sorted(members))
        if key not in self._known:
            rings = self._find(key)
            left = math.prod(fault.factor for fault in self._slow if fault.covers(*key))
            self._known[key] = replace(rings, limit=rings.limit * left)
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
        """All of NCCL's rings take one order, chosen without knowing slow paths: the slowest possible one counts."""
        limit = self._alike or float(self._own[np.ix_(members, members)].min())
        latency = self._network.collective[members[0], members[1]].latency_us
        return Rings(limit, self._shares[Medium.NVLINK], latency, self._bottlenecks(frozenset(members)))

    def _bottlenecks(self, inside: frozenset[int]) -> dict[int, float]:
        """Return the bottlenecks that hops among these GPUs cross, each as often as there are hops."""
        hops = {resource: len(inside & gpus) for resource, gpus in self._network.shared}
        return {resource: float(count) for resource, count in hops.items() if count > 1}

    def _around(self, members: Members) -> Rings:
        """Return the best ring of single hops, with what its hops take of each resource together."""
        order, rate = best_order(self._network, self._hops, members)
        routes = [self._network.collective[link] for link in zip(order, [*order[1:], order[0]], strict=True)]
        slowest = min((route.medium for route in routes), key=lambda medium: self._shares[medium])
        share = self._shares[slowest]
        loads: dict[int, float] = {}
        for route in routes:
            for resource in route.resources:
                loads[resource] = loads.get(resource, 0.0) + share / self._shares[route.medium]
        latency = max(route.latency_us for route in routes)
        return Rings(min(rate / share, math.inf), share, latency, loads)


def _link_rates(network: Network) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Return for each (src, dst) whether collectives go by NVLink, and the route's limit without bottlenecks, GB/s.

    The diagonals are True and infinite: they limit nothing.
    """
    count, shared = len(network.fabric.gpus), {resource for resource, _ in network.shared}
    nvlinked, own = np.ones((count, count), dtype=bool), np.full((count, count), np.inf)
    for link, route in network.collective.items():
        nvlinked[link] = route.medium is Medium.NVLINK
        own[link] = min(network.capacity[resource] for resource in route.resources if resource not in shared)
    return nvlinked, own


def _all_alike(nvlinked: NDArray[np.bool_], own: NDArray[np.float64]) -> float | None:
    """Return the one rate of all routes if all are NVLinks, GB/s: a healthy switch needs no look at each set."""
    rates = own[np.isfinite(own)]
    return float(rates[0]) if nvlinked.all() and (rates == rates[0]).all() else None
