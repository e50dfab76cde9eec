"""Host memory on a NUMA node where memory policies are forbidden, as in containers: the kernel's own seccomp filter.

The kernel places the memory and reports where it lies. The nodes of sysfs are files: this machine may have only one.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from collbench.machine.kernel import cpus_by_node
from tests.native.fakes import Fakes, Outcome
from tests.seccomp import FORBID

_OWN = cpus_by_node(Path("/"), os.sched_getaffinity(0)).get(0, [])  # on the real node 0, where the memory will lie
pytestmark = pytest.mark.skipif(
    not _OWN or not Path("/proc/thread-self/numa_maps").exists(),
    reason="this process may not use node 0, or the kernel does not report where memory lies",
)
_CPU = _OWN[-1] if _OWN else 0
_ANYWHERE, _NODE_0, _NODE_1 = -1, -2, -3
_ROOMY = 64 << 20  # kB
_CPUS = """
def cpus():
    return sorted(os.sched_getaffinity(0))
"""


def _node(folder: Path, node: int, cpus: str, free_kb: int = _ROOMY) -> None:
    """Write what sysfs says of a node with 64 GiB."""
    (folder / f"node{node}").mkdir()
    (folder / f"node{node}" / "cpulist").write_text(f"{cpus}\n")
    figures = {"MemTotal": _ROOMY, "MemFree": free_kb, "MemUsed": _ROOMY - free_kb}
    lines = [f"Node {node} {name + ':':15} {amount:8} kB\n" for name, amount in figures.items()]
    (folder / f"node{node}" / "meminfo").write_text("".join(lines))


def _run(fakes: Fakes, folder: Path, script: str, /, **settings: object) -> Outcome:
    nodes = {"LD_PRELOAD": str(fakes.folder / "libnodes.so"), "FAKE_NODES": str(folder)}
    return fakes.script(FORBID + _CPUS + script, nodes, **settings)


def _reported(fakes: Fakes, folder: Path, script: str, /, **settings: object) -> dict[str, Any]:
    return _run(fakes, folder, script, **settings).reported


@pytest.mark.parametrize("error", [errno.EPERM, errno.ENOSYS])
def test_the_thread_runs_on_the_nodes_cpus_while_a_buffer_is_made_and_at_no_other_time(
    fakes: Fakes, tmp_path: Path, error: int
) -> None:
    _node(tmp_path, 0, str(_CPU))
    script = f"""
forbid_policies({error})
before, gpus = cpus(), open_gpus(2)
for trial in range(2):
    for place in ({_ANYWHERE}, {_NODE_0}):
        transfers(gpus, [[(place, 0)]])
        transfers(gpus, [[(0, place)]])
report(refusal=native.node_memory_refusal(0, 2), before=before, after=cpus())
"""
    done = _run(fakes, tmp_path, script, touch=1)

    assert done.reported["refusal"] == ""
    assert done.reported["after"] == done.reported["before"]
    placed = [number for number, line in enumerate(done.log) if line.startswith(("cpu ", "policy"))]
    expected = [f"cpu {_CPU}"] * 2 if done.reported["before"] != [_CPU] else []  # a source and a target, once
    assert [done.log[number] for number in placed] == expected
    assert all(done.log[number + 1].startswith("+pinned") for number in placed)


@pytest.mark.parametrize("listed", ["{cpu}", "0-{cpu}", "8000,{cpu}", "{cpu},8190-8191", "0-{cpu},8000"])
def test_the_kernels_lists_of_cpus_are_read(fakes: Fakes, tmp_path: Path, listed: str) -> None:
    _node(tmp_path, 0, listed.format(cpu=_CPU))
    script = "forbid_policies(); report(text=native.node_memory_refusal(0, 1))"
    assert _reported(fakes, tmp_path, script)["text"] == ""


_NO_POLICY = "cannot take memory on NUMA node 0: get_mempolicy: Operation not permitted, and "
_OR = ", or in a container add CAP_SYS_NICE (docker run --cap-add SYS_NICE)"


@pytest.mark.parametrize("cpus", ["", "8000-8191", None])
def test_without_a_cpu_of_the_node_both_remedies_are_named_and_other_memory_works(
    fakes: Fakes, tmp_path: Path, cpus: str | None
) -> None:
    if cpus is not None:
        _node(tmp_path, 0, cpus)
    script = f"""
forbid_policies()
before, gpus = cpus(), open_gpus(2)
refused = failure(transfers, gpus, [[({_NODE_0}, 1)]])
seconds = transfers(gpus, [[({_ANYWHERE}, 1)]])
report(text=native.node_memory_refusal(0, 1), refused=refused, seconds=seconds, before=before, after=cpus())
"""
    reported = _reported(fakes, tmp_path, script)

    why = "this process may use none of the node's CPUs; let it use one (taskset, cpuset)"
    assert reported["text"] == _NO_POLICY + why + _OR
    assert (reported["refused"]["kind"], reported["refused"]["text"]) == ("PolicyError", reported["text"])
    assert len(reported["seconds"]) == 1
    assert reported["after"] == reported["before"]


# A node of 64 GiB keeps 1 GiB; a GPU has two buffers of 256 MiB and a few KiB on each node.
@pytest.mark.parametrize(
    ("free_mib", "gpus", "needed_mib"),
    [(1537, 1, None), (1535, 1, 1536), (1537, 2, 2048)],
)
def test_a_node_without_enough_free_memory_is_refused(
    fakes: Fakes, tmp_path: Path, free_mib: int, gpus: int, needed_mib: int | None
) -> None:
    _node(tmp_path, 0, str(_CPU), free_mib << 10)
    script = f"forbid_policies(); report(text=native.node_memory_refusal(0, {gpus}))"
    why = f"only {free_mib} MiB of the node's memory are free, {needed_mib} MiB needed"
    refusal = _NO_POLICY + why + "; free some (page cache counts as used)" + _OR
    assert _reported(fakes, tmp_path, script)["text"] == ("" if needed_mib is None else refusal)


@pytest.mark.parametrize(("mode", "name"), [(1, "prefer:0"), (2, "bind:0"), (3, "interleave:0"), (4, None)])
def test_a_policy_that_cannot_be_changed_is_refused_by_name(
    fakes: Fakes, tmp_path: Path, mode: int, name: str | None
) -> None:
    """As numactl sets one. The fourth, MPOL_LOCAL, is what the kernel does without one."""
    _node(tmp_path, 0, str(_CPU))
    script = f"""
