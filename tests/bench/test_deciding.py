"""How many trials the data points that decide get: more where noise would hide a slow pair."""

import math
from itertools import combinations

import numpy as np
import pytest

from collbench.backends.protocol import Step
from collbench.bench.sweep import trials_wanted, undecided
from collbench.model.errors import StepFailed
from collbench.model.operations import Operation
from collbench.model.run import Measurement, Run, StopReason
from tests.bench.fakes import FakeBackend
from tests.bench.test_sweep import HURRIED, PATIENT, plan_for, swept
from tests.builders import GIB, measured, noisy, paths


def drawn(sigma: float, trials: int = 7) -> list[list[float]]:
    return [noise.tolist() for noise in np.random.default_rng(1).normal(0.0, sigma, (28, trials))]


@pytest.mark.parametrize(
    ("title", "sigma", "least", "most"),
    [  # (1.2533 σ / 0.8 %)² trials bring a median's error to 0.8 %
        ("no noise: no trial more", 0.0, 0, 0),
        ("the 0.5 % of a real machine: fewer than there are", 0.005, 1, 1),
        ("1 %", 0.01, 2, 4),
        ("2 %: ten", 0.02, 8, 12),
        ("3 %: no more than fifteen", 0.03, 15, 15),
        ("6 %: more trials would not help", 0.06, 0, 0),
    ],
)
def test_trials_follow_the_noise(title: str, sigma: float, least: int, most: int) -> None:
    assert least <= trials_wanted(drawn(sigma)) <= most


def pairs(sigma: float, count: int = 4, trials: int = 7) -> list[Measurement]:
    members = combinations(range(count), 2)
    return [measured(Operation.ALLREDUCE, (a, b), noisy(300.0, sigma, 10 * a + b, trials)) for a, b in members]


@pytest.mark.parametrize(
    ("title", "found", "points"),
    [
        ("calm pairs", pairs(0.003), 0),
        ("noisy pairs", pairs(0.02), 6),
        ("noisy pairs after fifteen trials", pairs(0.02, trials=15), 0),
        ("one pair has nothing to be compared with", pairs(0.02, count=2), 0),
        ("nothing", [], 0),
    ],
)
def test_which_points_need_more(title: str, found: list[Measurement], points: int) -> None:
    assert len(undecided(found, paths(4))) == points


def test_noise_is_each_labels_own() -> None:
    across = {(0, 2): "SYS", (0, 3): "SYS", (1, 2): "SYS", (1, 3): "SYS"}
    found = [
        measured(Operation.ALLREDUCE, pair, noisy(50.0, 0.02 if pair in across else 0.002, sum(pair), 7), GIB)
        for pair in combinations(range(4), 2)
    ]
    assert {point.members for point in undecided(found, paths(4, "NV2", across))} == set(across)


# Trials in turn, of which any two differ by 2 % and more.
RESTLESS = (1.0, 1.03, 0.98, 1.05, 1.01, 0.96, 1.04)


def largest_sums(run: Run) -> list[int]:
    points = [found for found in run.measurements if found.point.operation is Operation.ALLREDUCE]
    largest = max(found.point.size_bytes for found in points)
    return [len(found.samples) for found in points if found.point.size_bytes == largest]


def test_a_sweep_measures_noisy_pairs_more_while_there_is_time() -> None:
    assert set(largest_sums(swept(FakeBackend(4), plan_for(4)))) == {PATIENT.deciding}
    noisy_sums = largest_sums(swept(FakeBackend(4, jitter=RESTLESS), plan_for(4)))
    assert min(noisy_sums) > PATIENT.deciding
    assert max(noisy_sums) <= 15


def test_past_the_deadline_it_does_not() -> None:
    run = swept(FakeBackend(4, jitter=RESTLESS), plan_for(4), HURRIED)
    assert set(largest_sums(run)) == {HURRIED.deciding}
    assert {found.stop for found in run.measurements} <= {StopReason.BUDGET, StopReason.PRECISION}
    assert math.isfinite(run.seconds)


def test_a_pair_that_fails_gets_no_more() -> None:
    def on_step(_number: int, step: Step) -> None:
        if step.operation is Operation.ALLREDUCE and (0, 1) in step.groups:
            raise StepFailed("hang: no answer within 5 s")

    run = swept(FakeBackend(4, jitter=RESTLESS, on_step=on_step), plan_for(4))
    failed = [found for found in run.measurements if found.point.members == (0, 1) and found.failure]
    assert failed
    assert all(not found.samples for found in failed)
