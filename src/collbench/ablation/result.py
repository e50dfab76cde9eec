"""What the runs come to: one value a run, the ratio of the arms, and what may be said of it. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean, median, stdev

from collbench.ablation.model import Ablation, Arm, ArmResult, Measure, Ratio, Result, TrainingRun

# Of a run's steps the first tenth is warm-up, and three at least: allocator, lazy kernels, NCCL's connections.
_WARM_UP_STEPS, _WARM_UP_PART = 3, 10


def warm_up(steps: int, skip: int | None) -> int:
    """Return how many of a run's first steps are dropped."""
    return skip if skip is not None else max(_WARM_UP_STEPS, math.ceil(steps / _WARM_UP_PART))


def step_value(run: TrainingRun, skip: int | None) -> float | None:
    """Return a run's median step in seconds, after the warm-up; None where nothing is left."""
    kept = run.step_seconds[warm_up(len(run.step_seconds), skip) :]
    return median(kept) if kept else None


def measure_of(runs: Sequence[TrainingRun], skip: int | None) -> Measure:
    """Return the nearest to a step that every run gives, so that all are read the same way."""
    if runs and all(step_value(run, skip) is not None for run in runs):
        return Measure.STEP
    if runs and all(run.train_runtime is not None for run in runs):
        return Measure.TRAIN_RUNTIME
    return Measure.PROCESS


def value(run: TrainingRun, measure: Measure, skip: int | None) -> float:
    """Return what a run took, in seconds; the measure is one that it gives."""
    if measure is Measure.STEP:
        return step_value(run, skip) or math.nan
    if measure is Measure.TRAIN_RUNTIME:
        return run.train_runtime or math.nan
    return run.wall_seconds


def judge(ablation: Ablation) -> Result | None:
    """Return the result once both arms have every repeat, of which there are two or more; None before.

    Seconds are geometric means, so that their quotient is the ratio. The ratio's interval comes from the repeats' own
    ratios: what changed between repeats reached both arms, and cancels.
    """
    logs = [_logs(ablation, arm) for arm in ablation.arms]
    if any(len(found) != ablation.repeats for found in logs):
        return None
    first, second = logs
    middle, low, high = _mean(second[repeat] - first[repeat] for repeat in sorted(first))
    return Result((_arm(first), _arm(second)), Ratio(middle, low, high))


def _logs(ablation: Ablation, arm: Arm) -> dict[int, float]:
    """Return the logarithm of each good run's value by repeat."""
    good = (run for run in arm.runs if run.status == 0)
    return {run.repeat: math.log(value(run, ablation.measure, ablation.skip)) for run in good}


def _arm(logs: dict[int, float]) -> ArmResult:
    middle, low, high = _mean(logs.values())
    return ArmResult(middle, (low, high))


def _mean(values: Iterable[float]) -> tuple[float, float, float]:
    """Return the mean of logarithms and its 95 % interval, as what they are logarithms of.

    By Student's t, for few values of about one normal distribution: at two repeats 12.7 standard errors, at three 4.3.
    """
    from scipy.special import stdtrit  # late: 0.1 s

    logs = list(values)
    reach = float(stdtrit(len(logs) - 1, 0.975)) * stdev(logs) / math.sqrt(len(logs))
    middle = fmean(logs)
    return math.exp(middle), math.exp(middle - reach), math.exp(middle + reach)
