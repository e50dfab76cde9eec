"""Several real processes of the program, started as launchers start them, and what they leave."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from collbench.model.run import Run
from collbench.runfile import run_file

# Loading torch takes 3 s of a core, and several processes may have to share one.
PATIENCE_S = 100.0
COLLBENCH = [sys.executable, "-m", "collbench"]
# Ranks import torch for its store alone, and the rest takes each of them a second. Those of torchrun, and on GPUs, have
# all of it.
STORE_ONLY = Path(__file__).with_name("store_only")
# Prefixes of variables that a test must not inherit from the job that it runs in.
LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "SLURM_", "OMPI_", "TORCHELASTIC_", "GLOO_")


# A port is free until a launcher listens, some time after it was given one, so each of pytest's workers has its own.
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
_PORTS = iter(range(20_000 + os.getppid() % 10_000 + _WORKER, 32_768, _WORKERS))


def free_port() -> int:
    """Return a port that nobody listens on; below 32768, where Linux allocates no ephemeral ports.

    Each call returns another, because a launcher listens some time after it was given one.
    """
    for port in _PORTS:
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no port is free")


def environment(tmp_path: Path, **variables: object) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
    overrides = {"XDG_STATE_HOME": str(tmp_path), "TMPDIR": str(tmp_path), "NO_COLOR": "1"}
    return inherited | overrides | {name: str(value) for name, value in variables.items()}


def as_slurm(rank: int, count: int, port: int, **changes: object) -> dict[str, object]:
    """Return what srun sets for one task of several on one node."""
    default = {
        "SLURM_STEP_NUM_TASKS": count, "SLURM_PROCID": rank, "SLURM_LOCALID": rank, "SLURM_NODEID": 0,
        "SLURM_STEP_TASKS_PER_NODE": count, "SLURM_STEP_NODELIST": "localhost", "MASTER_PORT": port,
    }  # fmt: skip
    return default | changes


def as_mpirun(rank: int, count: int, port: int) -> dict[str, object]:
    """Return what mpirun sets for one process of several on one host."""
    return {
        "OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_SIZE": count, "OMPI_COMM_WORLD_LOCAL_RANK": rank,
        "OMPI_COMM_WORLD_LOCAL_SIZE": count, "MASTER_PORT": port,
    }  # fmt: skip


@contextlib.contextmanager
def started(
    tmp_path: Path,
    arguments: Sequence[str],
    environments: Sequence[dict[str, object]],
    prefixes: Sequence[Sequence[str]] = (),
    program: Sequence[str] = COLLBENCH,
    *,
    all_of_torch: bool = False,
) -> Iterator[list[subprocess.Popen[str]]]:
    """Start a process for each environment, and leave none behind; `prefixes` go before each one's command."""

    def variables(changes: dict[str, object]) -> dict[str, str]:
        complete = environment(tmp_path, **changes)
        folders = "" if all_of_torch else str(STORE_ONLY), complete.get("PYTHONPATH", "")
        return complete | {"PYTHONPATH": os.pathsep.join(filter(None, folders))}

    processes = [
        subprocess.Popen(
            [*(prefixes[rank] if prefixes else ()), *program, *arguments],
            env=variables(changes),
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, changes in enumerate(environments)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def ends(processes: Sequence[subprocess.Popen[str]], timeout_s: float = PATIENCE_S) -> list[tuple[int, str, str]]:
    """Return each process's status, stdout and stderr."""
    outputs = [process.communicate(timeout=timeout_s) for process in processes]
    return [(process.returncode, *output) for process, output in zip(processes, outputs, strict=True)]


def the_run(tmp_path: Path) -> Run:
    (file,) = (tmp_path / "collbench" / "runs").glob("*.json")
    return run_file.load(file)


def torchrun(tmp_path: Path, count: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the program by torchrun, in so many processes on this machine."""
    launcher = [str(Path(sys.executable).with_name("torchrun")), "--nproc-per-node", str(count)]
    port = ["--master-port", str(free_port())]  # as without it, where 29500 is free
    return subprocess.run(
        [*launcher, *port, "-m", "collbench", *arguments],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def wait_for(
    event: str,
    happened: Callable[[], object],
    processes: Sequence[subprocess.Popen[str]],
    timeout_s: float = PATIENCE_S,
) -> None:
    """Wait until `happened()`; fail the test when that takes too long, or when the first process ends before."""
    deadline = time.monotonic() + timeout_s
    while not happened():
        assert processes[0].poll() is None, f"ended before {event}: {processes[0].communicate()}"
        assert time.monotonic() < deadline, f"{event} never happened"
        time.sleep(0.05)


def worker_of(process: subprocess.Popen[str], module: str) -> int:
    """Return the process id of a rank's worker that runs this module, whichever of its threads has started it."""
    for task in Path(f"/proc/{process.pid}/task").iterdir():
        for process_id in (task / "children").read_text().split():
            if module in Path(f"/proc/{process_id}/cmdline").read_text(encoding="utf-8"):
                return int(process_id)
    raise AssertionError("the rank has no worker")
