"""Random machines, faults and their true rates, from a model of its own: no code of collbench's simulator or labels.

A machine is a graph of elements, each with a capacity in GB/s in its direction; a transfer takes a route of elements
and gets the least share of any. Everything that collbench is told about a machine (labels, limits) is written here, as
NVML and nvidia-smi would report it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations, permutations, product

import numpy as np

from collbench.model.run import Device, Path, PeerReadWrite, PeerStatus

Pair = tuple[int, int]
Route = tuple[str, ...]

FAMILIES = ("nvswitch", "mesh", "bridged", "pcie")
UNEVEN = "uneven"  # of the family "pcie", in a tree without symmetry
_SLOT_GBS = {3: (15.75, 12.9), 4: (31.5, 26.1), 5: (63.0, 53.2)}  # what a ×16 slot can do, and what copies reach
_CARDS = {3: "Tesla V100-PCIE-32GB", 4: "NVIDIA A40", 5: "NVIDIA L40S"}
_PEERS = PeerReadWrite(PeerStatus.OK, PeerStatus.OK)
_LINK_GBS, _LINK_REACHED = 25.0, 0.965  # of an NVLink, data rate, and the share that copies reach
_MEMORY_BYTES = 48 * 2**30
_SHARES = (0.25, 0.3, 0.5, 0.6)  # of its rate that one of two unequal faults leaves
_LEFT, _LEFT_OF_PAIR = (0.4, 0.75), (0.7, 0.85)  # between these a single fault leaves some share


def _left(rng: np.random.Generator) -> float:
    return float(rng.uniform(*_LEFT))


@dataclass(frozen=True)
class Made:
    """A machine as it is (`capacity`, `routes`) and as its tools report it (`devices`, `paths`).

    `routes[None, g]` and `routes[g, None]` are those from and to host memory, wherever it lies; -1 - n stands for that
    of a node n, of the `nodes` to which collbench can bind memory. `shared` are elements that several pairs cross.
    `nccl` is the share of the slowest link that NCCL reaches. `links` counts NVLinks from one GPU to another.
    `environment` are NCCL's variables. Another job computes on the `busy` GPUs, and the driver says that it throttles
    the `throttled` ones.
    """

    family: str
    devices: tuple[Device, ...]
    paths: tuple[Path, ...]
    capacity: Mapping[str, float]
    routes: Mapping[tuple[int | None, int | None], Route]
    nccl: float
    shared: tuple[str, ...] = ()
    nodes: tuple[int, ...] = ()
    truth: tuple[Truth, ...] = field(default=())
    links: Mapping[Pair, int] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    busy: frozenset[int] = frozenset()
    throttled: frozenset[int] = frozenset()

    @property
    def count(self) -> int:
        """The number of GPUs."""
        return len(self.devices)

    def rates(self, transfers: Sequence[tuple[int | None, int | None]]) -> list[float]:
        """Return the GB/s of transfers that run at the same time: an element is shared equally."""
        users = Counter(element for transfer in transfers for element in set(self.routes[transfer]))
        return [min(self.capacity[e] / users[e] for e in self.routes[transfer]) for transfer in transfers]

    def limit(self, members: Sequence[int]) -> float:
        """Return the limit in GB/s that the tools report for the paths among GPUs."""
        return min(path.theory_gbs for path in self.paths if set(path.devices) <= set(members) and path.theory_gbs)

    def most(self, transfer: tuple[int | None, int | None]) -> float:
        """Return the limit in GB/s of what a transfer crosses: slots, or else NVLinks."""
        slots = [int(element.split()[1]) for element in self.routes[transfer] if element.startswith("slot")]
        if not slots:
            return self.limit([gpu for gpu in transfer if gpu is not None])
        return min(_SLOT_GBS[self.devices[gpu].pcie_generation or 3][0] for gpu in slots)

    def slowed(self, factors: Mapping[str, float], *truth: Truth) -> Made:
        """Return the machine with elements at a share of their capacity."""
        capacity = {name: gbs * factors.get(name, 1.0) for name, gbs in self.capacity.items()}
        return replace(self, capacity=capacity, truth=(*self.truth, *truth))


@dataclass(frozen=True)
class Truth:
    """A fault: what is slow. `gpu` where one GPU, slot or port is to blame, else the directed links that are slow.

    `seen` is the name of the cause that the tools show.
    """

    kind: str
    gpu: int | None
    links: frozenset[Pair]
    may_be_silent: bool = False  # it lies near a threshold: to name nothing is right, too
    gpus: frozenset[int] = frozenset()  # at what is slow, or below it
    seen: str = ""


def make(family: str, rng: np.random.Generator) -> Made:
    """Return a healthy machine of a family."""
    return {"nvswitch": _nvswitch, "mesh": _mesh, "bridged": _bridged, "pcie": _pcie, UNEVEN: _uneven}[family](rng)


def make_sized(family: str, rng: np.random.Generator, count: int) -> Made:
    """Return a healthy machine of a family with so many GPUs; a mesh is any in which no GPU has more than six links."""
    return {"nvswitch": _nvswitch, "mesh": _any_mesh, "bridged": _bridged, "pcie": _pcie}[family](rng, count)


def _device(index: int, name: str, generation: int, node: int) -> Device:
    return Device(
        index=index,
        uuid=f"GPU-0000000{index}-judge",
        name=name,
        pci_bus_id=f"00000000:{16 + index:02X}:00.0",
        memory_bytes=_MEMORY_BYTES,
        numa_node=node,
        cpu_affinity="",
        pcie_generation=generation,
        pcie_width=16,
    )


def _path(a: int, b: int, label: str, ancestor: str, nvlinks: int, theory: float) -> Path:
    return Path(
        devices=(a, b),
        label=label,
        ancestor=ancestor,
        nvlinks=nvlinks,
        theory_gbs=theory,
        theory_source="as reported",
        peer_access=_PEERS,
        cuda_peers=True,
    )


@dataclass
class _Tree:
    """GPUs in slots, on switches or root ports, under one or two sockets."""

    generation: int
    sockets: list[int]  # of each GPU
    switches: list[int | None]  # of each GPU; None: a root port of its own
    capacity: dict[str, float] = field(default_factory=dict)
    shared: list[str] = field(default_factory=list)
    cascaded: bool = False  # two switches of a socket lie below an upstream switch of their own, which is no bottleneck

    def label(self, a: int, b: int) -> str:
        if self.sockets[a] != self.sockets[b]:
            return "SYS"
        if self.switches[a] is not None and self.switches[a] == self.switches[b]:
            return "PIX"
        return "PXB" if self.cascaded else "NODE"

    def routes(self) -> dict[tuple[int | None, int | None], Route]:
        routes: dict[tuple[int | None, int | None], Route] = {}
        for gpu in range(len(self.sockets)):
            routes[None, gpu] = (*self._port(gpu, "down"), f"slot {gpu} in")
            routes[gpu, None] = (f"slot {gpu} out", *self._port(gpu, "up"))
        for a, b in permutations(range(len(self.sockets)), 2):
            middle: Route = ()
            if self.label(a, b) != "PIX":
                across = self.sockets[a] != self.sockets[b]
                socket = (f"socket {self.sockets[a]} to {self.sockets[b]}",) if across else (f"root {self.sockets[a]}",)
                leaves = (f"leaves {self.sockets[a]}", f"enters {self.sockets[b]}") if across else ()
                above = () if self.label(a, b) == "PXB" else (*leaves, *socket)
                middle = (*self._port(a, "up"), *above, *self._port(b, "down"))
            routes[a, b] = (f"slot {a} out", *middle, f"slot {b} in")
        return routes

    def _port(self, gpu: int, way: str) -> Route:
        return () if self.switches[gpu] is None else (f"switch {self.switches[gpu]} {way}",)


def _tree(rng: np.random.Generator, count: int, generation: int) -> _Tree:
    two_sockets = count >= 4 and rng.random() < 0.7
    sockets = [gpu * 2 // count if two_sockets else 0 for gpu in range(count)]
    per_switch = int(rng.choice([1, 2, 4])) if count >= 4 else int(rng.choice([1, 2]))
    switches: list[int | None] = [None if per_switch == 1 else gpu // per_switch for gpu in range(count)]
    if two_sockets and per_switch == 4 and count == 4:
        switches = [gpu // 2 for gpu in range(count)]
    cascaded = count == 8 and per_switch == 2 and two_sockets and rng.random() < 0.5
    return _with_capacities(_Tree(generation, sockets, switches, cascaded=cascaded), rng)


def _without_symmetry(rng: np.random.Generator, count: int, generation: int) -> _Tree:
    """Return a tree with any number of GPUs at a socket, each alone on a root port or with others on a switch."""
    of_first = int(rng.integers(1, count)) if rng.random() < 0.7 else count
    switches: list[int | None] = []
    for first, end in ((0, of_first), (of_first, count)):
        while (left := end - max(first, len(switches))) > 0:
            width = min(left, int(rng.choice([1, 1, 2, 3, 4])))
            switches += [None] if width == 1 else [len(switches)] * width
    return _with_capacities(_Tree(generation, [int(gpu >= of_first) for gpu in range(count)], switches), rng)


def _with_capacities(tree: _Tree, rng: np.random.Generator) -> _Tree:
    reached, sockets, switches = _SLOT_GBS[tree.generation][1], tree.sockets, tree.switches
    for gpu in range(len(sockets)):
        tree.capacity |= {f"slot {gpu} in": reached, f"slot {gpu} out": reached}
    for switch in {one for one in switches if one is not None}:
        tree.capacity |= {f"switch {switch} up": reached, f"switch {switch} down": reached}
        tree.shared += [f"switch {switch} up", f"switch {switch} down"]
    # A root complex carries both directions of a pair: with less, a better label would truly be the slower one.
    forwards = reached * float(rng.choice([2.0, 4.0, 8.0]))
    across = reached * float(rng.choice([0.85, 1.0, 2.0]))
    for socket in set(sockets):
        tree.capacity |= {f"root {socket}": forwards, f"leaves {socket}": forwards, f"enters {socket}": forwards}
    for one, other in permutations(set(sockets), 2):
        tree.capacity[f"socket {one} to {other}"] = across
        tree.shared.append(f"socket {one} to {other}")
    return tree


def _on_tree(family: str, tree: _Tree, bundles: Mapping[Pair, int], name: str, nccl: float) -> Made:
    """Return a machine whose GPUs have NVLinks to some others, and PCIe to the rest."""
    theory = _SLOT_GBS[tree.generation][0]
    count, routes, capacity = len(tree.sockets), tree.routes(), dict(tree.capacity)
    paths = []
    for a, b in combinations(range(count), 2):
        links = bundles.get((a, b), 0)
        label = f"NV{links}" if links else tree.label(a, b)
        limit = links * _LINK_GBS if links else theory
        paths.append(_path(a, b, label, tree.label(a, b), links, limit))
        for src, dst in ((a, b), (b, a)) if links else ():
            routes[src, dst] = (f"NVLinks {src} to {dst}",)
            capacity[f"NVLinks {src} to {dst}"] = links * _LINK_GBS * _LINK_REACHED
    devices = tuple(_device(gpu, name, tree.generation, tree.sockets[gpu]) for gpu in range(count))
    counts = {way: number for (a, b), number in bundles.items() for way in ((a, b), (b, a))}
    return Made(family, devices, tuple(paths), capacity, routes, nccl, tuple(tree.shared), links=counts)


def _pcie(rng: np.random.Generator, count: int = 0) -> Made:
    generation = int(rng.choice([3, 4, 5]))
    tree = _tree(rng, count or int(rng.choice([4, 4, 8])), generation)
    return _with_memory(_on_tree("pcie", tree, {}, _CARDS[generation], float(rng.uniform(0.7, 0.85))), tree, rng)


def _uneven(rng: np.random.Generator) -> Made:
    """Return GPUs in a tree without symmetry."""
    generation = int(rng.choice([3, 4, 5]))
    tree = _without_symmetry(rng, int(rng.integers(4, 9)), generation)
    return _with_memory(_on_tree("pcie", tree, {}, _CARDS[generation], float(rng.uniform(0.7, 0.85))), tree, rng)


def _with_memory(made: Made, tree: _Tree, rng: np.random.Generator) -> Made:
    """Return a machine whose memory of another socket may be slower; on half of those with two it can be bound.

    On the others it lies at a socket that nobody knows.
    """
    nodes = sorted({*tree.sockets})
    if len(nodes) < 2:
        return made
    far, routes = _SLOT_GBS[tree.generation][1] * float(rng.uniform(0.62, 1.0)), dict(made.routes)
    capacity = {**made.capacity, "memory 0 to 1": far, "memory 1 to 0": far}
    for gpu, node in product(range(made.count), nodes):
        own = tree.sockets[gpu]
        between = (
            [] if node == own else [(f"{of} {node} to {own}", f"{of} {own} to {node}") for of in ("socket", "memory")]
        )
        routes[-1 - node, gpu] = (*made.routes[None, gpu], *(into for into, _ in between))
        routes[gpu, -1 - node] = (*made.routes[gpu, None], *(out for _, out in between))
    lies = -1 - int(rng.choice(nodes))
    unbound: dict[tuple[int | None, int | None], Route] = {}
    for gpu in range(made.count):
        unbound |= {(None, gpu): routes[lies, gpu], (gpu, None): routes[gpu, lies]}
    bound = rng.random() < 0.5
    return replace(made, capacity=capacity, routes=routes | unbound, nodes=tuple(nodes) if bound else ())


def _bridged(rng: np.random.Generator, count: int = 0) -> Made:
    tree = _tree(rng, count or int(rng.choice([4, 8])), 4)
    links = int(rng.choice([2, 4]))
    bundles = {(gpu, gpu + 1): links for gpu in range(0, len(tree.sockets), 2)}
    return _on_tree("bridged", tree, bundles, "NVIDIA A40", float(rng.uniform(0.75, 0.85)))


def _mesh(rng: np.random.Generator) -> Made:
    """Return two quads of V100, each fully joined, and a link across for each GPU, as in a DGX-1."""
    tree = _tree(rng, 8, 3)
    bundles: dict[Pair, int] = {}
    for first in (0, 4):
        ring = first + rng.permutation(4)
        for place, (a, b) in enumerate(combinations(range(4), 2)):
            pair = (min(ring[a], ring[b]), max(ring[a], ring[b]))
            bundles[int(pair[0]), int(pair[1])] = 2 if place in (1, 2, 3, 4) else 1
    for a, b in zip(range(4), 4 + rng.permutation(4), strict=True):
        bundles[a, int(b)] = 2
    return _on_tree("mesh", tree, bundles, "Tesla V100-SXM2-32GB", float(rng.uniform(0.85, 0.92)))


def _any_mesh(rng: np.random.Generator, count: int) -> Made:
    """Return V100 that are linked to some of the others, by one or two links each."""
    free, bundles = [6] * count, dict[Pair, int]()
    ring = rng.permutation(count).tolist()
    backbone = [(min(a, b), max(a, b)) for a, b in zip(ring, [*ring[1:], ring[0]], strict=True)]
    others = [pair for pair in combinations(range(count), 2) if pair not in backbone]
    others = [others[index] for index in rng.permutation(len(others)).tolist() if rng.random() < 0.8]
    for a, b in (*backbone, *others):
        links = min(int(rng.integers(1, 3)), free[a], free[b])
        if links:
            bundles[a, b] = links
            free[a], free[b] = free[a] - links, free[b] - links
    tree = _tree(rng, count, 3)
    return _on_tree("mesh", tree, bundles, "Tesla V100-SXM2-32GB", float(rng.uniform(0.85, 0.92)))


def _nvswitch(rng: np.random.Generator, count: int = 0) -> Made:
    count, links = count or int(rng.choice([2, 4, 8])), int(rng.choice([12, 18]))
    tree = _Tree(5, [gpu * 2 // count for gpu in range(count)], [None] * count)
    for gpu in range(count):
        tree.capacity |= {f"slot {gpu} in": 53.2, f"slot {gpu} out": 53.2}
    for socket in (0, 1):
        tree.capacity |= {f"root {socket}": 200.0, f"socket {socket} to {1 - socket}": 120.0}
    name = "NVIDIA H200" if links == 18 else "NVIDIA A100-SXM4-80GB"
    made = _on_tree("nvswitch", tree, dict.fromkeys(combinations(range(count), 2), links), name, 0.8)
    capacity, routes = dict(made.capacity), dict(made.routes)
    reached = links * _LINK_GBS * float(rng.uniform(0.86, 0.9))
    for gpu in range(count):
        capacity |= {f"port {gpu} out": reached, f"port {gpu} in": reached}
    for a, b in permutations(range(count), 2):
        # Its own element between two ports lets a fault slow one pair alone.
        routes[a, b] = (f"port {a} out", f"NVLinks {a} to {b}", f"port {b} in")
        capacity[f"NVLinks {a} to {b}"] = reached
    return replace(made, capacity=capacity, routes=routes)


# Faults: each returns the machine with it, or None where it has no place for it.


def slow_slot(made: Made, rng: np.random.Generator) -> Made | None:
    """A GPU's slot, or its NVSwitch port, is slow: all of its links are."""
    gpu = int(rng.integers(made.count))
    if made.family == "pcie" or (made.family == "nvswitch" and made.count > 2):
        return _at(made, gpu, _left(rng))
    return None


