"""What pairs of nodes show of each node: effects where pairs are independent, else what they share.

Node effects: log bandwidth = typical + first's effect + second's + what the switches take. Fitted robustly (Huber,
iterated weights), because pairs that are measured concurrently may share an uplink. Each pair is one measurement,
however many rounds it has: a pair has a level of its own (its route, its sockets) that returns in every round, so
rounds of one pair are not independent. How much a second round adds is fitted. Fitted twice: a pair of two slow nodes
reaches what the slower one does, not the sum of both effects. Effects are ratios to the median node. Where half of the
nodes or more are slow, the median node is no reference: then they are ratios to the fast nodes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import fmean, median

import numpy as np
from numpy.typing import NDArray

from collbench.judge.stats import MAD_TO_SIGMA, huber_weights, median_deviation, trial_noise
from collbench.machine.labels import chained
from collbench.model.run import Members, Pair
from collbench.model.units import DELTA, grouped

Level = tuple[Members, ...]
_Array = NDArray[np.float64]
_Indices = NDArray[np.int_]

# Two slow nodes are alike if the better one lacks more than half of what the other one lacks.
ALIKE = 0.5
# A pair that is this many standard deviations below what both its nodes reach with others shows more than its nodes: of
# eight measurements the largest is 1.4 above the mean, of some thousand pairs the lowest 3.5 below it.
_BOTTLENECK_SIGMAS = 6.0
_NOMINAL_NOISE = 0.02  # of one measurement, where no pair was repeated (docs/slow-nodes.md)
# If the variance of rounds is below this share of the variance between pairs, more rounds narrow intervals by 5%.
_EXHAUSTED = 0.1
_MIN_BETWEEN = 1e-8  # a ratio of variances needs one


class RoundKind(StrEnum):
    """How the pairs of a round were chosen. Suspects are nodes that look slow; in a quiet round few pairs share an
    uplink; a confirming one measures slow nodes again while most others stay with partners that are fast.
    """

    AT_RANDOM = "at random"
    WITHIN_LEAVES = "within leaves"
    BETWEEN_LEAVES = "between leaves"
    AMONG_SUSPECTS = "among suspects"
    SUSPECTS_AND_OTHERS = "between suspects and others"
    QUIET = "quiet"
    CONFIRMING = "confirming"


@dataclass(frozen=True, slots=True)
class Observation:
    """The rate of a pair of nodes in GB/s while a whole round of a kind ran."""

    first: int
    second: int
    gbs: float
    kind: RoundKind = RoundKind.AT_RANDOM

    @property
    def pair(self) -> Pair:
        """Both nodes, the lower number first."""
        return min(self.first, self.second), max(self.first, self.second)


@dataclass(frozen=True, slots=True)
class Fit:
    """Effects as log ratios to the median of their kind (of nodes: of the fast ones, if at most half are fast), each
    with its standard error.

    `nodes` are those that were measured, `effects` theirs, in this order. `levels` has for each level of switches the
    effect of each switch on the pairs with one end under it, and `across` that of leaving a switch of the level at all
    (0 if a level has one), with `across_errors`. `typical` is the log of GB/s, `sigma` the noise of one round of one
    pair. `exhausted` if further rounds would hardly narrow the errors: every pair was measured, and pairs differ from
    each other far more than their rounds do; or two nodes form the only pair.
    """

    nodes: Members
    typical: float
    effects: _Array
    errors: _Array
    levels: tuple[_Array, ...]
    level_errors: tuple[_Array, ...]
    across: tuple[float, ...]
    across_errors: tuple[float, ...]
    sigma: float
    freedom: int
    exhausted: bool
    fast_pair: Members = ()


def fit(seen: Sequence[Observation], levels: Sequence[Level] = (), hiding: Sequence[Members] = ()) -> Fit:
    """Return the effects that explain the pairs best. `levels` are switches by members, leaves before pods.

    A level of several switches must include all nodes that were measured, and no others; a single switch is a suspected
    one. `hiding` are switches whose uplinks are slower than any node: a pair that leaves one shows the uplink and
    nothing of its nodes.
    """
    present = measured_nodes(seen)
    nodes, index_of = len(present), {node: index for index, node in enumerate(present)}
    levels = [tuple(tuple(index_of[node] for node in members) for members in level) for level in levels]
    hiding = [tuple(index_of[node] for node in members) for members in hiding]
    # The log bandwidth of each round of each pair, by the nodes' indices.
    pairs = grouped((tuple(index_of[node] for node in observed.pair), math.log(observed.gbs)) for observed in seen)
    # Their median: where few pairs are possible, one disturbed round of eight would move a pair's mean by 5%.
    ends, middles = np.array([*pairs]), np.array([median(logs) for logs in pairs.values()])
    within = trial_noise(pairs.values()) ** 2
    noises = within * np.array([median_deviation(len(logs)) ** 2 for logs in pairs.values()])
    design = _design(ends, middles, nodes, levels, hiding)
    fitted = design.solution(np.ones(len(pairs)), noises)
    bottlenecks = _bottlenecks(ends, middles, nodes, math.sqrt(within))
    low = design.relative(fitted.values) if bottlenecks is None else bottlenecks
    robust = bottlenecks is None  # otherwise every pair fits, and the few fast ones, which matter, would be outliers
    if low.min() < -DELTA:
        design = _design(ends, middles, nodes, levels, hiding, low)
        fitted = design.solution(np.ones(len(pairs)), noises, robust=robust)
    noise = float(np.mean(noises))
    between = max(_MIN_BETWEEN, fitted.sigma**2 - noise)
    # A pair of n rounds counts as much as n/(1 + (n − 1)ρ) pairs of one; ρ is what pairs differ by of all variance.
    counts = (between + within) / (between + noises)
    every = math.comb(nodes, 2)
    exhausted = nodes == 2 or (len(seen) > len(pairs) == every and noise < _EXHAUSTED * between)
    fast = () if bottlenecks is None else tuple(np.flatnonzero(bottlenecks == 0.0).tolist())
    fast_pair = tuple(present[index] for index in fast) if len(fast) == 2 else ()
    exhausted = exhausted or (bool(fast_pair) and len(pairs) == every)
    solution = design.solution(counts, noises, robust=robust)
    return replace(design.read(solution, bottlenecks, present, exhausted=exhausted), fast_pair=fast_pair)


def measured_nodes(seen: Iterable[Observation]) -> Members:
    """Return the nodes that were measured, in order."""
    return tuple(sorted({node for observed in seen for node in observed.pair}))


def _bottlenecks(ends: _Indices, means: _Array, nodes: int, noise: float) -> _Array | None:
    """Return the nodes' effects against the fast nodes if at most half of them are fast.

    Then a node is as fast as its fastest pair, and a pair as its slower node. None if more nodes are fast, so that the
    median node is one of them, or if some pair is slower than both its nodes are with others: then uplinks matter.
    """
    tolerance = _BOTTLENECK_SIGMAS * max(noise, _NOMINAL_NOISE)
    reached = np.full(nodes, -np.inf)
    np.maximum.at(reached, ends, means[:, None])
    if (reached[ends].min(axis=1) - means > tolerance).any():
        return None
    fast = reached > reached.max() - tolerance
    if 2 * fast.sum() > nodes or np.isinf(reached).any():
        return None
    return np.where(fast, 0.0, reached - np.median(reached[fast]))


def _parts(ends: _Indices, effects: _Array) -> _Array:
    """Return how much of each end's effect a pair shows: all of it, but of two low ends the lower one's.

    If both ends are about as low (`ALIKE`), they share the effect: which of them is lower is noise.
    """
    both = effects[ends]
    both_low = (both < -DELTA).all(axis=1, keepdims=True)
    alike = both.max(axis=1, keepdims=True) < ALIKE * both.min(axis=1, keepdims=True)
    lower = (both == both.min(axis=1, keepdims=True)).astype(float)
    return np.where(both_low, np.where(alike, 0.5, lower), 1.0)


@dataclass(frozen=True, slots=True)
class _Block:
    """Columns of one kind, perhaps none. Pairs show `centred` effects only relative to each other, so those marked with
    1 add up to 0 in the fit.
    """

    design: _Array
    centred: _Array | None = None


@dataclass(frozen=True, slots=True)
class _Design:
    """How pairs depend on the unknowns: typical, nodes, and of each level across and its switches."""

    means: _Array  # of each pair's rounds
    blocks: Sequence[_Block]

    def solution(self, counts: _Array, variances: _Array, *, robust: bool = True) -> _Solution:
        """Return what the pairs' means show; rounds alone explain `variances` of these."""
        scatter = math.sqrt(float(np.mean(counts * (DELTA**2 + variances))))
        dense = np.hstack([block.design for block in self.blocks])
        return _solve(dense, self._held(), self.means, counts, scatter, robust=robust)

    def _held(self) -> _Array:
        """Return the constraints that pairs leave open, as rows: centered effects add up to 0."""
        rows = [
            np.concatenate([centred if other is block else np.zeros(other.design.shape[1]) for other in self.blocks])
            for block in self.blocks
            if (centred := block.centred) is not None and block.design.shape[1]
        ]
        return np.array(rows)

    def _split(self, values: _Array) -> list[_Array]:
        """Return what belongs to each block."""
        return np.split(values, np.cumsum([block.design.shape[1] for block in self.blocks])[:-1])

    def relative(self, values: _Array, bottlenecks: _Array | None = None) -> _Array:
        """Return the nodes' effects against the median node, or with `bottlenecks` that of the nodes that are none."""
        effects = self._split(values)[1]
        return effects - np.median(effects if bottlenecks is None else effects[bottlenecks == 0.0])

    def read(self, solution: _Solution, bottlenecks: _Array | None, nodes: Members, *, exhausted: bool) -> Fit:
        """Return the columns by what they mean, nodes as `relative` does, switches against their median."""
        typical, effects, *levels = self._split(solution.values)
        _, errors, *level_errors = self._split(solution.errors())
        pairs = zip(levels, self.blocks[2:], strict=True)
        centres = [0.0 if block.centred is None else float(np.median(each)) for each, block in pairs]
        relative = self.relative(solution.values, bottlenecks)
        return Fit(
            nodes=nodes,
            # What centering took from each node's effect a typical pair has at both ends.
            typical=float(typical[0]) + 2 * float(effects[0] - relative[0]),
            effects=relative,
            errors=errors,
            levels=tuple(each - centre for each, centre in zip(levels[1::2], centres[1::2], strict=True)),
            level_errors=tuple(level_errors[1::2]),
            across=tuple(
                float(sum(lost)) + 2 * centre for lost, centre in zip(levels[::2], centres[1::2], strict=True)
            ),
            across_errors=tuple(
                math.hypot(*lost, 2 * _median_error(each))
                for lost, each in zip(level_errors[::2], level_errors[1::2], strict=True)
            ),
            sigma=solution.sigma,
            freedom=solution.freedom,
            exhausted=exhausted,
        )


