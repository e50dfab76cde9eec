"""What the tools of a simulated machine would report: NVML's devices, paths and health, nvidia-smi's labels."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import combinations
from typing import Any

from collbench.machine import theory
from collbench.model.run import Device, Health, Path, PeerReadWrite, PeerStatus
from collbench.sim.fabrics import Fabric, FaultKind, ReportedPath
from collbench.sim.network import Tree, links_up, network_of, pcie_now

# An idle GPU in a cool room, where the file does not say otherwise.
_IDLE = Health(
    temperature=35,
    utilization=0,
    memory_used=0,
    nvlink_replays=0,
    nvlink_errors=0,
    ecc_errors=0,
    processes=0,
)
_BUSY_UTILIZATION = 100
_THROTTLED = "SW power cap"


def devices(fabric: Fabric) -> tuple[Device, ...]:
    """Return the GPUs as NVML would list them. Their UUIDs name the simulation, so no CUDA program takes them."""
    tree = Tree(fabric)
    return tuple(
        Device(
            index=index,
            uuid=f"SIM-{fabric.name}-{index}",
            name=gpu.name,
            pci_bus_id=gpu.pci_bus_id,
            memory_bytes=gpu.memory_bytes,
            numa_node=None if fabric.numa_hidden else tree.root(index).numa_node,
            pcie_generation=gpu.pcie_generation,
            pcie_width=gpu.pcie_width,
        )
        for index, gpu in enumerate(fabric.gpus)
    )


@lru_cache(maxsize=16)  # as the fabric's network: asked for again for every pair
def paths(fabric: Fabric) -> tuple[Path, ...]:
    """Return every pair's path as nvidia-smi and NVML report it, theory in GB/s."""
    tree = Tree(fabric)
    reported = {frozenset(label.gpus): label for label in fabric.labels}
    pairs = combinations(range(len(fabric.gpus)), 2)
    return tuple(_overridden(_path(fabric, tree, *pair), reported.get(frozenset(pair))) for pair in pairs)


def health(fabric: Fabric) -> tuple[Health, ...]:
    """Return each GPU's state as NVML would give it, faults counted in."""
    return tuple(_health(fabric, gpu) for gpu in range(len(fabric.gpus)))


def _path(fabric: Fabric, tree: Tree, a: int, b: int) -> Path:
    ancestor = tree.label(a, b)
    hidden = any(fault.covers(a, b) for fault in fabric.faults_of(FaultKind.HIDDEN_NVLINK))
    up, full, switched = (0, 0, False) if hidden else _nvlinks(fabric, a, b)
    line = fabric.gpus[a].nvlink_line_mbps
    limit = theory.nvlink(up, capability=None, line_mbps=line, through_switch=switched) or slots_limit(fabric, a, b)
    peers = network_of(fabric).reaches(a, b)
    status = PeerStatus.OK if peers else PeerStatus.CNS
    return Path(
        devices=(a, b),
        label=f"NV{up}" if up else ancestor,
        ancestor=ancestor,
        nvlinks=up,
        theory_gbs=limit.gbs if limit else None,
        theory_source=f"sim: {limit.source}" if limit else "",
        peer_access=PeerReadWrite(status, status),
        tool_label=f"NV{full}" if full else ancestor,
        tool_peer_access=(status, status),
        cuda_peers=peers,
    )


def _nvlinks(fabric: Fabric, a: int, b: int) -> tuple[int, int, bool]:
    """Return the links between two GPUs that are up, how many there are, and whether a switch joins them."""
    for bundle in fabric.bundles:
        if set(bundle.gpus) == {a, b}:
            return links_up(fabric, bundle, a, b), bundle.links, False
    for switch in fabric.switches:
        if {a, b} <= set(switch.gpus):
            return min(links_up(fabric, switch, gpu) for gpu in (a, b)), switch.links, True
    return 0, 0, False


def slots_limit(fabric: Fabric, a: int, b: int) -> theory.Theory | None:
    """Return the limit of the slower slot of two GPUs; None if neither is known."""
    return theory.slowest(theory.pcie(fabric.gpus[gpu].pcie_generation, fabric.gpus[gpu].pcie_width) for gpu in (a, b))


def _overridden(path: Path, reported: ReportedPath | None) -> Path:
    if reported is None:
        return path
    known: dict[str, Any] = _known(reported)
    del known["gpus"]
    if reported.peer_access is not None:
        known["peer_access"] = PeerReadWrite(reported.peer_access, reported.peer_access)
    if reported.tool_peer_access is not None:
        known["tool_peer_access"] = (reported.tool_peer_access,) * 2
    return replace(path, **known)


def _health(fabric: Fabric, gpu: int) -> Health:
    generation, width = pcie_now(fabric, gpu)
    reading = replace(_IDLE, **{"pcie_generation": generation, "pcie_width": width, **_known(fabric.gpus[gpu].health)})
    for fault in fabric.faults:
        if fault.kind is FaultKind.THROTTLED_GPU and fault.covers(gpu):
            reading = replace(reading, throttle=(*reading.throttle, fault.words or _THROTTLED))
        elif fault.kind is FaultKind.FOREIGN_LOAD and gpu in fault.devices:
            busy = _BUSY_UTILIZATION if fault.factor < 1 else reading.utilization
            reading = replace(reading, processes=(reading.processes or 0) + 1, utilization=busy)
    return reading


def _known(value: Health | ReportedPath) -> dict[str, Any]:
    """Return the fields that are not None."""
    fields = {name: getattr(value, name) for name in value.__dataclass_fields__}
    return {name: field for name, field in fields.items() if field is not None}
