"""`collbench train` under srun and in a pod."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.program import fake_gpus, on_gpus, save_run, saved_in
from tests.native.fakes import Fakes
from tests.torchrun.test_rendezvous import IN_STEP, POD, SLURM


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


@pytest.mark.parametrize("environment", [SLURM, POD], ids=["srun", "a pod"])
def test_a_probe_measures_this_node_only(fakes: Fakes, environment: dict[str, str]) -> None:
    args = ["train", "--auto-select", "2", "--fresh", "--dry-run", "train.py"]
    done = on_gpus(fakes, args, environment, rate="100,0-1=10")
    assert done.code == 0, done.stderr
    assert done.stderr.splitlines()[-1].endswith("(quick probe)")
