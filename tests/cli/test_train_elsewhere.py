"""`collbench train` under srun and in a pod."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.api.torchrun.test_rendezvous import POD, SLURM
from tests.cli.program import fake_gpus, on_gpus, save_run, saved_in
from tests.native.fakes import Fakes


@pytest.fixture(autouse=True)
def script(tmp_path: Path) -> None:
    """A script, and a saved run in which the pair 2-3 is the fastest."""
    (tmp_path / "train.py").touch()
    save_run(saved_in(tmp_path), fake_gpus())


@pytest.mark.parametrize("environment", [SLURM, POD], ids=["srun", "a pod"])
def test_a_probe_measures_this_node_only(fakes: Fakes, environment: dict[str, str]) -> None:
    args = ["train", "--auto-select", "2", "--fresh", "--dry-run", "train.py"]
    done = on_gpus(fakes, args, environment, rate="100,0-1=10")
    assert done.code == 0, done.stderr
    assert done.stderr.splitlines()[-1].endswith("(quick probe)")
