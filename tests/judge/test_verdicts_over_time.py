"""A GPU that is slower for part of a run, in trials that numpy draws."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from numpy.typing import NDArray

from collbench.judge.diagnose import Diagnosis, Kind, Severity, Verdict, judge
from collbench.model.operations import Operation
from collbench.model.run import Run
from collbench.report import verdicts
from tests.builders import measured, paths
from tests.judge.runs import COPIES, drawn
from tests.report.pages import text

Logs = NDArray[np.float64]
SLOWER = np.log(0.8)
MIB = 2**20


def links(count: int) -> list[tuple[int, int]]:
    return [*permutations(range(count), 2)]


def of_gpu(gpu: int, count: int = 4) -> NDArray[np.bool_]:
    return np.array([gpu in link for link in links(count)])


def noise(sigma: float, count: int = 4, passes: int = 3, seed: int = 1) -> Logs:
    """Return log rates, shape (kinds of copies, links, passes)."""
    return np.random.default_rng(seed).normal(0, sigma, (len(COPIES), count * (count - 1), passes))


def run_with(logs: Logs, count: int = 4, size: int = 64 * MIB) -> Run:
    return drawn(logs, count, paths(count), size)


def said(run: Run) -> list[Verdict]:
    return [verdict for verdict in judge(run) if verdict.kind is Kind.UNSTEADY]


@pytest.mark.parametrize("sigma", [0.001, 0.01, 0.03])
@pytest.mark.parametrize(("begin", "end", "passes"), [(1, 2, 3), (0, 1, 3), (2, 3, 3), (2, 5, 7)])
def test_a_gpu_that_is_slower_for_some_passes_is_named(sigma: float, begin: int, end: int, passes: int) -> None:
    logs = noise(sigma, passes=passes)
    logs[:, of_gpu(2), begin:end] += SLOWER
    run = run_with(logs)
    (verdict,) = said(run)
    assert (verdict.members, verdict.severity) == ((2,), Severity.CONTRADICTION)
    part = f"passes {begin + 1} to {end}" if end - begin > 1 else f"pass {end}"
    assert f"slower in {part} of {passes} than in the others" in verdicts.what(verdict, run)


def test_a_disturbance_need_not_begin_and_end_with_a_pass() -> None:
    """The last 40% of the first pass and the first 70% of the second are slow."""
    rng = np.random.default_rng(3)
    logs = noise(0.005)
    when = rng.random(logs.shape)
    slow = np.zeros(logs.shape, dtype=bool)
    slow[..., 0], slow[..., 1] = when[..., 0] > 0.6, when[..., 1] < 0.7
    logs += SLOWER * (slow & of_gpu(1)[:, None])
    assert [verdict.members for verdict in said(run_with(logs))] == [(1,)]


@pytest.mark.parametrize("sigma", [0.003, 0.02])
@pytest.mark.parametrize("where", [0, 1, 2])
def test_a_part_of_one_pass_suffices(where: int, sigma: float) -> None:
    """Fewer than half of the GPU's data points met the disturbance, each once."""
    rng, logs = np.random.default_rng(5), noise(sigma)
    slow = (rng.random(logs.shape[:2]) < 0.4) & of_gpu(3)
    logs[..., where] += SLOWER * slow
    assert [verdict.members for verdict in said(run_with(logs))] == [(3,)]


@pytest.mark.parametrize(("count", "points", "passes"), [(4, 12, 7), (2, 2, 5)])
def test_a_tenth_of_wild_trials_names_nobody(count: int, points: int, passes: int) -> None:
    for seed in range(8):
        wild = np.random.default_rng(seed).random((len(COPIES), points, passes)) < 0.1
        assert said(run_with(noise(0.01, count=count, passes=passes, seed=seed) - 0.7 * wild, count)) == []


