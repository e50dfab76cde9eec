"""The worker of replay, for real: gloo between processes on cores, what its buffers hold, and how its processes end."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from collbench.ablations.ablation import ArmChange
from collbench.jobs.job import Call, Job
from collbench.jobs.replay.measure import ReplayRequest, ReplayWorld
from collbench.jobs.replay.schedule import Post, ReplayLoad, Schedule, Unit, schedule_of
from collbench.model.errors import BackendError, MachineError
from tests.jobs.replay.made import data_parallel, job_of, jobs

CORES = sorted(os.sched_getaffinity(0))
RANKS = 3
SIMULATED = ReplayRequest(
    backend="sim",
    fabric="titan-rtx-nv2",
    trials=1,
    seed=1,
    command=("replay",),
    job="job.json",
    schedule=schedule_of(data_parallel(2)),
    arms=(ArmChange(),),
)
pytestmark = [
    pytest.mark.usefixtures("loaded_torch"),
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is absent"),
]


@pytest.fixture(scope="module")
def world(loaded_torch: None) -> Iterator[ReplayWorld]:
    replay_world = ReplayWorld("host", [CORES[rank % len(CORES)] for rank in range(RANKS)])
    try:
        assert replay_world.join().torch == version("torch")
        yield replay_world
    finally:
        replay_world.close()


def prepared(world: ReplayWorld, job: Job) -> None:
    world.prepare(schedule_of(job))


EVERY_CALL = [
    Call("allreduce", 4096, 0, "bfloat16", "sum"),
    Call("allreduce", 64, 0, "float32", "max"),
    Call("reduce", 64, 0, "float32", "prod", root=2),
    Call("broadcast", 100, 0, root=1),
    Call("allgather", 300, 0, "float32"),
    Call("reducescatter", 300, 0, "float32", "sum"),
    Call("alltoall", 96, 0),
    Call("gather", 96, 0, root=1),
    Call("scatter", 96, 0, root=0),
    Call("sendrecv", 64, 0),
]


def test_each_operation_arrives_as_sent_and_is_timed(world: ReplayWorld) -> None:
    prepared(world, job_of([range(RANKS)], [[(call, False) for call in EVERY_CALL]] * RANKS))
    assert world.verify() == 0
    for load in (ReplayLoad(3), ReplayLoad(2, pauses=False)):
        for times in world.run(load, 1.0):
            assert len(times.units) == len(EVERY_CALL)
            assert min(times.units) > 0
            assert times.queued
    assert world.verify() == 0  # after the buffers were used again and again


def test_pauses_alone_are_no_shorter_than_recorded(world: ReplayWorld) -> None:
    job = job_of([range(RANKS)], [[(EVERY_CALL[0], False)]] * RANKS, pause=20_000.0)
    prepared(world, job)
    for times in world.run(ReplayLoad(2, calls=False), 1.0):
        assert times.units == ()
        assert times.step >= 0.02
    for times in world.run(ReplayLoad(2), 1.0):
        assert times.step >= 0.02


def test_ranks_outside_a_group_and_orders_that_differ(world: ReplayWorld) -> None:
    """Ranks 0 and 1 call their two groups in opposite orders; rank 2 is in neither."""
    first_group_call, second_group_call = (Call("allreduce", 4096, group, "float32", "sum") for group in (0, 1))
    all_ranks_call = Call("allreduce", 64, 2, "float32", "sum")
    steps = [
        [(first_group_call, False), (second_group_call, False)],
        [(second_group_call, False), (first_group_call, False)],
        [],
    ]
    prepared(world, job_of([(0, 1), (1, 0), range(RANKS)], [[*step, (all_ranks_call, False)] for step in steps]))
    assert world.verify() == 0
    assert [len(times.units) for times in world.run(ReplayLoad(5), 1.0)] == [3, 3, 1]


def test_messages_to_oneself_are_copied(world: ReplayWorld) -> None:
    """An all-to-all of a plugin's record: each rank sends to all, itself among them."""
    steps = [
        [(Call(direction, 64, 0, peer=peer), number > 0) for number, (direction, peer) in enumerate(posts)]
        for posts in [[(direction, peer) for peer in range(RANKS) for direction in ("send", "recv")]] * RANKS
    ]
    prepared(world, job_of([range(RANKS)], steps))
    assert world.verify() == 0
    assert [len(times.units) for times in world.run(ReplayLoad(2), 1.0)] == [1, 1, 1]


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(jobs(most_ranks=RANKS, largest=1024).filter(lambda job: job.world_size == RANKS))
def test_any_consistent_job_runs_and_is_verified(world: ReplayWorld, job: Job) -> None:
    prepared(world, job)
    assert world.verify() == 0
    assert all(times.step > 0 for times in world.run(ReplayLoad(2, pauses=False), 1.0))


def test_a_step_that_does_not_fit_is_one_line(world: ReplayWorld) -> None:
    with pytest.raises(MachineError, match=r"rank 0: .*allocate"):
        prepared(world, data_parallel(RANKS, (2**50,)))
    prepared(world, data_parallel(RANKS))  # and the workers go on
    assert world.verify() == 0


