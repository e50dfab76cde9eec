"""Noise of any distribution, on machines that are well and on machines with a slow link."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import combinations, permutations

import pytest

from collbench.judge.diagnose import Kind
from collbench.judge.point_noise import note_noise
from collbench.model.operations import Operation
from collbench.model.run import Run
from tests.builders import gpus, measured, paths, run_of
from tests.judge.checked import COPIES, Members, faults

Noise = Callable[[random.Random], float]


def below_a_ceiling(sigma: float) -> Noise:
    """Return log-normal noise of a rate that is never more than 3% above its median."""
    return lambda rng: min(rng.gauss(0, sigma), 0.03)


NOISES: dict[str, Noise] = {
    "normal, 7%": lambda rng: rng.gauss(0, 0.07),
    "below a ceiling, 7%": below_a_ceiling(0.07),
    "below a ceiling, 10%": below_a_ceiling(0.1),
    "below a ceiling, 30%": below_a_ceiling(0.3),
    "exponential, 3%": lambda rng: -rng.expovariate(1 / 0.03),
    "exponential, 20%": lambda rng: -rng.expovariate(1 / 0.2),
    "one trial of ten half as fast": lambda rng: rng.gauss(0, 0.01) - 0.7 * (rng.random() < 0.1),
}


def copied(noise: Noise, seed: int, count: int, trials: int, slow: Members = (), factor: float = 1.0) -> Run:
    """Return copies and an all-reduce on all pairs, each of so many trials; those on `slow` are slower."""
    rng = random.Random(f"{seed} {count} {trials}")
    places = [(work, link) for work in COPIES for link in permutations(range(count), 2)]
    places += [(Operation.ALLREDUCE, pair) for pair in combinations(range(count), 2)]
    return run_of(
        gpus(count),
        [
            measured(
                work, link, [(factor if {*link} == {*slow} else 1) * 380 * math.exp(noise(rng)) for _ in range(trials)]
            )
            for work, link in places
        ],
    )


@pytest.mark.parametrize("trials", [3, 7])
def test_trials_that_resemble_those_before_accuse_nobody(trials: int) -> None:
    """AR(1) with ρ = 0.9 and σ = 2%: the trials of a link lie near each other, and may all lie far below.

    How much they resemble each other is known roughly, so some runs err: without it 25 of 40 of seven trials.
    """

    def run(seed: int) -> Run:
        last: list[float] = []

        def noise(rng: random.Random) -> float:
            begins = len(last) % trials == 0
            last.append(rng.gauss(0, 0.02) if begins else 0.9 * last[-1] + rng.gauss(0, 0.02 * math.sqrt(0.19)))
            return last[-1]

        made = copied(noise, seed, 4, trials)
        note_noise(made)
        return made

    assert sum(bool(faults(run(seed))) for seed in range(20)) <= 1


@pytest.mark.parametrize(
    ("noise", "count", "trials"),
    [*((noise, 4, 3) for noise in NOISES), *((noise, 4, 7) for noise in [*NOISES][::2]),
     *((noise, 2, 3) for noise in [*NOISES][1::2]), ("exponential, 20%", 8, 3)],
)  # fmt: skip
def test_a_healthy_machine_is_well_however_its_noise_is_distributed(noise: str, count: int, trials: int) -> None:
    """A few machines of each size; benchmarks/verdicts.py judges thousands."""
    wrong = [seed for seed in range(24 // count) if faults(copied(NOISES[noise], seed, count, trials))]
    assert len(wrong) <= 1, wrong


@pytest.mark.parametrize(
    ("sigma", "trials", "factor", "count"),
    [(0.001, 3, 0.96, 8), (0.005, 3, 0.94, 4), (0.02, 3, 0.8, 4), (0.01, 7, 0.92, 4), (0.02, 12, 0.92, 4),
     (0.1, 7, 0.5, 4)],
)  # fmt: skip
def test_a_slow_pair_is_found_in_noise_below_a_ceiling(sigma: float, trials: int, factor: float, count: int) -> None:
    for seed in range(2):
        pair = (seed % count, (seed + 1) % count)
        found = faults(copied(below_a_ceiling(sigma), seed, count, trials, pair, factor))
        assert any(one.members == tuple(sorted(pair)) for one in found), (seed, found)
        assert {one.kind for one in found} <= {
            Kind.INTRA_LABEL_OUTLIER,
            Kind.NV_DEGRADED,
            Kind.COLLECTIVE_CONTRADICTION,
        }


@pytest.mark.parametrize(("wild", "factor"), [(0.985, 0.92), (0.99, 0.94)])
def test_the_slower_of_two_bridges_is_found_by_what_noise_is_like_on_all_links(wild: float, factor: float) -> None:
    """The other bridge has six trials, which are too few to say how rare such low ones are."""
    bridges = dict.fromkeys(((0, 1), (2, 3)), "NV2")
    found = [
        measured(
            Operation.CE_WRITE,
            link,
            [
                (45.0 if tuple(sorted(link)) in bridges else 22.0) * (factor if {*link} == {0, 1} else 1.0) * trial
                for trial in (1.0, wild, 1.0)
            ],
            64 * 2**20,
        )
        for link in permutations(range(8), 2)
    ]
    (verdict,) = faults(run_of(gpus(8), found, paths(8, "NV1", bridges)))
    assert (verdict.kind, verdict.members) == (Kind.INTRA_LABEL_OUTLIER, (0, 1))
