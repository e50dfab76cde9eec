"""`collbench record` on real GPUs: what torch's Flight Recorder, or the job's own hand, says was sent, is recorded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from collbench.runfile import job_file
from tests.gpu.machine import need_gpus

torch = pytest.importorskip("torch")
need_gpus(2)
if not torch.version.cuda:
    pytest.skip("needs a torch with CUDA", allow_module_level=True)

_BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "recording.py"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["ddp", "fsdp2", "tp", "moe", "graph", "killed"])
def test_calls_bytes_and_order_are_the_jobs(name: str, tmp_path: Path) -> None:
    words = [sys.executable, str(_BENCHMARK), "--jobs", name, "--repeats", "0", "--out", str(tmp_path)]
    ran = subprocess.run(words, capture_output=True, text=True, check=False, timeout=280)
    log = (tmp_path / f"{name}.log").read_text(encoding="utf-8")
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}\n{log}"
    job = job_file.load(tmp_path / f"{name}-job.json")
    assert job.nccl
    assert [rank.device for rank in job.ranks] == [0, 1]
    assert any(call.captured for call in job.calls) == (name == "graph")
