"""What a fabric must be beside its fields' types, so that whoever simulates it does not stumble."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import Any

from collbench.fabric.model import Bridge, Fabric, Fault, FaultKind, HostBridge
from collbench.machine.labels import PEER_STATES, is_label

# NVML and the label matrix were seen with 16 GPUs in a node; more is a mistake, or several nodes.
_MOST_GPUS = 64
_MOST_LINKS = 36  # nvml.h of r580: NVML_NVLINK_MAX_LINKS
_FEWEST_GPUS = 2
# Fields that may be zero; all other numbers of a fabric are above.
_MAY_BE_ZERO = {"latency_us", "visit", "block", "offset", "numa_node"}
_ON_A_LINK = (
    FaultKind.SLOW_LINK,
    FaultKind.CORRUPT_LINK,
    FaultKind.HANGING_LINK,
    FaultKind.P2P_SLOW,
)
# Between a broken link's and anything to come: what lies beyond is a typing error, and might overflow.
_LEAST_GBS, _MOST = 1e-6, 1e15
_PCI_BUS_ID = re.compile(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]", re.ASCII)
_VARIABLE = re.compile(r"NCCL_[A-Z0-9_]+=[ -~]+", re.ASCII)
# Log-normal noise beyond this is no measurement any more.
_MOST_NOISE = 1.0


def check(fabric: Fabric) -> None:
    """Raise ValueError that names the place where a fabric means nothing."""
    if not _FEWEST_GPUS <= len(fabric.gpus) <= _MOST_GPUS:
        raise ValueError(f"fabric.gpus has {len(fabric.gpus)} items: write {_FEWEST_GPUS} to {_MOST_GPUS}")
    if not fabric.name or not fabric.name.isprintable():
        raise ValueError("fabric.name is empty or has unprintable characters")
    for where, name, value in _numbers(fabric, "fabric"):
        zero_is_fine = name in _MAY_BE_ZERO or where.startswith(("fabric.delays", "fabric.faults"))
        least = 0 if zero_is_fine else _LEAST_GBS
        if not least <= value <= _MOST:
            kind = "0 or a sensible number" if zero_is_fine else "a sensible number above 0"
            raise ValueError(f"{where} is {value:.6g}, not {kind}")
    _check_gpu_names(fabric)
    _check_tree(fabric)
    _check_nvlinks(fabric)
    for number, fault in enumerate(fabric.faults):
        _check_fault(fault, len(fabric.gpus), f"fabric.faults[{number}]")
    for number, pair in enumerate(fabric.unreachable):
        _check_gpus(pair, len(fabric.gpus), f"fabric.unreachable[{number}]")
    _check_labels(fabric)
    if max(fabric.noise.visit, fabric.noise.block) > _MOST_NOISE:
        raise ValueError(f"fabric.noise has a σ above {_MOST_NOISE}")


def _numbers(value: Any, where: str) -> Iterator[tuple[str, str, float]]:
    """Yield (place, field, number) of everything in a fabric but positions of GPUs and states of health."""
    for field in dataclasses.fields(value):
        found, place = getattr(value, field.name), f"{where}.{field.name}"
        if isinstance(found, int | float) and not isinstance(found, bool):
            yield place, field.name, found
        elif dataclasses.is_dataclass(found) and field.name != "health":
            yield from _numbers(found, place)
        elif isinstance(found, tuple):
            for number, item in enumerate(found):
                if dataclasses.is_dataclass(item) and field.name != "labels":
                    yield from _numbers(item, f"{place}[{number}]")


def _check_gpu_names(fabric: Fabric) -> None:
    seen: set[str] = set()
    for number, gpu in enumerate(fabric.gpus):
        if not gpu.name.isprintable() or not _PCI_BUS_ID.fullmatch(gpu.pci_bus_id):
            raise ValueError(f"fabric.gpus[{number}] needs a printable name and a pci_bus_id such as 00000000:06:00.0")
        if gpu.pci_bus_id in seen:
            raise ValueError(f"fabric.gpus[{number}].pci_bus_id is another GPU's, too")
        seen.add(gpu.pci_bus_id)


def _check_tree(fabric: Fabric) -> None:
    """Raise ValueError where the PCIe tree has a part twice, a loose end or a loop."""
    parts: list[HostBridge | Bridge] = [*fabric.host_bridges, *fabric.bridges]
    seen: set[str] = set()
    for part in parts:
        where = "host_bridges" if isinstance(part, HostBridge) else "bridges"
        if part.name in seen:
            raise ValueError(f"fabric.{where} has '{part.name}' twice")
        seen.add(part.name)
    parents = {bridge.name: bridge.parent for bridge in fabric.bridges}
    roots = {root.name for root in fabric.host_bridges}
    above = [*((f"gpus[{i}].bridge", gpu.bridge) for i, gpu in enumerate(fabric.gpus))]
    above += [(f"bridges[{i}].parent", bridge.parent) for i, bridge in enumerate(fabric.bridges)]
    for where, name in above:
        steps, place = 0, name
        while place in parents and steps <= len(parents):
            place, steps = parents[place], steps + 1
        if place not in roots:
            why = "is above itself" if steps > len(parents) else "leads to no host bridge"
            raise ValueError(f"fabric.{where} is '{name}', which {why}")


def _check_nvlinks(fabric: Fabric) -> None:
    count = len(fabric.gpus)
    joined: set[frozenset[int]] = set()
    for number, bundle in enumerate(fabric.bundles):
        _check_gpus(bundle.gpus, count, f"fabric.bundles[{number}]")
        if frozenset(bundle.gpus) in joined:
            raise ValueError(f"fabric.bundles[{number}] joins two GPUs that another bundle joins")
        joined.add(frozenset(bundle.gpus))
    for number, switch in enumerate(fabric.switches):
        _check_gpus(switch.gpus, count, f"fabric.switches[{number}]")
        for other in fabric.switches[:number]:
            if len(set(other.gpus) & set(switch.gpus)) > 1:
                raise ValueError(f"fabric.switches[{number}] joins two GPUs that another switch joins")
    counts = [(f"bundles[{i}]", bundle.links) for i, bundle in enumerate(fabric.bundles)]
    counts += [(f"switches[{i}]", switch.links) for i, switch in enumerate(fabric.switches)]
    for where, links in counts:
        if links > _MOST_LINKS:
            raise ValueError(f"fabric.{where}.links is {links}, more than {_MOST_LINKS}")


def _check_fault(fault: Fault, count: int, where: str) -> None:
    if fault.kind in _ON_A_LINK and len(fault.devices) != 2:
        raise ValueError(f"{where}.devices is {list(fault.devices)}: a {fault.kind} lies between two GPUs")
    if fault.kind is FaultKind.FOREIGN_LOAD and not 1 <= len(fault.devices) <= 2:
        raise ValueError(f"{where}.devices is {list(fault.devices)}: a foreign load is on one GPU or on a link")
    if fault.factor < _LEAST_GBS:
        raise ValueError(f"{where}.factor is {fault.factor}: nothing moves at that rate; a hanging-link stands still")
    if fault.kind is FaultKind.P2P_DISABLED and fault.words and not _VARIABLE.fullmatch(fault.words):
        raise ValueError(f"{where}.words is '{fault.words}', no NCCL variable as NAME=VALUE")
    if not fault.words.isprintable():
        raise ValueError(f"{where}.words has unprintable characters")
    if fault.kind is FaultKind.BOTTLENECK and fault.gbs <= 0:
        raise ValueError(f"{where}.gbs is {fault.gbs}: say how many GB/s the bottleneck carries")
    if fault.devices:
        _check_gpus(fault.devices, count, f"{where}.devices", fewest=1)


def _check_labels(fabric: Fabric) -> None:
    for number, told in enumerate(fabric.labels):
        where = f"fabric.labels[{number}]"
        _check_gpus(told.gpus, len(fabric.gpus), where)
        for name, word in (("label", told.label), ("ancestor", told.ancestor), ("tool_label", told.tool_label)):
            if word is not None and not is_label(word):
                raise ValueError(f"{where}.{name} is '{word}', no label of nvidia-smi's")
        for name, word in (("peer_access", told.peer_access), ("tool_peer_access", told.tool_peer_access)):
            if word is not None and word not in PEER_STATES:
                raise ValueError(f"{where}.{name} is '{word}', not one of {', '.join(PEER_STATES)}")
        if told.nvlinks is not None and not 0 <= told.nvlinks <= _MOST_LINKS:
            raise ValueError(f"{where}.nvlinks is {told.nvlinks}, not 0 to {_MOST_LINKS}")


def _check_gpus(found: Sequence[int], count: int, where: str, fewest: int = 2) -> None:
    if len(found) < fewest or len(set(found)) < len(found) or not set(found) <= set(range(count)):
        raise ValueError(f"{where} names {list(found)}: write {fewest} or more distinct positions of {count} GPUs")
