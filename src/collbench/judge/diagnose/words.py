"""Words that several rules use: names of devices and works, and parts of the shell commands that check a cause."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from collbench.model.operations import Work
from collbench.model.run import Run

# As NVML writes it, "00000000:1B:00.0"; a run file may contain anything.
_BUS_ID = re.compile(r"([0-9A-Fa-f]+):([0-9A-Fa-f]+:[0-9A-Fa-f]+\.[0-9A-Fa-f])")


def names(works: Iterable[Work]) -> str:
    """Return each work once, by name: "ce-read, ce-write"."""
    return ", ".join(sorted(map(str, {*works})))


def indices(run: Run, positions: Iterable[int]) -> str:
    """Return devices as nvidia-smi and --devices name them: "0,1"."""
    return ",".join(str(run.devices[position].index) for position in positions)


def on(run: Run, positions: Sequence[int]) -> str:
    """Return nvidia-smi's option for some devices, " -i 0,1"; "" for none, which means all."""
    return f" -i {indices(run, positions)}" if positions else ""


def slots(run: Run, positions: Iterable[int]) -> str:
    """Return the commands that show the state of PCIe links: of all where a bus id is unknown or malformed."""
    ids = (_BUS_ID.fullmatch(run.devices[position].pci_bus_id) for position in positions)
    known = [f"{int(match[1], 16):04x}:{match[2].lower()}" for match in ids if match]
    if not known:
        return "sudo lspci -vvv | grep -e NVIDIA -e LnkSta"
    return "; ".join(f"sudo lspci -vvv -s {address} | grep LnkSta:" for address in known)
