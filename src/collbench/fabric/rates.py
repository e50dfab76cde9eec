"""How transfers that run at once share what they cross: max-min fairness, rates in GB/s."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from collbench.fabric.model import Engines, Fabric
from collbench.fabric.network import Medium, Network, Route
from collbench.operations import Operation


@dataclass(frozen=True, slots=True)
class Transfer:
    """One message on its way: GPUs by position, None for host memory; `staged` leaves peer access off.

    `numa_node` is where the host memory lies, None: at the GPU's own node.
    """

    src: int | None
    dst: int | None
    operation: Operation = Operation.CE_WRITE
    staged: bool = False
    numa_node: int | None = None


def copy_rates(fabric: Fabric, transfers: Sequence[Transfer]) -> list[float]:
    """Return each transfer's GB/s while all of them run."""
    return shared_rates(network_of(fabric), transfers)


@lru_cache(maxsize=16)
def network_of(fabric: Fabric) -> Network:
    """Return the fabric's network; the last few are kept, as they do not change."""
    return Network(fabric)


def shared_rates(network: Network, transfers: Sequence[Transfer]) -> list[float]:
    """Return the same as `copy_rates` of a network at hand."""
    routes = [route_of(network, transfer) for transfer in transfers]
    fair = max_min(network.capacity, [dict.fromkeys(route.resources, 1.0) for route in routes])
    shares = (share(network.fabric.engines, t.operation, r.medium) for t, r in zip(transfers, routes, strict=True))
    return [rate * part for rate, part in zip(fair, shares, strict=True)]


def route_of(network: Network, transfer: Transfer) -> Route:
    """Return what a transfer crosses."""
    if transfer.src is None or transfer.dst is None:
        gpu = transfer.dst if transfer.src is None else transfer.src
        return network.host(gpu or 0, inward=transfer.src is None, node=transfer.numa_node)
    return (network.staged if transfer.staged else network.direct)[transfer.src, transfer.dst]


def share(engines: Engines, operation: Operation, medium: Medium) -> float:
    """Return the share of a path's rate that a copy gets."""
    if medium is Medium.STAGED:
        return engines.staged
    shares = {
        Operation.CE_READ: engines.ce_read,
        Operation.H2D_CE: engines.ce_read,
        Operation.SM_WRITE: engines.sm_write,
        Operation.D2H_SM: engines.sm_write,
        Operation.SM_READ: engines.sm_read,
        Operation.H2D_SM: engines.sm_read,
    }
    return shares.get(operation, engines.ce_write)


def max_min(
    capacity: Sequence[float], loads: Sequence[Mapping[int, float]], limits: Sequence[float] | None = None
) -> list[float]:
    """Return fair rates by progressive filling: all grow alike until a resource is full, which stops its users.

    `loads[i]` says how much of each resource a unit of rate i takes, `limits[i]` what it gets at most.
    """
    most = [math.inf] * len(loads) if limits is None else list(limits)
    users: dict[int, list[int]] = {}
    for number, load in enumerate(loads):
        for resource in load:
            users.setdefault(resource, []).append(number)
    if all(len(found) == 1 for found in users.values()):  # nothing is shared: the common case, and a fast one
        return [min([most[i], *(capacity[r] / part for r, part in load.items())]) for i, load in enumerate(loads)]
    return _filled(capacity, loads, most, users)


def _filled(
    capacity: Sequence[float], loads: Sequence[Mapping[int, float]], most: list[float], users: dict[int, list[int]]
) -> list[float]:
    rates = [0.0] * len(loads)
    left = {resource: capacity[resource] for resource in users}
    growing = set(range(len(loads)))
    while growing:
        taken = {r: sum(loads[i][r] for i in found if i in growing) for r, found in users.items()}
        steps = {r: left[r] / part for r, part in taken.items() if part > 0}
        step = min([*steps.values(), *(most[i] - rates[i] for i in growing)])
        full = {r for r, room in steps.items() if room <= step * (1 + 1e-12)}
        for i in growing:
            rates[i] += step
        for r, part in taken.items():
            left[r] -= part * step
        stopped = {i for i in growing if rates[i] >= most[i] or any(r in full for r in loads[i])}
        growing -= stopped
    return rates
