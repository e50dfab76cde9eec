"""`collbench nodes` by real processes: one on each of three network namespaces, which stand for hosts."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ranks.namespaces import hosts
from tests.ranks.processes import as_slurm, ends, free_port, started, the_run

pytestmark = pytest.mark.usefixtures("loaded_torch")
COUNT = 3


@pytest.fixture
def three_hosts() -> Iterator[list[list[str]]]:
    """Yield the command prefix for each of three hosts."""
    with hosts(COUNT) as prefixes:
        yield prefixes


def environments_of() -> list[dict[str, object]]:
    """Return the environment of one process on each host."""
    one_task_per_node = {"SLURM_LOCALID": 0, "SLURM_STEP_TASKS_PER_NODE": f"1(x{COUNT})", "MASTER_ADDR": "10.77.1.1"}
    return [as_slurm(rank, COUNT, 29500, SLURM_NODEID=rank, **one_task_per_node) for rank in range(COUNT)]


def test_three_hosts_on_reported_switches_are_measured_in_pairs_and_some_are_chosen(
    three_hosts: list[list[str]], tmp_path: Path
) -> None:
    file = tmp_path / "topology.conf"
    file.write_text("SwitchName=a Nodes=n[0-1]\nSwitchName=b Nodes=n2\nSwitchName=c Switches=a,b\n", encoding="utf-8")
    arguments = ["nodes", "--backend", "host", "--size", "64K", "--select", "2", "--budget", "0.001ms", "-v"]
    arguments += ["--switches", str(file)]
    with started(tmp_path, arguments, environments_of(), three_hosts) as processes:
        (status, out, err), *other_outputs = ends(processes)
    # 64K between shared cores may be too noisy to tell nodes apart, or make one look slow.
    undecided, slow = out.startswith("not judged: "), re.search(r"^slow +n\d", out, re.MULTILINE)
    assert status == (3 if slow else int(undecided)), err
    assert other_outputs == [(0, "", "")] * (COUNT - 1)
    assert "backend   host\nnodes     3 hosts, 3 ranks by Slurm" in out
    joined = re.sub(r"\n +", " ", out)
    assert f"\nswitches  2, as {file} reports\nrounds    8 (4 within leaves, 4 between leaves): 8 meas" in joined
    assert any(line.startswith("chosen    n") for line in out.splitlines())
    assert "sim" not in out
    run = the_run(tmp_path)
    pairs = {frozenset(measurement.point.members) for measurement in run.measurements}
    within, across = frozenset((0, 1)), {frozenset((0, 2)), frozenset((1, 2))}
    # Each of four rounds between leaves draws one of two pairs: perhaps the same one each time.
    assert pairs in ({within, *drawn} for drawn in (across, *({pair} for pair in across)))
    assert run.complete


IN_PYTHON = """
import collbench
found = collbench.nodes(2, backend="host", size='64K', budget=1e-6)
print(None if found is None else (len(found.names), len(found.choice.members), found.path.exists()))
"""


def test_in_python_rank_0_has_the_result(three_hosts: list[list[str]], tmp_path: Path) -> None:
    script = tmp_path / "uses_collbench.py"
    script.write_text(IN_PYTHON, encoding="utf-8")
    program = [sys.executable, str(script)]
    with started(tmp_path, [], environments_of(), three_hosts, program) as processes:
        (status, out, err), *other_outputs = ends(processes)
    assert (status, out) == (0, "(3, 2, True)\n"), err
    assert other_outputs == [(0, "None\n", "")] * (COUNT - 1)
    assert the_run(tmp_path).complete


def test_in_python_every_rank_raises_what_rank_0_refuses(tmp_path: Path) -> None:
    script = tmp_path / "uses_collbench.py"
    script.write_text(
        "import collbench\ntry:\n    print(collbench.nodes(2, backend='host', size='64K'))\n"
        "except collbench.Error as error:\n    print(error)\n",
        encoding="utf-8",
    )
    environments = [as_slurm(rank, 2, port) for port in (free_port(),) for rank in range(2)]
    with started(tmp_path, [], environments, program=[sys.executable, str(script)]) as processes:
        rank_0, rank_1 = ends(processes)
    refusal = "all ranks are on one host, which 'collbench pairs' measures: start ranks on several nodes\n"
    assert rank_0 == (0, refusal, "")
    assert rank_1 == (0, f"rank 0 failed: {refusal}", "")
