"""Real faults on real GPUs: a stopped, a killed worker and a competing job. Run with `make test-gpu`."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.gpu.machine import need_gpus, need_nccl

need_gpus(2)
need_nccl()
# No measurement reaches this precision: trials continue for at least a second.
_LONG = ("--sizes", "1K:64M", "--precision", "0.001%", "--budget", "8s")
# 2 links × 4 kinds of copy, and one pair's all-reduce and broadcast, at 17 sizes.
_POINTS = 10 * 17
_TIMEOUT_S = 100
_BUSY = """
from collbench._native import CopyRound, Engine
from tests.gpu.machine import open_gpus
gpus = open_gpus([0, 1], 2**28)
round = CopyRound(groups=[[(0, 1)]], engine=Engine.copy_engine, pull=False, bytes=2**28, iterations=20, batches=20,
                  warmup=0, deadline=30.0)
gpus.time_copies(round)
print("busy", flush=True)
while True:
    gpus.time_copies(round)
"""


@contextmanager
def _running(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "collbench", *arguments, "--backend", "cuda", "-o", "run.json"]
    pipe = subprocess.PIPE
    folder.mkdir(exist_ok=True)
    with subprocess.Popen(command, cwd=folder, stdout=pipe, stderr=pipe, text=True) as program:
        try:
            yield program
        finally:
            program.kill()


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _worker_of(program: subprocess.Popen[str]) -> int:
    """Return the process id of a program's worker."""
    children = Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text(encoding="utf-8").split()
    named = {int(child): Path(f"/proc/{child}/cmdline").read_bytes() for child in children}
    return next(child for child, command in named.items() if b"collbench.measurement.backends.worker" in command)


def _run(folder: Path) -> dict[str, Any]:
    run: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return run


def test_a_killed_worker_costs_its_point_at_most_and_the_sweep_goes_on(tmp_path: Path) -> None:
    with _running(tmp_path, "pairs", "--devices", "0,1", *_LONG) as program:
        _wait_until((tmp_path / "run.json").exists)  # trials have begun
        os.kill(_worker_of(program), signal.SIGKILL)
        out, err = program.communicate(timeout=_TIMEOUT_S)
    assert program.returncode == 1
    assert out.splitlines()[0] in err
    run = _run(tmp_path)
    failed = [measurement for measurement in run["measurements"] if measurement["stop"] == "failed"]
    assert (run["complete"], len(run["measurements"]), len(failed)) == (True, _POINTS, 1)
    assert failed[0]["failure"]["kind"] == "crash"
    assert "crash: the worker process died (signal 9, SIGKILL)" in " ".join(out.split())  # lines are wrapped


def test_a_competing_job_is_flagged(tmp_path: Path) -> None:
    gc.collect()  # GPUs that other tests opened must be released now, not between the two runs
    # Counts this process, which has opened the GPUs in other tests.
    shared_before = _processes_sharing_gpu0(tmp_path / "before")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", _BUSY]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as busy:
        try:
            assert busy.stdout is not None
            assert busy.stdout.readline() == "busy\n"
            shared_during = _processes_sharing_gpu0(tmp_path / "during")
        finally:
            busy.kill()
    assert shared_during == shared_before + 1


def _processes_sharing_gpu0(folder: Path) -> int:
    """Return the most processes besides ours with which GPU0 was shared while collbench measured."""
    with _running(folder, "pairs", "--devices", "0,1", *_LONG) as program:
        _, err = program.communicate(timeout=_TIMEOUT_S)
    assert program.returncode in (0, 3), err  # 3: another process is a contradiction
    samples = [sample for measurement in _run(folder)["measurements"] for sample in measurement["samples"]]
    flags = (flag for sample in samples for flag in sample["flags"])
    return max((flag["figure"] for flag in flags if flag["kind"] == "shared" and flag["devices"] == [0]), default=0)
