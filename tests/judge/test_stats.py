"""Statistics against hand-worked values, published tables and scipy."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.judge.stats import (
    chance_beyond,
    half_width,
    median_deviation,
    median_interval,
    range_quantile,
    student,
    summarize,
    tie_threshold,
    time_interval,
    trial_noise,
    trial_seconds,
)
from collbench.model.operations import Operation
from collbench.model.run import DataPoint, Measurement, Noise, Sample

MIB = 2**20
TIMES = st.floats(min_value=1e-9, max_value=1e3)


@pytest.mark.parametrize(
    ("values", "low", "high"),
    [  # worked by hand, at 96.5%
        # logs 0, 0.1, 0.3: deviation 0.152753, times 3.058 is 0.467117
        ((1.0, math.exp(0.1), math.exp(0.3)), math.exp(0.1 - 0.467117), math.exp(0.1 + 0.467117)),
        # logs -0.3, -0.1, 0.1, 0.3: deviation 0.258199, times 1.878 is 0.484897
        ([math.exp(x) for x in (-0.3, -0.1, 0.1, 0.3)], math.exp(-0.484897), math.exp(0.484897)),
        # logs 0, 1, 2, 3, 4: deviation 1.581139, times 1.509 is 2.385939
        ([math.exp(x) for x in range(5)], math.exp(2 - 2.385939), math.exp(2 + 2.385939)),
        # Ranks 1 and 2 cover 96.875 and 78.125%: a fiftieth of the way, interpolated 5·0.02 / (1 + 4·0.02) = 0.092593.
        ([math.exp(x) for x in range(1, 7)], math.exp(1.092593), math.exp(5.907407)),
        # Ranks 2 and 3 cover 1002/1024 and 912/1024: 0.153778 of the way, 8·0.153778 / (2 + 6·0.153778) = 0.420922.
        ([math.exp(x) for x in range(1, 11)], math.exp(2.420922), math.exp(8.579078)),
    ],
)
def test_the_medians_interval(values: list[float], low: float, high: float) -> None:
    assert median_interval(values) == pytest.approx((low, high), rel=1e-5)


@pytest.mark.parametrize("n", [3, 4, 5, 6, 7, 8, 12, 15, 30])
def test_the_interval_holds_the_true_median_of_normal_values(n: int) -> None:
    """2,000 draws of a fixed seed: 96.5% ± 0.4% are expected."""
    drawn = np.exp(np.random.default_rng(n).normal(0, 0.01, (2000, n)))
    intervals = [median_interval(values) for values in drawn.tolist()]
    assert 0.95 <= np.mean([found is not None and found[0] <= 1 <= found[1] for found in intervals]) <= 0.98


def timed(seconds: list[float]) -> Measurement:
    return Measurement(
        DataPoint(Operation.CE_WRITE, (0, 1), MIB), [Sample((one,), 1, concurrent=False) for one in seconds]
    )


@pytest.mark.parametrize("count", [0, 1, 2])
def test_fewer_than_three_trials_have_no_interval(count: int) -> None:
    assert median_interval([1.0] * count) is None
    assert half_width(timed([1.0] * count)) == math.inf


@pytest.mark.parametrize("count", range(3, 9))
def test_trials_without_noise_have_an_interval_of_no_width(count: int) -> None:
    assert median_interval([0.1] * count) == (0.1, 0.1)
    assert half_width(timed([0.1] * count)) == 0


@given(st.floats(-0.7, 13.0).map(math.exp), st.floats(-18.0, -0.75).map(math.exp))
def test_students_quantile_is_scipys(freedom: float, beyond: float) -> None:
    from scipy.special import stdtrit  # late: it takes a fifth of a second

    assert student(freedom, 1 - beyond) == pytest.approx(float(stdtrit(freedom, 1 - beyond)), rel=1e-8)


@given(st.lists(TIMES, min_size=3, max_size=40), st.floats(1e-6, 1e6))
def test_the_unit_does_not_matter(values: list[float], unit: float) -> None:
    here, there = median_interval(values), median_interval([value * unit for value in values])
    assert here is not None
    assert there == pytest.approx([end * unit for end in here], rel=1e-9)


@pytest.mark.parametrize("count", [1030, 3000])
def test_many_values_have_an_interval(count: int) -> None:
    """The normal approximation: ranks (n ± 2.108·√n) / 2."""
    found = median_interval([math.exp(rank / count) for rank in range(1, count + 1)])
    assert found is not None
    half = 2.108 * math.sqrt(count) / 2
    assert np.log(found) * count == pytest.approx((count / 2 - half + 0.5, count / 2 + half + 0.5), abs=1)


def test_the_wildest_times_have_an_interval_of_numbers() -> None:
    low, high = median_interval([1e-9, 1.0, 1e300]) or (0, 0)
    assert 0 < low < 1 < high < math.inf


def test_half_width_is_a_ratio_of_the_median() -> None:
    low, high = median_interval([98.0, 100.0, 101.0]) or (0, 0)
    assert half_width(timed([98.0, 100.0, 101.0])) == pytest.approx((high - low) / 200)


@pytest.mark.parametrize(("freedom", "quantile"), [(2.0, 4.30265), (30.0, 2.04227), (1e6, 1.95997)])
def test_a_known_noise_gives_the_interval_whatever_the_own_trials_show(freedom: float, quantile: float) -> None:
    """The median of three has a standard deviation of 0.66983σ [David & Nagaraja, Order Statistics, table 4.9]."""
    far = math.exp(quantile * 0.66983 * 0.01)
    for trials in ([1.0, 1.0, 1.0], [0.9, 1.0, 1.2]):
        found = time_interval(replace(timed(trials), noise=Noise(0.01, freedom)))
        assert found == pytest.approx((1 / far, far), rel=1e-4)


def test_trials_that_resemble_those_before_widen_the_interval() -> None:
    narrow, wide = (
        time_interval(replace(timed([1.0] * 5), noise=Noise(0.01, 50.0, widening))) or (0, 0) for widening in (1.0, 2.0)
    )
    assert [math.log(end) for end in wide] == pytest.approx([2 * math.log(end) for end in narrow])


def test_the_interval_of_uneven_noise_holds_that_of_the_own_trials() -> None:
    trials = [1.0, 1.0, 1.06]
    own, found = median_interval(trials), time_interval(replace(timed(trials), noise=Noise(1e-4, 50.0, uneven=True)))
    assert found == pytest.approx(own)
    wide = time_interval(replace(timed(trials), noise=Noise(0.2, 50.0, uneven=True)))
    assert wide == pytest.approx(time_interval(replace(timed(trials), noise=Noise(0.2, 50.0))))


def collective(
    size: int, *trials: tuple[float, ...], ranks: int = 4, launches: tuple[float | None, ...] = ()
) -> Measurement:
    samples = [
        Sample(seconds, 10, concurrent=False, launch_seconds=launches[i] if launches else None)
        for i, seconds in enumerate(trials)
    ]
    return Measurement(DataPoint(Operation.ALLREDUCE, tuple(range(ranks)), size), samples)


def test_a_collective_in_a_persons_units() -> None:
    # 64 MiB in 325.34 µs over 4 ranks: nccl-tests prints 206.27 and 309.41 (tests/data/h200x4).
    times = (325.34e-6, 320e-6, 330e-6)
    found = summarize(collective(64 * MIB, times, times, times, launches=(400e-6, 410e-6, 420e-6)))
    assert found.seconds == pytest.approx(325.34e-6)
    assert found.algbw == pytest.approx(206.27, abs=0.005)
    assert found.busbw == pytest.approx(309.41, abs=0.005)
    assert found.launch_seconds == pytest.approx(410e-6)
    assert found.interval == pytest.approx((309.41, 309.41), abs=0.005)
    assert found.trials == pytest.approx((309.41,) * 3, abs=0.005)


def test_each_trial_counts_by_its_own_median_however_many_batches_it_has() -> None:
    found = summarize(collective(10**9, (1.0, 2.0, 4.0), (5.0,) * 9, (4.0, 4.0), ranks=2))
    assert found.trials == (0.5, 0.2, 0.25)
    assert found.seconds == 4.0
    assert found.algbw == 0.25
    assert trial_seconds(collective(1, (1.0, 2.0, 4.0), (3.0,))) == [2.0, 3.0]


@pytest.mark.parametrize(
    ("flags", "concurrent"), [((False, False), False), ((False, True), True), ((True, True), True)]
)
def test_a_point_is_concurrent_when_any_trial_was(flags: tuple[bool, ...], concurrent: bool) -> None:
    samples = [Sample((1.0,), 1, concurrent=flag) for flag in flags]
    assert summarize(Measurement(DataPoint(Operation.CE_READ, (0, 1), 8), samples)).concurrent is concurrent


@pytest.mark.parametrize("trials", [2, 3, 5, 7, 10])
def test_the_noise_of_trials_is_right_however_few_they_are(trials: int) -> None:
    """Drawn with σ = 2% from a fixed seed; the estimate's own error over 2,000 points is a tenth of the allowance."""
    drawn = np.random.default_rng(trials).normal(5.0, 0.02, (2000, trials))
    assert trial_noise(drawn.tolist()) == pytest.approx(0.02, rel=0.05)


