"""Single launches in a run: what is timed and saved, and how failures are recorded."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from collbench.api import Notices
from collbench.api.measuring import measure
from collbench.judge.diagnose import Diagnosis
from collbench.judge.tails import tails
from collbench.measurement.backends.protocol import Step, Timing, time_step
from collbench.measurement.backends.sim import SimBackend
from collbench.measurement.plan import Plan, Request, make_plan
from collbench.measurement.sweep import Watcher, latency_of, time_singles
from collbench.model.errors import Cause, Failure, FailureKind, StepFailed, UsageError
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import CommandKind, DataPoint, Device, RankLaunches, Run, StopReason
from collbench.report.frame import run_page as page
from collbench.runfile import run_file
from collbench.sim import fabrics
from tests.measurement.fakes import ASKED
from tests.report.pages import text as text_of

ALLREDUCE = Work(Operation.ALLREDUCE)


def request(**changes: Any) -> Request:
    default = Request(
        backend="sim",
        fabric="hgx-h200",
        kind=CommandKind.COLLECTIVE,
        collectives=(ALLREDUCE,),
        sizes=(8, 2**20),
        latency=100,
        seed=3,
    )
    return dataclasses.replace(default, **changes)


def measured_run(path: Path | None, request_to_run: Request) -> Run:
    return measure(request_to_run, path, Notices(say=pytest.fail), "measuring").run


def test_every_data_point_gets_its_launches_and_the_file_keeps_them(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    run = measured_run(path, request())

    assert [(latency.point.size_bytes, latency.count, len(latency.ranks)) for latency in run.latencies] == [
        (8, 100, 8),
        (2**20, 100, 8),
    ]
    assert run.settings.latency == 100
    assert "single launches" in run.phases
    assert run_file.load(path) == run


def test_pairs_are_timed_one_after_another_and_split_sets_together() -> None:
    pairs = measured_run(None, request(pairs=True, sizes=(8,), latency=10))
    split = measured_run(None, request(split=2, sizes=(8,), latency=10))

    assert {latency.concurrent for latency in pairs.latencies} == {False}
    assert len(pairs.latencies) == 28
    assert [(latency.point.members, latency.concurrent) for latency in split.latencies] == [
        ((0, 1, 2, 3), True),
        ((4, 5, 6, 7), True),
    ]


def test_single_launches_are_timed_on_request_and_never_of_copies() -> None:
    assert measured_run(None, request(latency=0)).latencies == []
    copies_and_collectives = request(copies=(Variant.PLAIN,), pairs=True, sizes=(2**20,), latency=6)
    assert {latency.point.operation for latency in measured_run(None, copies_and_collectives).latencies} == {
        Operation.ALLREDUCE
    }


def test_the_host_backend_refuses_single_launches() -> None:
    backend = SimBackend(fabrics.load("hgx-h200"), 1)
    with pytest.raises(UsageError, match="leave out --latency"):
        make_plan(request(backend="host"), backend)


class Counting:
    """A simulated machine that counts steps with single launches, and fails the one at `fails_at`."""

    def __init__(self, fails_at: int = 0) -> None:
        self._backend = SimBackend(fabrics.load("hgx-h200"), 1)
        self._fails_at = fails_at
        self.steps: list[Step] = []

    def time_steps(self, steps: Iterable[Step]) -> Iterator[tuple[Step, Timing | StepFailed]]:
        for step in steps:
            self.steps.append(step)
            if len(self.steps) == self._fails_at:
                yield step, StepFailed(failure=Failure(FailureKind.HANG, Cause.NO_ANSWER))
            else:
                yield step, time_step(self._backend, step)


def singles_of(run: Run, backend: Counting) -> int:
    """Time the run's single launches; return how often it might have been saved."""
    kept: list[int] = []
    work = Work(Operation.ALLREDUCE)
    plan = Plan(8, {work: (tuple(range(8)),)}, {work: (8, 2**20)}, 2**27, dataclasses.replace(ASKED, latency=100))
    time_singles(backend, plan, run, random.Random(1), Watcher(lambda _d, _t: None, lambda: kept.append(1)))  # type: ignore[arg-type]
    return len(kept)


def test_a_failed_data_point_ends_the_single_launches() -> None:
    run = measured_run(None, request(latency=0))
    backend = Counting(fails_at=1)
    kept = singles_of(run, backend)
    failed = [measurement for measurement in run.measurements if measurement.failure]

    assert len(backend.steps) == len(failed) == 1
    assert kept == 1
    assert failed[0].stop is StopReason.FAILED
    assert run.latencies == []


def test_times_count_from_the_first_arrival_or_between_hosts_from_each_ranks_own() -> None:
    point = DataPoint(Operation.ALLREDUCE, (0, 1), 8)
    ranks = (
        RankLaunches((10**15, 2 * 10**15), (10**15 + 9, 2 * 10**15 + 8)),
        RankLaunches((10**15 + 5, 2 * 10**15 + 1), (10**15 + 9, 2 * 10**15 + 8)),
    )
    near = latency_of(point, ranks, [Device(0, "a", ""), Device(1, "b", "")])
    far = latency_of(point, ranks, [Device(0, "a", "", host="one"), Device(0, "b", "", host="two")])

    assert near.common_clock
    assert [(rank.arrived, rank.left) for rank in near.ranks] == [((0, 0), (9, 8)), ((5, 1), (9, 8))]
    assert not far.common_clock
    assert [(rank.arrived, rank.left) for rank in far.ranks] == [((0, 0), (9, 8)), ((0, 0), (4, 7))]


def test_a_simulated_straggler_is_named_on_the_page() -> None:
    fabric = fabrics.load("hgx-h200")
    late = fabrics.Fault(fabrics.FaultKind.LATE_GPU, (2,), us=50)
    backend = SimBackend(dataclasses.replace(fabric, faults=(late,)), 1)
    run = measured_run(None, request(latency=0))
    step = Step(Work(Operation.ALLREDUCE), (tuple(range(8)),), 8, 4, 1, singles=500)
    point = DataPoint(Operation.ALLREDUCE, tuple(range(8)), 8)
    run.latencies.append(latency_of(point, time_step(backend, step).singles[0], run.devices))
    (tail,) = tails(run)

    assert [rank.member for rank in tail.late] == [2]
    shown = text_of(page(Diagnosis(run)))
    assert "GPU2 arrives 50.00 µs later than the others" in " ".join(shown.split())
    assert "500 single launches" in shown