def _at(made: Made, gpu: int, factor: float) -> Made:
    """Return the machine with a GPU's slot, or its NVSwitch port, at a share of its rate."""
    part = "port" if made.family == "nvswitch" else "slot"
    links = frozenset(link for link in permutations(range(made.count), 2) if gpu in link)
    truth = Truth("slow slot", gpu, links, gpus=frozenset((gpu,)))
    return made.slowed(dict.fromkeys((f"{part} {gpu} in", f"{part} {gpu} out"), factor), truth)


def two_slots(made: Made, rng: np.random.Generator) -> Made | None:
    """Two GPUs, each in a slow slot."""
    one = slow_slot(made, rng)
    for _ in range(50):
        two = slow_slot(one, rng) if one is not None else None
        if two is not None and two.truth[0].gpu != two.truth[1].gpu:
            return two if made.count > 4 else None
    return None


def slow_pair(made: Made, rng: np.random.Generator) -> Made | None:
    """One pair's own NVLinks are slow, both ways."""
    own = sorted({name for name in made.capacity if name.startswith("NVLinks")})
    like = Counter(path.label for path in made.paths if path.nvlinks)
    pairs = [path.devices for path in made.paths if path.nvlinks and like[path.label] >= 3]
    if not own or not pairs:
        return None
    a, b = pairs[int(rng.integers(len(pairs)))]
    elements = (f"NVLinks {a} to {b}", f"NVLinks {b} to {a}")
    truth = Truth("slow pair", None, frozenset(((a, b), (b, a))), gpus=frozenset((a, b)))
    return made.slowed(dict.fromkeys(elements, float(rng.uniform(*_LEFT_OF_PAIR))), truth)


