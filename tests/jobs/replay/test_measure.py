"""The trials of a replayed step: what a trial holds, arms that take turns, what ends it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from collbench.ablations.ablation import ArmChange
from collbench.jobs.replay.measure import ReplayOpened, ReplayRequest, SimReplay, trial_of
from collbench.jobs.replay.results import Replay, ReplayTrial, replays_of
from collbench.jobs.replay.schedule import ReplayLoad, ReplayTimes, Schedule, schedule_of
from collbench.jobs.replay.view import ratio, summarize
from collbench.judge.outcome import outcome
from collbench.model.errors import BackendError, DataCorruption, ExitStatus, FailureKind, MachineError
from collbench.model.run import Device, Machine, Run
from collbench.runfile import run_file
from tests.jobs.replay.made import data_parallel, job_of, pipeline

CALL, PAUSE = 1e-3, 2e-3


class FakeWorld(SimReplay):
    """Two ranks with known rates; rank 1 waits three times as long in each call. Every `log` entry is an arm's load."""

    def __init__(self, log: list[tuple[FakeWorld, ReplayLoad]], call: float = CALL) -> None:
        self.log, self.call, self.wrong = log, call, 0
        self.wrong_at_end: int | None = None
        self.fails_after: int | None = None
        self.room = True
        self.schedule: Schedule | None = None
        self.kernel: float | None = None  # a call's seconds in a trace, whose step is of no use
        self.untraceable: set[int] = set()  # ranks whose traces cannot be split into calls

    def prepare(self, schedule: Schedule) -> None:
        if not self.room:
            raise MachineError("rank 0 cannot prepare the step: out of memory")
        self.schedule = schedule

    def verify(self) -> int | None:
        return self.wrong if self.wrong_at_end is None or not self.log else self.wrong_at_end

    def run(self, load: ReplayLoad, expected_s: float) -> tuple[ReplayTimes, ...]:
        assert expected_s > 0
        self.log.append((self, load))
        if self.fails_after is not None and len(self.log) > self.fails_after:
            raise BackendError("the worker of rank 1 died (killed by signal 9)")
        assert self.schedule is not None
        times = []
        if load.traced:
            assert self.kernel is not None
            for rank, units in enumerate(self.schedule.ranks):
                call_seconds = () if rank in self.untraceable else tuple(self.kernel * (1 + 2 * rank) for _ in units)
                times.append(ReplayTimes(0.0, call_seconds))
            return tuple(times)
        for rank, units in enumerate(self.schedule.ranks):
            call_seconds = tuple(self.call * (1 + 2 * rank) for _ in units)
            step_seconds = sum(call_seconds) * load.calls + PAUSE * load.pauses
            times.append(ReplayTimes(step_seconds, call_seconds if load.calls else ()))
        return tuple(times)


def prepared(
    fakes: Sequence[FakeWorld], trials: int = 4, *, pause: float | None = 500.0
) -> tuple[ReplayRequest, ReplayOpened, Run]:
    step = [(call, False) for call in data_parallel(2, (4096, 4096, 64)).calls] * 2
    job = job_of([(0, 1)], [step] * 2, pause=pause)
    request = ReplayRequest(
        backend="cuda",
        job="job.json",
        schedule=schedule_of(job),
        arms=(ArmChange(), ArmChange(("p2p",)))[: len(fakes)],
        trials=trials,
        seed=1,
        command=("replay", "job.json"),
    )
    devices = tuple(Device(index, f"GPU-{index}", "H200") for index in range(2))
    opened = ReplayOpened("cuda", tuple(fakes), devices, 0.05, machine=Machine("node", "Linux", "CPU"))
    return request, opened, request.begun_run(opened)


def measured_run(fakes: Sequence[FakeWorld], trials: int = 4) -> tuple[Run, list[int]]:
    request, opened, run = prepared(fakes, trials)
    saves: list[int] = []
    request.measure(opened, run, lambda: saves.append(len(replays_of(run))), lambda _done, _total: None)
    return run, saves


