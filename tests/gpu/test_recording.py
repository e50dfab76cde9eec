"""`collbench record` on real GPUs records what torch's Flight Recorder, or the job itself, reports as sent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from collbench.jobs import job_file
from collbench.jobs.job import Job, Unknown
from tests.gpu.machine import need_gpus

torch = pytest.importorskip("torch")
need_gpus(2)
if not torch.version.cuda:
    pytest.skip("needs a torch with CUDA", allow_module_level=True)

_BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "recording.py"

_LEAST_NCCL = (2, 27)  # events of kernels have had the GPU's clock since


def _recorded(name: str, folder: Path, *options: str) -> None:
    """Let the benchmark record one job into a folder; it fails where calls differ from what the job says."""
    command = [sys.executable, str(_BENCHMARK), "--jobs", name, "--repeats", "0", "--out", str(folder), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    log = (folder / f"{name}.log").read_text(encoding="utf-8")
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{log}"


# With kernels' times, the next test, the benchmark compares calls, bytes and order of every job, too.
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["ddp", "killed"])
def test_calls_bytes_and_order_are_the_jobs(name: str, tmp_path: Path) -> None:
    _recorded(name, tmp_path)
    job = job_file.load(tmp_path / f"{name}-job.json")
    assert job.nccl
    assert [rank.device for rank in job.ranks] == [0, 1]
    assert not any(call.captured for call in job.calls)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["ddp", "fsdp2", "tp", "moe", "graph", "killed"])
def test_gpu_times_are_true_or_unknown_and_the_job_ends(name: str, tmp_path: Path) -> None:
    _recorded(name, tmp_path, "--gpu-times", *(["--traces"] if name == "ddp" else []))
    job = job_file.load(tmp_path / f"{name}-gpu-job.json")
    if tuple(map(int, job.nccl.split(".")[:2])) < _LEAST_NCCL:
        assert Unknown.GPU_TIMES in job.unknown
        return
    for rank in job.ranks:
        for phase in rank.phases:
            for position in phase.positions:
                assert position.gpu is None or 0 < position.gpu.least <= position.gpu.median <= position.gpu.most
                # A captured call runs when its graph is replayed; its own call has no time.
                assert position.gpu is None or not job.calls[position.call].captured
    if name == "moe":  # an all-to-all sends to its own rank, after which NCCL's clocks are of earlier calls
        timed_operations = {job.calls[call].operation for call in _timed(job)}
        assert "alltoall" not in timed_operations
    elif name == "graph":
        assert any(call.captured for call in job.calls)
    else:
        known_calls = sum(
            position.gpu.count
            for rank in job.ranks
            for phase in rank.phases
            for position in phase.positions
            if position.gpu is not None
        )
        # The first calls, and the last ones of a killed job, may have no time.
        assert known_calls >= 0.9 * sum(rank.calls for rank in job.ranks)
        assert Unknown.GPU_TIMES not in job.unknown


def _timed(job: Job) -> set[int]:
    """Return the calls, as indices into the job's table, that have a GPU time anywhere."""
    positions = (position for rank in job.ranks for phase in rank.phases for position in phase.positions)
    return {position.call for position in positions if position.gpu is not None}