def slow_switch(made: Made, rng: np.random.Generator, factor: float | None = None) -> Made | None:
    """A PCIe switch's uplink is slow, both ways: what crosses it is slow."""
    switches = sorted({name for name in made.shared if name.startswith("switch")})
    if made.family != "pcie" or len(switches) < 4:
        return None
    number = switches[int(rng.integers(len(switches)))].split()[1]
    elements = (f"switch {number} up", f"switch {number} down")
    links = frozenset(link for link in permutations(range(made.count), 2) if set(elements) & set(made.routes[link]))
    below = frozenset(gpu for gpu in range(made.count) if elements[0] in made.routes[gpu, None])
    slower = dict.fromkeys(elements, factor or _left(rng))
    return made.slowed(slower, Truth("slow uplink", None, links, gpus=below))


def slots_of_one_switch(made: Made, rng: np.random.Generator) -> Made | None:
    """Two of eight GPUs, in slots of one PCIe switch at unequal rates: its uplink would slow the same links."""
    switch = slow_switch(made, rng) if made.count > 4 else None
    if switch is None:
        return None
    for gpu, share in zip(rng.permutation(sorted(switch.truth[0].gpus)), rng.permutation(_SHARES)[:2], strict=False):
        made = _at(made, int(gpu), float(share))
    return made


