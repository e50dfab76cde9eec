"""The trials of a replayed step: what a trial holds, arms that take turns, what ends it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from collbench.analysis.job_schedule import Schedule, schedule_of
from collbench.analysis.outcome import outcome
from collbench.analysis.replay import ratio, summarize
from collbench.backends.replay_protocol import ReplayArm, ReplayLoad, ReplayOpened, ReplayTimes
from collbench.bench import replay
from collbench.bench.replay import ReplayRequest, trial_of
from collbench.model.errors import BackendError, DataCorruption, ExitStatus, MachineError
from collbench.model.failures import FailureKind
from collbench.model.operations import Registration
from collbench.model.run import Device, Machine, Pauses, Replay, ReplayTrial, Run
from collbench.runfile import run_file
from tests.replay_jobs import data_parallel, job_of, pipeline

CALL, PAUSE = 1e-3, 2e-3


class Fake:
    """Two ranks with known rates; rank 1 waits three times as long in each call. Every `log` entry is an arm's load."""

    def __init__(self, log: list[tuple[Fake, ReplayLoad]], call: float = CALL) -> None:
        self.log, self.call, self.wrong = log, call, 0
        self.fails_after: int | None = None
        self.room = True
        self.schedule: Schedule | None = None
        self.kernel: float | None = None  # a call's seconds in a trace, whose step is of no use
        self.untraceable: set[int] = set()  # ranks whose traces do not tell calls apart

    def prepare(self, schedule: Schedule, pauses: Pauses, registration: Registration) -> None:
        del pauses, registration
        if not self.room:
            raise MachineError("rank 0 cannot prepare the step: out of memory")
        self.schedule = schedule

    def verify(self) -> int | None:
        return self.wrong

    def run(self, load: ReplayLoad, expected_s: float) -> tuple[ReplayTimes, ...]:
        assert expected_s > 0
        self.log.append((self, load))
        if self.fails_after is not None and len(self.log) > self.fails_after:
            raise BackendError("the worker of rank 1 died (killed by signal 9)")
        assert self.schedule is not None
        found = []
        if load.traced:
            assert self.kernel is not None
            for rank, units in enumerate(self.schedule.ranks):
                own = () if rank in self.untraceable else tuple(self.kernel * (1 + 2 * rank) for _ in units)
                found.append(ReplayTimes(0.0, own))
            return tuple(found)
        for rank, units in enumerate(self.schedule.ranks):
            own = tuple(self.call * (1 + 2 * rank) for _ in units)
            whole = sum(own) * load.calls + PAUSE * load.pauses
            found.append(ReplayTimes(whole, own if load.calls else ()))
        return tuple(found)


def made(
    fakes: Sequence[Fake], trials: int = 4, *, pause: float | None = 500.0
) -> tuple[ReplayRequest, ReplayOpened, Run]:
    step = [(call, False) for call in data_parallel(2, (4096, 4096, 64)).calls] * 2
    job = job_of([(0, 1)], [step] * 2, pause=pause)
    request = ReplayRequest(
        backend="cuda",
        job="job.json",
        phase=0,
        recorded_ranks=2,
        schedule=schedule_of(job),
        arms=(ReplayArm(), ReplayArm(("p2p",)))[: len(fakes)],
        pauses=Pauses.NONE,
        registration=Registration.NONE,
        trials=trials,
        seed=1,
        command=("replay", "job.json"),
    )
    devices = tuple(Device(index, f"GPU-{index}", "H200") for index in range(2))
    opened = ReplayOpened("cuda", tuple(fakes), devices, 0.05, machine=Machine("node", "Linux", "CPU"))
    return request, opened, replay.begun_run(request, opened)


def measured(fakes: Sequence[Fake], trials: int = 4) -> tuple[Run, list[int]]:
    request, opened, run = made(fakes, trials)
    saves: list[int] = []
    replay.measure(request, opened, run, lambda: saves.append(len(run.replays)), lambda _done, _total: None)
    return run, saves


def test_a_trial_has_what_the_rank_that_waited_least_saw() -> None:
    run, _ = measured([Fake([])])
    (found,) = run.replays
    summary = summarize(found)
    calls = sum(call.count for call in found.calls)
    assert summary.communication.value == pytest.approx(calls * CALL)
    assert summary.step.value == pytest.approx(3 * calls * CALL + PAUSE)
    assert summary.exposed.value == pytest.approx(3 * calls * CALL)
    assert summary.alone.value == pytest.approx(3 * calls * CALL)
    assert [figure.value for figure in summary.by_kind] == pytest.approx([CALL] * len(found.calls))
    assert (run.complete, found.wrong, found.failure) == (True, 0, None)
    assert outcome(run).status is ExitStatus.DONE
    assert run_file.again(run).replays == run.replays


