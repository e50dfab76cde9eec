import math

import numpy as np
import pytest

from collbench.judge.stats import half_width, median_interval, trial_seconds
from collbench.measurement.sweep import stop_reason
from collbench.model.operations import Operation
from collbench.model.run import DataPoint, Measurement, Sample, StopReason

MIB = 2**20


def trials(size: int, *times: tuple[float, ...]) -> Measurement:
    samples = [Sample(batches, 1, concurrent=False) for batches in times]
    return Measurement(DataPoint(Operation.CE_WRITE, (0, 1), size), samples)


def single_batches(*times: float) -> list[tuple[float, ...]]:
    """Return trials of one batch each."""
    return [(time,) for time in times]


def spread(half_interval: float) -> list[tuple[float, ...]]:
    """Return three trials whose interval is ± `half` of the median, nearly: 3.058 deviations of their logs."""
    step = half_interval / 3.058
    return single_batches(1 - step, 1.0, 1 + step)


def stray(ratio: float) -> list[tuple[float, ...]]:
    """Return six trials at e^±0.1 and two whose logs have `ratio` times the square."""
    return from_logs(*[0.1, -0.1] * 3, 0.1 * math.sqrt(ratio), -0.1 * math.sqrt(ratio))


def from_logs(*logs: float) -> list[tuple[float, ...]]:
    """Return a trial of two equal batches for each log of seconds."""
    return [(math.exp(log), math.exp(log)) for log in logs]


@pytest.mark.parametrize(
    ("title", "measurement", "reason"),
    [
        ("two equal trials are too few", trials(MIB, *[(1.0,) * 5] * 2), None),
        ("three equal trials are enough", trials(MIB, *[(1.0,)] * 3), StopReason.PRECISION),
        ("six equal batches of one trial", trials(MIB, (1.0,) * 6), None),
        ("a large message within 1%", trials(MIB, *spread(0.0099)), StopReason.PRECISION),
        ("a large message beyond 1%", trials(MIB, *spread(0.0101)), None),
        ("a small message within 3%", trials(MIB - 1, *spread(0.0298)), StopReason.PRECISION),
        ("a small message beyond 3%", trials(MIB - 1, *spread(0.0302)), None),
        ("batches that differ, trials that agree", trials(MIB, *[(0.9, 1.1)] * 3), StopReason.PRECISION),
        ("one wild trial of three", trials(MIB, *single_batches(1.0, 1.0, 9.0)), None),
        ("one wild trial of ten does not count", trials(MIB, *single_batches(*[1.0] * 9, 9.0)), StopReason.PRECISION),
        ("noise known from eight trials", trials(MIB, *[(0.9, 0.9), (1.1, 1.1)] * 4), StopReason.NOISE),
        ("noise after seven trials", trials(MIB, *[(0.9, 0.9), (1.1, 1.1)] * 3, (0.9, 0.9)), None),
        (
            "noise that still grows",
            trials(MIB, *[(0.9, 0.9), (1.1, 1.1)] * 3, (0.5, 0.5), (2.0, 2.0)),
            None,
        ),
        # Six trials at e^±a and two at e^±b have (6a² + 2b²)/7 of a variance that was 6a²/5: changed by less than a
        # tenth from 6.804 to 10.164 a².
        ("noise that the last two raise by 9%", trials(MIB, *stray(2.0)), StopReason.NOISE),
        ("by 12%", trials(MIB, *stray(2.25)), None),
        ("that they lower by 9%", trials(MIB, *stray(0.5)), StopReason.NOISE),
        ("by 12%, too", trials(MIB, *stray(0.25)), None),
        ("batches that vary, in trials that do not", trials(MIB, *[(0.9, 1.1)] * 8), StopReason.PRECISION),
        (
            "noise that the third last trial showed",
            trials(MIB, *from_logs(0.1, -0.1, 0.1, -0.1, 0.1, 0.3, 0.15, -0.15)),
            StopReason.NOISE,
        ),
        ("nothing measured", trials(MIB), None),
    ],
)
def test_when_a_point_is_settled(title: str, measurement: Measurement, reason: StopReason | None) -> None:
    assert stop_reason(measurement) is reason


def test_the_requested_precision_is_exactly_enough() -> None:
    measurement = trials(MIB, (0.75, 1.0), (1.0, 1.0), (1.0, 1.25))
    half_interval = half_width(trial_seconds(measurement))
    assert stop_reason(measurement, half_interval) is StopReason.PRECISION
    assert stop_reason(measurement, half_interval * (1 - 1e-9)) is None


@pytest.mark.parametrize("noise", [0.002, 0.004, 0.007, 0.012, 0.02])
def test_stopping_when_precise_leaves_honest_intervals(noise: float) -> None:
    """1,500 data points of a fixed seed, looked at after each trial: intervals narrow by chance end some too early."""
    rng = np.random.default_rng(round(noise * 1e4))
    simulated_seconds = np.exp(rng.normal(0, noise, (1500, 12, 1)) + rng.normal(0, noise / 2, (1500, 12, 2)))
    covered = 0
    for seconds in simulated_seconds.tolist():
        measurement = trials(MIB)
        for batches in seconds:
            measurement.samples.append(Sample(tuple(batches), 1, concurrent=False))
            if stop_reason(measurement):
                break
        low, high = median_interval(trial_seconds(measurement)) or (0, 0)
        covered += low <= 1 <= high
    assert 0.92 <= covered / 1500 <= 0.98
