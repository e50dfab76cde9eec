"""What transfers cross in a simulated machine, their rates when they share it (max-min fairness, GB/s), its labels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from itertools import combinations, permutations
from typing import Any, NamedTuple

from collbench.machine import theory
from collbench.model.operations import Operation
from collbench.model.run import Device, Health, Path, PeerReadWrite, PeerStatus
from collbench.sim.fabrics import Bridge, Bundle, Engines, Fabric, Fault, FaultKind, HostBridge, ReportedPath, Switch

# The PCIe tree of a fabric: what lies above each GPU, and the label that nvidia-smi would give a pair.


class Tree:
    """What is above each GPU: `above(gpu)` are its bridges from the slot upwards, `root(gpu)` is its host bridge."""

    def __init__(self, fabric: Fabric) -> None:
        self._bridges: Mapping[str, Bridge] = {bridge.name: bridge for bridge in fabric.bridges}
        self._roots: Mapping[str, HostBridge] = {root.name: root for root in fabric.host_bridges}
        self._above = tuple(self._chain(gpu.bridge) for gpu in fabric.gpus)

    def above(self, gpu: int) -> tuple[Bridge, ...]:
        """Return the bridges between a GPU and its host bridge, the nearest first."""
        return self._above[gpu][0]

    def root(self, gpu: int) -> HostBridge:
        """Return the host bridge above a GPU."""
        return self._above[gpu][1]

    def meeting(self, a: int, b: int) -> Bridge | None:
        """Return the lowest bridge above both GPUs, None where only a host bridge or the sockets join them."""
        names = {bridge.name for bridge in self.above(b)}
        return next((bridge for bridge in self.above(a) if bridge.name in names), None)

    def label(self, a: int, b: int) -> str:
        """Return the PCIe label of a pair, with the meaning that nvidia-smi's legend gives it."""
        met = self.meeting(a, b)
        if met is not None:
            return "PIX" if self.above(a)[0] == self.above(b)[0] == met else "PXB"
        if self.root(a).name == self.root(b).name:
            return "PHB"
        return "NODE" if self.root(a).numa_node == self.root(b).numa_node else "SYS"

    def _chain(self, name: str) -> tuple[tuple[Bridge, ...], HostBridge]:
        chain = []
        while name in self._bridges:
            chain.append(self._bridges[name])
            name = self._bridges[name].parent
        return tuple(chain), self._roots[name]


# How concurrent transfers share resources: max-min fairness, rates in GB/s.


@dataclass(frozen=True, slots=True)
class Transfer:
    """A message between two ends: GPUs by position, None for host memory."""

    src: int | None
    dst: int | None
    operation: Operation = Operation.CE_WRITE
    staged: bool = False  # without peer access
    numa_node: int | None = None  # of the host memory; None: the GPU's own


@lru_cache(maxsize=16)
def network_of(fabric: Fabric) -> Network:
    """Return the fabric's network; the last few are kept, as they do not change."""
    return Network(fabric)


def shared_rates(network: Network, transfers: Sequence[Transfer]) -> list[float]:
    """Return each transfer's GB/s while all of them run."""
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
    if all(len(flows) == 1 for flows in users.values()):  # nothing is shared: the common, fast case
        return [min([most[i], *(capacity[r] / part for r, part in load.items())]) for i, load in enumerate(loads)]
    return _filled(capacity, loads, most, users)


def _filled(
    capacity: Sequence[float], loads: Sequence[Mapping[int, float]], most: list[float], users: dict[int, list[int]]
) -> list[float]:
    rates = [0.0] * len(loads)
    left = {resource: capacity[resource] for resource in users}
    growing = set(range(len(loads)))
    while growing:
        taken = {r: sum(loads[i][r] for i in flows if i in growing) for r, flows in users.items()}
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


# What each transfer crosses: directed resources with a capacity in GB/s, with faults applied.
# A resource is one direction of what transfers share: an NVLink bundle, a switch port, a slot, an uplink.

Link = tuple[int, int]

# A whole GPU runs slower: its links and its slot with it.
_SLOWS_A_GPU = (FaultKind.SLOW_GPU, FaultKind.THROTTLED_GPU, FaultKind.FOREIGN_LOAD)


