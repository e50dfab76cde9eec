"""The Slurm prolog in the environment that slurmd gives it, with a `collbench` of every exit status."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.examples.programs import EXAMPLES, ROOT, Stand

PROLOG = EXAMPLES / "slurm" / "prolog.sh"


def started(stand: Stand, **environment: str) -> tuple[int, str]:
    """Run the prolog of job 17; return its status and what it said."""
    done = stand.start(PROLOG, SLURM_JOB_ID="17", COLLBENCH_LOGS=str(stand.folder / "logs"), **environment)
    assert done.stdout == ""  # slurmd would read it
    return done.returncode, done.stderr


def test_a_healthy_node_starts_the_job_and_keeps_no_log(stand: Stand) -> None:
    stand.will(status=0)
    assert started(stand, SLURM_JOB_GPUS="0,1,2,3") == (0, "")
    [(words, visible)] = stand.calls()
    run = str(stand.folder / "logs" / "job-17.json")
    assert words == ["check", "--quick", "--devices", "0,1,2,3", "--expect", "4", "--force", "--output", run]
    assert visible is None
    assert list((stand.folder / "logs").iterdir()) == []


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (1, "could not be checked (status 1)"),
        (2, "could not be checked (status 2)"),
        (3, "labels and measurement disagree"),
        (4, "wrong data or a hang"),
        (139, "could not be checked (status 139)"),
    ],
)
def test_any_other_status_refuses_the_job_and_keeps_the_reason(stand: Stand, status: int, says: str) -> None:
    stand.will(status=status)
    left, said = started(stand, SLURM_JOB_GPUS="4,5")
    assert left == 1
    assert says in said
    assert "job 17: refused: GPUs 4,5" in said
    assert (stand.folder / "logs" / "job-17.txt").read_text() == "GPU0-GPU1: NV_DEGRADED\n"


def test_a_hang_refuses_the_job_after_the_limit(stand: Stand) -> None:
    stand.will(hang=True)
    left, said = started(stand, SLURM_JOB_GPUS="0,1", COLLBENCH_LIMIT="1")
    assert (left, "not checked within 1 s" in said) == (1, True)


def test_without_collbench_the_job_is_refused(stand: Stand) -> None:
    left, said = started(stand, SLURM_JOB_GPUS="0,1")
    assert (left, f"{stand.program} is not there" in said) == (1, True)


def test_without_a_place_for_logs_the_job_is_refused(stand: Stand) -> None:
    stand.will(status=0)
    (stand.folder / "logs").write_text("a file in the way")
    assert started(stand, SLURM_JOB_GPUS="0,1")[0] == 1
    assert stand.calls() == []


@pytest.mark.parametrize("given", [{}, {"SLURM_JOB_GPUS": ""}, {"CUDA_VISIBLE_DEVICES": ""}])
def test_a_job_without_gpus_is_none_of_its_business(stand: Stand, given: dict[str, str]) -> None:
    assert started(stand, **given) == (0, "")
    assert stand.calls() == []


def test_a_job_with_one_gpu_has_no_link(stand: Stand) -> None:
    left, said = started(stand, SLURM_JOB_GPUS="3")
    assert (left, "no link to check" in said, stand.calls()) == (0, True, [])


def test_an_older_slurm_names_the_gpus_by_cudas_variable(stand: Stand) -> None:
    stand.will(status=0)
    assert started(stand, CUDA_VISIBLE_DEVICES="2,GPU-abc") == (0, "")
    [(words, visible)] = stand.calls()
    assert words[2:6] == ["--devices", "2,GPU-abc", "--expect", "2"]
    assert visible is None


def test_hostile_gpu_names_stay_one_word(stand: Stand, tmp_path: Path) -> None:
    stand.will(status=2)
    assert started(stand, SLURM_JOB_GPUS="0,$(touch pwned) --nccl x")[0] == 1
    [(words, _)] = stand.calls()
    assert words[3] == "0,$(touch pwned) --nccl x"


@pytest.mark.parametrize(
    ("faults", "gpus", "status", "says"),
    [
        ([], "0,1,2,3", 0, ""),
        ([{"kind": "slow-link", "devices": [1, 3], "factor": 0.25}], "0,1,2,3", 1, "labels and measurement disagree"),
        ([{"kind": "slow-link", "devices": [1, 3], "factor": 0.25}], "4,5,6,7", 0, ""),
        ([], "6,7,8", 1, "could not be checked (status 2)"),
    ],
)
def test_the_real_collbench_decides_on_a_simulated_machine(
    tmp_path: Path, faults: list[dict[str, object]], gpus: str, status: int, says: str
) -> None:
    machine = json.loads((ROOT / "src/collbench/sim/machines/hgx-h200.json").read_text(encoding="utf-8"))
    (tmp_path / "fabric.json").write_text(json.dumps({**machine, "faults": faults}))
    stand = Stand(tmp_path)
    simulated = f"--backend sim --fabric {tmp_path / 'fabric.json'}"
    stand.program.write_text(f'#!/bin/sh\nexec {sys.executable} -m collbench "$@" {simulated}\n')
    stand.program.chmod(0o755)
    left, said = started(stand, SLURM_JOB_GPUS=gpus, COLLBENCH_LIMIT="90")
    assert (left, says in said) == (status, True), said