def test_a_trial_has_what_the_rank_that_waited_least_saw() -> None:
    run, _ = measured_run([FakeWorld([])])
    (result,) = replays_of(run)
    summary = summarize(result)
    calls = sum(call.count for call in result.calls)
    assert summary.communication.value == pytest.approx(calls * CALL)
    assert summary.step.value == pytest.approx(3 * calls * CALL + PAUSE)
    assert summary.exposed.value == pytest.approx(3 * calls * CALL)
    assert [figure.value for figure in summary.by_kind] == pytest.approx([CALL] * len(result.calls))
    assert (run.complete, result.wrong, result.failure) == (True, 0, None)
    assert outcome(run).status is ExitStatus.DONE
    assert replays_of(run_file.again(run)) == replays_of(run)


@pytest.mark.parametrize("untraceable", [set(), {1}, {0, 1}], ids=["all", "rank 0 alone", "none"])
def test_calls_are_as_long_as_their_kernels_where_the_traces_of_all_ranks_have_them(untraceable: set[int]) -> None:
    fake = FakeWorld([])
    fake.kernel, fake.untraceable = 0.8 * CALL, untraceable
    request, opened, run = prepared([fake])
    request.measure(replace(opened, traces=True), run, lambda: None, lambda _done, _total: None)
    (result,) = replays_of(run)
    summary, expected = summarize(result), CALL if untraceable else 0.8 * CALL
    calls = sum(call.count for call in result.calls)
    assert summary.communication.value == pytest.approx(calls * expected)
    assert [figure.value for figure in summary.by_kind] == pytest.approx([expected] * len(result.calls))
    assert summary.step.value == pytest.approx(3 * calls * CALL + PAUSE)  # what is traced is slower
    assert {trial.kernels for trial in result.trials} == {not untraceable}
    assert all(load.steps <= 5 for _, load in fake.log if load.traced)
    assert replays_of(run_file.again(run)) == replays_of(run)


def test_arms_take_turns_and_their_ratio_is_that_of_trials() -> None:
    log: list[tuple[FakeWorld, ReplayLoad]] = []
    fakes = [FakeWorld(log), FakeWorld(log, 3 * CALL)]
    run, saves = measured_run(fakes, trials=6)
    plain, without = replays_of(run)
    assert (plain.without, without.without) == ((), ("p2p",))
    time_ratio = ratio(plain, without)
    assert time_ratio is not None
    assert time_ratio.value == pytest.approx(3.0)
    turns = [fakes.index(fake) for fake, _ in log[2:]][::2]  # after a first step of each, two loads a trial
    assert sorted(turns[:2]) == sorted(turns[2:4]) == [0, 1]
    assert len(saves) == 7  # after each trial, and at last


def test_without_pauses_only_steps_with_calls_run() -> None:
    log: list[tuple[FakeWorld, ReplayLoad]] = []
    request, opened, run = prepared([FakeWorld(log)], pause=None)
    request.measure(opened, run, lambda: None, lambda _done, _total: None)
    assert all(load.calls for _, load in log)
    assert {trial.pauses for trial in replays_of(run)[0].trials} == {(0.0, 0.0)}
    assert replays_of(run_file.again(run)) == replays_of(run)


def test_a_short_step_is_repeated_and_a_long_one_is_not() -> None:
    log: list[tuple[FakeWorld, ReplayLoad]] = []
    measured_run([FakeWorld(log, CALL / 10)])
    assert 2 <= log[-1][1].steps <= 20
    log.clear()
    measured_run([FakeWorld(log, 1.0)])
    assert log[-1][1].steps == 1


def test_a_worker_that_dies_leaves_the_trials_before_it() -> None:
    log: list[tuple[FakeWorld, ReplayLoad]] = []
    fake = FakeWorld(log)
    fake.fails_after = 6
    request, opened, run = prepared([fake])
    with pytest.raises(BackendError):
        request.measure(opened, run, lambda: None, lambda _done, _total: None)
    (result,) = replays_of(run)
    assert len(result.trials) == 2
    assert result.failure is not None
    assert result.failure.kind is FailureKind.ERROR
    assert not run.complete
    assert outcome(run).status is not ExitStatus.DONE


