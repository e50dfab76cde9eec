"""Real torchrun, real ranks, gloo on CPU: what reaches the script, and what comes back from it."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is absent: no torchrun")

# Stands in for the cli: argv is the backend, the devices as JSON, then the arguments of `collbench train`.
DRIVER = """
import json, os, sys
from collbench.api import training
from collbench.cli.calls import context_of
from collbench.cli.train import train_request
from collbench.api.training import for_devices
from collbench.model.run import Device
backend, devices = sys.argv[1], [Device(i, u, "") for i, u in json.loads(sys.argv[2])]
arguments = train_request(context_of("train", sys.argv[3:]).params).script
training.check_script(arguments)
training.find_torch()
changes = for_devices(devices, os.environ, backend=backend)
command = training.start_command(arguments, devices, os.environ, backend=backend)
print("before exec")  # lost unless execute flushes: exec drops what Python still buffers
training.execute(command, {**os.environ, **changes})
"""

# A rank writes what it got to a file: ranks' prints interleave.
ALLREDUCE = """
import json, os, pathlib, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
got = {"sum": total.item(), "argv": sys.argv, "cores": sorted(os.sched_getaffinity(0)),
       "visible": os.environ["CUDA_VISIBLE_DEVICES"]}
pathlib.Path(f"rank{dist.get_rank()}.json").write_text(json.dumps(got))
dist.destroy_process_group()
"""
WAIT_FOR_SIGTERM = """
import os, pathlib, signal, sys, time
mine = "rank" + os.environ["RANK"]
def terminated(number, frame):
    pathlib.Path(mine + ".terminated").touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, terminated)
pathlib.Path(mine + ".ready").touch()
time.sleep(100)
"""
pytestmark = pytest.mark.usefixtures("loaded_torch")
# Guards against a hang only; a start takes 5-8 s on two busy cores.
TIMEOUT_S = 100


def start(folder: Path, backend: str, devices: list[tuple[int, str]], *args: str) -> subprocess.Popen[str]:
    """Start `train` in `folder`, as a process whose id torchrun is to inherit."""
    command = [sys.executable, "-c", DRIVER, backend, json.dumps(devices), *args]
    environment = environment_without("CUDA_VISIBLE_DEVICES", "PYTHONUNBUFFERED") | {"TMPDIR": str(folder)}
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def environment_without(*names: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in names}


@needs_torch
def test_host_ranks_stay_on_their_cores_reduce_and_get_their_arguments_untouched(tmp_path: Path) -> None:
    available = sorted(os.sched_getaffinity(0))
    cores = [available[-1], available[0]]
    (tmp_path / "train.py").write_text(ALLREDUCE)
    given = ["--devices", "9", "--", "-h", "a b", "--r", "$$", "${local_rank}", ""]
    training = start(tmp_path, "host", [(core, "") for core in cores], "--auto-select", "2", "train.py", *given)
    out, err = training.communicate(timeout=TIMEOUT_S)
    assert training.returncode == 0, err
    assert out.splitlines()[0] == "before exec"
    expected = [{"sum": 3.0, "argv": ["train.py", *given], "cores": sorted(cores), "visible": ""}] * 2
    assert [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1)] == expected


@needs_torch
def test_sigterm_to_the_process_reaches_the_ranks(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(WAIT_FOR_SIGTERM)
    training = start(tmp_path, "host", [(min(os.sched_getaffinity(0)), "")] * 2, "--auto-select", "2", "train.py")
    try:
        wait_for(tmp_path, "*.ready", 2, training)
        training.send_signal(signal.SIGTERM)
        training.communicate(timeout=TIMEOUT_S)
    finally:
        training.kill()
    assert training.returncode != 0
    assert sorted(path.name for path in tmp_path.glob("*.terminated")) == ["rank0.terminated", "rank1.terminated"]


def wait_for(folder: Path, pattern: str, count: int, training: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while len(list(folder.glob(pattern))) < count:
        assert training.poll() is None, training.communicate()[1]
        assert time.monotonic() < deadline, f"{count} ranks did not start"
        time.sleep(0.1)


def test_the_exec_keeps_output_process_id_and_exit_status() -> None:
    code = (
        "import os; from collbench.api.training import execute; print(os.getpid());"
        "execute(['sh', '-c', 'echo $$ $A; exit 7'], {**os.environ, 'A': 'b'})"
    )
    buffered = environment_without("PYTHONUNBUFFERED")
    done = subprocess.run([sys.executable, "-c", code], env=buffered, capture_output=True, text=True, check=False)
    before, after = done.stdout.splitlines()
    assert (after, done.returncode) == (f"{before} b", 7)
