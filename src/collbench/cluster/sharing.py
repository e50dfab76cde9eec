"""Slow nodes among nodes whose pairs share uplinks that nobody reported (docs/slow-nodes.md).

A pair is as fast as its slower node, or slower if it meets a busy uplink. So a node that was fast with anybody is not
slow itself, and a pair that is slower than both its nodes are with others met a busy uplink. Where many pairs did, a
node is slow only if it never was faster than in quiet rounds, in which few pairs can leave their leaf.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations, product
from statistics import fmean, median

import numpy as np
from numpy.typing import NDArray

from collbench.cluster.fit import Members, Observation, Pair, RoundKind, measured_nodes
from collbench.judge.stats import MAD_TO_SIGMA
from collbench.machine.labels import chained
from collbench.model.units import DELTA

_End = tuple[bool, int]  # a node as a receiver (True) or as a sender

# Fewer nodes have too few pairs: a pair with a level of its own is no uplink.
_MIN_NODES = 6
# Of log bandwidth: what is slower than the full rate by more than this and three times the noise is not just noise.
_CLEARLY, _SIGMAS = 0.08, 3.0
# What is slower than the best by less than this and three times the noise is the same rate.
_SAME = DELTA
# The third fastest measurement shows about the full rate, and so do those a little slower; no noise is below 0.3%.
_THIRD, _WIDE, _NEAR, _MIN_SIGMA = 3, 0.12, 0.08, 0.003
# A single slow uplink explains slow pairs of up to this share of the nodes.
_FEW_BEHIND = 3 / 8
# Measurements of a node that decide about it, how many of them in quiet rounds, and how many of these are tried.
_ENOUGH, _ENOUGH_QUIET, _MAX_QUIET = 4, 3, 12
# A node alone under an oversubscribed switch is as fast as the slowest pairs, within this.
_LIKE_SLOWEST = 0.1


@dataclass(frozen=True, slots=True)
class Reached:
    """What a node reaches in one direction: log ratios to the full rate, of `count` measurements.

    `fast`: it was as fast as others twice, so it is not slow. `slow`: it was as slow in enough quiet rounds, with fast
    nodes, and an uplink does not explain that. `open`: more quiet rounds may decide.
    """

    mean: float
    count: int
    fast: bool
    slow: bool
    open: bool


@dataclass(frozen=True, slots=True)
class Sharing:
    """Nodes that share uplinks. `full`, the rate of pairs that nothing slows, and `sigma`, the noise of a measurement,
    are of log bandwidth. `busy` pairs met a busy uplink, and `lost` is their log ratio to `full`, in the median.
    `general`: they are more than those of a few nodes behind one uplink.

    `sends` and `receives` have each node, None if it was not measured. `fast` are disjoint pairs that are fast at the
    same time. `strangers` are nodes that were not fast yet, each with one that may be under its switch: it never met
    this one, nor any with whom this one was fast. `most` is the largest group of nodes that were fast with each other.
    """

    full: float
    sigma: float
    lost: float
    busy: frozenset[Pair]
    general: bool
    sends: tuple[Reached | None, ...]
    receives: tuple[Reached | None, ...]
    fast: tuple[Pair, ...]
    strangers: frozenset[Pair]
    most: Members

    @property
    def open(self) -> Members:
        """The nodes about which quiet rounds may decide."""
        ways = zip(self.sends, self.receives, strict=True)
        return tuple(node for node, both in enumerate(ways) if any(way is not None and way.open for way in both))


def find_sharing(seen: Sequence[Observation], nodes: int) -> Sharing | None:
    """Return what pairs share, None if too few nodes were measured."""
    present = measured_nodes(seen)
    if len(present) < _MIN_NODES:
        return None
    logs: NDArray[np.float64] = np.log([one.gbs for one in seen])
    full, sigma = full_rate(logs)
    clearly = clearly_below(sigma)
    ratios = [float(log) - full for log in logs]
    reached: dict[_End, list[float]] = defaultdict(list)
    for one, ratio in zip(seen, ratios, strict=True):
        for end in _ends(one):
            reached[end].append(ratio)
    best = {end: max(own) for end, own in reached.items()}
    busy = [ratio < min(best[end] for end in _ends(one)) - clearly for one, ratio in zip(seen, ratios, strict=True)]
    capable = [node for node in present if all(best.get((way, node), -9.0) > -DELTA - sigma for way in (False, True))]
    pairs = frozenset(one.pair for one, is_busy in zip(seen, busy, strict=True) if is_busy)
    # Once found, sharing is not forgotten because more nodes have been fast.
    least = 0 if any(one.kind is RoundKind.QUIET for one in seen) else max(2, _FEW_BEHIND * len(capable))
    fast = {end for end, own in reached.items() if len(own) > 1 and sorted(own)[-2] > -DELTA - sigma / 2}
    unknown = {node for _, node in reached.keys() - fast}
    lows = sorted(ratio for ratio, is_busy in zip(ratios, busy, strict=True) if is_busy)
    slowest = lows[len(lows) // 10] if lows else math.inf
    groups = chained(
        [(node,) for node in present] + [one.pair for one, ratio in zip(seen, ratios, strict=True) if ratio > -clearly]
    )
    most = max(groups, key=len)
    strangers = _strangers(seen, groups, unknown)

    def level(end: _End) -> Reached | None:
        if end not in reached:
            return None
        if end in fast:
            own = [ratio for ratio in reached[end] if ratio > -clearly]
            return Reached(fmean(own), len(own), fast=True, slow=False, open=False)
        # With members of the largest fast group: a few nodes may share an uplink that is always busy.
        with_fast = [
            (ratio, one.kind is RoundKind.QUIET)
            for one, ratio in zip(seen, ratios, strict=True)
            if end in _ends(one) and (most - unknown) & {one.first, one.second} - {end[1]}
        ]
        # Even in a quiet round an uplink may be busy: what counts is what the node reaches again and again.
        top = [(ratio, is_quiet) for ratio, is_quiet in with_fast if ratio > best[end] - _SAME - _SIGMAS * sigma]
        mean = fmean([ratio for ratio, _ in top]) if top else fmean(reached[end])
        count = sum(is_quiet for _, is_quiet in with_fast)
        enough = len(top) >= _ENOUGH and sum(is_quiet for _, is_quiet in top) >= _ENOUGH_QUIET
        met_all = all(end[1] != node for node, _ in strangers)
        # Once as fast as others, it may be so again.
        decided = enough and met_all and best[end] <= -DELTA - sigma
        return Reached(
            mean,
            max(1, len(top)),
            fast=False,
            slow=decided and abs(mean - slowest) > _LIKE_SLOWEST,
            open=not decided and (count < _MAX_QUIET or not met_all),
        )

    levels = {end: found for end in product((False, True), range(nodes)) if (found := level(end)) is not None}
    for end in _explained(seen, ratios, levels, _SAME + _SIGMAS * sigma):
        levels[end] = replace(levels[end], slow=False)
    return Sharing(
        full=full,
        sigma=sigma,
        lost=median(lows) if lows else 0.0,
        busy=pairs,
        general=cover(pairs) > least,
        sends=tuple(levels.get((False, node)) for node in range(nodes)),
        receives=tuple(levels.get((True, node)) for node in range(nodes)),
        fast=_fast_pairs(seen, ratios, -DELTA - 1.5 * sigma, unknown),
        strangers=strangers,
        most=tuple(sorted(most - unknown)),
    )


def _explained(
    seen: Sequence[Observation], ratios: Sequence[float], levels: Mapping[_End, Reached], near: float
) -> set[_End]:
    """Return the slow ends whose rate an uplink may explain: they reached it with a node as slow, and while all nodes
    met at random with no fast one. The two may be alone under a switch, and only the other one slow.
    """
    explained, slow = set[_End](), set[_End]()
    for one, ratio in zip(seen, ratios, strict=True):
        first, second, *back = _ends(one)
        for end, other in ((first, second), (second, first), *permutations(back, 2)):
            own, others = levels[end], levels[other]
            if own.slow and ratio > min(own.mean, others.mean) - near:
                if others.fast and is_crowded(one):
                    slow.add(end)
                elif not others.fast and others.mean < own.mean + near and one.kind is not RoundKind.QUIET:
                    explained.add(end)
    return explained - slow


def is_crowded(one: Observation) -> bool:
    """True of a round of random pairs: in others few pairs share uplinks, so being fast shows nothing."""
    return one.kind not in (RoundKind.AMONG_SUSPECTS, RoundKind.QUIET, RoundKind.CONFIRMING)


def _ends(one: Observation) -> list[_End]:
    """Return what a measurement shows."""
    ends = [(False, one.first), (True, one.second)]
    return ends if one.one_way else [*ends, (True, one.first), (False, one.second)]


def clearly_below(sigma: float) -> float:
    """Return by how much log bandwidth differs that is not just noise."""
    return _CLEARLY + _SIGMAS * sigma


def full_rate(logs: NDArray[np.float64]) -> tuple[float, float]:
    """Return the rate of pairs that nothing slows, and the noise of one measurement."""
    top = float(np.sort(logs)[-min(_THIRD, len(logs))])
    full = float(np.quantile(logs[logs >= top - _WIDE], 0.5, method="higher"))
    full = float(np.quantile(logs[abs(logs - full) <= _NEAR], 0.5, method="higher"))
    return full, max(_MIN_SIGMA, MAD_TO_SIGMA * float(np.median(logs[logs >= full] - full)))


def cover(pairs: Collection[Pair]) -> int:
    """Return how many nodes, chosen greedily, have a part in all these pairs: those behind a single uplink are few."""
    left, count = set(pairs), 0
    while left:
        [(most, _)] = Counter(node for pair in left for node in pair).most_common(1)
        left, count = {pair for pair in left if most not in pair}, count + 1
    return count


def _strangers(
    seen: Sequence[Observation], groups: Sequence[Collection[int]], unknown: Collection[int]
) -> frozenset[Pair]:
    """Return each unknown node with all nodes of every group that it never met."""
    met: dict[int, set[int]] = {node: {node} for node in unknown}
    for one in seen:
        for node, other in ((one.first, one.second), (one.second, one.first)):
            if node in met:
                met[node].add(other)
    return frozenset(
        (node, other) for node in unknown for group in groups if met[node].isdisjoint(group) for other in group
    )


def _fast_pairs(
    seen: Sequence[Observation], ratios: Sequence[float], least: float, unknown: Collection[int]
) -> tuple[Pair, ...]:
    """Return disjoint pairs that were fast when last measured, first of nodes that were not fast twice yet.

    The latest go before others, as they were fast at the same time.
    """
    known: dict[Pair, float] = {}
    for one, ratio in zip(reversed(seen), reversed(ratios), strict=True):
        known.setdefault(one.pair, ratio)
    taken: dict[int, Pair] = {}
    for pair in sorted(known, key=lambda pair: not {*pair} & {*unknown}):
        if known[pair] > least and not taken.keys() & {*pair}:
            taken |= dict.fromkeys(pair, pair)
    return tuple(dict.fromkeys(taken.values()))
