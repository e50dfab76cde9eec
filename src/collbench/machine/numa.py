"""The NUMA nodes of this host: whose CPUs and memory this process may use."""

from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Collection

from collbench.machine.cpulist import parse_cpus

_ROOT = pathlib.Path("/")
_FOLDER = "sys/devices/system/node"
_MEMORY = re.compile(r"MemTotal:\s+([0-9]+) kB")
_MEMORY_ALLOWED = re.compile(r"^Mems_allowed_list:\s*(\S+)", re.MULTILINE)


def usable_nodes(root: pathlib.Path = _ROOT, allowed: Collection[int] | None = None) -> tuple[int, ...]:
    """Return the nodes, ascending, that have memory and CPUs which this process may use; none where nothing tells.

    `allowed` defaults to this process's CPU mask, which already obeys cgroup cpusets and taskset; `root` holds sys/ and
    proc/. Nodes without CPUs are left out: nobody could run a rank there (slower memory, or a GPU's own).
    """
    reach = os.sched_getaffinity(0) if allowed is None else allowed
    status = _MEMORY_ALLOWED.search(read(root / "proc/self/status"))
    nodes = cpus_by_node(root, reach)
    permitted = parse_cpus(status[1]) if status else tuple(nodes)  # the kernel writes both lists alike
    return tuple(node for node in nodes if node in permitted and _has_memory(root, node))


def cpus_by_node(root: pathlib.Path, reach: Collection[int]) -> dict[int, list[int]]:
    """Return the CPUs of each node that lie in `reach`, ascending; nodes without any are left out."""
    nodes: dict[int, list[int]] = {}
    for folder in (root / _FOLDER).glob("node[0-9]*"):
        cpus = sorted(set(parse_cpus(read(folder / "cpulist"))) & set(reach))
        if cpus:
            nodes[int(folder.name.removeprefix("node"))] = cpus
    return dict(sorted(nodes.items()))


def node_of(pci_bus_id: str, root: pathlib.Path = _ROOT) -> int | None:
    """Return the node to which `torchrun --numa-binding` binds the rank of this GPU; None where it would fail.

    It reads the kernel's word for the PCI device and takes -1, which is "unknown", for 0
    [torch 2.13, torch/numa/binding.py, _get_numa_node_index_for_gpu_index].
    """
    domain, _, rest = pci_bus_id.partition(":")
    try:
        return max(0, int(read(root / f"sys/bus/pci/devices/{int(domain, 16):04x}:{rest.lower()}/numa_node")))
    except ValueError:
        return None


def read(file: pathlib.Path) -> str:
    """Return a file's text, or "" where the kernel does not offer it."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _has_memory(root: pathlib.Path, node: int) -> bool:
    found = _MEMORY.search(read(root / f"{_FOLDER}/node{node}/meminfo"))
    return found is not None and int(found[1]) > 0
