"""Which NUMA nodes a process may use, on trees of /sys and /proc as Linux lays them out."""

from __future__ import annotations

import pathlib

import pytest

from collbench.machine import kernel
from collbench.machine.kernel import kernel_bus_id
from tests.machine.roots import put

# Of a machine with two sockets [Linux 6.8, /sys/devices/system/node/node0/meminfo].
_MEMINFO = "Node {node} MemTotal:       {kib} kB\nNode {node} MemFree:        128 kB\n"


def machine(
    root: pathlib.Path, cpus: dict[int, str], memory: dict[int, int] | None = None, allowed: str | None = None
) -> pathlib.Path:
    """Write what a kernel shows of nodes with these CPUs and KiB of memory; `allowed` is Mems_allowed_list."""
    for node, cpulist in cpus.items():
        folder = f"sys/devices/system/node/node{node}"
        put(root, f"{folder}/cpulist", f"{cpulist}\n")
        if memory is None or node in memory:
            put(root, f"{folder}/meminfo", _MEMINFO.format(node=node, kib=(memory or {}).get(node, 2**20)))
    if allowed is not None:
        limits = f"Mems_allowed:\t00000000,00000003\nMems_allowed_list:\t{allowed}\n"
        put(root, "proc/self/status", f"Name:\tx\n{limits}Threads:\t1\n")
    return root


TWO = {0: "0-3", 1: "4-7"}


@pytest.mark.parametrize(
    ("title", "cpus", "memory", "allowed", "mask", "expected"),
    [
        ("two sockets", TWO, None, "0-1", range(8), (0, 1)),
        ("the mask lies on one socket", TWO, None, "0-1", range(4, 8), (1,)),
        ("the cpuset holds one socket's memory", TWO, None, "1", range(8), (1,)),
        ("a socket without memory", TWO, {0: 2**20, 1: 0}, "0-1", range(8), (0,)),
        ("a kernel that does not tell a node's memory", TWO, {1: 2**20}, "0-1", range(8), (1,)),
        ("memory without CPUs, as of a GPU or CXL", TWO | {2: ""}, None, "0-2", range(8), (0, 1)),
        ("a kernel that shows nothing", {}, None, None, range(8), ()),
    ],
)
def test_usable_nodes(
    tmp_path: pathlib.Path,
    title: str,
    cpus: dict[int, str],
    memory: dict[int, int] | None,
    allowed: str | None,
    mask: range,
    expected: tuple[int, ...],
) -> None:
    assert kernel.usable_nodes(machine(tmp_path, cpus, memory, allowed), mask) == expected, title


def test_the_kernel_writes_no_more_digits_of_a_domain_than_it_needs() -> None:
    assert kernel_bus_id("00000000:DB:00.0") == "0000:db:00.0"
    assert kernel_bus_id("00010000:06:00.0") == "10000:06:00.0", "of a root complex behind a VMD, say"
