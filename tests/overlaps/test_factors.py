"""What overlap costs, from raw seconds: factors of the slowest rank, paired by trial; between and beyond sizes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.choose.restrict import restricted
from collbench.model.errors import UsageError
from collbench.model.operations import Operation, Work
from collbench.model.run import Compute, ComputeKind, Flag, FlagKind, Overlap, OverlapTrial, Priority
from collbench.overlaps.compute import parse_compute
from collbench.overlaps.factors import by_condition, slowdown, spread, strongest, summarize
from tests.builders import gpus, run_of

GEMM, COPY = Compute(ComputeKind.GEMM, 8192), Compute(ComputeKind.MEMORY, 512)


def trial(collective: float, compute: float, drift: float = 1.0) -> OverlapTrial:
    """Return a trial with these factors; the machine is `drift` times as slow as in the others, all of it."""
    return OverlapTrial(
        collective_alone=(0.9e-3 * drift, 1e-3 * drift),
        compute_alone=(2e-3 * drift, 1.5e-3 * drift),
        collective_beside=(collective * 1e-3 * drift, 0.5e-3 * drift),
        compute_beside=(1.9e-3 * drift, compute * 2e-3 * drift),
        beside_calls=(1e-3, 2e-3, 3e-3),
        collective_amount=(0.01 * drift, 0.02 * drift),
        compute_amount=(0.04 * drift, 0.03 * drift),
        together=(0.05 * drift, 0.048 * drift),
        calls=20,
        units=20,
        covered_units=15,
    )


def point(size: int, collective: float, compute: float = 1.2, beside: Compute = GEMM, trials: int = 3) -> Overlap:
    made = [trial(collective, compute, drift) for drift in (1.0, 1.5, 0.7)[:trials]]
    return Overlap(Work(Operation.ALLREDUCE), (0, 1), size, beside, trials=made, wrong=0, wrong_compute=0)


def test_factors_are_the_slowest_ranks_and_paired_by_trial() -> None:
    found = summarize(point(2**20, 4.5, 1.2))
    assert found.collective_factor.value == pytest.approx(4.5)
    assert found.compute_factor.value == pytest.approx(1.2)
    assert found.collective_alone.value == pytest.approx(1e-3)
    assert found.compute_beside.value == pytest.approx(2.4e-3)
    assert found.of_sum.value == pytest.approx(0.05 / 0.06)
    assert found.of_max.value == pytest.approx(0.05 / 0.04)


def test_what_slows_a_whole_trial_widens_its_times_and_not_its_factors() -> None:
    found = summarize(point(2**20, 4.5))
    assert found.collective_factor.half < 1e-6
    assert found.collective_alone.half > 0.1


def test_two_trials_have_no_interval() -> None:
    found = summarize(point(2**20, 4.5, trials=2))
    assert found.collective_factor.interval is None
    assert math.isinf(found.collective_factor.half)


@pytest.mark.parametrize(
    ("title", "size", "factor"),
    [
        ("at a measured size", 2**20, 4.0),
        ("at the largest", 2**24, 1.0),
        ("halfway in log size: the geometric mean", 2**22, 2.0),
        ("a quarter of the way", 2**21, 4.0**0.75),
        ("below", 2**20 - 1, None),
        ("beyond", 2**24 + 1, None),
    ],
)
def test_slowdown_is_interpolated_in_log_size(title: str, size: int, factor: float | None) -> None:
    found = slowdown([point(2**24, 1.0), point(2**20, 4.0)], Operation.ALLREDUCE, size)
    assert (found.collective if found else None) == pytest.approx(factor), title


def test_slowdown_knows_only_what_was_measured() -> None:
    points = [point(2**20, 4.0), point(2**20, 2.0, beside=COPY)]
    first, copied = (
        slowdown(points, Operation.ALLREDUCE, 2**20),
        slowdown(points, Operation.ALLREDUCE, 2**20, compute=COPY),
    )
    assert first is not None
    assert first.collective == pytest.approx(4)
    assert copied is not None
    assert copied.collective == pytest.approx(2)
    assert slowdown(points, Operation.ALLGATHER, 2**20) is None
    for lever in ({"priority": Priority.HIGH}, {"ctas": 4}):
        assert slowdown([replace(point(2**20, 4.0), **lever)], Operation.ALLREDUCE, 2**20) is None, lever
    assert slowdown([], Operation.ALLREDUCE, 2**20) is None
    assert slowdown([point(2**20, 4.0, trials=0)], Operation.ALLREDUCE, 2**20) is None


@given(st.floats(2**20, 2**24), st.floats(1, 9), st.floats(1, 9))
def test_an_interpolated_factor_lies_between_its_neighbours(size: float, low: float, high: float) -> None:
    found = slowdown([point(2**20, low), point(2**24, high)], Operation.ALLREDUCE, size)
    assert found is not None
    assert min(low, high) * 0.999 <= found.collective <= max(low, high) * 1.001


def test_conditions_keep_their_order_and_sizes_ascend() -> None:
    points = [point(2**24, 1.0, beside=COPY), point(2**24, 1.0), point(2**20, 4.0, beside=COPY)]
    found = by_condition(points)
    assert [condition.compute for condition in found] == [COPY, GEMM]
    assert [one.size_bytes for one in next(iter(found.values()))] == [2**20, 2**24]
    assert strongest(points) is points[2]
    assert strongest([point(1, 1.0, trials=0)]) is None
    assert spread(points[0]) == pytest.approx((1e-3, 3e-3))


@pytest.mark.parametrize(
    ("text", "compute"),
    [
        ("gemm", GEMM),
        ("gemm:8192", GEMM),
        (" GEMM:4096 ", Compute(ComputeKind.GEMM, 4096)),
        ("memory:512", COPY),
        ("attention-like", Compute(ComputeKind.ATTENTION, 4096)),
        ("attention-like:1024", Compute(ComputeKind.ATTENTION, 1024)),
    ],
)
def test_words_of_compute_are_read(text: str, compute: Compute) -> None:
    assert parse_compute(text) == compute
    assert parse_compute(str(compute)) == compute


@pytest.mark.parametrize("text", ["", "gem", "gemm:", "gemm:0", "gemm:65537", "gemm:-1", "gemm:8192:1", "gemm:٨"])
def test_other_words_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="compute"):
        parse_compute(text)


def test_a_restricted_run_keeps_overlaps_inside_and_renumbers_them() -> None:
    run = run_of(gpus(4), [])
    inside, across = point(2**20, 2.0), point(2**20, 3.0)
    inside.members, across.members = (3, 2), (0, 2)
    inside.trials[0] = replace(inside.trials[0], flags=(Flag(FlagKind.HOT, (3,), 90),))
    run.overlaps = [inside, across]
    (kept,) = restricted(run, (2, 3)).overlaps
    assert kept.members == (1, 0)
    assert kept.trials[0].flags == (Flag(FlagKind.HOT, (1,), 90),)
    assert kept.trials[1:] == inside.trials[1:]
    assert inside.members == (3, 2)
