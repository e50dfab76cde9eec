"""The Slurm prolog in the environment that slurmd gives it, with a `collbench` of every exit status."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.examples.programs import EXAMPLES, ROOT, FakeProgram

PROLOG = EXAMPLES / "slurm" / "prolog.sh"


def started(fake: FakeProgram, **environment: str) -> tuple[int, str]:
    """Run the prolog of job 17; return its exit status and stderr."""
    done = fake.start(PROLOG, SLURM_JOB_ID="17", COLLBENCH_LOGS=str(fake.folder / "logs"), **environment)
    assert done.stdout == ""  # slurmd would read it
    return done.returncode, done.stderr


def test_a_healthy_node_starts_the_job_and_keeps_no_log(fake: FakeProgram) -> None:
    fake.will(status=0)
    assert started(fake, SLURM_JOB_GPUS="0,1,2,3") == (0, "")
    [(args, visible)] = fake.calls()
    run = str(fake.folder / "logs" / "job-17.json")
    assert args == ["check", "--quick", "--devices", "0,1,2,3", "--expect", "4", "--force", "--output", run]
    assert visible is None
    assert list((fake.folder / "logs").iterdir()) == []


WARNING = "Labels, tools and measurement agree with one another, but SYS pairs reach at most 29% of theory."


def test_a_warning_starts_the_job_and_is_kept(fake: FakeProgram) -> None:
    fake.will(status=0, says=f"collbench: measuring GPU0-GPU1 once more, isolated\n{WARNING}\nagree     6 of 6 pairs")
    status, stderr = started(fake, SLURM_JOB_GPUS="0,1")
    assert status == 0
    assert f"job 17: started in spite of a warning: GPUs 0,1: {WARNING} See " in stderr
    assert WARNING in (fake.folder / "logs" / "job-17.txt").read_text()


@pytest.mark.parametrize("strict", ["", "1"])
def test_a_site_may_have_warnings_refuse_the_job(fake: FakeProgram, strict: str) -> None:
    fake.will(status=0)
    assert started(fake, SLURM_JOB_GPUS="0,1", COLLBENCH_STRICT=strict)[0] == 0
    [(args, _)] = fake.calls()
    assert ("--strict" in args) is bool(strict)


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (1, "could not be checked (status 1)"),
        (2, "could not be checked (status 2)"),
        (3, "labels and measurement disagree"),
        (4, "wrong data or a hang"),
        (139, "could not be checked (status 139)"),
    ],
)
def test_any_other_status_refuses_the_job_and_keeps_the_reason(fake: FakeProgram, status: int, message: str) -> None:
    fake.will(status=status)
    prolog_status, stderr = started(fake, SLURM_JOB_GPUS="4,5")
    assert prolog_status == 1
    assert message in stderr
    assert "job 17: refused: GPUs 4,5" in stderr
    assert (fake.folder / "logs" / "job-17.txt").read_text() == "GPU0-GPU1: NV_DEGRADED\n"


def test_a_hang_refuses_the_job_after_the_limit(fake: FakeProgram) -> None:
    fake.will(hang=True)
    status, stderr = started(fake, SLURM_JOB_GPUS="0,1", COLLBENCH_LIMIT="1")
    assert (status, "not checked within 1 s" in stderr) == (1, True)


def test_without_collbench_the_job_is_refused(fake: FakeProgram) -> None:
    status, stderr = started(fake, SLURM_JOB_GPUS="0,1")
    assert (status, f"{fake.program} is not there" in stderr) == (1, True)


def test_without_a_folder_for_logs_the_job_is_refused(fake: FakeProgram) -> None:
    fake.will(status=0)
    (fake.folder / "logs").write_text("a file in the way")
    assert started(fake, SLURM_JOB_GPUS="0,1")[0] == 1
    assert fake.calls() == []


@pytest.mark.parametrize("variables", [{}, {"SLURM_JOB_GPUS": ""}, {"CUDA_VISIBLE_DEVICES": ""}])
def test_a_job_without_gpus_is_not_checked(fake: FakeProgram, variables: dict[str, str]) -> None:
    assert started(fake, **variables) == (0, "")
    assert fake.calls() == []


def test_a_job_with_one_gpu_has_no_link(fake: FakeProgram) -> None:
    status, stderr = started(fake, SLURM_JOB_GPUS="3")
    assert (status, "no link to check" in stderr, fake.calls()) == (0, True, [])


def test_an_older_slurm_names_the_gpus_by_cudas_variable(fake: FakeProgram) -> None:
    fake.will(status=0)
    assert started(fake, CUDA_VISIBLE_DEVICES="2,GPU-abc") == (0, "")
    [(args, visible)] = fake.calls()
    assert args[2:6] == ["--devices", "2,GPU-abc", "--expect", "2"]
    assert visible is None


def test_hostile_gpu_names_stay_one_word(fake: FakeProgram, tmp_path: Path) -> None:
    fake.will(status=2)
    assert started(fake, SLURM_JOB_GPUS="0,$(touch pwned) --nccl x")[0] == 1
    [(args, _)] = fake.calls()
    assert args[3] == "0,$(touch pwned) --nccl x"


@pytest.mark.parametrize(
    ("faults", "gpus", "status", "message"),
    [
        ([{"kind": "slow-link", "devices": [1, 3], "factor": 0.25}], "4,5,6,7", 0, ""),
        ([{"kind": "slow-link", "devices": [1, 3], "factor": 0.25}], "0,1,2,3", 1, "labels and measurement disagree"),
        ([], "6,7,8", 1, "could not be checked (status 2)"),
    ],
)
def test_the_real_collbench_decides_on_a_simulated_machine(
    tmp_path: Path, faults: list[dict[str, object]], gpus: str, status: int, message: str
) -> None:
    machine = json.loads((ROOT / "src/collbench/sim/machines/hgx-h200.json").read_text(encoding="utf-8"))
    (tmp_path / "fabric.json").write_text(json.dumps({**machine, "faults": faults}))
    fake = FakeProgram(tmp_path)
    simulated = f"--backend sim --fabric {tmp_path / 'fabric.json'}"
    fake.program.write_text(f'#!/bin/sh\nexec {sys.executable} -m collbench "$@" {simulated}\n')
    fake.program.chmod(0o755)
    prolog_status, stderr = started(fake, SLURM_JOB_GPUS=gpus, COLLBENCH_LIMIT="90")
    assert (prolog_status, message in stderr) == (status, True), stderr


@pytest.mark.parametrize("strict", ["", "1"])
def test_four_gpus_around_a_slow_uplink_pass_with_a_warning_or_are_refused(tmp_path: Path, strict: str) -> None:
    """No label promises more than a slow uplink gives: without copies with host memory, nothing contradicts it."""
    machine = json.loads((ROOT / "src/collbench/sim/machines/pcie-4-two-bridges.json").read_text(encoding="utf-8"))
    machine["bridges"][0] |= {"up_gbs": 9.0, "down_gbs": 9.0}
    (tmp_path / "fabric.json").write_text(json.dumps(machine))
    fake = FakeProgram(tmp_path)
    simulated = f"--backend sim --fabric {tmp_path / 'fabric.json'}"
    fake.program.write_text(f'#!/bin/sh\nexec {sys.executable} -m collbench "$@" {simulated}\n')
    fake.program.chmod(0o755)
    status, stderr = started(fake, SLURM_JOB_GPUS="0,1,2,3", COLLBENCH_LIMIT="90", COLLBENCH_STRICT=strict)
    assert status == (1 if strict else 0)
    assert ("refused: " if strict else "started in spite of a warning: ") in stderr
    assert "PHB pairs reach at most 29% of what PCIe allows" in (fake.folder / "logs" / "job-17.txt").read_text()
