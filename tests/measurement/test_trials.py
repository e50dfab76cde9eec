"""What failed steps cost."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from collbench.measurement.backends.protocol import Step, Timing
from collbench.measurement.plan import Plan
from collbench.measurement.sweep import Watcher, sweep
from collbench.model.errors import BackendError, Cause, Failure, FailureKind, StepFailed
from collbench.model.operations import COLLECTIVES, Operation, Variant, Work
from collbench.model.run import DataPoint, MarkKind, Run, StopReason
from tests.builders import hot, in_words, paths
from tests.measurement.fakes import ASKED, MIB, PATIENT, FakeBackend, empty, plan_for

COPY, SUM = Work(Operation.CE_WRITE), Work(Operation.ALLREDUCE)
SIZES = (8, MIB)


def measure(backend: FakeBackend, run: Run, keep: Callable[[], None] = lambda: None) -> Run:
    watcher = Watcher(lambda _done, _total: None, keep, lambda members: (hot(1, 86),) if 1 in members else ())
    sweep(backend, plan_for(len(backend.devices()), SIZES), run, PATIENT, random.Random(3), watcher)
    return run


def backend_that_hangs(point: DataPoint) -> FakeBackend:
    """Return a machine on which one data point never comes back, wherever it is tried."""

    def on_step(_number: int, step: Step) -> None:
        ours = (step.work.operation, step.size_bytes) == (point.operation, point.size_bytes)
        if ours and point.members in step.groups:
            raise StepFailed("hang: no answer within 5 s")

    return FakeBackend(4, on_step=on_step)


def test_a_step_that_fails_costs_its_own_point_and_no_other() -> None:
    point = DataPoint(Operation.CE_WRITE, (1, 3), MIB)
    run = measure(backend_that_hangs(point), empty(4))
    failed = [measurement for measurement in run.measurements if measurement.stop is StopReason.FAILED]
    assert [measurement.point for measurement in failed] == [point]
    assert failed[0].failure == in_words("hang: no answer within 5 s", FailureKind.ERROR)
    assert len(run.measurements) == len(list(plan_for(4, SIZES).points()))
    assert all(len(measurement.samples) >= 3 for measurement in run.measurements if measurement is not failed[0])
    assert run.complete


def test_a_link_that_hangs_while_it_is_warmed_is_not_waited_for_again_and_the_others_go_on() -> None:
    """A watchdog's time each: among other pairs, and alone. Other sizes of the same link have a trial of their own."""
    hung = Failure(FailureKind.HANG, Cause.NO_ANSWER, seconds=5.0)
    point, waits = DataPoint(Operation.CE_WRITE, (1, 3), MIB), list[Step]()

    def on_step(_number: int, step: Step) -> None:
        if step.work == COPY and step.size_bytes == MIB and (1, 3) in step.groups:
            waits.append(step)
            raise StepFailed(failure=hung)

    run = measure(FakeBackend(4, on_step=on_step), empty(4))
    assert [step.groups for step in waits] in ([((1, 3),)], [waits[0].groups, ((1, 3),)])
    failed = [measurement for measurement in run.measurements if measurement.stop is StopReason.FAILED]
    assert [(measurement.point, measurement.failure) for measurement in failed] == [(point, hung)]
    assert len(run.measurements) == len(list(plan_for(4, SIZES).points()))
    assert all(len(measurement.samples) >= 3 for measurement in run.measurements if measurement is not failed[0])
    assert run.complete


def test_where_every_copy_hangs_few_of_them_are_waited_for() -> None:
    waits = list[Step]()

    def on_step(_number: int, step: Step) -> None:
        if step.work == COPY:
            waits.append(step)
            raise StepFailed(failure=Failure(FailureKind.HANG, Cause.NO_ANSWER, seconds=5.0))

    run = measure(FakeBackend(8, on_step=on_step), empty(8))
    assert len(waits) <= 16, "of 112 data points"
    assert all(one.samples for one in run.measurements if one.point.operation is Operation.ALLREDUCE)
    assert all(one.failure for one in run.measurements if one.point.operation is Operation.CE_WRITE)


def test_when_everything_fails_it_stops_soon_and_says_why() -> None:
    def on_step(_number: int, step: Step) -> None:
        raise StepFailed("the measuring process was killed by signal 9")

    run = empty(4)
    with pytest.raises(BackendError, match=r"4 data points in a row failed.*signal 9"):
        measure(FakeBackend(4, on_step=on_step), run)
    assert not run.complete
    assert {measurement.stop for measurement in run.measurements} == {StopReason.FAILED}


