"""Worker processes that load torch, one per rank, each behind a pipe. Their parent, which uses this module, does not.

The workers are gloo_worker and those of annexes; torch_rank.py is their side.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

from collbench.measurement.backends.child_process import EXIT_S, STARVED_S, Child, Starvation, own_environment, readable
from collbench.model.errors import BackendError, Cause, DataCorruption, Failure, FailureKind, MachineError, died

# `import torch` takes 3 s, and tens of seconds from a cold network disk.
JOIN_S = 120.0
_BUSY = ": the host was busy, and they could hardly run"
_NO_WORDS = "it wrote nothing to stderr"


@dataclass(frozen=True, slots=True)
class TorchProcess:
    """The running worker of one rank.

    Errors call it by `kind`, `place` and `number`: the "gloo worker" "on CPU" 3, the "worker" "of rank" 1.
    """

    rank: int
    kind: str
    place: str
    number: int
    child: Child


@dataclass(frozen=True, slots=True)
class Joined:
    """What a worker says once it has met the others: the versions of its torch and NCCL, and NCCL's file."""

    torch: str
    nccl: str = ""
    nccl_path: str = ""


class TorchWorkers:
    """The workers of some ranks, which get their requests together. After an error they have exited."""

    def __init__(
        self,
        module: str,
        backend: str,
        devices: Mapping[int, int],
        ranks: int,
        environment: Mapping[str, str],
        meeting: Sequence[str] = (),
        *,
        by_core: bool = False,
    ) -> None:
        """Start the worker in `module`, of collbench, for each rank of `devices` and return at once.

        `backend` is cuda or host; `devices` has the number of each rank's GPU among the visible ones, or of its core.
        All `ranks` meet in a file without a name, which nobody need remove, or at `meeting`: host, port and prefix of a
        TCPStore. Messages name a worker `by_core`, or else by its rank. Raises MachineError without torch.
        """
        if find_spec("torch") is None:
            raise MachineError("this needs torch, which is not installed: pip install torch")
        self._workers: list[TorchProcess] = []
        try:
            with tempfile.TemporaryFile(prefix="collbench-") as file:
                for rank, device in devices.items():
                    words = (rank, ranks, backend, device, file.fileno(), *meeting)
                    child = Child(f"collbench.{module}", words, environment, files=(file.fileno(),))
                    name = ("gloo worker", "on CPU", device) if by_core else ("worker", "of rank", rank)
                    self._workers.append(TorchProcess(rank, *name, child))
        except BaseException:
            self.close()
            raise

    @property
    def process_ids(self) -> tuple[int, ...]:
        """The workers' ids."""
        return tuple(worker.child.process.pid for worker in self._workers)

    def join(self, timeout_s: float = JOIN_S) -> Joined:
        """Wait until all ranks have met; return what the first worker has loaded. Raises BackendError."""
        replies = collected(self._workers, timeout_s)
        assert isinstance(replies[0], Joined)  # noqa: S101  # what a worker says first
        return replies[0]

    def ask(self, timeout_s: float, method: str, *arguments: object) -> list[Any]:
        """Call a method of every rank, and return their answers by rank. Raises as `ask_each` does."""
        return self.ask_each(timeout_s, method, [arguments] * len(self._workers))

    def ask_each(self, timeout_s: float, method: str, arguments: Sequence[tuple[object, ...]]) -> list[Any]:
        """Call a method of each rank with its arguments, in the order of ranks, and return their answers.

        Raises MachineError for what a rank cannot do but others may, DataCorruption, and BackendError for one that is
        lost.
        """
        if not self._workers:
            raise BackendError("the workers have exited: an earlier request failed")
        try:
            for worker, given in zip(self._workers, arguments, strict=True):
                worker.child.send((method, given))
            answers = collected(self._workers, timeout_s)
        except BaseException:  # Ctrl-C too: an unread reply would answer the next request
            self.kill()
            raise
        for worker, answer in zip(self._workers, answers, strict=True):
            if isinstance(answer, MachineError):
                raise MachineError(f"rank {worker.rank}: {answer}")
            if isinstance(answer, DataCorruption):
                raise answer
        return answers

    def interrupt(self) -> None:
        """Kill the processes: another thread that waits for an answer gets an error at once."""
        for worker in self._workers:
            worker.child.process.kill()

    def kill(self) -> None:
        """End and reap the workers, also those that hang in a collective and would not notice a closed pipe."""
        self.interrupt()
        self.close()

    def close(self) -> None:
        """Let the workers exit, and kill those that do not; does nothing the second time."""
        for worker in self._workers:
            worker.child.pipe.close()  # they exit at once
        deadline = time.monotonic() + EXIT_S
        for worker in self._workers:
            worker.child.reap(max(0.0, deadline - time.monotonic()))
            worker.child.process.kill()  # does nothing if it has exited
            worker.child.process.wait()
        self._workers = []


def collected(workers: Sequence[TorchProcess], timeout_s: float) -> list[Any]:
    """Return one reply of each worker, in their order. Raises BackendError once one is lost or time is up."""
    left, starvation = timeout_s, Starvation([worker.child.process.pid for worker in workers], STARVED_S)
    replies: dict[int, Any] = {}
    while missing := [worker for worker in workers if worker.rank not in replies]:
        ready, left = readable([worker.child.pipe for worker in missing], left, starvation.silent)
        if not ready:
            raise silence(missing, starvation.failure(timeout_s))
        for worker in missing:
            if worker.child.pipe in ready:
                try:
                    replies[worker.rank] = worker.child.pipe.recv()
                except (EOFError, OSError) as error:
                    raise lost(worker, workers) from error
    return [replies[worker.rank] for worker in workers]


def silence(workers: Sequence[TorchProcess], failure: Failure) -> BackendError:
    """Return the error for workers that did not answer."""
    first, numbers = workers[0], ", ".join(str(worker.number) for worker in workers)
    said, devices = first.child.last_line(), tuple(worker.rank for worker in workers)
    return BackendError(
        f"no answer within {failure.seconds or 0:.0f} s from the {first.kind}s {first.place}s {numbers}, still running "
        f"and now killed{_BUSY if failure.kind is FailureKind.BUSY else ''}; last output of the first: "
        f"{said or _NO_WORDS}",
        failure=replace(failure, devices=devices, detail=said),
    )


def lost(worker: TorchProcess, every: Sequence[TorchProcess]) -> BackendError:
    """Explain a death. The others fail when a peer is killed, so one that a signal ended is the cause."""
    try:
        worker.child.exit_status(EXIT_S)
    except subprocess.TimeoutExpired:
        return silence([worker], Failure(FailureKind.HANG, Cause.NO_ANSWER, seconds=EXIT_S))
    ended = [worker, *(other for other in every if other.child.process.poll() is not None)]
    cause = min(ended, key=lambda other: other.child.process.returncode)  # signals are negative; a tie goes to `worker`
    status, said = cause.child.process.returncode, cause.child.last_line()
    how = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
    return BackendError(
        f"the {cause.kind} {cause.place} {cause.number} died ({how}): {said or _NO_WORDS}",
        failure=died(status, said, (cause.rank,)),
    )


def worker_environment(interface: str = "lo") -> dict[str, str]:
    """Return our variables, and the network interface to listen on unless the user has chosen one."""
    # Gloo listens on the address that the host name resolves to, and in containers that name often resolves to
    # nothing or to another machine. Where all ranks are on one host, loopback always works.
    return {"GLOO_SOCKET_IFNAME": interface, **own_environment()}
