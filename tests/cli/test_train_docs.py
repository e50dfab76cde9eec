"""docs/choose-gpus.md and docs/several-nodes.md on `train`: what they show works, and its messages are printed."""

from __future__ import annotations

import re
import shlex
from datetime import timedelta
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from collbench.api import suitable_run
from collbench.machine.visible_devices import visible
from collbench.model.errors import DataCorruption, UsageError
from collbench.model.run import Health
from tests.builders import gpus
from tests.cli.program import Program, list_only, save_run, saved_in
from tests.launch.test_rendezvous import POD, SLURM

DOCS = Path(__file__).parents[2] / "docs"
TRAIN, NODES = ((DOCS / name).read_text(encoding="utf-8") for name in ("choose-gpus.md", "several-nodes.md"))
COMMANDS = re.findall(r"^ +((?:srun .*)?collbench train .*)$", TRAIN + NODES, re.MULTILINE)
(YAML,) = re.findall(r"^    apiVersion: .*\n(?:    .*\n)+", NODES, re.MULTILINE)
PROBE = suitable_run.probe  # as it is without this file's machine
ROWS = re.findall(r"^\| `([^`]+)` \|", TRAIN.partition("| message |")[2], re.MULTILINE)


@pytest.fixture(autouse=True)
def machine(program: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Eight GPUs that are only listed, a run of them, and a script."""
    list_only(monkeypatch, gpus(8))
    save_run(saved_in(tmp_path), gpus(8))
    monkeypatch.setattr(suitable_run, "probe", lambda *_: pytest.fail("probed"))
    monkeypatch.setattr(suitable_run, "_nccl_of_the_job", lambda _criteria: "2.28.9")
    (tmp_path / "train.py").touch()


def test_the_documents_show_commands() -> None:
    assert len(COMMANDS) >= 4
    assert len([command for command in COMMANDS if command.startswith("srun ")]) == 1


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


# --- the messages of the table ------------------------------------------------------------------------------------


def refused(program: Program, *args: str) -> str:
    result = program("train", *args, "--dry-run", "train.py")
    assert result.status == 2, result.err
    return result.line


def more_than_shown(program: Program, monkeypatch: pytest.MonkeyPatch) -> str:
    list_only(monkeypatch, gpus(8)[:2], hidden=gpus(8)[2:])
    return refused(program, "--auto-select", "3")


def one_is_busy(program: Program, monkeypatch: pytest.MonkeyPatch) -> str:
    states = {device.uuid: Health(processes=int(device.tag == "GPU2")) for device in gpus(4)}
    list_only(monkeypatch, gpus(4), states=states)
    return refused(program, "--auto-select", "4")


def another_driver(program: Program, monkeypatch: pytest.MonkeyPatch) -> str:
    list_only(monkeypatch, gpus(8), driver="590.1")
    save_run(Path("run.json"), gpus(8))
    return refused(program, "--auto-select", "2", "--run-file", "run.json")


def an_old_run_and_a_probe_that_fails(program: Program, monkeypatch: pytest.MonkeyPatch) -> str:
    """Print two lines: that it probes and why, and that the probe failed."""
    for path in Path("state/collbench/runs").iterdir():
        save_run(path, gpus(8), timedelta(days=9))
    monkeypatch.setattr(suitable_run, "probe", PROBE)

    def fail(*_: object) -> None:
        raise DataCorruption("GPU0 → GPU1 (ce): byte 7 is wrong")

    monkeypatch.setattr(suitable_run, "measure", fail)
    result = program("train", "--auto-select", "2", "train.py")
    assert (result.status, result.err.count("\n")) == (4, 2)  # the probe's own: wrong data or a hang
    return result.err


def a_mig_device(_program: Program, _monkeypatch: pytest.MonkeyPatch) -> str:
    with pytest.raises(UsageError) as caught:
        visible(gpus(8), "MIG-0af7651e-8b2d-5c7e-9c2d-2f1f8f1f8f1f", None)
    return str(caught.value)


def nowhere_to_meet(program: Program, _monkeypatch: pytest.MonkeyPatch) -> str:
    return refused(program, "--auto-select", "2", "--nnodes", "4")


SAYS = {
    "--auto-select 3 is more": more_than_shown,
    "cannot choose 4 of 4 devices": one_is_busy,
    "run.json cannot choose devices here": another_driver,
    "no saved run fits": an_old_run_and_a_probe_that_fails,
    "MIG devices": a_mig_device,
    "--nnodes 4": nowhere_to_meet,
    "the probe failed": an_old_run_and_a_probe_that_fails,
}


def test_the_table_has_these_rows() -> None:
    assert [next(start for start in SAYS if row.startswith(start)) for row in ROWS] == list(SAYS)


@pytest.mark.parametrize("row", ROWS)
def test_the_messages_of_the_table_are_printed(program: Program, monkeypatch: pytest.MonkeyPatch, row: str) -> None:
    """The message has the table's words in their order; "…" stands for any text."""
    say = next(say for start, say in SAYS.items() if row.startswith(start))
    assert re.search(".*".join(map(re.escape, row.split("…"))), say(program, monkeypatch))
