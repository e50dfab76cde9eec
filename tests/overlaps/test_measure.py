"""Trials of a collective concurrent with compute: what counts as covered, how much runs, what ends a data point."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.judge.outcome import outcome
from collbench.model.errors import BackendError, DataCorruption, ExitStatus, FailureKind, MachineError
from collbench.model.operations import Operation
from collbench.model.run import Device, Machine, Run
from collbench.overlaps import measure as overlap
from collbench.overlaps.measure import (
    OverlapOpened,
    OverlapRequest,
    SimOverlap,
    covered_calls,
    covered_units,
    in_rounds,
    isolated_collective,
    moments,
    planned,
)
from collbench.overlaps.results import Compute, ComputeKind, Load, Overlap, Priority, RankTimes, overlaps_of
from collbench.overlaps.view import summarize

CALL, UNIT = 1e-3, 2e-3
GEMM = Compute(ComputeKind.GEMM, 64)


def ends_every(step: float, count: int, first: float = 0.0) -> tuple[float, ...]:
    return tuple(first + step * number for number in range(1, count + 1))


@pytest.mark.parametrize(
    ("title", "ranks", "covered"),
    [
        ("all but compute's run-up", [RankTimes(ends_every(1, 9), ends_every(1, 5))], range(1, 5)),
        ("what ends after the collective is not", [RankTimes(ends_every(1, 4), ends_every(1, 9))], range(1, 4)),
        ("the collective's run-up is not, either", [RankTimes(ends_every(3, 3), ends_every(1, 9))], range(3, 9)),
        ("nothing within the run-up", [RankTimes((9.0,), ends_every(1, 5))], range(0)),
        (
            "on every rank",
            [RankTimes(ends_every(1, 6), ends_every(1, 9)), RankTimes(ends_every(2, 4), ends_every(1, 9))],
            range(2, 6),
        ),
    ],
)
def test_units_are_covered_while_the_collective_runs(title: str, ranks: list[RankTimes], covered: range) -> None:
    assert covered_units(ranks) == covered, title


@pytest.mark.parametrize(
    ("title", "ranks", "numbers"),
    [
        ("within their round's compute", [RankTimes((3, 6), ends_every(1, 6), begins=(2, 4))], [0, 1]),
        ("not before compute has run for a chunk", [RankTimes((3, 6), ends_every(1, 6), begins=(0.5, 4))], [1]),
        ("not before it has in the same round", [RankTimes((3, 6), ends_every(1, 6), begins=(2, 3.5))], [0]),
        ("not beyond its end", [RankTimes((3, 7), ends_every(1, 6), begins=(2, 4))], [0]),
        ("not beyond the end of their round", [RankTimes((3.5, 6), ends_every(1, 6), begins=(2, 4))], [1]),
        (
            "on every rank",
            [RankTimes((3, 6), ends_every(1, 6), begins=(2, 4)), RankTimes((3, 7), ends_every(1, 6), begins=(2, 4))],
            [0],
        ),
    ],
)
def test_calls_are_covered_while_compute_runs(title: str, ranks: list[RankTimes], numbers: list[int]) -> None:
    assert covered_calls(ranks) == numbers, title


@pytest.mark.parametrize(
    ("title", "call", "unit"),
    [
        ("like each other", 1e-3, 1e-3),
        ("a long message", 0.1, 1e-3),
        ("long compute", 1e-3, 0.1),
        ("a tiny message", 1e-6, 1.5e-3),
        ("both tiny", 1e-6, 1e-6),
    ],
)
def test_both_streams_have_chunks_to_be_covered_and_fit_a_queue(title: str, call: float, unit: float) -> None:
    load = planned(call, unit, 0.025)
    assert min(load.collective_chunks, load.compute_chunks) >= 4, title
    assert max(load.collective_chunks * load.calls, load.compute_chunks * load.units) <= 256, title
    assert load.delay_s >= load.collective_chunks * load.calls * 6e-5, title


@pytest.mark.parametrize("call", [CALL / 50, CALL, CALL * 50])
@pytest.mark.parametrize("trials", [1, 3, 6])
def test_each_trial_is_spread_over_a_unit_and_all_of_them_more_finely(call: float, trials: int) -> None:
    trial_begins = moments(call, UNIT, trials, random.Random(1))
    assert trial_begins == moments(call, UNIT, trials, random.Random(1))
    assert trial_begins != moments(call, UNIT, trials, random.Random(2))
    assert len(trial_begins) == trials
    calls = len(trial_begins[0])
    for begins in trial_begins:
        assert sorted(int(begin * calls) for begin in begins) == list(range(calls))
        assert list(begins) != sorted(begins)
    slots = sorted(int(begin * calls * trials) for begins in trial_begins for begin in begins)
    assert slots == list(range(calls * trials))


def test_longer_calls_vary_less_so_fewer_of_them_run() -> None:
    counts = [len(moments(call, 1.4e-3, 6, random.Random(1))[0]) for call in (1e-6, 7.5e-5, 9e-4, 3.2e-3, 1.0)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == 30
    assert counts[-1] == 12


def test_of_short_units_more_rounds_run_in_no_more_time() -> None:
    counts = {unit: len(moments(1e-6, unit, 3, random.Random(1))[0]) for unit in (2.8e-3, 1.4e-3, 0.7e-3, 0.1e-3)}
    assert counts == {2.8e-3: 30, 1.4e-3: 30, 0.7e-3: 60, 0.1e-3: 119}


def test_idle_times_exceed_the_run_up_and_compute_outlasts_the_calls() -> None:
    load = planned(CALL, UNIT, 0.025)
    begins = moments(CALL, UNIT, 1, random.Random(1))[0]
    spaced = in_rounds(load, CALL, UNIT, begins)
    assert [(idle_s - 1.3 * UNIT * spaced.units) / UNIT for idle_s in spaced.idle_s] == pytest.approx(begins)
    assert spaced.compute_chunks * spaced.units * UNIT >= max(spaced.idle_s) + CALL


@pytest.mark.parametrize(("call", "calls"), [(1e-6, 20), (CALL, 20), (3e-3, 8), (1.0, 4)])
def test_isolated_as_many_calls_run_as_in_a_batch(call: float, calls: int) -> None:
    load = planned(call, UNIT, 0.025)
    isolated = isolated_collective(load)
    assert (isolated.collective_chunks * isolated.calls, isolated.compute_chunks) == (calls, 0)
    assert isolated.collective_chunks >= 4
    assert isolated.collective_chunks * isolated.calls <= load.collective_chunks * load.calls


class FakeWorld(SimOverlap):
    """Two ranks with known rates: run concurrently, a collective takes `slower` times as long, compute 1.25 times."""

    def __init__(self, slower: float = 3.0) -> None:
        self.slower, self.loads, self.points = slower, list[Load](), list[Overlap]()
        self.shortest_delay, self.cover, self.wrong, self.wrong_compute = 0.0, 1.0, 0, 0
        self.most_calls = 10**9
        self.fails: dict[int, Exception] = {}

    def allocate(self, point: Overlap) -> None:
        self.points.append(point)
        if (error := self.fails.get(point.size_bytes)) is not None:
            raise error

    def warm(self) -> None:
        pass

    def run(self, load: Load) -> tuple[RankTimes, ...]:
        self.loads.append(load)
        slower = self.slower if load.compute_chunks else 1.0
        unit = UNIT * (1.25 * self.cover if load.collective_chunks else 1.0)
        call, begins, ends, now = CALL * slower, list[float](), list[float](), 0.0
        for number in range(load.collective_chunks):
            round_begins = number * load.compute_chunks * unit * load.units
            now = round_begins + load.idle_s[number] if load.idle_s else now
            begins.append(now)
            now += load.calls * call
            ends.append(now)
        times = RankTimes(
            tuple(ends),
            ends_every(unit * load.units, load.compute_chunks * (len(load.idle_s) or 1)),
            tuple(begins) if load.idle_s else (),
            load.delay_s >= self.shortest_delay and load.collective_chunks * load.calls <= self.most_calls,
            self.wrong if load.collective_chunks else None,
            self.wrong_compute if load.compute_chunks else None,
        )
        late = replace(times, collective=tuple(end + 1e-3 * CALL for end in times.collective))
        return times, late

    def close(self) -> None:
        pass


class WaitingWorld(FakeWorld):
    """Two GPUs on which a call waits until the running unit has ended, as 1M does beside a kernel that fills all SMs.

    A stream takes `entries` launches and events ahead: one for each call and one for each chunk, as two H100 were seen
    to do. The host queues one in 10 µs.
    """

    call, unit, entries = 15e-6, 280e-6, 1021

    def run(self, load: Load) -> tuple[RankTimes, ...]:
        self.loads.append(load)
        begins, ends, compute = list[float](), list[float](), list[float]()
        rounds = max(1, len(load.idle_s))
        now = 0.0
        for number in range(rounds):
            first = max(now, compute[-1] if compute else 0.0)
            own = ends_every(self.unit * 1.1, load.compute_chunks * load.units, first)
            compute += own[load.units - 1 :: load.units] if load.compute_chunks else []
            now = first + (load.idle_s[number] if load.idle_s else 0.0)
            for _ in range(1 if load.idle_s else load.collective_chunks):
                begins.append(now)
                for _ in range(load.calls):
                    now = min((end for end in own if end > now), default=now) + self.call
                ends.append(now)
        queued = rounds * 14 if load.idle_s else load.collective_chunks * (load.calls + 1) + 10
        fits = max(queued, rounds * load.compute_chunks * 2) <= self.entries and load.delay_s >= 1e-5 * queued
        times = RankTimes(tuple(ends), tuple(compute), tuple(begins) if load.idle_s else (), fits)
        return times, times


def request(**changes: object) -> OverlapRequest:
    default = OverlapRequest(
        backend="cuda",
        operation=Operation.ALLREDUCE,
        sizes=(2**20, 2**24),
        computes=(GEMM,),
        priorities=(Priority.NORMAL,),
        ctas=(None,),
        trials=4,
        seed=7,
        command=("overlap",),
    )
    return replace(default, **changes)  # type: ignore[arg-type]


def measured_run(backend: FakeWorld, overlap_request: OverlapRequest, saves: list[int] | None = None) -> Run:
    """Return the run; where measuring raises, it is in `measured_run.run`."""
    devices = tuple(Device(number, f"GPU-{number}", "H200") for number in range(2))
    opened = OverlapOpened("cuda", (backend,), devices, 0.025, machine=Machine("host", "Linux", ""))
    run = overlap_request.begun_run(opened)
    saved_counts: list[int] = [] if saves is None else saves
    measured_run.run = run  # type: ignore[attr-defined]
    overlap_request.measure(opened, run, lambda: saved_counts.append(len(overlaps_of(run))), lambda _done, _total: None)
    return run


def test_known_factors_come_out() -> None:
    saves: list[int] = []
    run = measured_run(FakeWorld(), request(), saves)
    assert run.complete
    assert saves == [1, 2]
    assert [(point.size_bytes, len(point.trials), point.wrong) for point in overlaps_of(run)] == [
        (2**20, 4, 0),
        (2**24, 4, 0),
    ]
    for point in overlaps_of(run):
        summary = summarize(point)
        assert summary.collective_alone.value == pytest.approx(CALL, rel=0.002)
        assert summary.compute_alone.value == pytest.approx(UNIT, rel=0.002)
        assert summary.collective_factor.value == pytest.approx(3, rel=0.05)  # the late rank's ends are later
        assert summary.compute_factor.value == pytest.approx(1.25, rel=0.002)
        # The isolated measurement runs fewer calls than the fixed amount has: the rest count as equally long.
        for trial in point.trials:
            assert max(trial.collective_amount) == pytest.approx(trial.calls * CALL, rel=0.002)


@pytest.mark.parametrize(("call", "unit"), [(15e-6, 280e-6), (10e-6, 1.4e-3), (75e-6, 1.4e-3), (15e-6, 40e-6)])
def test_short_calls_that_wait_for_whole_units_are_covered_and_queued(call: float, unit: float) -> None:
    backend = WaitingWorld()
    backend.call, backend.unit = call, unit
    (point,) = overlaps_of(measured_run(backend, request(sizes=(2**20,), trials=3)))
    assert (point.failure, len(point.trials)) == (None, 3)
    summary = summarize(point)
    assert summary.collective_alone.value == pytest.approx(call)
    # From a random moment, half a unit passes until it ends.
    assert summary.collective_beside.value == pytest.approx(call + 1.1 * unit / 2, rel=0.1)
    assert all(trial.covered_units >= 3 for trial in point.trials)


def test_what_no_queue_holds_is_refused_as_uncovered_and_not_blamed_on_the_host() -> None:
    """Compute that a collective slows a hundredfold: no number of calls that a stream takes ahead outlasts it."""
    backend = FakeWorld()
    backend.cover = 100.0
    backend.most_calls = 240
    run = measured_run(backend, request(sizes=(2**20,)))
    assert [point.failure.detail for point in overlaps_of(run) if point.failure] == [overlap._UNCOVERED]
    assert all(load.delay_s < 0.5 for load in backend.loads)


def test_the_seed_decides_the_moments_and_not_the_order_of_loads() -> None:
    first_backend, same_seed, other_seed = FakeWorld(), FakeWorld(), FakeWorld()
    for backend, seed in ((first_backend, 7), (same_seed, 7), (other_seed, 8)):
        measured_run(backend, request(seed=seed))
    assert first_backend.loads == same_seed.loads
    assert first_backend.loads != other_seed.loads
    assert [load.collective_chunks for load in first_backend.loads] == [
        load.collective_chunks for load in other_seed.loads
    ]


def test_a_load_that_was_not_queued_in_time_runs_again_after_a_longer_delay() -> None:
    backend = FakeWorld()
    backend.shortest_delay = 0.06
    run = measured_run(backend, request())
    assert run.complete
    assert all(len(point.trials) == 4 for point in overlaps_of(run))
    assert any(load.delay_s < 0.06 for load in backend.loads)


def test_a_host_that_never_queues_in_time_costs_the_data_points_and_says_so() -> None:
    backend = FakeWorld()
    backend.shortest_delay = 100
    run = measured_run(backend, request())
    assert [point.failure.detail for point in overlaps_of(run) if point.failure] == 2 * [overlap._UNQUEUED]
    assert outcome(run).status is ExitStatus.FAILED


@pytest.mark.parametrize("slower", [9.0, 300.0])  # 300: workers that wait for a time slice on a busy core
def test_what_is_not_covered_is_lengthened_until_it_is(slower: float) -> None:
    backend = FakeWorld(slower=slower)
    run = measured_run(backend, request(sizes=(2**20,)))
    spaced_loads = [load for load in backend.loads if load.idle_s]
    assert len(overlaps_of(run)[0].trials) == 4
    assert spaced_loads[-1].compute_chunks > spaced_loads[0].compute_chunks


@pytest.mark.parametrize("slower", [3.0, 300.0])
def test_no_more_is_queued_at_once_than_a_stream_takes_ahead(slower: float) -> None:
    """A call as long as hundreds of units: its rounds run a few at a time, and the factors are still right."""
    backend = FakeWorld(slower)
    point = overlaps_of(measured_run(backend, request(sizes=(2**20,), trials=2)))[0]
    for load in backend.loads:
        compute_operations, collective_operations = (
            max(1, len(load.idle_s)) * 2 * load.compute_chunks,
            2 * load.collective_chunks,
        )
        assert max(compute_operations, collective_operations) <= 1024 or len(load.idle_s) == 1
    assert summarize(point).collective_factor.value == pytest.approx(slower, rel=0.05)
    assert summarize(point).compute_factor.value == pytest.approx(1.25, rel=0.002)


@given(st.integers(1, 200), st.integers(1, 2000), st.integers(1, 100))
def test_parts_of_a_load_are_its_rounds_in_order(rounds: int, chunks: int, units: int) -> None:
    load = Load(rounds, 1, chunks, units, 0.1, tuple(map(float, range(rounds))))
    parts = [*load.parts()]
    assert tuple(idle_s for part in parts for idle_s in part.idle_s) == load.idle_s
    assert all(part.collective_chunks == len(part.idle_s) for part in parts)
    assert all(replace(part, collective_chunks=rounds, idle_s=load.idle_s) == load for part in parts)
    # Each unit is a launch, each chunk has an event: no graph is needed, and a stream takes all of them ahead.
    several = [len(part.idle_s) for part in parts if len(part.idle_s) > 1]
    assert all(count * chunks * units <= 500 for count in several)
    assert all(count * chunks * (units + 1) <= 1000 for count in several)
    unspaced = replace(load, idle_s=())
    assert [*unspaced.parts()] == [unspaced]


def test_a_point_without_room_fails_and_no_other() -> None:
    backend = FakeWorld()
    backend.fails = {2**20: MachineError("no room")}
    run = measured_run(backend, request())
    assert [bool(point.failure) for point in overlaps_of(run)] == [True, False]
    assert run.complete
    assert len(overlaps_of(run)[1].trials) == 4


@pytest.mark.parametrize(
    ("error", "overlaps"),
    [(BackendError("hung", FailureKind.HANG), 2), (KeyboardInterrupt(), 1)],
)
def test_what_was_measured_stays_whatever_ends_the_run(error: Exception, overlaps: int) -> None:
    backend, saves = FakeWorld(), list[int]()
    backend.fails = {2**24: error}
    with pytest.raises(type(error)):
        measured_run(backend, request(), saves)
    run: Run = measured_run.run  # type: ignore[attr-defined]
    assert saves[-1] == overlaps == len(overlaps_of(run))
    assert not run.complete
    assert len(overlaps_of(run)[0].trials) == 4


@pytest.mark.parametrize("field", ["wrong", "wrong_compute"])
def test_wrong_data_ends_the_run_and_is_counted(field: str) -> None:
    backend = FakeWorld()
    setattr(backend, field, 3)
    with pytest.raises(DataCorruption, match="rank 0"):
        measured_run(backend, request())
    run: Run = measured_run.run  # type: ignore[attr-defined]
    assert getattr(overlaps_of(run)[0], field) == 3
    assert outcome(run).status is ExitStatus.UNTRUSTED
