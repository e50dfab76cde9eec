"""One gloo worker process behind a private pipe: started, asked, and its end explained. Its parent may lack torch."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe

import collbench
from collbench.backends.gloo_tasks import DTYPE_BYTES, REDOPS, Reply, Task
from collbench.backends.protocol import Step
from collbench.model.capabilities import HOST
from collbench.model.errors import BackendError, UsageError
from collbench.model.failures import Cause, Failure, FailureKind, died
from collbench.model.operations import Variant

# Silence for longer than the work could ever take, plus this many seconds, is a hang. Generous: `import torch` alone
# takes 3 s, and tens of seconds from a cold network disk.
PATIENCE_S = 60.0

# The slowest all-reduce to wait for, in B/s. Loopback TCP on one shared core still gives ten times as much.
_SLOWEST_RATE = 20e6

NO_WORDS = "it wrote nothing to stderr"

# A worker whose pipe has closed is about to exit; a worker that was asked to go exits at once.
EXIT_S = 5.0


@dataclass(frozen=True, slots=True)
class GlooProcess:
    """A running worker; `stderr` is the file that its complaints go to."""

    rank: int
    core: int
    process: subprocess.Popen[bytes]
    pipe: Connection[Task, Reply]
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


def spawn(
    rank: int, cores: Sequence[int], folder: pathlib.Path, meeting: Sequence[str] = (), interface: str = "lo"
) -> GlooProcess:
    """Start the worker of one rank, on `cores[rank]`; it answers once when it has met the others.

    They meet in `folder`, or at `meeting`: host, port and prefix of a TCPStore. `interface` is the network to use
    where the user has not chosen one.
    """
    stderr = folder / f"rank{rank}.stderr"
    ours, theirs = Pipe()
    # -P: a torch.py in the user's folder must not become ours.
    command = [sys.executable, "-P", "-m", "collbench.backends.gloo_worker"]
    command += map(str, (theirs.fileno(), rank, len(cores), cores[rank], folder, *meeting))
    with theirs, stderr.open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(theirs.fileno(),),
            env=worker_environment(interface),
        )
    return GlooProcess(rank, cores[rank], process, ours, stderr)


def silence(workers: Sequence[GlooProcess], seconds: float) -> BackendError:
    """Return the error for workers that did not answer in so many seconds."""
    names = ", ".join(str(worker.core) for worker in workers)
    said, devices = workers[0].last_line(), tuple(worker.rank for worker in workers)
    return BackendError(
        f"no answer within {seconds:.0f} s from the gloo workers on cores {names}, still running and now killed; the "
        f"first one's last words: {said or NO_WORDS}",
        failure=Failure(FailureKind.HANG, Cause.NO_ANSWER, devices, seconds=seconds, detail=said),
    )


def lost(worker: GlooProcess, all_workers: Sequence[GlooProcess]) -> BackendError:
    """Explain a death. The others fail when a peer is killed, so one that a signal ended is the cause."""
    try:
        worker.process.wait(EXIT_S)
    except subprocess.TimeoutExpired:
        return silence([worker], EXIT_S)
    ended = [worker, *(other for other in all_workers if other.process.poll() is not None)]
    cause = min(ended, key=lambda other: other.process.returncode)  # signals are negative; a tie goes to `worker`
    status = cause.process.returncode
    how = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
    said = cause.last_line()
    text = f"the gloo worker on core {cause.core} died ({how}): {said or NO_WORDS}"
    return BackendError(text, failure=died(status, said, (cause.rank,)))


def task_of(step: Step) -> Task:
    """Return the step as the workers understand it. Raises UsageError for what gloo cannot do exactly."""
    if not step.operation.is_collective:
        raise UsageError(f"gloo does collectives, not {step.operation}")
    if missing := HOST.lacks(step.operation):
        raise UsageError(f"the host backend cannot time {step.operation}: {missing}")
    if not step.work.verifiable:
        raise UsageError(f"gloo does {step.operation} out of place only: leave out what asks for in place")
    if step.dtype not in DTYPE_BYTES:
        raise UsageError(f"gloo has no {step.dtype}: choose one of {', '.join(DTYPE_BYTES)}")
    if step.operation.reduces and step.redop not in REDOPS:
        raise UsageError(f"gloo cannot reduce by {step.redop}: choose one of {', '.join(REDOPS)}")
    return Task(
        operation=step.operation.value,
        groups=step.groups,
        count=_count(step),
        iterations=step.iterations,
        batches=step.batches,
        warmup=step.warmup,
        dtype=step.dtype,
        redop=step.redop,
        root=step.root,
        in_place=step.variant is Variant.IN_PLACE,
        verify=step.verify,
    )


def _count(step: Step) -> int:
    """Return the message in elements. Raises UsageError where it holds no whole number of them, or of equal blocks."""
    width = DTYPE_BYTES[step.dtype]
    count, rest = divmod(step.size_bytes, width)
    if rest or not count:
        raise UsageError(
            f"{step.size_bytes} B is no whole number of {step.dtype} elements: use a multiple of "
            f"{width} B, or --dtype uint8"
        )
    ranks = len(step.groups[0])
    if step.operation.shares and count % ranks:
        raise UsageError(f"{step.size_bytes} B is no whole block of {step.dtype} for each of {ranks} ranks")
    return count


def expected_seconds(step: Step) -> float:
    """Return how long a step may take on the slowest machine, in seconds."""
    messages = step.iterations * (step.batches + step.warmup) + 1
    return messages * step.size_bytes * max(map(len, step.groups)) / _SLOWEST_RATE


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
