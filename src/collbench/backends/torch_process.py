"""A worker process that loads torch, behind a private pipe: started, heard, and its end explained. Its parent has none.

gloo_worker, overlap_worker and replay_worker are such workers.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

import collbench
from collbench.model.errors import BackendError
from collbench.model.failures import Cause, Failure, FailureKind, died

_NO_WORDS = "it wrote nothing to stderr"
# A worker whose pipe has closed is about to exit; a worker that was asked to go exits at once.
EXIT_S = 5.0


@dataclass(frozen=True, slots=True)
class TorchProcess:
    """A running worker, one of several ranks; `stderr` is the file that its complaints go to.

    Errors call it by `kind`, `at` and `number`: the "gloo worker" "on core" 3, the "worker" "of rank" 1.
    """

    rank: int
    kind: str
    at: str
    number: int
    process: subprocess.Popen[bytes]
    pipe: Connection[Any, Any]  # what a module's own worker understands, and its answers
    stderr: pathlib.Path

    def end(self) -> None:
        """Kill and reap the process."""
        self.pipe.close()
        # Killed, not awaited: a worker holds nothing that outlives it, and a hung one would not listen.
        self.process.kill()
        self.process.wait()

    def last_line(self) -> str:
        """Return the last line that the process wrote to stderr, "" for none."""
        text = self.stderr.read_text(encoding="utf-8", errors="replace") if self.stderr.exists() else ""
        return next((line.strip() for line in reversed(text.split("\n")) if line.strip()), "")


@dataclass(frozen=True, slots=True)
class Joined:
    """What a worker says once it has met the others: the versions of its torch and NCCL, and NCCL's file."""

    torch: str
    nccl: str = ""
    nccl_path: str = ""


def start(
    module: str,
    arguments: Sequence[object],
    rank: int,
    folder: pathlib.Path,
    environment: Mapping[str, str],
    name: tuple[str, str, int],
) -> TorchProcess:
    """Start `python -m MODULE FD WORDS…`, where FD is its end of the pipe; `name` is its kind, at and number."""
    stderr = folder / f"rank{rank}.stderr"
    ours, theirs = Pipe()
    # -P: a torch.py in the user's folder must not become ours.
    command = [sys.executable, "-P", "-m", module, *map(str, (theirs.fileno(), *arguments))]
    with theirs, stderr.open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(theirs.fileno(),),
            env=environment,
        )
    return TorchProcess(rank, *name, process, ours, stderr)


def collected(workers: Sequence[TorchProcess], timeout_s: float) -> list[Any]:
    """Return one reply of each worker, in their order. Raises BackendError once one is lost or time is up."""
    deadline = time.monotonic() + timeout_s
    replies: dict[int, Any] = {}
    while missing := [worker for worker in workers if worker.rank not in replies]:
        ready = wait([worker.pipe for worker in missing], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise silence(missing, timeout_s)
        for worker in missing:
            if worker.pipe in ready:
                try:
                    replies[worker.rank] = worker.pipe.recv()
                except (EOFError, OSError) as error:
                    raise lost(worker, workers) from error
    return [replies[worker.rank] for worker in workers]


def silence(workers: Sequence[TorchProcess], seconds: float) -> BackendError:
    """Return the error for workers that did not answer in so many seconds."""
    first, numbers = workers[0], ", ".join(str(worker.number) for worker in workers)
    said, devices = first.last_line(), tuple(worker.rank for worker in workers)
    return BackendError(
        f"no answer within {seconds:.0f} s from the {first.kind}s {first.at}s {numbers}, still running and now killed; "
        f"last output of the first: {said or _NO_WORDS}",
        failure=Failure(FailureKind.HANG, Cause.NO_ANSWER, devices, seconds=seconds, detail=said),
    )


def lost(worker: TorchProcess, every: Sequence[TorchProcess]) -> BackendError:
    """Explain a death. The others fail when a peer is killed, so one that a signal ended is the cause."""
    try:
        worker.process.wait(EXIT_S)
    except subprocess.TimeoutExpired:
        return silence([worker], EXIT_S)
    ended = [worker, *(other for other in every if other.process.poll() is not None)]
    cause = min(ended, key=lambda other: other.process.returncode)  # signals are negative; a tie goes to `worker`
    status, said = cause.process.returncode, cause.last_line()
    how = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
    return BackendError(
        f"the {cause.kind} {cause.at} {cause.number} died ({how}): {said or _NO_WORDS}",
        failure=died(status, said, (cause.rank,)),
    )


def worker_environment(interface: str = "lo") -> dict[str, str]:
    """Return our variables, and the network interface to listen on unless the user has chosen one."""
    environment = dict(os.environ)
    # Gloo listens on the address that the host name resolves to, and in containers that name often resolves to
    # nothing or to another machine. Where all ranks are on one host, loopback always works.
    environment.setdefault("GLOO_SOCKET_IFNAME", interface)
    # The workers run this very collbench, even where it was found through a changed sys.path.
    ours = str(pathlib.Path(collbench.__file__).parent.parent)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (ours, environment.get("PYTHONPATH"))))
    return environment
