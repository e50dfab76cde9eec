"""Ranks without processes: workers whose steps take the times that a test sets, each served in a thread."""

from __future__ import annotations

import functools
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from collbench.measurement.backends.protocol import BackendFacts, Step, Timing
from collbench.model.errors import BackendError
from collbench.model.run import Device, Flag, Health, Machine, Path
from collbench.ranks.connection import pair
from collbench.ranks.coordinator import Coordinator, Ranks
from collbench.ranks.messages import Introduction, Opening
from collbench.ranks.rank_worker import RankWorker, serve
from collbench.ranks.store import Store
from tests.builders import gpus

# Longer than any of these tests may take: after that, something hangs.
PATIENCE_S = 30.0


class FakeRankWorker(RankWorker):
    """A rank whose step takes `seconds` in each batch; `on_step(worker, step)` may raise, or wait for `interrupted`."""

    def __init__(
        self,
        rank: int,
        seconds: float = 1.0,
        on_step: Callable[[FakeRankWorker, Step], None] = lambda _worker, _step: None,
    ) -> None:
        self.rank, self.seconds, self.on_step = rank, seconds, on_step
        self.calls: list[str] = []
        self.keys: list[str] = []
        # The ranks of each world that was opened, and this rank's index among them.
        self.openings: list[tuple[tuple[int, ...], int]] = []
        self.interrupted = threading.Event()
        self.closed = threading.Event()
        self.current_flags: tuple[Flag, ...] = ()
        self.fails_to_open = 0
        self.dies_at = ""  # its process dies at the first call whose text begins with this
        self.hang_up: Callable[[], object] = lambda: None

    def introduce(self) -> Introduction:
        return Introduction("host", "key", "net", "cuda", "1.0", gpus(8)[self.rank], Machine("host", "Linux", "CPU"))

    def _call(self, call: str) -> None:
        self.calls.append(call)
        if self.dies_at and call.startswith(self.dies_at):
            self.hang_up()

    def make_id(self) -> str:
        self.calls.append("id")
        return f"id{self.calls.count('id')}"

    def open(self, opening: Opening) -> BackendFacts:
        self._call("open")
        self.openings.append((opening.positions, opening.index))
        self.keys.append(opening.key)
        self.interrupted.clear()
        if self.fails_to_open:
            self.fails_to_open -= 1
            raise BackendError("no room")
        return BackendFacts((5000 + self.rank,), 1000 - self.rank)

    def reserve(self, largest_bytes: int) -> None:
        self._call(f"reserve {largest_bytes}")

    def prepare(self, groups: tuple[tuple[int, ...], ...]) -> None:
        self._call(f"prepare {groups}")

    def time(self, step: Step) -> Timing:
        self._call(f"step {step.size_bytes}")
        self.on_step(self, step)
        is_member = [self.rank in group for group in step.groups]
        batches = tuple(self.seconds * (batch + 1) for batch in range(step.batches))
        launches = tuple(self.seconds / 10 if member else 0.0 for member in is_member) if step.launches else ()
        return Timing(tuple(batches if member else () for member in is_member), launches)

    def paths(self, devices: tuple[Device, ...]) -> tuple[Path, ...]:
        return ()

    def health(self) -> tuple[Health, ...]:
        self._call("health")
        return (Health(temperature=40 + self.rank),)

    def flags(self) -> tuple[Flag, ...]:
        return self.current_flags

    def interrupt(self) -> None:
        self.interrupted.set()

    def close(self) -> None:
        self.closed.set()

    def wait_to_be_interrupted(self) -> None:
        """Behave as a collective whose peer has died: wait, and fail when the worker is killed."""
        assert self.interrupted.wait(PATIENCE_S), "nobody informed this rank that another had failed"
        raise BackendError("killed")


def _hang_up(descriptor: int) -> None:
    """End a connection as the kernel does for a process that was killed, with whatever was under way."""
    with socket.socket(fileno=os.dup(descriptor)) as end:
        end.shutdown(socket.SHUT_RDWR)


class Board(Store):
    """A store in memory that remembers everything ever published."""

    def __init__(self) -> None:
        self.entries: dict[str, str] = {}
        self.published: list[str] = []

    def publish(self, name: str, value: str) -> None:
        self.entries[name] = value
        self.published.append(value)

    def forget(self, name: str) -> None:
        del self.entries[name]


@contextmanager
def world(
    workers: Sequence[FakeRankWorker],
    board: Board | None = None,
    devices: tuple[Device, ...] | None = None,
    **limits: float,
) -> Iterator[Coordinator]:
    """Yield a coordinator of these workers; afterwards all but those that died have been released."""
    ends = [pair() for _ in workers]
    released: list[bool] = []
    threads = [
        threading.Thread(target=lambda end=far, worker=worker: released.append(serve(end, worker, 0.05)), daemon=True)
        for (_, far), worker in zip(ends, workers, strict=True)
    ]
    for (_, far), worker in zip(ends, workers, strict=True):
        worker.hang_up = functools.partial(_hang_up, far.fileno())
    for thread in threads:
        thread.start()
    ranks = Ranks(
        {rank: near for rank, (near, _) in enumerate(ends)},
        {rank: f"rank {rank}" for rank in range(len(workers))},
        **limits,  # type: ignore[arg-type]
    )
    coordinator = Coordinator("cuda", ranks, board or Board(), devices or gpus(len(workers)), ("",) * len(workers))
    try:
        yield coordinator
    finally:
        coordinator.close()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert released.count(False) == sum(bool(worker.dies_at) for worker in workers), (
            "every other rank was asked to leave"
        )
        assert len(released) == len(workers)
        assert all(worker.closed.is_set() for worker in workers)