def _median_error(errors: _Array) -> float:
    """Return about the standard error of the median of effects with these; 0 of none."""
    return math.sqrt(math.pi / 2 * float(np.mean(errors**2)) / len(errors)) if len(errors) else 0.0


def _design(
    ends: _Indices,
    means: _Array,
    nodes: int,
    levels: Sequence[Level],
    hiding: Sequence[Members],
    before: _Array | None = None,
) -> _Design:
    """Return what pairs show; of two nodes that were low `before`, only the lower one's effect.

    Effects of nodes add up to 0: of all, or once they are known of those that are not low. A pair that leaves a
    `hiding` switch shows nothing of its nodes.
    """
    parts = np.ones(ends.shape) if before is None else _parts(ends, before)
    first, second = ends.T
    switches = []
    for level in levels:
        switch_of = np.full(nodes, len(level))
        for number, members in enumerate(level):
            switch_of[list(members)] = number
        switches += _level_blocks(len(level), switch_of[first], switch_of[second])
    shown = np.ones((len(ends), 1))
    for members in hiding:
        shown[np.isin(first, members) != np.isin(second, members)] = 0.0
    effects = np.eye(nodes)[first] * parts[:, :1] + np.eye(nodes)[second] * parts[:, 1:]
    steady = np.ones(nodes) if before is None else np.where(before > -DELTA, 1.0, 0.0)
    return _Design(means, [_Block(np.ones((len(ends), 1))), _Block(effects * shown, steady), *switches])


