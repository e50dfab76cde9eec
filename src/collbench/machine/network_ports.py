"""Ports of InfiniBand and RoCE cards as the kernel shows them in /sys/class/infiniband: state and rate."""

from __future__ import annotations

import pathlib
import re
from dataclasses import dataclass

from collbench.machine.numa import read

_FOLDER = "sys/class/infiniband"
_RATE = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?) Gb/sec", re.ASCII)
# "4: ACTIVE", "5: LinkUp" [Documentation/ABI/stable/sysfs-class-infiniband].
_NUMBERED = re.compile(r"[0-9]+: *([A-Za-z_]+)", re.ASCII)
ACTIVE = "ACTIVE"


@dataclass(frozen=True, slots=True)
class Port:
    """One port of a card. Words are the kernel's, "" where it does not say; `rate_gbits` in Gbit/s, None if unknown.

    `model` is the card's type (hca_type, as "MT4129"), `link_layer` InfiniBand or Ethernet.
    """

    card: str
    number: int
    state: str = ""
    physical_state: str = ""
    rate_gbits: float | None = None
    link_layer: str = ""
    model: str = ""

    @property
    def name(self) -> str:
        """As NCCL_IB_HCA has it: "mlx5_0:1"."""
        return f"{self.card}:{self.number}"


def read_ports(root: pathlib.Path) -> tuple[Port, ...]:
    """Return the ports of all cards by name and number; `root` holds sys/. What cannot be read stays unknown."""
    cards = sorted(_entries(root / _FOLDER))
    return tuple(
        _port(card, number)
        for card in cards
        for number in sorted(
            int(port.name) for port in _entries(card / "ports") if re.fullmatch("[0-9]{1,5}", port.name)
        )
    )


def _port(card: pathlib.Path, number: int) -> Port:
    folder = card / "ports" / str(number)
    rate = _RATE.match(read(folder / "rate"))
    return Port(
        card=card.name,
        number=number,
        state=_word(read(folder / "state")),
        physical_state=_word(read(folder / "phys_state")),
        rate_gbits=float(rate[1]) if rate and float(rate[1]) > 0 else None,
        link_layer=read(folder / "link_layer").strip(),
        model=read(card / "hca_type").strip(),
    )


def _word(text: str) -> str:
    found = _NUMBERED.match(text)
    return found[1] if found else ""


def _entries(folder: pathlib.Path) -> list[pathlib.Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def down(ports: tuple[Port, ...]) -> tuple[Port, ...]:
    """Return the ports that carry no traffic, by their own word."""
    return tuple(port for port in ports if port.state not in ("", ACTIVE))


def slower(ports: tuple[Port, ...]) -> tuple[tuple[Port, float], ...]:
    """Return the active ports below the rate of an active sibling, with the best sibling's Gbit/s.

    Siblings have the same model and link layer: a card for storage or management is no measure for the others.
    """
    best: dict[tuple[str, str], float] = {}
    known = [(port, port.rate_gbits) for port in ports if port.state == ACTIVE and port.model and port.rate_gbits]
    for port, rate in known:
        kind = (port.model, port.link_layer)
        best[kind] = max(rate, best.get(kind, 0.0))
    return tuple(
        (port, best[port.model, port.link_layer]) for port, rate in known if rate < best[port.model, port.link_layer]
    )