@pytest.mark.parametrize("untraceable", [set(), {1}, {0, 1}], ids=["all", "rank 0 alone", "none"])
def test_calls_are_as_long_as_their_kernels_where_the_traces_of_all_ranks_have_them(untraceable: set[int]) -> None:
    fake = Fake([])
    fake.kernel, fake.untraceable = 0.8 * CALL, untraceable
    request, opened, run = made([fake])
    replay.measure(request, replace(opened, traces=True), run, lambda: None, lambda _done, _total: None)
    (found,) = run.replays
    summary, expected = summarize(found), CALL if untraceable else 0.8 * CALL
    calls = sum(call.count for call in found.calls)
    assert summary.communication.value == pytest.approx(calls * expected)
    assert [figure.value for figure in summary.by_kind] == pytest.approx([expected] * len(found.calls))
    assert summary.step.value == pytest.approx(3 * calls * CALL + PAUSE)  # what is traced is slower
    assert summary.alone.value == pytest.approx(3 * calls * CALL)
    assert {trial.kernels for trial in found.trials} == {not untraceable}
    assert all(load.steps <= 5 for _, load in fake.log if load.traced)
    assert run_file.again(run).replays == run.replays


def test_arms_take_turns_and_their_ratio_is_that_of_trials() -> None:
    log: list[tuple[Fake, ReplayLoad]] = []
    fakes = [Fake(log), Fake(log, 3 * CALL)]
    run, saves = measured(fakes, trials=6)
    plain, without = run.replays
    assert (plain.without, without.without) == ((), ("p2p",))
    found = ratio(plain, without)
    assert found is not None
    assert found.communication.value == pytest.approx(3.0)
    turns = [fakes.index(one) for one, _ in log[2:]][::3]  # after a first step of each, three loads a trial
    assert sorted(turns[:2]) == sorted(turns[2:4]) == [0, 1]
    assert len(saves) == 7  # after each trial, and at last


def test_without_pauses_there_is_nothing_to_run_alone() -> None:
    log: list[tuple[Fake, ReplayLoad]] = []
    request, opened, run = made([Fake(log)], pause=None)
    replay.measure(request, opened, run, lambda: None, lambda _done, _total: None)
    assert all(load.calls for _, load in log)
    assert {trial.pauses for trial in run.replays[0].trials} == {(0.0, 0.0)}
    assert run_file.again(run).replays == run.replays


def test_a_short_step_is_repeated_and_a_long_one_is_not() -> None:
    log: list[tuple[Fake, ReplayLoad]] = []
    measured([Fake(log, CALL / 10)])
    assert 2 <= log[-1][1].steps <= 20
    log.clear()
    measured([Fake(log, 1.0)])
    assert log[-1][1].steps == 1


def test_a_worker_that_dies_leaves_the_trials_before_it() -> None:
    log: list[tuple[Fake, ReplayLoad]] = []
    fake = Fake(log)
    fake.fails_after = 8
    request, opened, run = made([fake])
    with pytest.raises(BackendError):
        replay.measure(request, opened, run, lambda: None, lambda _done, _total: None)
    (found,) = run.replays
    assert len(found.trials) == 2
    assert found.failure is not None
    assert found.failure.kind is FailureKind.ERROR
    assert not run.complete
    assert outcome(run).status is not ExitStatus.DONE


def test_an_arm_that_does_not_fit_costs_the_run() -> None:
    fake = Fake([])
    fake.room = False
    request, opened, run = made([Fake([]), fake])
    with pytest.raises(MachineError, match="out of memory"):
        replay.measure(request, opened, run, lambda: None, lambda _done, _total: None)
    assert [one.without for one in run.replays] == [("p2p",)]  # the other was not tried


def test_wrong_data_ends_it_and_stays() -> None:
    fake = Fake([])
    fake.wrong = 3
    request, opened, run = made([fake])
    with pytest.raises(DataCorruption, match="3 elements of the replayed step"):
        replay.measure(request, opened, run, lambda: None, lambda _done, _total: None)
    assert run.replays[0].wrong == 3
    assert outcome(run).status is ExitStatus.UNTRUSTED


def test_ctrl_c_before_the_first_trial_leaves_nothing() -> None:
    class Interrupting(Fake):
        def verify(self) -> int | None:
            raise KeyboardInterrupt

    request, opened, run = made([Interrupting([])])
    with pytest.raises(KeyboardInterrupt):
        replay.measure(request, opened, run, lambda: None, lambda _done, _total: None)
    assert run.replays == []