def _level_blocks(switches: int, first: _Indices, second: _Indices) -> list[_Block]:
    """Return a level's blocks: leaving a switch at all, and which ones; `switches` is the place under none of them."""
    crosses = (first != second)[:, None]
    across = np.ones((1, int(switches > 1))) * crosses
    rows = np.eye(switches + 1)[:, :-1]
    # Under two switches every crossing pair has both: only their sum shows, and that is across.
    under = (rows[first] + rows[second]) * crosses if switches != 2 else across[:, :0]
    return [_Block(across), _Block(under, np.ones(switches) if switches > 2 else None)]


# Huber's robust linear estimate for many unknowns; each measurement depends on a few of them.

# In log bandwidth: the estimate is settled when nothing moves by a thousandth of a percent.
_STEPS, _SETTLED = 50, 1e-5
# In log bandwidth: nothing repeats better than to 0.1%, and weights must not divide by zero.
_MIN_SIGMA = 1e-3
# Keeps near 0 what the measurements leave open (a ring of even length, a leaf never crossed): as if its standard
# deviation were 16 times the noise, 30% for 2%. It takes a two-thousandth of an effect that eight measurements show.
_RIDGE = 0.004
# A few residuals may be small by chance. So what is assumed about the scatter counts as much as two of them: a
# moderated t statistic [Smyth, Stat. Appl. Genet. Mol. Biol. 3 (2004), 3], with a fixed prior.
_PRIOR_FREEDOM = 2


