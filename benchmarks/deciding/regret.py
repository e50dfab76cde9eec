"""Random machines, all k: the chosen set's true bandwidth against the best set's, and against three simpler rules."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from collbench.choose.select import by_finalists, choose
from collbench.judge.tiers import rank_pairs
from collbench.model.operations import Operation
from collbench.model.run import Run
from collbench.sim.collectives import Truth
from collbench.sim.fabrics import Fabric
from collbench.sim.network import Tree
from tests.sim import random_fabrics

from .bench import (
    LARGE,
    Options,
    Part,
    Row,
    drawn_seed,
    map_in_order,
    selection_request,
    simulated_run,
    trial_rng,
    verification_request,
)

RUNS = 1_000
AVERAGE_BAR, WORST_BAR = 0.01, 0.05
_PART = 5

Members = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Trial:
    """One machine and k. A regret is 1 − true busbw / the best set's: of the chosen set, and of simpler rules' sets."""

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


# Simpler rules in the table: their field of a trial, and their name.
_SIMPLER_RULES = {
    "unverified": "the same by prediction alone (--no-verify)",
    "first": "the first k",
    "sum_of_pairs": "the highest sum of pairs",
    "worst_pair": "the highest worst pair",
}


def run(options: Options) -> Part:
    """Return the regrets: on average over all machines and k, and the worst."""
    all_trials = [
        t
        for machine_trials in map_in_order(partial(trials, options.seed), range(options.runs or RUNS), options.jobs)
        for t in machine_trials
    ]
    regrets = [t.regret for t in all_trials]
    worst = max(all_trials, key=lambda t: t.regret)
    machines = {t.machine: t.gpus for t in all_trials}
    met = sum(regrets) <= AVERAGE_BAR * len(all_trials) and worst.regret <= WORST_BAR
    what = f"{len(machines):,} random machines, all k: regret of the chosen set"
    rows = [
        Row(what, _summary(regrets), "≤ 1% on average, ≤ 5% worst", met),
        *(
            Row(f"  {rule}", _summary([getattr(t, field) for t in all_trials]))
            for field, rule in _SIMPLER_RULES.items()
        ),
    ]
    sizes = sorted(Counter(machines.values()).items())
    notes = [
        f"machines by GPUs: {', '.join(f'{n}: {count}' for n, count in sizes)}; {len(all_trials):,} choices",
        f"worst choice: machine {worst.machine} ({worst.gpu}, {worst.gpus} GPUs), k={worst.k}: {worst.chosen}, "
        f"best {worst.best}",
    ]
    return Part(rows, all_trials, notes)


def _summary(regrets: Sequence[float]) -> str:
    return f"{fmean(regrets):.2%} on average, {max(regrets):.1%} worst".replace("%", " %")


def trials(seed: int, number: int) -> list[Trial]:
    """Return the regrets of one machine, for each k."""
    rng = trial_rng(seed, _PART, number)
    fabric = random_fabrics.make(rng)
    truth = _TrueBusbw(fabric)
    run = simulated_run(fabric, selection_request(), drawn_seed(rng))
    pair_rates = pair_matrix(run)
    gpus = len(fabric.gpus)
    machine_trials = []
    for k in range(2, gpus):
        sets = list(combinations(range(gpus), k))
        true_rates = np.array([truth.of(members) for members in sets])
        index_of = {members: index for index, members in enumerate(sets)}
        choice = choose(run, k)
        settled = choice
        if not choice.tied and len(choice.finalists) > 1:
            settled, _ = by_finalists(
                choice,
                run,
                lambda sets: (simulated_run(fabric, verification_request(tuple(sets)), drawn_seed(rng)), None),
            )
        sets_by_rule = (settled.members, choice.members, sets[0], *by_scores(pair_rates, sets))
        regrets = [round(1 - float(true_rates[index_of[members]] / true_rates.max()), 5) for members in sets_by_rule]
        set_texts = ["-".join(map(str, members)) for members in (settled.members, sets[int(true_rates.argmax())])]
        noise, best_gbs = round(fabric.noise.trial, 5), round(float(true_rates.max()), 3)
        shared_fields = (number, fabric.name, fabric.gpus[0].name, gpus, k, noise, best_gbs)
        machine_trials.append(Trial(*shared_fields, *regrets, *set_texts))  # type: ignore[arg-type]  # five rates, then two sets
    return machine_trials


class _TrueBusbw:
    """True all-reduce busbw of sets, GB/s. Sets that differ only in which equivalent GPUs they hold are computed once.

    A machine of 16 GPUs has 65,519 sets. GPUs below one bridge are equivalent on a machine without NVLinks, and so are
    bridges below one root, and roots, except for those that a fault names.
    """

    def __init__(self, fabric: Fabric) -> None:
        self._fabric, self._truth = fabric, Truth(fabric)
        self._tree = Tree(fabric)
        self._busbw: dict[object, float] = {}
        self._with_faults = {gpu for fault in fabric.faults for gpu in fault.devices}

    def of(self, members: Members) -> float:
        key = self._key(members)
        if key not in self._busbw:
            self._busbw[key] = self._truth.busbw(members)
        return self._busbw[key]

    def _key(self, members: Members) -> object:
        if self._fabric.bundles or self._fabric.switches or self._fabric.unreachable:
            return members
        below: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for gpu in members:
            bridge = self._fabric.gpus[gpu].bridge
            below[self._tree.root(gpu).name][bridge].append(gpu if gpu in self._with_faults else -1)
        return tuple(sorted(tuple(sorted(tuple(sorted(gpus)) for gpus in root.values())) for root in below.values()))


def pair_matrix(run: Run) -> NDArray[np.float64]:
    """Return the measured all-reduce busbw of all pairs, GB/s."""
    gpus = len(run.devices)
    rates = np.zeros((gpus, gpus))
    ranking = rank_pairs(run, Operation.ALLREDUCE, LARGE)
    for link in ranking.standings if ranking else ():
        a, b = link.members
        rates[a, b] = rates[b, a] = link.gbs
    return rates


def by_scores(rates: NDArray[np.float64], sets: list[tuple[int, ...]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the sets with the highest sum of pairs, and with the highest worst pair."""
    members = np.array(sets)
    pairs = np.stack([rates[members[:, i], members[:, j]] for i, j in combinations(range(members.shape[1]), 2)])
    return sets[int(pairs.sum(axis=0).argmax())], sets[int(pairs.min(axis=0).argmax())]
