"""One line on NUMA nodes, for the GPUs that were chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from collbench.model.operations import Operation
from collbench.report.text.selection import line
from tests.choose.test_binding import run_with


def near(_operation: Operation, member: int, node: int) -> float:
    """Two GPUs on each node."""
    return 55.0 if member // 2 == node else 38.0


def alike(_operation: Operation, _member: int, _node: int) -> float:
    return 55.0


@pytest.mark.parametrize(
    ("title", "labels", "rate", "devices", "expected"),
    [
        ("all as labelled", [0, 0, 1, 1], near, (0, 2, 3),
         "GPU0 on node 0; GPU2, GPU3 on node 1, as NVML reports: torchrun --numa-binding=node"),
        ("those that were not chosen do not count", [0, 1, 1, 1], near, (0, 2),
         "GPU0 on node 0; GPU2 on node 1, as NVML reports: torchrun --numa-binding=node"),
        ("a label that is wrong", [0, 1, 1, 1], near, (0, 1),
         "GPU1: node 0 is faster than node 1, which NVML reports (node 0 55.0, node 1 38.0 GB/s): "
         "numactl --cpunodebind=0"),
        ("no labels", [None] * 4, near, (2, 3),
         "GPU2: node 1, NVML reports none (node 1 55.0, node 0 38.0 GB/s); "
         "GPU3: node 1, NVML reports none (node 1 55.0, node 0 38.0 GB/s)"),
        ("equal nodes", [0, 0, 1, 1], alike, (0, 1, 2, 3), "NUMA nodes tie: no binding is needed"),
        ("no device", [0, 0, 1, 1], near, (), ""),
    ],
)  # fmt: skip
def test_the_line(
    title: str,
    labels: Sequence[int | None],
    rate: Callable[[Operation, int, int], float],
    devices: tuple[int, ...],
    expected: str,
) -> None:
    assert line(run_with(labels, rate), devices) == expected, title


def test_a_run_on_one_node_has_no_line() -> None:
    assert line(run_with([0, 0], alike, nodes=(0,)), (0, 1)) == ""


def test_simulated_figures_say_so() -> None:
    assert line(replace(run_with([0], alike), backend="sim"), (0,)).endswith("(sim)")