@dataclass(frozen=True, slots=True)
class _Solution:
    """The unknowns, the noise `sigma` of a measurement that counts once, and the matrix of normal equations.

    `freedom` are the degrees of freedom of `sigma`.
    """

    values: _Array
    sigma: float
    freedom: int
    normal: _Array

    def errors(self) -> _Array:
        """Return the unknowns' standard errors."""
        return self.sigma * np.sqrt(np.diag(np.linalg.inv(self.normal)))


def _solve(dense: _Array, held: _Array, measured: _Array, counts: _Array, scatter: float, *, robust: bool) -> _Solution:
    """Return the unknowns (columns of `dense`) that explain `measured`, under `held` @ unknowns = 0.

    The first one is common to all measurements. Each measurement has as much weight as `counts` of those that have the
    noise `sigma`, which is assumed to be `scatter` until residuals say otherwise; if `robust`, outliers weigh less.
    The normal equations are made without the zeros: each measurement shows few unknowns.
    """
    count, unknowns = dense.shape
    most = int(np.count_nonzero(dense, axis=1).max())
    places = np.argsort(dense == 0, axis=1, kind="stable")[:, :most]
    shown = np.take_along_axis(dense, places, axis=1)
    cells = (unknowns * places[:, :, None] + places[:, None, :]).ravel()
    products = shown[:, :, None] * shown[:, None, :]
    fixed = held.T @ held + np.diag(np.where(np.arange(unknowns) > 0, _RIDGE, 0.0))
    values, weights = np.zeros(unknowns), np.ones(count)
    known = max(0, count - unknowns + len(held))
    sigma = _MIN_SIGMA
    for _ in range(_STEPS):
        before = values
        heavy = weights * counts
        normal = np.bincount(cells, (heavy[:, None, None] * products).ravel(), unknowns**2).reshape(fixed.shape) + fixed
        right = np.bincount(places.ravel(), ((heavy * measured)[:, None] * shown).ravel(), unknowns)
        values = np.linalg.solve(normal, right)
        rest = np.abs(measured - (shown * values[places]).sum(axis=1)) * np.sqrt(counts)
        sigma = max(_MIN_SIGMA, MAD_TO_SIGMA * float(np.median(rest)) * math.sqrt(len(rest) / max(1, known)))
        weights = huber_weights(rest, sigma, _MIN_SIGMA) if robust else weights
        if float(np.max(np.abs(values - before))) < _SETTLED:
            break
    squares = float(weights @ rest**2) + _PRIOR_FREEDOM * scatter**2
    freedom = known + _PRIOR_FREEDOM
    return _Solution(values, math.sqrt(squares / freedom), freedom, normal)


