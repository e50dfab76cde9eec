"""One pair that is 8 % slow on a machine that is well otherwise: is it found, by its tier or by a verdict?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations

from collbench.analysis import diagnose
from collbench.analysis.tiers import Ranking, rank_pairs
from collbench.sim.collectives import truth_of
from collbench.sim.fabrics import Fabric, Fault, FaultKind
from collbench.sim.labels import paths

from .bench import NOISY, Asked, Part, Row, drawn_seed, healthy, measured, noisy, rng_of, share, spread, survey
from .truth import EQUAL, contradictions

RUNS, BAR = 1_000, 0.99
SLOW = 0.92
_ALL_SIZES = 10
_FELLOWS = 2  # pairs that are as fast when all is well: alone a pair has nothing to be slower than
_PART = 2

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Trial:
    """One machine, its slow pair, and what found it."""

    run: int
    fabric: str
    gpus: int
    noise: float
    pair: str
    by_tier: bool
    by_verdict: bool

    @property
    def found(self) -> bool:
        return self.by_tier or self.by_verdict


def run(asked: Asked) -> Part:
    """Return the share of runs in which the slow pair was found."""
    every = spread(partial(trial, asked.seed), range(asked.runs or RUNS), asked.jobs, chunk=8)
    count, found = len(every), sum(t.found for t in every)
    noisiest = [t for t in every if t.noise > NOISY]
    rows = [
        Row(f"one pair 8 % slow, {count:,} runs: found", share(found, count), "≥ 99 %", found >= BAR * count),
        Row("  by its tier", share(sum(t.by_tier for t in every), count)),
        Row("  by a verdict that names it", share(sum(t.by_verdict for t in every), count)),
        Row("  either, noise above 1.5 %", share(sum(t.found for t in noisiest), len(noisiest))),
    ]
    return Part(rows, every)


def trial(seed: int, number: int) -> Trial:
    """Return whether a pair of one machine was found."""
    rng, first = rng_of(seed, _PART, number), number
    while True:
        quiet = healthy(number, rng)
        classes = [found for found in _alike(quiet) if len(found) > _FELLOWS]
        if classes:
            break
        number += 1  # this shipped machine has no class of three pairs
    alike = classes[int(rng.integers(len(classes)))]
    pair = alike[int(rng.integers(len(alike)))]
    fault = Fault(FaultKind.SLOW_LINK, pair, factor=SLOW)
    fabric = noisy(replace(quiet, faults=(fault,)), rng)
    one = measured(fabric, survey(None) if number % _ALL_SIZES == 1 else survey(), drawn_seed(rng))
    size = max(one.settings.sizes)
    rankings = [rank_pairs(one, operation, size) for operation in one.settings.operations]
    named = any(set(v.members) == set(pair) for v in contradictions(diagnose.judge(one)))
    words = f"{pair[0]}-{pair[1]}"
    below = any(ranking is not None and _below(ranking, pair, alike) for ranking in rankings)
    return Trial(first, fabric.name, len(fabric.gpus), round(fabric.noise.trial, 5), words, below, named)


def _alike(fabric: Fabric) -> list[list[Pair]]:
    """Return the pairs in classes: one label, and truly one all-reduce bandwidth."""
    label = {path.devices: path.label for path in paths(fabric)}
    truth = truth_of(fabric)
    classes: list[list[Pair]] = []
    for pair in combinations(range(len(fabric.gpus)), 2):
        for found in classes:
            if label[found[0]] == label[pair] and abs(truth.busbw(pair) / truth.busbw(found[0]) - 1) < EQUAL:
                found.append(pair)
                break
        else:
            classes.append([pair])
    return classes


def _below(ranking: Ranking, pair: Pair, alike: Sequence[Pair]) -> bool:
    tiers = {standing.members: standing.tier for standing in ranking.standings}
    others = [tiers[other] for other in alike if other != pair and other in tiers]  # kernels lack those without access
    return pair in tiers and bool(others) and tiers[pair] > max(others)