class Medium(StrEnum):
    """What a transfer goes over; staged is through host memory."""

    NVLINK = "nvlink"
    PCIE = "pcie"
    STAGED = "staged"


class Route(NamedTuple):
    """A transfer's route: the places of its resources in `Network.capacity`, and its latency in µs."""

    medium: Medium
    resources: tuple[int, ...]
    latency_us: float


class Network:
    """A fabric's resources and routes. `capacity` is in GB/s by resource; links are (source, destination).

    `direct` are the routes of plain copies: NVLink, else PCIe, else through the host where there is no peer access.
    `bundles` are the NVLinks in use between two GPUs, by link: how many, and what each achieves in that direction.
    `private` are links with a limit of their own; `shared` are bottlenecks, as (resource, its GPUs). `scale` is what
    throttling and other jobs leave of each GPU's rates.
    """

    def __init__(self, fabric: Fabric) -> None:
        self.fabric, self.tree = fabric, Tree(fabric)
        self.capacity: list[float] = []
        self.bundles: dict[Link, tuple[int, float]] = {}
        self.private: set[Link] = set()
        self.shared: list[tuple[int, frozenset[int]]] = []
        self.scale = [_slowness(fabric, gpu) for gpu in range(len(fabric.gpus))]
        self._named: dict[tuple[object, ...], int] = {}
        self._nvlink = self._nvlinks()
        links = list(permutations(range(len(fabric.gpus)), 2))
        self.staged = {link: self._staged(link) for link in links}
        self.direct = {link: self._direct(link) for link in links}
        self._apply_faults()
        disabled = bool(fabric.faults_of(FaultKind.P2P_DISABLED))
        self.collective = self.staged if disabled else self.direct
        if disabled:
            self.bundles = {}

    def reaches(self, a: int, b: int) -> bool:
        """Return whether two GPUs can address each other's memory."""
        return self.direct[a, b].medium is not Medium.STAGED

    def alone_gbs(self, route: Route) -> float:
        """Return the rate of a transfer that has its route to itself, GB/s."""
        return min(self.capacity[resource] for resource in route.resources)

    def host(self, gpu: int, *, inward: bool, node: int | None = None) -> Route:
        """Return the route between a GPU and host memory at a NUMA node; None: the GPU's own. The memory comes last."""
        own = self.tree.root(gpu).numa_node
        there = own if node is None else node
        memory = self._resource(self.fabric.sockets.memory_gbs, "memory", there)
        climb, latency = self._climb(gpu, up=not inward, to=None)
        if there == own:
            return Route(Medium.PCIE, (*climb, memory), latency)
        ends = (there, own) if inward else (own, there)
        crossing = self._resource(self.fabric.sockets.gbs, "sockets", *ends)
        return Route(Medium.PCIE, (*climb, crossing, memory), latency + self.fabric.sockets.latency_us)

    def _resource(self, gbs: float, *name: object) -> int:
        if name not in self._named:
            self._named[name] = len(self.capacity)
            self.capacity.append(gbs)
        return self._named[name]

    def _nvlinks(self) -> dict[Link, Route]:
        """Return the routes over NVLinks that are in use, and fill `bundles`."""
        routes: dict[Link, Route] = {}
        for switch in self.fabric.switches:
            for a, b in permutations(switch.gpus, 2):
                ends = (self._port(switch, a, "out"), self._port(switch, b, "in"))
                routes[a, b] = Route(Medium.NVLINK, ends, switch.latency_us)
        for bundle in self.fabric.bundles:
            for a, b in (bundle.gpus, bundle.gpus[::-1]):
                routes[a, b] = self._over(bundle, a, b)
        unused = self.fabric.faults_of(FaultKind.NVLINK_UNUSED)
        used = {link: route for link, route in routes.items() if not any(fault.on_link(*link) for fault in unused)}
        self.bundles = {link: links_and_rate for link, links_and_rate in self.bundles.items() if link in used}
        return used

    def _port(self, switch: Switch, gpu: int, direction: str) -> int:
        share = links_up(self.fabric, switch, gpu) / switch.links
        return self._resource(switch.gbs * share * self.scale[gpu], "port", switch.gpus, gpu, direction)

    def _over(self, bundle: Bundle, a: int, b: int) -> Route:
        links = links_up(self.fabric, bundle, *bundle.gpus)
        rate = bundle.gbs * self._slow(a, b) * min(self.scale[a], self.scale[b])
        self.bundles[a, b] = (links, rate)
        return Route(Medium.NVLINK, (self._resource(links * rate, "bundle", a, b),), bundle.latency_us)

    def _slow(self, a: int, b: int) -> float:
        """Return what slow links leave of a direction's rate."""
        left = 1.0
        for fault in self.fabric.faults_of(FaultKind.SLOW_LINK):
            if fault.devices == (a, b) or (fault.devices == (b, a) and not fault.one_way):
                left *= fault.factor
        return left

    def _climb(self, gpu: int, *, up: bool, to: Bridge | HostBridge | None) -> tuple[list[int], float]:
        """Return the resources between a GPU and what lies above it (None: the root), one way, and their µs."""
        direction = "up" if up else "down"
        placement = self.fabric.gpus[gpu]
        slot = placement.pcie_gbs * self.scale[gpu] * _slot_share(self.fabric, gpu)
        resources, latency = [self._resource(slot, "slot", gpu, direction)], 0.0
        for bridge in self.tree.above(gpu):
            latency += bridge.latency_us
            if bridge == to:
                break
            resources.append(self._resource(bridge.up_gbs if up else bridge.down_gbs, "uplink", bridge.name, direction))
        else:
            latency += self.tree.root(gpu).latency_us
        return resources, latency

    def _over_pcie(self, a: int, b: int) -> Route:
        met = self.tree.meeting(a, b)
        up, up_us = self._climb(a, up=True, to=met)
        down, down_us = self._climb(b, up=False, to=met)
        top = met or self.tree.root(a)
        turns = [] if top.peer_gbs is None else [self._resource(top.peer_gbs, "turn", top.name, up[-1])]
        between = [] if met else self._between(a, b)
        same = met is not None or self.tree.root(a).name == self.tree.root(b).name
        latency = max(up_us, down_us) if same else up_us + down_us
        latency += self.fabric.sockets.latency_us if between else 0.0
        return Route(Medium.PCIE, (*up, *turns, *between, *down), latency)

    def _between(self, a: int, b: int) -> list[int]:
        """Return the link between the sockets, if the GPUs are on two."""
        nodes = self.tree.root(a).numa_node, self.tree.root(b).numa_node
        return [] if nodes[0] == nodes[1] else [self._resource(self.fabric.sockets.gbs, "sockets", *nodes)]

    def _staged(self, link: Link) -> Route:
        a, b = link
        out, back = self.host(a, inward=False), self.host(b, inward=True)
        down = back.resources[:-1]  # the data lies in the source's memory
        resources = (*out.resources, *self._between(a, b), *down)
        return Route(Medium.STAGED, resources, out.latency_us + back.latency_us)

    def _direct(self, link: Link) -> Route:
        if self._barred(link):
            return self.staged[link]
        if link in self._nvlink:
            return self._nvlink[link]
        unused = any(fault.on_link(*link) for fault in self.fabric.faults_of(FaultKind.NVLINK_UNUSED))
        return self._over_pcie(*link) if self.fabric.pcie_peers or unused else self.staged[link]

    def _barred(self, link: Link) -> bool:
        """Return whether this pair has no peer access, whatever its links could do."""
        denied = (reported.gpus for reported in self.fabric.labels if reported.cuda_peers is False)
        return any(set(pair) == set(link) for pair in (*self.fabric.unreachable, *denied))

    def _apply_faults(self) -> None:
        for fault in self.fabric.faults:
            if fault.kind is FaultKind.SLOW_LINK:
                self._limit(fault, self.direct, fault.factor)
            elif fault.kind is FaultKind.P2P_SLOW:
                self._limit(fault, self.staged, fault.factor * self.fabric.engines.staged)
            elif fault.kind is FaultKind.BOTTLENECK:
                self._share(fault)
            elif fault.kind is FaultKind.FOREIGN_LOAD and len(fault.devices) == 2:
                self._load(fault.devices[0], fault.devices[1], fault.factor)

    def _load(self, a: int, b: int, left: float) -> None:
        """Leave a share of each resource that another job's copies from a to b use."""
        for resource in self.direct[a, b].resources:
            self.capacity[resource] *= left
        if (a, b) in self.bundles:
            links, rate = self.bundles[a, b]
            self.bundles[a, b] = (links, rate * left)

    def _limit(self, fault: Fault, base: dict[Link, Route], share: float) -> None:
        """Give a link a limit of its own, a share of what the base route gives; bundles have theirs already."""
        a, b = fault.devices
        for link in ((a, b),) if fault.one_way else ((a, b), (b, a)):
            if fault.kind is FaultKind.SLOW_LINK and link in self.bundles:
                continue
            resource = self._resource(self.alone_gbs(base[link]) * share, fault.kind, *link)
            route = self.direct[link]
            self.direct[link] = Route(route.medium, (*route.resources, resource), route.latency_us)
            self.private.add(link)

    def _share(self, fault: Fault) -> None:
        resource = self._resource(fault.gbs, fault.kind, fault.devices)
        members = frozenset(fault.devices or range(len(self.fabric.gpus)))
        self.shared.append((resource, members))
        for (a, b), route in self.direct.items():
            if {a, b} <= members and route.medium is not Medium.STAGED:
                self.direct[a, b] = Route(route.medium, (*route.resources, resource), route.latency_us)


