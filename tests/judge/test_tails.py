"""Tails and stragglers: percentiles and their intervals, and which rank is named."""

from __future__ import annotations

import numpy as np
import pytest

from collbench.judge.tails import fewest_launches, quantile_ranks, spread, tails_of
from collbench.model.operations import Operation
from collbench.model.run import DataPoint, Latency, RankLaunches


def launches(
    lateness: list[float],
    leaving: list[float] | None = None,
    *,
    count: int = 400,
    operation: Operation = Operation.ALLREDUCE,
    uncertainty: int = 1000,
    common: bool = True,
) -> Latency:
    """Return launches of 8 µs whose ranks come so many µs late, give or take 0.1 µs, and leave so much later."""
    rng = np.random.default_rng(1)
    ranks = len(lateness)
    came = np.array(lateness)[:, None] + 0.1 * rng.standard_normal((ranks, count))
    came -= came.min(axis=0)
    left = came.max(axis=0) + 8 + np.array(leaving or [0.0] * ranks)[:, None]
    if not common:
        left, came = left - came, np.zeros_like(came)
    nanoseconds = [np.round(times * 1e3).astype(int).tolist() for times in (came, left)]
    found = tuple(RankLaunches(tuple(a), tuple(b), 0, uncertainty, 32) for a, b in zip(*nanoseconds, strict=True))
    return Latency(DataPoint(operation, tuple(range(ranks)), 8), found, common)


@pytest.mark.parametrize(
    ("count", "percent", "ranks"),
    [
        # Conover, table A3: of ten values the median's interval is from the second to the ninth.
        (10, 50, (2, 9)),
        (6, 50, (1, 6)),
        (5, 50, None),
        (71, 95, None),
        (72, 95, (64, 72)),
        (367, 99, None),
    ],
)
def test_a_percentiles_interval_is_between_order_statistics(
    count: int, percent: int, ranks: tuple[int, int] | None
) -> None:
    assert quantile_ranks(count, percent) == ranks


@pytest.mark.parametrize("percent", [50, 95, 99])
@pytest.mark.parametrize("draw", ["standard_normal", "standard_cauchy", "standard_exponential"])
def test_intervals_hold_the_true_percentile_95_times_of_100(percent: int, draw: str) -> None:
    rng = np.random.default_rng(7)
    many = np.sort(getattr(rng, draw)((1000, 500)), axis=1)
    truth = float(np.percentile(getattr(rng, draw)(2_000_000), percent))
    ranks = quantile_ranks(500, percent)
    assert ranks is not None
    held = (many[:, ranks[0] - 1] <= truth) & (truth <= many[:, ranks[1] - 1])

    assert 0.93 < held.mean() <= 1


def test_a_percentile_that_too_few_launches_stand_behind_is_not_told() -> None:
    found = spread(np.arange(1.0, 101.0))

    assert found.percentiles == {50: 50, 95: 95}
    assert found.at(99) is None
    assert found.maximum == 100
    assert [fewest_launches(percent) for percent in (50, 95, 99)] == [6, 72, 368]


def test_transfer_begins_with_the_last_arrival_and_waiting_with_the_first() -> None:
    ranks = (
        RankLaunches((0,) * 10, (60_000,) * 10, 1_000, 500, 32),
        RankLaunches((50_000,) * 10, (59_000,) * 10, 1_000, 500, 32),
    )
    found = tails_of(Latency(DataPoint(Operation.ALLREDUCE, (3, 1), 8), ranks))

    assert found.transfer is not None
    assert found.transfer.at(50) == pytest.approx(9e-6)
    assert found.waited.at(50) == pytest.approx(59e-6)
    assert [rank.own.at(50) for rank in found.ranks] == pytest.approx([59e-6, 8e-6])
    assert [rank.last for rank in found.ranks] == [0, 1]
    assert [rank.member for rank in found.late] == [1]


@pytest.mark.parametrize(
    ("case", "latency", "named"),
    [
        ("nobody", launches([0, 0, 0, 0]), []),
        ("one of two", launches([0, 50]), [1]),
        ("one of four", launches([0, 0, 50, 0]), [2]),
        ("two of four, the latest first", launches([5, 0, 0, 50]), [3, 0]),
        ("less than the clocks tell", launches([0, 1.5]), []),
        ("a little with good clocks", launches([0, 1.5], uncertainty=200), [1]),
        ("too few launches", launches([0, 50], count=5), []),
        ("a collective with a root", launches([0, 50], operation=Operation.BROADCAST), []),
        ("no common clock", launches([0, 50], common=False), []),
    ],
)
def test_who_comes_late_is_named_only_on_evidence(case: str, latency: Latency, named: list[int]) -> None:
    found = tails_of(latency)

    assert [rank.member for rank in found.late] == named, case
    assert (found.transfer is None) == (not latency.common_clock)


def test_a_rank_that_leaves_late_shows_it() -> None:
    late = tails_of(launches([0, 20, 0], [0, 20, 0])).ranks[1]

    assert late.leaves is not None
    assert late.leaves.significant
    assert late.leaves.median == pytest.approx(20e-6)
