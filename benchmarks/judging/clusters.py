"""Clusters of nodes under leaf switches whose uplinks are oversubscribed, with a model of their own: no simulator's.

A healthy node's cards have the rate 1. Pairs of a round run concurrently: a pair takes the cards of both nodes and, if
it leaves its leaf, a part of what both leaves' uplinks carry: the nodes of the leaf divided by the oversubscription.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

Pair = tuple[int, int]
SIZES = ("equal", "random", "none")
SHARING = ("max-min", "equal share")


@dataclass(frozen=True, slots=True)
class Leaves:
    """A cluster: each node's leaf, what each leaf's uplinks carry, how uplinks are shared, and slow nodes' rates."""

    leaf_of: tuple[int, ...]
    uplinks: tuple[float, ...]
    sharing: str
    sends: dict[int, float]
    receives: dict[int, float]

    @property
    def nodes(self) -> int:
        """How many nodes there are."""
        return len(self.leaf_of)

    @property
    def slow(self) -> frozenset[int]:
        """The slow nodes."""
        return frozenset((*self.sends, *self.receives))

    def cards(self, node: int) -> float:
        """Return what a node reaches both ways at once."""
        return min(self.sends.get(node, 1.0), self.receives.get(node, 1.0))

    def rates(self, pairs: Sequence[Pair]) -> list[float]:
        """Return each pair's rate both ways while all run at once."""
        own = [min(self.cards(a), self.cards(b)) for a, b in pairs]
        crossed = [(self.leaf_of[a], self.leaf_of[b]) if self.leaf_of[a] != self.leaf_of[b] else () for a, b in pairs]
        if self.sharing == "equal share":
            users = Counter(leaf for leaves in crossed for leaf in leaves)
            return [
                min([rate, *(self.uplinks[leaf] / users[leaf] for leaf in leaves)])
                for rate, leaves in zip(own, crossed, strict=True)
            ]
        return self._filled(own, crossed)

    def _filled(self, own: Sequence[float], crossed: Sequence[tuple[int, ...]]) -> list[float]:
        """Raise all rates together; a pair stops where its cards or one of its uplinks is full."""
        rates = [0.0] * len(own)
        left, running = list(self.uplinks), set(range(len(own)))
        while running:
            users = Counter(leaf for pair in running for leaf in crossed[pair])
            step = min(
                [own[pair] - rates[pair] for pair in running] + [left[leaf] / count for leaf, count in users.items()]
            )
            for pair in running:
                rates[pair] += step
            for leaf, count in users.items():
                left[leaf] -= step * count
            full = {leaf for leaf in users if left[leaf] < 1e-9}
            running = {pair for pair in running if rates[pair] < own[pair] - 1e-9 and not full & set(crossed[pair])}
        return rates


def cluster(
    nodes: int, sizes: str, ratio: float, truth: str, rng: np.random.Generator, factor: float | None = None
) -> Leaves:
    """Return a random cluster, oversubscribed `ratio` : 1, with the faults that `truth` names.

    Nodes are cabled to their leaves at random. A slow node has 0.5 to 0.9 of the rate of others, or `factor`.
    """
    members = _sizes(nodes, sizes, rng)
    leaf_of = rng.permutation(np.repeat(np.arange(len(members)), members)).tolist()
    uplinks = [size / ratio for size in members]
    if truth == "slow uplink":
        uplinks[int(rng.integers(len(members)))] *= rng.uniform(0.5, 0.8)
    count = {"one slow": 1, "slow one way": 1, "two slow": 2}.get(truth, 0)
    sends, receives = dict[int, float](), dict[int, float]()
    for node in rng.choice(nodes, count, replace=False).tolist():
        rate = float(rng.uniform(0.5, 0.9)) if factor is None else factor
        ways = [sends, receives] if truth != "slow one way" else [sends if rng.random() < 0.5 else receives]
        for way in ways:
            way[node] = rate
    return Leaves(tuple(leaf_of), tuple(uplinks), SHARING[int(rng.integers(2))], sends, receives)


def _sizes(nodes: int, sizes: str, rng: np.random.Generator) -> list[int]:
    """Return the nodes of each leaf; random ones have at least two."""
    if sizes == "none":
        return [nodes]
    if sizes == "equal":
        size = int(rng.choice([each for each in (4, 8, 16) if nodes >= 2 * each]))
        return [size] * (nodes // size)
    count = int(rng.integers(2, max(3, nodes // 4) + 1))
    cuts = np.sort(rng.choice(np.arange(nodes - 2 * count + 1), count - 1))
    return [2 + int(size) for size in np.diff(np.concatenate([[0], cuts, [nodes - 2 * count]]))]


# Noise: the log by which one measurement of a pair differs from its rate.

Noise = Callable[[Pair], float]


def normal(sigma: float, _nodes: int, rng: np.random.Generator) -> Noise:
    """Return noise that is the same for all pairs."""
    return lambda _pair: sigma * float(rng.standard_normal())


def uneven(sigma: float, nodes: int, rng: np.random.Generator) -> Noise:
    """Return noise of another size for each pair: 0.1 to 2 times `sigma`."""
    scale = {pair: sigma * float(rng.uniform(0.1, 2.0)) for pair in combinations(range(nodes), 2)}
    return lambda pair: scale[min(pair), max(pair)] * float(rng.standard_normal())


def ceiling(sigma: float, _nodes: int, rng: np.random.Generator) -> Noise:
    """Return noise that makes no pair faster than its rate: half of a normal distribution."""
    return lambda _pair: -sigma * abs(float(rng.standard_normal()))


def levels(sigma: float, nodes: int, rng: np.random.Generator) -> Noise:
    """Return a level of each pair that returns in every round, and a third as much noise."""
    level = {pair: sigma * float(rng.standard_normal()) for pair in combinations(range(nodes), 2)}
    return lambda pair: level[min(pair), max(pair)] + sigma / 3 * float(rng.standard_normal())


NOISES = {"normal": normal, "uneven": uneven, "ceiling": ceiling, "levels": levels}
