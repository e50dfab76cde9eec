"""A simulated cluster: nodes under leaf switches and pods, its faults, and the true rates of pairs and sets of nodes.

Rates are GB/s one way and of a whole node: all its network cards together. Traffic between nodes takes the sender's
cards, the uplinks of its leaf and pod where it leaves them, the downlinks on the other side, and the receiver's cards.
Flows that run at once share what they meet max-min fairly, as adaptive routing spreads them over a switch's uplinks.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from itertools import pairwise
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collbench.model.errors import RunFileError, UsageError, did_you_mean
from collbench.model.run import Pair
from collbench.model.values import Count, Ordinal, Range, cleaned
from collbench.runfile.codec import build, json_fault

_Array = NDArray[np.float64]
# Time grows with the square at least: 1,024 nodes took 19 s and 217 MB on two busy cores, 2,048 above 200 s.
_MAX_NODES = 1_024
MAX_BYTES = 2**20  # of a cluster's file: one with a fault at every node takes a tenth
_Nodes = Annotated[int, Range(1, _MAX_NODES, f"1 to {_MAX_NODES}")]
_Rate = Annotated[float, Range(1e-15, 1e9, "GB/s above 0")]
_Left = Annotated[float, Range(1e-15, 1, "above 0 and up to 1")]  # of a healthy rate
_Oversubscription = Annotated[float, Range(1, 1e6, "1 or more")]


@dataclass(frozen=True, slots=True)
class NodeFault:
    """A node with slow network cards, as ratios of the healthy rate; a bad cable may be slow in one direction only."""

    node: int
    sends: _Left = 1.0
    receives: _Left = 1.0


@dataclass(frozen=True, slots=True)
class UplinkFault:
    """A switch ("leaf5", "pod1") whose links to the level above are slow, as ratios of the healthy rate."""

    switch: str
    up: _Left = 1.0
    down: _Left = 1.0


@dataclass(frozen=True, slots=True)
class Cluster:
    """A simulated cluster. Oversubscription is the rate from below over the rate to above: 1.0 if nothing is lost."""

    name: str
    source: str  # where the figures come from
    nodes: _Nodes
    gpus: Ordinal
    nic_gbs: _Rate  # what a node's network cards achieve in one direction
    inside_gbs: _Rate  # what its GPUs achieve without them
    leaf_nodes: Ordinal  # nodes of a leaf switch
    pod_leaves: Count = 0  # leaves of a pod; 0: no pods, all leaves meet at one spine
    leaf_oversubscription: _Oversubscription = 1.0
    pod_oversubscription: _Oversubscription = 1.0
    noise: Annotated[float, Range(0, 1, "0 to 1")] = 0.02  # standard deviation of one measurement's log bandwidth
    placement: tuple[Count, ...] = ()  # each node's leaf, empty if nodes are cabled in order
    reported: bool = True  # False: the judge does not know the switches
    slow_nodes: tuple[NodeFault, ...] = ()
    slow_uplinks: tuple[UplinkFault, ...] = ()

    def __post_init__(self) -> None:
        _check(self)

    @property
    def leaf_of(self) -> tuple[int, ...]:
        """Each node's leaf switch."""
        return self.placement or tuple(node // self.leaf_nodes for node in range(self.nodes))

    @property
    def pod_of(self) -> tuple[int, ...]:
        """Each node's pod; all in one where there are none."""
        return tuple(leaf // self.pod_leaves if self.pod_leaves else 0 for leaf in self.leaf_of)


def pair_rates(cluster: Cluster, pairs: Sequence[Pair]) -> tuple[float, ...]:
    """Return each pair's true rate in GB/s, the same in both directions, while all pairs run concurrently."""
    flows = [(_route(cluster, a, b), _route(cluster, b, a)) for a, b in pairs]
    return tuple(_shares(cluster, flows).tolist())


def allreduce_busbw(cluster: Cluster, members: Sequence[int]) -> float:
    """Return the true all-reduce busbw in GB/s of these nodes, all GPUs of each, ranks in this order.

    NCCL's rings over several nodes pass them in the order of the ranks; every hop of a ring carries the same rate.
    """
    if len(members) < 2:
        return cluster.inside_gbs
    hops = [*pairwise(members), (members[-1], members[0])]
    ring = [[_route(cluster, a, b) for a, b in hops]]
    return min(cluster.inside_gbs, float(_shares(cluster, ring)[0]))


def best_bound(cluster: Cluster, count: int) -> float:
    """Return a rate in GB/s that no `count` nodes exceed: what the slowest of the best `count` nodes' cards carry."""
    rates = sorted((cluster.nic_gbs * min(_node_ratios(cluster, node)) for node in range(cluster.nodes)), reverse=True)
    return min(cluster.inside_gbs, rates[count - 1]) if count > 1 else cluster.inside_gbs


def measured_rates(cluster: Cluster, pairs: Sequence[Pair], rng: np.random.Generator) -> tuple[float, ...]:
    """Return each pair's rate in GB/s as one measurement of the round shows it: the true one, with trial noise."""
    rates = pair_rates(cluster, pairs)
    return tuple((np.array(rates) * np.exp(rng.normal(0.0, cluster.noise, len(rates)))).tolist())


def load(text: str, name: str) -> Cluster:
    """Return the cluster that JSON text describes; `name` is the file's, for errors. Raises RunFileError."""
    try:
        try:
            data = cleaned(json.loads(text), text)
        except (ValueError, RecursionError) as error:
            raise ValueError(json_fault(error, by_hand=True)) from error
        cluster: Cluster = build(Cluster, data, "cluster", by_hand=True)
    except (ValueError, TypeError, UsageError) as error:
        raise RunFileError(
            f"{name} is not a cluster file: {error}; docs/slow-nodes.md describes one and names some"
        ) from error
    return cluster


def named(name: str) -> Cluster:
    """Return a cluster that collbench ships. Raises UsageError with the names that there are."""
    for cluster in _shipped():
        if cluster.name == name:
            return cluster
    raise UsageError(
        f"no cluster is called '{name}': choose from {', '.join(names())}, or name a file{did_you_mean(name, names())}"
    )


def names() -> tuple[str, ...]:
    """Return the names of the clusters that collbench ships."""
    return tuple(cluster.name for cluster in _shipped())


def _shipped() -> tuple[Cluster, ...]:
    # 8 × 400 Gb/s = 400 GB/s a node, NVLink inside: 450 GB/s (docs/method/verdicts.md 2). Four scalable units, 32 nodes
    # each, whose rails meet in one group of leaf switches, not oversubscribed.
    text = (resources.files("collbench.cluster") / "clusters.json").read_text(encoding="utf-8")
    clusters: tuple[Cluster, ...] = build(tuple[Cluster, ...], json.loads(text), "clusters")
    return clusters


def _node_ratios(cluster: Cluster, node: int) -> tuple[float, float]:
    """Return the ratios of the healthy rate at which a node sends and receives."""
    faults = [fault for fault in cluster.slow_nodes if fault.node == node]
    return min((f.sends for f in faults), default=1.0), min((f.receives for f in faults), default=1.0)


class _Level(StrEnum):
    """Where a piece of the network is; the words are those that a cluster file calls its switches by."""

    NODE = "node"
    LEAF = "leaf"
    POD = "pod"


class _Piece(NamedTuple):
    """What a flow takes: a node's cards, or the links between a switch and the level above it, in one direction.

    `inward` is towards the node.
    """

    level: _Level
    number: int
    inward: bool

    @property
    def name(self) -> str:
        """What a fault calls it: "leaf5"."""
        return f"{self.level}{self.number}"


def _route(cluster: Cluster, source: int, destination: int) -> list[_Piece]:
    """Return what a flow between two nodes takes."""
    pieces = [_Piece(_Level.NODE, source, inward=False), _Piece(_Level.NODE, destination, inward=True)]
    for level, switch_of in ((_Level.LEAF, cluster.leaf_of), (_Level.POD, cluster.pod_of)):
        if switch_of[source] != switch_of[destination]:
            pieces += [
                _Piece(level, switch_of[source], inward=False),
                _Piece(level, switch_of[destination], inward=True),
            ]
    return pieces


def _capacity(cluster: Cluster, piece: _Piece) -> float:
    """Return what one piece of a route carries in GB/s."""
    if piece.level is _Level.NODE:
        return cluster.nic_gbs * _node_ratios(cluster, piece.number)[piece.inward]
    faults = [fault for fault in cluster.slow_uplinks if fault.switch == piece.name]
    ratio = min((fault.down if piece.inward else fault.up for fault in faults), default=1.0)
    leaf = piece.level is _Level.LEAF
    below = (cluster.leaf_of if leaf else cluster.pod_of).count(piece.number)
    lost = cluster.leaf_oversubscription * (1.0 if leaf else cluster.pod_oversubscription)
    return below * cluster.nic_gbs / lost * ratio


def _shares(cluster: Cluster, flows: Sequence[Iterable[Iterable[_Piece]]]) -> _Array:
    """Return each flow's rate: all its hops carry the same, and what flows meet is shared max-min fairly."""
    pieces: dict[_Piece, int] = {}
    used = [[pieces.setdefault(piece, len(pieces)) for hop in flow for piece in hop] for flow in flows]
    load = np.zeros((len(used), len(pieces)))
    for flow, indices in enumerate(used):
        np.add.at(load[flow], indices, 1.0)
    left = np.array([_capacity(cluster, piece) for piece in pieces])
    rates, open_ = np.zeros(len(used)), np.ones(len(used), dtype=bool)
    while open_.any():
        wanted = load[open_].sum(axis=0)
        share = np.divide(left, wanted, out=np.full_like(left, np.inf), where=wanted > 0)
        full = share <= share.min() * (1 + 1e-12)
        done = open_ & (load[:, full] > 0).any(axis=1)
        rates[done] = share.min()
        left = np.maximum(left - share.min() * load[done].sum(axis=0), 0.0)
        open_ &= ~done
    return rates


def _check(cluster: Cluster) -> None:
    """Raise UsageError for parts of a cluster that do not fit together."""
    switches = {f"{_Level.LEAF}{leaf}" for leaf in cluster.leaf_of} | {f"{_Level.POD}{pod}" for pod in cluster.pod_of}
    wrong = (
        (cluster.placement and len(cluster.placement) != cluster.nodes, "placement does not name each node's leaf"),
        (any(not 0 <= f.node < cluster.nodes for f in cluster.slow_nodes), "slow_nodes names an unknown node"),
        (any(f.switch not in switches for f in cluster.slow_uplinks), "slow_uplinks names an unknown switch"),
    )
    for is_wrong, what in wrong:
        if is_wrong:
            raise UsageError(f"cluster '{cluster.name}' cannot be simulated: {what}")
