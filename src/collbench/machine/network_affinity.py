"""Which network cards are near which GPUs: by the kernel's PCI tree, and as NCCL chose, by the files that it writes."""

from __future__ import annotations

import itertools
import pathlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from xml.etree import ElementTree

from collbench import untrusted
from collbench.machine.kernel import PCI_BUS_ID, pci_device, read

# nvidia-smi's words for how near two PCI devices are, nearest first ["nvidia-smi topo -m", its legend].
NEARNESS = ("PIX", "PXB", "PHB", "NODE", "SYS")
_SAME_BRIDGE = NEARNESS[:3]
# NCCL's ids of devices: the system's in the upper 8 bits, since 2.22 [src/graph/topo.h, NCCL_TOPO_ID].
_LOCAL = (1 << 56) - 1
_MOST_BYTES = 16 << 20
TOPOLOGY_VARIABLE, GRAPH_VARIABLE = "NCCL_TOPO_DUMP_FILE", "NCCL_GRAPH_DUMP_FILE"


@dataclass(frozen=True, slots=True)
class NetworkAffinity:
    """How near network cards are to GPUs, by the GPU's index and the card. What is unknown is left out."""

    near: Mapping[int, Mapping[str, str]] = field(default_factory=dict)  # words of NEARNESS
    chosen: Mapping[int, tuple[str, ...]] = field(default_factory=dict)  # cards of NCCL's; {} without its files
    # What nvidia-smi says of the same, which `near` also has where the PCI tree does not show it.
    reported: Mapping[int, Mapping[str, str]] = field(default_factory=dict)

    def nearest(self, gpu: int) -> tuple[tuple[str, ...], str]:
        """Return the cards nearest to a GPU, and how near: ((), "") if nothing is known."""
        near = self.near.get(gpu, {})
        best = min((NEARNESS.index(how) for how in near.values()), default=None)
        if best is None:
            return (), ""
        return tuple(sorted(card for card, how in near.items() if how == NEARNESS[best])), NEARNESS[best]

    def disputed(self) -> Iterator[tuple[int, str, str, str]]:
        """Yield where one source has a card under the GPU's own host bridge, and the other one has not."""
        for gpu, near in sorted(self.near.items()):
            for card, how in sorted(near.items()):
                other = self.reported.get(gpu, {}).get(card, how)
                if (how in _SAME_BRIDGE) != (other in _SAME_BRIDGE):
                    yield gpu, card, how, other

    def farther(self) -> Iterator[tuple[int, str, str, tuple[str, ...], str]]:
        """Yield where NCCL took a card that is farther than another: GPU, card, how near; the nearest, how near."""
        for gpu, cards in sorted(self.chosen.items()):
            nearest, best = self.nearest(gpu)
            for card in cards:
                how = self.near.get(gpu, {}).get(card)
                if how is not None and NEARNESS.index(how) > NEARNESS.index(best):
                    yield gpu, card, how, nearest, best


def read_affinity(
    root: pathlib.Path,
    bus_ids: Mapping[int, str],
    cards: tuple[str, ...],
    environment: Mapping[str, str],
    reported: Mapping[int, Mapping[str, str]] | None = None,
) -> NetworkAffinity:
    """Return the affinity of GPUs, by index with their PCI bus ids as NVML has them; `root` holds sys/.

    `reported` are nvidia-smi's words by GPU index and card.
    """
    reported_near = {
        gpu: {card: how for card, how in (reported or {}).get(gpu, {}).items() if card in cards and how in NEARNESS}
        for gpu in bus_ids
    }
    folders = {card: _resolved(root / "sys/class/infiniband" / card / "device") for card in cards}
    near: dict[int, dict[str, str]] = {}
    for gpu, bus_id in bus_ids.items():
        gpu_folder = pci_device(root, bus_id)
        distances = {
            card: nearness(gpu_folder, folder)
            for card, folder in folders.items()
            if gpu_folder is not None and folder is not None
        }
        near[gpu] = {**reported_near[gpu], **{card: how for card, how in distances.items() if how}}
    topology, graphs = (_text(environment.get(variable, "")) for variable in (TOPOLOGY_VARIABLE, GRAPH_VARIABLE))
    return NetworkAffinity(near, nccl_choice(topology, graphs, bus_ids) if topology and graphs else {}, reported_near)


