"""When `collbench train` lets torchrun bind ranks to NUMA nodes, and what it says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path

import pytest

from collbench.api import suitable_run, training
from collbench.api.training import NumaBinding
from collbench.choose.freshness import Here
from collbench.launch import torchrun
from collbench.launch.arguments import Script
from collbench.machine import numa
from collbench.model.operations import Operation
from collbench.model.run import Device, Run
from collbench.runfile import run_file
from tests.builders import measured
from tests.choose.test_binding import labelled, run_with
from tests.cli.program import Program, list_only
from tests.launch.made import script

BOUND = NumaBinding(True, "bound to their NUMA nodes, whose memory they reach fastest (--numa-binding node)")
ADVICE = "GPU2: node 0 is faster than node 1, which NVML reports (node 0 55.0, node 1 38.0 GB/s)"


def near(_operation: Operation, member: int, node: int) -> float:
    """Two GPUs on each node."""
    return 55.0 if member // 2 == node else 38.0


def alike(_operation: Operation, _member: int, _node: int) -> float:
    return 55.0


def first(_operation: Operation, _member: int, node: int) -> float:
    """All GPUs on node 0."""
    return 55.0 if node == 0 else 38.0


@pytest.fixture(autouse=True)
def able(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torchrun that can bind, on a machine of two NUMA nodes whose kernel and NVML agree on each GPU's node."""
    monkeypatch.setattr(torchrun, "cannot_bind", lambda: "")
    monkeypatch.setattr(numa, "usable_nodes", lambda: (0, 1))
    monkeypatch.setattr(numa, "node_of", lambda pci_bus_id: (int(pci_bus_id[9:11], 16) - 1) // 2)


def arguments(line: str = "train.py") -> Script:
    return script(["--auto-select", "2", *line.split()])


@pytest.mark.parametrize(
    ("title", "labels", "rate", "members", "expected"),
    [
        ("labels that are right", [0, 0, 1, 1], near, (0, 2), BOUND),
        ("one of the chosen is labelled wrong", [0, 0, 1, 1], first, (0, 2),
         NumaBinding(text=f"not bound to NUMA nodes, as {ADVICE}: numactl --cpunodebind=0 fits it")),
        ("one that was not chosen is labelled wrong", [0, 0, 0, 1], near, (0, 3), BOUND),
        ("nodes tie", [0, 0, 1, 1], alike, (0, 2), NumaBinding()),
        ("one of the chosen has no label", [0, 0, None, 1], near, (0, 2), NumaBinding()),
    ],
)  # fmt: skip
def test_what_host_copies_decide(
    title: str,
    labels: Sequence[int | None],
    rate: Callable[[Operation, int, int], float],
    members: tuple[int, ...],
    expected: NumaBinding,
) -> None:
    assert training.numa_binding(arguments(), run_with(labels, rate), members) == expected, title


AGREED = run_with([0, 0, 1, 1], near)


@pytest.mark.parametrize(
    ("title", "run", "line"),
    [
        ("no evidence", None, "train.py"),
        ("a run of CPU cores", replace(AGREED, backend="host"), "train.py"),
        ("a run without host copies", replace(AGREED, measurements=[]), "train.py"),
        ("the user binds otherwise", AGREED, "--numa_binding socket train.py"),
        ("the user binds so", AGREED, "--numa-binding=node train.py"),
    ],
)
def test_nothing_is_bound_or_reported(title: str, run: Run | None, line: str) -> None:
    assert training.numa_binding(arguments(line), run, (0, 2)) == NumaBinding(), title


@pytest.mark.parametrize(
    ("title", "module", "name", "value", "reason"),
    [
        ("torchrun cannot", torchrun, "cannot_bind", lambda: "torch 2.8.0 cannot", "torch 2.8.0 cannot"),
        ("a mask on one socket", numa, "usable_nodes", lambda: (0,), "this process may not use node 1"),
        ("a kernel that tells no node", numa, "node_of", lambda _: None, "does not report that 00000000:01:00.0 is on"),
        ("a kernel that says otherwise", numa, "node_of", lambda _: 1, "does not report that 00000000:01:00.0 is on"),
    ],
)
def test_what_would_fail_is_not_tried_and_reported(
    monkeypatch: pytest.MonkeyPatch, title: str, module: object, name: str, value: object, reason: str
) -> None:
    monkeypatch.setattr(module, name, value)
    binding = training.numa_binding(arguments(), AGREED, (0, 2))
    assert not binding.bind, title
    assert binding.text.startswith("not bound to the NUMA nodes that host copies prefer: ")
    assert reason in binding.text


def saved(devices: Sequence[Device], run: Run, path: Path) -> None:
    """Save the run with pairs of which 0-2 is the fastest, as measured now."""
    pairs = [
        measured(Operation.ALLREDUCE, pair, 300.0 if pair == (0, 2) else 100.0) for pair in combinations(range(4), 2)
    ]
    started = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    run_file.save(replace(run, devices=tuple(devices), measurements=[*pairs, *run.measurements], started=started), path)


def test_a_dry_run_shows_the_option_and_one_line_says_why(
    program: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    devices = labelled([0, 0, 1, 1])
    saved(devices, AGREED, tmp_path / "run.json")
    list_only(monkeypatch, devices)
    monkeypatch.setattr(suitable_run, "here", lambda _criteria, present: Here("cuda", present, "580.159.04", "2.28.9"))
    (tmp_path / "train.py").touch()
    args = ["--auto-select", "2", "--backend", "cuda", "--run-file", "run.json", "--dry-run", "train.py"]
    result = program("train", *args)
    assert result.status == 0, result.err
    assert result.line.startswith("using GPU0, GPU2 (GPU-0, GPU-2): ")
    assert result.line.endswith(f"run.json); {BOUND.text}")
    assert " --nproc-per-node 2 --numa-binding node -- train.py" in result.out
