"""Which nodes of a cluster are slow, and which to take, from pairs measured in rounds (docs/slow-nodes.md)."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import combinations
from statistics import fmean, median

import numpy as np

from collbench.cluster.fit import (
    ALIKE,
    Fit,
    Observation,
    Reached,
    RoundKind,
    Sharing,
    clearly_below,
    cover,
    find_sharing,
    fit,
    full_rate,
    is_crowded,
    measured_nodes,
)
from collbench.cluster.switches import Switches
from collbench.judge.stats import simultaneous_quantile
from collbench.judge.tails import lateness
from collbench.machine.labels import chained
from collbench.model.errors import UsageError
from collbench.model.run import Measurement, Members, Pair, Run
from collbench.model.units import DELTA, grouped

# Which nodes are slow, which uplinks, and where to look more closely, from the pairs of nodes measured so far.
#
# A node is slow if even the upper end of its simultaneous 95% interval lies more than 2% below the typical node: the
# median node, or if at most half of the nodes are fast the median of these. A switch's uplinks are slow by the same
# rule among switches. If the switches were not reported, they are inferred: nodes that are slow towards others but not
# among themselves share an uplink.

# If leaving a leaf costs this much while all nodes do, its uplinks are oversubscribed and hide the nodes' own cards.
_OVERSUBSCRIBED = 0.10
# With this many pairs among suspects, a slow pair of slow nodes differs from a fast pair of neighbors: at 2% noise the
# mean of four is known to 1%, and half of a 10% fault is 5%.
_ENOUGH_AMONG = 4
# A slow node costs less than this share of what the slow uplink above it costs.
_MAX_SHARE = 0.75
# If an interval reaches this far down, the node is undecided: eight rounds with 2% noise leave 3%.
_TOO_WIDE = 0.15
# Slow pairs show an uplink if so many nodes or more have a part in all of them, each in so many, and if they are this
# share of all: noise slows a few percent.
_FEWEST_BEHIND, _EACH_OFTEN, _SHARE_BEHIND = 3, 1.75, 0.1
# How often a slow node is measured again: an uplink that happened to be busy each time before will hardly be busy
# again.
_CONFIRMED = 2
# Quiet measurements have the noise of all fast pairs, of which there are some dozens.
_QUIET_FREEDOM = 30
# In log bandwidth: if pairs cannot separate nodes, as with only two nodes, errors are unbounded.
_WIDEST = 10.0


class State(StrEnum):
    """What is known of a node or an uplink; `EITHER`: a slow node, or a healthy one behind an oversubscribed uplink, or
    an uplink that is slow or oversubscribed.
    """

    HEALTHY = "healthy"
    SLOW = "slow"
    EITHER = "either"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Effect:
    """Bandwidth against the median's, as a ratio less 1 (-0.1: 10% below), with its simultaneous 95% interval."""

    ratio: float
    interval: tuple[float, float]
    state: State


# The effect of a node without any measured pair.
UNKNOWN = Effect(-1.0, (-1.0, math.expm1(_WIDEST)), State.UNDECIDED)


