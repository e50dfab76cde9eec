"""docs/choose-gpus.md and docs/several-nodes.md on `train`: what they show works."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from collbench.api import by_run
from tests.api.torchrun.test_rendezvous import POD, SLURM
from tests.builders import gpus
from tests.cli.program import Program, list_only, save_run, saved_in

DOCS = Path(__file__).parents[2] / "docs"
TRAIN, NODES = ((DOCS / name).read_text(encoding="utf-8") for name in ("choose-gpus.md", "several-nodes.md"))
COMMANDS = re.findall(r"^ +((?:srun .*)?collbench train .*)$", TRAIN + NODES, re.MULTILINE)
(YAML,) = re.findall(r"^    apiVersion: .*\n(?:    .*\n)+", NODES, re.MULTILINE)


@pytest.fixture(autouse=True)
def machine(program: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Eight GPUs that are only listed, a run of them, and a script."""
    list_only(monkeypatch, gpus(8))
    save_run(saved_in(tmp_path), gpus(8))
    monkeypatch.setattr(by_run, "probe", lambda *_: pytest.fail("probed"))
    monkeypatch.setattr(by_run, "_nccl_of_the_job", lambda _criteria: "2.28.9")
    (tmp_path / "train.py").touch()


@pytest.mark.parametrize("command_line", COMMANDS)
def test_what_is_shown_can_be_typed(program: Program, monkeypatch: pytest.MonkeyPatch, command_line: str) -> None:
    before, _, rest = command_line.partition("collbench train ")
    for name, value in SLURM.items() if before.startswith("srun ") else ():
        monkeypatch.setenv(name, value)
    result = program("train", "--dry-run", *shlex.split(rest))
    assert result.status == 0, result.err
    assert " -m torch.distributed.run " in result.out
    assert ("--rdzv-backend c10d" in result.out) == ("--nnodes" in command_line or bool(before))


def test_the_first_example_becomes_what_the_page_says(program: Program) -> None:
    command_line, becomes = re.findall(r"^    (collbench train .*|python -P .*)$", TRAIN, re.MULTILINE)[:2]
    result = program("train", "--dry-run", *shlex.split(command_line)[2:])
    assert re.split(r"/python[\d.]* -P ", result.out)[1] == becomes.removeprefix("python -P ") + "\n"


def test_the_pods_command_can_be_run_in_a_pod(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    job = yaml.safe_load(YAML)
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert (job["kind"], replicas["Master"]["replicas"], replicas["Worker"]["replicas"]) == ("PyTorchJob", 1, 3)
    for name, value in (POD | {"PET_NNODES": "4", "WORLD_SIZE": "4"}).items():
        monkeypatch.setenv(name, value)
    for kind in replicas.values():
        # The operator knows its container by this name [training-operator, PyTorchJobDefaultContainerName].
        (pod,) = kind["template"]["spec"]["containers"]
        assert pod["name"] == "pytorch"
        command, name, *args = pod["command"]
        assert (command, name) == ("collbench", "train")
        result = program(name, "--dry-run", *args)
        assert result.status == 0, result.err
        assert "--nproc-per-node 4 -- " in result.out
