"""A rank's side: what it does when rank 0 hangs up, changes its mind, or says to leave."""

import threading

import pytest

from collbench.backends.protocol import Step
from collbench.distributed.connection import pair
from collbench.distributed.messages import Abandon, Alive, Leave, OpenRank, Order, RankFacts, TakeHealth
from collbench.distributed.rank_worker import serve
from collbench.model.operations import Operation
from tests.distributed.fakes import PATIENCE_S, FakeRankWorker

STEP = Step(Operation.ALLREDUCE, ((0, 1),), 8, 1, 1)


class Serving:
    """A worker that is served in a thread; `line` is rank 0's end."""

    def __init__(self, worker: FakeRankWorker) -> None:
        self.line, far = pair()
        self._released: list[bool] = []
        self._thread = threading.Thread(target=lambda: self._released.append(serve(far, worker, 0.05)), daemon=True)
        self._thread.start()

    def end(self) -> bool:
        """Return whether rank 0 let it go."""
        self._thread.join(PATIENCE_S)
        return self._released[0]


def stuck() -> tuple[FakeRankWorker, threading.Event]:
    """Return a worker whose step lasts until it is interrupted, and what tells that it has begun."""
    begun = threading.Event()

    def wait(worker: FakeRankWorker, _step: Step) -> None:
        begun.set()
        worker.wait_to_be_interrupted()

    return FakeRankWorker(0, on_step=wait), begun


@pytest.mark.parametrize(
    ("title", "last", "released"),
    [("rank 0 lets it go", Leave(), True), ("rank 0 is gone", None, False)],
)
@pytest.mark.parametrize("busy", [False, True])
def test_a_rank_ends_with_rank_0(title: str, last: Order | None, released: bool, busy: bool) -> None:
    worker, begun = stuck()
    serving = Serving(worker)
    if busy:
        serving.line.send(STEP)
        assert begun.wait(PATIENCE_S)
    if last is None:
        serving.line.close()
    else:
        serving.line.send(last)
    assert serving.end() is released
    assert worker.closed.is_set()
    assert worker.interrupted.is_set() is busy


def test_an_abandoned_step_is_answered_and_the_rank_goes_on() -> None:
    worker, begun = stuck()
    serving = Serving(worker)
    serving.line.send(STEP)
    assert begun.wait(PATIENCE_S)
    serving.line.send(Abandon())
    serving.line.send(Abandon())  # one more may cross the answer: it must not end the next request
    words: list[object] = [serving.line.recv()]
    while isinstance(words[-1], Alive):
        words.append(serving.line.recv())
    assert str(words[-1]) == "killed"
    serving.line.send(TakeHealth())
    assert serving.line.recv() is not None
    serving.line.send(Leave())
    assert serving.end()


class StartsLate(FakeRankWorker):
    """Its worker starts a moment after it was asked to open: what came before has interrupted nothing."""

    def __init__(self) -> None:
        super().__init__(0)
        self.asked, self.started = threading.Event(), threading.Event()

    def open(self, opening: OpenRank) -> RankFacts:
        self.asked.set()
        assert self.started.wait(PATIENCE_S)
        self.interrupted.clear()
        self.wait_to_be_interrupted()
        raise AssertionError

    def interrupt(self) -> None:
        super().interrupt()
        self.started.set()


def test_a_worker_that_was_about_to_start_when_it_was_abandoned_ends_too() -> None:
    """Else its rank would wait for a lost one for as long as workers may take to meet: a minute."""
    worker = StartsLate()
    serving = Serving(worker)
    serving.line.send(OpenRank((), "world0", "", (0,), 0))
    assert worker.asked.wait(PATIENCE_S)
    serving.line.send(Abandon())
    words: list[object] = [serving.line.recv()]
    while isinstance(words[-1], Alive):
        words.append(serving.line.recv())
    assert str(words[-1]) == "killed"
    serving.line.send(Leave())
    assert serving.end()