def links_up(fabric: Fabric, owner: Bundle | Switch, *gpus: int) -> int:
    """Return how many NVLinks of a bundle, or of a GPU's port, are up."""
    down = sum(fault.links for fault in fabric.faults_of(FaultKind.LINKS_DOWN) if set(fault.devices) == set(gpus))
    return max(0, owner.links - down)


def _slowness(fabric: Fabric, gpu: int) -> float:
    """Return what throttling and other jobs leave of a GPU's rates."""
    left = 1.0
    for fault in fabric.faults_of(*_SLOWS_A_GPU):
        if (fault.kind is not FaultKind.FOREIGN_LOAD or len(fault.devices) == 1) and fault.covers(gpu):
            left *= fault.factor
    return left


def _slot_share(fabric: Fabric, gpu: int) -> float:
    """Return what a degraded PCIe link leaves of its slot's rate."""
    placement = fabric.gpus[gpu]
    full = theory.pcie(placement.pcie_generation, placement.pcie_width)
    generation, width = pcie_now(fabric, gpu)
    now = theory.pcie(generation, width)
    return now.gbs / full.gbs if full and now else 1.0


def pcie_now(fabric: Fabric, gpu: int) -> tuple[int, int]:
    """Return the generation and width at which a GPU's slot runs."""
    placement = fabric.gpus[gpu]
    generation, width = placement.pcie_generation, placement.pcie_width
    for fault in fabric.faults_of(FaultKind.PCIE_DEGRADED):
        if fault.covers(gpu):
            generation, width = fault.generation or generation, fault.width or width
    return generation, width


