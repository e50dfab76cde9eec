"""Which CPU cores stand for devices on the host backend, and what the NUMA layout says of the paths between them."""

from __future__ import annotations

import os
import pathlib
import platform
import socket
import uuid
from collections.abc import Collection
from itertools import combinations

from collbench.errors import MachineError
from collbench.machine.cpulist import format_cpus, parse_cpus
from collbench.machine.numa import cpus_by_node, read
from collbench.model import Device, Path

# Pairs grow with the square of the devices: 8 give 28 pairs, as many as a DGX has, within `make pairs`' 30 s.
MOST_DEVICES = 8

# An arbitrary constant (uuid4, drawn once): it keeps our uuid5 names apart from everybody else's.
_NAMESPACE = uuid.UUID("6d2f0c1e-8f0b-4b43-9a53-2f7c9be1a0d4")


def devices(root: pathlib.Path = pathlib.Path("/"), allowed: Collection[int] | None = None) -> tuple[Device, ...]:
    """Return two to eight cores that stand for devices: one per NUMA node, else one per physical core.

    `allowed` defaults to this process's affinity mask, which already obeys cgroup cpusets and taskset.
    `root` holds sys/, proc/ and etc/. Raises MachineError where fewer than two cores are in reach.
    """
    reach = sorted(os.sched_getaffinity(0) if allowed is None else allowed)
    if len(reach) < 2:
        named = ", ".join(map(str, reach)) or "none"
        raise MachineError(
            f"the host backend copies between CPU cores and needs two, but this process may use {len(reach)} "
            f"(core: {named}): widen its taskset mask or the container's CPU set"
        )
    nodes = cpus_by_node(root, reach)
    name = cpu_model(root)
    if len(nodes) > 1:
        # Between nodes lies the interconnect, the slowest and most telling wire of a host: one core each shows it.
        chosen = {_physical_cores(root, cores)[0]: format_cpus(cores) for cores in nodes.values()}
    else:
        chosen = {core: str(core) for core in _physical_or_all(root, reach)}
    node_of = {core: node for node, cores in nodes.items() for core in cores}
    return tuple(
        Device(
            index=core,
            uuid=_uuid(root, core),
            name=name,
            numa_node=node_of.get(core),
            cpu_affinity=chosen[core],
        )
        for core in _spread(sorted(chosen))
    )


def device(core: int, root: pathlib.Path = pathlib.Path("/")) -> Device:
    """Return one core as a device, as `devices` would."""
    nodes = cpus_by_node(root, [core])
    return Device(
        index=core,
        uuid=_uuid(root, core),
        name=cpu_model(root),
        numa_node=next(iter(nodes), None),
        cpu_affinity=str(core),
    )


def paths(chosen: Collection[Device]) -> tuple[Path, ...]:
    """Return the path of every pair of positions: NODE within a NUMA node, SYS between two. No theory is known.

    The words are nvidia-smi's. Cores of a kernel that knows no NUMA nodes all count as one node.
    """
    nodes = [device.numa_node for device in chosen]
    pairs = combinations(range(len(nodes)), 2)
    return tuple(Path(devices=(i, j), label="NODE" if nodes[i] == nodes[j] else "SYS") for i, j in pairs)


def _physical_cores(root: pathlib.Path, cores: Collection[int]) -> list[int]:
    """Return the lowest usable hyper-thread of each physical core: two siblings share one path to memory."""
    seen: set[int] = set()
    firsts = []
    for core in cores:
        if core not in seen:
            firsts.append(core)
            siblings = read(root / f"sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
            seen.update(parse_cpus(siblings))
    return firsts


def _physical_or_all(root: pathlib.Path, cores: Collection[int]) -> list[int]:
    """Return one thread per physical core, or all threads where that would leave fewer than two."""
    physical = _physical_cores(root, cores)
    return physical if len(physical) >= 2 else list(cores)


def _spread(cores: list[int]) -> list[int]:
    """Return at most MOST_DEVICES of `cores`, evenly spaced.

    Neighbours share a cache slice or a die, so the first eight would show one corner of the machine.
    """
    count = min(len(cores), MOST_DEVICES)
    return [cores[i * len(cores) // count] for i in range(count)]


def _uuid(root: pathlib.Path, core: int) -> str:
    return f"CPU-{uuid.uuid5(_NAMESPACE, f'{_machine_identity(root)}/{core}')}"


def _machine_identity(root: pathlib.Path) -> str:
    return read(root / "etc/machine-id").strip() or socket.gethostname()


def cpu_model(root: pathlib.Path = pathlib.Path("/")) -> str:
    """Return the kernel's model name; ARM kernels print none, so there it is the architecture."""
    for line in read(root / "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name" and value.strip():
            return value.strip()
    return platform.machine()
