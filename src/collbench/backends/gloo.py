"""Collectives between real processes over gloo, parent side: one worker per core, each behind a private pipe.

The parent never loads torch. Workers start with the first collective, and end with `close()`, with any failure, or
when their pipe closes because this process is gone.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from multiprocessing.connection import Connection, Pipe, wait

import collbench
from collbench.backends.gloo_messages import DTYPE_BYTES, REDOPS, Reply, Task
from collbench.backends.protocol import Step, Timing
from collbench.errors import BackendError, DataCorruption, MachineError, UsageError
from collbench.model import Operation

# Silence for longer than the work could ever take, plus this many seconds, is a hang. Generous: `import torch` alone
# takes 3 s, and tens of seconds from a cold network disk.
_PATIENCE_S = 60.0

# The slowest all-reduce to wait for, in B/s. Loopback TCP on one shared core still gives ten times as much.
_SLOWEST_RATE = 20e6

# A worker whose pipe has closed is about to exit; a worker that was told to go exits at once.
_EXIT_S = 5.0


@dataclass(frozen=True, slots=True)
class _Worker:
    core: int
    process: subprocess.Popen[bytes]
    pipe: Connection[Task, Reply]
    stderr: pathlib.Path


class GlooWorld:
    """One gloo rank per core. Rank r is pinned to `cores[r]`, so ranks are the backend's positions."""

    def __init__(self, cores: Sequence[int], patience_s: float = _PATIENCE_S) -> None:
        """Start nothing yet. `patience_s` is how long silence may last beyond the expected work, in seconds."""
        self._cores = tuple(cores)
        self._patience_s = patience_s
        self._workers: list[_Worker] = []
        self._folder: pathlib.Path | None = None

    def time_collective(self, step: Step) -> Timing:
        """Time one collective on each of the step's groups, concurrently; every element is verified.

        Raises UsageError for what gloo lacks, MachineError without torch, DataCorruption for a wrong element and
        BackendError, which names the core, for a worker that died or hangs. After an error the workers are gone;
        the next call starts new ones.
        """
        task = _task(step)
        try:
            if not self._workers:
                self._start()
            replies = self._exchange(task, self._patience_s + _expected_seconds(step))
            return _timing(step, replies, self._cores)
        except BaseException:  # Ctrl-C too: a reply nobody has read would answer the next task
            self.close()
            raise

    def close(self) -> None:
        """End and reap the workers and remove their folder; does nothing the second time."""
        for worker in self._workers:
            worker.pipe.close()
        for worker in self._workers:
            # Killed, not awaited: a worker holds nothing that outlives it, and a hung one would not listen.
            worker.process.kill()
            worker.process.wait()
        self._workers = []
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _start(self) -> None:
        if find_spec("torch") is None:
            raise MachineError("collectives on the host backend need torch, which is not installed: pip install torch")
        self._folder = pathlib.Path(tempfile.mkdtemp(prefix="collbench-gloo-"))
        for rank in range(len(self._cores)):
            self._workers.append(self._spawn(rank, self._folder))
        self._collect(self._patience_s)  # each says once that it has joined

    def _spawn(self, rank: int, folder: pathlib.Path) -> _Worker:
        core, stderr = self._cores[rank], folder / f"rank{rank}.stderr"
        ours, theirs = Pipe()
        # -P: a torch.py in the user's folder must not become ours.
        command = [sys.executable, "-P", "-m", "collbench.backends.gloo_worker"]
        command += map(str, (theirs.fileno(), rank, len(self._cores), core, folder))
        with theirs, stderr.open("wb") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(theirs.fileno(),),
                env=_worker_environment(),
            )
        return _Worker(core, process, ours, stderr)

    def _exchange(self, task: Task, timeout_s: float) -> list[Reply]:
        """Give every worker the same task: each must take part in making a process group, member or not."""
        for worker in self._workers:
            try:
                worker.pipe.send(task)
            except OSError as error:
                raise self._lost(worker) from error
        return self._collect(timeout_s)

    def _collect(self, timeout_s: float) -> list[Reply]:
        """Return one reply per worker, in rank order, or raise BackendError once one is lost or time is up."""
        deadline = time.monotonic() + timeout_s
        replies: dict[Connection[Task, Reply], Reply] = {}
        while missing := [worker for worker in self._workers if worker.pipe not in replies]:
            ready = wait([worker.pipe for worker in missing], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise _silence(missing, timeout_s)
            for worker in missing:
                if worker.pipe in ready:
                    replies[worker.pipe] = self._receive(worker)
        return [replies[worker.pipe] for worker in self._workers]

    def _receive(self, worker: _Worker) -> Reply:
        try:
            return worker.pipe.recv()
        except (EOFError, OSError) as error:
            raise self._lost(worker) from error

    def _lost(self, worker: _Worker) -> BackendError:
        """Explain a death. The others fail when a peer is killed, so one that a signal ended is the cause."""
        try:
            worker.process.wait(_EXIT_S)
        except subprocess.TimeoutExpired:
            return _silence([worker], _EXIT_S)
        ended = [worker, *(other for other in self._workers if other.process.poll() is not None)]
        cause = min(ended, key=lambda other: other.process.returncode)  # signals are negative; a tie goes to `worker`
        status = cause.process.returncode
        how = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
        return BackendError(f"the gloo worker on core {cause.core} died ({how}): {_last_line(cause.stderr)}")


def _silence(workers: Sequence[_Worker], seconds: float) -> BackendError:
    names = ", ".join(str(worker.core) for worker in workers)
    return BackendError(
        f"no answer within {seconds:.0f} s from the gloo workers on cores {names}, still running and now killed; the "
        f"first one's last words: {_last_line(workers[0].stderr)}"
    )


def _task(step: Step) -> Task:
    """Return the step as the workers understand it. Raises UsageError for what gloo cannot do exactly."""
    if step.operation.is_copy:
        raise UsageError(f"gloo does allreduce and broadcast, not {step.operation}")
    if step.dtype not in DTYPE_BYTES:
        raise UsageError(f"gloo has no {step.dtype}: choose one of {', '.join(DTYPE_BYTES)}")
    if step.operation is Operation.ALLREDUCE and step.redop not in REDOPS:
        raise UsageError(f"gloo cannot reduce by {step.redop}: choose one of {', '.join(REDOPS)}")
    count, rest = divmod(step.size_bytes, DTYPE_BYTES[step.dtype])
    if rest or not count:
        raise UsageError(
            f"{step.size_bytes} B is no whole number of {step.dtype} elements: use a multiple of "
            f"{DTYPE_BYTES[step.dtype]} B, or --dtype uint8"
        )
    return Task(
        operation=step.operation.value,
        groups=step.groups,
        count=count,
        iterations=step.iterations,
        blocks=step.blocks,
        warmup=step.warmup,
        dtype=step.dtype,
        redop=step.redop,
        root=step.root,
    )


def _timing(step: Step, replies: Sequence[Reply], cores: Sequence[int]) -> Timing:
    """Return the slowest rank's time of each block of each group. Raises DataCorruption for a wrong element."""
    for rank, reply in enumerate(replies):
        if reply["wrong"] is not None:
            offset, expected, found = reply["wrong"]
            members = next(group for group in step.groups if rank in group)
            raise DataCorruption(
                f"gloo {step.operation} of {step.size_bytes} B {step.dtype} among cores "
                f"{', '.join(str(cores[member]) for member in members)}: the element at byte {offset} on core "
                f"{cores[rank]} is {found:g}, not {expected:g}: do not trust this machine, test its memory (memtest86+)"
            )
    return Timing(
        seconds=tuple(
            tuple(max(times) for times in zip(*(replies[rank]["seconds"] for rank in group), strict=True))
            for group in step.groups
        )
    )


def _expected_seconds(step: Step) -> float:
    messages = step.iterations * (step.blocks + step.warmup) + 1
    return messages * step.size_bytes * max(map(len, step.groups)) / _SLOWEST_RATE


def _worker_environment() -> dict[str, str]:
    environment = dict(os.environ)
    # Gloo listens on the address that the host name resolves to, and in containers that name often resolves to
    # nothing or to another machine. All ranks are here, so loopback always works.
    environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # The workers run this very collbench, even where it was found through a changed sys.path.
    ours = str(pathlib.Path(collbench.__file__).parent.parent)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (ours, environment.get("PYTHONPATH"))))
    return environment


def _last_line(file: pathlib.Path) -> str:
    lines = file.read_text(encoding="utf-8", errors="replace").split("\n") if file.exists() else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "it wrote nothing to stderr")
