"""`collbench train` on two nodes with real torchrun: each node uses its own saved run, however it is started."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from collbench.model.run import Run
from tests.api.torchrun.test_execution import TIMEOUT_S, needs_torch
from tests.builders import pair_run
from tests.cli.program import environment, fake_gpus, fake_uuid, save_run
from tests.cli.test_train_docs import NODES
from tests.native.fakes import Fakes
from tests.ranks.processes import free_port

pytestmark = [needs_torch, pytest.mark.usefixtures("loaded_torch")]
GPUS, MIB = 5, 2**20
# On each node another of the five is slow to all others, so the best four differ.
SLOW = (0, 4)
BEST = ([1, 2, 3, 4], [0, 1, 2, 3])

SCRIPT = """
import json, os, pathlib
names = ("NODE", "WORLD_SIZE", "CUDA_VISIBLE_DEVICES")
pathlib.Path("rank" + os.environ["RANK"] + ".json").write_text(json.dumps([os.environ[name] for name in names]))
"""
# A fake srun: starts the batch script's number of tasks on this host, each with the variables that Slurm sets.
SRUN = """#!{python}
import os, subprocess, sys
assert sys.argv[1:3] == ["--ntasks-per-node", "1"]
nodes = int(os.environ["NODES"])
step = dict(SLURM_JOB_ID="4711", SLURM_STEP_ID="0", SLURM_STEP_NUM_NODES=str(nodes), SLURM_STEP_NUM_TASKS=str(nodes),
            SLURM_STEP_TASKS_PER_NODE=f"1(x{{nodes}})", SLURM_STEP_NODELIST="localhost", SLURM_LOCALID="0")
def task(node):
    own = dict.fromkeys(("SLURM_PROCID", "SLURM_NODEID", "NODE"), str(node))
    state = os.path.abspath(str(node))
    return subprocess.Popen(sys.argv[3:], env={{**os.environ, **step, **own, "XDG_STATE_HOME": state}})
tasks = [task(node) for node in range(nodes)]
sys.exit(max(task.wait() for task in tasks))
"""


@dataclass(frozen=True)
class Nodes:
    """Two nodes in one folder, each with simulated GPUs and its own saved run."""

    fakes: Fakes
    folder: Path

    def settings(self, **variables: str) -> dict[str, str]:
        """Return the environment that both share."""
        plan = {"gpus": GPUS, "memory": 4096 * MIB, "free": (256 + 512 * GPUS + 2) * MIB}
        return self.fakes.environment(**plan) | environment(self.fakes) | variables

    def start(self, command: Sequence[str], variables: Mapping[str, str]) -> subprocess.Popen[str]:
        """Start a command where the script is."""
        return subprocess.Popen(
            command, cwd=self.folder, env=self.settings(**variables), stderr=subprocess.PIPE, text=True
        )

    def ranks(self) -> list[tuple[str, str, str]]:
        """Return each rank's node, number of ranks, and devices."""
        files = sorted(self.folder.glob("rank*.json"))
        return [tuple(json.loads(file.read_text(encoding="utf-8"))) for file in files]


@pytest.fixture
def nodes(fakes: Fakes, tmp_path: Path) -> Nodes:
    """Two nodes, and the script that both can read."""
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    for node, slow in enumerate(SLOW):
        path = tmp_path / str(node) / "collbench" / "runs" / "20261121T000000Z-cuda-pairs.json"
        save_run(path, fake_gpus(GPUS), measurements=slowed(slow).measurements)
    return Nodes(fakes, tmp_path)


def slowed(slow: int) -> Run:
    """Return a run in which one device is slow to all others."""
    return pair_run(GPUS, lambda a, b: 10.0 if slow in (a, b) else 300.0)


def ended(jobs: Sequence[subprocess.Popen[str]]) -> list[str]:
    """Wait until all have succeeded; return the stderr of each."""
    try:
        outputs = [job.communicate(timeout=TIMEOUT_S)[1] for job in jobs]
    finally:
        for job in jobs:
            job.kill()
    assert [job.returncode for job in jobs] == [0] * len(jobs), outputs
    return outputs


def expected(k: int) -> list[tuple[str, str, str]]:
    """Return the expected environment of two nodes' ranks if each node takes its own best k."""
    return [
        (str(node), str(2 * k), ",".join(fake_uuid(index) for index in BEST[node][:k]))
        for node in (0, 1)
        for _ in range(k)
    ]


def test_the_documented_batch_script_trains_on_all_nodes_of_the_job(nodes: Nodes) -> None:
    (script,) = re.findall(r"^    #!/bin/bash\n(?:    .*\n)+", NODES, re.MULTILINE)
    assert "#SBATCH --nodes 4 --ntasks-per-node 1 " in script
    (nodes.folder / "job.sh").write_text(script.replace("\n    ", "\n").lstrip(), encoding="utf-8")
    commands = nodes.folder / "bin"
    commands.mkdir()
    (commands / "srun").write_text(SRUN.format(python=sys.executable), encoding="utf-8")
    (commands / "srun").chmod(0o755)
    path = f"{commands}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    ended([nodes.start(["bash", "job.sh"], {"PATH": path, "NODES": "2", "MASTER_PORT": str(free_port())})])
    assert sorted(nodes.ranks()) == expected(4)
