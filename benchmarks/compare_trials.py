#!/usr/bin/env python3
"""How often `collbench compare` gives a false alarm, and how often it finds a link that became 8% slow: simulated.

    python benchmarks/compare_trials.py [--runs N] [--seed S] [--jobs J] [--csv FILE]

All of it is simulation (sim); no figure here is of a real GPU. A trial measures a machine twice, with two seeds.
Machines are those of decisions.py, with up to 2% noise of a trial. The latency of the second run differs by up to
0.1 µs, as between runs of a real machine (docs/compare.md). Exits 1 when a bar is missed. 1,000 trials of each part
take about ten minutes on two busy cores.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import combinations
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # random machines are the tests'
from deciding.bench import (
    FIRST_SEED,
    NOISY,
    drawn_seed,
    healthy,
    map_in_order,
    noisy,
    pairs_request,
    share,
    simulated_run,
    trial_rng,
)
from rows import save_rows

from collbench.judge.compare import ChangeVerdict, GroupKind, compare
from collbench.sim.fabrics import Delays, Fabric, Fault, FaultKind

RUNS = 1_000
MAX_FALSE, MIN_FOUND = 0.01, 0.99
SLOW = 0.92
OWN_LATENCY_US = 0.1
FAIL_BELOW = 0.05
ALL_SIZES = 10  # every tenth trial has the 14 sizes of `pairs`, the others two
PARTS = ("healthy", "slow")


@dataclass(frozen=True, slots=True)
class Trial:
    """Two runs of one machine. `wrong`: points falsely called worse; `found`: whether the slow pair has a worse one."""

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
    """Return one comparison of a machine with itself, or with one of its links 8% slow."""
    rng = trial_rng(seed, PARTS.index(part) + 31, number)
    fabric = noisy(healthy(number, rng), rng)
    pairs = list(combinations(range(len(fabric.gpus)), 2))
    pair = pairs[int(rng.integers(len(pairs)))]
    later = replace(fabric, delays=_shifted_delays(fabric, rng))
    if part == "slow":
        later = replace(later, faults=(Fault(FaultKind.SLOW_LINK, pair, factor=SLOW),))
    request = pairs_request(None) if number % ALL_SIZES == 1 else pairs_request()
    base, new = (simulated_run(machine, request, drawn_seed(rng)) for machine in (fabric, later))
    comparison = compare(base, new, FAIL_BELOW)
    points = [change.key.members for change in comparison.changes if change.verdict is ChangeVerdict.WORSE]
    groups = [group for group in comparison.groups if group.verdict is ChangeVerdict.WORSE]
    # A slow link may make a whole collective slower: only a group that names devices accuses another link.
    worse = [*points, *(group.members for group in groups if part == "healthy" or group.kind is GroupKind.DEVICES)]
    on_slow_pair = [members for members in worse if part == "slow" and set(members) == set(pair)]
    return Trial(
        part=part,
        run=number,
        fabric=fabric.name,
        gpus=len(fabric.gpus),
        noise=round(fabric.noise.trial, 5),
        points=len(comparison.changes),
        wrong=len(worse) - len(on_slow_pair),
        better=[entry.verdict for entries in (comparison.changes, comparison.groups) for entry in entries].count(
            ChangeVerdict.BETTER
        ),
        found=bool(on_slow_pair),
        regressed=bool(comparison.regressions),
    )


def _shifted_delays(fabric: Fabric, rng: np.random.Generator) -> Delays:
    shift_us = float(rng.uniform(-OWN_LATENCY_US, OWN_LATENCY_US))
    delays = fabric.delays
    return replace(
        delays, copy=delays.copy + shift_us, kernel=delays.kernel + shift_us, collective=delays.collective + shift_us
    )


def report(trials: Sequence[Trial]) -> bool:
    """Print the rates of both parts; return whether both bars are met."""
    healthy_trials = [t for t in trials if t.part == "healthy"]
    slow = [t for t in trials if t.part == "slow"]
    noisiest = [t for t in slow if t.noise > NOISY]
    false_alarms, found = sum(t.wrong + t.better > 0 for t in healthy_trials), sum(t.found for t in slow)
    rows = [
        ("healthy: anything worse or better", share(false_alarms, len(healthy_trials)), f"≤ {MAX_FALSE:.0%}"),
        ("healthy: a regression (exit 3)", share(sum(t.regressed for t in healthy_trials), len(healthy_trials)), ""),
        ("one link 8% slow: found", share(found, len(slow)), f"≥ {MIN_FOUND:.0%}"),
        ("  noise above 1.5%", share(sum(t.found for t in noisiest), len(noisiest)), ""),
        ("  another link worse, or one better", share(sum(t.wrong + t.better > 0 for t in slow), len(slow)), ""),
        ("  beyond 5% for certain (exit 3)", share(sum(t.regressed for t in slow), len(slow)), ""),
    ]
    for what, rate, bar in rows:
        print(f"sim  {what:<36} {rate:>22}  {bar}")
    return false_alarms <= MAX_FALSE * len(healthy_trials) and found >= MIN_FOUND * len(slow)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=RUNS, help="trials of each part")
    parser.add_argument("--seed", type=int, default=FIRST_SEED)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--csv", type=Path, help="write every trial here")
    options = parser.parse_args()
    begin = time.monotonic()
    trials = [
        t for part in PARTS for t in map_in_order(partial(trial, part, options.seed), range(options.runs), options.jobs)
    ]
    print(f"sim, seed {options.seed}, {options.runs} trials of each part, {time.monotonic() - begin:.0f} s")
    if options.csv:
        save_rows(options.csv, [asdict(trial) for trial in trials])
    return 0 if report(trials) else 1


if __name__ == "__main__":
    sys.exit(main())