@dataclass(frozen=True, slots=True)
class Uplink:
    """The rate of pairs that leave a switch, against other switches. `name` is empty if the switch was inferred."""

    name: str
    members: Members
    effect: Effect


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the pairs say of each node. `typical_gbs` is a healthy pair under one switch, `across` what leaving a switch
    of a known level costs as a ratio less 1, with `across_intervals` (95% for all levels together), `noise` one
    measurement's σ̂. `suspects` are groups to measure among themselves, empty for more pairs at random, None if all is
    decided. `fast_pair` are the only two fast nodes, if there are just two: no pair shows whether the others are slow
    or these two share a switch. `sharing` is what pairs share if no switch is known. If `shared`, nodes are judged by
    it, and `across` is what pairs lose that meet busy uplinks. `confirm` are slow nodes to measure again, when all else
    is decided. `busy_pairs` counts the pairs of `sharing` that met a busy uplink.
    """

    nodes: tuple[Effect, ...]
    uplinks: tuple[Uplink, ...]
    typical_gbs: float
    across: tuple[float, ...]
    noise: float
    suspects: tuple[Members, ...] | None
    fast_pair: Members = ()
    sharing: Sharing | None = None
    shared: bool = False
    confirm: Members = ()
    across_intervals: tuple[tuple[float, float], ...] = ()
    busy_pairs: int | None = None

    @property
    def judged(self) -> int:
        """How many nodes are known to be slow or healthy."""
        return sum(effect.state in (State.SLOW, State.HEALTHY) for effect in self.nodes)

    @property
    def accuses(self) -> bool:
        """True if a node or an uplink is slow for certain."""
        return bool(self.slow_nodes) or any(uplink.effect.state is State.SLOW for uplink in self.uplinks)

    @property
    def slow_nodes(self) -> Members:
        """The nodes that are significantly slow, the slowest first."""
        slow = (node for node, effect in enumerate(self.nodes) if effect.state is State.SLOW)
        return tuple(sorted(slow, key=lambda node: self.nodes[node].ratio))

    @property
    def slow_uplinks(self) -> tuple[Uplink, ...]:
        """The switches whose uplinks are significantly slow, or if in doubt perhaps oversubscribed."""
        return tuple(uplink for uplink in self.uplinks if uplink.effect.state in (State.SLOW, State.EITHER))


def judge(seen: Sequence[Observation], nodes: int, known: Sequence[Switches] = ()) -> Judgement:
    """Return what the pairs measured so far show about `nodes` nodes under the reported switches, if any.

    Of nodes without a pair, such as lost ones, nothing is known.
    """
    present = {*measured_nodes(seen)}
    known = [
        Switches(level.names, tuple(tuple(node for node in some if node in present) for some in level.members))
        for level in known
    ]
    known = [level for level in known if any(len(members) > 1 for members in level.members)]  # others are nodes again
    if known:
        return _judge_known(seen, nodes, known)
    sharing = find_sharing(seen, nodes)
    if sharing is not None and sharing.general and any(observed.kind is RoundKind.QUIET for observed in seen):
        return _judge_sharing(sharing)
    found = _judge_unknown(seen, nodes, sharing.busy if sharing is not None else ())
    if sharing is None:
        return found
    found = replace(found, sharing=sharing, busy_pairs=len(sharing.busy))
    behind = [set(uplink.members) for uplink in found.slow_uplinks]
    unexplained = {pair for pair in sharing.busy if all(len(members & {*pair}) != 1 for members in behind)}
    mixed = any(_is_mixed(uplink, seen, sharing) for uplink in found.slow_uplinks)
    if mixed or (sharing.general and cover(unexplained) > 1):
        return _judge_sharing(sharing)
    found = _with_fast(found, sharing) if sharing.busy else found
    if _met_uplinks(unexplained, seen):
        found = replace(found, across=(math.expm1(sharing.lost),), across_intervals=())
    return found if found.suspects is not None else replace(found, confirm=_unconfirmed(found, seen))


def _met_uplinks(unexplained: Collection[Pair], seen: Sequence[Observation]) -> bool:
    """True if pairs that no node and no inferred uplink explains met an uplink that is seldom busy.

    A slow uplink may be busy in two rounds of eight: then its nodes are fast in most of their pairs, so none is low.
    But each was slow with several others, while what noise slows has few nodes in common.
    """
    nodes, crowded = cover(unexplained), sum(map(is_crowded, seen))
    return nodes >= _FEWEST_BEHIND and len(unexplained) >= max(_EACH_OFTEN * nodes, _SHARE_BEHIND * crowded)


def _is_mixed(uplink: Uplink, seen: Sequence[Observation], sharing: Sharing) -> bool:
    """True if a pair of the inferred uplink's nodes once lacked about what the uplink costs: they are under several
    switches.
    """
    least = sharing.full + min(_MAX_SHARE * math.log1p(uplink.effect.ratio), -clearly_below(sharing.sigma))
    return any(math.log(observed.gbs) < least and {*observed.pair} <= {*uplink.members} for observed in seen)


def _unconfirmed(found: Judgement, seen: Sequence[Observation]) -> Members:
    """Return the slow nodes, unless they are many, that were not yet measured often enough while few others met."""
    confirmed = Counter(node for observed in seen if observed.kind is RoundKind.CONFIRMING for node in observed.pair)
    few = 3 * len(found.slow_nodes) <= len(measured_nodes(seen))
    return tuple(sorted(node for node in found.slow_nodes if few and confirmed[node] < _CONFIRMED))


def _with_fast(found: Judgement, sharing: Sharing) -> Judgement:
    """Return the judgement with undecided nodes called healthy that were fast twice: a slow uplink widens intervals."""

    def sure(effect: Effect, reached: Reached | None) -> Effect:
        fast = effect.state is State.UNDECIDED and reached is not None and reached.fast
        return replace(effect, state=State.HEALTHY) if fast else effect

    return replace(found, nodes=tuple(map(sure, found.nodes, sharing.nodes)))


def _judge_unknown(seen: Sequence[Observation], nodes: int, busy: Collection[Pair]) -> Judgement:
    """Return what pairs show of nodes, and of uplinks that are slower than others, if no switch is known.

    `busy` pairs lack more than their nodes.
    """
    # Pairs among suspects are left out at first: behind a slow uplink they are fast, which would hide what is slow.
    first = fit([observed for observed in seen if observed.kind is not RoundKind.AMONG_SUSPECTS])
    low = {node: effect.ratio for node, effect in _node_effects(first).items() if effect.ratio < -DELTA}
    of_low = (observed for observed in seen if low.keys() >= {*observed.pair})
    # What pairs of low nodes carried, as ratios less 1.
    among = grouped((observed.pair, observed.gbs / math.exp(first.typical) - 1) for observed in of_low)
    groups = _completed(_neighbours(among, low), busy, seen)
    fitted = fit(seen, [(members,) for members in groups], hiding=groups)
    quantile = simultaneous_quantile(fitted.freedom, len(fitted.nodes))
    uplinks = [
        Uplink("", members, _in_doubt(_effect(float(values[0]), float(errors[0]), quantile)))
        for members, values, errors in zip(groups, fitted.levels, fitted.level_errors, strict=True)
    ]
    found = _unless_fast(_judgement(nodes, fitted, uplinks, _suspects(fitted, low, among, groups)), seen)
    return _unless_strangers(found, {observed.pair for observed in seen}, groups)


def _unless_strangers(found: Judgement, met: Collection[Pair], groups: Sequence[Members]) -> Judgement:
    """Return the judgement with slow nodes in doubt that never met another one as slow: both may be under one switch.

    They are to meet next.
    """
    alone = sorted(node for node in found.slow_nodes if not any(node in group for group in groups))
    strangers = {
        (node, other)
        for node, other in combinations(alone, 2)
        if _alike(found.nodes[node].ratio, found.nodes[other].ratio) and (node, other) not in met
    }
    if not strangers:
        return found
    doubted = {node for pair in strangers for node in pair}
    pairs: dict[int, Pair] = {}
    for pair in sorted(strangers):
        if not pairs.keys() & {*pair}:
            pairs |= dict.fromkeys(pair, pair)
    return replace(
        found,
        nodes=tuple(_in_doubt(effect) if node in doubted else effect for node, effect in enumerate(found.nodes)),
        suspects=tuple(dict.fromkeys(pairs.values())) if found.suspects is None else found.suspects,
    )


def _in_doubt(effect: Effect) -> Effect:
    return replace(effect, state=State.EITHER) if effect.state is State.SLOW else effect


def _unless_fast(found: Judgement, seen: Sequence[Observation]) -> Judgement:
    """Return the judgement with no node called slow that was as fast as others, and by more than noise: then it met
    busy uplinks.

    If it was so only once, or was faster than it seems but not as fast as others, it is in doubt: behind an uplink that
    slows it with others, another node may slow it.
    """
    full, sigma = full_rate(np.log([pair.gbs for pair in seen]))
    full = max(full, math.log(found.typical_gbs))  # of few nodes, fewer than three measurements may be without the slow

    def checked(node: int, effect: Effect) -> Effect:
        if effect.state is not State.SLOW:
            return effect
        least = math.log1p(effect.ratio) + clearly_below(sigma)
        faster = [ratio for pair in seen if node in pair.pair and (ratio := math.log(pair.gbs) - full) > least]
        fast = sum(ratio > -DELTA for ratio in faster)
        return replace(effect, state=State.HEALTHY if fast > 1 else State.EITHER) if faster else effect

    return replace(found, nodes=tuple(checked(node, effect) for node, effect in enumerate(found.nodes)))


def _judge_known(seen: Sequence[Observation], nodes: int, known: Sequence[Switches]) -> Judgement:
    levels = [level.members for level in known]
    fitted = fit(seen, levels)
    slow = [
        uplink.members
        for level in _known_uplinks(fitted, known)
        for uplink in level
        if uplink.effect.state is State.SLOW
    ]
    across = min(fitted.across)
    if slow:
        fitted = fit(seen, levels, slow)
    # Perhaps only a fit without the slowest uplinks shows it.
    oversubscribed = min(across, *fitted.across) < math.log(1 - _OVERSUBSCRIBED)
    if oversubscribed:
        fitted = fit(seen, levels, levels[0])
    found_levels = _known_uplinks(fitted, known)
    # Pairs with the slowest uplink leave more of other ones to the pairs beside them, by chance: what lacks less than
    # half of what that one does is in doubt. Beside an oversubscribed leaf at half it was up to a third.
    beside = ALIKE * min((uplink.effect.ratio for level in found_levels for uplink in level), default=0.0)
    uplinks = [
        uplink
        if uplink.effect.ratio <= beside and _has_equal(uplink, level, oversubscribed)
        else replace(uplink, effect=_in_doubt(uplink.effect))
        for level in found_levels
        for uplink in level
    ]
    open_nodes = {node for node, effect in _node_effects(fitted).items() if effect.state is State.UNDECIDED}
    open_uplinks = any(uplink.effect.state is State.UNDECIDED for uplink in uplinks)
    leaves = tuple(members for members in known[0].members if open_nodes & set(members))
    suspects = leaves if (leaves or open_uplinks) and not fitted.exhausted else None
    found = _unless_fast(_judgement(nodes, fitted, uplinks, suspects), seen)
    if found.judged:
        return found
    # Pairs that do not distinguish nodes accuse no uplink.
    return replace(found, uplinks=tuple(replace(uplink, effect=_in_doubt(uplink.effect)) for uplink in found.uplinks))


def _has_equal(uplink: Uplink, level: Sequence[Uplink], oversubscribed: bool) -> bool:
    """True if another switch of the level, whose uplinks are not slow, should have no more of them for each node.

    One of as many nodes should not; one of more nodes neither, unless all are oversubscribed, perhaps in proportion.
    """
    others = [len(other.members) for other in level if other.effect.state is not State.SLOW]
    least = len(uplink.members)
    return any(count == least or (count > least and not oversubscribed) for count in others)


def _judge_sharing(sharing: Sharing) -> Judgement:
    """Return what nodes reach that share unreported uplinks."""
    quantile = simultaneous_quantile(_QUIET_FREEDOM, len(sharing.nodes))

    def effect(reached: Reached | None) -> Effect:
        if reached is None:
            return UNKNOWN
        found = _effect(reached.mean, sharing.sigma / math.sqrt(reached.count), quantile)
        if reached.fast or reached.slow:
            return found if reached.slow else replace(found, state=State.HEALTHY)
        return replace(found, state=State.EITHER)

    return Judgement(
        nodes=tuple(map(effect, sharing.nodes)),
        uplinks=(),
        typical_gbs=math.exp(sharing.full),
        across=(math.expm1(sharing.lost),),
        noise=sharing.sigma,
        suspects=(sharing.open,) if sharing.open else None,
        sharing=sharing,
        shared=True,
        busy_pairs=len(sharing.busy),
    )


def _known_uplinks(fitted: Fit, known: Sequence[Switches]) -> list[list[Uplink]]:
    """Return the uplinks of each level."""
    return [
        [
            Uplink(
                name, members, _effect(float(value), float(error), simultaneous_quantile(fitted.freedom, len(values)))
            )
            for name, members, value, error in zip(level.names, level.members, values, errors, strict=False)
        ]
        for level, values, errors in zip(known, fitted.levels, fitted.level_errors, strict=True)
    ]


def _judgement(nodes: int, fitted: Fit, uplinks: Sequence[Uplink], suspects: tuple[Members, ...] | None) -> Judgement:
    effects = _node_effects(fitted)
    quantile = simultaneous_quantile(fitted.freedom, len(fitted.across))
    losses = [_effect(*one, quantile) for one in zip(fitted.across, fitted.across_errors, strict=True)]
    return Judgement(
        nodes=tuple(effects.get(node, UNKNOWN) for node in range(nodes)),
        uplinks=tuple(uplinks),
        typical_gbs=math.exp(fitted.typical),
        across=tuple(loss.ratio for loss in losses),
        across_intervals=tuple(loss.interval for loss in losses),
        noise=fitted.sigma,
        suspects=suspects,
        fast_pair=fitted.fast_pair,
    )


def _node_effects(fitted: Fit) -> dict[int, Effect]:
    """Return the effect of each node that was measured."""
    quantile = simultaneous_quantile(fitted.freedom, len(fitted.effects))
    return {
        node: _effect(float(value), float(error), quantile, decided=not fitted.fast_pair)
        for node, value, error in zip(fitted.nodes, fitted.effects, fitted.errors, strict=True)
    }


def _effect(value: float, error: float, quantile: float, *, decided: bool = True) -> Effect:
    wide = min(quantile * error, _WIDEST)
    interval, ratio = (math.expm1(value - wide), math.expm1(value + wide)), math.expm1(value)
    if interval[1] < -DELTA and decided:
        return Effect(ratio, interval, State.SLOW)
    return Effect(ratio, interval, State.UNDECIDED if ratio < -DELTA or interval[0] < -_TOO_WIDE else State.HEALTHY)


def _neighbours(among: Mapping[Pair, Sequence[float]], low: Mapping[int, float]) -> list[Members]:
    """Return groups of nodes that are equally low, and lack less than half of it among themselves."""
    alike = {pair: ratios for pair, ratios in among.items() if _alike(low[pair[0]], low[pair[1]])}
    fast = [pair for pair, ratios in alike.items() if fmean(ratios) > max(low[pair[0]], low[pair[1]]) / 2]
    kept = (tuple(sorted(node for node in group if _belongs(node, group, among, low))) for group in chained(fast))
    return sorted(members for members in kept if len(members) > 1)


def _completed(groups: Sequence[Members], busy: Collection[Pair], seen: Sequence[Observation]) -> list[Members]:
    """Return the groups behind an uplink with the nodes that by chance seldom met it while it was busy.

    Such a node's pairs with others lacked more than its group explains, and with the group's they never did.
    """
    whole, met = [set(group) for group in groups], {observed.pair for observed in seen if is_crowded(observed)}
    while True:
        unexplained = (pair for pair in busy if all(len(group & {*pair}) != 1 for group in whole))
        often = Counter(node for pair in unexplained for node in pair)
        lacking = (node for node, count in often.most_common() if count > 1 and not any(node in one for one in whole))
        joins = ((node, group) for node in lacking for group in whole if _is_inside(node, group, busy, met))
        if (found := next(joins, None)) is None:
            return sorted(tuple(sorted(group)) for group in whole)
        found[1].add(found[0])


def _is_inside(node: int, group: Collection[int], busy: Collection[Pair], met: Collection[Pair]) -> bool:
    """True if a node met several of a group while many pairs ran, and always fast."""
    pairs = {(min(node, other), max(node, other)) for other in group}
    return len(pairs & {*met}) > 1 and pairs.isdisjoint(busy)


def _alike(one: float, other: float) -> bool:
    """True if one uplink may slow both: a node that looks 3% slow by chance is not behind one that costs 18%."""
    return max(one, other) < ALIKE * min(one, other)


def _belongs(
    node: int, group: Collection[int], among: Mapping[Pair, Sequence[float]], low: Mapping[int, float]
) -> bool:
    """True if most pairs of the node with the group are fast: one fast measurement does not suffice."""
    ratios = [fmean(logs) for pair, logs in among.items() if node in pair and set(pair) <= set(group)]
    return median(ratios) > low[node] / 2


def _suspects(
    fitted: Fit, low: Mapping[int, float], among: Mapping[Pair, Sequence[float]], groups: Sequence[Members]
) -> tuple[Members, ...] | None:
    """Return the slow nodes until enough pairs among them were measured, then undecided groups; None if decided."""
    met = Counter(node for pair, ratios in among.items() for node in pair for _ in ratios)
    strangers = any(_strangers(node, group, among, low) for group in groups for node in low)
    if strangers or (len(low) > 1 and min(met[node] for node in low) < _ENOUGH_AMONG):
        return (tuple(sorted(low)),)
    undecided = {
        node
        for node, effect in _node_effects(fitted).items()
        if effect.state is State.UNDECIDED and not fitted.exhausted
    }
    return tuple(members for members in groups if undecided & set(members)) if undecided else None


def _strangers(node: int, group: Members, among: Collection[Pair], low: Mapping[int, float]) -> bool:
    """True if a node is as slow as a group but was measured with at most one of its nodes: it may belong there."""
    alike = node not in group and _alike(low[node], median(low[member] for member in group if member in low))
    met = {other for pair in among if node in pair for other in pair if other in group}
    return alike and len(met) < 2


# Which nodes to take: slow ones only if there are too few others, then under the fewest switches.


@dataclass(frozen=True, slots=True)
class NodeChoice:
    """The chosen nodes in the order in which to start ranks: neighbors under a switch follow each other.

    `reason` is why they were chosen. `band` is the predicted all-reduce busbw in GB/s: the low end if every node's
    traffic leaves its switch at the same time, the high end if a ring leaves each switch once; None for a single node,
    which has no pair. `left_out` has the nodes that were not taken, each with the reason: its own effect, or the slow
    uplink it is behind; of a survey that was read, in words. `switches` counts the switches used of each reported
    level. `heuristic`: the switches were packed greedily.
    """

    members: Members
    reason: str
    band: tuple[float, float] | None
    left_out: tuple[tuple[int, Effect | Uplink | str], ...]
    switches: tuple[int, ...]
    heuristic: bool


def choose_nodes(judgement: Judgement, wanted: int, known: Sequence[Switches] = ()) -> NodeChoice:
    """Return the best `wanted` nodes. Raises UsageError for an impossible number."""
    nodes = len(judgement.nodes)
    if not 1 <= wanted <= nodes:
        raise UsageError(f"cannot choose {wanted} of {nodes} nodes: choose 1 to {nodes}")
    rates = [1.0 if effect.state is State.HEALTHY else min(1.0, 1 + effect.ratio) for effect in judgement.nodes]
    limit, able = _able(rates, judgement.slow_uplinks, wanted)
    # Each node's switches from the top down: its pod, its leaf.
    homes = [
        tuple(next(index for index, some in enumerate(level.members) if node in some) for level in reversed(known))
        for node in range(nodes)
    ]
    behind = {node for uplink in judgement.slow_uplinks for node in uplink.members}
    worth = [(-rate, node in behind, node) for node, rate in enumerate(rates)]
    members = _packed(able, worth, homes, wanted)
    used = tuple(len({homes[node][: depth + 1] for node in members}) for depth in reversed(range(len(known))))
    undecided = sum(judgement.nodes[node].state in (State.UNDECIDED, State.EITHER) for node in members)
    return NodeChoice(
        members=members,
        reason=f"all {nodes} nodes" if wanted == nodes else _reason(limit, undecided, used, known),
        band=_band(judgement, members, rates, used) if wanted > 1 else None,
        left_out=tuple(_left_out(judgement, set(members))),
        switches=used,
        heuristic=len(known) > 1,  # of one level the largest first is the fewest
    )


def _reason(slowest: float, undecided: int, used: Sequence[int], known: Sequence[Switches]) -> str:
    """Return why nodes were chosen: the slowest of them reaches this ratio of the typical rate, and they are under as
    few switches of each known level as possible.
    """
    rate = "none of them is slow"
    if slowest <= 1 - DELTA:
        rate = f"the slowest reaches {slowest:.0%} of the typical rate"
    elif undecided:
        rate = f"none of them is known to be slow, but {undecided} of them are undecided"
    if not known:
        return f"{rate}; switches are unknown, so these are the first"
    kinds = (level.names[0].rstrip("0123456789") or "switch" for level in known)
    under = " of ".join(f"{count} {kind}{'s' * (count != 1)}" for count, kind in zip(used, kinds, strict=True))
    return f"{rate}; under {under.replace('leafs', 'leaves')}, the fewest that hold them"


def _able(rates: Sequence[float], slow: Sequence[Uplink], wanted: int) -> tuple[float, list[int]]:
    """Return the highest ratio of the typical rate that `wanted` nodes reach, and the nodes to take them from.

    Behind slow uplinks there are only as many as these uplinks serve at that rate, unless one switch has enough nodes.
    """
    levels = {rate for rate in rates if rate > 0}
    levels |= {_carried(uplink) / count for uplink in slow for count in range(1, len(uplink.members) + 1)}
    for limit in sorted((min(1.0, level) for level in levels), reverse=True):
        able = [node for node, rate in enumerate(rates) if rate >= limit * (1 - DELTA / 2)]
        alone = [[node for node in able if node in uplink.members] for uplink in slow]
        for uplink, inside in zip(slow, alone, strict=True):
            left = inside[int(_carried(uplink) / limit + DELTA) :]
            able = [node for node in able if node not in left]
        for enough in (able, *alone):
            if len(enough) >= wanted:
                return limit, enough
    return min(rates), list(range(len(rates)))


def _carried(slow: Uplink) -> float:
    """Return how many nodes a switch's uplinks serve at the typical rate; they were measured with all nodes busy."""
    return (1 + slow.effect.ratio) * len(slow.members)