@pytest.mark.parametrize(
    ("title", "points", "noise"),
    [
        ("no trials", [], 0.0),
        ("one trial each", [[1.0], [2.0]], 0.0),
        ("data points that differ are no noise", [[1.0, 1.0], [9.0, 9.0]], 0.0),
        ("one wild trial of seven", [[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.1]], 0.0),
        ("two trials a σ-difference apart", [[1.0, 1.9539]], 1.0),
    ],
)
def test_the_noise_of_trials(title: str, points: list[list[float]], noise: float) -> None:
    assert trial_noise(points) == pytest.approx(noise)


@pytest.mark.parametrize(("noise", "delta"), [(0.0, 0.02), (0.005, 0.02), (0.01, 0.03), (0.1, 0.3)])
def test_a_tie_is_within_two_percent_or_three_sigma(noise: float, delta: float) -> None:
    assert tie_threshold(noise) == pytest.approx(delta)


@pytest.mark.parametrize(("own", "peers", "times"), [(1, 3, 3.0), (2, 3, 2.0), (2, 2, 3.5), (3, 2, 1.0), (3, 5, 1.0)])
def test_how_often_noise_lies_far_beyond_that_of_others(own: int, peers: int, times: float) -> None:
    """Drawn 200,000 times with a fixed seed; the allowance is five standard errors."""
    rng = np.random.default_rng(3)
    often = {}
    for name, draw in (("exponential", rng.exponential), ("normal", rng.normal), ("bounded", rng.uniform)):
        ours, others = np.abs(draw(size=(200_000, own))), np.abs(draw(size=(200_000, peers)))
        often[name] = float((ours.min(axis=1) >= times * others.max(axis=1)).mean())
    chance = chance_beyond(own, peers, times)
    allowance = 5 * math.sqrt(chance / 200_000)
    assert often["exponential"] == pytest.approx(chance, abs=allowance)
    assert max(often.values()) <= chance + allowance
    assert chance_beyond(own, peers, 1e6) > 0


