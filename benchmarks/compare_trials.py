#!/usr/bin/env python3
"""How often `collbench compare` cries wolf, and how often it finds a link that became 8 % slow: on simulated machines.

    python benchmarks/compare_trials.py [--runs N] [--seed S] [--jobs J] [--csv FILE]

All of it is simulation (sim); no figure here is of a real GPU. A trial measures a machine twice, by two seeds. Machines
are those of decisions.py, with up to 2 % noise of a trial. The second run keeps a latency of its own, up to 0.1 µs more
or less, as runs of a real machine do (docs/exchange.md). Exits 1 when a bar is missed. 1,000 trials of each part take
about ten minutes on two busy cores.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from itertools import combinations
from pathlib import Path

import numpy as np
from deciding.bench import FIRST_SEED, NOISY, drawn_seed, healthy, measured, noisy, rng_of, share, spread, survey

from collbench.analysis.compare import Kind, Verdict, compare
from collbench.sim.fabrics import Delays, Fabric, Fault, FaultKind

RUNS = 1_000
MOST_FALSE, LEAST_FOUND = 0.01, 0.99
SLOW = 0.92
OWN_LATENCY_US = 0.1
FAIL_BELOW = 0.05
ALL_SIZES = 10  # every tenth trial has the 14 sizes of `pairs`, the others two
PARTS = ("healthy", "slow")


@dataclass(frozen=True, slots=True)
class Trial:
    """Two runs of one machine. `wrong` are worse points that are none, `found` whether the slow pair has one."""

    part: str
    run: int
    fabric: str
    gpus: int
    noise: float
    points: int
    wrong: int
    better: int
    found: bool
    regressed: bool


def trial(part: str, seed: int, number: int) -> Trial:
    """Return one comparison of a machine with itself, or with one of its links 8 % slow."""
    rng = rng_of(seed, PARTS.index(part) + 31, number)
    fabric = noisy(healthy(number, rng), rng)
    pairs = list(combinations(range(len(fabric.gpus)), 2))
    pair = pairs[int(rng.integers(len(pairs)))]
    later = replace(fabric, delays=_own(fabric, rng))
    if part == "slow":
        later = replace(later, faults=(Fault(FaultKind.SLOW_LINK, pair, factor=SLOW),))
    request = survey(None) if number % ALL_SIZES == 1 else survey()
    base, new = (measured(machine, request, drawn_seed(rng)) for machine in (fabric, later))
    found = compare(base, new, FAIL_BELOW)
    points = [change.key.members for change in found.changes if change.verdict is Verdict.WORSE]
    groups = [group for group in found.groups if group.verdict is Verdict.WORSE]
    # Where a link is slow, its works may be slower as a whole: only a place that is named is another link.
    worse = [*points, *(group.members for group in groups if part == "healthy" or group.kind is Kind.DEVICES)]
    ours = [members for members in worse if part == "slow" and set(members) == set(pair)]
    return Trial(
        part=part,
        run=number,
        fabric=fabric.name,
        gpus=len(fabric.gpus),
        noise=round(fabric.noise.trial, 5),
        points=len(found.changes),
        wrong=len(worse) - len(ours),
        better=[one.verdict for those in (found.changes, found.groups) for one in those].count(Verdict.BETTER),
        found=bool(ours),
        regressed=bool(found.regressions),
    )


def _own(fabric: Fabric, rng: np.random.Generator) -> Delays:
    own = float(rng.uniform(-OWN_LATENCY_US, OWN_LATENCY_US))
    delays = fabric.delays
    return replace(delays, copy=delays.copy + own, kernel=delays.kernel + own, collective=delays.collective + own)


def report(trials: Sequence[Trial]) -> bool:
    """Print the rates of both parts; return whether both bars are met."""
    false = [t for t in trials if t.part == "healthy"]
    slow = [t for t in trials if t.part == "slow"]
    noisiest = [t for t in slow if t.noise > NOISY]
    cried, found = sum(t.wrong + t.better > 0 for t in false), sum(t.found for t in slow)
    rows = [
        ("healthy: anything worse or better", share(cried, len(false)), f"≤ {MOST_FALSE:.0%}"),
        ("healthy: a regression (exit 3)", share(sum(t.regressed for t in false), len(false)), ""),
        ("one link 8 % slow: found", share(found, len(slow)), f"≥ {LEAST_FOUND:.0%}"),
        ("  noise above 1.5 %", share(sum(t.found for t in noisiest), len(noisiest)), ""),
        ("  another link worse, or one better", share(sum(t.wrong + t.better > 0 for t in slow), len(slow)), ""),
        ("  beyond 5 % for certain (exit 3)", share(sum(t.regressed for t in slow), len(slow)), ""),
    ]
    for what, rate, bar in rows:
        print(f"sim  {what:<36} {rate:>22}  {bar}")
    return cried <= MOST_FALSE * len(false) and found >= LEAST_FOUND * len(slow)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=RUNS, help="trials of each part")
    parser.add_argument("--seed", type=int, default=FIRST_SEED)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--csv", type=Path, help="write every trial here")
    given = parser.parse_args()
    begin = time.monotonic()
    trials = [t for part in PARTS for t in spread(partial(trial, part, given.seed), range(given.runs), given.jobs)]
    print(f"sim, seed {given.seed}, {given.runs} trials of each part, {time.monotonic() - begin:.0f} s")
    if given.csv:
        with given.csv.open("w", encoding="utf-8", newline="") as file:
            lines = csv.DictWriter(file, [one.name for one in fields(Trial)], lineterminator="\n")
            lines.writeheader()
            lines.writerows(asdict(t) for t in trials)
    return 0 if report(trials) else 1


if __name__ == "__main__":
    sys.exit(main())
