"""The ports of InfiniBand and RoCE cards as the kernel shows them: state and rate."""

from __future__ import annotations

import pathlib
import re

from collbench.machine.kernel import entries, read
from collbench.model.run import NetworkPort

FOLDER = "sys/class/infiniband"
_RATE = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?) Gb/sec", re.ASCII)
# "4: ACTIVE", "5: LinkUp" [Documentation/ABI/stable/sysfs-class-infiniband].
_NUMBERED = re.compile(r"[0-9]+: *([A-Za-z_]+)", re.ASCII)


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
