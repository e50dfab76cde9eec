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


def uplinks(n: int, paths: Mapping[Pair, Path], rates: Values, links: Values, capacity: Values) -> tuple[Uplinks, ...]:
    """Return the switches below which labels say that devices sit, level by level, and what pairs show of each.

    `capacity` is what each pair carries at most, GB/s. A pair without a rate is taken for what makes a switch carry
    least: 0 below it, its limit across.
    """
    slower = np.minimum(rates, rates.T)
    over_pcie = (links == 0) & ~np.eye(n, dtype=bool)
    within = np.where(over_pcie, slower, np.nan)
    across = np.where(over_pcie, np.where(slower > 0, slower, capacity), np.nan)
    denied = np.zeros((n, n), dtype=bool)
    for pair, path in paths.items():
        denied[pair] = denied[pair[::-1]] = path.peer_access not in (None, "OK") and not links[pair]
    found = []
    for depth in range(len(_LABELS)):
        below = [pair for pair, path in paths.items() if (path.ancestor or path.label) in _LABELS[: depth + 1]]
        found.append(_level(joined(below, n), within, across, denied))
    return tuple(found)


def _level(group: NDArray[np.intp], within: Values, across: Values, denied: NDArray[np.bool_]) -> Uplinks:
    staged, capacity = np.zeros(len(group), dtype=bool), np.full(len(group), np.inf)
    numbers, sizes = np.unique(group, return_counts=True)
    for number in numbers[sizes > 1].tolist():
        inside = group == number
        below, beyond = _median(within, inside, inside), _median(across, inside, ~inside)
        full = below is not None and beyond is not None and below < _SHARED * beyond
        staged[inside] = full or denied[np.ix_(inside, inside)].any()
        capacity[inside] = 2 * below if full and below is not None else np.inf
    return Uplinks(group, staged, capacity)


def _median(values: Values, here: NDArray[np.bool_], there: NDArray[np.bool_]) -> float | None:
    """Return the median over the pairs from here to there, None without any."""
    found = values[np.outer(here, there)]
    found = found[~np.isnan(found)]
    return float(np.median(found)) if len(found) else None


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
            carried = np.where(load > 0, level.capacity[member] / np.maximum(load, 1e-9), np.inf)
            limits = np.minimum(limits, carried)
            hops += load
    return limits, hops


def single_hops(rates: Values, links: Values, levels: Sequence[Uplinks], capacity: Values) -> Values:
    """Return what each pair's path gives a hop that has it to itself, GB/s: both ways of a pair share a full uplink.

    A device that is slow across switches, too, has no more to give than it shows there. What others would show across
    is taken for their limit, `capacity`, where nobody measured it.
    """
    alone, slower = rates.copy(), np.minimum(rates, rates.T)
    for level in levels:
        together = np.equal.outer(level.group, level.group) & (links == 0)
        apart = ~np.equal.outer(level.group, level.group) & (links == 0)
        best = np.where(apart, slower, 0.0).max(axis=1)
        able = np.where(apart, np.where(slower > 0, slower, capacity), 0.0).max(axis=1)
        own = np.where(best < _SLOW * np.median(able), best, np.inf)
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