# What the machine's tools would report: NVML's devices, paths and health, nvidia-smi's labels.

# An idle GPU in a cool room, where the file does not say otherwise.
_IDLE = Health(
    temperature=35,
    utilization=0,
    memory_used=0,
    nvlink_replays=0,
    nvlink_errors=0,
    ecc_errors=0,
    processes=0,
)
_BUSY_UTILIZATION = 100
_THROTTLED = "SW power cap"


def devices(fabric: Fabric) -> tuple[Device, ...]:
    """Return the GPUs as NVML would list them. Their UUIDs name the simulation, so no CUDA program takes them."""
    tree = Tree(fabric)
    return tuple(
        Device(
            index=index,
            uuid=f"SIM-{fabric.name}-{index}",
            name=gpu.name,
            pci_bus_id=gpu.pci_bus_id,
            memory_bytes=gpu.memory_bytes,
            numa_node=None if fabric.numa_hidden else tree.root(index).numa_node,
            pcie_generation=gpu.pcie_generation,
            pcie_width=gpu.pcie_width,
        )
        for index, gpu in enumerate(fabric.gpus)
    )


@lru_cache(maxsize=16)  # as the fabric's network: asked for again for every pair
def paths(fabric: Fabric) -> tuple[Path, ...]:
    """Return every pair's path as nvidia-smi and NVML report it, theory in GB/s."""
    tree = Tree(fabric)
    reported = {frozenset(label.gpus): label for label in fabric.labels}
    pairs = combinations(range(len(fabric.gpus)), 2)
    return tuple(_overridden(_path(fabric, tree, *pair), reported.get(frozenset(pair))) for pair in pairs)