def _packed(
    able: Sequence[int], worth: Sequence[tuple[float, bool, int]], homes: Sequence[tuple[int, ...]], wanted: int
) -> Members:
    """Return `wanted` of the nodes under the fewest switches, top level first, in the order of the switches."""
    left = list(able)
    for depth in range(len(homes[0])):
        under = grouped((homes[node][: depth + 1], node) for node in left)
        slow = {home for home, nodes in under.items() if any(worth[node][1] for node in nodes)}
        left = [node for home in _fewest(under, wanted, slow) for node in under[home]]
    # The last switch is used in part: take its best nodes.
    order = {home: number for number, home in enumerate(dict.fromkeys(homes[node] for node in left))}
    left.sort(key=lambda node: (order[homes[node]], worth[node]))
    return tuple(sorted(left[:wanted], key=lambda node: (homes[node], node)))


def _fewest(
    under: Mapping[tuple[int, ...], Sequence[int]], wanted: int, slow: Collection[tuple[int, ...]]
) -> list[tuple[int, ...]]:
    """Return the fewest switches with `wanted` nodes: the largest, last the smallest that has enough for the rest.

    The last has a `slow` uplink only if no other has enough: only some of its nodes count, so it would look smallest.
    """
    chosen: list[tuple[int, ...]] = []
    for home in sorted(under, key=lambda home: (-len(under[home]), home)):
        missing = wanted - sum(len(under[taken]) for taken in chosen)
        if missing <= 0:
            break
        enough = [other for other in under if other not in chosen and len(under[other]) >= missing]
        chosen.append(min(enough, key=lambda other: (other in slow, len(under[other]), other)) if enough else home)
    return chosen


