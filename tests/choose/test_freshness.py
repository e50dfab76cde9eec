"""When a saved run may choose for this machine."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from collbench.choose.freshness import Here, refusal
from collbench.model.errors import UsageError
from collbench.model.operations import Operation
from collbench.model.run import DataPoint, Device, Machine, Measurement, Run, Sample, Settings
from collbench.model.units import parse_duration

NOW = datetime(2026, 11, 21, 2, 0, tzinfo=UTC)
GPUS = tuple(Device(index, f"GPU-{index}", "H200") for index in range(3))
SAMPLE = Sample((1e-3,), 1, concurrent=False)


def a_run(**changes: Any) -> Run:
    """Return a complete run of yesterday on the three GPUs with these changes."""
    machine = Machine("node1", "Linux", "Xeon", driver="580.159.04", nccl="2.28.9")
    settings = Settings(
        operations=(Operation.ALLREDUCE,),
        sizes=(8, 2**26),
        dtype="float32",
        redop="sum",
        trials=3,
        seed=1,
        command=(),
        environment={},
    )
    fields: dict[str, Any] = {"complete": True, "started": "2026-11-20T02:00:00+00:00", "backend": "cuda"}
    return Run(version="1", machine=machine, devices=GPUS, paths=(), settings=settings, **{**fields, **changes})


def timed(operation: Operation, size_bytes: int, *links: tuple[int, ...]) -> list[Measurement]:
    return [Measurement(DataPoint(operation, link, size_bytes), [SAMPLE]) for link in links]


def judged(run: Run, **changes: Any) -> str:
    """Return why `run` may not choose on the machine that measured it, with these changes; "" if it may."""
    machine = Here("cuda", GPUS, driver="580.159.04", nccl="2.28.9")
    return refusal(run, replace(machine, **changes), NOW, timedelta(days=7))


USED = {
    "yesterday's, on these very GPUs": a_run(),
    "exactly as old as allowed": a_run(started="2026-11-14T02:00:00+00:00"),
    "written in another time zone": a_run(started="2026-11-21T03:59:00+02:00"),
    "written without a time zone": a_run(started="2026-11-20T02:00:00"),
    "interrupted, but every pair has its all-reduce": a_run(
        complete=False, measurements=timed(Operation.ALLREDUCE, 2**26, (0, 1), (2, 0), (1, 2))
    ),
    "interrupted, but every direction was copied": a_run(
        complete=False, measurements=timed(Operation.CE_WRITE, 2**20, (0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1))
    ),
}

REFUSED = {
    "the host backend's": (a_run(backend="host"), "host backend, not cuda"),
    "a simulation": (a_run(backend="sim"), "sim backend, not cuda"),
    "too old": (a_run(started="2026-11-12T02:00:00+00:00"), "it is 9d old, more than --max-age 7d"),
    "a second too old": (a_run(started="2026-11-14T01:59:59+00:00"), "more than --max-age 7d"),
    "from the future": (a_run(started="2026-11-21T02:00:01+00:00"), "is in the future"),
    "without a date": (a_run(started="yesterday"), "'yesterday' cannot be read"),
    "interrupted before anything": (a_run(complete=False), "before any pair was timed"),
    "interrupted with small messages only": (
        a_run(complete=False, measurements=timed(Operation.ALLREDUCE, 8, (0, 1), (0, 2), (1, 2))),
        "before any pair was timed at a size",
    ),
    "interrupted with one pair to go": (
        a_run(complete=False, measurements=timed(Operation.ALLREDUCE, 2**26, (0, 1), (0, 2))),
        "with 1 of its links not yet timed",
    ),
    "interrupted with one direction copied": (
        a_run(complete=False, measurements=timed(Operation.CE_WRITE, 2**26, (0, 1), (0, 2), (1, 2))),
        "with 3 of its links not yet timed",
    ),
    "interrupted with the pairs spread over two sizes": (
        a_run(
            complete=False,
            measurements=timed(Operation.ALLREDUCE, 2**25, (0, 1), (0, 2)) + timed(Operation.ALLREDUCE, 2**26, (1, 2)),
        ),
        "with 1 of its links not yet timed",
    ),
    "interrupted in the middle of a data point": (
        a_run(complete=False, measurements=[Measurement(DataPoint(Operation.ALLREDUCE, (0, 1), 2**26))]),
        "before any pair was timed",
    ),
}


@pytest.mark.parametrize("run", USED.values(), ids=USED)
def test_runs_that_may_choose(run: Run) -> None:
    assert judged(run) == ""


@pytest.mark.parametrize(("run", "reason"), REFUSED.values(), ids=REFUSED)
def test_runs_that_may_not(run: Run, reason: str) -> None:
    assert reason in judged(run)


def test_a_gpu_that_is_gone_or_new_is_named() -> None:
    another_gpu = Device(1, "GPU-9", "H200")
    assert "measured on GPU1 (GPU-1), which this process may not use" in str(
        judged(a_run(), devices=(GPUS[0], another_gpu, GPUS[2]))
    )
    assert "did not measure GPU1 (GPU-9)" in judged(a_run(), devices=(*GPUS, another_gpu))


def test_a_changed_driver_or_nccl_is_named_from_and_to() -> None:
    assert judged(a_run(), driver="590.1") == "its driver was 580.159.04 and is 590.1 now"
    assert judged(a_run(), nccl="") == "its NCCL was 2.28.9 and is absent now"


def test_a_run_may_hold_gpus_that_are_here_and_not_to_be_used_but_must_hold_the_others() -> None:
    assert judged(a_run(), devices=GPUS[:2], besides=GPUS[2:]) == ""
    assert "measured on GPU2 (GPU-2), which this process may not use" in judged(a_run(), devices=GPUS[:2])
    smaller = replace(a_run(), devices=GPUS[1:])
    assert "did not measure GPU0 (GPU-0)" in judged(smaller, devices=GPUS[:2], besides=GPUS[2:])


def test_the_nccl_of_a_container_is_unknown_and_not_compared() -> None:
    assert judged(a_run(), nccl=None) == ""
    assert "its driver was" in judged(a_run(), nccl=None, driver="590.1")


DURATIONS = {"7d": 604_800, "12h": 43_200, "30m": 1_800, "90s": 90, " 1d ": 86_400, "999999d": 86_399_913_600}


@pytest.mark.parametrize(("text", "seconds"), DURATIONS.items())
def test_durations(text: str, seconds: int) -> None:
    assert parse_duration(text).total_seconds() == seconds


@pytest.mark.parametrize("text", ["", "7", "d", "-1d", "1.5h", "7 d", "1w", "7D", "0d", "9999999d", "\u0667d"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="write"):
        parse_duration(text)
