"""The trials of a collective beside compute: what counts as covered, how much runs, what ends a data point."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.analysis.outcome import outcome
from collbench.analysis.overlap import summarize
from collbench.backends.overlap_protocol import Load, OverlapOpened, OverlapPoint, RankTimes
from collbench.bench import overlap
from collbench.bench.overlap import (
    OverlapRequest,
    covered_calls,
    covered_units,
    in_rounds,
    isolated_collective,
    moments,
    planned,
)
from collbench.model.compute import Compute, ComputeKind, Priority
from collbench.model.errors import BackendError, DataCorruption, ExitStatus, MachineError
from collbench.model.failures import FailureKind
from collbench.model.operations import Operation
from collbench.model.run import Device, Machine, Run

CALL, UNIT = 1e-3, 2e-3
GEMM = Compute(ComputeKind.GEMM, 64)


def every(step: float, count: int, first: float = 0.0) -> tuple[float, ...]:
    return tuple(first + step * number for number in range(1, count + 1))


@pytest.mark.parametrize(
    ("title", "ranks", "covered"),
    [
        ("all but compute's run-up", [RankTimes(every(1, 9), every(1, 5))], range(1, 5)),
        ("what ends after the collective is not", [RankTimes(every(1, 4), every(1, 9))], range(1, 4)),
        ("the collective's run-up is not, either", [RankTimes(every(3, 3), every(1, 9))], range(3, 9)),
        ("nothing within the run-up", [RankTimes((9.0,), every(1, 5))], range(0)),
        (
            "on every rank",
            [RankTimes(every(1, 6), every(1, 9)), RankTimes(every(2, 4), every(1, 9))],
            range(2, 6),
        ),
    ],
)
def test_units_are_covered_while_the_collective_runs(title: str, ranks: list[RankTimes], covered: range) -> None:
    assert covered_units(ranks) == covered, title


@pytest.mark.parametrize(
    ("title", "ranks", "numbers"),
    [
        ("within their round's compute", [RankTimes((3, 6), every(1, 6), begins=(2, 4))], [0, 1]),
        ("not before compute has run for a chunk", [RankTimes((3, 6), every(1, 6), begins=(0.5, 4))], [1]),
        ("not before it has in the same round", [RankTimes((3, 6), every(1, 6), begins=(2, 3.5))], [0]),
        ("not beyond its end", [RankTimes((3, 7), every(1, 6), begins=(2, 4))], [0]),
        ("not beyond the end of their round", [RankTimes((3.5, 6), every(1, 6), begins=(2, 4))], [1]),
        (
            "on every rank",
            [RankTimes((3, 6), every(1, 6), begins=(2, 4)), RankTimes((3, 7), every(1, 6), begins=(2, 4))],
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
def test_both_lanes_have_chunks_to_be_covered_and_fit_a_queue(title: str, call: float, unit: float) -> None:
    load = planned(call, unit, 0.025)
    assert min(load.collective_chunks, load.compute_chunks) >= 4, title
    assert max(load.collective_chunks * load.calls, load.compute_chunks * load.units) <= 256, title
    assert load.delay_s >= load.collective_chunks * load.calls * 6e-5, title


def test_amounts_take_about_as_long_as_each_other_alone() -> None:
    load = planned(3.4e-3, 1.5e-3, 0.025)
    assert load.collective_chunks * load.calls * 3.4e-3 == pytest.approx(0.025, rel=0.2)
    assert load.compute_chunks * load.units * 1.5e-3 == pytest.approx(0.025, rel=0.2)


@pytest.mark.parametrize("call", [CALL / 50, CALL, CALL * 50])
@pytest.mark.parametrize("trials", [1, 3, 6])
def test_each_trial_is_spread_over_a_unit_and_all_of_them_more_finely(call: float, trials: int) -> None:
    found = moments(call, UNIT, trials, random.Random(1))
    assert found == moments(call, UNIT, trials, random.Random(1))
    assert found != moments(call, UNIT, trials, random.Random(2))
    assert len(found) == trials
    calls = len(found[0])
    for begins in found:
        assert sorted(int(begin * calls) for begin in begins) == list(range(calls))
        assert list(begins) != sorted(begins)
    every = sorted(int(begin * calls * trials) for begins in found for begin in begins)
    assert every == list(range(calls * trials))


def test_longer_calls_vary_less_so_fewer_of_them_run() -> None:
    counts = [len(moments(call, 1.4e-3, 6, random.Random(1))[0]) for call in (1e-6, 7.5e-5, 9e-4, 3.2e-3, 1.0)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == 30
    assert counts[-1] == 12


def test_rests_lie_behind_the_run_up_and_compute_outlasts_the_calls() -> None:
    load = planned(CALL, UNIT, 0.025)
    begins = moments(CALL, UNIT, 1, random.Random(1))[0]
    found = in_rounds(load, CALL, UNIT, begins)
    assert [(rest - 1.3 * UNIT * found.units) / UNIT for rest in found.idle_s] == pytest.approx(begins)
    assert found.compute_chunks * found.units * UNIT >= max(found.idle_s) + CALL


@pytest.mark.parametrize(("call", "calls"), [(1e-6, 20), (CALL, 20), (3e-3, 8), (1.0, 4)])
def test_alone_as_many_calls_run_as_in_a_batch(call: float, calls: int) -> None:
    load = planned(call, UNIT, 0.025)
    own = isolated_collective(load)
    assert (own.collective_chunks * own.calls, own.compute_chunks) == (calls, 0)
    assert own.collective_chunks >= 4
    assert own.collective_chunks * own.calls <= load.collective_chunks * load.calls


class Fake:
    """Two ranks with known rates: a collective takes `slower` times as long beside compute, compute 1.25 times."""

    def __init__(self, slower: float = 3.0) -> None:
        self.slower, self.loads, self.points = slower, list[Load](), list[OverlapPoint]()
        self.shortest_delay, self.cover, self.wrong, self.wrong_compute = 0.0, 1.0, 0, 0
        self.fails: dict[int, Exception] = {}

    def allocate(self, point: OverlapPoint) -> None:
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
            every(unit * load.units, load.compute_chunks * (len(load.idle_s) or 1)),
            tuple(begins) if load.idle_s else (),
            load.delay_s >= self.shortest_delay,
            self.wrong if load.collective_chunks else None,
            self.wrong_compute if load.compute_chunks else None,
        )
        late = replace(times, collective=tuple(end + 1e-3 * CALL for end in times.collective))
        return times, late

    def close(self) -> None:
        pass


def request(**changes: object) -> OverlapRequest:
    plain = OverlapRequest(
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
    return replace(plain, **changes)  # type: ignore[arg-type]


def measured(backend: Fake, asked: OverlapRequest, saves: list[int] | None = None) -> Run:
    """Return the run, also where measuring it raises."""
    devices = tuple(Device(number, f"GPU-{number}", "H200") for number in range(2))
    opened = OverlapOpened("cuda", (backend,), devices, 0.025, machine=Machine("host", "Linux", ""))
    run = overlap.begun_run(asked, opened)
    seen: list[int] = [] if saves is None else saves
    measured.run = run  # type: ignore[attr-defined]
    overlap.measure(asked, opened, run, lambda: seen.append(len(run.overlaps)), lambda _done, _total: None)
    return run


def test_known_factors_come_out() -> None:
    saves: list[int] = []
    run = measured(Fake(), request(), saves)
    assert run.complete
    assert saves == [1, 2]
    assert [(found.size_bytes, len(found.trials), found.wrong) for found in run.overlaps] == [
        (2**20, 4, 0),
        (2**24, 4, 0),
    ]
    for found in run.overlaps:
        summary = summarize(found)
        assert summary.collective_alone.value == pytest.approx(CALL, rel=0.002)
        assert summary.compute_alone.value == pytest.approx(UNIT, rel=0.002)
        assert summary.collective_factor.value == pytest.approx(3, rel=0.05)  # the late rank's ends are later
        assert summary.compute_factor.value == pytest.approx(1.25, rel=0.002)
        # Fewer calls run alone than the fixed amount has: the others count as long as those.
        for trial in found.trials:
            assert max(trial.collective_amount) == pytest.approx(trial.calls * CALL, rel=0.002)


def test_the_seed_decides_the_moments_and_not_the_order_of_loads() -> None:
    first, again, other = Fake(), Fake(), Fake()
    for backend, seed in ((first, 7), (again, 7), (other, 8)):
        measured(backend, request(seed=seed))
    assert first.loads == again.loads
    assert first.loads != other.loads
    assert [load.collective_chunks for load in first.loads] == [load.collective_chunks for load in other.loads]


def test_a_load_that_was_not_queued_in_time_runs_again_after_a_longer_delay() -> None:
    backend = Fake()
    backend.shortest_delay = 0.06
    run = measured(backend, request())
    assert run.complete
    assert all(len(found.trials) == 4 for found in run.overlaps)
    assert any(load.delay_s < 0.06 for load in backend.loads)


def test_a_host_that_never_queues_in_time_costs_the_data_points_and_says_so() -> None:
    backend = Fake()
    backend.shortest_delay = 100
    run = measured(backend, request())
    assert [found.failure.detail for found in run.overlaps if found.failure] == 2 * [overlap._UNQUEUED]
    assert outcome(run).status is ExitStatus.FAILED


@pytest.mark.parametrize("slower", [9.0, 300.0])  # 300: workers that wait for a time slice on a busy core
def test_what_is_not_covered_is_lengthened_until_it_is(slower: float) -> None:
    backend = Fake(slower=slower)
    run = measured(backend, request(sizes=(2**20,)))
    spaced_loads = [load for load in backend.loads if load.idle_s]
    assert len(run.overlaps[0].trials) == 4
    assert spaced_loads[-1].compute_chunks > spaced_loads[0].compute_chunks


@pytest.mark.parametrize("slower", [3.0, 300.0])
def test_no_more_is_queued_at_once_than_a_stream_takes_ahead(slower: float) -> None:
    """A call that lasts as long as hundreds of units: its rounds are run some at a time, and the factors come out."""
    backend = Fake(slower)
    found = measured(backend, request(sizes=(2**20,), trials=2)).overlaps[0]
    for load in backend.loads:
        of_compute, of_collective = max(1, len(load.idle_s)) * 2 * load.compute_chunks, 2 * load.collective_chunks
        assert max(of_compute, of_collective) <= 1024 or len(load.idle_s) == 1
    assert summarize(found).collective_factor.value == pytest.approx(slower, rel=0.05)
    assert summarize(found).compute_factor.value == pytest.approx(1.25, rel=0.002)


@given(st.integers(1, 40), st.integers(1, 2000), st.integers(1, 20))
def test_parts_of_a_load_are_its_rounds_in_order(rounds: int, chunks: int, units: int) -> None:
    load = Load(rounds, 1, chunks, units, 0.1, tuple(map(float, range(rounds))))
    parts = [*load.parts()]
    assert tuple(rest for part in parts for rest in part.idle_s) == load.idle_s
    assert all(part.collective_chunks == len(part.idle_s) for part in parts)
    assert all(replace(part, collective_chunks=rounds, idle_s=load.idle_s) == load for part in parts)
    assert all(len(part.idle_s) == 1 or 2 * chunks * len(part.idle_s) <= 1000 for part in parts)
    alone = replace(load, idle_s=())
    assert [*alone.parts()] == [alone]


def test_what_is_never_covered_fails_its_data_point_alone() -> None:
    backend = Fake()
    backend.cover = 1e-6
    run = measured(backend, request())
    assert run.complete
    assert all(found.failure and found.failure.detail == overlap._UNCOVERED for found in run.overlaps)


def test_what_has_no_room_costs_its_data_point_alone() -> None:
    backend = Fake()
    backend.fails = {2**20: MachineError("no room")}
    run = measured(backend, request())
    assert [bool(found.failure) for found in run.overlaps] == [True, False]
    assert run.complete
    assert len(run.overlaps[1].trials) == 4


@pytest.mark.parametrize(
    ("error", "kept"),
    [(BackendError("hung", FailureKind.HANG), 2), (KeyboardInterrupt(), 1)],
)
def test_what_was_measured_stays_whatever_ends_the_run(error: Exception, kept: int) -> None:
    backend, saves = Fake(), list[int]()
    backend.fails = {2**24: error}
    with pytest.raises(type(error)):
        measured(backend, request(), saves)
    run: Run = measured.run  # type: ignore[attr-defined]
    assert saves[-1] == kept == len(run.overlaps)
    assert not run.complete
    assert len(run.overlaps[0].trials) == 4


@pytest.mark.parametrize("field", ["wrong", "wrong_compute"])
def test_wrong_data_ends_the_run_and_is_counted(field: str) -> None:
    backend = Fake()
    setattr(backend, field, 3)
    with pytest.raises(DataCorruption, match="rank 0"):
        measured(backend, request())
    run: Run = measured.run  # type: ignore[attr-defined]
    assert getattr(run.overlaps[0], field) == 3
    assert outcome(run).status is ExitStatus.UNTRUSTED


def points_of(asked: OverlapRequest, ranks: int) -> Sequence[tuple[Priority, int | None, int]]:
    return [(point.priority, point.ctas, point.size_bytes) for point in asked.points(ranks)]


def test_levers_are_rows_and_sizes_are_whole() -> None:
    asked = request(priorities=(Priority.NORMAL, Priority.HIGH), ctas=(1, 2), sizes=(1001, 4096))
    assert len(points_of(asked, 2)) == 8
    assert points_of(asked, 2)[:3] == [
        (Priority.NORMAL, 1, 1000),
        (Priority.NORMAL, 1, 4096),
        (Priority.NORMAL, 2, 1000),
    ]
    assert points_of(request(operation=Operation.ALLGATHER, sizes=(100, 20)), 3) == [(Priority.NORMAL, None, 96)]