def test_collectives_that_all_fail_cost_no_copy() -> None:
    def on_step(_number: int, step: Step) -> None:
        if step.work.operation.is_collective:
            raise StepFailed("NCCL did not start")

    run = measure(FakeBackend(4, on_step=on_step), empty(4))
    failed = {measurement.point for measurement in run.measurements if measurement.stop is StopReason.FAILED}
    assert failed == {point for point in plan_for(4, SIZES).points() if point.operation.is_collective}
    first_failure = in_words("NCCL did not start", FailureKind.ERROR)
    given_up = Failure(FailureKind.UNTRIED, Cause.IN_A_ROW, count=4, because=first_failure)
    assert {measurement.failure for measurement in run.measurements if measurement.point in failed} == {
        first_failure,
        given_up,
    }
    assert all(len(measurement.samples) >= 3 for measurement in run.measurements if measurement.point not in failed)
    assert run.complete


def test_samples_carry_the_flags_of_their_devices() -> None:
    for measurement in measure(FakeBackend(2), empty(2)).measurements:
        assert {sample.flags for sample in measurement.samples} == {(hot(1, 86),)}


def test_a_batch_that_beats_its_limit_is_kept_and_marked_at_once() -> None:
    """700 GB/s on one pair, where the links between two carry 450."""
    run = replace(empty(4), paths=tuple(replace(path, nvlinks=18, theory_gbs=450.0) for path in paths(4)))
    marks: list[set[tuple[int, ...]]] = []

    def keep() -> None:
        marks.append({one.point.members for one in run.measurements if any(sample.marks for sample in one.samples)})

    measure(FakeBackend(4, rates={frozenset((1, 2)): 700.0}), run, keep)
    assert any(marks), "before the sweep ends"
    marked = {
        measurement.point.members
        for measurement in run.measurements
        if any(sample.marks for sample in measurement.samples)
    }
    assert marked == {(1, 2), (2, 1)}
    assert all(len(measurement.samples) >= PATIENT.screening for measurement in run.measurements)
    fast = next(one for one in run.measurements if one.point == DataPoint(Operation.CE_WRITE, (1, 2), MIB))
    (flag,) = fast.samples[0].marks
    assert (flag.kind, flag.devices, flag.limit_gbs) == (MarkKind.IMPOSSIBLE, (1, 2), 450.0)
    assert flag.rate_gbs == pytest.approx(700)


@pytest.mark.parametrize(("title", "jitter"), [("stands still", 0.0), ("runs back", -1.0)])
def test_a_clock_without_time_fails_the_point(title: str, jitter: float) -> None:
    def on_step(_number: int, step: Step) -> None:
        backend.jitter = jitter if (0, 1) in step.groups and step.work.operation is Operation.ALLREDUCE else 1.0

    class Clockless(FakeBackend):
        jitter = 1.0

        def time(self, step: Step) -> Timing:
            timing = super().time(step)
            return Timing(tuple(tuple(s * self.jitter for s in batches) for batches in timing.seconds))

    backend = Clockless(3, on_step=on_step)
    run = measure(backend, empty(3))
    failed = {
        (measurement.point.operation, measurement.point.members)
        for measurement in run.measurements
        if measurement.failure
    }
    assert failed == {(Operation.ALLREDUCE, (0, 1))}, title


def test_the_seconds_in_timed_regions_are_those_of_the_trials() -> None:
    run = measure(FakeBackend(2, gbs=100.0), empty(2))  # two devices: no two groups at once
    batches = [
        (s.iterations, seconds)
        for measurement in run.measurements
        for s in measurement.samples
        for seconds in s.seconds
    ]
    assert run.phases["timed"] == pytest.approx(sum(count * seconds for count, seconds in batches), rel=1e-4)
    assert {"warm-up", "interference check", "trials"} <= set(run.phases)


def test_communicators_are_waited_for_before_the_first_step() -> None:
    readied: list[int] = []
    backend = FakeBackend(2, on_step=lambda _number, _step: readied.append(backend.readied))
    run = measure(backend, empty(2))
    assert set(readied) == {1}
    assert "NCCL start" in run.phases


def test_unverified_results_are_not_called_right() -> None:
    in_place: dict[Work, tuple[tuple[int, ...], ...]] = {
        Work(operation, Variant.IN_PLACE): ((0, 1),) for operation in COLLECTIVES
    }
    plan = Plan(2, in_place, dict.fromkeys(in_place, (MIB,)), PATIENT.batch_bytes, ASKED)
    run = empty(2)
    sweep(FakeBackend(2), plan, run, PATIENT, random.Random(1), Watcher(lambda _d, _t: None, lambda: None))
    unchecked = {measurement.point.operation for measurement in run.measurements if measurement.wrong is None}
    assert unchecked == {
        Operation.ALLTOALL,
        Operation.ALLTOALLV,
        Operation.SENDRECV,
    }  # as nccl-tests prints N/A [src/alltoall.cu:44]