def _band(judgement: Judgement, members: Members, rates: Sequence[float], used: Sequence[int]) -> tuple[float, float]:
    slowest = min(rates[node] for node in members)
    crowded, once = slowest, slowest
    for uplink in judgement.slow_uplinks:
        inside = len(set(members) & set(uplink.members))
        if 0 < inside < len(members):
            crowded, once = min(crowded, _carried(uplink) / inside), min(once, _carried(uplink))
    # Under one switch of a level nothing leaves it; of unknown switches it may.
    left = (
        [ratio for ratio, count in zip(judgement.across, used, strict=True) if count > 1] if used else judgement.across
    )
    lost = min(left, default=0.0)
    crowded *= min(1.0, 1 + lost)
    return judgement.typical_gbs * crowded * (1 - DELTA), judgement.typical_gbs * once * (1 + DELTA)


def _left_out(judgement: Judgement, chosen: set[int]) -> Iterable[tuple[int, Effect | Uplink]]:
    behind = {node: uplink for uplink in judgement.slow_uplinks for node in uplink.members}
    for node, effect in enumerate(judgement.nodes):
        if node in chosen:
            continue
        if effect.state is not State.HEALTHY:
            yield node, effect
        elif node in behind:
            yield node, behind[node]


# Which node is late: of a pair, the one that waits less in the barrier before a batch.

