"""From runs to a ratio: hand arithmetic, tables of Student's t, and scipy's own interval."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.ablations.ablation import Ablation, Measure, Rounding, TrainingRun, judge, measure_of, warm_up
from tests.ablations.made import ablation, run


@pytest.mark.parametrize(
    ("case", "steps", "skip", "dropped"),
    [
        ("three at least", 5, None, 3),
        ("three of thirty", 30, None, 3),
        ("a tenth, rounded up", 31, None, 4),
        ("a tenth of a thousand", 1000, None, 100),
        ("what the user says", 1000, 7, 7),
        ("nothing, if the user says so", 1000, 0, 0),
    ],
)
def test_the_warm_up(case: str, steps: int, skip: int | None, dropped: int) -> None:
    assert warm_up(steps, skip) == dropped, case


STEPS = run(0, 0, (1.0,) * 9)
HUGGING_FACE = run(0, 1, runtime=101.2)
BOTH = run(0, 2, (1.0,) * 9, 101.2)
NEITHER = run(0, 3)


@pytest.mark.parametrize(
    ("case", "runs", "measure"),
    [
        ("all print steps", [STEPS, BOTH], Measure.STEP),
        ("one prints no steps", [BOTH, HUGGING_FACE], Measure.TRAIN_RUNTIME),
        ("they print different things", [STEPS, HUGGING_FACE], Measure.PROCESS),
        ("one prints nothing", [BOTH, NEITHER], Measure.PROCESS),
        ("none yet", [], Measure.PROCESS),
    ],
)
def test_all_runs_are_read_the_same_way(case: str, runs: list[TrainingRun], measure: Measure) -> None:
    assert measure_of(runs, None) is measure, case


def test_two_repeats_by_hand() -> None:
    # Ratios 2 and 8: the mean of their logs is ln 4, its standard error (ln 8 - ln 2) / 2 = ln 2; t(0.975; 1) = 12.706.
    result = ablation([1.0, 1.0], [2.0, 8.0]).result
    assert result is not None
    assert result.ratio.middle == pytest.approx(4.0)
    assert math.log(result.ratio.high / 4) / math.log(2) == pytest.approx(12.706, abs=1e-3)
    assert math.log(4 / result.ratio.low) / math.log(2) == pytest.approx(12.706, abs=1e-3)


TIMES = st.floats(1e-6, 1e6)


@given(st.lists(st.tuples(TIMES, TIMES), min_size=2, max_size=8))
def test_the_interval_is_the_one_that_scipy_gives_for_paired_logs(pairs: list[tuple[float, float]]) -> None:
    first, second = ([pair[arm] for pair in pairs] for arm in (0, 1))
    result = judge(ablation(first, second))
    assert result is not None
    logs = np.log(second) - np.log(first)
    if np.ptp(logs) < 1e-9:
        return  # scipy divides by zero
    from scipy import stats  # late: it takes a second

    expected = stats.ttest_1samp(logs, 0.0).confidence_interval(0.95)
    ratio = result.ratio
    assert math.log(ratio.low) == pytest.approx(expected.low, rel=1e-6, abs=1e-9)
    assert math.log(ratio.high) == pytest.approx(expected.high, rel=1e-6, abs=1e-9)
    assert ratio.low <= ratio.middle <= ratio.high


@pytest.mark.parametrize("case", ["a run is missing", "a run failed"])
def test_there_is_no_result_before_every_repeat_of_both(case: str) -> None:
    cut_short = ablation([1.0, 1.0], [2.0, 2.0])
    if case == "a run is missing":
        cut_short.arms[1].runs.pop()
    else:
        cut_short.arms[1].runs[-1] = run(1, 3, (2.0,) * 13, status=1)
    assert judge(cut_short) is None


def rounded(made: Ablation, half: float) -> Ablation:
    """Return the ablation again, of a script whose last digits are twice `half` seconds."""
    for arm in made.arms:
        arm.runs = [replace(one, rounding=Rounding(half, half, half)) for one in arm.runs]
    made.result = judge(made)
    return made


@pytest.mark.parametrize(
    ("title", "half", "low", "high"),
    [
        # The true values lie from 19.5 to 20.5 ms, so the second arm may take 19.5/20.5 to 20.5/19.5 as long.
        ("whole milliseconds", 0.5e-3, 0.9512, 1.0513),
        ("tenths", 0.05e-3, 0.9950, 1.0051),
        ("hundredths of a microsecond", 5e-9, 1.0, 1.0),
        ("a second", 0.5, 0.25, 4.0),
    ],
)
def test_equal_times_of_few_digits_are_equal_only_to_their_last_digit(
    title: str, half: float, low: float, high: float
) -> None:
    result = rounded(ablation([0.02] * 4, [0.02] * 4), half).result
    assert result is not None
    assert (result.ratio.low, result.ratio.middle, result.ratio.high) == pytest.approx((low, 1.0, high), abs=1e-3)
    assert result.ratio.low <= low + 1e-4  # never narrower than the digits
    assert result.ratio.high >= high - 1e-4
    assert result.rounding == pytest.approx(high - 1, abs=1e-3)
    assert (result.needed is None) is (result.rounding > 0.03 or high < 1.03)
    first = result.arms[0].interval
    assert first[1] >= 0.02 + half * (1 - 1e-9) or half > 0.01


def test_digits_and_repeats_both_widen_the_interval_and_more_repeats_make_up_for_neither() -> None:
    times = [0.0200, 0.0210, 0.0205], [0.0220, 0.0228, 0.0224]
    exact, coarse = (rounded(ablation(*times), half).result for half in (0.0, 0.5e-3))
    assert exact is not None
    assert coarse is not None
    assert coarse.ratio.middle == exact.ratio.middle
    assert coarse.ratio.low < exact.ratio.low < exact.ratio.high < coarse.ratio.high
    assert coarse.needed is None
    assert exact.rounding == 0.0


@pytest.mark.parametrize(("runtime", "half", "widens"), [(100.0, 0.5, True), (100.0, 0.0, False)])
def test_the_digits_of_train_runtime_count_and_a_measured_process_has_none(
    runtime: float, half: float, widens: bool
) -> None:
    for measure in (Measure.TRAIN_RUNTIME, Measure.PROCESS):
        made = ablation([0.02] * 3, [0.02] * 3)
        for arm in made.arms:
            arm.runs = [replace(one, train_runtime=runtime) for one in arm.runs]
        made.measure = measure
        result = rounded(made, half).result
        assert result is not None
        assert (result.ratio.high > 1) is (widens and measure is Measure.TRAIN_RUNTIME)