# Slow nodes among nodes whose pairs share uplinks that nobody reported (docs/slow-nodes.md).
#
# A pair is as fast as its slower node, or slower if it meets a busy uplink. So a node that was fast with anybody is not
# slow itself, and a pair that is slower than both its nodes are with others met a busy uplink. Where many pairs did, a
# node is slow only if it never was faster than in quiet rounds, in which few pairs can leave their leaf.

# Fewer nodes have too few pairs: a pair with a level of its own is no uplink.
_MIN_NODES = 6
# In log bandwidth: what is slower than the full rate by more than this and three times the noise is not just noise.
_CLEARLY, _SIGMAS = 0.08, 3.0
# What is slower than the best by less than this and three times the noise is the same rate.
_SAME = DELTA
# The third fastest measurement and those a little slower show about the full rate; no noise is below 0.3%.
_THIRD, _WIDE, _NEAR, _MIN_NOISE = 3, 0.12, 0.08, 0.003
# A single slow uplink explains slow pairs of up to this share of the nodes.
_FEW_BEHIND = 3 / 8
# Measurements of a node that decide about it, how many of them in quiet rounds, and how many of these are tried.
_ENOUGH, _ENOUGH_QUIET, _MAX_QUIET = 4, 3, 12
# A node alone under an oversubscribed switch is as fast as the slowest pairs, within this.
_LIKE_SLOWEST = 0.1


@dataclass(frozen=True, slots=True)
class Reached:
    """What a node reaches: log ratios to the full rate, of `count` measurements.

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

    `nodes` has each node, None if it was not measured. `fast` are disjoint pairs that are fast at the same time.
    `strangers` are nodes that were not fast yet, each with one that may be under its switch: it never met
    this one, nor any with whom this one was fast. `most` is the largest group of nodes that were fast with each other.
    """

    full: float
    sigma: float
    lost: float
    busy: frozenset[Pair]
    general: bool
    nodes: tuple[Reached | None, ...]
    fast: tuple[Pair, ...]
    strangers: frozenset[Pair]
    most: Members

    @property
    def open(self) -> Members:
        """The nodes about which quiet rounds may decide."""
        return tuple(node for node, reached in enumerate(self.nodes) if reached is not None and reached.open)


