"""Worker processes that load torch, one per rank, each behind a pipe. Their parent, which uses this module, does not.

The workers are gloo_worker and those of annexes; torch_rank.py is their side.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

from collbench.measurement.backends.child_process import EXIT_S, STARVED_S, Child, Starvation, own_environment, readable
from collbench.model.errors import BackendError, DataCorruption, Failure, MachineError

# `import torch` takes 3 s, and tens of seconds from a cold network disk.
JOIN_S = 120.0


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
        self._names = {rank: f"gloo worker on CPU{at}" if by_core else f"rank {rank}" for rank, at in devices.items()}
        self._children: dict[int, Child] = {}  # by rank
        try:
            with tempfile.TemporaryFile(prefix="collbench-") as file:
                for rank, device in devices.items():
                    words = (rank, ranks, backend, device, file.fileno(), *meeting)
                    self._children[rank] = Child(f"collbench.{module}", words, environment, files=(file.fileno(),))
        except BaseException:
            self.close()
            raise

    @property
    def process_ids(self) -> tuple[int, ...]:
        """The workers' ids; none once they have exited."""
        return tuple(child.process.pid for child in self._children.values())

    def join(self, timeout_s: float = JOIN_S) -> Joined:
        """Wait until all ranks have met; return what the first worker has loaded. Raises BackendError."""
        joined = self._replies(timeout_s)[0]
        assert isinstance(joined, Joined)  # noqa: S101  # what a worker says first
        return joined

    def ask(self, timeout_s: float, method: str, *arguments: object) -> list[Any]:
        """Call a method of every rank, and return their answers by rank. Raises as `ask_each` does."""
        return self.ask_each(timeout_s, method, [arguments] * len(self._children))

    def ask_each(self, timeout_s: float, method: str, arguments: Sequence[tuple[object, ...]]) -> list[Any]:
        """Call a method of each rank with its arguments, in the order of ranks, and return their answers.

        Raises MachineError for what a rank cannot do but others may, DataCorruption, and BackendError for one that is
        lost.
        """
        if not self._children:
            raise BackendError("the workers have exited: an earlier request failed")
        answers = self._replies(
            timeout_s, {rank: (method, own) for rank, own in zip(self._children, arguments, strict=True)}
        )
        for rank, answer in zip(self._children, answers, strict=True):
            if isinstance(answer, MachineError):
                raise MachineError(f"rank {rank}: {answer}")
            if isinstance(answer, DataCorruption):
                raise answer
        return answers

    def interrupt(self) -> None:
        """Kill the processes: another thread that waits for an answer gets an error at once."""
        for child in self._children.values():
            child.process.kill()

    def close(self) -> None:
        """End the workers, also those that hang in a collective; does nothing the second time."""
        for child in self._children.values():
            child.kill()
        deadline = time.monotonic() + EXIT_S
        for child in self._children.values():
            child.reap(max(0.0, deadline - time.monotonic()))
        self._children = {}

    def _replies(self, timeout_s: float, requests: Mapping[int, object] | None = None) -> list[Any]:
        """Send the requests by rank, and return one reply of each worker.

        Raises BackendError once one is lost or time is up; then, and after Ctrl-C, all are killed.
        """
        left, starvation, replies = timeout_s, Starvation(self.process_ids, STARVED_S), dict[int, Any]()
        try:
            for rank, request in (requests or {}).items():
                self._children[rank].send(request)
            while missing := {rank: child for rank, child in self._children.items() if rank not in replies}:
                ready, left = readable([child.pipe for child in missing.values()], left, starvation.silent)
                if not ready:
                    said = next(iter(missing.values())).last_line()
                    raise self._failed([*missing], replace(starvation.failure(timeout_s), detail=said))
                for rank, child in missing.items():
                    if child.pipe in ready:
                        try:
                            replies[rank] = child.pipe.recv()
                        except (EOFError, OSError) as error:
                            raise self._lost(rank) from error
        except BaseException:  # an unread reply would answer the next request
            self.close()
            raise
        return [replies[rank] for rank in self._children]

    def _lost(self, rank: int) -> BackendError:
        """Explain a death. The others fail when a peer is killed, so one that a signal ended is the cause."""
        failures = {rank: self._children[rank].death()}
        failures |= {
            other: child.death() for other, child in self._children.items() if child.process.poll() is not None
        }
        cause = max(failures, key=lambda other: failures[other].signal or 0)  # a tie goes to `rank`
        return self._failed([cause], failures[cause])

    def _failed(self, ranks: Sequence[int], failure: Failure) -> BackendError:
        named = ", ".join(self._names[rank] for rank in ranks)
        return BackendError(f"{named}: {failure}", failure=replace(failure, devices=tuple(ranks)))


def worker_environment(interface: str = "lo") -> dict[str, str]:
    """Return our variables, and the network interface to listen on unless the user has chosen one."""
    # Gloo listens on the address that the host name resolves to, and in containers that name often resolves to
    # nothing or to another machine. Where all ranks are on one host, loopback always works.
    return {"GLOO_SOCKET_IFNAME": interface, **own_environment()}