def slot_below_uplink(made: Made, rng: np.random.Generator) -> Made | None:
    """The uplink of a PCIe switch is slow, and a slot below it slower: most links of the slot cross both."""
    slower, slow = sorted(float(share) for share in rng.permutation(_SHARES)[:2])
    switch = slow_switch(made, rng, slow) if made.count > 4 else None
    return switch and _at(switch, int(rng.choice(sorted(switch.truth[0].gpus))), slower)


def slow_direction(made: Made, rng: np.random.Generator) -> Made | None:
    """A GPU's slot, or its NVSwitch port, is slow in one direction."""
    gpu, way = int(rng.integers(made.count)), str(rng.choice(["in", "out"]))
    if made.family not in ("pcie", "nvswitch") or made.count < 4:
        return None
    part = "port" if made.family == "nvswitch" else "slot"
    links = frozenset(link for link in permutations(range(made.count), 2) if link[way == "in"] == gpu)
    return made.slowed({f"{part} {gpu} {way}": _left(rng)}, Truth("slow direction", gpu, links, gpus=frozenset((gpu,))))


def slow_sockets(made: Made, _rng: np.random.Generator, *, of_slot: bool = True) -> Made | None:
    """The link between the two sockets runs at a quarter of a slot's rate (or else of its own), both ways."""
    elements = ("socket 0 to 1", "socket 1 to 0")
    links = frozenset(link for link in permutations(range(made.count), 2) if set(elements) & set(made.routes[link]))
    if not links:
        return None
    share = 0.25 * made.capacity["slot 0 in"] / made.capacity[elements[0]] if of_slot else 0.25
    return made.slowed(dict.fromkeys(elements, share), Truth("slow socket link", None, links))


