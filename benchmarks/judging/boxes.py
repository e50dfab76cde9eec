"""Other machines to choose from, and what NCCL truly reaches on them: neither machines.py nor rings.py made these.

They are built from places on boards: hybrid cube meshes with missing links, bridges of four and of two GPUs in boxes
with PCIe switches, four NUMA nodes whose links differ, boxes without peer access, NVSwitches. NCCL goes by labels: it
packs the most rings over NVLinks (a whole-number program), else it may run up and down a chain of NVLinks (its tree on
one node), else one ring over whatever joins the GPUs, from each to the nearest by label. What the links then carry
decides, each by all the rings that cross it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import combinations, pairwise, permutations
from zlib import crc32

import numpy as np
from scipy.optimize import LinearConstraint, milp

from collbench.model.run import Device, Path, PeerReadWrite, PeerStatus

from .machines import Made, Pair, Route
from .measured import Noise

FAMILIES = ("cube", "quads", "bridges", "numa", "switch")
_NEAR = ("PIX", "PXB", "PHB", "NODE", "SYS")
_MODELS = {  # name, PCIe generation, GB/s of an NVLink, and how many of them a bundle has
    "cube": [("Tesla V100-SXM2-32GB", 3, 25.0, 2)],
    "quads": [("NVIDIA A100-SXM4-80GB", 4, 25.0, 4), ("NVIDIA H200 NVL", 5, 25.0, 6)],
    "bridges": [("NVIDIA RTX A6000", 4, 14.0625, 4), ("NVIDIA H100 NVL", 5, 25.0, 12)],
    "numa": [("NVIDIA L40S", 4, 0.0, 0), ("NVIDIA RTX PRO 6000", 5, 0.0, 0)],
    "switch": [("Tesla V100-SXM3-32GB", 3, 25.0, 6), ("NVIDIA H100 80GB HBM3", 5, 25.0, 18)],
}
_SLOT_GBS = {3: 15.75, 4: 31.5, 5: 63.0}
_CUBE = ("011", "021", "032", "122", "131", "232", "451", "461", "472", "562", "571", "672", "042", "152", "261", "371")
_MESHES = ("cube", "quads")


@dataclass(frozen=True)
class Box:
    """A machine, what is slow in it, and how its NCCL does: `units` rings share a link, `chains` is a chain's share."""

    made: Made
    slow: str
    units: int
    chains: float
    reduces: bool

    def reached(self, members: Sequence[int]) -> tuple[float, str]:
        """Return the all-reduce busbw in GB/s, before NCCL's share, and over what: switch, links or slots."""
        members = tuple(sorted(members))
        if len(members) == 2:
            return min(self.made.rates([members, members[::-1]])), "slots"
        if self.made.family == "switch":
            ports = [self.made.capacity[f"port {gpu} {way}"] for gpu in members for way in ("in", "out")]
            return min(ports) if self.reduces else min(self.made.rates(_hops(members))), "switch"
        over_pcie = min(self.made.rates(_hops(self._nearest(members)))), "slots"
        if self.made.family not in _MESHES:
            return over_pcie
        links = np.array([[self.made.links.get((a, b), 0) for b in members] for a in members])
        rooms = (self.units * links).tobytes()
        rings = [[members[place] for place in ring] for ring in _packed(len(members), rooms)]
        if rings:
            load = Counter(hop for ring in rings for hop in _hops(ring))
            return min(len(rings) * self.made.rates([hop])[0] / times for hop, times in load.items()), "links"
        return max(over_pcie, self._chain(members))

    def _chain(self, members: Sequence[int]) -> tuple[float, str]:
        """Return what NCCL's tree reaches, 0 without a chain of NVLinks through all members."""
        chains = permutations(members) if self.chains else ()
        widths = ((min(self.made.links.get(hop, 0) for hop in pairwise(chain)), chain) for chain in chains)
        width, chain = max(widths, default=(0, ()))
        if not width:
            return 0.0, "slots"
        slowest = min(self.made.rates([way])[0] for hop in pairwise(chain) for way in (hop, hop[::-1]))
        return self.chains * slowest * 2 * (len(members) - 1) / len(members), "links"

    def _nearest(self, members: Sequence[int]) -> list[int]:
        ring, left = [members[0]], list(members[1:])
        while left:
            ring.append(min(left, key=lambda gpu: (self._distance[ring[-1], gpu], gpu)))
            left.remove(ring[-1])
        return ring

    @cached_property
    def _distance(self) -> dict[Pair, int]:
        near = {path.devices: -1 if path.nvlinks else _NEAR.index(path.label) for path in self.made.paths}
        return near | {pair[::-1]: far for pair, far in near.items()}


