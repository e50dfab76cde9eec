"""`collbench train` on two nodes, as two network namespaces: one is killed, comes back, and both finish."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.ranks.namespaces import address, hosts
from tests.ranks.processes import COLLBENCH, PATIENCE_S, environment, wait_for

pytestmark = [
    pytest.mark.usefixtures("loaded_torch"),
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is absent: no torchrun"),
]

# Trains until both nodes are there again after the kill, and three steps more. What happens is reported by files.
SCRIPT = """
import os, pathlib, socket, sys, time, torch, torch.distributed as dist
folder, me = pathlib.Path(sys.argv[1]), socket.gethostname()
dist.init_process_group("gloo")
world, restarts = dist.get_world_size(), os.environ["TORCHELASTIC_RESTART_COUNT"]
(folder / f"{me}.pid").write_text(str(os.getpid()))
(folder / f"{me}.cores.{restarts}").write_text(str(sorted(os.sched_getaffinity(0))))
left = 3
while left:
    # Every rank must see the same: they end together, or not at all.
    done = torch.tensor([float((folder / "back").exists() and world == 2), 1.0])
    dist.all_reduce(done)
    assert done[1] == world
    left -= int(done[0].item() == 2)
    (folder / f"{me}.trained.{world}").touch()
    time.sleep(0.02)
(folder / f"{me}.done").write_text(f"{world} {dist.get_rank()}")
dist.destroy_process_group()
"""
TRAIN = [
    "train",
    "--backend",
    "host",
    "--auto-select",
    "1",
    "--nnodes",
    "1:2",
    "--max-restarts",
    "3",
    "--rdzv-backend",
    "c10d",
]


CORES = sorted(os.sched_getaffinity(0))[:2]


def typed_on(node: int, *script: str) -> list[str]:
    """Return the command of one node; a real node needs neither --local-addr, as its name resolves, nor --exclude.

    Each trains on one core of the same two, and meets the other where the first one's torchrun listens.
    """
    conf = f"is_host={int(node == 0)},keep_alive_interval=2,last_call_timeout=20"
    return ["taskset", "-c", ",".join(map(str, CORES)), *COLLBENCH, *TRAIN, "--exclude", str(CORES[1 - node]),
            "--rdzv-endpoint", f"{address(0)}:29400", "--rdzv-conf", conf, "--local-addr", address(node),
            *script]  # fmt: skip


@contextlib.contextmanager
def nodes(folder: Path, commands: Sequence[Sequence[str]]) -> Iterator[list[subprocess.Popen[str]]]:
    """Start each command in a process group of its own; end them all afterwards."""
    started: list[subprocess.Popen[str]] = []
    settings = environment(folder, GLOO_SOCKET_IFNAME="veth0", OMP_NUM_THREADS="1")
    try:
        for command in commands:
            started.append(subprocess.Popen(
                command, cwd=folder, env=settings, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
            ))  # fmt: skip
        yield started
    finally:
        for process in started:
            process.terminate()  # torchrun ends its ranks
        for process in started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=PATIENCE_S)
            process.kill()


@pytest.mark.timeout(400)  # torch is loaded seven times, on cores that may be busy
@pytest.mark.skipif(len(CORES) < 2, reason="this process has one core, and two nodes need two")
def test_a_node_that_is_killed_comes_back_and_both_finish(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    with hosts(2) as spaces:
        launches = [[*spaces[node], *typed_on(node, "train.py", str(tmp_path))] for node in (0, 1)]
        with nodes(tmp_path, launches) as (first, second):
            wait_for("training on both", lambda: trained(tmp_path, "n0", 2) and trained(tmp_path, "n1", 2), [first])
            kill(second, tmp_path / "n1.pid")
            for path in (*tmp_path.glob("n1.*"), tmp_path / "n0.trained.2"):
                path.unlink()
            with nodes(tmp_path, launches[1:]) as (again,):
                (tmp_path / "back").touch()
                _, stderr = again.communicate(timeout=PATIENCE_S)
                _, first_stderr = first.communicate(timeout=PATIENCE_S)
                assert (first.returncode, again.returncode) == (0, 0), first_stderr + stderr
    assert first_stderr.startswith("collbench: using CPU")
    assert {(tmp_path / f"n{node}.done").read_text()[:2] for node in (0, 1)} == {"2 "}
    pinned = {path.read_text() for path in tmp_path.glob("n0.cores.*")}
    assert pinned == {str(CORES[:1])}  # before the kill and after it


def trained(folder: Path, host: str, world: int) -> bool:
    return (folder / f"{host}.trained.{world}").exists()


def kill(agent: subprocess.Popen[str], pid: Path) -> None:
    """Kill torchrun and its rank, as a power cut does; the rank has a session of its own."""
    rank = int(pid.read_text(encoding="utf-8"))
    agent.kill()
    os.kill(rank, signal.SIGKILL)
    agent.communicate()
