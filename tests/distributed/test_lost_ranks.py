"""A coordinator that goes on without ranks that die or fall silent, in whatever phase they do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from collbench.backends.protocol import Step
from collbench.distributed.connection import pair
from collbench.distributed.messages import Introduce
from collbench.distributed.rank_worker import with_indices, with_positions
from collbench.distributed.ranks import RankLost, Ranks
from collbench.model.errors import BackendError, DataCorruption, ExitStatus, StepFailed
from collbench.model.failures import Cause, Failure, FailureKind, WrongData
from collbench.model.operations import Operation, Work
from tests.distributed.fakes import Board, FakeRankWorker, world

ALLREDUCE = Operation.ALLREDUCE


def step(*groups: tuple[int, ...]) -> Step:
    return Step(ALLREDUCE, groups, 8, 1, 2)


def made(count: int) -> list[FakeRankWorker]:
    return [FakeRankWorker(rank, seconds=float(rank + 1)) for rank in range(count)]


@pytest.mark.parametrize("phase", ["open", "reserve", "prepare", "step", "health"])
@pytest.mark.parametrize("victims", [(2,), (1, 4)])
def test_a_rank_that_dies_in_any_phase_costs_only_its_own_groups(phase: str, victims: tuple[int, ...]) -> None:
    workers = made(5)
    for victim in victims:
        workers[victim].dies_at = phase
    board = Board()
    alive = [rank for rank in range(5) if rank not in victims]
    with world(workers, board, survives_losses=True) as coordinator:
        coordinator.open()
        coordinator.reserve(8)
        coordinator.prepare(((0, 1), (2, 3), (0, 3)))
        with contextlib.suppress(StepFailed):  # of the victims, if they had lived until then
            coordinator.time(step((0, 1), (2, 3)))
        coordinator.health()
        assert set(coordinator.lost) == set(victims)
        timing = coordinator.time(step((3, 0)))
        assert timing.seconds == ((4.0, 8.0),), "the slower one's, who is another place in the world of those left"
        with pytest.raises(StepFailed, match=f"rank {victims[0]} is gone") as caught:
            coordinator.time(step((0, 3), (victims[0],)))
        assert caught.value.failure.rank == victims[0]
        assert caught.value.failure.kind is FailureKind.CRASH
        assert coordinator.time(step((0,), (3,))).seconds == ((1.0, 2.0), (4.0, 8.0))
        assert [found.temperature for found in coordinator.health()] == [
            40 + rank if rank in alive else None for rank in range(5)
        ]
    assert workers[3].openings[-1] == (tuple(alive), alive.index(3))
    assert not board.now


def test_one_that_works_hears_that_another_was_lost() -> None:
    """A collective waits for every rank: without word the others would wait for ever."""
    workers = made(3)
    workers[1].dies_at = "step"
    waits = iter([True])

    def wait_once(worker: FakeRankWorker, _step: Step) -> None:
        if next(waits, False):
            worker.wait_to_be_interrupted()

    workers[2].on_step = wait_once
    with world(workers, survives_losses=True) as coordinator:
        coordinator.open()
        with pytest.raises(StepFailed, match="rank 1 is gone"):
            coordinator.time(step((0, 1, 2)))
        assert coordinator.time(step((0, 2))).seconds == ((3.0, 6.0),)


@pytest.fixture
def silent() -> Iterator[Ranks]:
    """Give two ranks that say nothing, and go on without them."""
    ends = [pair() for _ in range(2)]
    lines = {rank: ours for rank, (ours, _) in enumerate(ends)}
    ranks = Ranks(lines, {0: "rank 0", 1: "rank 1 on node1"}, silence_s=0.3, survives_losses=True)
    yield ranks
    ranks.close()
    for _, theirs in ends:
        theirs.close()


def test_a_silent_rank_is_a_hang_and_asked_no_more(silent: Ranks) -> None:
    for _ in range(2):
        (answer,) = silent.ask({1: Introduce()}).values()
        assert isinstance(answer, RankLost)
        assert str(answer).startswith("rank 1 on node1 is silent for")
        assert (answer.kind, answer.exit_code) == (FailureKind.HANG, ExitStatus.UNTRUSTED)
    assert silent.present == (0,)
    assert silent.without_lost() == (0,)
    assert (silent.present, dict(silent.lost)) == ((0,), {})


def test_nobody_is_left_to_measure_with() -> None:
    workers = made(2)
    workers[1].dies_at = "open"
    with world(workers, survives_losses=True) as coordinator, pytest.raises(BackendError, match="rank 1 is gone"):
        coordinator.open()


def test_a_rank_is_missed_while_it_owes_nothing() -> None:
    workers = made(3)
    with world(workers, survives_losses=True) as coordinator:
        coordinator.open()
        workers[1].dies_at = "now"
        workers[1].hang_up()
        with pytest.raises(StepFailed, match="rank 1 is gone"):
            coordinator.time(step((0, 1), (2,)))
        assert coordinator.time(step((0,), (2,))).seconds == ((1.0, 2.0), (3.0, 6.0))


def test_places_are_positions_again_in_what_a_rank_answers() -> None:
    members = (0, 2, 5)
    assert with_indices(step((5, 0), (2,)), members) == step((2, 0), (1,))
    assert with_indices(step((1, 0)), (0, 1)) == step((1, 0))
    because = Failure(FailureKind.ERROR, Cause.REPORTED, (1,))
    failure = Failure(FailureKind.CRASH, Cause.DIED, (2,), groups=((2, 0),), because=because)
    found = with_positions(StepFailed("x", failure=failure), members)
    assert isinstance(found, StepFailed)
    assert found.failure.because is not None
    assert (found.failure.devices, found.failure.groups, found.failure.because.devices) == ((5,), ((5, 0),), (2,))
    wrong = WrongData(Work(ALLREDUCE), 8, (2, 1))
    corrupt = with_positions(DataCorruption("y", wrong), members)
    assert isinstance(corrupt, DataCorruption)
    assert corrupt.wrong is not None
    assert corrupt.wrong.members == (5, 2)


def test_a_rank_that_did_not_come_is_lost_from_the_start() -> None:
    ours, theirs = pair()
    ranks = Ranks({0: ours}, {0: "rank 0 on a", 1: "rank 1"}, survives_losses=True)
    assert ranks.present == (0,)
    assert str(ranks.lost[1]) == "rank 1 did not connect"
    assert ranks.lost[1].exit_code is ExitStatus.FAILED
    assert ranks.without_lost() == (0,)
    assert (ranks.present, dict(ranks.lost)) == ((0,), {})
    ranks.close()
    theirs.close()
