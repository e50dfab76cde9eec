"""Rank 0's backend over fake ranks in threads: orders and answers travel as they do between hosts."""

import os
import re
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from collbench.measurement.backends.protocol import Call, Step, Timing, slowest
from collbench.model.errors import BackendError, DataCorruption, PeerLost, StepFailed, UsageError
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import NetworkPort, RankLaunches
from collbench.ranks import rank_worker
from collbench.ranks.connection import pair
from collbench.ranks.coordinator import RankLost, Ranks
from tests.builders import gpus, throttled
from tests.ranks.fakes import Board, FakeRankWorker, world

ALLREDUCE = Operation.ALLREDUCE


def step(groups: tuple[tuple[int, ...], ...] = ((0, 1, 2),), size: int = 64, **changes: int) -> Step:
    return Step(Work(ALLREDUCE), groups, size, iterations=1, batches=2, **changes)  # type: ignore[arg-type]


def workers(*seconds: float) -> list[FakeRankWorker]:
    return [FakeRankWorker(rank, step_s) for rank, step_s in enumerate(seconds)]


def test_a_step_takes_as_long_as_the_slowest_rank_of_its_group() -> None:
    with world(workers(1.0, 3.0, 2.0)) as coordinator:
        coordinator.open()
        assert coordinator.time(step()).seconds == ((3.0, 6.0),)
        assert coordinator.time(step(((2, 0),))).seconds == ((2.0, 4.0),)
        several = coordinator.time(step(((0, 2), (1,)), launches=5))
        assert several.seconds == ((2.0, 4.0), (3.0, 6.0))
        assert several.launch_seconds == pytest.approx((0.15, 0.3))  # the mean, as nccl-tests has it


def test_each_groups_single_launches_come_in_the_order_of_its_ranks() -> None:
    launches = [RankLaunches((rank,), (rank + 10,)) for rank in range(3)]
    group_of = (0, 1, 0)  # by rank
    timings = tuple(
        Timing(
            tuple((1.0,) if index == group_of[rank] else () for index in range(2)),
            singles=tuple((launches[rank],) if index == group_of[rank] else () for index in range(2)),
        )
        for rank in range(3)
    )
    timing = slowest(step(((2, 0), (1,)), singles=1), timings)

    assert timing.singles == ((launches[2], launches[0]), (launches[1],))
    assert slowest(step(((2, 0), (1,))), timings).singles == ()


def test_the_world_is_as_large_as_its_smallest_rank_and_knows_all_devices() -> None:
    with world(workers(1.0, 1.0, 1.0)) as coordinator:
        coordinator.open()
        assert coordinator.capacity_bytes() == 998
        assert coordinator.free_bytes() == (5000, 5001, 5002)
        assert coordinator.devices() == gpus(3)
        assert [health.temperature for health in coordinator.health()] == [40, 41, 42]


def test_the_id_is_made_once_read_by_all_and_deleted() -> None:
    board, ranks = Board(), workers(1.0, 1.0)
    with world(ranks, board) as coordinator:
        coordinator.open()
        coordinator.reserve(512)
        coordinator.prepare(((0, 1),))
        coordinator.time(step(((0, 1),)))
    assert (board.published, board.entries) == (["id1"], {})
    assert ranks[0].calls == ["id", "open", "reserve 512", "prepare ((0, 1),)", "step 64"]
    assert ranks[1].calls == ranks[0].calls[1:]


def test_a_failure_ends_the_others_step_and_all_meet_again() -> None:
    def fail_at_8(worker: FakeRankWorker, step: Step) -> None:
        if step.size_bytes == 8:
            if worker.rank == 1:
                raise StepFailed("crash: the worker died")
            worker.wait_to_be_interrupted()

    board, ranks = Board(), [FakeRankWorker(rank, on_step=fail_at_8) for rank in range(3)]
    with world(ranks, board) as coordinator:
        coordinator.open()
        coordinator.reserve(512)
        outcomes = dict(coordinator.time_steps([step(), step(size=8), step(size=16)]))
        failed = outcomes[step(size=8)]
        assert isinstance(failed, StepFailed)
        assert str(failed) == "rank 1: crash: the worker died", "not what its abandoned peers met"
        assert [bool(getattr(outcome, "seconds", ())) for outcome in outcomes.values()] == [True, False, True]
    assert board.published == ["id1", "id2"], "a new world has a new id"
    assert all(len(set(worker.keys)) == 2 for worker in ranks)
    assert ranks[2].calls == ["open", "reserve 512", "step 64", "step 8", "open", "reserve 512", "step 16"]


def test_a_world_that_cannot_be_joined_again_costs_the_next_step_too() -> None:
    def fail_once(worker: FakeRankWorker, step: Step) -> None:
        if step.size_bytes == 8:
            worker.fails_to_open = 1
            raise BackendError("hang")

    ranks = [FakeRankWorker(0), FakeRankWorker(1, on_step=fail_once)]
    with world(ranks) as coordinator:
        coordinator.open()
        for size, message in ((8, "rank 1: hang"), (16, "could not reconnect: rank 1: no room")):
            with pytest.raises(StepFailed, match=message):
                coordinator.time(step(((0, 1),), size))
        assert coordinator.time(step(((0, 1),), 32)).seconds