def test_an_arm_that_does_not_fit_costs_the_run() -> None:
    fake = FakeWorld([])
    fake.room = False
    request, opened, run = prepared([FakeWorld([]), fake])
    with pytest.raises(MachineError, match="out of memory"):
        request.measure(opened, run, lambda: None, lambda _done, _total: None)
    assert [result.without for result in replays_of(run)] == [("p2p",)]  # the other was not tried


def test_wrong_data_ends_it_and_stays() -> None:
    fake = FakeWorld([])
    fake.wrong = 3
    request, opened, run = prepared([fake])
    with pytest.raises(DataCorruption, match="3 elements of the replayed step"):
        request.measure(opened, run, lambda: None, lambda _done, _total: None)
    assert replays_of(run)[0].wrong == 3
    assert outcome(run).status is ExitStatus.UNTRUSTED


def test_data_that_is_wrong_after_the_trials_ends_it_too() -> None:
    fake = FakeWorld([])
    fake.wrong_at_end = 2
    request, opened, run = prepared([fake])
    with pytest.raises(DataCorruption, match="2 elements of the replayed step"):
        request.measure(opened, run, lambda: None, lambda _done, _total: None)
    (result,) = replays_of(run)
    assert (run.complete, result.wrong, len(result.trials)) == (False, 2, request.trials)
    assert outcome(run).status is ExitStatus.UNTRUSTED


def test_ctrl_c_before_the_first_trial_leaves_nothing() -> None:
    class Interrupting(FakeWorld):
        def verify(self) -> int | None:
            raise KeyboardInterrupt

    request, opened, run = prepared([Interrupting([])])
    with pytest.raises(KeyboardInterrupt):
        request.measure(opened, run, lambda: None, lambda _done, _total: None)
    assert replays_of(run) == []


def test_communication_is_a_ranks_own_and_kinds_are_all() -> None:
    """Rank 0 and 1 exchange; what a rank does not take part in is none of its communication."""
    first_calls, second_calls = pipeline().calls[:2], pipeline().calls[2:]
    first_stage = [(replace(call, group=0), bool(n)) for n, call in enumerate(first_calls)]
    second_stage = [(replace(call, group=0), bool(n)) for n, call in enumerate(second_calls)]
    other_pipeline = [
        [(replace(call, group=1), same_group) for call, same_group in stage] for stage in (first_stage, second_stage)
    ]
    schedule = schedule_of(
        job_of([(0, 1), (2, 3)], [first_stage, second_stage, other_pipeline[0] * 2, other_pipeline[1] * 2])
    )
    step = [
        ReplayTimes(1.0, (seconds,) * len(units)) for seconds, units in zip((2, 3, 5, 4), schedule.ranks, strict=True)
    ]
    trial = trial_of(schedule, step, None, 1)
    assert trial.communication == (2, 2, 8, 8)
    assert trial.call_seconds[0] == pytest.approx(10 / 3)
    assert schedule.kinds[0].count == 3


def test_intervals_need_three_trials() -> None:
    run, _ = measured_run([FakeWorld([])], trials=2)
    assert summarize(replays_of(run)[0]).step.interval is None
    assert isinstance(replays_of(run)[0], Replay)


def test_what_is_hidden_has_an_interval_too() -> None:
    """Noise makes a step shorter than its pauses."""
    trials = [ReplayTrial((step,), (PAUSE,), (CALL,), (CALL,), 1) for step in (0.9 * PAUSE, PAUSE, 1.1 * PAUSE)]
    run, _ = measured_run([FakeWorld([])])
    for some_trials in ([*trials], [*trials, *trials]):
        exposed = summarize(replace(replays_of(run)[0], trials=some_trials, calls=replays_of(run)[0].calls[:1])).exposed
        assert exposed.value == pytest.approx(0.0, abs=1e-9)
        assert exposed.interval is not None
        assert exposed.interval[0] < 0 < exposed.interval[1]