def socket_one_way(made: Made, rng: np.random.Generator) -> Made | None:
    """The link between the two sockets runs at a quarter of a slot's rate in one direction."""
    src = int(rng.integers(2))
    element = f"socket {src} to {1 - src}"
    links = frozenset(link for link in permutations(range(made.count), 2) if element in made.routes[link])
    if not links:
        return None
    share = 0.25 * made.capacity["slot 0 in"] / made.capacity[element]
    return made.slowed({element: share}, Truth("slow socket link one way", None, links))


def all_slow(made: Made, rng: np.random.Generator, share: float | None = None) -> Made | None:
    """All ports or NVLinks, without these all slots, have this share of theory; None: of NVSwitch ports 0.66 to 0.74.

    Whatever is said, it is said of all pairs of a label.
    """
    if share is None and (made.family != "nvswitch" or made.count < 4):
        return None
    share = float(rng.uniform(0.66, 0.74)) if share is None else share
    if made.family == "nvswitch":
        of_theory = {name: made.limit((0, 1)) for name in made.capacity if name.startswith("port")}
    elif made.family == "pcie":
        of_theory = {name: made.limit((0, 1)) for name in made.capacity if name.startswith("slot")}
    else:
        of_theory = {f"NVLinks {a} to {b}": count * _LINK_GBS for (a, b), count in made.links.items()}
    every = frozenset(permutations(range(made.count), 2))
    links = frozenset(made.links) if made.family in ("mesh", "bridged") else every
    slower = {name: share * gbs / made.capacity[name] for name, gbs in of_theory.items()}
    return made.slowed(slower, Truth("all slow", None, links, may_be_silent=True))


