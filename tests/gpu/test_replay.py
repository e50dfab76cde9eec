"""A recorded step on real GPUs: every operation arrives, arms differ only in P2P."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from collbench.jobs.job import Call, Job
from collbench.jobs.replay.measure import parse_without, request_of
from collbench.jobs.replay.results import replays_of
from collbench.model.run import Run
from collbench.overlaps.workers import WorkerSession
from tests.gpu.machine import need_gpus
from tests.jobs.replay.made import data_parallel, job_of, pipeline

pytest.importorskip("torch")
need_gpus(2)

EVERY_CALL = (
    Call("allreduce", 2**24, 0, "bfloat16", "sum"),
    Call("allreduce", 2**10, 0, "float32", "max"),
    Call("reduce", 2**20, 0, "float32", "sum", root=1),
    Call("broadcast", 2**20, 0, root=1),
    Call("allgather", 2**22, 0, "bfloat16"),
    Call("reducescatter", 2**22, 0, "bfloat16", "avg"),
    Call("alltoall", 2**20, 0),
    Call("gather", 2**20, 0, root=0),
    Call("scatter", 2**20, 0, root=1),
    Call("sendrecv", 2**20, 0),
)


def replayed(job: Job, **options: object) -> Run:
    values = {"backend": "cuda", "fabric": None, "devices": "0,1", "trials": 3, "seed": 1, **options}
    done = WorkerSession(request_of(job, "job.json", values, ("replay",)), None).finish()
    assert done.run.complete
    return done.run


def test_each_operation_is_verified() -> None:
    job = job_of([(0, 1)], [[(call, False) for call in EVERY_CALL]] * 2, pause=200.0)
    (replay,) = replays_of(replayed(job))
    assert replay.wrong == 0
    for trial in replay.trials:
        assert min(trial.call_seconds) > 0
        assert max(trial.step) >= max(trial.pauses) * 0.9
        # Ten pauses of 200 µs are that long by the sleeping kernel's clock.
        assert max(trial.pauses) == pytest.approx(len(EVERY_CALL) * 200e-6, rel=0.3)


@pytest.fixture(scope="module")
def runs() -> dict[str, Future[Run]]:
    """Return the runs whose times no test reads: all at once, because starting torch takes the time, not measuring."""
    calls = [(call, number > 0) for number, call in enumerate(data_parallel(2, (2**20, 2**18, 2**10)).calls)]
    replays: dict[str, Callable[[], Run]] = {
        "one group": lambda: replayed(job_of([(0, 1)], [calls] * 2)),
        "stages": lambda: replayed(pipeline(2**22)),
        "two arms": lambda: replayed(data_parallel(2, (2**26,)), without=parse_without("p2p")),
    }
    with ThreadPoolExecutor(len(replays)) as threads:
        return {name: threads.submit(replay) for name, replay in replays.items()}


def test_calls_of_one_group_run_as_one(runs: dict[str, Future[Run]]) -> None:
    (replay,) = replays_of(runs["one group"].result())
    assert (replay.wrong, [call.count for call in replay.calls]) == (0, [1])


def test_stages_exchange_in_one_batch(runs: dict[str, Future[Run]]) -> None:
    (replay,) = replays_of(runs["stages"].result())
    assert (replay.wrong, [call.operation for call in replay.calls]) == (0, ["p2p"])


def test_two_arms(runs: dict[str, Future[Run]]) -> None:
    run = runs["two arms"].result()
    assert [replay.without for replay in replays_of(run)] == [(), ("p2p",)]
    assert [replay.wrong for replay in replays_of(run)] == [0, 0]
