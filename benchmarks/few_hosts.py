"""A few hosts whose pairs have levels of their own: how often does `collbench nodes` accuse a healthy host?

    python benchmarks/few_hosts.py --runs 200

All figures are simulated. A pair of hosts always repeats its own level, which differs between pairs (a token bucket
lets its burst through at once or not; a route shares a cable), and each round adds noise. Then no host is slow, one
drawn host is slow by 10 %, or one has half the rate; with `one way` only what it sends does. A host that is called
slow wrongly counts as `accused`; a survey goes on for up to 16 rounds.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collbench.analysis.nodes import State
from collbench.bench.nodes import survey_nodes

HOSTS = (3, 4, 8)
# The standard deviation of log bandwidth between pairs, and between rounds of one pair.
SPREADS = ((0.0, 0.02), (0.01, 0.005), (0.035, 0.005))
RATES = (1.0, 0.9, 0.5)
ROUNDS = 16


@dataclass(frozen=True, slots=True)
class Outcome:
    """One simulated survey: is the slow host named, is another, how many hosts stay undecided."""

    named: bool
    accused: bool
    undecided: int


def survey(seed: int, hosts: int, levels: float, noise: float, rate: float, *, one_way: bool) -> Outcome:
    """Survey hosts of which one, drawn by the seed, sends at `rate` of the others', and unless `one_way` receives."""
    rng = np.random.default_rng(seed)
    level = rng.normal(0, levels, (hosts, hosts))
    slow = int(rng.integers(hosts))

    def measure(pairs: Sequence[tuple[int, int]], directed: bool) -> list[float]:
        rates = []
        for pair in pairs:
            own = rate if pair[0] == slow or (slow in pair and not one_way) else 1.0
            first, second = pair if directed else sorted(pair)
            rates.append(own * math.exp(level[first, second] + rng.normal(0, noise)))
        return rates

    found = survey_nodes(hosts, (), measure, lambda made: made < ROUNDS, seed, one_way=one_way).judgement
    flagged = {one.node for one in found.slow_nodes}
    truth = {slow} if rate < 1 else set()
    undecided = sum(one.state is State.UNDECIDED for one in found.nodes)
    return Outcome(bool(flagged & truth), bool(flagged - truth or found.slow_uplinks), undecided)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=200, help="surveys of each kind")
    runs = parser.parse_args().runs
    print(f"sim: {runs} surveys each; levels: σ between pairs, noise: σ between rounds of a pair\n")
    head = "".join(f" | {name:^26}" for name in ("no host is slow", "one slow by 10 %", "one at half rate"))
    print(f"{'':29}{head}")
    print(f"hosts  measured  levels noise{' | named accused undecided ' * len(RATES)}")
    for hosts in HOSTS:
        for one_way in (False, True):
            for levels, noise in SPREADS:
                cells = []
                for rate in RATES:
                    seen = [survey(seed, hosts, levels, noise, rate, one_way=one_way) for seed in range(runs)]
                    named = f"{sum(one.named for one in seen) / runs:.1%}" if rate < 1 else "-"
                    accused = sum(one.accused for one in seen) / runs
                    cells.append(f" | {named:>6}{accused:8.1%}{sum(one.undecided for one in seen) / runs:10.2f} ")
                way = "one way" if one_way else "both ways"
                print(f"{hosts:5}  {way:9} {levels:6.1%} {noise:5.1%}{''.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
