#!/usr/bin/env python3
"""How often `collbench compare` calls a machine changed whose runs vary by themselves (sim).

    python benchmarks/between_runs.py [--machines N] [--seed S] [--jobs J] [--history K …] [--out FILE]

Every run of a made machine (judging/machines.py) has effects of its own beside the noise of its trials: each pair is
faster or slower for the whole run ("pair"), or each data point ("point"), or all pairs in each operation ("work"), or
all pairs together ("common"), by a normal factor with the standard deviation of the column. Base, new and K earlier
runs are drawn alike; plan, stopping rule and judge are collbench's. "false": something is worse or better; "status 3":
a regression. Then one pair of the new run is 8% slower, or all are 5% slower: found if the pair's place, or a whole
operation, is worse. With --history 0 alone it also runs with versions that have no history. 40 machines a cell take 40
minutes on two cores.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # deciding imports the tests' random machines
from deciding.bench import map_in_order, pairs_request
from judging.cells import margin
from judging.machines import Made, make
from judging.measured import Noise, Situation, measure
from rows import save_rows

from collbench.judge.compare import ChangeVerdict, GroupKind, compare
from collbench.model.run import Run

GPUS, SDS, EFFECTS = (2, 4, 8), (0.0, 0.005, 0.01, 0.015, 0.02), ("pair", "point", "common", "work")
TRIAL_SIGMAS = (0.001, 0.003, 0.01)  # in turn
FAIL_BELOW = 0.05
SLOW_PAIR, SLOW_ALL = 0.92, 0.95


class OfRuns(Noise):
    """Trials vary by `sigma`; what `effect` names varies by `between` from run to run, and not within one."""

    def __init__(self, sigma: float, rng: np.random.Generator, effect: str, between: float) -> None:
        super().__init__(sigma, rng)
        self.effect, self.between = effect, between
        self.drawn: dict[object, float] = {}

    def of(self, members: tuple[int, ...], key: object, seconds: float) -> float:
        """Return the noise of a trial; `key` begins with the work."""
        work = key[0] if isinstance(key, tuple) else None
        who = {"pair": frozenset(members), "point": key, "common": None, "work": work}[self.effect]
        if who not in self.drawn:
            self.drawn[who] = self.between * float(self.rng.standard_normal())
        return self.drawn[who] + super().of(members, key, seconds)


@dataclass(frozen=True, slots=True)
class Cell:
    """What varies from run to run, by how much, on how many GPUs."""

    effect: str
    gpus: int
    between: float

    def __str__(self) -> str:
        """Return the row's name."""
        return f"{self.effect:6} {self.gpus} GPUs, {self.between:.1%} between runs"


@dataclass(frozen=True, slots=True)
class Said:
    """What `compare` says of a machine against itself, with so many earlier runs, and of two true changes."""

    cell: str
    number: int
    history: int
    points: int
    worse: int
    better: int
    regressed: bool
    pair_found: bool
    pair_regressed: bool
    elsewhere: bool  # another pair than the slow one is called worse or better
    all_found: bool
    all_regressed: bool

    @property
    def false(self) -> bool:
        """Whether the healthy machine is said to have changed."""
        return self.worse + self.better > 0


def judged(cell: Cell, seed: int, histories: Sequence[int], number: int) -> list[Said]:
    """Measure one machine several times, and compare its runs."""
    rng = np.random.default_rng(
        (seed, GPUS.index(cell.gpus), EFFECTS.index(cell.effect), SDS.index(cell.between), number)
    )
    made = make("nvswitch", rng)
    while made.count != cell.gpus:
        made = make("nvswitch", rng)
    pair = [*combinations(range(made.count), 2)][int(rng.integers(made.count * (made.count - 1) // 2))]
    one = {f"NVLinks {a} to {b}": SLOW_PAIR for a, b in (pair, pair[::-1])}
    every = dict.fromkeys((name for name in made.capacity if name.startswith(("NVLinks", "port"))), SLOW_ALL)
    sigma = TRIAL_SIGMAS[number % len(TRIAL_SIGMAS)]

    def run(machine: Made) -> Run:
        noise = OfRuns(sigma, rng, cell.effect, cell.between)
        return measure(machine, Situation(noise), pairs_request(), int(rng.integers(2**31)))

    base, new, slow_pair, slow_all = run(made), run(made), run(made.slowed(one)), run(made.slowed(every))
    earlier = [run(made) for _ in range(max(histories))]
    said = []
    for count in histories:
        more: dict[str, Any] = {"history": earlier[:count]} if count else {}
        same, with_pair, with_all = (compare(base, other, FAIL_BELOW, **more) for other in (new, slow_pair, slow_all))
        places = [(change.key.members, change.verdict) for change in with_pair.changes]
        places += [(group.members, group.verdict) for group in with_pair.groups if group.kind is GroupKind.DEVICES]
        changed = {(set(members) == set(pair), verdict) for members, verdict in places}
        verdicts = [entry.verdict for entries in (same.changes, same.groups) for entry in entries]
        said.append(
            Said(
                cell=str(cell),
                number=number,
                history=count,
                points=len(same.changes),
                worse=verdicts.count(ChangeVerdict.WORSE),
                better=verdicts.count(ChangeVerdict.BETTER),
                regressed=bool(same.regressions),
                pair_found=(True, ChangeVerdict.WORSE) in changed,
                pair_regressed=bool(with_pair.regressions),
                elsewhere=bool(changed & {(False, ChangeVerdict.WORSE), (False, ChangeVerdict.BETTER)}),
                all_found=any(group.verdict is ChangeVerdict.WORSE for group in with_all.groups),
                all_regressed=bool(with_all.regressions),
            )
        )
    return said


def line(said: Sequence[Said]) -> str:
    """Return the rates of one cell."""
    count = len(said)
    shares = {
        "status 3": sum(one.regressed for one in said),
        "pair 8% slow found": sum(one.pair_found for one in said),
        "another named": sum(one.elsewhere for one in said),
        "all 5% slow found": sum(one.all_found for one in said),
    }
    rest = "  ".join(f"{name} {number / count:.0%}" for name, number in shares.items())
    return f"false {margin(sum(one.false for one in said), count)}  {rest}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--machines", type=int, default=40, metavar="N", help="machines of each cell")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--history", type=int, nargs="+", default=[0, 5], metavar="K", help="earlier runs")
    parser.add_argument("--cell", default="", help="only cells with this text in their names")
    parser.add_argument("--out", type=Path, metavar="FILE", help="a line of CSV for each comparison")
    options = parser.parse_args()
    print(f"between runs (sim), {options.machines} machines a cell, seed {options.seed}")
    rows: list[Said] = []
    for cell in (Cell(effect, gpus, sd) for effect in EFFECTS for gpus in GPUS for sd in SDS):
        if options.cell in str(cell):
            look = partial(judged, cell, options.seed, options.history)
            all_said = map_in_order(look, range(options.machines), options.jobs, chunk=4)
            for place, history in enumerate(options.history):
                ours = [said[place] for said in all_said]
                print(f"  {cell!s:35} history {history}  {line(ours)}", flush=True)
                rows += ours
    if options.out is not None:
        save_rows(options.out, [asdict(row) for row in rows])


if __name__ == "__main__":
    main()