@pytest.mark.parametrize("by_chance", [True, False])
def test_wild_trials_of_one_size_that_meet_name_nobody(by_chance: bool) -> None:
    """Only three data points of GPU1 have trials after the third pass; a tenth of all trials are 30% slower.

    Each is in one of two passes, as happens by chance in one run of a hundred, or in both.
    """
    rng = np.random.default_rng(1)
    early = noise(0.003) - 0.26 * (rng.random((len(COPIES), 12, 3)) < 0.1)
    late = rng.normal(0, 0.003, (6, 7))
    run = run_with(early)
    for number, pair in enumerate(pair for pair in links(4) if pair[0] < pair[1]):
        if 1 in pair:
            late[number, [4 + number % 2] if by_chance else [4, 5]] -= 0.26
        run.measurements.append(measured(Operation.ALLREDUCE, pair, (300 * np.exp(late[number])).tolist(), 64 * MIB))
    assert [verdict.members for verdict in said(run)] == ([] if by_chance else [(1,)])


def test_no_pair_of_such_a_gpu_agrees() -> None:
    logs = noise(0.002)
    logs[:, of_gpu(2), 1] += SLOWER
    run = run_with(logs)
    shown = text(verdicts.page(Diagnosis(run)))
    assert "3 of 6 pairs" in shown
    assert "measurement agree" not in shown


@pytest.mark.parametrize("count", [3, 4, 8])
def test_one_link_that_is_slow_for_a_while_names_no_gpu(count: int) -> None:
    """All works of a pair have it in common, so that they are no witnesses of their own: a third of GPU1's figures."""
    logs = noise(0.003, count=count, passes=7)
    pair = np.array([set(link) == {1, 2} for link in links(count)])
    logs[:, pair, 2:6] += SLOWER
    assert said(run_with(logs, count)) == []


def test_two_gpus_are_both_named() -> None:
    both = noise(0.002, count=2)
    both[..., 1] += SLOWER
    assert [verdict.members for verdict in said(run_with(both, 2))] == [(0, 1)]


def test_cores_are_disturbed_by_other_programs_all_the_time() -> None:
    logs = noise(0.002)
    logs[:, of_gpu(2), 1] += SLOWER
    assert said(replace(run_with(logs), backend="host")) == []


def test_trials_that_confirm_are_in_no_pass() -> None:
    """A judgment's fresh trials were made when the GPU was well again."""
    logs = noise(0.002, passes=6)
    logs[:, of_gpu(2), 1] += SLOWER
    run = run_with(logs)
    for measurement in run.measurements:
        measurement.samples[3:] = [replace(sample, confirms=True) for sample in measurement.samples[3:]]
    (verdict,) = said(run)
    assert "pass 2 of 3" in verdicts.what(verdict, run)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["normal", "two modes", "AR(1)", "one noisy link", "exponential"])
def test_noise_alone_names_nobody(kind: str, seed: int) -> None:
    rng, logs = np.random.default_rng(seed), noise(0.05, seed=seed)
    if kind == "two modes":
        logs = noise(0.003, seed=seed) - 0.06 * (rng.random(logs.shape) < 0.3)
    elif kind == "AR(1)":
        for trial in (1, 2):
            logs[..., trial] = 0.6 * logs[..., trial - 1] + 0.8 * logs[..., trial]
    elif kind == "one noisy link":
        logs = noise(0.002, seed=seed)
        logs[:, 0] *= 50
    elif kind == "exponential":
        logs = -0.05 * rng.exponential(size=logs.shape)
    assert said(run_with(logs)) == []


@pytest.mark.parametrize("what", ["all drift", "slow throughout", "small messages", "a little"])
def test_what_is_no_change_of_one_gpu(what: str) -> None:
    logs, size = noise(0.002), 64 * MIB
    if what == "all drift":
        logs += np.array([0.0, -0.05, -0.1])
    elif what == "slow throughout":
        logs[:, of_gpu(2)] += SLOWER
    elif what == "small messages":
        logs[:, of_gpu(2), 1] += SLOWER
        size = MIB // 4
    else:
        logs[:, of_gpu(2), 1] -= 0.03
    assert said(run_with(logs, size=size)) == []
