#!/usr/bin/env python3
"""How often the interval of a data point holds its true median (sim): `python benchmarks/coverage.py [--out FILE]`.

Draws random trials of two batches each; collbench.measurement.sweep decides when to stop, and collbench.judge.stats
computes the interval. The head of a column is σ of a trial's noise; each batch adds normal noise of half that σ.
"stop ±1%" checks after every trial from the third on, as a sweep does, and stops at twelve, the budget. The bar is 93
to 97% in every row of normal noise; the other rows have none. Exits 1 where it is missed. `--factors` computes the
table in collbench.judge.stats again. Seeds are fixed.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from collbench.judge.stats import median_interval, trial_seconds
from collbench.measurement.sweep import stop_reason
from collbench.model.operations import Operation
from collbench.model.run import DataPoint, Measurement, Sample

Noise = NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, ...]], Noise]
MAX_TRIALS = 12
BAR = (93.0, 97.0)
SIGMAS = (0.002, 0.004, 0.007, 0.01, 0.015, 0.02, 0.03)
# The least number of trials, and the relative half interval at which to stop: None stops at the least number.
RULES: dict[str, tuple[int, float | None]] = {
    "3 trials": (3, None),
    "7 trials": (7, None),
    "12 trials": (12, None),
    "stop ±1%": (3, 0.01),
    "stop ±3%": (3, 0.03),
}
_POINT = DataPoint(Operation.CE_WRITE, (0, 1), 2**20)
_SEED = 20261122


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> Noise:
    return rng.standard_normal(shape)


def heavy_tails(rng: np.random.Generator, shape: tuple[int, ...]) -> Noise:
    """Student's t with three degrees of freedom."""
    return rng.standard_t(3, shape)


def slow_trials(rng: np.random.Generator, shape: tuple[int, ...]) -> Noise:
    """Every twentieth trial is slower, by eight σ on average (half-normal)."""
    return rng.standard_normal(shape) + (rng.random(shape) < 0.05) * 10 * np.abs(rng.standard_normal(shape))


def skewed(rng: np.random.Generator, shape: tuple[int, ...]) -> Noise:
    """Exponential: never faster than a limit."""
    return rng.exponential(1.0, shape)


MODELS: dict[str, Draw] = {
    "normal": normal,
    "heavy tails": heavy_tails,
    "5% slow trials": slow_trials,
    "skewed": skewed,
}


def noise_of_batches(draw: Draw, rng: np.random.Generator, count: int) -> Noise:
    """Return the noise of the batches of `count` trials, in σ, shape (count, 2)."""
    return draw(rng, (count, 1)) + 0.5 * rng.standard_normal((count, 2))


@cache
def true_median(draw: Draw) -> float:
    """Return the true median of a trial's noise, in σ, with an error of about 0.001."""
    return float(np.median(noise_of_batches(draw, np.random.default_rng(_SEED), 2_000_000).mean(axis=1)))


def measurement_of(seconds: Sequence[Sequence[float]], min_trials: int, precision: float | None) -> Measurement:
    """Return a data point of the first trials, as many as the rule makes."""
    measurement = Measurement(_POINT)
    for batches in seconds:
        measurement.samples.append(Sample(tuple(batches), 1, concurrent=False))
        enough = len(measurement.samples) >= min_trials
        if enough and (precision is None or stop_reason(measurement, precision)):
            break
    return measurement


def covered(draw: Draw, sigma: float, rule: str, runs: int) -> tuple[float, float]:
    """Return how many of 100 intervals contain the true median, and the mean number of trials."""
    min_trials, precision = RULES[rule]
    rng = np.random.default_rng([_SEED, list(RULES).index(rule), round(sigma * 1e4)])
    true_seconds = math.exp(sigma * true_median(draw))
    covering = trials_made = 0
    for seconds in np.exp(sigma * noise_of_batches(draw, rng, runs * MAX_TRIALS)).reshape(runs, MAX_TRIALS, 2).tolist():
        trials = trial_seconds(measurement_of(seconds, min_trials, precision))
        low, high = median_interval(trials) or (0.0, 0.0)
        covering += low <= true_seconds <= high
        trials_made += len(trials)
    return 100 * covering / runs, trials_made / runs


def table(runs: int) -> tuple[list[str], int]:
    """Return the table's lines, and how many figures miss the bar."""
    missed = 0
    lines = [f"{'noise':<16} {'rule':<10}" + "".join(f"{f'σ {sigma:.1%}':>12}" for sigma in SIGMAS)]
    for model, draw in MODELS.items():
        for rule in RULES:
            runs_here = runs if draw is normal else max(1, runs // 10)
            row = [covered(draw, sigma, rule, runs_here) for sigma in SIGMAS]
            missed += sum(not BAR[0] <= share <= BAR[1] for share, _ in row) if draw is normal else 0
            columns = (f"{share:.1f} ({trials:.1f})" for share, trials in row)
            lines.append(f"{model:<16} {rule:<10}" + "".join(f"{column:>12}" for column in columns))
    return lines, missed


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


def main(argv: Sequence[str]) -> int:
    """Print the table; return the exit status."""
    parser = argparse.ArgumentParser(description="How often does the interval of a data point hold its true median?")
    parser.add_argument("--runs", type=int, default=20_000, help="for each figure of normal noise; a tenth for others")
    parser.add_argument("--factors", action="store_true", help="print the factors for three to five trials instead")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the table there, too")
    options = parser.parse_args(argv)
    if options.factors:
        print("\n".join(factor_lines(8_000_000)))
        return 0
    lines, missed = table(options.runs)
    spread = (median(BAR) * (100 - median(BAR)) / options.runs) ** 0.5
    title = "# coverage (sim): of 100 intervals, how many hold the true median; in brackets the mean number of trials"
    runs_line = f"# {options.runs} runs for each figure of normal noise (error {spread:.2f}), a tenth for others"
    verdict = f"normal noise outside {BAR[0]:.0f} to {BAR[1]:.0f}%: {missed} of {len(RULES) * len(SIGMAS)} figures"
    text = "\n".join((title, runs_line, *lines, verdict, ""))
    print(text, end="")
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text, encoding="utf-8")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
