"""A scheduler's CUDA_VISIBLE_DEVICES: collbench lists, measures and chooses inside it, by nvidia-smi's numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.program import fake_uuid, on_gpus, one_line
from tests.native.fakes import Fakes


@pytest.mark.parametrize(
    ("case", "setting", "heads"),
    [
        ("shortened UUIDs and indices", "GPU-fa4e02,3", "GPU2  GPU3"),
    ],
)
def test_topo_lists_only_these(fakes: Fakes, case: str, setting: str, heads: str) -> None:
    done = on_gpus(fakes, ["topo"], {"CUDA_VISIBLE_DEVICES": setting})
    assert done.code == 0, case
    assert done.stdout.splitlines()[0] == f"      {heads}  CPU Affinity  NUMA Affinity"
    hidden = len(heads.split()) < 4
    assert not hidden or f"{len(heads.split())} of 4 GPUs" in one_line(done.stderr)
    assert hidden or done.stderr == ""


@pytest.mark.parametrize(
    ("case", "setting", "args", "chosen"),
    [
        ("one of them by its number outside", "3,1", ["--devices", "3"], (3,)),
    ],
)
def test_train_chooses_only_from_these(
    fakes: Fakes, tmp_path: Path, case: str, setting: str, args: list[str], chosen: tuple[int, ...]
) -> None:
    (tmp_path / "train.py").touch()
    done = on_gpus(fakes, ["train", *args, "--dry-run", "train.py"], {"CUDA_VISIBLE_DEVICES": setting})
    assert done.code == 0, done.stderr
    uuids = ",".join(fake_uuid(index) for index in chosen)
    assert done.stdout.startswith(f"CUDA_VISIBLE_DEVICES={uuids} "), case
    assert ", ".join(f"GPU{index}" for index in chosen) in one_line(done.stderr)


@pytest.mark.parametrize(
    ("case", "args", "text"),
    [
        ("more than it leaves", ["train", "--auto-select", "3", "train.py"], "more than the 2"),
    ],
)
def test_what_it_hides_is_refused(fakes: Fakes, tmp_path: Path, case: str, args: list[str], text: str) -> None:
    (tmp_path / "train.py").touch()
    done = on_gpus(fakes, args, {"CUDA_VISIBLE_DEVICES": "3,1"})
    assert (done.code, done.stdout) == (2, "")
    assert text in one_line(done.stderr)


@pytest.mark.parametrize("command", ["topo", "select 1 --backend cuda --allow-busy"])
def test_the_message_says_when_all_gpus_are_hidden(fakes: Fakes, command: str) -> None:
    done = on_gpus(fakes, command.split(), {"CUDA_VISIBLE_DEVICES": ""})
    assert (done.code, done.stdout) == (2, "")
    assert "CUDA_VISIBLE_DEVICES" in one_line(done.stderr)
