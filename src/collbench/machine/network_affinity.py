"""How near network cards are to GPUs, by the kernel's PCI tree."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterable, Mapping

from collbench.machine.kernel import PCI_BUS_ID, pci_device, read

# nvidia-smi's words for how near two PCI devices are, nearest first ["nvidia-smi topo -m", its legend].
NEARNESS = ("PIX", "PXB", "PHB", "NODE", "SYS")


def read_affinity(root: pathlib.Path, bus_ids: Mapping[int, str], cards: Iterable[str]) -> dict[int, dict[str, str]]:
    """Return how near cards are to GPUs, in words of NEARNESS; what is unknown is left out.

    GPUs are given by index with their PCI bus ids as NVML has them; `root` holds sys/.
    """
    folders = {card: _resolved(root / "sys/class/infiniband" / card / "device") for card in cards}
    near: dict[int, dict[str, str]] = {}
    for gpu, bus_id in bus_ids.items():
        gpu_folder = pci_device(root, bus_id)
        distances = {
            card: _nearness(gpu_folder, folder)
            for card, folder in folders.items()
            if gpu_folder is not None and folder is not None
        }
        near[gpu] = {card: how for card, how in distances.items() if how}
    return near


def nearest(near: Mapping[str, str]) -> tuple[tuple[str, ...], str]:
    """Return the cards nearest to a GPU, and how near: ((), "") if nothing is known."""
    best = next((how for how in NEARNESS if how in near.values()), "")
    return tuple(sorted(card for card, how in near.items() if how == best)), best


def _resolved(path: pathlib.Path) -> pathlib.Path | None:
    try:
        return path.resolve(strict=True)
    except (OSError, RuntimeError):
        return None


def _nearness(first: pathlib.Path, second: pathlib.Path) -> str:
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
