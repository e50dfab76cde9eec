"""The one ring that a set runs where NVLinks do not close one: over PCIe, which its hops share (METHOD.md §6).

A ring crosses the uplink of a PCIe switch once each way, however many members sit below. But where its GPUs cannot
reach each other directly, every hop goes up to the host and down again, and the uplink is shared by all of them. Then
two GPUs below one switch are slower than two of different switches, and half of what the uplink carries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collbench.affinity.rings import Sets
from collbench.model import Path

Values = NDArray[np.float64]
Pair = tuple[int, int]

_LABELS = ("PIX", "PXB")
# Two hops through an uplink that one fills get half each; an uplink that is not full leaves both their rate.
_SHARED = 0.75
# A device whose best path across is below this share of the others' is slow itself.
_SLOW = 0.9


@dataclass(frozen=True, slots=True)
class Uplinks:
    """The PCIe switches of one level, by device, shape (n,): `group` numbers the switch that a device is below.

    `staged` tells whether hops inside that group go through the host; `capacity` is what its uplink carries one way,
    GB/s, infinite where no pair filled it.
    """

    group: NDArray[np.intp]
    staged: NDArray[np.bool_]
    capacity: Values

    def of(self, place: Sequence[int]) -> Uplinks:
        """Return the same for some of the devices."""
        some = list(place)
        return Uplinks(self.group[some], self.staged[some], self.capacity[some])


def uplinks(n: int, paths: Mapping[Pair, Path], rates: Values, links: Values) -> tuple[Uplinks, ...]:
    """Return the switches below which labels say that devices sit, level by level, and what pairs show of each."""
    measured = (np.minimum(rates, rates.T) > 0) & (links == 0)
    denied = np.zeros((n, n), dtype=bool)
    for pair, path in paths.items():
        denied[pair] = denied[pair[::-1]] = path.peer_access not in (None, "OK") and not links[pair]
    found = []
    for depth in range(len(_LABELS)):
        below = [pair for pair, path in paths.items() if (path.ancestor or path.label) in _LABELS[: depth + 1]]
        found.append(_level(joined(below, n), rates, measured, denied))
    return tuple(found)


def _level(group: NDArray[np.intp], rates: Values, measured: NDArray[np.bool_], denied: NDArray[np.bool_]) -> Uplinks:
    staged, capacity = np.zeros(len(group), dtype=bool), np.full(len(group), np.inf)
    numbers, sizes = np.unique(group, return_counts=True)
    for number in numbers[sizes > 1].tolist():
        inside = group == number
        within, across = _median(rates, measured, inside, inside), _median(rates, measured, inside, ~inside)
        full = 0 < within < _SHARED * across
        staged[inside] = full or denied[np.ix_(inside, inside)].any()
        capacity[inside] = 2 * within if full else np.inf
    return Uplinks(group, staged, capacity)


def _median(rates: Values, measured: NDArray[np.bool_], here: NDArray[np.bool_], there: NDArray[np.bool_]) -> float:
    values = rates[measured & np.outer(here, there)]
    return float(np.median(values)) if len(values) else 0.0


def joined(pairs: Sequence[Pair], n: int) -> NDArray[np.intp]:
    """Return for each of n devices the lowest one that it is joined to, by any chain of the pairs."""
    group = np.arange(n, dtype=np.intp)
    for a, b in pairs:
        low, high = sorted((group[a], group[b]))
        group[group == high] = low
    return group


def uplink_limits(sets: Sets, levels: Sequence[Uplinks], links: Values) -> tuple[Values, Values]:
    """Return for each set what the fullest uplink leaves each hop, GB/s, and how many hops go through the host."""
    out = _ways_out(sets, links)
    limits, hops = np.full(len(sets), np.inf), np.zeros(len(sets))
    for level in levels:
        hops[:] = 0.0
        for number in set(level.group.tolist()):
            inside = level.group[sets] == number
            leaving = inside.any(axis=1) & ~inside.all(axis=1)
            member = int(np.flatnonzero(level.group == number)[0])
            alone = (level.group == number).sum() == 1
            load = (inside * out).sum(axis=1) if level.staged[member] or alone else leaving.astype(float)
            limits = np.minimum(limits, level.capacity[member] / np.maximum(load, 1e-9))
            hops += load
    return limits, hops


def single_hops(rates: Values, links: Values, levels: Sequence[Uplinks]) -> Values:
    """Return what each pair's path gives a hop that has it to itself, GB/s: both ways of a pair share a full uplink.

    A device that is slow across switches, too, has no more to give than it shows there.
    """
    alone = rates.copy()
    for level in levels:
        together = np.equal.outer(level.group, level.group) & (links == 0)
        across = np.where(np.equal.outer(level.group, level.group) | (links > 0), 0.0, np.minimum(rates, rates.T))
        best = across.max(axis=1)
        own = np.where(best < _SLOW * np.median(best), best, np.inf)
        doubled = np.minimum(2 * rates, np.minimum.outer(own, own))
        filled = together & np.isfinite(level.capacity)[:, None]
        alone = np.where(filled, np.maximum(rates, doubled), alone)
    return alone


def _ways_out(sets: Sets, links: Values) -> Values:
    """Return each member's part of a hop over PCIe: those that NVLinks chain together leave their chain by one."""
    size = sets.shape[1]
    if not links.any():
        return np.ones(sets.shape)
    near = links[sets[:, :, None], sets[:, None, :]] > 0
    reach = near | np.eye(size, dtype=bool)
    for _ in range(int(np.ceil(np.log2(size)))):  # paths of 1, 2, 4, … links
        reach = (reach.astype(np.float32) @ reach.astype(np.float32)) > 0
    return np.asarray(1.0 / reach.sum(axis=2))
