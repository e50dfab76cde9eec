"""The noise of data points, from trials that numpy draws."""

from collections.abc import Callable
from itertools import permutations

import numpy as np
import pytest
from numpy.typing import NDArray

from collbench.judge.point_noise import note_noise
from collbench.judge.stats import half_width
from collbench.model.operations import Operation
from collbench.model.run import Measurement, Noise, Run
from tests.builders import GIB, gpus, measured, paths, run_of
from tests.judge.runs import drawn

Logs = NDArray[np.float64]
LINKS = [*permutations(range(4), 2)]


def run_with(logs: Logs) -> Run:
    """Return a run with copies on the twelve links of four GPUs, shape (works, links, trials); GPU3 is over PCIe."""
    return drawn(logs, 4, paths(4, but={(0, 3): "SYS", (1, 3): "SYS", (2, 3): "SYS"}))


def normal(sigma: float, trials: int = 3, works: int = 4, seed: int = 1) -> Logs:
    return np.random.default_rng(seed).normal(0, sigma, (works, len(LINKS), trials))


def noises(run: Run, keep: Callable[[Measurement], bool] = lambda _one: True) -> list[Noise]:
    found = [measurement.noise for measurement in run.measurements if keep(measurement)]
    return [noise for noise in found if noise]


@pytest.mark.parametrize("trials", [3, 7])
def test_equally_noisy_data_points_share_their_sigma(trials: int) -> None:
    found = noises(run_with(normal(0.01, trials)))
    assert len(found) == 48
    assert np.median([one.sigma for one in found]) == pytest.approx(0.01, rel=0.2)
    assert {(one.widening, one.uneven) for one in found} == {(1.0, False)}


def test_equal_trials_are_luck_and_narrow_no_interval() -> None:
    logs = normal(0.01)
    logs[1, 2] = 0.0
    run = run_with(logs)
    lucky = run.measurements[len(LINKS) + 2]
    assert half_width(lucky) == pytest.approx(np.median([half_width(one) for one in run.measurements]), rel=0.2)


def test_a_noisy_link_has_its_own_noise_and_its_kind_keeps_theirs() -> None:
    logs = normal(0.002)
    logs[:, 0] *= 20
    run = run_with(logs)
    on_it = noises(run, lambda one: one.point.members == LINKS[0])
    others = noises(run, lambda one: not {*LINKS[0]} & {*one.point.members})
    assert min(one.sigma for one in on_it) > 0.02
    assert np.median([other.sigma for other in others]) == pytest.approx(0.002, rel=0.3)


def test_labels_have_noises_of_their_own() -> None:
    logs = normal(0.001)
    logs[:, [number for number, link in enumerate(LINKS) if 3 in link]] *= 30
    run = run_with(logs)
    over_pcie = noises(run, lambda one: 3 in one.point.members)
    over_nvlink = noises(run, lambda one: 3 not in one.point.members)
    assert min(one.sigma for one in over_pcie) > 0.02
    assert np.median([one.sigma for one in over_nvlink]) == pytest.approx(0.001, rel=0.3)


def test_few_data_points_show_no_noise_but_their_own() -> None:
    run = run_of(gpus(2), [measured(Operation.ALLREDUCE, (0, 1), [1.0, 1.0, 1.0], GIB >> shift) for shift in range(9)])
    note_noise(run)
    assert noises(run) == []


def test_trials_that_resemble_those_before_widen_intervals() -> None:
    """AR(1) with ρ = 0.6: an interval that believes in independent trials must be wider by √(1.6 / 0.4) = 2."""
    fresh = normal(0.01, works=4, trials=6)
    logs = fresh.copy()
    for trial in range(1, 6):
        logs[..., trial] = 0.6 * logs[..., trial - 1] + 0.8 * fresh[..., trial]
    assert [one.widening for one in noises(run_with(logs))] == pytest.approx([2] * 48, rel=0.25)


def test_two_modes_are_seen_and_hidden_by_no_lucky_trials() -> None:
    """Three trials in ten are 6% slower: where all three are equal by chance, nothing but the kind shows the modes."""
    rng = np.random.default_rng(2)
    logs = -0.06 * (rng.random((4, len(LINKS), 3)) < 0.3) + normal(0.003)
    run = run_with(logs)
    assert all(one.uneven for one in noises(run))
    torn = [one for one in run.measurements if np.ptp([np.log(s.seconds[0]) for s in one.samples]) > 0.05]
    assert len(torn) > 20
    assert min(map(half_width, torn)) > 0.05


@pytest.mark.parametrize("seed", range(5))
def test_different_noises_are_no_modes(seed: int) -> None:
    scale = np.exp(np.random.default_rng(seed).uniform(-3, 0, (4, len(LINKS), 1)))
    assert not any(one.uneven for one in noises(run_with(normal(0.05, seed=seed + 10) * scale)))
