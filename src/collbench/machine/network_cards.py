"""InfiniBand and RoCE cards as the kernel shows them: ports (state, rate), and how near they are to GPUs."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterable, Mapping

from collbench.machine.kernel import PCI_BUS_ID, entries, pci_device, read
from collbench.machine.labels import PCIE_BEST_FIRST
from collbench.model.run import NetworkPort

FOLDER = "sys/class/infiniband"
_RATE = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?) Gb/sec", re.ASCII)
# "4: ACTIVE", "5: LinkUp" [Documentation/ABI/stable/sysfs-class-infiniband].
_NUMBERED = re.compile(r"[0-9]+: *([A-Za-z_]+)", re.ASCII)
ACTIVE = "ACTIVE"


def read_ports(root: pathlib.Path) -> tuple[NetworkPort, ...]:
    """Return the ports of all cards by name and number; `root` holds sys/. What cannot be read stays unknown."""
    cards = sorted(entries(root / FOLDER))
    return tuple(
        _port(card, number)
        for card in cards
        for number in sorted(
            int(port.name) for port in entries(card / "ports") if re.fullmatch("[0-9]{1,5}", port.name)
        )
    )


def _port(card: pathlib.Path, number: int) -> NetworkPort:
    folder = card / "ports" / str(number)
    rate = _RATE.match(read(folder / "rate"))
    return NetworkPort(
        card=card.name,
        number=number,
        state=_state_name(read(folder / "state")),
        physical_state=_state_name(read(folder / "phys_state")),
        rate_gbits=float(rate[1]) if rate and float(rate[1]) > 0 else None,
        link_layer=read(folder / "link_layer").strip(),
        model=read(card / "hca_type").strip(),
    )


def _state_name(text: str) -> str:
    match = _NUMBERED.match(text)
    return match[1] if match else ""


def down(ports: tuple[NetworkPort, ...]) -> tuple[NetworkPort, ...]:
    """Return the ports that report that they carry no traffic."""
    return tuple(port for port in ports if port.state not in ("", ACTIVE))


def slower(ports: tuple[NetworkPort, ...]) -> tuple[tuple[NetworkPort, float], ...]:
    """Return the active ports below the rate of an active sibling, with the best sibling's Gbit/s.

    Siblings have the same model and link layer: a card for storage or management is no measure for the others.
    """
    best: dict[tuple[str, str], float] = {}
    active_ports = [
        (port, port.rate_gbits) for port in ports if port.state == ACTIVE and port.model and port.rate_gbits
    ]
    for port, rate in active_ports:
        kind = (port.model, port.link_layer)
        best[kind] = max(rate, best.get(kind, 0.0))
    return tuple(
        (port, best[port.model, port.link_layer])
        for port, rate in active_ports
        if rate < best[port.model, port.link_layer]
    )


# How near cards are to GPUs, by the kernel's PCI tree.


def read_affinity(root: pathlib.Path, bus_ids: Mapping[int, str], cards: Iterable[str]) -> dict[int, dict[str, str]]:
    """Return how near cards are to GPUs, in nvidia-smi's words; what is unknown is left out.

    GPUs are given by index with their PCI bus ids as NVML has them; `root` holds sys/.
    """
    folders = {card: _resolved(root / FOLDER / card / "device") for card in cards}
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
    best = next((how for how in PCIE_BEST_FIRST if how in near.values()), "")
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
