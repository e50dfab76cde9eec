"""Which few sets are worth measuring: the chosen one, others that may be better for what no pair shows, the default."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from collbench.affinity.bands import predict
from collbench.affinity.choice import Candidate, Members
from collbench.affinity.search import Field
from collbench.affinity.wiring import CROWDED, Wiring

# Each costs a communicator and six visits; the default is one more.
_MOST = 4
# The figures of a kind but the last.
_COARSE = 4


def finalists(wired: Wiring, field: Field, chosen: int, delta: float) -> tuple[Candidate, ...]:
    """Return the set at the place `chosen` and up to three others, best first, and the first k wherever they stand.

    All could be as good as the chosen one: their `hi` reaches its `lo`. Of a PCIe ring no audit is sure enough to rule
    out what METHOD.md's 0.6 does not. Those predicted alike are alike in what the prediction knows, so one of each kind
    goes first, then those that share the fewest devices with the others.
    """
    least = field.lo[chosen]
    if field.hops[chosen]:
        least = min(least, CROWDED * field.hi[chosen])
    able = field.hi >= least * (1 - delta)
    kinds = _kinds(wired, field, delta)
    order = np.lexsort((-_inside(wired, field), *kinds.T[::-1]))
    order = order[able[order]]
    picked = [chosen]
    for columns in (_COARSE, kinds.shape[1]):
        _, first = np.unique(kinds[order, :columns], axis=0, return_index=True)
        picked += [place for place in order[np.sort(first)].tolist() if place not in picked]
        picked = picked[:_MOST]
    while len(picked) < min(_MOST, len(order)):
        picked.append(_farthest(field, order, picked))
    default = tuple(range(field.sets.shape[1]))
    members = [tuple(field.sets[place].tolist()) for place in picked]
    return tuple(_candidate(wired, some, default) for some in dict.fromkeys([*members, default]))


def _candidate(wired: Wiring, members: Members, default: Members) -> Candidate:
    return Candidate(members, predict(wired.of(members)), default=members == default)


def _kinds(wired: Wiring, field: Field, delta: float) -> NDArray[np.float64]:
    """Return what tells each set from others, the best first when sorted, shape (sets, figures); rates in steps of δ.

    Band, hops, and how many share a host bridge at most, for what they share there no pair shows; then what is inside.
    """
    hosts = np.sort(wired.host[field.sets], axis=1)
    alike = crowd = np.ones(len(hosts))
    for column in range(1, hosts.shape[1]):
        alike = np.where(hosts[:, column] == hosts[:, column - 1], alike + 1, 1)
        crowd = np.maximum(crowd, alike)
    rates = (field.lo, field.hi, _inside(wired, field))
    lo, hi, inside = (-np.round(np.log(np.maximum(values, 1e-9)) / delta) for values in rates)
    return np.column_stack([lo, hi, field.hops, crowd, inside])


def _inside(wired: Wiring, field: Field) -> NDArray[np.float64]:
    """Return all bandwidth within each set, GB/s: of sets alike in all else, one without weak devices has more."""
    return np.asarray(wired.rates[field.sets[:, :, None], field.sets[:, None, :]].sum(axis=(1, 2)))


def _farthest(field: Field, order: NDArray[np.intp], picked: list[int]) -> int:
    """Return the set that shares the fewest members with any picked one, the best predicted of those."""
    shared = np.zeros(len(order))
    for place in picked:
        common = np.isin(field.sets[order], field.sets[place]).sum(axis=1)
        shared = np.maximum(shared, common)
    shared[np.isin(order, picked)] = np.inf
    return int(order[np.argmin(shared)])
