"""Sets of k of many devices that are worth a look: grown from several starts, then improved by swaps (a heuristic)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from collbench.affinity.choice import Members
from collbench.affinity.wiring import Wiring

Values = NDArray[np.float64]

# Starts are the devices with the best neighbourhoods; more of them found nothing better in simulations.
_STARTS = 16
_MOST_SWAPS = 50
# Only the weakest members are worth replacing.
_WEAKEST = 8


def grown(wired: Wiring, k: int) -> set[Members]:
    """Return sets of k positions, ascending, that greedy growth and swaps end at, and the first k. Deterministic.

    Grown twice: for the best slowest pair, as a switch or PCIe asks, and for the most NVLinks inside, as a mesh does.
    """
    found = {tuple(range(k))}
    for rates in (wired.rates, wired.nvlink) if wired.links.any() else (wired.rates,):
        sound = np.where(wired.broken, 0.0, np.minimum(rates, rates.T))
        found |= {tuple(sorted(_improved(sound, _grow(sound, start, k)))) for start in _starts(sound, k)}
    return found


def _starts(rates: Values, k: int) -> list[int]:
    """Return the devices whose k−1 best neighbours are best: no set around another one can beat them."""
    reach = np.partition(rates, len(rates) - k + 1, axis=1)[:, len(rates) - k + 1]
    return [int(place) for place in np.argsort(-reach, kind="stable")[:_STARTS]]


def _grow(rates: Values, start: int, k: int) -> list[int]:
    members = [start]
    lowest, total = rates[start].copy(), rates[start].copy()
    while len(members) < k:
        lowest[members] = -1.0
        place = _best(lowest, total)
        members.append(place)
        lowest = np.minimum(lowest, rates[place])
        total = total + rates[place]
    return members


def _improved(rates: Values, members: list[int]) -> list[int]:
    """Replace one member after the other while that raises the slowest pair, or the sum where that stays."""

    def worth(some: list[int]) -> tuple[float, float]:
        inside = rates[np.ix_(some, some)]
        return float(inside[~np.eye(len(some), dtype=bool)].min()), float(inside.sum())

    for _ in range(_MOST_SWAPS):
        swapped = max((_swap(rates, members, place) for place in _weakest(rates, members)), key=worth)
        if worth(swapped) <= worth(members):
            break
        members = swapped
    return members


def _swap(rates: Values, members: list[int], place: int) -> list[int]:
    """Return the members with the one at a place replaced by the best for the others, which may be itself."""
    others = members[:place] + members[place + 1 :]
    lowest, total = rates[:, others].min(axis=1), rates[:, others].sum(axis=1)
    lowest[others] = -1.0
    return [*others, _best(lowest, total)]


def _best(lowest: Values, total: Values) -> int:
    """Return the place with the highest lowest rate, of those the one with the highest total."""
    top = np.flatnonzero(lowest == lowest.max())
    return int(top[np.argmax(total[top])])


def _weakest(rates: Values, members: list[int]) -> list[int]:
    """Return the places of the members with the slowest pairs inside, of those with one as slow the lowest sums."""
    inside = rates[np.ix_(members, members)]
    slowest = np.where(np.eye(len(members), dtype=bool), np.inf, inside).min(axis=1)
    return [int(place) for place in np.lexsort((inside.sum(axis=1), slowest))[:_WEAKEST]]
