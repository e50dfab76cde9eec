#!/usr/bin/env python3
"""How often the interval of a data point holds its true median (sim): `python benchmarks/coverage.py [--out FILE]`.

Draws trials of two batches each, and asks collbench.bench.sweep when to stop and collbench.analysis.stats for the
interval. Noise of a trial has the scale at the head of a column; each of its batches adds normal noise of half of it.
"stop ±1 %" looks after every trial from the third on, as a sweep does, and stops at twelve: the budget. Bar: 93 to 97
% for normal noise, everywhere; the other rows are shown. Exits 1 where it is missed. `--factors` draws the table in
collbench.analysis.stats anew. Seeds are fixed.
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

from collbench.analysis.stats import median_interval, trial_seconds
from collbench.bench.sweep import stop_reason
from collbench.model.operations import Operation
from collbench.model.run import DataPoint, Measurement, Sample

Noise = NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, ...]], Noise]
MOST = 12
BAR = (93.0, 97.0)
SIGMAS = (0.002, 0.004, 0.007, 0.01, 0.015, 0.02, 0.03)
# Trials that are made in any case, and the half interval that settles: None makes no more.
RULES: dict[str, tuple[int, float | None]] = {
    "3 trials": (3, None),
    "7 trials": (7, None),
    "12 trials": (12, None),
    "stop ±1 %": (3, 0.01),
    "stop ±3 %": (3, 0.03),
}
_POINT = DataPoint(Operation.CE_WRITE, (0, 1), 2**20)
_SEED = 20261122


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> Noise:
    return rng.standard_normal(shape)


def heavy_tails(rng: np.random.Generator, shape: tuple[int, ...]) -> Noise:
    """Student's t with three degrees of freedom."""
    return rng.standard_t(3, shape)


def slow_trials(rng: np.random.Generator, shape: tuple[int, ...]) -> Noise:
    """Every twentieth trial is slower, by eight σ on average."""
    return rng.standard_normal(shape) + (rng.random(shape) < 0.05) * 10 * np.abs(rng.standard_normal(shape))


def skewed(rng: np.random.Generator, shape: tuple[int, ...]) -> Noise:
    """Never faster than a limit, and exponentially slower."""
    return rng.exponential(1.0, shape)


MODELS: dict[str, Draw] = {
    "normal": normal,
    "heavy tails": heavy_tails,
    "5 % slow trials": slow_trials,
    "skewed": skewed,
}


def effects(draw: Draw, rng: np.random.Generator, count: int) -> Noise:
    """Return what disturbs the batches of so many trials, in σ, shape (count, 2)."""
    return draw(rng, (count, 1)) + 0.5 * rng.standard_normal((count, 2))


@cache
def middle(draw: Draw) -> float:
    """Return the true median of a trial's effect, in σ, with an error of about 0.001."""
    return float(np.median(effects(draw, np.random.default_rng(_SEED), 2_000_000).mean(axis=1)))


def measured(seconds: Sequence[Sequence[float]], fewest: int, precision: float | None) -> Measurement:
    """Return a data point of the first trials, as many as the rule wants."""
    found = Measurement(_POINT)
    for batches in seconds:
        found.samples.append(Sample(tuple(batches), 1, concurrent=False))
        enough = len(found.samples) >= fewest
        if enough and (precision is None or stop_reason(found, precision)):
            break
    return found


def covered(draw: Draw, sigma: float, rule: str, runs: int) -> tuple[float, float]:
    """Return how many intervals of 100 hold the true median, and the mean number of trials."""
    fewest, precision = RULES[rule]
    rng = np.random.default_rng([_SEED, list(RULES).index(rule), round(sigma * 1e4)])
    truth = math.exp(sigma * middle(draw))
    held = made = 0
    for seconds in np.exp(sigma * effects(draw, rng, runs * MOST)).reshape(runs, MOST, 2).tolist():
        trials = trial_seconds(measured(seconds, fewest, precision))
        low, high = median_interval(trials) or (0.0, 0.0)
        held += low <= truth <= high
        made += len(trials)
    return 100 * held / runs, made / runs


def table(runs: int) -> tuple[list[str], int]:
    """Return the table's lines, and how many figures miss the bar."""
    missed = 0
    lines = [f"{'noise':<16} {'rule':<10}" + "".join(f"{f'σ {sigma:.1%}':>12}" for sigma in SIGMAS)]
    for model, draw in MODELS.items():
        for rule in RULES:
            of = runs if draw is normal else max(1, runs // 10)
            row = [covered(draw, sigma, rule, of) for sigma in SIGMAS]
            missed += sum(not BAR[0] <= share <= BAR[1] for share, _ in row) if draw is normal else 0
            columns = (f"{share:.1f} ({made:.1f})" for share, made in row)
            lines.append(f"{model:<16} {rule:<10}" + "".join(f"{one:>12}" for one in columns))
    return lines, missed


def factors(draws: int) -> list[str]:
    """Return the quantiles of |median| over standard deviation of three to five normal values, each with its error."""
    rng = np.random.default_rng(1)
    lines = []
    for n in (3, 4, 5):
        found = []
        for _ in range(8):
            values = rng.standard_normal((draws // 8, n))
            found.append(np.quantile(np.abs(np.median(values, axis=1)) / values.std(axis=1, ddof=1), [0.95, 0.965]))
        factor, error = np.mean(found, axis=0), np.std(found, axis=0, ddof=1) / 8**0.5
        both = zip(("95 %", "96.5 %"), factor, error, strict=True)
        lines.append(f"{n} trials: " + ", ".join(f"{level} {k:.3f} ± {e:.4f}" for level, k, e in both))
    return lines


def main(argv: Sequence[str]) -> int:
    """Print the table; return the exit status."""
    parser = argparse.ArgumentParser(description="How often does the interval of a data point hold its true median?")
    parser.add_argument("--runs", type=int, default=20_000, help="for each figure of normal noise; a tenth for others")
    parser.add_argument("--factors", action="store_true", help="print the factors for three to five trials instead")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the table there, too")
    options = parser.parse_args(argv)
    if options.factors:
        print("\n".join(factors(8_000_000)))
        return 0
    lines, missed = table(options.runs)
    spread = (median(BAR) * (100 - median(BAR)) / options.runs) ** 0.5
    title = "# coverage (sim): of 100 intervals, how many hold the true median; in brackets the mean number of trials"
    about = f"# {options.runs} runs for each figure of normal noise (error {spread:.2f}), a tenth for others"
    verdict = f"normal noise outside {BAR[0]:.0f} to {BAR[1]:.0f} %: {missed} of {len(RULES) * len(SIGMAS)} figures"
    text = "\n".join((title, about, *lines, verdict, ""))
    print(text, end="")
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text, encoding="utf-8")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
