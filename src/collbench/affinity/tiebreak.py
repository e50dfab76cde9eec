"""Which of several sets that bandwidth does not tell apart (METHOD.md §6): level by level, until one is left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collbench.affinity.rings import Sets, masks

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Level:
    """One question to ask of sets: `costs` returns a figure for each, the lower the better; `words` name it."""

    words: str
    costs: Callable[[Sets], Values]


def decide(sets: Sets, levels: Sequence[Level], order: str) -> tuple[int, str]:
    """Return the place of the set that wins and the words of the levels that told it from others, "" for a single set.

    Sets are rows of positions, and their order decides last; `order` names what it is an order of.
    """
    places, words = np.arange(len(sets)), list[str]()
    for level in levels:
        if len(places) > 1:
            costs = level.costs(sets[places])
            words += [level.words] if costs.max() > costs.min() else []
            places = places[costs == costs.min()]
    if len(places) > 1:
        words.append(order)
        places = places[np.lexsort(sets[places].T[::-1])]
    return int(places[0]), ", then ".join(words)


def members_with(marks: NDArray[np.bool_]) -> Callable[[Sets], Values]:
    """Return what counts the marked members of each set."""
    return lambda sets: marks[sets].sum(axis=1).astype(float)


def worst_inside(tiers: Values) -> Callable[[Sets], Values]:
    """Return what finds the worst value of any pair within each set."""
    return lambda sets: np.asarray(tiers[sets[:, :, None], sets[:, None, :]].max(axis=(1, 2)))


def different(groups: NDArray[np.intp]) -> Callable[[Sets], Values]:
    """Return what counts the groups that the members of each set lie in."""

    def count(sets: Sets) -> Values:
        ordered = np.sort(groups[sets], axis=1)
        return np.asarray(1.0 + (ordered[:, 1:] != ordered[:, :-1]).sum(axis=1))

    return count


def what_remains(sets: Sets, values: Values, delta: float) -> Callable[[Sets], Values]:
    """Return what rates each set by the best of `sets` that it leaves whole, in steps of δ; 0 costs for the best."""
    every = masks(sets)
    order = np.argsort(-values, kind="stable")

    def costs(some: Sets) -> Values:
        mine = masks(some)
        left, open_places = np.zeros(len(some)), np.arange(len(some))
        for place in order.tolist():
            apart = (mine[open_places] & every[place]) == 0
            left[open_places[apart]] = values[place]
            open_places = open_places[~apart]
            if not len(open_places):
                break
        return np.where(left >= left.max() * (1 - delta), 0.0, 1.0)

    return costs
