"""In which order a ring that leaves the NVLinks should pass the GPUs: neighbours in the PCIe tree one after another.

A ring that passes each branch of the tree in one go crosses each uplink once each way, which no order can better.
NVLinks, and links with a limit of their own, make other orders worth a search.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from collbench.fabric.network import Medium, Network

Order = tuple[int, ...]
Figures: TypeAlias = NDArray[np.float64]
_FEW_GPUS = 5  # 4! = 24 orders: no search is quicker than trying them
_EXACT_GPUS = 8  # 7! = 5040 orders, where 2-opt from a few starts falls short of the bound
_STARTS = 3
_ENOUGH = 1 - 1e-9


@dataclass(frozen=True, slots=True)
class Hops:
    """The hops of collectives on a network: `loads[src, dst]` are 0 or 1 by resource, `shares[src, dst]` NCCL's share.

    `alone[src, dst]` is the GB/s of a hop that has its way to itself.
    """

    capacity: Figures
    loads: Figures
    shares: Figures
    alone: Figures


def hops_of(network: Network, shares: Mapping[Medium, float]) -> Hops:
    """Return the hops of a network as arrays, so that many orders are valued at once."""
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
        found = max((_improved(hops, order) for order in starts), key=lambda improved: improved[1])
        if found[1] >= bound * _ENOUGH or len(members) > _EXACT_GPUS:
            return found
    orders = [(members[0], *rest) for rest in permutations(members[1:])]
    values = rates(hops, orders)
    return orders[int(values.argmax())], float(values.max())


def _tree_order(network: Network, members: Order) -> Order:
    """Return the members with those of a socket, host bridge, NVLink island and bridge one after another."""
    island = _islands(network, members)

    def place(gpu: int) -> tuple[object, ...]:
        root = network.tree.root(gpu)
        branch = tuple(bridge.name for bridge in reversed(network.tree.above(gpu)))
        return root.numa_node, root.name, branch[:1], island[gpu], branch, gpu

    return tuple(sorted(members, key=place))


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
    """Return what no ring without a way over NVLinks alone can pass: each island's fastest hop out, and in."""
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
    """Return the order after 2-opt: parts are turned round, and members moved, as long as that helps."""
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
