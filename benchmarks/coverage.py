#!/usr/bin/env python3
"""How often the interval of a data point holds its true time, by the trials at which it ended (sim).

    python benchmarks/coverage.py [--runs N] [--seed S] [--jobs J] [--noise NAME …] [--out FILE]

Each run is `collbench pairs` on two GPUs: 14 sizes, copies and collectives. Machines and noises come from
judging/machines.py and judging/measured.py, a model of its own; plan, stopping rule and intervals are collbench's. The
bar for normal noise is 93 to 97%, for other noises 90%, give or take three standard errors, at each number of trials at
which 1% of the data points ended. Exits 1 where it is missed. FILE gets a line for each number of trials. `--factors`
computes the table in collbench.judge.stats again.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from statistics import fmean, median

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # deciding imports the tests' random machines
from deciding.bench import map_in_order, pairs_request
from judging.machines import Made, make_sized
from judging.measured import Ceiling, Correlated, MadeBackend, Noise, Situation, TwoModes, measure
from rows import save_rows

from collbench.judge.stats import half_width, time_interval
from collbench.measurement.backends.protocol import Step
from collbench.measurement.plan import point_of
from collbench.model.run import DataPoint


class HeavyTails(Noise):
    """Student's t with three degrees of freedom."""

    def of(self, members: tuple[int, ...], key: object, seconds: float) -> float:
        """Return the noise of a trial."""
        return self.sigma * float(self.rng.standard_t(3))


class OfTheRun(Correlated):
    """Each trial resembles the one timed just before it, of whatever data point: AR(1) with ρ = 0.6 over the run."""

    def of(self, members: tuple[int, ...], key: object, seconds: float) -> float:
        """Return the noise of a trial."""
        return super().of(members, None, seconds)


class Unequal(Noise):
    """Each data point has its own σ, from a third to three times `sigma`, log-uniform."""

    def __init__(self, sigma: float, rng: np.random.Generator) -> None:
        super().__init__(sigma, rng)
        self.scales: dict[object, float] = {}

    def of(self, members: tuple[int, ...], key: object, seconds: float) -> float:
        """Return the noise of a trial."""
        if key not in self.scales:
            self.scales[key] = 3.0 ** float(self.rng.uniform(-1.0, 1.0))
        return self.scales[key] * super().of(members, key, seconds)


class Skewed(Noise):
    """Exponential: never faster than a limit."""

    def of(self, members: tuple[int, ...], key: object, seconds: float) -> float:
        """Return the noise of a trial."""
        return self.sigma * float(self.rng.exponential())


SIGMAS = (0.002, 0.004, 0.007, 0.01, 0.015, 0.02, 0.03, 0.05)
MODELS: dict[str, tuple[Callable[[float, np.random.Generator], Noise], tuple[float, ...]]] = {
    "normal": (Noise, SIGMAS),
    "two modes": (TwoModes, (0.005, 0.01, 0.015, 0.02, 0.06)),
    "AR(1)": (Correlated, (0.002, 0.005, 0.01, 0.02)),
    "AR(1) of run": (OfTheRun, (0.002, 0.005, 0.01, 0.02)),
    "unequal": (Unequal, (0.002, 0.005, 0.01, 0.02)),
    "ceiling": (Ceiling, (0.005, 0.01, 0.05)),
    "heavy tails": (HeavyTails, (0.005, 0.01)),
    "skewed": (Skewed, (0.005, 0.01)),
}
LOW, HIGH, MIN_OF_OTHERS = 93.0, 97.0, 90.0
SHARE = 0.01  # of the data points: rarer numbers of trials have no bar
SYMMETRIC = (Noise, Correlated, OfTheRun, Unequal, HeavyTails)
DRAWS = 1_000_000  # which give the true median of a trial for all other noises


@dataclass(frozen=True, slots=True)
class Ended:
    """The data points of one noise that ended after so many trials: how many, and how many intervals are right."""

    noise: str
    sigma: float
    trials: int
    points: int
    right: int
    half: float  # the mean half interval

    @property
    def covered(self) -> float:
        return 100 * self.right / self.points

    def misses(self, low: float, high: float) -> bool:
        """Return whether the share is outside by more than three standard errors."""
        return not low - self._error(low) <= self.covered <= high + self._error(high)

    def _error(self, share: float) -> float:
        return 3 * math.sqrt(share * (100 - share) / self.points)


class Known(MadeBackend):
    """A machine whose times without noise are kept."""

    def __init__(self, made: Made, situation: Situation) -> None:
        super().__init__(made, situation)
        self.typical: dict[DataPoint, float] = {}

    def _typical(self, step: Step, members: tuple[int, ...], gbs: float) -> float:
        seconds = super()._typical(step, members, gbs)
        self.typical[point_of(step.work, members, step.size_bytes)] = seconds
        return seconds


