"""How often the tier rule splits equal links, and finds a pair that is 8% slow: `python benchmarks/ties.py`.

Draws random trials, not machines: decisions.py runs the whole pipeline on simulated machines. Seeds are fixed; `--runs`
draws more. "owed": as many trials as a sweep makes, seven and more where they are noisy (measurement/sweep.py).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from collbench.judge.tiers import estimates_of, tiers_of
from collbench.measurement.sweep import trials_wanted

Trials = NDArray[np.float64]  # log bandwidth, shape (links, trials)
MAX_TRIALS = 15
DELTA = 0.02
SLOW = math.log(0.92)


def equal(noise: float, rng: np.random.Generator, links: int) -> Trials:
    return noise * rng.standard_normal((links, MAX_TRIALS))


def noisier_links(noise: float, rng: np.random.Generator, links: int) -> Trials:
    """Each link has a σ of its own, from a twentieth of the noise to all of it."""
    return equal(noise, rng, links) * np.exp(rng.uniform(math.log(0.05), 0, (links, 1)))


def one_noisy_link(noise: float, rng: np.random.Generator, links: int) -> Trials:
    """One link is ten times as noisy as the others."""
    return equal(noise, rng, links) * np.where(np.arange(links) == 0, 1.0, 0.1)[:, None]


def heavy_tails(noise: float, rng: np.random.Generator, links: int) -> Trials:
    """Student's t with three degrees of freedom, of the same standard deviation."""
    return noise * rng.standard_t(3, (links, MAX_TRIALS)) / math.sqrt(3)


def hiccups(noise: float, rng: np.random.Generator, links: int) -> Trials:
    """A quarter of the noise, and every twentieth trial is slow by 10% on average."""
    wild = rng.random((links, MAX_TRIALS)) < 0.05
    return equal(noise / 4, rng, links) - wild * rng.exponential(0.1, (links, MAX_TRIALS))


def spread_by_delta(noise: float, rng: np.random.Generator, links: int) -> Trials:
    """Links truly differ, by 2% at most."""
    return equal(noise, rng, links) + rng.uniform(-DELTA / 2, DELTA / 2, (links, 1))


def one_slow(noise: float, rng: np.random.Generator, links: int) -> Trials:
    drawn = equal(noise, rng, links)
    drawn[0] += SLOW
    return drawn


TIES = (equal, noisier_links, one_noisy_link, heavy_tails, hiccups, spread_by_delta)


def tiers_of_links(drawn: Trials, trials: int | None) -> list[int]:
    """Return each link's tier from `trials` trials; None: from as many as a sweep makes."""
    if trials is None:
        trials = 7
        while trials < min(MAX_TRIALS, trials_wanted(drawn[:, :trials].tolist())):
            trials += 1
    logs: dict[int, list[float]] = {link: row.tolist() for link, row in enumerate(drawn[:, :trials])}
    estimates = estimates_of(logs, dict.fromkeys(logs, "NV18"))
    order = sorted(estimates, key=lambda link: (-estimates[link].middle, link))
    by_link = dict(zip(order, tiers_of([estimates[link] for link in order], DELTA), strict=True))
    return [by_link[link] for link in range(len(drawn))]


def split_rate(draw: Callable[..., Trials], noise: float, links: int, trials: int | None, runs: int) -> float:
    rng = np.random.default_rng([links, trials or 0, round(noise * 1e4)])
    return sum(max(tiers_of_links(draw(noise, rng, links), trials)) > 1 for _ in range(runs)) / runs


def detection_rate(noise: float, links: int, trials: int | None, runs: int) -> float:
    """Return how often the slow link, and no other, is below the first tier."""
    rng = np.random.default_rng([links, trials or 0, round(noise * 1e4), 1])
    expected = [2, *[1] * (links - 1)]
    return sum(tiers_of_links(one_slow(noise, rng, links), trials) == expected for _ in range(runs)) / runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000, help="of each cell of the tables")
    runs = parser.parse_args().runs
    print(f"runs with any false split, %, of {runs}: the bar is 1")
    names = " ".join(f"{draw.__name__:>15}" for draw in TIES)
    print(f"{'links':>5} {'trials':>6} {'noise':>6} {names}  8% slow found")
    for links in (1, 2, 3, 6, 28, 120):
        for trials in (3, 5, 7, None):
            for noise in (0.001, 0.01, 0.02):
                row = " ".join(f"{split_rate(draw, noise, links, trials, runs):>15.2%}" for draw in TIES)
                detected = f"{detection_rate(noise, links, trials, runs):.2%}" if links > 1 else "-"
                print(f"{links:>5} {trials or 'owed':>6} {noise:>6.1%} {row} {detected:>15}", flush=True)


if __name__ == "__main__":
    main()