class PairNoise(Noise):
    """Each set of GPUs has its own noise, a few times `sigma` or a fraction; `between` is from run to run."""

    def __init__(self, sigma: float, between: float, rng: np.random.Generator) -> None:
        super().__init__(sigma, rng)
        self.between = between
        self.scales: dict[tuple[int, ...], float] = {}
        self.offsets: dict[tuple[int, ...], float] = {}

    def next_run(self) -> None:
        """Draw anew what each set is off by."""
        self.offsets.clear()

    def of(self, members: tuple[int, ...], key: object, seconds: float) -> float:
        """Return the noise of a trial."""
        del key, seconds
        some = tuple(sorted(members))
        if some not in self.scales:
            self.scales[some] = self.sigma * float(np.exp(0.8 * self.rng.standard_normal()))
        if some not in self.offsets:
            self.offsets[some] = self.between * float(self.rng.standard_normal())
        return self.offsets[some] + self.scales[some] * float(self.rng.standard_normal())


def draw(family: str, rng: np.random.Generator) -> Box:
    """Return a machine with up to three slow elements."""
    model = _MODELS[family][int(rng.integers(len(_MODELS[family])))]
    count = int(rng.choice({"cube": [8], "quads": [4, 8, 8], "switch": [8, 8, 16]}.get(family, [4, 8, 8, 8, 16])))
    made = _built(family, count, model, rng)
    slow = _slow(made, rng)
    chains = float(rng.uniform(0.5, 0.9)) if rng.random() < 0.3 else 0.0
    words = "; ".join(f"{name} {share}" for name, share in slow.items())
    return Box(made.slowed(slow), words, int(rng.choice([1, 1, 2])), chains, bool(rng.random() < 0.3))


def _slow(made: Made, rng: np.random.Generator) -> dict[str, float]:
    """Return what share of their rate some elements have: a whole GPU, or one element one way or both."""
    slow: dict[str, float] = {}
    kinds = ["NVLinks", "GPU"]
    if made.family != "cube":
        kinds += ["NVLinks", "port" if made.family == "switch" else "slot", "uplink", "socket"]
    for _ in range(int(rng.choice([0, 1, 1, 2, 3]))):
        kind, share = str(rng.choice(kinds)), round(float(rng.uniform(0.25, 0.95)), 2)
        names = sorted(name for name in made.capacity if name.startswith(kind))
        if kind == "GPU":
            gpu, shared = str(rng.integers(made.count)), ("uplink", "socket", "host")
            own = [name for name in made.capacity if gpu in name.split() and not name.startswith(shared)]
            slow |= dict.fromkeys(own, share)
        elif names:
            name = names[int(rng.integers(len(names)))]
            slow[name] = share
            words = name.split()
            back = {"in": "out", "out": "in", "up": "down", "down": "up"}.get(words[-1])
            other = " ".join([*words[:-1], back] if back else [words[0], *words[:0:-1]])
            slow |= {other: share} if other in made.capacity and rng.random() < 0.7 else {}
    return slow


@dataclass(frozen=True)
class _Board:
    """Where each GPU is: its NUMA node, the PCIe switch below it; and whether GPUs reach each other's memory."""

    node: list[int]
    switch: list[tuple[int, int]]
    peers: bool

    def label(self, a: int, b: int) -> str:
        if self.switch[a] == self.switch[b]:
            return "PIX"
        return "NODE" if self.node[a] == self.node[b] else "SYS"

    def route(self, a: int, b: int) -> Route:
        """Return what a copy crosses without NVLinks; without peer access it goes through the host's memory."""
        label, middle = self.label(a, b), list[str]()
        if label != "PIX" or not self.peers:
            host = [f"host {self.node[a]}"] if label == "NODE" or not self.peers else []
            across = [f"socket {self.node[a]} {self.node[b]}"] if label == "SYS" else []
            middle = [f"uplink {self.switch[a]} up", *host, *across, f"uplink {self.switch[b]} down"]
        return (f"slot {a} out", *middle, f"slot {b} in")