def health(fabric: Fabric) -> tuple[Health, ...]:
    """Return each GPU's state as NVML would give it, faults counted in."""
    return tuple(_health(fabric, gpu) for gpu in range(len(fabric.gpus)))


def _path(fabric: Fabric, tree: Tree, a: int, b: int) -> Path:
    ancestor = tree.label(a, b)
    hidden = any(fault.on_link(a, b) for fault in fabric.faults_of(FaultKind.HIDDEN_NVLINK))
    up, full, switched = (0, 0, False) if hidden else _nvlinks(fabric, a, b)
    line = fabric.gpus[a].nvlink_line_mbps
    limit = theory.nvlink(up, capability=None, line_mbps=line, through_switch=switched) or slots_limit(fabric, a, b)
    peers = network_of(fabric).reaches(a, b)
    status = PeerStatus.OK if peers else PeerStatus.CNS
    return Path(
        devices=(a, b),
        label=f"NV{up}" if up else ancestor,
        ancestor=ancestor,
        nvlinks=up,
        theory_gbs=limit.gbs if limit else None,
        theory_source=f"sim: {limit.source}" if limit else "",
        peer_access=PeerReadWrite(status, status),
        tool_label=f"NV{full}" if full else ancestor,
        tool_peer_access=(status, status),
        cuda_peers=peers,
    )


def _nvlinks(fabric: Fabric, a: int, b: int) -> tuple[int, int, bool]:
    """Return the links between two GPUs that are up, how many there are, and whether a switch joins them."""
    for bundle in fabric.bundles:
        if set(bundle.gpus) == {a, b}:
            return links_up(fabric, bundle, a, b), bundle.links, False
    for switch in fabric.switches:
        if {a, b} <= set(switch.gpus):
            return min(links_up(fabric, switch, gpu) for gpu in (a, b)), switch.links, True
    return 0, 0, False


def slots_limit(fabric: Fabric, a: int, b: int) -> theory.Theory | None:
    """Return the limit of the slower slot of two GPUs; None if neither is known."""
    return theory.slowest(theory.pcie(fabric.gpus[gpu].pcie_generation, fabric.gpus[gpu].pcie_width) for gpu in (a, b))


def _overridden(path: Path, reported: ReportedPath | None) -> Path:
    if reported is None:
        return path
    known: dict[str, Any] = _known(reported)
    del known["gpus"]
    if reported.peer_access is not None:
        known["peer_access"] = PeerReadWrite(reported.peer_access, reported.peer_access)
    if reported.tool_peer_access is not None:
        known["tool_peer_access"] = (reported.tool_peer_access,) * 2
    return replace(path, **known)


def _health(fabric: Fabric, gpu: int) -> Health:
    generation, width = pcie_now(fabric, gpu)
    reading = replace(_IDLE, **{"pcie_generation": generation, "pcie_width": width, **_known(fabric.gpus[gpu].health)})
    for fault in fabric.faults:
        if fault.kind is FaultKind.THROTTLED_GPU and fault.covers(gpu):
            reading = replace(reading, throttle=(*reading.throttle, fault.words or _THROTTLED))
        elif fault.kind is FaultKind.FOREIGN_LOAD and gpu in fault.devices:
            reading = replace(reading, processes=(reading.processes or 0) + 1, utilization=_BUSY_UTILIZATION)
    return reading


def _known(value: Health | ReportedPath) -> dict[str, Any]:
    """Return the fields that are not None."""
    fields = {name: getattr(value, name) for name in value.__dataclass_fields__}
    return {name: field for name, field in fields.items() if field is not None}
