"""The words of `nvidia-smi topo`: path labels, their order and meaning, and the peer-access states.

Order, best first: NV# (more links are better), PIX, PXB, PHB, NODE, SYS (docs/method/verdicts.md 1).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable
from typing import TypeVar

from collbench.model.run import Path, PeerStatus

_Member = TypeVar("_Member")

SELF = "X"
UNKNOWN = "N/A"

_NVLINK = re.compile(r"NV([1-9]\d*)")
PCIE_BEST_FIRST = ("PIX", "PXB", "PHB", "NODE", "SYS")
# Drivers before r396 call SYS "SOC"; dual-GPU boards such as K80 had "PSB" for their own on-board bridge.
_OLD_NAMES = {"SOC": "SYS", "PSB": "PIX"}

# The command's own legend [nvidia-smi 580.159.04, topo -m], in its order: self, then worst to best.
_LEGEND = {
    SELF: "Self",
    "SYS": "Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)",
    "NODE": "Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node",
    "PHB": "Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)",
    "PXB": "Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)",
    "PIX": "Connection traversing at most a single PCIe bridge",
    "NV#": "Connection traversing a bonded set of # NVLinks",
    UNKNOWN: "Not reported by the driver",
    "NET": "Connection between two hosts, through the network",
}

# The states of `nvidia-smi topo -p2p` and what they mean, from the same legend (DR appears in newer drivers), in the
# order of nvmlGpuP2PStatus_t [nvml.h, r580].
PEER_STATES = {
    PeerStatus.OK: "status OK",
    PeerStatus.CNS: "chipset not supported",
    PeerStatus.GNS: "GPU not supported",
    PeerStatus.TNS: "topology not supported",
    PeerStatus.DR: "disabled by registry key",
    PeerStatus.NS: "not supported",
    PeerStatus.UNKNOWN: "unknown",
}


@functools.lru_cache  # a judge asks for every pair of every data point, and a machine has few labels
def nvlink_count(label: str) -> int:
    """Return the number of NVLinks that a label names: 18 for "NV18", 0 for "PIX"."""
    match = _NVLINK.fullmatch(label)
    return int(match[1]) if match else 0


def nvlinks(path: Path) -> int:
    """Return the number of NVLinks of a path: NVML's, else the label's."""
    return path.nvlinks or nvlink_count(path.label)


def is_nvlink(label: str) -> bool:
    """Return whether a label is NV#."""
    return nvlink_count(label) > 0


def is_pcie(label: str) -> bool:
    """Return whether a label is of a path over PCIe, which may share links with others: PIX to SYS."""
    return label in PCIE_BEST_FIRST


def is_label(text: str) -> bool:
    """Return whether a word can stand between two different GPUs in the label matrix."""
    return is_nvlink(text) or text in PCIE_BEST_FIRST or text == UNKNOWN


def canonical(text: str) -> str:
    """Return today's name of a label that an older driver wrote; any other text as it is."""
    return _OLD_NAMES.get(text, text)


def rank_key(label: str) -> tuple[int, int]:
    """Return a sort key, best label first: NV18 < NV1 < PIX < … < SYS < anything unknown."""
    if is_nvlink(label):
        return (0, -nvlink_count(label))
    if label in PCIE_BEST_FIRST:
        return (1 + PCIE_BEST_FIRST.index(label), 0)
    return (1 + len(PCIE_BEST_FIRST), 0)


def labels_within(paths: Iterable[Path], devices: Collection[int]) -> tuple[str, ...]:
    """Return the labels of the paths among these devices, each once, best first."""
    return tuple(sorted({path.label for path in paths if set(path.devices) <= set(devices)}, key=rank_key))


def chained(groups: Iterable[Iterable[_Member]]) -> list[set[_Member]]:
    """Return groups that share a member as one, over any chain of such groups."""
    islands: list[set[_Member]] = []
    for group in map(set, groups):
        touched = [island for island in islands if island & group]
        islands = [island for island in islands if island not in touched]
        islands.append(group.union(*touched))
    return islands


def legend(occurring: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Return (label, text) of X and of each label that occurs, in nvidia-smi's order; all NV# share one entry."""
    wanted = {SELF} | {"NV#" if is_nvlink(label) else label for label in occurring}
    return tuple((label, text) for label, text in _LEGEND.items() if label in wanted)
