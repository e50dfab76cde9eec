"""A coordinator continues without ranks that die or fall silent, in whatever phase."""

from __future__ import annotations

import contextlib

import pytest

from collbench.measurement.backends.protocol import Step
from collbench.model.errors import (
    BackendError,
    ExitStatus,
    FailureKind,
    StepFailed,
)
from collbench.model.operations import Operation, Work
from collbench.ranks.connection import pair
from collbench.ranks.coordinator import Ranks
from tests.ranks.fakes import Board, FakeRankWorker, world

ALLREDUCE = Operation.ALLREDUCE


def step(*groups: tuple[int, ...]) -> Step:
    return Step(Work(ALLREDUCE), groups, 8, 1, 2)


def make_workers(count: int) -> list[FakeRankWorker]:
    return [FakeRankWorker(rank, seconds=float(rank + 1)) for rank in range(count)]


@pytest.mark.parametrize("phase", ["open", "reserve", "prepare", "step", "health"])
@pytest.mark.parametrize("victims", [(2,), (1, 4)])
def test_a_rank_that_dies_in_any_phase_costs_only_its_own_groups(phase: str, victims: tuple[int, ...]) -> None:
    workers = make_workers(5)
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
        assert timing.seconds == ((4.0, 8.0),), "the slower one's, whose index in the remaining world is another"
        with pytest.raises(StepFailed, match=f"rank {victims[0]} is gone") as caught:
            coordinator.time(step((0, 3), (victims[0],)))
        assert caught.value.failure.rank == victims[0]
        assert caught.value.failure.kind is FailureKind.CRASH
        assert coordinator.time(step((0,), (3,))).seconds == ((1.0, 2.0), (4.0, 8.0))
        assert [health.temperature for health in coordinator.health()] == [
            40 + rank if rank in alive else None for rank in range(5)
        ]
    assert workers[3].openings[-1] == (tuple(alive), alive.index(3))
    assert not board.entries


def test_a_working_rank_is_informed_that_another_was_lost() -> None:
    """A collective waits for every rank: uninformed, the others would wait for ever."""
    workers = make_workers(3)
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


def test_losing_all_other_ranks_is_an_error() -> None:
    workers = make_workers(2)
    workers[1].dies_at = "open"
    with world(workers, survives_losses=True) as coordinator, pytest.raises(BackendError, match="rank 1 is gone"):
        coordinator.open()


def test_a_rank_that_dies_while_idle_is_noticed() -> None:
    workers = make_workers(3)
    with world(workers, survives_losses=True) as coordinator:
        coordinator.open()
        workers[1].dies_at = "now"
        workers[1].hang_up()
        with pytest.raises(StepFailed, match="rank 1 is gone"):
            coordinator.time(step((0, 1), (2,)))
        assert coordinator.time(step((0,), (2,))).seconds == ((1.0, 2.0), (3.0, 6.0))


def test_a_rank_that_did_not_connect_is_lost_from_the_start() -> None:
    near, far = pair()
    ranks = Ranks({0: near}, {0: "rank 0 on a", 1: "rank 1"}, survives_losses=True)
    assert ranks.present == (0,)
    assert str(ranks.lost[1]) == "rank 1 did not connect"
    assert ranks.lost[1].exit_code is ExitStatus.FAILED
    assert ranks.without_lost() == (0,)
    assert (ranks.present, dict(ranks.lost)) == ((0,), {})
    ranks.close()
    far.close()