nodes = None if {mode} == 4 else ctypes.byref(ctypes.c_ulong(1))
policy = system_call(SET_MEMPOLICY, {mode}, nodes, 0 if nodes is None else 64)
forbid_policies()
report(policy=policy, text=native.node_memory_refusal(0, 1), cpus=cpus())
"""
    reported = _reported(fakes, tmp_path, script)
    if reported["policy"] != 0:
        pytest.skip("this process may not set a memory policy itself")
    why = f"this process has the memory policy {name}; start it without that (numactl)"
    assert reported["text"] == ("" if name is None else _NO_POLICY + why + _OR)


@pytest.mark.parametrize(
    ("title", "place", "settings"),
    [("all of it", _NODE_1, {}), ("every second mapping", _NODE_0, {"elsewhere": 1})],
)
def test_memory_that_the_kernel_put_elsewhere_is_given_back(
    fakes: Fakes, tmp_path: Path, title: str, place: int, settings: dict[str, int]
) -> None:
    _node(tmp_path, 0, str(_CPU))
    _node(tmp_path, 1, str(_CPU))  # in truth its memory is node 0's
    script = f"""
forbid_policies()
before, gpus = cpus(), open_gpus(2, 16 << 20)
refused = failure(transfers, gpus, [[({place}, 1)]])
seconds = transfers(gpus, [[({_ANYWHERE}, 1)]])
report(refused=refused, seconds=seconds, before=before, after=cpus())
del gpus
gc.collect()
"""
    done = _run(fakes, tmp_path, script, touch=1, **settings)
    reported = done.reported

    assert reported["refused"]["kind"] == "PolicyError", title
    assert "and the kernel put " in reported["refused"]["text"]
    assert "on other nodes; free some of the node's memory, or in a container add" in reported["refused"]["text"]
    assert len(reported["seconds"]) == 1
    assert reported["after"] == reported["before"]
    assert done.leaks() == []


@pytest.mark.parametrize(
    ("title", "place", "settings"),
    [
        ("what the driver made of its own pages", _NODE_1, {}),
        ("in a mapping that holds other memory", _NODE_0, {"touch": 1, "beside": 1}),
    ],
)
def test_memory_is_used_unless_it_is_known_to_lie_elsewhere(
    fakes: Fakes, tmp_path: Path, title: str, place: int, settings: dict[str, int]
) -> None:
    """The kernel does not count a driver's own pages; here no page is in use yet."""
    _node(tmp_path, 0, str(_CPU))
    _node(tmp_path, 1, str(_CPU))
    script = f"forbid_policies(); report(seconds=transfers(open_gpus(2, 16 << 20), [[({place}, 1)]]))"
    assert len(_reported(fakes, tmp_path, script, **settings)["seconds"]) == 1, title


def test_the_cpus_are_restored_where_the_driver_has_no_memory(fakes: Fakes, tmp_path: Path) -> None:
    _node(tmp_path, 0, str(_CPU))
    script = f"""
forbid_policies()
before, gpus = cpus(), open_gpus(2)
os.environ["FAKE_FAIL"] = "cuMemHostAlloc:2:1"
refused = failure(transfers, gpus, [[({_NODE_0}, 1)]])
report(refused=refused, before=before, after=cpus())
"""
    reported = _reported(fakes, tmp_path, script)
    assert reported["refused"]["kind"] == "CudaError"
    assert reported["after"] == reported["before"]


_BACKEND = """
from collbench.measurement.backends.cuda import CudaBackend, list_gpus
from collbench.measurement.backends.protocol import Open
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import Device
backend = CudaBackend(Open(tuple(Device(at, uuid, "GPU") for at, uuid in enumerate(list_gpus()))), None)
def refusal():
    skipped = backend.can_run(Work(Operation.H2D_CE, Variant.HOST, 0), (0,))
    return [skipped.kind, skipped.detail] if skipped else None
"""


@pytest.mark.parametrize(("free_mib", "fits"), [(1537, False), (2049, True)])
def test_a_node_needs_room_for_the_buffers_of_all_gpus_once(
    fakes: Fakes, tmp_path: Path, free_mib: int, fits: bool
) -> None:
    _node(tmp_path, 0, str(_CPU), free_mib << 10)
    left = tmp_path / "left"
    left.mkdir()
    _node(left, 0, str(_CPU), free_mib - 1024 << 10)
    script = f"""
{_BACKEND}
forbid_policies()
before = refusal()
os.environ["FAKE_NODES"] = {str(left)!r}  # two GPUs' own buffers have taken a GiB
report(before=before, after=refusal())
"""
    reported = _reported(fakes, tmp_path, script, gpus=2)

    assert reported["after"] == reported["before"]
    why = "only 1537 MiB of the node's memory are free, 2048 MiB needed; free some (page cache counts as used)"
    assert reported["before"] == (None if fits else ["numa", _NO_POLICY + why + _OR])