def _resolved(path: pathlib.Path) -> pathlib.Path | None:
    try:
        return path.resolve(strict=True)
    except (OSError, RuntimeError):
        return None


def nearness(first: pathlib.Path, second: pathlib.Path) -> str:
    """Return how near two PCI devices are by their resolved folders in sysfs, in nvidia-smi's words; "" if unknown."""
    bus_paths = [[part for part in path.parts if PCI_BUS_ID.fullmatch(part)] for path in (first, second)]
    shared = 0
    for mine, theirs in zip(*bus_paths, strict=False):
        if mine != theirs:
            break
        shared += 1
    if shared and shared < min(map(len, bus_paths)):
        # Bridges between each device and the bridge that both are under: one level is the same switch.
        return "PIX" if max(len(bus_path) - shared - 1 for bus_path in bus_paths) <= 1 else "PXB"
    bridges = [
        next((part for part in path.parts if re.fullmatch(r"pci[0-9a-f]{4,}:[0-9a-f]{2}", part)), "")
        for path in (first, second)
    ]
    if bridges[0] and bridges[0] == bridges[1]:
        return "PHB"
    nodes = [read(path / "numa_node").strip() for path in (first, second)]
    if not all(re.fullmatch("[0-9]+", node, re.ASCII) for node in nodes):
        return ""  # -1: firmware does not say
    return "NODE" if nodes[0] == nodes[1] else "SYS"


# What NCCL wrote of its own choice.


def _text(name: str) -> str:
    """Return a file's text; "" if there is none, or it is far too long."""
    try:
        return untrusted.read(pathlib.Path(name), _MOST_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""


def nccl_choice(topology: str, graphs: str, bus_ids: Mapping[int, str]) -> dict[int, tuple[str, ...]]:
    """Return the cards of each GPU from NCCL's XML: its topology names devices, its graphs' channels connect them.

    A channel goes from its first card to its first GPU, and from its last GPU to its last card. {} for what is no such
    XML; GPUs and cards that the topology does not name are left out.
    """
    try:
        system, graph = ElementTree.fromstring(topology), ElementTree.fromstring(graphs)  # noqa: S314  # the user's own
    except ElementTree.ParseError:
        return {}
    wanted = {_bus(bus_id): index for index, bus_id in bus_ids.items()}
    gpus: dict[int, int] = {}
    for slot in system.iter("pci"):
        index = wanted.get(_bus(slot.get("busid", "")))
        for gpu in slot.findall("gpu"):
            number = _number(gpu.get("dev"))
            if index is not None and number is not None:
                gpus[number] = index
    cards = {
        number: net.get("name", "") for net in system.iter("net") if (number := _number(net.get("dev"))) is not None
    }
    chosen: dict[int, set[str]] = {}
    for channel in graph.iter("channel"):
        ends = [(element.tag, _number(element.get("dev"))) for element in channel if element.tag in {"net", "gpu"}]
        for (tag, device), (other, neighbour) in itertools.pairwise(ends):
            pair = {tag: device, other: neighbour}
            number, net = pair.get("gpu"), pair.get("net")
            if number is not None and net is not None and number in gpus and cards.get(net):
                chosen.setdefault(gpus[number], set()).add(cards[net])
    return {gpu: tuple(sorted(names)) for gpu, names in chosen.items()}


def _bus(bus_id: str) -> str:
    """Return a PCI bus id without leading zeros of its domain: NVML writes eight digits, NCCL and the kernel four."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{domain.lstrip('0')}:{rest}"


def _number(text: str | None) -> int | None:
    try:
        number = int(text or "", 0)
    except ValueError:
        return None
    return number & _LOCAL if number >= 0 else None
