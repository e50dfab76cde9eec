"""Which pairs differ and which tie: estimates, tiers and words (METHOD.md §4)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from collbench.affinity.normal import median_deviation, range_quantile
from collbench.model import Measurement, Run
from collbench.operations import Operation
from collbench.stats import deviations, sigma, summarize, tie_threshold

_FEWEST_VISITS_FOR_TIERS = 3
_Z_90_PERCENT = 1.645


class Relation(StrEnum):
    """How a pair stands to the best of all."""

    TIED = "tied"
    DIFFERENT = "different"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Standing:
    """One unordered pair: bandwidth in GB/s with its 95 % interval, tier (1 is best), relation to the best pair.

    For copies the bandwidth is that of the slower direction: a ring needs both.
    """

    pair: tuple[int, int]
    label: str
    gbs: float
    interval: tuple[float, float] | None
    tier: int
    relation: Relation


@dataclass(frozen=True, slots=True)
class Ranking:
    """All pairs of one operation and size, best first.

    `spread` is (best − worst) / best, `delta` the tie threshold, `visits` the fewest that any pair got.
    """

    operation: Operation
    size_bytes: int
    standings: tuple[Standing, ...]
    delta: float
    spread: float
    visits: int

    @property
    def one_tier(self) -> bool:
        """True where no pair is distinguishable from the best; that may also mean that too little was measured."""
        return all(standing.tier == 1 for standing in self.standings)

    @property
    def all_tied(self) -> bool:
        """True where enough visits put every pair within `delta` of the best: the choice does not affect bandwidth.

        It asks for the spread of all pairs at once. Single pairs may still be undecided against the best, which was
        picked for being the highest of many noisy figures.
        """
        return self.one_tier and self.visits >= _FEWEST_VISITS_FOR_TIERS and self.spread <= self.delta

    @property
    def verdict(self) -> str:
        """Return in half a sentence whether the pairs differ."""
        if len(self.standings) == 1:
            return "there is one pair, so there is nothing to choose"
        if self.all_tied:
            return f"all pairs tie within {self.spread:.1%}: the choice does not affect bandwidth"
        if self.one_tier:
            return f"no pair differs for certain: the worst looks {self.spread:.1%} slower than the best"
        return f"{self.standings[-1].tier} tiers: the worst pair is {self.spread:.0%} slower than the best"


def rank_pairs(run: Run, operation: Operation, size_bytes: int) -> Ranking | None:
    """Return the pairs of a run in tiers, None where this cell family was not measured on any pair."""
    found = _slower_direction(run, operation, size_bytes)
    if not found:
        return None
    labels = {tuple(sorted(path.devices)): path.label for path in run.paths}
    logs = {pair: _log_visits(measurement) for pair, measurement in found.items()}
    sigmas = _pooled_sigma(logs, {pair: labels.get(pair, "?") for pair in logs})
    ordered = sorted(logs, key=lambda pair: (-_middle(logs[pair]), pair))
    delta = tie_threshold(max(sigmas.values()))
    tiers = _tiers(ordered, logs, sigmas, delta)
    standings = tuple(
        Standing(
            pair=pair,
            label=labels.get(pair, "?"),
            gbs=summarize(found[pair]).busbw,
            interval=summarize(found[pair]).interval,
            tier=tiers[pair],
            relation=_relation(logs[ordered[0]], logs[pair], sigmas[pair], delta, tiers[pair]),
        )
        for pair in ordered
    )
    spread = 1 - math.exp(_middle(logs[ordered[-1]]) - _middle(logs[ordered[0]]))
    return Ranking(operation, size_bytes, standings, delta, spread, visits=min(map(len, logs.values())))


def _slower_direction(run: Run, operation: Operation, size_bytes: int) -> dict[tuple[int, int], Measurement]:
    found: dict[tuple[int, int], Measurement] = {}
    for measurement in run.measured():
        cell = measurement.cell
        if cell.operation is not operation or cell.size_bytes != size_bytes or len(cell.members) != 2:
            continue
        low, high = sorted(cell.members)
        other = found.get((low, high))
        if other is None or _middle(_log_visits(measurement)) < _middle(_log_visits(other)):
            found[low, high] = measurement
    return found


def _log_visits(measurement: Measurement) -> list[float]:
    return [math.log(gbs) for gbs in summarize(measurement).visits]


def _middle(logs: Sequence[float]) -> float:
    return float(np.median(logs))


def _pooled_sigma(
    logs: dict[tuple[int, int], list[float]], labels: dict[tuple[int, int], str]
) -> dict[tuple[int, int], float]:
    """Return σ̂ of one visit's log bandwidth, pooled over the pairs of a label."""
    pools: dict[str, list[float]] = defaultdict(list)
    for pair, values in logs.items():
        if len(values) > 1:
            pools[labels[pair]].extend(deviations(values))
    pooled = {label: sigma(parts) for label, parts in pools.items()}
    return {pair: pooled.get(labels[pair], 0.0) for pair in logs}


def _tiers(
    ordered: list[tuple[int, int]],
    logs: dict[tuple[int, int], list[float]],
    sigmas: dict[tuple[int, int], float],
    delta: float,
) -> dict[tuple[int, int], int]:
    """Open a new tier at a pair that falls below its tier's *top* by more than δ and noise: no chaining."""
    tiers, tier, top = {}, 1, ordered[0]
    quantile = range_quantile(len(ordered)) if len(ordered) > 1 else 0.0
    for pair in ordered:
        visits = min(len(logs[pair]), len(logs[top]))
        noise = quantile * max(sigmas[pair], sigmas[top]) * median_deviation(visits)
        if visits >= _FEWEST_VISITS_FOR_TIERS and _middle(logs[top]) - _middle(logs[pair]) - noise > delta:
            tier, top = tier + 1, pair
        tiers[pair] = tier
    return tiers


def _relation(best: list[float], other: list[float], noise: float, delta: float, tier: int) -> Relation:
    """Compare with the best pair: different in a lower tier, tied where the 90 % interval of the difference fits ±δ."""
    if best is other:
        return Relation.TIED
    if tier > 1:
        return Relation.DIFFERENT  # by the simultaneous 95 % interval: that is what opens a tier
    if min(len(best), len(other)) < _FEWEST_VISITS_FOR_TIERS:
        return Relation.UNDECIDED  # a single visit shows no noise, so everything would look certain
    error = _Z_90_PERCENT * noise * math.hypot(median_deviation(len(best)), median_deviation(len(other)))
    tied = abs(_middle(best) - _middle(other)) + error <= delta
    return Relation.TIED if tied else Relation.UNDECIDED
