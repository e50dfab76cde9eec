"""`collbench nodes`: simulated clusters, and what is refused. Ranks on several hosts: tests/ranks."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from collbench.cluster.nodes import Effect, State, Uplink
from collbench.model.errors import ExitStatus
from tests.cli.program import Program
from tests.cluster.made import judged, slow, survey

pytestmark = pytest.mark.usefixtures("loaded_program")

SIM = ("nodes", "--backend", "sim", "--fabric-cluster")


def test_a_simulated_cluster_is_measured_and_the_page_says_sim(program: Program) -> None:
    result = program(*SIM, "tree-128-faulty", "--select", "64", "--seed", "7")
    assert (result.status, result.err) == (3, "")
    assert "\nbackend   sim: nothing is measured\n" in result.out
    slow = [line.split()[1].rstrip(":") for line in result.out.splitlines() if line.startswith("slow ")]
    assert sorted(slow) == ["leaf9's", "node101", "node17", "node42"]
    assert result.out.endswith("truth     the chosen nodes reach 400 GB/s busbw; no choice can exceed 400 GB/s (sim)\n")


SLOW, EITHER = (Effect(-0.3, (-0.32, -0.28), state) for state in (State.SLOW, State.EITHER))


@pytest.mark.parametrize(
    ("changes", "failed", "status"),
    [
        ({}, ExitStatus.DONE, 0),
        ({"nodes": (SLOW,)}, ExitStatus.DONE, 3),
        ({"uplinks": (Uplink("leaf0", (0, 1), SLOW),)}, ExitStatus.DONE, 3),
        ({"uplinks": (Uplink("", (0, 1), EITHER),)}, ExitStatus.DONE, 0),
        ({"nodes": (*judged(4, slow()).nodes, EITHER)}, ExitStatus.DONE, 0),
        ({"nodes": (EITHER,)}, ExitStatus.DONE, 1),
        ({"nodes": (SLOW,)}, ExitStatus.FAILED, 3),
        ({"nodes": (SLOW,)}, ExitStatus.UNTRUSTED, 4),
    ],
)
def test_what_is_slow_decides_the_status_unless_something_worse_does(
    changes: dict[str, Any], failed: ExitStatus, status: int
) -> None:
    judgement = replace(judged(4, slow()), **changes)
    assert survey(judgement, names=("a", "b", "c", "d"), failure_status=failed).status == status


def test_the_documented_cluster_is_one(program: Program) -> None:
    page = (Path(__file__).parents[2] / "docs" / "slow-nodes.md").read_text(encoding="utf-8")
    example = re.findall(r"^    (\{.*?\})\n\n", page, re.MULTILINE | re.DOTALL)[-1]
    Path("mine.json").write_text(example, encoding="utf-8")
    result = program(*SIM, "mine.json", "--seed", "1")
    assert (result.status, "node3" in result.out) == (3, True), result


@pytest.mark.parametrize(
    ("title", "args", "message"),
    [
        ("outside a launch", ("nodes", "--select", "2"), "start this with srun, torchrun or mpirun"),
        ("an unknown one", (*SIM, "nope"), "no cluster is called 'nope'"),
        ("a cluster for real nodes", ("nodes", "--fabric-cluster", "tree-128"), "add --backend sim"),
        ("a file for nothing", (*SIM, "thin-32", "-o", "x.json"), "which 'collbench show' prints"),
        (
            "messages of latency",
            (*SIM, "thin-32", "--size", "8"),
            "has bandwidth and no latency: write --size 64M or more",
        ),
        ("switches of a simulated one", (*SIM, "thin-32", "--switches", "x"), "--switches is for real nodes"),
    ],
)
def test_meaningless_requests_are_refused_in_a_line(
    program: Program, title: str, args: tuple[str, ...], message: str
) -> None:
    result = program(*args)
    assert (result.status, result.out) == (2, "")
    assert message in result.line
