"""The path between two GPUs, as NVML tells it: NVLinks, PCIe ancestor, peer access, and the limit they set."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from collbench.machine import nvlink, theory
from collbench.machine.labels import UNKNOWN
from collbench.machine.query import Query
from collbench.model import Device, Path

# nvmlGpuTopologyLevel_t → label [nvml.h, r580]. INTERNAL (both GPUs on one board) is a single bridge: PIX.
_ANCESTORS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
# nvmlGpuP2PStatus_t [nvml.h, r580] in the words of nvidia-smi's legend
_PEER_WORDS = ("OK", "CNS", "GNS", "TNS", "DR", "NS", "U")
# nvmlGpuP2PCapsIndex_t. Not taken from nvidia-ml-py, where a stray comma makes READ the tuple (0,).
_PEER_READ, _PEER_WRITE = 0, 1


@dataclass(frozen=True, slots=True)
class Side:
    """What one GPU brings to each of its paths, asked once: NVML's calls are slow and pairs are many."""

    handle: object
    pci_bus_id: str
    ends: nvlink.Ends
    line_mbps: int | None
    capability: tuple[int, int] | None
    slot: theory.Theory | None


def side(query: Query, handle: object, device: Device) -> Side:
    """Return one GPU's share of its paths. The slot's *maximum* counts: an idle GPU lowers its generation."""
    links = nvlink.active_links(query, handle)
    generation = query.integer("nvmlDeviceGetMaxPcieLinkGeneration", handle)
    width = query.integer("nvmlDeviceGetMaxPcieLinkWidth", handle)
    return Side(
        handle=handle,
        pci_bus_id=device.pci_bus_id,
        ends=nvlink.ends(query, handle, links),
        line_mbps=nvlink.line_rate(query, handle, links),
        capability=query.ask("nvmlDeviceGetCudaComputeCapability", handle),
        slot=theory.pcie(generation, width),
    )


def between(query: Query, positions: tuple[int, int], first: Side, second: Side) -> Path:
    """Return the path between two GPUs; `theory_gbs` is the slower end's one-way limit in GB/s."""
    links, through_switch = nvlink.joining(first.ends, first.pci_bus_id, second.ends, second.pci_bus_id)
    level = query.integer("nvmlDeviceGetTopologyCommonAncestor", first.handle, second.handle)
    ancestor = None if level is None else _ANCESTORS.get(level)
    if links:
        limit = _slowest(
            theory.nvlink(links, capability=end.capability, line_mbps=end.line_mbps, through_switch=through_switch)
            for end in (first, second)
        )
    else:
        limit = _slowest(end.slot for end in (first, second))
    return Path(
        devices=positions,
        label=f"NV{links}" if links else ancestor or UNKNOWN,
        ancestor=ancestor,
        nvlinks=links,
        theory_gbs=limit.gbs if limit else None,
        theory_source=limit.source if limit else "",
        peer_access=_peer_access(query, first.handle, second.handle),
    )


def _peer_access(query: Query, first: object, second: object) -> str | None:
    """Return "OK" or nvidia-smi's word for why not; both words where reading and writing differ."""
    codes = [query.integer("nvmlDeviceGetP2PStatus", first, second, index) for index in (_PEER_READ, _PEER_WRITE)]
    words = [_PEER_WORDS[code] if code < len(_PEER_WORDS) else "U" for code in codes if code is not None]
    if len(set(words)) == 2:
        return f"read {words[0]}, write {words[1]}"
    return words[0] if words else None


def _slowest(limits: Iterable[theory.Theory | None]) -> theory.Theory | None:
    return min((limit for limit in limits if limit), key=lambda limit: limit.gbs, default=None)
