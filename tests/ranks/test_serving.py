"""A rank's side: what it does when rank 0 hangs up, abandons a step, or releases it."""

import threading

import pytest

from collbench.measurement.backends.protocol import BackendFacts, Call, Step
from collbench.model.operations import Operation, Work
from collbench.ranks.connection import pair
from collbench.ranks.messages import Abandon, Alive, Leave, Opening, Order
from collbench.ranks.rank_worker import serve
from tests.ranks.fakes import PATIENCE_S, FakeRankWorker

STEP = Call("time", (Step(Work(Operation.ALLREDUCE), ((0, 1),), 8, 1, 1),))


class Serving:
    """A worker that is served in a thread; `connection` is rank 0's end."""

    def __init__(self, worker: FakeRankWorker) -> None:
        self.connection, rank_end = pair()
        self._released: list[bool] = []
        self._thread = threading.Thread(
            target=lambda: self._released.append(serve(rank_end, worker, 0.05)), daemon=True
        )
        self._thread.start()

    def end(self) -> bool:
        """Return whether rank 0 released it."""
        self._thread.join(PATIENCE_S)
        return self._released[0]


def stuck() -> tuple[FakeRankWorker, threading.Event]:
    """Return a worker whose step lasts until it is interrupted, and the event that it has begun."""
    begun = threading.Event()

    def wait(worker: FakeRankWorker, _step: Step) -> None:
        begun.set()
        worker.wait_to_be_interrupted()

    return FakeRankWorker(0, on_step=wait), begun


@pytest.mark.parametrize(
    ("title", "last_order", "released"), [("rank 0 lets it go", Leave(), True), ("rank 0 is gone", None, False)]
)
@pytest.mark.parametrize("busy", [False, True])
def test_a_rank_ends_with_rank_0(title: str, last_order: Order | None, released: bool, busy: bool) -> None:
    worker, begun = stuck()
    serving = Serving(worker)
    if busy:
        serving.connection.send(STEP)
        assert begun.wait(PATIENCE_S)
    if last_order is None:
        serving.connection.close()
    else:
        serving.connection.send(last_order)
    assert serving.end() is released
    assert worker.closed.is_set()
    assert worker.interrupted.is_set() is busy


def test_an_abandoned_step_is_answered_and_the_rank_goes_on() -> None:
    worker, begun = stuck()
    serving = Serving(worker)
    serving.connection.send(STEP)
    assert begun.wait(PATIENCE_S)
    serving.connection.send(Abandon())
    serving.connection.send(Abandon())  # one more may cross the answer: it must not end the next request
    messages: list[object] = [serving.connection.recv()]
    while isinstance(messages[-1], Alive):
        messages.append(serving.connection.recv())
    assert str(messages[-1]) == "killed"
    serving.connection.send(Call("health"))
    assert serving.connection.recv() is not None
    serving.connection.send(Leave())
    assert serving.end()


class StartsLate(FakeRankWorker):
    """Its worker starts a moment after it was told to open: an earlier interrupt has no effect."""

    def __init__(self) -> None:
        super().__init__(0)
        self.opening, self.started = threading.Event(), threading.Event()

    def open(self, opening: Opening) -> BackendFacts:
        self.opening.set()
        assert self.started.wait(PATIENCE_S)
        self.interrupted.clear()
        self.wait_to_be_interrupted()
        raise AssertionError

    def interrupt(self) -> None:
        super().interrupt()
        self.started.set()


def test_a_worker_that_was_about_to_start_when_it_was_abandoned_ends_too() -> None:
    """Otherwise its rank would wait for a lost one as long as workers may take to connect: a minute."""
    worker = StartsLate()
    serving = Serving(worker)
    serving.connection.send(Call("open", (Opening("world0", "", (0,), 0),)))
    assert worker.opening.wait(PATIENCE_S)
    serving.connection.send(Abandon())
    messages: list[object] = [serving.connection.recv()]
    while isinstance(messages[-1], Alive):
        messages.append(serving.connection.recv())
    assert str(messages[-1]) == "killed"
    serving.connection.send(Leave())
    assert serving.end()