# Healthy hosts differ by some 10 µs in how soon they launch again after a batch; less than this is not reported.
LATE_SECONDS = 100e-6
_LATE_FAMILY = 0.05  # how often chance may call any node of a survey late


@dataclass(frozen=True, slots=True)
class LateNode:
    """A node that is later to batches than its partners: in `later` of `seen` trials by more than clocks resolve.

    `seconds` is the median over its trials, `interval` that median's 95% interval.
    """

    node: int
    seconds: float
    interval: tuple[float, float]
    later: int
    seen: int


def late_nodes(run: Run, nodes: Sequence[Members]) -> tuple[LateNode, ...]:
    """Return the nodes that come late, the latest first; `nodes` are each one's positions in the run.

    All ranks leave a barrier together, so a node that waits in it for less arrived later by the difference: no clocks
    of two hosts are compared. "Together" means within the time that a barrier takes if no rank has to wait.
    """
    node_of = {position: node for node, members in enumerate(nodes) for position in members}
    later: dict[int, list[float]] = defaultdict(list)
    quickest: list[float] = []
    for measurement in run.measurements:
        for waits in _waits_of_two(measurement, node_of):
            (first, one), (second, other) = waits.items()
            later[first].append(other - one)
            later[second].append(one - other)
            quickest.append(min(one, other))
    if not later:
        return ()
    resolved = max(LATE_SECONDS, median(quickest))
    late = []
    for node, values in later.items():
        over = sum(value > resolved for value in values)
        spread = lateness(np.array(values), resolved)
        if spread.significant and spread.interval and _by_chance(over, len(values)) <= _LATE_FAMILY / len(later):
            late.append(LateNode(node, spread.median, spread.interval, over, len(values)))
    return tuple(sorted(late, key=lambda node: -node.seconds))


def _waits_of_two(measurement: Measurement, node_of: Mapping[int, int]) -> Iterator[dict[int, float]]:
    """Yield for each trial between two nodes how long each node's last rank waited in the barrier, in seconds."""
    nodes = [node_of[member] for member in measurement.point.members]
    if len(set(nodes)) != 2:
        return
    for sample in measurement.samples:
        if len(sample.waits) == len(nodes):
            ranks = list(zip(nodes, sample.waits, strict=True))
            yield {node: min(wait for other, wait in ranks if other == node) for node in sorted(set(nodes))}


def _by_chance(over: int, count: int) -> float:
    """Return the probability that at least this many of `count` trials have the node later, if that is a coin flip."""
    return float(sum(math.comb(count, k) for k in range(over, count + 1)) / 2**count)
