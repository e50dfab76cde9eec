"""The PCIe way up from a GPU: its IOMMU group, and which bridges send peer traffic to the CPU (ACS)."""

from __future__ import annotations

import pathlib
import re
import struct

from collbench.doctor.facts import Slot
from collbench.machine.numa import read

_BUS_ID = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
# Extended capabilities begin at 0x100: id in 16 bits, version in 4, the next one's offset in 12 [PCIe 5.0, 7.6.3].
_FIRST_EXTENDED, _ACS = 0x100, 0x000D
# ACS control register, 6 bytes into it: P2P request redirect, P2P completion redirect, upstream forwarding
# [PCIe 5.0, 7.7.11.3]. Source validation (bit 0) alone redirects nothing.
_CONTROL, _REDIRECTS = 6, 0b0011100
_MOST_CAPABILITIES = 64  # a broken list may run in circles


def slot(root: pathlib.Path, pci_bus_id: str) -> Slot:
    """Return the way up from one GPU, by its PCI bus id as NVML writes it ("00000000:00:06.0"); `root` holds sys/."""
    domain, _, rest = pci_bus_id.partition(":")
    try:
        device = (root / f"sys/bus/pci/devices/{int(domain, 16):04x}:{rest.lower()}").resolve()
    except (ValueError, OSError, RuntimeError):
        return Slot()
    registers = {bridge.name: acs_control(bridge) for bridge in device.parents if _BUS_ID.fullmatch(bridge.name)}
    return Slot(
        iommu_type=read(device / "iommu_group/type").strip(),
        redirecting=tuple(name for name, control in registers.items() if (control or 0) & _REDIRECTS),
        unreadable=sum(control is None for control in registers.values()),
    )


def acs_control(bridge: pathlib.Path) -> int | None:
    """Return a bridge's ACS control bits, 0 where it has none; None where only root may read them."""
    try:
        config = (bridge / "config").read_bytes()
    except OSError:
        return None
    if len(config) <= _FIRST_EXTENDED:
        return None  # the kernel gives other users the first 64 bytes
    place = _FIRST_EXTENDED
    for _ in range(_MOST_CAPABILITIES):
        if place < _FIRST_EXTENDED or place + 8 > len(config):
            return 0
        (head,) = struct.unpack_from("<I", config, place)
        if head & 0xFFFF == _ACS:
            return int(struct.unpack_from("<H", config, place + _CONTROL)[0])
        place = head >> 20
    return 0
