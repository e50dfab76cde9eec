"""When an ablation stops training, what the GPU's own time shows, and whether its intervals hold the truth."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from collbench.ablations.ablation import MIN_REPEATS, Ablation, Measure, Stop, TrainingRun, gpu_value, judge, stop_of
from collbench.ablations.child import Reader, gpu_seconds
from tests.ablations.made import ablation, run

STEP, RUN_S = 0.024, 15.0

Noise = Callable[[int, int], float]


def trained(
    noise: Noise, ratio: float = 1.25, budget: float = 180.0, gpu: tuple[float, float] | None = None
) -> Ablation:
    """Return an ablation that trains until its stopping rule ends it, on a host whose noise is a function (sim).

    `noise(repeat, arm)` is added to the logarithm of a run's step; `gpu` are the GPU's own seconds in each arm.
    """
    ablated = _empty(budget)
    spent, order = 0.0, 0
    while ablated.stop is None:
        for number in (0, 1):
            step = STEP * (ratio if number else 1.0) * math.exp(noise(ablated.repeats, number))
            gpu_steps = (gpu[number],) * 10 if gpu else ()
            training_run = TrainingRun(ablated.repeats, order, 0, RUN_S, (1.0,) * 3 + (step,) * 10, None, gpu_steps)
            ablated.arms[number].runs.append(training_run)
            order, spent = order + 1, spent + RUN_S
        ablated.repeats += 1
        ablated.measure = Measure.STEP
        ablated.result = judge(ablated)
        ablated.stop = stop_of(ablated, spent)
    return ablated


def _empty(budget: float) -> Ablation:
    empty = ablation([1.0, 1.0], [1.0, 1.0])
    for arm in empty.arms:
        arm.runs = []
    empty.repeats, empty.result, empty.budget_seconds = 0, None, budget
    return empty


def gaussian(sigma: float, seed: int) -> Noise:
    order = random.Random(seed)
    return lambda _repeat, _arm: order.gauss(0, sigma)


def test_a_quiet_machine_is_done_after_three_repeats() -> None:
    ablated = trained(gaussian(0.001, 1))
    assert (ablated.stop, ablated.repeats) == (Stop.PRECISE, MIN_REPEATS)
    assert ablated.result is not None
    assert ablated.result.needed is None
    assert ablated.result.ratio.middle == pytest.approx(1.25, rel=0.005)


def test_a_noisy_machine_stops_at_the_budget_and_gives_the_repeats_needed() -> None:
    """As two H200 behind a busy host: runs of one arm differed by 15%."""
    ablated = trained(gaussian(0.15, 2), ratio=1.0)
    assert ablated.stop is Stop.BUDGET
    assert ablated.repeats == 6  # 30 s each, 180 s
    assert ablated.result is not None
    assert ablated.result.needed is not None
    assert ablated.result.spread is not None
    assert ablated.result.spread.between == pytest.approx(0.15, rel=0.6)
    assert ablated.result.spread.within == 0.0
    again = trained(gaussian(0.15, 3), ratio=1.0, budget=RUN_S * 2 * 3 * ablated.result.needed)
    assert again.stop is Stop.PRECISE
    assert again.repeats < 3 * ablated.result.needed


def test_the_budget_is_kept_but_for_three_repeats() -> None:
    for budget in (1.0, 100.0, 200.0, 1000.0):
        ablated = trained(gaussian(0.3, 4), budget=budget)
        assert ablated.repeats >= MIN_REPEATS
        assert ablated.repeats == MIN_REPEATS or ablated.repeats * 2 * RUN_S <= budget


def test_where_the_host_bounds_both_arms_no_more_is_trained_for_its_noise() -> None:
    ablated = trained(gaussian(0.2, 5), gpu=(0.012, 0.0132))
    assert ablated.stop is Stop.HOST
    assert ablated.repeats < 6
    assert ablated.result is not None
    assert ablated.result.gpu is not None
    assert ablated.result.gpu.host_bound == (True, True)
    assert ablated.result.gpu.ratio.middle == pytest.approx(1.1)


@pytest.mark.parametrize(
    ("title", "gpu", "bound"),
    [
        ("the GPU bounds both", (0.0236, 0.0295), (False, False)),
        ("the host bounds both", (0.012, 0.015), (True, True)),
        ("without the links the GPU bounds it", (0.012, 0.0298), (True, False)),
    ],
)
def test_whether_host_or_gpu_bounds_a_step(title: str, gpu: tuple[float, float], bound: tuple[bool, bool]) -> None:
    ablated = trained(gaussian(0.002, 6), gpu=gpu)
    assert ablated.result is not None
    assert ablated.result.gpu is not None
    assert ablated.result.gpu.host_bound == bound, title


def test_intervals_hold_the_truth_although_stopping_is_checked_after_each_repeat() -> None:
    """150 ablations (sim), always the same: 95% less three standard errors of such a count."""
    covered = 0
    for seed in range(150):
        ablated = trained(gaussian(0.04, 1000 + seed), ratio=1.1, budget=300.0)
        assert ablated.result is not None
        covered += ablated.result.ratio.low <= 1.1 <= ablated.result.ratio.high
    assert covered / 150 >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / 150)


def test_a_fixed_number_of_repeats_is_kept_however_it_comes_out() -> None:
    ablated = ablation([1.0, 1.0, 1.0], [1.3, 1.1, 0.9])
    assert stop_of(ablated, 1e9) is Stop.REPEATS
    ablated.arms[1].runs.pop()
    assert stop_of(ablated, 1e9) is None


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        ("step 3 step_time=24.1ms gpu_time=18.2ms", 0.0182),
        ("GPU time: 0.5 s", 0.5),
        ("step_time=24.1ms", None),
        ("gpu_time=-3ms", None),
        ("gpu_timer=3ms", None),
    ],
)
def test_the_gpus_own_time_of_a_line(line: str, seconds: float | None) -> None:
    assert gpu_seconds(line) == seconds


def test_the_reader_keeps_both_and_the_warm_up_is_dropped_where_each_step_has_one() -> None:
    reader = Reader()
    reader.feed(b"".join(b"step_time=%dms gpu_time=%dms\n" % (n + 1, n + 10) for n in range(5)))
    reader.close()
    assert reader.gpu == pytest.approx([0.010, 0.011, 0.012, 0.013, 0.014])
    assert len(reader.steps) == 5
    whole = replace(run(0, 0, tuple(reader.steps)), gpu_seconds=tuple(reader.gpu))
    assert gpu_value(whole, None) == pytest.approx(0.0135)
    assert gpu_value(replace(whole, gpu_seconds=(0.5, 0.7)), None) == 0.6  # some steps, measured after the warm-up
    assert gpu_value(replace(whole, gpu_seconds=()), None) is None
