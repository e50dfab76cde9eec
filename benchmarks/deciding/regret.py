"""Random machines, all k: what the chosen set truly carries against the best of all sets, and three simpler rules."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from collbench.analysis.select import choose, settle
from collbench.analysis.tiers import rank_pairs
from collbench.model.operations import Operation
from collbench.model.run import Run
from collbench.sim.collectives import Truth
from collbench.sim.fabrics import Fabric
from collbench.sim.network import Tree
from tests.sim import random_fabrics

from .bench import LARGE, Asked, Part, Row, comparison, drawn_seed, measured, pair_rates, rng_of, spread

RUNS = 1_000
AVERAGE_BAR, WORST_BAR = 0.01, 0.05
_PART = 5

Members = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Trial:
    """One machine and k. Regrets are 1 − true busbw over the best set's: of the set chosen, and of simpler rules."""

    machine: int
    fabric: str
    gpu: str
    gpus: int
    k: int
    noise: float
    best_gbs: float
    regret: float
    unverified: float
    first: float
    sum_of_pairs: float
    worst_pair: float
    chosen: str
    best: str


# What stands beside the choice in the table: the field of each, and its words.
_BESIDE = {
    "unverified": "the same by prediction alone (--no-verify)",
    "first": "the first k",
    "sum_of_pairs": "the highest sum of pairs",
    "worst_pair": "the highest worst pair",
}


def run(asked: Asked) -> Part:
    """Return the regrets: on average over all machines and k, and the worst."""
    every = [t for some in spread(partial(trials, asked.seed), range(asked.runs or RUNS), asked.jobs) for t in some]
    regrets = [t.regret for t in every]
    worst = max(every, key=lambda t: t.regret)
    machines = {t.machine: t.gpus for t in every}
    met = sum(regrets) <= AVERAGE_BAR * len(every) and worst.regret <= WORST_BAR
    what = f"{len(machines):,} random machines, all k: regret of the chosen set"
    rows = [
        Row(what, _words(regrets), "≤ 1 % on average, ≤ 5 % worst", met),
        *(Row(f"  {words}", _words([getattr(t, name) for t in every])) for name, words in _BESIDE.items()),
    ]
    sizes = sorted(Counter(machines.values()).items())
    notes = [
        f"machines by GPUs: {', '.join(f'{n}: {count}' for n, count in sizes)}; {len(every):,} choices",
        f"worst choice: machine {worst.machine} ({worst.gpu}, {worst.gpus} GPUs), k={worst.k}: {worst.chosen}, "
        f"best {worst.best}",
    ]
    return Part(rows, every, notes)


def _words(regrets: Sequence[float]) -> str:
    return f"{fmean(regrets):.2%} on average, {max(regrets):.1%} worst".replace("%", " %")


def trials(seed: int, number: int) -> list[Trial]:
    """Return the regrets of one machine, for each k."""
    rng = rng_of(seed, _PART, number)
    fabric = random_fabrics.make(rng)
    truth = _Carried(fabric)
    one = measured(fabric, pair_rates(), drawn_seed(rng))
    inside = pair_matrix(one)
    n = len(fabric.gpus)
    found = []
    for k in range(2, n):
        sets = list(combinations(range(n), k))
        true = np.array([truth.of(members) for members in sets])
        at = {members: index for index, members in enumerate(sets)}
        choice = choose(one, k)
        settled = choice
        if not choice.tied and len(choice.finalists) > 1:
            asked = comparison(tuple(some.members for some in choice.finalists))
            settled = settle(choice, measured(fabric, asked, drawn_seed(rng)))
        picked = (settled.members, choice.members, sets[0], *by_scores(inside, sets))
        regrets = [round(1 - float(true[at[members]] / true.max()), 5) for members in picked]
        words = ["-".join(map(str, members)) for members in (settled.members, sets[int(true.argmax())])]
        noise, best = round(fabric.noise.trial, 5), round(float(true.max()), 3)
        about = (number, fabric.name, fabric.gpus[0].name, n, k, noise, best)
        found.append(Trial(*about, *regrets, *words))  # type: ignore[arg-type]  # five rates, then two sets
    return found


class _Carried:
    """What sets truly carry in all-reduce, GB/s. Those that differ only in which alike GPUs they take are asked once.

    A machine of 16 GPUs has 65,519 sets. GPUs below one bridge are alike on a machine without NVLinks, and so are
    bridges below one root, and roots, but for those that a fault names.
    """

    def __init__(self, fabric: Fabric) -> None:
        self._fabric, self._truth = fabric, Truth(fabric)
        self._tree = Tree(fabric)
        self._known: dict[object, float] = {}
        self._special = {gpu for fault in fabric.faults for gpu in fault.devices}

    def of(self, members: Members) -> float:
        key = self._kind(members)
        if key not in self._known:
            self._known[key] = self._truth.busbw(members)
        return self._known[key]

    def _kind(self, members: Members) -> object:
        if self._fabric.bundles or self._fabric.switches or self._fabric.unreachable:
            return members
        below: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for gpu in members:
            bridge = self._fabric.gpus[gpu].bridge
            below[self._tree.root(gpu).name][bridge].append(gpu if gpu in self._special else -1)
        return tuple(sorted(tuple(sorted(tuple(sorted(gpus)) for gpus in root.values())) for root in below.values()))


def pair_matrix(run: Run) -> NDArray[np.float64]:
    """Return the measured all-reduce busbw of all pairs, GB/s."""
    n = len(run.devices)
    rates = np.zeros((n, n))
    ranking = rank_pairs(run, Operation.ALLREDUCE, LARGE)
    for standing in ranking.standings if ranking else ():
        a, b = standing.members
        rates[a, b] = rates[b, a] = standing.gbs
    return rates


def by_scores(rates: NDArray[np.float64], sets: list[tuple[int, ...]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the sets with the highest sum of pairs, and with the highest worst pair."""
    members = np.array(sets)
    pairs = np.stack([rates[members[:, i], members[:, j]] for i, j in combinations(range(members.shape[1]), 2)])
    return sets[int(pairs.sum(axis=0).argmax())], sets[int(pairs.min(axis=0).argmax())]
