"""Which nodes are probably under one leaf switch, from pairs that met busy uplinks and pairs that did not.

A leaf switch itself is not oversubscribed: two nodes under it are as fast together as with anybody, however many pairs
run. So a pair that met a busy uplink is under two switches, and a pair that was fast in a round of random pairs, when
most were not, is probably under one. Each measurement is evidence, as the log of a ratio of likelihoods; groups are
merged while their pairs together are evidence for one switch (docs/slow-nodes.md).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush

from collbench.cluster.fit import Members, Observation, measured_nodes
from collbench.cluster.sharing import Sharing, is_crowded, met_busy_uplink

# How often a pair under one switch looks as if it had met a busy uplink: noise, a bad route, another job.
_MISTAKEN = 0.01
# Odds that a node is under its group's switch, and that two groups are under two switches.
_CERTAIN = math.log(1000)
# How often pairs between groups meet busy uplinks is estimated again when groups are known. Of each group it counts as
# much as two of its pairs that this is as often as of all groups.
_TURNS, _PRIOR = 3, 2

_Evidence = Mapping[int, Mapping[int, float]]


def leaf_groups(seen: Sequence[Observation], sharing: Sharing) -> tuple[Members, ...]:
    """Return groups of nodes that are each under a switch of their own, () if pairs do not show at least two of them.

    A node about which the pairs do not decide is in no group. If most are in none, there are no groups: where pairs
    between switches are often fast, too, what looks like a group is chance.
    """
    shown = [(one, busy) for one, busy in zip(seen, met_busy_uplink(seen, sharing), strict=True) if busy is not None]
    groups: list[Members] = []
    for _ in range(_TURNS):
        evidence = _evidence(shown, {node: number for number, group in enumerate(groups) for node in group})
        groups = [group for group in _merged(evidence) if len(group) > 1]
    kept: list[Members] = []
    for group in sorted((_certain(group, evidence) for group in groups), key=len, reverse=True):
        if len(group) > 1 and all(_between(group, other, evidence) < -_CERTAIN for other in kept):
            kept.append(group)
    enough = len(kept) > 1 and 2 * sum(map(len, kept)) >= len(measured_nodes(seen))
    return tuple(sorted(kept)) if enough else ()


def _evidence(shown: Sequence[tuple[Observation, bool]], group_of: Mapping[int, int]) -> _Evidence:
    """Return for pairs of nodes how much their measurements are evidence for one switch."""
    apart: dict[int | None, list[bool]] = defaultdict(list)  # which pairs between groups were busy: all, of each group
    for one, busy in shown:
        groups = {group_of.get(one.first, -one.first - 1), group_of.get(one.second, -one.second - 1)}
        if is_crowded(one) and len(groups) > 1:
            for group in (None, *groups):
                apart[group].append(busy)
    typical = (sum(apart[None]) + 1) / (len(apart[None]) + 2)

    def share(node: int) -> float:
        own = apart[group_of.get(node, -node - 1)]
        return min(1 - _MISTAKEN, max(_MISTAKEN, (sum(own) + _PRIOR * typical) / (len(own) + _PRIOR)))

    evidence: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for one, busy in shown:
        if busy or is_crowded(one):
            least = min(share(one.first), share(one.second))
            ratio = math.log(_MISTAKEN / least if busy else (1 - _MISTAKEN) / (1 - least))
            evidence[one.first][one.second] += ratio
            evidence[one.second][one.first] += ratio
    return evidence


def _between(group: Sequence[int], other: Sequence[int], evidence: _Evidence) -> float:
    return sum(evidence[a].get(b, 0.0) for a in group for b in other if a != b)


def _merged(evidence: _Evidence) -> list[Members]:
    """Return the groups: two are merged while all pairs between them are together evidence for one switch."""
    groups: dict[int, Members] = {node: (node,) for node in evidence}
    links = {node: dict(others) for node, others in evidence.items()}
    best = [(-score, a, b) for a, others in links.items() for b, score in others.items()]
    heapify(best)
    while best and best[0][0] < 0.0:
        score, one, other = heappop(best)
        if links.get(one, {}).get(other) != -score:
            continue  # of groups before they were merged
        groups[one] += groups.pop(other)
        for third, more in links.pop(other).items():
            if third != one:
                links[one][third] = links[third][one] = links[one].get(third, 0.0) + more
                heappush(best, (-links[one][third], one, third))
                del links[third][other]
        del links[one][other]
    return list(groups.values())


def _certain(group: Members, evidence: _Evidence) -> Members:
    """Return the group without the nodes that its other nodes do not hold for certain."""
    return tuple(sorted(node for node in group if _between((node,), group, evidence) > _CERTAIN))
