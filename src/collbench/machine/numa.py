"""NUMA nodes and CPU cores of this host: those that this process may use, and the host backend's devices."""

from __future__ import annotations

import os
import pathlib
import platform
import re
import socket
import uuid
from collections.abc import Collection, Iterable
from dataclasses import replace
from functools import cache
from itertools import combinations

from collbench.machine.kernel import read
from collbench.model.errors import MachineError
from collbench.model.run import Device, Path
from collbench.model.units import number_ranges

# The kernel's CPU lists, such as "0-3,8": read and written.


def parse_cpus(text: str) -> tuple[int, ...]:
    """Return the CPUs of a kernel list such as "0-3,8"; an empty text gives none."""
    cpus: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cpus.extend(range(int(first), int(last or first) + 1))
    return tuple(cpus)


def format_cpus(cpus: Iterable[int]) -> str:
    """Return the shortest kernel list of these CPUs: 0, 1, 2, 8 → "0-2,8"."""
    return number_ranges(sorted(cpus))


# The NUMA nodes of this host whose CPUs and memory this process may use.

_ROOT = pathlib.Path("/")
_FOLDER = "sys/devices/system/node"
_MEMORY = re.compile(r"MemTotal:\s+([0-9]+) kB")
_MEMORY_ALLOWED = re.compile(r"^Mems_allowed_list:\s*(\S+)", re.MULTILINE)


def usable_nodes(root: pathlib.Path = _ROOT, allowed: Collection[int] | None = None) -> tuple[int, ...]:
    """Return the nodes, ascending, that have memory and CPUs which this process may use; none if none is reported.

    `allowed` defaults to this process's CPU mask, which already obeys cgroup cpusets and taskset; `root` holds sys/ and
    proc/. Nodes without CPUs (slower memory, or a GPU's own) are left out: no rank can run there.
    """
    reach = os.sched_getaffinity(0) if allowed is None else allowed
    status = _MEMORY_ALLOWED.search(read(root / "proc/self/status"))
    nodes = cpus_by_node(root, reach)
    permitted = parse_cpus(status[1]) if status else tuple(nodes)  # the kernel writes both lists alike
    memory_kb = {node: _MEMORY.search(read(root / f"{_FOLDER}/node{node}/meminfo")) for node in nodes}
    return tuple(node for node, match in memory_kb.items() if node in permitted and match and int(match[1]) > 0)


def cpus_by_node(root: pathlib.Path, reach: Collection[int]) -> dict[int, list[int]]:
    """Return the CPUs of each node that lie in `reach`, ascending; nodes without any are left out."""
    nodes: dict[int, list[int]] = {}
    for folder in (root / _FOLDER).glob("node[0-9]*"):
        cpus = sorted(set(parse_cpus(read(folder / "cpulist"))) & set(reach))
        if cpus:
            nodes[int(folder.name.removeprefix("node"))] = cpus
    return dict(sorted(nodes.items()))


# The CPU cores that are the devices of the host backend, and what the NUMA layout says of the paths between them.

# Pairs grow with the square of the devices: 8 give 28 pairs, as many as a DGX has, within `make pairs`' 30 s.
MAX_DEVICES = 8

# An arbitrary constant (uuid4, drawn once): it keeps our uuid5 names apart from everybody else's.
_NAMESPACE = uuid.UUID("6d2f0c1e-8f0b-4b43-9a53-2f7c9be1a0d4")


def devices(root: pathlib.Path = _ROOT, allowed: Collection[int] | None = None) -> tuple[Device, ...]:
    """Return two to eight cores as devices: one per NUMA node, else one per physical core, else all.

    `allowed` defaults to this process's affinity mask, which already obeys cgroup cpusets and taskset.
    `root` holds sys/, proc/ and etc/. Raises MachineError if fewer than two cores are in reach.
    """
    reach = sorted(os.sched_getaffinity(0) if allowed is None else allowed)
    if len(reach) < 2:
        named = ", ".join(map(str, reach)) or "none"
        raise MachineError(
            f"the host backend copies between CPU cores and needs two, but this process may use {len(reach)} "
            f"(core: {named}): widen its taskset mask or the container's CPU set"
        )
    nodes = cpus_by_node(root, reach)
    if len(nodes) > 1:
        # The interconnect between NUMA nodes is the slowest link of a host: one core of each node shows it.
        chosen = {_physical_cores(root, cores)[0]: format_cpus(cores) for cores in nodes.values()}
    else:
        physical = _physical_cores(root, reach)
        chosen = {core: str(core) for core in (physical if len(physical) >= 2 else reach)}
    return tuple(replace(device(core, root), cpu_affinity=chosen[core]) for core in _spread(sorted(chosen)))


def device(core: int, root: pathlib.Path = _ROOT) -> Device:
    """Return one core as a device, with itself as its affinity."""
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
    nodes = [core.numa_node for core in chosen]
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


def _spread(cores: list[int]) -> list[int]:
    """Return at most MAX_DEVICES of `cores`, evenly spaced.

    Neighbors share a cache slice or a die, so the first eight would show one corner of the machine.
    """
    count = min(len(cores), MAX_DEVICES)
    return [cores[i * len(cores) // count] for i in range(count)]


def _uuid(root: pathlib.Path, core: int) -> str:
    machine = read(root / "etc/machine-id").strip() or socket.gethostname()
    return f"CPU-{uuid.uuid5(_NAMESPACE, f'{machine}/{core}')}"


@cache
def cpu_model(root: pathlib.Path = _ROOT) -> str:
    """Return the kernel's model name; ARM kernels print none, so there it is the architecture."""
    for line in read(root / "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name" and value.strip():
            return value.strip()
    return platform.machine()
