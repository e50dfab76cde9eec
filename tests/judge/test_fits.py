from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.judge.summary import LinkFit, fit_links
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import DataPoint, Measurement, Sample
from tests.builders import gpus, run_of

COPY = Work(Operation.CE_WRITE)
SIZES = (8, 4**5, 4**8, 4**10, 4**12, 4**15)


def curve(
    seconds: Callable[[int, int], float],
    sizes: Sequence[int] = SIZES,
    work: Work = COPY,
    members: tuple[int, ...] = (0, 1),
    trials: int = 5,
) -> list[Measurement]:
    """Return a data point of each size, whose trials take `seconds(size, trial)`."""
    return [
        Measurement(
            DataPoint(work.operation, members, size, work.variant),
            [Sample((seconds(size, trial),) * 2, 1, concurrent=False) for trial in range(trials)],
        )
        for size in sizes
    ]


def fitted(points: Sequence[Measurement], work: Work = COPY) -> LinkFit:
    (found,), unfitted = fit_links(run_of(gpus(4), points), work)
    assert not unfitted
    return found


@given(st.floats(0.5, 50), st.floats(5, 500))
def test_a_line_gives_back_what_made_it(latency_us: float, gbs: float) -> None:
    fit = fitted(curve(lambda size, _trial: latency_us * 1e-6 + size / gbs / 1e9))
    assert fit.latency_us == pytest.approx((latency_us,) * 3, rel=1e-4)
    assert fit.gbs == pytest.approx((gbs,) * 3, rel=1e-4)
    assert fit.half_bytes[1] == pytest.approx(latency_us * gbs * 1000, rel=1e-3)  # 1 µs at 1 GB/s are 1000 bytes
    assert fit.misfit < 1e-4


def test_the_intervals_hold_the_truth_under_noise() -> None:
    rng = np.random.default_rng(4)
    noise = {(size, trial): rng.lognormal(0, 0.01) for size in SIZES for trial in range(9)}
    fit = fitted(curve(lambda size, trial: (3e-6 + size / 250e9) * noise[size, trial], trials=9))
    for low, middle, high, truth in ((*fit.latency_us, 3.0), (*fit.gbs, 250.0), (*fit.half_bytes, 750_000)):
        assert low < middle < high
        assert low < truth < high
        assert (high - low) / truth < 0.05


def test_one_size_that_stands_out_moves_little_and_is_reported() -> None:
    """A step between two protocols: at 64 KiB twice the time."""
    fit = fitted(curve(lambda size, _trial: (2e-6 + size / 100e9) * (2 if size == 4**8 else 1)))
    assert fit.latency_us[1] == pytest.approx(2.0, rel=0.05)
    assert fit.gbs[1] == pytest.approx(100.0, rel=0.05)
    assert fit.misfit == pytest.approx(0.5, abs=0.03)


def test_a_wild_trial_moves_nothing() -> None:
    fit = fitted(curve(lambda size, trial: (2e-6 + size / 100e9) * (30 if trial == 2 else 1)))
    assert fit.gbs[1] == pytest.approx(100.0, rel=1e-4)


@pytest.mark.parametrize(
    ("points", "why"),
    [
        (curve(lambda s, _v: s * 1e-9, SIZES[:3]), "3 of the 4 sizes that a fit needs"),
        (curve(lambda s, _v: s * 1e-9, (1024, 2048, 4096, 8192)), "sizes span a factor of 8, a fit needs 16"),
        (curve(lambda s, _v: s * 1e-9, trials=1), "a size has one trial; an interval needs two"),
        (curve(lambda s, _v: 1 / s), "time does not grow with size, so there is no bandwidth"),
    ],
)
def test_what_shows_no_line_is_refused_with_the_reason(points: list[Measurement], why: str) -> None:
    assert fit_links(run_of(gpus(4), points), COPY) == ((), {(0, 1): why})


def test_bandwidth_is_busbw_of_a_pair_and_all_that_both_ways_carry() -> None:
    sums = Work(Operation.ALLREDUCE)
    assert fitted(curve(lambda s, _v: 1e-6 + s / 100e9, work=sums), sums).gbs[1] == pytest.approx(100, rel=1e-4)
    both = Work(Operation.CE_WRITE, Variant.BOTH_WAYS)
    assert fitted(curve(lambda s, _v: 1e-6 + s / 100e9, work=both), both).gbs[1] == pytest.approx(200, rel=1e-4)