@pytest.mark.parametrize(
    ("title", "errors", "kind", "message"),
    [
        ("wrong data, before the failures that it causes", {2: DataCorruption("wrong data at byte 12")},
         DataCorruption, "rank 2: wrong data at byte 12"),
        ("a usage error of all ranks as on one machine", dict.fromkeys(range(3), UsageError("gloo cannot do avg")),
         UsageError, "gloo cannot do avg"),
        ("an unexpected error", {1: KeyError("lost")}, StepFailed, "rank 1: KeyError: 'lost'"),
        ("the rank that lost a peer, without a cause", {1: PeerLost("remote process exited")}, StepFailed,
         "rank 1: remote process exited"),
    ],
)  # fmt: skip
def test_a_failed_step_is_reported_and_hangs_no_peer(
    title: str, errors: dict[int, Exception], kind: type[Exception], message: str
) -> None:
    def fail(worker: FakeRankWorker, _step: Step) -> None:
        if worker.rank in errors:
            raise errors[worker.rank]
        worker.wait_to_be_interrupted()

    with world([FakeRankWorker(rank, on_step=fail) for rank in range(3)], cause_s=0.1) as coordinator:
        coordinator.open()
        with pytest.raises(kind, match=f"^{re.escape(message)}$"):
            coordinator.time(step())


def test_a_rank_that_lost_a_peer_waits_for_the_peers_own_report() -> None:
    def fail(worker: FakeRankWorker, _step: Step) -> None:
        if worker.rank == 0:
            raise PeerLost("remote process exited")
        if worker.rank == 2:
            worker.wait_to_be_interrupted()
        assert not worker.interrupted.wait(0.5), "abandoned before it could say why"
        raise StepFailed("unhandled system error")

    with world([FakeRankWorker(rank, on_step=fail) for rank in range(3)]) as coordinator:
        coordinator.open()
        with pytest.raises(StepFailed, match=r"^rank 1: unhandled system error$"):
            coordinator.time(step())


def test_flags_come_from_the_rank_of_their_device() -> None:
    ranks = workers(1.0, 1.0, 1.0)
    ranks[1].current_flags = (throttled(0),)  # position 0 to its own rank
    with world(ranks) as coordinator:
        coordinator.open()
        coordinator.time(step(((0, 1), (2,))))
        assert coordinator.flags((0, 1)) == (throttled(1),)
        assert coordinator.flags((2,)) == ()


def test_an_interrupted_step_is_cleared_away_before_the_next_request() -> None:
    def interrupt_rank_0(worker: FakeRankWorker, step: Step) -> None:
        if step.size_bytes == 8:
            if worker.rank == 0:
                os.kill(os.getpid(), signal.SIGINT)
            worker.wait_to_be_interrupted()

    with world([FakeRankWorker(rank, on_step=interrupt_rank_0) for rank in range(2)]) as coordinator:
        coordinator.open()
        with pytest.raises(KeyboardInterrupt):
            coordinator.time(step(((0, 1),), 8))
        assert [health.temperature for health in coordinator.health()] == [40, 41]
        assert coordinator.time(step(((0, 1),), 16)).seconds


def test_a_rank_that_dies_is_named_at_once_and_for_good() -> None:
    reported: list[str] = []
    near, far = pair()
    ranks = Ranks({0: near}, {0: "rank 2 on node1"}, on_loss=lambda: reported.append("lost"))
    far.close()  # as the kernel does for a process that was killed
    for _ in range(2):
        with pytest.raises(RankLost, match=r"rank 2 on node1 is gone.*start all ranks again"):
            ranks.ask({0: Call("introduce")})
    assert reported == ["lost"]
    ranks.close()
    ranks.close()


def test_a_rank_that_is_silent_is_lost_and_one_that_is_slow_is_not() -> None:
    near, far = pair()
    silent = Ranks({0: near}, {0: "rank 1 on node1"}, silence_s=0.3)
    with pytest.raises(RankLost, match="rank 1 on node1 is silent"):
        silent.ask({0: Call("introduce")})
    far.close()

    def take_a_second(worker: FakeRankWorker, _step: Step) -> None:
        worker.interrupted.wait(1.0)  # signs of life come every 0.05 s

    with world([FakeRankWorker(0, on_step=take_a_second)], silence_s=0.5) as coordinator:
        coordinator.open()
        assert coordinator.time(step(((0,),))).seconds


def test_copies_are_refused() -> None:
    with world(workers(1.0)) as coordinator:
        assert all(coordinator.operations(variant) == () for variant in Variant)
        assert coordinator.can_run(Work(ALLREDUCE), (0,)) is None
        assert coordinator.can_run(Work(Operation.CE_WRITE), (0, 1)) is not None
        with pytest.raises(UsageError, match="without torchrun"):
            coordinator.time(Step(Work(Operation.CE_WRITE), ((0, 1),), 8, 1, 1))


def test_one_rank_of_each_host_reads_its_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lowest remaining rank; on a single host none does, as it sends nothing over them."""
    roots = list[str]()

    def ports(root: Path) -> tuple[NetworkPort, ...]:
        roots.append(str(root))
        return (NetworkPort("mlx5_0", 1, "ACTIVE", counters={"symbol_error": len(roots)}),)

    monkeypatch.setattr(rank_worker, "read_counted_ports", ports)
    devices = tuple(replace(device, host=f"h{rank // 2}") for rank, device in enumerate(gpus(4)))
    with world([FakeRankWorker(rank) for rank in range(4)], devices=devices) as coordinator:
        ports_of_hosts = coordinator.ports()
    assert ports_of_hosts is not None
    assert [(port.host, port.name) for port in ports_of_hosts] == [("h0", "mlx5_0:1"), ("h1", "mlx5_0:1")]
    assert roots == ["/", "/"]
    with world([FakeRankWorker(rank) for rank in range(4)]) as coordinator:
        assert coordinator.ports() is None
    assert len(roots) == 2
