"""InfiniBand and RoCE cards as the kernel shows them: ports (state, rate, counters), and how near they are to GPUs."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from collbench.machine.kernel import PCI_BUS_ID, entries, pci_device, read
from collbench.machine.labels import PCIE_BEST_FIRST
from collbench.model.run import NetworkPort

_FOLDER = "sys/class/infiniband"
_RATE = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?) Gb/sec", re.ASCII)
# "4: ACTIVE", "5: LinkUp" [Documentation/ABI/stable/sysfs-class-infiniband].
_NUMBERED = re.compile(r"[0-9]+: *([A-Za-z_]+)", re.ASCII)
ACTIVE = "ACTIVE"

# Under counters/ [InfiniBand 1.7, 16.1.3.5 PortCounters] and hw_counters/ of mlx5 [NVIDIA, Understanding mlx5 Linux
# Counters]: what shows that a link loses or repeats packets.
ERRORS = (
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "port_rcv_errors",
    "port_rcv_remote_physical_errors",
    "port_xmit_discards",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "VL15_dropped",
    "packet_seq_err",
    "implied_nak_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "rx_icrc_encapsulated",
)
# The same folders: what shows that traffic waited for other traffic. A busy network has some of it, so it is no error.
CONGESTION = (
    "port_xmit_wait",
    "np_cnp_sent",
    "np_ecn_marked_roce_packets",
    "rp_cnp_handled",
    "out_of_buffer",
    "out_of_sequence",  # adaptive routing reorders packets, too
)
_COUNTERS = ("counters", "hw_counters")
# Bits of those that stop at their largest value [InfiniBand 1.7, 16.1.3.5; Linux, drivers/infiniband/core/sysfs.c].
_BITS = {
    "symbol_error": 16,
    "link_error_recovery": 8,
    "link_downed": 8,
    "port_rcv_errors": 16,
    "port_rcv_remote_physical_errors": 16,
    "port_xmit_discards": 16,
    "local_link_integrity_errors": 4,
    "excessive_buffer_overrun_errors": 4,
    "VL15_dropped": 16,
}


def read_ports(root: pathlib.Path) -> tuple[NetworkPort, ...]:
    """Return the ports of all cards by name and number; `root` holds sys/. What cannot be read stays unknown."""
    cards = sorted(entries(root / _FOLDER))
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
        counters=_counters(folder),
    )


def _counters(folder: pathlib.Path) -> dict[str, int]:
    """Return the counters that can be read; a card has some of them, and RoCE and InfiniBand differ."""
    counters = {}
    for name in (*ERRORS, *CONGESTION):
        texts = (read(folder / subfolder / name).strip() for subfolder in _COUNTERS)
        for text in texts:
            if re.fullmatch("[0-9]{1,20}", text, re.ASCII):
                counters[name] = int(text)
    return counters


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


@dataclass(frozen=True, slots=True)
class PortChange:
    """What changed on a port of a network card while it was measured."""

    port: NetworkPort
    what: str  # "state", "rate" in Gbit/s, or a counter's name
    before: str | float
    after: str | float | None  # None for a port that is gone, or whose host is
    growth: int = 0  # of a counter; 0 if it was at its largest value already, so that its growth is unknown

    @property
    def congestion(self) -> bool:
        """True for what a busy network has as well."""
        return self.what in CONGESTION


def changes(before: Sequence[NetworkPort], after: Sequence[NetworkPort]) -> Iterator[PortChange]:
    """Yield what changed on each port, by host and name. A counter that fell was reset, and says nothing."""
    later = {(port.host, port.name): port for port in after}
    for port in sorted(before, key=lambda port: (port.host, port.card, port.number)):
        then = later.get((port.host, port.name))
        if then is None:
            yield PortChange(port, "state", port.state, None)
            continue
        if port.state and then.state and port.state != then.state:
            yield PortChange(port, "state", port.state, then.state)
        if port.rate_gbits and then.rate_gbits and port.rate_gbits != then.rate_gbits:
            yield PortChange(port, "rate", port.rate_gbits, then.rate_gbits)
        for name, count in port.counters.items():
            now = then.counters.get(name, count)
            growth = now - count
            if growth > 0 or (name in _BITS and count == now == 2 ** _BITS[name] - 1):
                yield PortChange(port, name, count, count + growth, growth)


# How near cards are to GPUs, by the kernel's PCI tree.


def read_affinity(root: pathlib.Path, bus_ids: Mapping[int, str], cards: Iterable[str]) -> dict[int, dict[str, str]]:
    """Return how near cards are to GPUs, in nvidia-smi's words; what is unknown is left out.

    GPUs are given by index with their PCI bus ids as NVML has them; `root` holds sys/.
    """
    folders = {card: _resolved(root / _FOLDER / card / "device") for card in cards}
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
