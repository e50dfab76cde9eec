"""Ranks without processes: workers whose steps take the times that a test says, each served in a thread."""

from __future__ import annotations

import functools
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from collbench.backends.protocol import Step, Timing
from collbench.distributed.connection import pair
from collbench.distributed.coordinator import Coordinator
from collbench.distributed.messages import Introduction, OpenRank, RankFacts
from collbench.distributed.rank_worker import RankWorker, serve
from collbench.distributed.ranks import Ranks
from collbench.model.errors import BackendError
from collbench.model.run import Device, Flag, Health, Machine, Path
from tests.builders import gpus

# Longer than any of these tests may take: what waits so long has hung.
PATIENCE_S = 30.0


class FakeRankWorker(RankWorker):
    """A rank whose step takes `seconds` in each batch; `on_step(worker, step)` may raise, or wait for `interrupted`."""

    def __init__(
        self,
        rank: int,
        seconds: float = 1.0,
        on_step: Callable[[FakeRankWorker, Step], None] = lambda _seat, _step: None,
    ) -> None:
        self.rank, self.seconds, self.on_step = rank, seconds, on_step
        self.calls: list[str] = []
        self.keys: list[str] = []
        self.openings: list[tuple[tuple[int, ...], int]] = []  # the world's members, and the place among them
        self.interrupted = threading.Event()
        self.closed = threading.Event()
        self.wrong_now: tuple[Flag, ...] = ()
        self.fails_to_open = 0
        self.dies_at = ""  # the first of its calls that begins so ends its process
        self.hang_up: Callable[[], object] = lambda: None

    def introduce(self) -> Introduction:
        return Introduction("host", "key", "net", "cuda", "1.0", gpus(8)[self.rank], Machine("host", "Linux", "CPU"))

    def _call(self, what: str) -> None:
        self.calls.append(what)
        if self.dies_at and what.startswith(self.dies_at):
            self.hang_up()

    def make_id(self) -> str:
        self.calls.append("id")
        return f"id{self.calls.count('id')}"

    def open(self, opening: OpenRank) -> RankFacts:
        self._call("open")
        self.openings.append((opening.positions, opening.index))
        self.keys.append(opening.key)
        self.interrupted.clear()
        if self.fails_to_open:
            self.fails_to_open -= 1
            raise BackendError("no room")
        return RankFacts(capacity_bytes=1000 - self.rank, free_bytes=5000 + self.rank)

    def reserve(self, largest_bytes: int) -> None:
        self._call(f"reserve {largest_bytes}")

    def prepare(self, groups: tuple[tuple[int, ...], ...]) -> None:
        self._call(f"prepare {groups}")

    def time(self, step: Step) -> Timing:
        self._call(f"step {step.size_bytes}")
        self.on_step(self, step)
        here = [self.openings[-1][1] in group for group in step.groups]
        batches = tuple(self.seconds * (batch + 1) for batch in range(step.batches))
        launches = tuple(self.seconds / 10 if mine else 0.0 for mine in here) if step.launches else ()
        return Timing(tuple(batches if mine else () for mine in here), launches)

    def paths(self, devices: tuple[Device, ...]) -> tuple[Path, ...]:
        return ()

    def health(self) -> tuple[Health, ...]:
        self._call("health")
        return (Health(temperature=40 + self.rank),)

    def flags(self) -> tuple[Flag, ...]:
        return self.wrong_now

    def interrupt(self) -> None:
        self.interrupted.set()

    def close(self) -> None:
        self.closed.set()

    def wait_to_be_interrupted(self) -> None:
        """Do as a collective whose peer has died: wait, and fail when the worker is killed."""
        assert self.interrupted.wait(PATIENCE_S), "nobody informed this rank that another had failed"
        raise BackendError("killed")


def _hang_up(number: int) -> None:
    """End a connection as the kernel does for a process that was killed, with whatever was under way."""
    with socket.socket(fileno=os.dup(number)) as end:
        end.shutdown(socket.SHUT_RDWR)


class Board:
    """A store in memory that remembers what was ever on it."""

    def __init__(self) -> None:
        self.now: dict[str, str] = {}
        self.ever: list[str] = []

    def publish(self, name: str, value: str) -> None:
        self.now[name] = value
        self.ever.append(value)

    def forget(self, name: str) -> None:
        del self.now[name]


@contextmanager
def world(
    workers: Sequence[FakeRankWorker],
    board: Board | None = None,
    devices: tuple[Device, ...] | None = None,
    **limits: float,
) -> Iterator[Coordinator]:
    """Give a coordinator of these workers; afterwards all of them have left, but those who have died."""
    ends = [pair() for _ in workers]
    left: list[bool] = []
    threads = [
        threading.Thread(target=lambda end=theirs, worker=worker: left.append(serve(end, worker, 0.05)), daemon=True)
        for (_, theirs), worker in zip(ends, workers, strict=True)
    ]
    for (_, theirs), worker in zip(ends, workers, strict=True):
        worker.hang_up = functools.partial(_hang_up, theirs.fileno())
    for thread in threads:
        thread.start()
    ranks = Ranks(
        {rank: ours for rank, (ours, _) in enumerate(ends)},
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
        assert left.count(False) == sum(bool(worker.dies_at) for worker in workers), (
            "every other rank was asked to leave"
        )
        assert len(left) == len(workers)
        assert all(worker.closed.is_set() for worker in workers)