def _built(family: str, count: int, model: tuple[str, int, float, int], rng: np.random.Generator) -> Made:
    name, generation, link_gbs, bundle = model
    slot = _SLOT_GBS[generation] * float(rng.uniform(0.8, 0.85))
    nodes = int(rng.choice([1, 2, 2, 4])) if family in ("numa", "bridges") and count > 4 else 2
    below = int(rng.choice([1, 2, 4])) if family != "switch" else 1  # GPUs on a PCIe switch
    places = list(range(count)) if rng.random() < 0.5 else rng.permutation(count).tolist()  # of GPUs by bus id
    node = [place * nodes // count for place in places]
    peers = family == "cube" or bool(rng.random() < 0.8)
    board = _Board(node, [*zip(node, (place // below for place in places), strict=True)], peers)
    capacity = {f"slot {gpu} {way}": slot for gpu in range(count) for way in ("in", "out")}
    capacity |= {
        f"uplink {one} {way}": slot * (1 if below > 1 else 9) for one in board.switch for way in ("up", "down")
    }
    host, far = slot * float(rng.choice([1.5, 3.0, 6.0, 12.0])), float(rng.choice([0.8, 1.2, 3.0]))
    capacity |= {f"host {one}": host for one in range(nodes)}
    for a, b in permutations(range(nodes), 2):  # of four nodes two are on each socket
        capacity[f"socket {a} {b}"] = slot * (far if nodes < 4 or a // 2 != b // 2 else 2 * far)
    bundles = _bundles(family, count, bundle, rng)
    ports = bundle * link_gbs * float(rng.uniform(0.86, 0.96))
    routes: dict[tuple[int | None, int | None], Route] = {}
    paths, links = [], dict[Pair, int]()
    for a, b in permutations(range(count), 2):
        low, high = sorted((places[a], places[b]))
        joined, label = bundles.get((low, high), 0), board.label(a, b)
        routes[a, b] = board.route(a, b)
        if joined:
            routes[a, b] = own = (f"NVLinks {a} {b}",)
            capacity[own[0]], links[a, b] = joined / bundle * ports, joined
            if family == "switch":
                routes[a, b] = (f"port {a} out", *own, f"port {b} in")
                capacity |= {f"port {a} out": ports, f"port {b} in": ports}
        if a < b:
            limit = joined * link_gbs if joined else _SLOT_GBS[generation]
            peer = PeerReadWrite(*[PeerStatus.OK if peers or joined else PeerStatus.CNS] * 2)
            word = f"NV{joined}" if joined else label
            paths.append(Path((a, b), word, label, joined, limit, "", peer, cuda_peers=peers))
    for gpu, switch in enumerate(board.switch):
        routes[None, gpu] = (f"uplink {switch} down", f"slot {gpu} in")
        routes[gpu, None] = (f"slot {gpu} out", f"uplink {switch} up")
    devices = tuple(_device(gpu, name, generation, node[gpu]) for gpu in range(count))
    return Made(family, devices, tuple(paths), capacity, routes, float(rng.uniform(0.75, 0.92)), links=links)


def _device(gpu: int, name: str, generation: int, node: int) -> Device:
    bus = f"00000000:{16 + gpu:02X}:00.0"
    return Device(gpu, f"GPU-{gpu:08}-box", name, bus, 2**36, node, "", pcie_generation=generation, pcie_width=16)


def _bundles(family: str, count: int, bundle: int, rng: np.random.Generator) -> dict[Pair, int]:
    """Return the NVLinks between places; some links of a mesh, and whole bridges, may be missing."""
    if family == "switch":
        return dict.fromkeys(combinations(range(count), 2), bundle)
    if family == "cube":
        bundles = {(int(one[0]), int(one[1])): int(one[2]) for one in _CUBE}
    elif family == "quads":
        bundles = {pair: bundle for pair in combinations(range(count), 2) if pair[0] // 4 == pair[1] // 4}
    else:
        far = family == "bridges" and rng.random() < 0.3
        ends = [(gpu, gpu + count // 2) if far else (2 * gpu, 2 * gpu + 1) for gpu in range(count // 2)]
        bundles = dict.fromkeys(ends if family == "bridges" else [], bundle)
    for _ in range(int(rng.choice([0, 0, 1, 2, 3])) if bundles else 0):
        pair = list(bundles)[int(rng.integers(len(bundles)))]
        bundles[pair] = 0 if family == "bridges" else max(0, bundles[pair] - int(rng.integers(1, 3)))
    return bundles


def _hops(ring: Sequence[int]) -> list[Pair]:
    return list(pairwise((*ring, ring[0])))


@cache
def _orders(k: int) -> np.ndarray:
    return np.array([(0, *rest) for rest in permutations(range(1, k))])


@cache
def _packed(k: int, rooms: bytes) -> list[list[int]]:
    """Return the most directed rings through all k members that fit into the room of each hop at once."""
    room, rings = np.frombuffer(rooms, dtype=int), _orders(k)
    hops = rings * k + np.roll(rings, -1, axis=1)
    usable = (room[hops] > 0).all(axis=1)
    if not usable.any():
        return []
    rings, hops = rings[usable], hops[usable]
    crosses = np.zeros((k * k, len(rings)))
    crosses[hops, np.arange(len(rings))[:, None]] = 1
    any_of_equal = np.random.default_rng(crc32(rooms)).random(len(rings))
    fits = LinearConstraint(crosses, ub=room)
    found = milp(-1 - 1e-4 * any_of_equal, constraints=fits, integrality=np.ones(len(rings), dtype=int)).x
    times = [] if found is None else np.round(found).astype(int).tolist()
    return [ring for ring, count in zip(rings.tolist(), times, strict=True) for _ in range(count)]