def two_faults(made: Made, rng: np.random.Generator) -> Made | None:
    """A slow slot or port, and elsewhere a slow direction of one, or the uplink of another GPU's switch."""
    one = slow_slot(made, rng)
    other = (slow_direction, slow_switch)[int(rng.integers(2))]
    two = other(one, rng) if one is not None and one.count > 4 else None
    if two is None or two.truth[1].gpu == two.truth[0].gpu:
        return None
    return two


# What the tools show beside the rates.


def throttled(made: Made, rng: np.random.Generator, least: float = 0.04, most: float = 0.7) -> Made | None:
    """A GPU's clocks are held down, and the driver says so: its NVLinks, or without these its slot, are slower."""
    gpu, share = int(rng.integers(made.count)), float(np.exp(rng.uniform(np.log(least), np.log(most))))
    if made.count < 4:
        return None
    over_nvlink = [name for name in made.capacity if name.startswith("NVLinks") and str(gpu) in name.split()]
    elements = over_nvlink or [f"slot {gpu} in", f"slot {gpu} out"]
    links = frozenset(link for link in permutations(range(made.count), 2) if gpu in link)
    truth = Truth("throttled", gpu, links, gpus=frozenset((gpu,)), seen="throttled")
    return replace(made.slowed(dict.fromkeys(elements, share), truth), throttled=frozenset((gpu,)))


def busy(made: Made, rng: np.random.Generator) -> Made | None:
    """Another job computes on a GPU, and takes half of what its links carry."""
    gpu = int(rng.integers(made.count))
    elements = [name for name in made.capacity if name.split()[0] in ("NVLinks", "slot") and str(gpu) in name.split()]
    links = frozenset(link for link in permutations(range(made.count), 2) if gpu in link)
    truth = Truth("busy", gpu, links, gpus=frozenset((gpu,)), seen="other_jobs")
    return replace(made.slowed(dict.fromkeys(elements, 0.5), truth), busy=frozenset((gpu,)))


