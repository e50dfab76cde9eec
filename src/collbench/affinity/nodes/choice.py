"""Which nodes to take: none that is slow while there are others, then under the fewest switches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from collbench.affinity.nodes.fit import DELTA, Members
from collbench.affinity.nodes.judge import UNKNOWN, Judgement, NodeEffect, State, Switches, Uplink
from collbench.errors import UsageError


@dataclass(frozen=True, slots=True)
class NodeChoice:
    """The chosen nodes in the order in which ranks should be started: neighbours under a switch side by side.

    `band` is the predicted all-reduce busbw in GB/s: high where a ring leaves each switch once, low where every node's
    traffic leaves its switch at the same time; None for a single node, which no pair tells of. `left_out` names the
    nodes that were not taken for a reason; `switches` how many of each told level are used. `heuristic` where the
    switches were packed greedily.
    """

    members: Members
    reason: str
    band: tuple[float, float] | None
    left_out: tuple[tuple[int, str], ...]
    switches: tuple[int, ...]
    heuristic: bool


def choose_nodes(judgement: Judgement, wanted: int, told: Sequence[Switches] = ()) -> NodeChoice:
    """Return the best `wanted` nodes. Raises UsageError for a number that cannot be."""
    nodes = len(judgement.nodes)
    if not 1 <= wanted <= nodes:
        raise UsageError(f"cannot choose {wanted} of {nodes} nodes: choose 1 to {nodes}")
    rates = [1.0 if one.state is State.HEALTHY else min(1.0, 1 + one.worse.ratio) for one in judgement.nodes]
    limit, able = _able(rates, judgement.slow_uplinks, wanted)
    homes = [_home(node, told) for node in range(nodes)]
    behind = {node for one in judgement.slow_uplinks for node in one.members}
    worth = [(-rate, node in behind, node) for node, rate in enumerate(rates)]
    members = _packed(able, worth, homes, wanted)
    used = tuple(len({homes[node][: depth + 1] for node in members}) for depth in reversed(range(len(told))))
    return NodeChoice(
        members=members,
        reason=_reason(limit, used, told, wanted, nodes),
        band=_band(judgement, members, rates) if wanted > 1 else None,
        left_out=tuple(_left_out(judgement, set(members))),
        switches=used,
        heuristic=len(told) > 1,  # of one level the largest first is the fewest
    )


def _able(rates: Sequence[float], slow: Sequence[Uplink], wanted: int) -> tuple[float, list[int]]:
    """Return the highest ratio of the typical rate that `wanted` nodes reach, and the nodes to take them from.

    Of those behind slow uplinks only as many count as their uplinks carry at that rate, unless they are enough alone.
    """
    levels = {rate for rate in rates if rate > 0}
    levels |= {_carried(one) / count for one in slow for count in range(1, len(one.members) + 1)}
    for limit in sorted((min(1.0, level) for level in levels), reverse=True):
        able = [node for node, rate in enumerate(rates) if rate >= limit * (1 - DELTA / 2)]
        alone = [[node for node in able if node in one.members] for one in slow]
        for one, inside in zip(slow, alone, strict=True):
            left = inside[int(_carried(one) / limit + DELTA) :]
            able = [node for node in able if node not in left]
        for enough in (able, *alone):
            if len(enough) >= wanted:
                return limit, enough
    return min(rates), list(range(len(rates)))


def _carried(slow: Uplink) -> float:
    """Return what a switch's uplinks carry, in nodes at the typical rate: they were measured with all of them busy."""
    return (1 + slow.effect.ratio) * len(slow.members)


def _home(node: int, told: Sequence[Switches]) -> tuple[int, ...]:
    """Return the node's switches from the top down: its pod, its leaf."""
    places = (next(place for place, members in enumerate(level.members) if node in members) for level in told)
    return tuple(places)[::-1]