def test_communication_is_a_ranks_own_and_kinds_are_all() -> None:
    """Rank 0 and 1 exchange; what a rank does not take part in is none of its communication."""
    a, b = pipeline().calls[:2], pipeline().calls[2:]
    first = [(replace(call, group=0), bool(n)) for n, call in enumerate(a)]
    second = [(replace(call, group=0), bool(n)) for n, call in enumerate(b)]
    other = [[(replace(call, group=1), on) for call, on in one] for one in (first, second)]
    schedule = schedule_of(job_of([(0, 1), (2, 3)], [first, second, other[0] * 2, other[1] * 2]))
    step = [
        ReplayTimes(1.0, (seconds,) * len(units)) for seconds, units in zip((2, 3, 5, 4), schedule.ranks, strict=True)
    ]
    trial = trial_of(schedule, step, None, step, 1)
    assert trial.communication == (2, 2, 8, 8)
    assert trial.call_seconds[0] == pytest.approx(10 / 3)
    assert schedule.kinds[0].count == 3


def test_intervals_need_three_trials() -> None:
    run, _ = measured([Fake([])], trials=2)
    assert summarize(run.replays[0]).step.interval is None
    assert isinstance(run.replays[0], Replay)


def test_what_is_hidden_has_an_interval_too() -> None:
    """Noise makes a step shorter than its pauses alone."""
    trials = [
        ReplayTrial((step,), (PAUSE,), (CALL,), (CALL,), (CALL,), 1) for step in (0.9 * PAUSE, PAUSE, 1.1 * PAUSE)
    ]
    run, _ = measured([Fake([])])
    for found in ([*trials], [*trials, *trials]):
        exposed = summarize(replace(run.replays[0], trials=found, calls=run.replays[0].calls[:1])).exposed
        assert exposed.value == pytest.approx(0.0, abs=1e-9)
        assert exposed.interval is not None
        assert exposed.interval[0] < 0 < exposed.interval[1]


def independent(fakes: Sequence[Fake], trials: int = 5) -> tuple[ReplayRequest, ReplayOpened, Run]:
    """Return a request on sets of four devices, of which each can do without the others."""
    request, opened, _ = made([fakes[0]], trials)
    arms = tuple(ReplayArm(places=places) for places in ((0, 1), (2, 3), (3, 0))[: len(fakes)])
    request = replace(request, arms=arms, independent=True)
    devices = tuple(Device(index, f"GPU-{index}", "H200") for index in range(4))
    opened = replace(opened, worlds=tuple(fakes), devices=devices)
    return request, opened, replay.begun_run(request, opened)


@pytest.mark.parametrize("after", [0, 1, 7, 20])
def test_an_independent_arm_that_fails_leaves_the_others_to_go_on(after: int) -> None:
    fakes = [Fake([]), Fake([]), Fake([])]
    fakes[1].fails_after = after
    request, opened, run = independent(fakes)
    replay.measure(request, opened, run, lambda: None, lambda _done, _total: None)
    first, lost, last = run.replays
    assert (len(first.trials), len(last.trials), run.complete) == (5, 5, True)
    assert (first.members, lost.members, last.members) == ((0, 1), (2, 3), (3, 0))
    assert (len(lost.trials) < 5) == (lost.failure is not None)
    assert len(fakes[1].log) <= after + 1  # nothing more was asked of it
    assert run_file.again(run).replays == run.replays


def test_an_independent_arm_without_room_is_no_reason_to_stop() -> None:
    fakes = [Fake([]), Fake([])]
    fakes[0].room = False
    request, opened, run = independent(fakes)
    replay.measure(request, opened, run, lambda: None, lambda _done, _total: None)
    lost, left = run.replays
    assert (lost.trials, len(left.trials)) == ([], 5)
    assert lost.failure is not None
    assert "out of memory" in lost.failure.detail


@pytest.mark.parametrize("after", [0, 9])
def test_where_all_independent_arms_fail_it_ends(after: int) -> None:
    fakes = [Fake([]), Fake([])]
    for fake in fakes:
        fake.fails_after = after
    request, opened, run = independent(fakes)
    saves: list[int] = []
    with pytest.raises(BackendError, match=r"every set failed, the first by .*killed by signal 9"):
        replay.measure(request, opened, run, lambda: saves.append(len(run.replays)), lambda _done, _total: None)
    assert not run.complete
    assert all(found.failure is not None for found in run.replays)
    assert saves[-1] == 2


def test_wrong_data_of_one_independent_arm_ends_it() -> None:
    fakes = [Fake([]), Fake([])]
    fakes[1].wrong = 1
    request, opened, run = independent(fakes)
    with pytest.raises(DataCorruption):
        replay.measure(request, opened, run, lambda: None, lambda _done, _total: None)
    assert [(found.members, found.wrong) for found in run.replays] == [((2, 3), 1)]
