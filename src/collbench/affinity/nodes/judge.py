"""Which nodes are slow, which uplinks, and where to look more closely, from the pairs of nodes measured so far.

A node is slow where even the upper end of its simultaneous 95 % interval lies more than 2 % below the median node. A
switch's uplinks are slow by the same rule among switches. Where nobody told the switches they are found: nodes that
are slow towards others and not among themselves share an uplink.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean, median

from collbench.affinity.nodes.fit import ALIKE, DELTA, Fit, Level, Members, Observation, fit

Pair = tuple[int, int]

_CONFIDENCE = 0.95
# Leaving a leaf costs this much in a round where all do: its uplinks are oversubscribed and hide the nodes' own cards.
_OVERSUBSCRIBED = 0.10
# So many pairs among suspects that a slow pair of slow nodes is told from a fast one of neighbours: at 2 % noise the
# mean of four is known to 1 %, and half of a 10 % fault is 5 %.
_ENOUGH_AMONG = 4
# An estimate that leaves room for a node this slow says nothing of it yet: eight rounds with 2 % noise leave 3 %.
_TOO_WIDE = 0.15
# Of log bandwidth: where pairs cannot tell nodes apart, as of two nodes alone, errors have no end.
_WIDEST = 10.0


class State(StrEnum):
    """What is known of a node or an uplink."""

    HEALTHY = "healthy"
    SLOW = "slow"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Effect:
    """Bandwidth against the median's, as a ratio less 1 (-0.1: 10 % below), with its simultaneous 95 % interval."""

    ratio: float
    interval: tuple[float, float]
    state: State


# Of a node of which no pair could be measured.
UNKNOWN = Effect(-1.0, (-1.0, math.expm1(_WIDEST)), State.UNDECIDED)


@dataclass(frozen=True, slots=True)
class NodeEffect:
    """A node as sender and receiver; both are the same effect where every pair was measured both ways."""

    node: int
    sends: Effect
    receives: Effect

    @property
    def worse(self) -> Effect:
        """The slower direction, which is what an all-reduce gets."""
        return min(self.sends, self.receives, key=lambda effect: effect.ratio)

    @property
    def state(self) -> State:
        """Slow where one direction is, else undecided where one direction is."""
        states = {self.sends.state, self.receives.state}
        return next(state for state in (State.SLOW, State.UNDECIDED, State.HEALTHY) if state in states)


@dataclass(frozen=True, slots=True)
class Uplink:
    """What the pairs that leave a switch get, against other switches. `name` is empty where the switch was found."""

    name: str
    members: Members
    effect: Effect


