"""Which cores stand for devices, on trees of /sys as Linux lays them out."""

from __future__ import annotations

import os
import pathlib

import pytest

from collbench.machine import kernel
from collbench.model.errors import MachineError
from tests.machine.roots import write


def machine(
    root: pathlib.Path, nodes: dict[int, str], siblings: dict[int, str], model: str = "Test CPU"
) -> pathlib.Path:
    """Write the files that a kernel with these NUMA nodes and hyper-threads shows under `root`."""
    files = {"proc/cpuinfo": f"processor\t: 0\nmodel name\t: {model}\n", "etc/machine-id": "abc\n"}
    files |= {f"sys/devices/system/node/node{node}/cpulist": f"{cpulist}\n" for node, cpulist in nodes.items()}
    for core, cpulist in siblings.items():
        files[f"sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list"] = f"{cpulist}\n"
    return write(root, files)


def single(count: int) -> dict[int, str]:
    return {core: str(core) for core in range(count)}


def hyperthreads(physical: int) -> dict[int, str]:
    return {core: f"{core % physical},{core % physical + physical}" for core in range(2 * physical)}


@pytest.mark.parametrize(
    ("title", "nodes", "siblings", "allowed", "expected"),
    [
        ("a mask leaves cores out", {0: "0-7"}, single(8), [1, 4, 6], [1, 4, 6]),
        ("hyper-threads count once", {0: "0-7"}, hyperthreads(4), range(8), [0, 1, 2, 3]),
        ("the mask has only the upper threads", {0: "0-7"}, hyperthreads(4), range(4, 8), [4, 5, 6, 7]),
        ("many cores are spread, not the first eight", {0: "0-31"}, single(32), range(32), list(range(0, 32, 4))),
        ("two nodes give one core each", {0: "0-3", 1: "4-7"}, single(8), range(8), [0, 4]),
        ("nodes are cut to the mask", {0: "0-3", 1: "4-7"}, single(8), [2, 3, 6], [2, 6]),
        ("a node of memory alone is no device", {0: "0-1", 1: ""}, single(2), range(2), [0, 1]),
        ("a kernel that shows nothing", {}, {}, [0, 1, 2], [0, 1, 2]),
        ("sixteen nodes are spread too", {n: str(n) for n in range(16)}, single(16), range(16), list(range(0, 16, 2))),
    ],
)
def test_devices_are(
    tmp_path: pathlib.Path,
    title: str,
    nodes: dict[int, str],
    siblings: dict[int, str],
    allowed: list[int],
    expected: list[int],
) -> None:
    devices = kernel.core_devices(machine(tmp_path, nodes, siblings), allowed)
    assert [device.index for device in devices] == expected, title


@pytest.mark.parametrize("allowed", [[], [3]])
def test_fewer_than_two_cores_is_one_clear_line(tmp_path: pathlib.Path, allowed: list[int]) -> None:
    with pytest.raises(MachineError, match="needs two") as caught:
        kernel.core_devices(tmp_path, allowed)
    assert "\n" not in str(caught.value)


def test_a_device_has_its_name_uuid_and_bus_id(tmp_path: pathlib.Path) -> None:
    root = machine(tmp_path, {0: "0-3", 1: "4-7,9"}, single(10), model="Grace Hopper 9000")
    second = kernel.core_devices(root, range(10))[1]
    assert (second.name, second.numa_node, second.cpu_affinity) == ("Grace Hopper 9000", 1, "4-7,9")


def test_paths_are_named_by_numa_node_and_promise_no_rate(tmp_path: pathlib.Path) -> None:
    near = kernel.core_paths(kernel.core_devices(machine(tmp_path / "near", {0: "0-2"}, single(3)), range(3)))
    far = kernel.core_paths(kernel.core_devices(machine(tmp_path / "far", {0: "0", 1: "1"}, single(2)), range(2)))
    assert [(path.devices, path.label) for path in near] == [((0, 1), "NODE"), ((0, 2), "NODE"), ((1, 2), "NODE")]
    assert [(path.devices, path.label) for path in far] == [((0, 1), "SYS")]
    assert {path.theory_gbs for path in near + far} == {None}


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_this_machine_gives_two_to_eight_cores_of_its_mask() -> None:
    devices = [device.index for device in kernel.core_devices()]
    assert 2 <= len(devices) <= 8
    assert set(devices) <= os.sched_getaffinity(0)
