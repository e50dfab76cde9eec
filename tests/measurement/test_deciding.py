"""How many trials the deciding data points get: more where noise would hide a slow pair."""

import math
import random
from collections import defaultdict
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from collbench.measurement.backends.protocol import Step
from collbench.measurement.sweep import Trials, Watcher, trials_wanted, undecided
from collbench.model.errors import StepFailed
from collbench.model.operations import Operation, Work
from collbench.model.run import Measurement, Members, Run, StopReason
from tests.builders import GIB, measured, noisy, paths
from tests.measurement.fakes import HURRIED, MIB, PATIENT, FakeBackend, empty, plan_for
from tests.measurement.test_sweep import swept


def deviations(sigma: float) -> list[list[float]]:
    return [noise.tolist() for noise in np.random.default_rng(1).normal(0.0, sigma, (28, 7))]


@pytest.mark.parametrize(
    ("title", "sigma", "least", "most"),
    [  # (1.2533 σ / 0.75%)² trials bring a median's error to 0.75%
        ("no noise: no trial more", 0.0, 0, 0),
        ("the 0.5% of a real machine: fewer than there are", 0.005, 1, 1),
        ("1%", 0.01, 2, 4),
        ("2%: twelve", 0.02, 9, 14),
        ("3%: no more than fifteen", 0.03, 15, 15),
        ("6%: more trials would not help", 0.06, 0, 0),
    ],
)
def test_trials_follow_the_noise(title: str, sigma: float, least: int, most: int) -> None:
    assert least <= trials_wanted(deviations(sigma)) <= most


def pairs(sigma: float, count: int = 4, trials: int = 7) -> list[Measurement]:
    members = combinations(range(count), 2)
    return [measured(Operation.ALLREDUCE, (a, b), noisy(300.0, sigma, 10 * a + b, trials)) for a, b in members]


@pytest.mark.parametrize(
    ("title", "measurements", "points"),
    [
        ("calm pairs", pairs(0.003), 0),
        ("noisy pairs", pairs(0.02), 6),
        ("noisy pairs after fifteen trials", pairs(0.02, trials=15), 0),
        ("one pair has nothing to be compared with", pairs(0.02, count=2), 0),
        ("nothing", [], 0),
    ],
)
def test_which_points_need_more(title: str, measurements: list[Measurement], points: int) -> None:
    assert len(undecided(measurements, paths(4))) == points


def test_noise_is_each_labels_own() -> None:
    across = {(0, 2): "SYS", (0, 3): "SYS", (1, 2): "SYS", (1, 3): "SYS"}
    measurements = [
        measured(Operation.ALLREDUCE, pair, noisy(50.0, 0.02 if pair in across else 0.002, sum(pair), 7), GIB)
        for pair in combinations(range(4), 2)
    ]
    assert {point.members for point in undecided(measurements, paths(4, "NV2", across))} == set(across)


# Factors of successive trials; any two differ by at least 2%.
RESTLESS = (1.0, 1.03, 0.98, 1.05, 1.01, 0.96, 1.04)


def trials_of_largest_allreduces(run: Run) -> list[int]:
    allreduces = [measurement for measurement in run.measurements if measurement.point.operation is Operation.ALLREDUCE]
    largest_bytes = max(allreduce.point.size_bytes for allreduce in allreduces)
    return [len(allreduce.samples) for allreduce in allreduces if allreduce.point.size_bytes == largest_bytes]


def test_a_sweep_measures_noisy_pairs_more_while_there_is_time() -> None:
    assert set(trials_of_largest_allreduces(swept(FakeBackend(4), plan_for(4)))) == {PATIENT.deciding}
    noisy_trials = trials_of_largest_allreduces(swept(FakeBackend(4, jitter=RESTLESS), plan_for(4)))
    assert min(noisy_trials) > PATIENT.deciding
    assert max(noisy_trials) <= 15


def test_an_allreduce_on_the_only_pair_is_compared_with_none_and_measured_as_any_other_point() -> None:
    assert trials_of_largest_allreduces(swept(FakeBackend(2), plan_for(2), HURRIED)) == [HURRIED.screening]


def test_copies_of_two_devices_are_compared_by_direction() -> None:
    copies = Work(Operation.CE_WRITE)
    plan = replace(plan_for(2), groups={copies: plan_for(2).groups[copies]})
    largest = [one for one in swept(FakeBackend(2), plan, HURRIED).measurements if one.point.size_bytes == 64 * MIB]
    assert [len(one.samples) for one in largest] == [HURRIED.deciding] * 2


@pytest.mark.parametrize(("title", "budget_s", "jitter"), [("all", -1.0, (1.0,)), ("noisy", 3600.0, RESTLESS)])
def test_deciding_trials_are_spread_over_the_first_three_of_all_others(
    title: str, budget_s: float, jitter: tuple[float, ...]
) -> None:
    """What disturbs a pair for a third of that time meets a third of its trials, not most of them."""
    plan, backend, watcher = plan_for(4), FakeBackend(4, jitter=jitter), Watcher(lambda *_: None, lambda: None)
    alone = frozenset((work, members) for work, groups in plan.groups.items() for members in groups)
    trials = Trials(replace(plan, isolated=alone), empty(4), replace(PATIENT, deciding=9), watcher)
    trials.make(backend, random.Random(1), watcher.clock() + budget_s)
    others, places = 0, defaultdict[Members, list[int]](list)
    for step in backend.steps:
        if step.work.operation is Operation.ALLREDUCE and step.size_bytes == 64 * MIB:
            places[step.groups[0]].append(others)
        else:
            others += 1
    every = 3 * (12 * 2 + 6)
    assert others >= every
    for of_pair in places.values():
        assert len(of_pair) >= 9
        assert sum(place >= every for place in of_pair) <= 0.4 * len(of_pair)
        for begin in range(0, 2 * every // 3, 5):
            assert sum(begin <= place < begin + every // 3 for place in of_pair) <= 0.5 * len(of_pair)


def test_noisy_pairs_get_no_more_trials_past_the_deadline() -> None:
    run = swept(FakeBackend(4, jitter=RESTLESS), plan_for(4), HURRIED)
    assert set(trials_of_largest_allreduces(run)) == {HURRIED.deciding}
    assert {measurement.stop for measurement in run.measurements} <= {StopReason.BUDGET, StopReason.PRECISION}
    assert math.isfinite(run.seconds)


def test_a_pair_that_fails_gets_no_more_trials() -> None:
    def on_step(_number: int, step: Step) -> None:
        if step.work.operation is Operation.ALLREDUCE and (0, 1) in step.groups:
            raise StepFailed("hang: no answer within 5 s")

    run = swept(FakeBackend(4, jitter=RESTLESS, on_step=on_step), plan_for(4))
    failed = [
        measurement for measurement in run.measurements if measurement.point.members == (0, 1) and measurement.failure
    ]
    assert failed
    assert all(not measurement.samples for measurement in failed)