@pytest.mark.parametrize(
    ("n", "deviation"),
    [  # √variance [Sarhan & Greenberg's tables: 0.4487, 0.2868, 0.2104, 0.1661]; for even n drawn two million times
        (1, 1.0),
        (2, 0.7071),
        (3, 0.6698),
        (4, 0.5461),
        (5, 0.5356),
        (6, 0.4634),
        (7, 0.4587),
        (8, 0.4101),
        (9, 0.4075),
        (20, 0.2710),
        (301, 0.0722),  # nearly √(π / 2n)
    ],
)
def test_the_medians_deviation_is_the_tabulated_one(n: int, deviation: float) -> None:
    assert median_deviation(n) == pytest.approx(deviation, abs=2e-4)


@pytest.mark.parametrize(
    ("n", "freedom", "probability", "quantile"),
    [  # published tables of the studentized range
        (2, math.inf, 0.95, 2.77),
        (3, math.inf, 0.95, 3.31),
        (5, math.inf, 0.95, 3.86),
        (10, math.inf, 0.95, 4.47),
        (20, math.inf, 0.95, 5.01),
        (2, math.inf, 0.99, 3.64),
        (10, math.inf, 0.99, 5.16),
        (2, 1, 0.95, 17.97),
        (3, 10, 0.95, 3.88),
        (6, 20, 0.95, 4.45),
        (10, 5, 0.95, 6.99),
        (3, 10, 0.99, 5.27),
        (20, 60, 0.95, 5.24),
    ],
)
def test_range_quantiles_are_the_tabulated_ones(n: int, freedom: float, probability: float, quantile: float) -> None:
    assert range_quantile(n, probability, freedom) == pytest.approx(quantile, abs=0.006)


def test_less_than_one_degree_of_freedom_is_students_too() -> None:
    from scipy.special import stdtrit  # late: it takes a fifth of a second

    for freedom, probability in product((0.5, 0.6, 1.5, 2, 100, 1000), (0.9, 0.95, 0.99)):
        found = range_quantile(2, probability, freedom) / math.sqrt(2)
        expected = float(stdtrit(freedom, (1 + probability) / 2))
        assert found == pytest.approx(expected, rel=3e-3), (freedom, probability)