def test_ranks_of_the_job_are_members_of_its_groups() -> None:
    """Rank 6, the third of its group, broadcasts; rank 4 sends to rank 1."""
    import torch

    from collbench.jobs.replay.worker import message_of

    def message(rank: int, post: Post) -> Any:
        made = message_of(post, rank, (1, 4, 6), 0, torch.device("cpu"))
        made.fill(0)
        made.uses = 1
        return made

    every = [message(rank, Post("broadcast", 96, root=6)) for rank in (1, 4, 6)]
    sent, received = message(4, Post("send", 96, peer=1)), message(1, Post("recv", 96, peer=4))
    for source, target in ((every[2], every[0]), (sent, received)):
        assert target.first_wrong() is not None
        target.received.copy_(source.sent)
        assert target.first_wrong() is None
    every[0].received.copy_(every[1].sent)
    assert every[0].first_wrong() is not None


@pytest.mark.parametrize("stale", ["first", "previous"])
@pytest.mark.parametrize("operation", ["allreduce", "reduce", "broadcast", "allgather", "reducescatter", "alltoall"])
def test_earlier_results_are_wrong_in_the_next_verification(
    operation: str, stale: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One rank, whose library delivers in each buffer what its first call did, or the one before."""
    from collbench.jobs.replay import worker as replay_worker
    from collbench.overlaps.streams import Core

    kept: dict[int, Any] = {}

    def call(sent, received, **_how):  # type: ignore[no-untyped-def]
        fresh = sent.clone()  # what one rank receives
        received.copy_(kept.get(received.data_ptr(), fresh))
        if stale == "previous" or received.data_ptr() not in kept:
            kept[received.data_ptr()] = fresh

    monkeypatch.setattr(Core, "group", lambda *_, **__: object())
    monkeypatch.setattr(replay_worker, "call_of", lambda *_, **__: call)
    monkeypatch.setattr("torch.distributed.all_reduce", lambda *_, **__: None)
    rank = replay_worker.Rank(0, 1, Core())
    reduction = "sum" if "reduce" in operation else ""
    unit = Unit(0, (Post(operation, 4096, "float32" if reduction else "uint8", reduction, 0),))
    rank.prepare(Schedule(((0,),), ((unit, unit),), (0.0,), (), ()))
    assert rank.verify() == 0
    rank.run(ReplayLoad(2))
    assert (rank.verify() or 0) > 300


def test_an_arm_whose_ranks_do_not_meet_ends_all() -> None:
    if len(CORES) < 2:
        pytest.skip("one core is one device")
    arms = (ArmChange(), ArmChange(environment={"GLOO_SOCKET_IFNAME": "nosuch0"}))
    with pytest.raises(BackendError):
        replace(SIMULATED, backend="host", devices=f"{CORES[0]},{CORES[-1]}", arms=arms).open()


def test_simulated_devices_have_their_own_links() -> None:
    seconds = []
    for devices in ("0,1", "0,3", "3,0"):
        opened = replace(SIMULATED, fabric="dgx-1v", devices=devices).open()
        (world,) = opened.worlds
        world.prepare(schedule_of(data_parallel(2, (2**26,))))
        seconds.append(world.run(ReplayLoad(1, pauses=False), 1.0)[0].step)
        assert opened.clock() == pytest.approx(seconds[-1])
    slow, fast, turned = seconds
    assert slow == pytest.approx(2 * fast, rel=0.1)  # one NVLink, and two
    assert turned == pytest.approx(fast, rel=0.1)


def test_a_simulated_step_has_its_pauses_and_its_calls() -> None:
    def times(seed: int, load: ReplayLoad) -> list[float]:
        opened = replace(SIMULATED, seed=seed).open()
        opened.worlds[0].prepare(schedule_of(data_parallel()))
        return [rank_times.step for rank_times in opened.worlds[0].run(load, 1.0)]

    step, pauses, calls = (
        times(1, ReplayLoad(1, with_calls, with_pauses))
        for with_calls, with_pauses in ((True, True), (True, False), (False, True))
    )
    assert times(1, ReplayLoad(1)) == step
    assert max(pauses) < max(step) < max(pauses) + max(calls)  # they overlap, except the last call


# The profiler's trace of a GPU.


def event(number: int, microseconds: float, name: str = "ncclDevKernel_AllReduce_Sum", *, gpu: bool = True) -> Any:
    import torch

    autograd: Any = torch.autograd
    device = autograd.DeviceType(1 if gpu else 0)  # equal, not identical: as torch hands it out
    time_range = SimpleNamespace(start=50.0, end=50.0 + microseconds)
    return SimpleNamespace(id=number, name=name, device_type=device, time_range=time_range)


@pytest.mark.parametrize("has_start_kernel", [True, False], ids=["with the common start", "alone"])
def test_kernels_belong_to_calls_in_the_order_of_launch(has_start_kernel: bool) -> None:
    from collbench.jobs.replay.worker import kernel_seconds

    events = [event(40, 30.0), event(20, 10.0), event(30, 20.0, "ncclKernel_Broadcast")]
    events += [event(1, 500.0)] * has_start_kernel
    events += [event(21, 900.0, "nccl:all_reduce"), event(22, 700.0, "void gemm"), event(23, 5.0, gpu=False)]
    assert kernel_seconds(events, 3) == pytest.approx([10e-6, 20e-6, 30e-6])


@pytest.mark.parametrize("calls", [0, 1, 4, 5])
def test_kernels_that_are_not_one_for_each_call_give_no_times(calls: int) -> None:
    from collbench.jobs.replay.worker import kernel_seconds

    assert kernel_seconds([event(1, 1.0), event(2, 2.0), event(3, 3.0)], calls) == []