def _packed(
    able: Sequence[int], worth: Sequence[tuple[float, bool, int]], homes: Sequence[tuple[int, ...]], wanted: int
) -> Members:
    """Return `wanted` of the nodes under the fewest switches, top level first, in the order of the switches."""
    left = list(able)
    for depth in range(len(homes[0])):
        under: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for node in left:
            under[homes[node][: depth + 1]].append(node)
        left = [node for place in _fewest(under, wanted) for node in under[place]]
    # Of the last switch, which is used in part, the best nodes.
    order = {place: number for number, place in enumerate(dict.fromkeys(homes[node] for node in left))}
    left.sort(key=lambda node: (order[homes[node]], worth[node]))
    return tuple(sorted(left[:wanted], key=lambda node: (homes[node], node)))


def _fewest(under: Mapping[tuple[int, ...], Sequence[int]], wanted: int) -> list[tuple[int, ...]]:
    """Return the fewest places that hold `wanted`: the largest, and last the smallest that is enough for the rest."""
    chosen: list[tuple[int, ...]] = []
    for place in sorted(under, key=lambda place: (-len(under[place]), place)):
        missing = wanted - sum(len(under[taken]) for taken in chosen)
        if missing <= 0:
            break
        enough = [other for other in under if other not in chosen and len(under[other]) >= missing]
        chosen.append(min(enough, key=lambda other: (len(under[other]), other)) if enough else place)
    return chosen


def _band(judgement: Judgement, members: Members, rates: Sequence[float]) -> tuple[float, float]:
    slowest = min(rates[node] for node in members)
    crowded, once = slowest, slowest
    for one in judgement.slow_uplinks:
        inside = len(set(members) & set(one.members))
        if 0 < inside < len(members):
            crowded, once = min(crowded, _carried(one) / inside), min(once, _carried(one))
    lost = min((ratio for ratio in judgement.across), default=0.0)
    crowded *= min(1.0, 1 + lost)
    return judgement.typical_gbs * crowded * (1 - DELTA), judgement.typical_gbs * once * (1 + DELTA)


def _reason(limit: float, used: Sequence[int], told: Sequence[Switches], wanted: int, nodes: int) -> str:
    if wanted == nodes:
        return f"all {nodes} nodes"
    slowest = "none of them is slow" if limit > 1 - DELTA else f"the slowest has {limit:.0%} of the typical rate"
    if not told:
        return f"{slowest}; no switches were told, so the first ones"
    under = " of ".join(
        f"{count} {level.names[0].rstrip('0123456789') or 'switch'}{'s' * (count != 1)}"
        for count, level in zip(used, told, strict=True)
    )
    return f"{slowest}; under {under.replace('leafs', 'leaves')}, the fewest that hold them"


def _left_out(judgement: Judgement, chosen: set[int]) -> Iterable[tuple[int, str]]:
    behind = {node: one for one in judgement.slow_uplinks for node in one.members}
    for one in judgement.nodes:
        if one.node in chosen:
            continue
        if one.state is not State.HEALTHY:
            yield one.node, described(one)
        elif one.node in behind:
            slow = behind[one.node]
            yield (
                one.node,
                f"its leaf's uplinks are {-slow.effect.ratio:.0%} slow"
                if not slow.name
                else (f"the uplinks of {slow.name} are {-slow.effect.ratio:.0%} slow"),
            )


def described(one: NodeEffect) -> str:
    """Return in words how slow a node is, and in which direction where they differ."""
    if one.worse == UNKNOWN:
        return "it could not be measured"
    low, high = one.worse.interval
    if one.state is State.UNDECIDED and one.worse.ratio >= -DELTA:
        return f"not known well: {1 + low:.0%} to {1 + high:.0%} of the median node"
    certain = "" if one.state is State.SLOW else "perhaps "
    both = one.sends == one.receives or {one.sends.state, one.receives.state} == {one.state}
    way = "" if both else "sending " if one.worse is one.sends else "receiving "
    return f"{certain}{way}{-one.worse.ratio:.1%} below the median node ({-high:.1%} to {-low:.1%})"
