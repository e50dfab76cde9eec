"""`collbench train` under srun and in a pod."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.program import fake_gpus, on_gpus, one_line, save_run, saved_in
from tests.launch.test_rendezvous import IN_STEP, POD, SLURM
from tests.native.fakes import Fakes


@pytest.fixture(autouse=True)
def script(tmp_path: Path) -> None:
    """A script, and a saved run in which the pair 2-3 is the fastest."""
    (tmp_path / "train.py").touch()
    save_run(saved_in(tmp_path), fake_gpus())


@pytest.mark.parametrize(
    ("case", "environment", "expected"),
    [
        ("srun, one task a node", SLURM, f"{IN_STEP} --nproc-per-node 2 -- train.py\n"),
        ("a pod", POD, "--nproc-per-node 2 -- train.py\n"),
    ],
)
def test_what_schedulers_set_is_found(fakes: Fakes, case: str, environment: dict[str, str], expected: str) -> None:
    done = on_gpus(fakes, ["train", "--auto-select", "2", "--dry-run", "train.py"], environment)
    assert (done.code, done.stderr.count("\n")) == (0, 1), done.stderr
    assert done.stdout.partition(" -m torch.distributed.run ")[2].startswith(expected), case


def test_two_tasks_on_a_node_are_refused_by_the_first_only(fakes: Fakes) -> None:
    crowded = SLURM | {"SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_TASKS_PER_NODE": "2(x2)"}
    args = ["train", "--auto-select", "2", "train.py"]
    first = on_gpus(fakes, args, crowded | {"SLURM_PROCID": "0", "SLURM_NODEID": "0"})
    assert first.code == 2
    assert "srun --ntasks-per-node 1" in one_line(first.stderr)
    last = on_gpus(fakes, args, crowded | {"SLURM_PROCID": "3", "SLURM_NODEID": "1", "SLURM_LOCALID": "1"})
    assert (last.code, last.stdout, last.stderr) == (2, "", "")


@pytest.mark.parametrize("environment", [SLURM, POD], ids=["srun", "a pod"])
def test_a_probe_measures_this_node_only(fakes: Fakes, environment: dict[str, str]) -> None:
    args = ["train", "--auto-select", "2", "--fresh", "--dry-run", "train.py"]
    done = on_gpus(fakes, args, environment, rate="100,0-1=10")
    assert done.code == 0, done.stderr
    assert done.stderr.splitlines()[-1].endswith("(quick probe)")
