"""Node effects from pairs of nodes: log bandwidth = typical + first's effect + second's + what the switches take.

Fitted robustly (Huber, iterated weights), for neighbours share an uplink with whoever is matched beside them. Fitted
twice: a pair of two slow nodes carries what the slower one does, not the sum of both effects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collbench.affinity.nodes.huber import Estimate, estimate

Members = tuple[int, ...]
Level = tuple[Members, ...]
_Array = NDArray[np.float64]
_Places = NDArray[np.int_]

# METHOD.md §4: a smaller difference, of log bandwidth, changes nobody's decision.
DELTA = 0.02
# Two low nodes are alike where the better one lacks more than half of what the other does.
ALIKE = 0.5


@dataclass(frozen=True, slots=True)
class Observation:
    """What a pair of nodes carried in GB/s while a whole round ran; `one_way` only from first to second.

    `among` says that the pair was chosen because both looked slow.
    """

    first: int
    second: int
    gbs: float
    one_way: bool = False
    among: bool = False


@dataclass(frozen=True, slots=True)
class Fit:
    """Effects as log ratios to the median of their kind, each with its standard error.

    `sends` and `receives` are by node, the same unless `directed`: some pair was measured one way. `levels` has for
    each level of switches the effect of each switch on the pairs with one end under it, and `across` that of leaving a
    switch of the level at all (0 where a level has one). `typical` is the log of GB/s, `sigma` one pair's noise.
    """

    typical: float
    sends: _Array
    receives: _Array
    send_errors: _Array
    receive_errors: _Array
    levels: tuple[_Array, ...]
    level_errors: tuple[_Array, ...]
    across: tuple[float, ...]
    sigma: float
    freedom: int
    directed: bool


def fit(seen: Sequence[Observation], nodes: int, levels: Sequence[Level] = (), hiding: Sequence[Members] = ()) -> Fit:
    """Return the effects that explain the pairs best. `levels` are switches by members, leaves before pods.

    A level of several switches must be all of them; one of a single switch stands for a suspicion. `hiding` are those
    whose uplinks are slower than any node: a pair that leaves one shows the uplink and nothing of its nodes.
    """
    blocks = _blocks(seen, nodes, levels, hiding)
    found = _estimate(seen, blocks)
    low = _directions(blocks, found.values)
    if min(effects.min() for effects in low) < -DELTA:
        blocks = _blocks(seen, nodes, levels, hiding, low)
        found = _estimate(seen, blocks)
    return _read(blocks, found)


def _estimate(seen: Sequence[Observation], blocks: Sequence[_Block]) -> Estimate:
    return estimate(np.hstack([block.design for block in blocks]), _held(blocks), np.log([one.gbs for one in seen]))


def _directions(blocks: Sequence[_Block], values: _Array) -> tuple[_Array, _Array]:
    """Return the nodes' effects as senders and receivers against the median node, the same where nothing is one way."""
    _, sends, receives, *_ = np.split(values, _ends(blocks))
    sends = sends - np.median(sends)
    return sends, receives - np.median(receives) if len(receives) else sends


def _ends(blocks: Sequence[_Block]) -> NDArray[np.int_]:
    return np.cumsum([block.design.shape[1] for block in blocks])[:-1]


def _parts(seen: Sequence[Observation], sends: _Array, receives: _Array) -> _Array:
    """Return how much of each end's effect a pair shows: all of it, but of two low ends the lower one's.

    Ends that are as low, within half of it, share the blame: which of them is lower is noise.
    """
    ends = np.array([(sends[one.first], receives[one.second]) for one in seen])
    both_low = (ends < -DELTA).all(axis=1, keepdims=True)
    alike = ends.max(axis=1, keepdims=True) < ALIKE * ends.min(axis=1, keepdims=True)
    lower = (ends == ends.min(axis=1, keepdims=True)).astype(float)
    return np.where(both_low, np.where(alike, 0.5, lower), 1.0)


@dataclass(frozen=True, slots=True)
class _Block:
    """Columns of one kind, perhaps none. Of `centred` effects, which pairs show against each other only, those marked
    with 1 add up to 0 in the fit.
    """

    design: _Array
    centred: _Array | None = None


