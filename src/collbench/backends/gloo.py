"""Collectives between real processes over gloo, parent side: one worker per core, each behind a private pipe.

The parent never loads torch. Workers start with the first collective, and end with `close()`, with any failure, or
when their pipe closes because this process is gone.
"""

from __future__ import annotations

import pathlib
import shutil
import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from multiprocessing.connection import Connection, wait

from collbench.backends.gloo_messages import Reply, Task
from collbench.backends.gloo_process import (
    PATIENCE_S,
    GlooProcess,
    expected_seconds,
    lost,
    silence,
    spawn,
    task_of,
)
from collbench.backends.protocol import Step, Timing
from collbench.errors import DataCorruption, MachineError


class GlooWorld:
    """One gloo rank per core. Rank r is pinned to `cores[r]`, so ranks are the backend's positions."""

    def __init__(self, cores: Sequence[int], patience_s: float = PATIENCE_S) -> None:
        """Start nothing yet. `patience_s` is how long silence may last beyond the expected work, in seconds."""
        self._cores = tuple(cores)
        self._patience_s = patience_s
        self._workers: list[GlooProcess] = []
        self._folder: pathlib.Path | None = None

    def time_collective(self, step: Step) -> Timing:
        """Time one collective on each of the step's groups, concurrently; every element is verified.

        Raises UsageError for what gloo lacks, MachineError without torch, DataCorruption for a wrong element and
        BackendError, which names the core, for a worker that died or hangs. After an error the workers are gone;
        the next call starts new ones.
        """
        task = task_of(step)
        try:
            if not self._workers:
                self._start()
            replies = self._exchange(task, self._patience_s + expected_seconds(step))
            return _timing(step, replies, self._cores)
        except BaseException:  # Ctrl-C too: a reply nobody has read would answer the next task
            self.close()
            raise

    def close(self) -> None:
        """End and reap the workers and remove their folder; does nothing the second time."""
        for worker in self._workers:
            worker.end()
        self._workers = []
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _start(self) -> None:
        if find_spec("torch") is None:
            raise MachineError("collectives on the host backend need torch, which is not installed: pip install torch")
        self._folder = pathlib.Path(tempfile.mkdtemp(prefix="collbench-gloo-"))
        for rank in range(len(self._cores)):
            self._workers.append(spawn(rank, self._cores, self._folder))
        self._collect(self._patience_s)  # each says once that it has joined

    def _exchange(self, task: Task, timeout_s: float) -> list[Reply]:
        """Give every worker the same task: each must take part in making a process group, member or not."""
        for worker in self._workers:
            try:
                worker.pipe.send(task)
            except OSError as error:
                raise lost(worker, self._workers) from error
        return self._collect(timeout_s)

    def _collect(self, timeout_s: float) -> list[Reply]:
        """Return one reply per worker, in rank order, or raise BackendError once one is lost or time is up."""
        deadline = time.monotonic() + timeout_s
        replies: dict[Connection[Task, Reply], Reply] = {}
        while missing := [worker for worker in self._workers if worker.pipe not in replies]:
            ready = wait([worker.pipe for worker in missing], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise silence(missing, timeout_s)
            for worker in missing:
                if worker.pipe in ready:
                    replies[worker.pipe] = self._receive(worker)
        return [replies[worker.pipe] for worker in self._workers]

    def _receive(self, worker: GlooProcess) -> Reply:
        try:
            return worker.pipe.recv()
        except (EOFError, OSError) as error:
            raise lost(worker, self._workers) from error


def corruption(step: Step, rank: int, wrong: tuple[int, float, float], names: Sequence[str]) -> DataCorruption:
    """Return the error for a wrong element on a rank; `names` are what the ranks run on, "core 4" or a device's tag."""
    offset, expected, found = wrong
    members = next(group for group in step.groups if rank in group)
    return DataCorruption(
        f"gloo {step.work} of {step.size_bytes} B {step.dtype} among {', '.join(names[member] for member in members)}: "
        f"the element at byte {offset} on {names[rank]} is {found:g}, not {expected:g}: do not trust this machine, "
        "test its memory (memtest86+)",
        (rank, *(member for member in members if member != rank)),
    )


def _timing(step: Step, replies: Sequence[Reply], cores: Sequence[int]) -> Timing:
    """Return the slowest rank's time of each block of each group. Raises DataCorruption for a wrong element."""
    for rank, reply in enumerate(replies):
        if reply["wrong"] is not None:
            raise corruption(step, rank, reply["wrong"], [f"core {core}" for core in cores])
    return Timing(
        seconds=tuple(
            tuple(max(times) for times in zip(*(replies[rank]["seconds"] for rank in group), strict=True))
            for group in step.groups
        )
    )
