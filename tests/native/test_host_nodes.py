"""Host memory on a NUMA node: made by the real kernel's memory policy, copied by simulated GPUs. Node 0 is everywhere.

A container may forbid policies: test_node_cpus.py.
"""

from __future__ import annotations

import ctypes
import json
import platform
import sys
from pathlib import Path
from typing import Any

import pytest

from collbench import _native
from tests.native.fakes import Fakes

_REFUSAL = _native.node_memory_refusal(0, gpus=1)
_allowed = pytest.mark.skipif(bool(_REFUSAL), reason=_REFUSAL)
_SET_MEMPOLICY = 237 if platform.machine() == "aarch64" else 238
_by_policy = pytest.mark.skipif(
    ctypes.CDLL(None).syscall(_SET_MEMPOLICY, 0, None, 0) != 0, reason="this process may not set its memory policy"
)
# MPOL_BIND [linux/mempolicy.h], to node 0 only.
_BOUND = "policy 2 nodes 1"
_ANYWHERE, _NODE_0, _NODE_1023 = -1, -2, -1025


@_allowed
@pytest.mark.parametrize("multiprocessors", [False, True])
@pytest.mark.parametrize("link", [(_NODE_0, 1), (1, _NODE_0)])
def test_a_copy_with_a_nodes_memory_is_timed_and_verified(
    fakes: Fakes, link: tuple[int, int], multiprocessors: bool
) -> None:
    call = (
        f"transfers(open_gpus(2, 1 << 20), [[{link}]], bytes=1000000, iterations=1, multiprocessors={multiprocessors})"
    )
    done = fakes.script(f"report(seconds={call}); gc.collect()", host_rate=40, sm_share=0.5)

    # A megabyte at 40 GB/s, or 20 GB/s by kernels, and 1 µs.
    assert done.reported["seconds"][0] == pytest.approx([51e-6 if multiprocessors else 26e-6], rel=1e-6)
    assert done.leaks() == []


@_by_policy
def test_memory_is_bound_while_a_nodes_buffer_is_made_and_at_no_other_time(fakes: Fakes) -> None:
    script = f"""
        gpus = open_gpus(2)
        for trial in range(2):
            for place in ({_ANYWHERE}, {_NODE_0}):
                transfers(gpus, [[(place, 0)]])
                transfers(gpus, [[(0, place)]])
    """
    done = fakes.script(script)
    policy_lines = [number for number, line in enumerate(done.log) if line.startswith("policy")]

    assert [done.log[number] for number in policy_lines] == [_BOUND] * 2  # a source and a target, once
    assert all(done.log[number + 1].startswith("+pinned") for number in policy_lines)
    pinned = [line.split()[0] for line in done.log if line.startswith("+pinned")]
    assert len(pinned) == len([line for line in done.log if line == "cuMemHostAlloc"])


@_allowed
def test_a_wrong_byte_from_a_nodes_memory_is_found(fakes: Fakes) -> None:
    script = f"report(**failure(transfers, open_gpus(2), [[({_NODE_0}, 1)]]))"
    reported = fakes.script(script, corrupt_copy="4:9").reported

    assert (reported["kind"], reported["offset"], reported["wrong"]) == ("DataError", 9, 1)


@_by_policy
def test_a_node_that_is_not_there_is_refused_and_leaves_everything_as_it_was(fakes: Fakes) -> None:
    script = f"""
        gpus = open_gpus(2)
        refused = failure(transfers, gpus, [[({_NODE_1023}, 1)]])
        seconds = transfers(gpus, [[({_ANYWHERE}, 1)]])
        texts = dict(text=native.node_memory_refusal(1023, 1), fine=native.node_memory_refusal(0, 1))
        report(refused=refused, seconds=seconds, **texts)
    """
    done = fakes.script(script)
    reported = done.reported

    assert reported["refused"]["kind"] == "PolicyError"
    assert reported["refused"]["text"] == reported["text"]
    assert reported["text"].startswith(
        "cannot take memory on NUMA node 1023: set_mempolicy: Invalid argument; there is no "
    )
    assert reported["fine"] == ""
    assert len(reported["seconds"]) == 1
    assert done.lines("policy") == []


# Two nodes by name; the worker's memory lies on node 0 for both, as this machine may have only one.
_TWO_NODES = """
import collbench.measurement.backends.isolated as isolated
isolated.usable_nodes = lambda: (0, 1)
"""
_WORKER = """
import sys, collbench.measurement.backends.cuda as cuda
from collbench.measurement.backends.worker import CudaSource, run
cuda._native.node_memory_refusal = lambda node, gpus: {refusal!r}
cuda.usable_nodes = lambda: (0, 1)
transfers = cuda._transfers
cuda._transfers = lambda work, members: [tuple(max(end, -2) for end in link) for link in transfers(work, members)]
run(int(sys.argv[1]), CudaSource())
"""


def _copies(fakes: Fakes, tmp_path: Path, refusal: str, patterns: str = "host") -> tuple[dict[str, Any], str]:
    """Measure host copies on a machine that shows two nodes; return the run and the page."""
    (tmp_path / "two_nodes_worker.py").write_text(_WORKER.format(refusal=refusal))
    code = (
        f"{_TWO_NODES}\nisolated.IsolatedBackend.__init__.__defaults__ = ('two_nodes_worker', isolated._TIMEOUTS, None)"
    )
    code += "\nfrom collbench.cli import main\nsys.exit(main())"
    arguments = ["copies", "--backend", "cuda", "--patterns", patterns, "--sizes", "4K,16K", "-v", "-o", "run.json"]
    memory = {"memory": 2**32, "free": (256 + 2) * 2**20}
    extra = {"COLLBENCH_NCCL": str(fakes.nccl), "NO_COLOR": "1"}
    extra["PYTHONPATH"] = f"{fakes.environment()['PYTHONPATH']}:{tmp_path}"
    done = fakes.run([sys.executable, "-c", f"import sys\n{code}", *arguments], extra, gpus=2, **memory)
    assert done.code == 0, done.stderr
    run: dict[str, Any] = json.loads((tmp_path / "run.json").read_text())
    return run, done.stdout


@_allowed
def test_host_copies_are_measured_on_each_node_and_shown_by_node(fakes: Fakes, tmp_path: Path) -> None:
    run, page = _copies(fakes, tmp_path, refusal="")

    points = {(m["point"]["operation"], m["point"]["numa_node"]) for m in run["measurements"]}
    assert points == {
        (f"{direction}-{engine}", node) for direction in ("h2d", "d2h") for engine in ("ce", "sm") for node in (0, 1)
    }
    assert all(m["samples"] for m in run["measurements"])
    assert run["skipped"] == []
    assert "node 0" in page
    assert "node 1" in page