def _blocks(
    seen: Sequence[Observation],
    nodes: int,
    levels: Sequence[Level],
    hiding: Sequence[Members],
    before: tuple[_Array, _Array] | None = None,
) -> list[_Block]:
    """Return the blocks in the order that `_read` knows: typical, senders, receivers, each level's across, switches."""
    parts = np.ones((len(seen), 2)) if before is None else _parts(seen, *before)
    first, second = np.array([one.first for one in seen]), np.array([one.second for one in seen])
    one_way = np.array([one.one_way for one in seen])
    sends, receives = np.eye(nodes)[first] * parts[:, :1], np.eye(nodes)[second] * parts[:, 1:]
    if not one_way.any():  # each pair has both ends' one effect
        sends, receives = sends + receives, np.zeros((len(seen), 0))
    else:  # and a pair measured both ways half of each direction's
        sends, receives = (np.where(one_way[:, None], own, (sends + receives) / 2) for own in (sends, receives))
    switches = []
    for level in levels:
        place = np.full(nodes, len(level))
        for number, members in enumerate(level):
            place[list(members)] = number
        switches += _level_blocks(len(level), place[first], place[second])
    shown = np.ones((len(seen), 1))
    for members in hiding:
        shown[np.isin(first, members) != np.isin(second, members)] = 0.0
    return [
        _Block(np.ones((len(seen), 1))),
        _Block(sends * shown, _steady(nodes, None if before is None else before[0])),
        _Block(receives * shown, _steady(nodes, None if before is None else before[1])),
        *switches,
    ]


def _steady(nodes: int, effects: _Array | None) -> _Array:
    """Mark the nodes whose effects add up to 0: all, or once it is known those that are not low."""
    return np.ones(nodes) if effects is None else np.where(effects > -DELTA, 1.0, 0.0)


def _level_blocks(switches: int, first: _Places, second: _Places) -> list[_Block]:
    """Return a level's blocks: leaving a switch at all, and which ones; `switches` is the place under none of them."""
    crosses = (first != second)[:, None]
    across = np.ones((1, int(switches > 1))) * crosses
    places = np.eye(switches + 1)[:, :-1]
    # Under two switches every crossing pair has both: only their sum shows, and that is across.
    under = (places[first] + places[second]) * crosses if switches != 2 else across[:, :0]
    return [_Block(across), _Block(under, np.ones(switches) if switches > 2 else None)]


def _held(blocks: Sequence[_Block]) -> _Array:
    """Return rows that settle what pairs leave open: centred effects add up to 0."""
    rows = [
        np.concatenate([centred if other is block else np.zeros(other.design.shape[1]) for other in blocks])
        for block in blocks
        if (centred := block.centred) is not None and block.design.shape[1]
    ]
    return np.array(rows)


def _read(blocks: Sequence[_Block], found: Estimate) -> Fit:
    """Return the columns by what they mean, centred effects against their median: most nodes and switches are well."""
    ends = _ends(blocks)
    typical, sends, receives, *levels = np.split(found.values, ends)
    _, send_errors, receive_errors, *level_errors = np.split(found.errors(), ends)
    directed = len(receives) > 0
    middle = float(np.median(sends)) + float(np.median(receives if directed else sends))
    pairs = zip(levels, blocks[3:], strict=True)
    centres = [0.0 if block.centred is None else float(np.median(effects)) for effects, block in pairs]
    sends, receives = _directions(blocks, found.values)
    return Fit(
        typical=float(typical[0]) + middle,
        sends=sends,
        receives=receives,
        send_errors=send_errors,
        receive_errors=receive_errors if directed else send_errors,
        levels=tuple(effects - centre for effects, centre in zip(levels[1::2], centres[1::2], strict=True)),
        level_errors=tuple(level_errors[1::2]),
        across=tuple(float(sum(lost)) + 2 * centre for lost, centre in zip(levels[::2], centres[1::2], strict=True)),
        sigma=found.sigma,
        freedom=found.freedom,
        directed=directed,
    )