def no_p2p(made: Made, _rng: np.random.Generator) -> Made:
    """NCCL_P2P_DISABLE=1 is set: its rings go through host memory. Without NVLinks that may cost nothing."""
    links = frozenset(permutations(range(made.count), 2))
    truth = Truth("variable", None, links, may_be_silent=made.family == "pcie", seen="NCCL_P2P_DISABLE")
    return replace(made, environment={"NCCL_P2P_DISABLE": "1"}, truth=(*made.truth, truth))


def refused(made: Made, _rng: np.random.Generator) -> Made | None:
    """CUDA refuses peer access between all GPUs that NVLinks join: these carry nothing."""
    if not made.links and made.family != "nvswitch":
        return None
    joined = {path.devices for path in made.paths if path.nvlinks}
    paths = tuple(replace(path, cuda_peers=path.devices not in joined) for path in made.paths)
    routes: dict[tuple[int | None, int | None], Route] = {
        (a, b): (*made.routes[a, None], *made.routes[None, b]) if tuple(sorted((a, b))) in joined else made.routes[a, b]
        for a, b in permutations(range(made.count), 2)
    }
    links = frozenset(link for a, b in joined for link in ((a, b), (b, a)))
    truth = Truth("refused", None, links, seen="peers_refused")
    return replace(made, paths=paths, routes={**made.routes, **routes}, truth=(*made.truth, truth))


_TRIES = 50


def both(faults: tuple[str, str], made: Made, rng: np.random.Generator) -> Made | None:
    """Two faults at once, of which each slows something, without a common GPU, and with a GPU that is well."""
    for _ in range(_TRIES):
        one = FAULTS[faults[0]](made, rng)
        two = FAULTS[faults[1]](one, rng) if one is not None else None
        if one is None or two is None:
            return None
        first, second = (truth.gpus for truth in two.truth)
        other = made.slowed({name: gbs / one.capacity[name] for name, gbs in two.capacity.items()})
        if not first & second and len(first | second) < made.count and _shows(two, one) and _shows(two, other):
            return two
    return None


def _shows(made: Made, without: Made) -> bool:
    """Return whether a fault slows some transfer by a tenth, which would be as fast without it; if it slows any part.

    Behind a slow root complex and a slow way to host memory a slow slot slows nothing.
    """
    measured = {None, *range(made.count), *(-1 - node for node in made.nodes)}
    ways = [way for way in made.routes if measured.issuperset(way)]
    slower = any(made.rates([way])[0] < 0.9 * without.rates([way])[0] for way in ways)
    return slower or made.capacity == without.capacity


def slow_root(made: Made, _rng: np.random.Generator) -> Made | None:
    """The root complex of every socket forwards copies between GPUs at a quarter of a slot's rate."""
    if made.family != "pcie" or not any(path.label == "NODE" for path in made.paths):
        return None
    roots = [name for name in made.capacity if name.startswith(("root", "socket"))]
    slot = made.capacity["slot 0 in"]
    links = frozenset(link for link in permutations(range(made.count), 2) if set(roots) & set(made.routes[link]))
    slow = {name: 0.25 * slot / made.capacity[name] for name in roots}
    return made.slowed(slow, Truth("slow root", None, links))


def one_root(made: Made, rng: np.random.Generator) -> Made | None:
    """The root complex of one of two sockets forwards copies between GPUs slowly, also from or to the other, or both.

    Copies with host memory are as fast as ever. The other socket has pairs across its root complex to compare with.
    """
    socket, ways = int(rng.integers(2)), (("leaves",), ("enters",), ("leaves", "enters"))[int(rng.integers(3))]
    slower, slot = float(rng.uniform(0.2, 0.7)), made.capacity["slot 0 in"]
    node = [device.numa_node for device in made.devices]
    compared = {node[path.devices[0]] for path in made.paths if path.label == "NODE"}
    if made.family != "pcie" or made.count < 6 or compared != {0, 1}:  # of one pair, it may be the pair's own path
        return None
    parts = [f"{part} {socket}" for part in ("root", *ways)]
    links = frozenset(link for link in permutations(range(made.count), 2) if set(parts) & set(made.routes[link]))
    slow = {name: slower * slot / made.capacity[name] for name in parts}
    gpus = frozenset(gpu for gpu in range(made.count) if node[gpu] == socket)
    return made.slowed(slow, Truth("one slow root", None, links, gpus=gpus))