@dataclass(frozen=True, slots=True)
class Switches:
    """One level of switches as somebody told it: every node is under one of them."""

    names: tuple[str, ...]
    members: Level


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the pairs say. `typical_gbs` is a healthy pair under one switch, `across` what leaving a switch of each told
    level costs as a ratio less 1, `noise` one measurement's σ̂. `suspects` are groups to measure among themselves, empty
    for more pairs at random, None where all is decided.
    """

    nodes: tuple[NodeEffect, ...]
    uplinks: tuple[Uplink, ...]
    typical_gbs: float
    across: tuple[float, ...]
    noise: float
    suspects: tuple[Members, ...] | None

    @property
    def judged(self) -> int:
        """How many nodes are known to be slow or healthy."""
        return sum(one.state is not State.UNDECIDED for one in self.nodes)

    @property
    def slow_nodes(self) -> tuple[NodeEffect, ...]:
        """The nodes that are slow for certain, the slowest first."""
        return tuple(sorted((n for n in self.nodes if n.state is State.SLOW), key=lambda n: n.worse.ratio))

    @property
    def slow_uplinks(self) -> tuple[Uplink, ...]:
        """The switches whose uplinks are slow for certain."""
        return tuple(uplink for uplink in self.uplinks if uplink.effect.state is State.SLOW)


def judge(seen: Sequence[Observation], nodes: int, told: Sequence[Switches] = ()) -> Judgement:
    """Return what the pairs measured so far say of `nodes` nodes under the switches that were told, if any."""
    told = [level for level in told if any(len(members) > 1 for members in level.members)]  # others are nodes again
    if told:
        return _judge_told(seen, nodes, told)
    # Neighbours that were chosen for being slow are fast among themselves: they would hide what made them suspects.
    first = fit([one for one in seen if not one.among], nodes)
    low = {one.node: one.worse.ratio for one in _node_effects(first) if one.worse.ratio < -DELTA}
    among = _among(seen, low, math.exp(first.typical))
    groups = _neighbours(among, low)
    found = fit(seen, nodes, [(members,) for members in groups], hiding=groups)
    uplinks = [
        Uplink("", members, _effect(float(values[0]), float(errors[0]), _quantile(found, nodes)))
        for members, values, errors in zip(groups, found.levels, found.level_errors, strict=True)
    ]
    return _judgement(seen, found, uplinks, _suspects(found, low, among, groups))


def _judge_told(seen: Sequence[Observation], nodes: int, told: Sequence[Switches]) -> Judgement:
    levels = [level.members for level in told]
    found = fit(seen, nodes, levels)
    if min(found.across) < math.log(1 - _OVERSUBSCRIBED):
        hiding = list(levels[0])
    else:
        hiding = [uplink.members for uplink in _told_uplinks(found, told) if uplink.effect.state is State.SLOW]
    if hiding:
        found = fit(seen, nodes, levels, hiding)
    uplinks = _told_uplinks(found, told)
    open_nodes = {one.node for one in _node_effects(found) if one.state is State.UNDECIDED}
    open_uplinks = any(uplink.effect.state is State.UNDECIDED for uplink in uplinks)
    leaves = tuple(members for members in told[0].members if open_nodes & set(members))
    return _judgement(seen, found, uplinks, leaves if leaves or open_uplinks else None)


def _told_uplinks(found: Fit, told: Sequence[Switches]) -> list[Uplink]:
    return [
        Uplink(name, members, _effect(float(value), float(error), _quantile(found, len(values))))
        for level, values, errors in zip(told, found.levels, found.level_errors, strict=True)
        for name, members, value, error in zip(level.names, level.members, values, errors, strict=False)
    ]


def _judgement(
    seen: Sequence[Observation], found: Fit, uplinks: Sequence[Uplink], suspects: tuple[Members, ...] | None
) -> Judgement:
    known = {node for one in seen for node in (one.first, one.second)}
    effects = _node_effects(found)
    return Judgement(
        nodes=tuple(one if one.node in known else NodeEffect(one.node, UNKNOWN, UNKNOWN) for one in effects),
        uplinks=tuple(uplinks),
        typical_gbs=math.exp(found.typical),
        across=tuple(math.expm1(value) for value in found.across),
        noise=found.sigma,
        suspects=suspects,
    )


def _node_effects(found: Fit) -> tuple[NodeEffect, ...]:
    quantile = _quantile(found, (1 + found.directed) * len(found.sends))
    sends, receives = (
        [_effect(float(value), float(error), quantile) for value, error in zip(values, errors, strict=True)]
        for values, errors in ((found.sends, found.send_errors), (found.receives, found.receive_errors))
    )
    return tuple(NodeEffect(node, *both) for node, both in enumerate(zip(sends, receives, strict=True)))


def _effect(value: float, error: float, quantile: float) -> Effect:
    wide = min(quantile * error, _WIDEST)
    interval, ratio = (math.expm1(value - wide), math.expm1(value + wide)), math.expm1(value)
    if interval[1] < -DELTA:
        return Effect(ratio, interval, State.SLOW)
    return Effect(ratio, interval, State.UNDECIDED if ratio < -DELTA or interval[0] < -_TOO_WIDE else State.HEALTHY)


def _quantile(found: Fit, count: int) -> float:
    """Return how many standard errors `count` intervals at once need (Bonferroni, Student's t)."""
    from scipy.special import stdtrit

    return float(stdtrit(found.freedom, 1 - (1 - _CONFIDENCE) / 2 / max(1, count)))


def _among(seen: Sequence[Observation], low: Collection[int], typical_gbs: float) -> dict[Pair, list[float]]:
    """Return what pairs of low nodes carried, against the typical pair, as ratios less 1."""
    among: dict[Pair, list[float]] = defaultdict(list)
    for one in seen:
        if one.first in low and one.second in low:
            pair = min(one.first, one.second), max(one.first, one.second)
            among[pair].append(one.gbs / typical_gbs - 1)
    return among


def _neighbours(among: Mapping[Pair, Sequence[float]], low: Mapping[int, float]) -> list[Members]:
    """Return groups of nodes that are equally low, and lack less than half of it among themselves."""
    alike = {pair: found for pair, found in among.items() if _alike(low[pair[0]], low[pair[1]])}
    fast = [pair for pair, ratios in alike.items() if fmean(ratios) > max(low[pair[0]], low[pair[1]]) / 2]
    groups: list[set[int]] = []
    for pair in fast:
        meeting = [group for group in groups if group & set(pair)]
        groups = [group for group in groups if group not in meeting] + [set(pair).union(*meeting)]
    kept = (tuple(sorted(node for node in group if _belongs(node, group, among, low))) for group in groups)
    return sorted(members for members in kept if len(members) > 1)


def _alike(one: float, other: float) -> bool:
    """True where one uplink may be what both lack. A node that looks 3 % slow by chance has no part in 18 %."""
    return max(one, other) < ALIKE * min(one, other)


def _belongs(
    node: int, group: Collection[int], among: Mapping[Pair, Sequence[float]], low: Mapping[int, float]
) -> bool:
    """True where most pairs of the node with the group are fast: one lucky measurement joins nobody to it."""
    ratios = [fmean(found) for pair, found in among.items() if node in pair and set(pair) <= set(group)]
    return median(ratios) > low[node] / 2


def _suspects(
    found: Fit, low: Mapping[int, float], among: Mapping[Pair, Sequence[float]], groups: Sequence[Members]
) -> tuple[Members, ...] | None:
    """Return the low nodes while they hardly met each other, then who is still open, and None when nobody is."""
    met = Counter(node for pair, ratios in among.items() for node in pair for _ in ratios)
    strangers = any(_strangers(node, group, among, low) for group in groups for node in low)
    if strangers or (len(low) > 1 and min(met[node] for node in low) < _ENOUGH_AMONG):
        return (tuple(sorted(low)),)
    undecided = {one.node for one in _node_effects(found) if one.state is State.UNDECIDED}
    return tuple(members for members in groups if undecided & set(members)) if undecided else None


def _strangers(node: int, group: Members, among: Collection[Pair], low: Mapping[int, float]) -> bool:
    """True where a node lacks what a group does and met none of it: it may belong there."""
    alike = node not in group and _alike(low[node], median(low[member] for member in group))
    return alike and not any(node in pair and set(pair) & set(group) for pair in among)
