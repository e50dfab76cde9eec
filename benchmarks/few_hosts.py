"""How often does `collbench nodes` accuse a healthy host, among a few hosts whose pairs differ in speed?

    python benchmarks/few_hosts.py [--runs N] [--jobs J]

All figures are simulated. Each pair of hosts has a level of its own that stays the same (a token bucket lets its burst
through at once or not; a route shares a cable), and each round adds noise. No host is slow, or a random one is slow by
10%, or by half. `accused`: a host that is not slow is called slow. A survey takes up to 16 rounds.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from collbench.cluster.measure import survey_nodes
from collbench.cluster.nodes import State

HOSTS = (3, 4, 8)
# The standard deviation of log bandwidth between pairs, and between rounds of one pair.
SPREADS = ((0.0, 0.02), (0.01, 0.005), (0.035, 0.005))
RATES = (1.0, 0.9, 0.5)
ROUNDS = 16


@dataclass(frozen=True, slots=True)
class Outcome:
    """One simulated survey: is the slow host named, is a healthy one accused, how many hosts stay undecided."""

    named: bool
    accused: bool
    undecided: int


def survey(hosts: int, levels: float, noise: float, rate: float, seed: int) -> Outcome:
    """Survey hosts; one, chosen by the seed, has `rate` × the others' rate."""
    rng = np.random.default_rng(seed)
    level_of_pair = rng.normal(0, levels, (hosts, hosts))
    slow = int(rng.integers(hosts))

    def measure(pairs: Sequence[tuple[int, int]]) -> list[float]:
        rates = []
        for first, second in map(sorted, pairs):
            relative_rate = rate if slow in (first, second) else 1.0
            rates.append(relative_rate * math.exp(level_of_pair[first, second] + rng.normal(0, noise)))
        return rates

    judgement = survey_nodes(hosts, (), measure, lambda rounds: rounds < ROUNDS, seed).judgement
    flagged = {*judgement.slow_nodes}
    truth = {slow} if rate < 1 else set()
    undecided = sum(node.state is State.UNDECIDED for node in judgement.nodes)
    return Outcome(bool(flagged & truth), bool(flagged - truth or judgement.slow_uplinks), undecided)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=200, help="surveys of each kind")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    runs = options.runs
    print(f"sim: {runs} surveys each; levels: σ between pairs, noise: σ between rounds of a pair\n")
    head = "".join(f" | {name:^26}" for name in ("no host is slow", "one slow by 10%", "one at half rate"))
    print(f"{'':19}{head}")
    print(f"hosts  levels noise{' | named accused undecided ' * len(RATES)}")
    for hosts in HOSTS:
        for levels, noise in SPREADS:
            cells = []
            for rate in RATES:
                with multiprocessing.Pool(options.jobs) as pool:
                    outcomes = pool.map(partial(survey, hosts, levels, noise, rate), range(runs), 4)
                named = f"{sum(outcome.named for outcome in outcomes) / runs:.1%}" if rate < 1 else "-"
                accused = sum(outcome.accused for outcome in outcomes) / runs
                cells.append(
                    f" | {named:>6}{accused:8.1%}{sum(outcome.undecided for outcome in outcomes) / runs:10.2f} "
                )
            print(f"{hosts:5}  {levels:6.1%} {noise:5.1%}{''.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