def other_product(made: Made, rng: np.random.Generator) -> Made | None:
    """No fault: one card is of an older kind, in a slot of its own generation."""
    if made.family != "pcie" or made.devices[0].pcie_generation != 5:
        return None
    gpu = int(rng.integers(made.count))
    devices = list(made.devices)
    devices[gpu] = replace(devices[gpu], name="NVIDIA A40", pcie_generation=4)
    ratio = _SLOT_GBS[4][1] / _SLOT_GBS[5][1]
    paths = tuple(replace(path, theory_gbs=_SLOT_GBS[4][0]) if gpu in path.devices else path for path in made.paths)
    slower = made.slowed({f"slot {gpu} in": ratio, f"slot {gpu} out": ratio})
    return replace(slower, devices=tuple(devices), paths=paths)


def slow_for_a_third(made: Made, rng: np.random.Generator) -> Made:
    """One GPU is slower for a third of the run: its links are those of a healthy machine (measured.py)."""
    gpu = int(rng.integers(made.count))
    links = frozenset(link for link in permutations(range(made.count), 2) if gpu in link)
    return made.slowed({}, Truth("slow for a third", gpu, links))


def none(made: Made, _rng: np.random.Generator) -> Made:
    """No fault."""
    return made


# What is slow for one third of the run: which third, and the share of its rates that the GPU then has.
THIRDS = {
    f"{1 - share:.0%} slower for the {name} third": (third, share)
    for share in (0.9, 0.8, 0.7)
    for third, name in enumerate(("first", "middle", "last"))
}
EQUALLY_SLOW = {f"all at {share:.2f} of theory": share for share in (0.6, 0.65, 0.7, 0.75, 0.8)}
FAULTS: dict[str, Callable[[Made, np.random.Generator], Made | None]] = {
    "none": none,
    "slow slot": slow_slot,
    "two slow slots": two_slots,
    "slow pair": slow_pair,
    "slow uplink": slow_switch,
    "slow root": slow_root,
    "one slow root": one_root,
    "slow direction": slow_direction,
    "slow socket link": slow_sockets,
    "socket link at a quarter": partial(slow_sockets, of_slot=False),
    "all slow": all_slow,
    "two faults": two_faults,
    "throttled": throttled,
    "throttled below PCIe": partial(throttled, least=0.02, most=0.1),
    "busy": busy,
    "NCCL_P2P_DISABLE": no_p2p,
    "peers refused": refused,
    "slow socket link one way": socket_one_way,
    "other product": other_product,
    **dict.fromkeys(THIRDS, slow_for_a_third),
    **{name: partial(all_slow, share=share) for name, share in EQUALLY_SLOW.items()},
}
# Faults that may come together. A slow root complex leaves no slow socket link or uplink to be seen.
_TOGETHER = (
    ("slow slot", "slow direction"),
    ("slow slot", "slow uplink"),
    ("slow slot", "slow root"),
    ("slow slot", "slow socket link"),
    ("slow slot", "slow socket link one way"),
    ("slow slot", "slow pair"),
    ("slow direction", "slow direction"),
    ("slow direction", "slow uplink"),
    ("slow direction", "slow root"),
    ("slow direction", "slow socket link"),
    ("slow direction", "slow socket link one way"),
    ("slow direction", "slow pair"),
    ("slow uplink", "slow uplink"),
    ("slow uplink", "slow socket link"),
    ("slow uplink", "slow socket link one way"),
    ("slow pair", "slow pair"),
    ("slow pair", "slow socket link"),
    ("slow pair", "slow socket link one way"),
)
SEEN = {
    f"{one} and {other}": (one, other)
    for one, other in (
        ("NCCL_P2P_DISABLE", "busy"),
        ("NCCL_P2P_DISABLE", "throttled"),
        ("NCCL_P2P_DISABLE", "slow slot"),
        ("NCCL_P2P_DISABLE", "slow direction"),
        ("NCCL_P2P_DISABLE", "slow pair"),
        ("peers refused", "busy"),
        ("throttled", "slow pair"),
    )
}
TOGETHER = {f"{one} and {other}": (one, other) for one, other in _TOGETHER}
NESTED = {"two unequal slots on one switch": slots_of_one_switch, "slot below its slow uplink": slot_below_uplink}
FAULTS |= {name: partial(both, faults) for name, faults in (TOGETHER | SEEN).items()}
FAULTS |= NESTED
