import math
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.model import Cell, Measurement, Sample
from collbench.operations import Operation
from collbench.stats import block_seconds, half_width, median_interval, summarize, visit_noise
from tests.builders import measured

MIB = 2**20
TIMES = st.floats(min_value=1e-9, max_value=1e3)


@pytest.mark.parametrize(
    ("n", "low", "high"),
    [  # ranks of the median's distribution-free 95 % interval [binomial tables, as in Hahn & Meeker §5.2]
        (6, 1, 6),
        (7, 1, 7),
        (8, 1, 8),
        (9, 2, 8),
        (10, 2, 9),
        (12, 3, 10),
        (15, 4, 12),
        (20, 6, 15),
        (25, 8, 18),
        (30, 10, 21),
        (50, 18, 33),
    ],
)
def test_the_medians_interval_takes_the_tabulated_ranks(n: int, low: int, high: int) -> None:
    assert median_interval([float(rank) for rank in range(n, 0, -1)]) == (low, high)


def test_five_values_have_no_interval() -> None:
    assert median_interval([1.0] * 5) is None
    assert half_width([1.0] * 5) == math.inf


@pytest.mark.parametrize("n", range(6, 90))
def test_the_interval_is_the_tightest_that_covers_95_percent(n: int) -> None:
    found = median_interval([float(place) for place in range(n)])
    assert found is not None
    low, high = int(found[0]), int(found[1])
    assert low + high == n - 1  # symmetric
    below = [outcomes / 2**n for outcomes in accumulate(math.comb(n, heads) for heads in range(n + 1))]
    assert 1 - 2 * below[low] >= 0.95
    assert 1 - 2 * below[low + 1] < 0.95


@given(st.lists(TIMES, min_size=6, max_size=40).flatmap(lambda v: st.tuples(st.just(v), st.permutations(v))))
def test_the_order_of_the_blocks_does_not_matter(both: tuple[list[float], list[float]]) -> None:
    assert median_interval(both[0]) == median_interval(both[1])


def test_half_width_is_a_ratio_of_the_median() -> None:
    assert half_width([98.0, 99.0, 100.0, 100.0, 101.0, 102.0]) == pytest.approx(0.02)


def collective(
    size: int, *visits: tuple[float, ...], ranks: int = 4, launches: tuple[float | None, ...] = ()
) -> Measurement:
    samples = [
        Sample(seconds, 10, concurrent=False, launch_seconds=launches[i] if launches else None)
        for i, seconds in enumerate(visits)
    ]
    return Measurement(Cell(Operation.ALLREDUCE, tuple(range(ranks)), size), samples)


def test_a_collective_in_a_persons_units() -> None:
    # 64 MiB in 325.34 µs over 4 ranks: nccl-tests prints 206.27 and 309.41 (tests/data/h200x4).
    times = (325.34e-6, 320e-6, 330e-6)
    found = summarize(collective(64 * MIB, times, times, launches=(400e-6, 420e-6)))
    assert found.seconds == pytest.approx(325.34e-6)
    assert found.algbw == pytest.approx(206.27, abs=0.005)
    assert found.busbw == pytest.approx(309.41, abs=0.005)
    assert found.launch_seconds == pytest.approx(410e-6)
    assert found.interval is not None
    # 67,108,864 B × 1.5 / 330 µs and / 320 µs; the slowest time is the lowest bandwidth.
    assert found.interval == pytest.approx((305.040, 314.573), abs=0.001)
    assert found.visits == pytest.approx((309.41, 309.41), abs=0.005)


def test_a_copys_bus_bandwidth_is_its_algorithm_bandwidth() -> None:
    found = summarize(measured(Operation.CE_WRITE, (0, 1), 395.2))
    assert found.busbw == found.algbw == pytest.approx(395.2)


def test_each_visit_counts_by_its_own_median_however_many_blocks_it_has() -> None:
    found = summarize(collective(10**9, (1.0, 2.0, 4.0), (5.0,) * 9, (4.0, 4.0), ranks=2))
    assert found.visits == (0.5, 0.2, 0.25)
    assert found.seconds == 4.0
    assert found.algbw == 0.25
    assert block_seconds(collective(1, (1.0, 2.0), (3.0,))) == [1.0, 2.0, 3.0]


def test_too_few_blocks_give_a_median_without_an_interval() -> None:
    found = summarize(collective(MIB, (1e-3, 1e-3)))
    assert found.interval is None
    assert found.launch_seconds is None


@pytest.mark.parametrize(
    ("flags", "concurrent"), [((False, False), False), ((False, True), True), ((True, True), True)]
)
def test_a_cell_is_concurrent_when_any_visit_was(flags: tuple[bool, ...], concurrent: bool) -> None:
    samples = [Sample((1.0,), 1, concurrent=flag) for flag in flags]
    assert summarize(Measurement(Cell(Operation.CE_READ, (0, 1), 8), samples)).concurrent is concurrent


@given(st.lists(TIMES, min_size=6, max_size=20))
def test_the_interval_holds_the_median(values: list[float]) -> None:
    found = summarize(collective(MIB, tuple(values)))
    assert found.interval is not None
    assert found.interval[0] <= found.busbw * (1 + 1e-12)
    assert found.busbw <= found.interval[1] * (1 + 1e-12)


@pytest.mark.parametrize("visits", [2, 3, 5, 7, 10])
def test_the_noise_of_visits_is_right_however_few_they_are(visits: int) -> None:
    """Drawn with σ = 2 % from a fixed seed; the estimate's own error over 2,000 cells is a tenth of the allowance."""
    drawn = np.random.default_rng(visits).normal(5.0, 0.02, (2000, visits))
    assert visit_noise(drawn.tolist()) == pytest.approx(0.02, rel=0.05)


@pytest.mark.parametrize(
    ("title", "cells", "noise"),
    [
        ("no visits", [], 0.0),
        ("one visit each", [[1.0], [2.0]], 0.0),
        ("cells that differ are no noise", [[1.0, 1.0], [9.0, 9.0]], 0.0),
        ("one wild visit of seven", [[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.1]], 0.0),
        ("two visits a σ-difference apart", [[1.0, 1.9539]], 1.0),
    ],
)
def test_the_noise_of_visits(title: str, cells: list[list[float]], noise: float) -> None:
    assert visit_noise(cells) == pytest.approx(noise)