def ended(noise: str, sigma: float, seed: int, number: int) -> list[tuple[int, bool, float]]:
    """Measure one machine; return each data point's trials, whether its interval is right, and half the interval."""
    model = MODELS[noise][0]
    rng = np.random.default_rng((seed, list(MODELS).index(noise), round(sigma * 1e5), number))
    backends: list[Known] = []

    def make_backend(made: Made, situation: Situation) -> Known:
        backends.append(Known(made, situation))
        return backends[-1]

    made = make_sized("nvswitch", rng, 2)
    run = measure(made, Situation(model(sigma, rng)), pairs_request(None), int(rng.integers(2**31)), make_backend)
    typical, slower = backends[0].typical, math.exp(true_median(model, sigma))
    found = []
    for one in run.measurements:
        low, high = time_interval(one) or (0.0, 0.0)
        found.append((len(one.samples), low <= typical[one.point] * slower <= high, half_width(one)))
    return found


@cache
def true_median(model: Callable[[float, np.random.Generator], Noise], sigma: float) -> float:
    """Return the true median of the log noise of a trial, with an error of a thousandth of its spread."""
    noise = model(sigma, np.random.default_rng(1))
    return 0.0 if model in SYMMETRIC else median(noise.of((0, 1), None, 0.0) for _ in range(DRAWS))


def row(noise: str, sigma: float, points: Sequence[tuple[int, bool, float]]) -> list[Ended]:
    """Return the data points of one noise by the number of their trials; 0 stands for all."""
    by_trials: dict[int, list[tuple[int, bool, float]]] = {0: list(points)}
    for point in points:
        by_trials.setdefault(point[0], []).append(point)
    return [
        Ended(noise, sigma, trials, len(some), sum(one[1] for one in some), fmean(one[2] for one in some))
        for trials, some in sorted(by_trials.items())
    ]


def line(rows: Sequence[Ended], points: Sequence[tuple[int, bool, float]]) -> str:
    """Return one noise's line: all, the mean number of trials, and the common numbers of trials."""
    every, trials = rows[0], fmean(point[0] for point in points)
    parts = [f"{one.trials}: {one.covered:.1f} ({one.points / every.points:.0%})" for one in _common(rows)]
    return f"{every.noise:<12} {every.sigma:5.1%}  {every.covered:5.1f}%  {trials:4.1f} trials  {'  '.join(parts)}"


def _common(rows: Sequence[Ended]) -> list[Ended]:
    return [one for one in rows[1:] if one.points >= SHARE * rows[0].points]


def misses(rows: Sequence[Ended]) -> int:
    """Return how many figures of one noise miss the bar."""
    low, high = (LOW, HIGH) if rows[0].noise == "normal" else (MIN_OF_OTHERS, 100.0)
    return sum(one.misses(low, high) for one in _common(rows))


def factor_lines(draws: int) -> list[str]:
    """Return the quantiles of |median| over standard deviation of three to five normal values, each with its error."""
    rng = np.random.default_rng(1)
    lines = []
    for n in (3, 4, 5):
        quantiles = []
        for _ in range(8):
            values = rng.standard_normal((draws // 8, n))
            quantiles.append(np.quantile(np.abs(np.median(values, axis=1)) / values.std(axis=1, ddof=1), [0.95, 0.965]))
        factors, errors = np.mean(quantiles, axis=0), np.std(quantiles, axis=0, ddof=1) / 8**0.5
        by_level = zip(("95%", "96.5%"), factors, errors, strict=True)
        levels = (f"{level} {factor:.3f} ± {error:.4f}" for level, factor, error in by_level)
        lines.append(f"{n} trials: {', '.join(levels)}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=100, metavar="N", help="machines of each noise")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--noise", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--factors", action="store_true", help="print the factors for three to five trials instead")
    parser.add_argument("--out", type=Path, metavar="FILE", help="a line of CSV for each number of trials")
    options = parser.parse_args()
    if options.factors:
        print("\n".join(factor_lines(8_000_000)))
        return 0
    rows: list[Ended] = []
    missed = 0
    print(f"coverage (sim) of {options.runs} runs of pairs on two GPUs, seed {options.seed}; by trials at the end")
    for noise in options.noise:
        for sigma in MODELS[noise][1]:
            look = partial(ended, noise, sigma, options.seed)
            points = [one for run in map_in_order(look, range(options.runs), options.jobs, chunk=4) for one in run]
            found = row(noise, sigma, points)
            print(line(found, points), flush=True)
            rows, missed = [*rows, *found], missed + misses(found)
    print(f"{missed} figures miss the bar")
    if options.out is not None:
        save_rows(options.out, [asdict(one) for one in rows])
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
