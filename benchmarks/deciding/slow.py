"""One pair that is 8% slow on an otherwise healthy machine: is it found, by its tier or by a verdict?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations

from collbench.judge import diagnose
from collbench.judge.tiers import Ranking, rank_pairs
from collbench.sim.collectives import truth_of
from collbench.sim.fabrics import Fabric, Fault, FaultKind
from collbench.sim.network import paths

from .bench import (
    NOISY,
    Options,
    Part,
    Row,
    drawn_seed,
    healthy,
    map_in_order,
    noisy,
    pairs_request,
    share,
    simulated_run,
    trial_rng,
)
from .truth import EQUAL, contradictions

RUNS, BAR = 1_000, 0.99
SLOW = 0.92
_ALL_SIZES = 10
_MIN_EQUALS = 2  # other pairs that are as fast on the healthy machine: without them a pair is slower than nothing
_PART = 2

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Trial:
    """One machine, its slow pair, and whether its tier or a verdict found it."""

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


def run(options: Options) -> Part:
    """Return the share of runs in which the slow pair was found."""
    all_trials = map_in_order(partial(trial, options.seed), range(options.runs or RUNS), options.jobs, chunk=8)
    count, found = len(all_trials), sum(t.found for t in all_trials)
    noisiest = [t for t in all_trials if t.noise > NOISY]
    rows = [
        Row(f"one pair 8% slow, {count:,} runs: found", share(found, count), "≥ 99%", found >= BAR * count),
        Row("  by its tier", share(sum(t.by_tier for t in all_trials), count)),
        Row("  by a verdict that names it", share(sum(t.by_verdict for t in all_trials), count)),
        Row("  either, noise above 1.5%", share(sum(t.found for t in noisiest), len(noisiest))),
    ]
    return Part(rows, all_trials)


def trial(seed: int, number: int) -> Trial:
    """Slow one pair of a machine by 8%, and look for it in a noisy run."""
    rng, run_number = trial_rng(seed, _PART, number), number
    while True:
        healthy_fabric = healthy(number, rng)
        classes = [pairs for pairs in _equal_pairs(healthy_fabric) if len(pairs) > _MIN_EQUALS]
        if classes:
            break
        number += 1  # this shipped machine has no class of three pairs
    equal_pairs = classes[int(rng.integers(len(classes)))]
    pair = equal_pairs[int(rng.integers(len(equal_pairs)))]
    fault = Fault(FaultKind.SLOW_LINK, pair, factor=SLOW)
    fabric = noisy(replace(healthy_fabric, faults=(fault,)), rng)
    run = simulated_run(
        fabric, pairs_request(None) if number % _ALL_SIZES == 1 else pairs_request(), drawn_seed(rng), confirmed=True
    )
    size = max(run.settings.sizes)
    rankings = [rank_pairs(run, operation, size) for operation in run.settings.operations]
    named = any(set(v.members) == set(pair) for v in contradictions(diagnose.judge(run)))
    pair_text = f"{pair[0]}-{pair[1]}"
    below = any(ranking is not None and _below(ranking, pair, equal_pairs) for ranking in rankings)
    return Trial(run_number, fabric.name, len(fabric.gpus), round(fabric.noise.trial, 5), pair_text, below, named)


def _equal_pairs(fabric: Fabric) -> list[list[Pair]]:
    """Return the pairs in classes of the same label and the same true all-reduce bandwidth."""
    label = {path.devices: path.label for path in paths(fabric)}
    truth = truth_of(fabric)
    classes: list[list[Pair]] = []
    for pair in combinations(range(len(fabric.gpus)), 2):
        for members in classes:
            if label[members[0]] == label[pair] and abs(truth.busbw(pair) / truth.busbw(members[0]) - 1) < EQUAL:
                members.append(pair)
                break
        else:
            classes.append([pair])
    return classes


def _below(ranking: Ranking, pair: Pair, equal_pairs: Sequence[Pair]) -> bool:
    tiers = {link.members: link.tier for link in ranking.standings}
    # a copy by kernel has no tiers of pairs without peer access
    tiers_of_equals = [tiers[equal] for equal in equal_pairs if equal != pair and equal in tiers]
    return pair in tiers and bool(tiers_of_equals) and tiers[pair] > max(tiers_of_equals)
