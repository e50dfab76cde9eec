"""`collbench record` on real GPUs records what torch's Flight Recorder, or the job itself, reports as sent."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from collbench.jobs import job_file
from collbench.jobs.job import Job, StepSource, Unknown
from tests.gpu.machine import need_gpus

torch = pytest.importorskip("torch")
need_gpus(2)
if not torch.version.cuda:
    pytest.skip("needs a torch with CUDA", allow_module_level=True)

_BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "recording.py"

_MIN_NCCL = (2, 27)  # events of kernels have had the GPU's clock since


JOBS = ("ddp", "fsdp2", "tp", "moe", "graph", "killed")


def _record(name: str, folder: Path) -> str:
    """Let the benchmark record one job into a folder, without GPU times and with; return why it failed, or "".

    It fails where calls, bytes or their order differ from what the job says.
    """
    options = ["--repeats", "0", "--gpu-times", *(["--traces"] if name == "ddp" else [])]
    command = [sys.executable, str(_BENCHMARK), "--jobs", name, "--out", str(folder), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    log = (folder / f"{name}.log").read_text(encoding="utf-8")
    return "" if done.returncode == 0 else f"{done.stdout}\n{done.stderr}\n{log}"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """Return a folder with every job's record, and why some failed: all at once, as starting torch takes the time."""
    folder = tmp_path_factory.mktemp("recorded")
    with ThreadPoolExecutor(len(JOBS)) as threads:
        return folder, dict(zip(JOBS, threads.map(lambda name: _record(name, folder), JOBS), strict=True))


# Steps of five and six calls in turn, in ranges as training loops have them; the range of a call is no step.
_RANGES = """
import os, torch, torch.distributed as dist
from torch.cuda import nvtx
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
data = torch.ones(2**20, device="cuda")
dist.all_reduce(data)
for step in range(8):
    with nvtx.range(f"iteration {step}"):
        for _ in range(5 + step % 2):
            with nvtx.range("iteration's all-reduce"):
                dist.all_reduce(data)
torch.cuda.synchronize()
dist.destroy_process_group()
"""


@pytest.mark.timeout(120)
def test_steps_begin_with_the_jobs_nvtx_ranges(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(_RANGES, encoding="utf-8")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "job.py"]
    command = [sys.executable, "-m", "collbench", "record", "--step-range", "iteration", "-o", "job.json", "--"]
    done = subprocess.run([*command, *torchrun], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    job = job_file.load(tmp_path / "job.json")
    assert job.steps.source is StepSource.MARKS, done.stderr
    assert [len(rank.step.positions) for rank in job.ranks if rank.step is not None] == [5, 5]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["ddp", "killed"])
def test_calls_bytes_and_order_are_the_jobs(name: str, recorded: tuple[Path, dict[str, str]]) -> None:
    folder, failures = recorded
    assert not failures[name], failures[name]
    job = job_file.load(folder / f"{name}-job.json")
    assert job.nccl
    assert [rank.device for rank in job.ranks] == [0, 1]
    assert not any(call.captured for call in job.calls)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", JOBS)
def test_gpu_times_are_true_or_unknown_and_the_job_ends(name: str, recorded: tuple[Path, dict[str, str]]) -> None:
    folder, failures = recorded
    assert not failures[name], failures[name]
    job = job_file.load(folder / f"{name}-gpu-job.json")
    if tuple(map(int, job.nccl.split(".")[:2])) < _MIN_NCCL:
        assert Unknown.GPU_TIMES in job.unknown
        return
    for rank in job.ranks:
        for phase in rank.phases:
            for position in phase.positions:
                assert position.gpu is None or position.gpu > 0
                # A captured call runs when its graph is replayed; its own call has no time.
                assert position.gpu is None or not job.calls[position.call].captured
    if name == "moe":  # an all-to-all sends to its own rank, after which NCCL's clocks are of earlier calls
        timed_operations = {job.calls[call].operation for call in _timed(job)}
        assert "alltoall" not in timed_operations
    elif name == "graph":
        assert any(call.captured for call in job.calls)
    else:
        known_calls = sum(
            phase.repetitions
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