def find_sharing(seen: Sequence[Observation], nodes: int) -> Sharing | None:
    """Return what pairs share, None if too few nodes were measured."""
    present = measured_nodes(seen)
    if len(present) < _MIN_NODES:
        return None
    logs: NDArray[np.float64] = np.log([observed.gbs for observed in seen])
    full, sigma = full_rate(logs)
    clearly = clearly_below(sigma)
    ratios = [float(log) - full for log in logs]
    pairs_and_ratios = zip(seen, ratios, strict=True)
    reached = grouped((node, ratio) for observed, ratio in pairs_and_ratios for node in observed.pair)
    best = {node: max(own) for node, own in reached.items()}
    busy = [
        ratio < min(best[node] for node in observed.pair) - clearly
        for observed, ratio in zip(seen, ratios, strict=True)
    ]
    capable = [node for node in present if best[node] > -DELTA - sigma]
    pairs = frozenset(observed.pair for observed, is_busy in zip(seen, busy, strict=True) if is_busy)
    # Once found, sharing is not forgotten because more nodes have been fast.
    least = 0 if any(observed.kind is RoundKind.QUIET for observed in seen) else max(2, _FEW_BEHIND * len(capable))
    fast = {node for node, own in reached.items() if len(own) > 1 and sorted(own)[-2] > -DELTA - sigma / 2}
    unknown = reached.keys() - fast
    lows = sorted(ratio for ratio, is_busy in zip(ratios, busy, strict=True) if is_busy)
    slowest = lows[len(lows) // 10] if lows else math.inf
    groups = chained(
        [(node,) for node in present]
        + [observed.pair for observed, ratio in zip(seen, ratios, strict=True) if ratio > -clearly]
    )
    most = max(groups, key=len)
    strangers = _strangers(seen, groups, unknown)

    def level(node: int) -> Reached:
        if node in fast:
            own = [ratio for ratio in reached[node] if ratio > -clearly]
            return Reached(fmean(own), len(own), fast=True, slow=False, open=False)
        # With members of the largest fast group: a few nodes may share an uplink that is always busy.
        with_fast = [
            (ratio, observed.kind is RoundKind.QUIET)
            for observed, ratio in zip(seen, ratios, strict=True)
            if node in observed.pair and (most - unknown) & {*observed.pair} - {node}
        ]
        # Even in a quiet round an uplink may be busy: what counts is what the node reaches again and again.
        top = [(ratio, is_quiet) for ratio, is_quiet in with_fast if ratio > best[node] - _SAME - _SIGMAS * sigma]
        mean = fmean([ratio for ratio, _ in top]) if top else fmean(reached[node])
        count = sum(is_quiet for _, is_quiet in with_fast)
        enough = len(top) >= _ENOUGH and sum(is_quiet for _, is_quiet in top) >= _ENOUGH_QUIET
        met_all = all(node != stranger for stranger, _ in strangers)
        # A node that was as fast as others once may be so again.
        decided = enough and met_all and best[node] <= -DELTA - sigma
        return Reached(
            mean,
            max(1, len(top)),
            fast=False,
            slow=decided and abs(mean - slowest) > _LIKE_SLOWEST,
            open=not decided and (count < _MAX_QUIET or not met_all),
        )

    levels = {node: level(node) for node in present}
    for node in _explained(seen, ratios, levels, _SAME + _SIGMAS * sigma):
        levels[node] = replace(levels[node], slow=False)
    return Sharing(
        full=full,
        sigma=sigma,
        lost=median(lows) if lows else 0.0,
        busy=pairs,
        general=cover(pairs) > least,
        nodes=tuple(levels.get(node) for node in range(nodes)),
        fast=_fast_pairs(seen, ratios, -DELTA - 1.5 * sigma, unknown),
        strangers=strangers,
        most=tuple(sorted(most - unknown)),
    )


def _explained(
    seen: Sequence[Observation], ratios: Sequence[float], levels: Mapping[int, Reached], near: float
) -> set[int]:
    """Return the slow nodes whose rate an uplink may explain: they reached it with a node as slow, and while all nodes
    met at random with no fast one. The two may be alone under a switch, and only the other one slow.
    """
    explained, slow = set[int](), set[int]()
    for observed, ratio in zip(seen, ratios, strict=True):
        for node, other in (observed.pair, observed.pair[::-1]):
            own, others = levels[node], levels[other]
            if own.slow and ratio > min(own.mean, others.mean) - near:
                if others.fast and is_crowded(observed):
                    slow.add(node)
                elif not others.fast and others.mean < own.mean + near and observed.kind is not RoundKind.QUIET:
                    explained.add(node)
    return explained - slow


def is_crowded(observed: Observation) -> bool:
    """True of a round of random pairs: in others few pairs share uplinks, so being fast shows nothing."""
    return observed.kind not in (RoundKind.AMONG_SUSPECTS, RoundKind.QUIET, RoundKind.CONFIRMING)


def clearly_below(sigma: float) -> float:
    """Return the difference of log bandwidth above which it is not just noise."""
    return _CLEARLY + _SIGMAS * sigma


def full_rate(logs: NDArray[np.float64]) -> tuple[float, float]:
    """Return the rate of pairs that nothing slows, and the noise of one measurement."""
    top = float(np.sort(logs)[-min(_THIRD, len(logs))])
    full = float(np.quantile(logs[logs >= top - _WIDE], 0.5, method="higher"))
    full = float(np.quantile(logs[abs(logs - full) <= _NEAR], 0.5, method="higher"))
    return full, max(_MIN_NOISE, MAD_TO_SIGMA * float(np.median(logs[logs >= full] - full)))


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
    for observed in seen:
        for node, other in ((observed.first, observed.second), (observed.second, observed.first)):
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
    for observed, ratio in zip(reversed(seen), reversed(ratios), strict=True):
        known.setdefault(observed.pair, ratio)
    taken: dict[int, Pair] = {}
    for pair in sorted(known, key=lambda pair: not {*pair} & {*unknown}):
        if known[pair] > least and not taken.keys() & {*pair}:
            taken |= dict.fromkeys(pair, pair)
    return tuple(dict.fromkeys(taken.values()))
