"""Which sets of k devices are predicted best: all sets up to 16 devices, a heuristic beyond (METHOD.md §6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from collbench.affinity.bands import Packed, lowest_pair, most, over_pcie, packing, predict
from collbench.affinity.choice import Members
from collbench.affinity.growing import grown
from collbench.affinity.packing import cut_bound
from collbench.affinity.rings import MOST_MEMBERS, Sets, all_sets, masks, ring_bound, ring_table
from collbench.affinity.wiring import Wiring

Values = NDArray[np.float64]
# A band of 16 devices takes a quarter of a second.
_MOST_JUDGED = 6


@dataclass(frozen=True, slots=True)
class Field:
    """The sets looked at, shape (sets, k), each with its band's ends in GB/s and the hops between PCIe switches.

    `quick` is a cheap value of each set, GB/s: an upper bound on meshes, `lo` elsewhere. Sets whose bound says that
    they cannot be among the best have that bound for `hi` and 0 for `lo`.
    """

    sets: Sets
    lo: Values
    hi: Values
    hops: Values
    quick: Values
    heuristic: bool


def search(wired: Wiring, k: int, delta: float) -> Field:
    """Return the sets of k devices with their bands; `delta` is the ratio up to which two are equal."""
    if len(wired) <= MOST_MEMBERS:
        sets = all_sets(len(wired), k)
        found = _every(wired, sets, delta)
        if wired.filled is None:
            return found
        most = _every(wired.filled, sets, delta)
        return replace(found, lo=np.minimum(found.lo, most.hi), hi=most.hi, hops=most.hops)
    return _some(wired, sorted(grown(wired, k)))


def best(field: Field, delta: float) -> NDArray[np.intp]:
    """Return the places of the sets that no figure tells from the best: by `lo`, then `hi`, then fewest hops."""
    places = np.arange(len(field.sets))
    for values in (field.lo, field.hi):
        places = places[values[places] >= values[places].max() * (1 - delta)]
    return np.asarray(places[field.hops[places] == field.hops[places].min()])


def _some(wired: Wiring, grown_sets: Sequence[Members]) -> Field:
    """Judge the sets that a quick bound thinks most of, and the first one, the default."""
    first, *others = grown_sets
    quick = sorted(others, key=lambda members: -ring_bound(wired.rates[np.ix_(members, members)]))
    sets = [first, *quick[:_MOST_JUDGED]]
    bands = [predict(wired.of(members)) for members in sets]
    lo, hi, hops = (np.array([getattr(band, end) for band in bands], dtype=float) for end in ("lo", "hi", "hops"))
    return Field(np.array(sets, dtype=np.intp), lo, hi, hops, lo, heuristic=True)


def _every(wired: Wiring, sets: Sets, delta: float) -> Field:
    """Judge all sets: switches and PCIe rings in one go, meshes one by one while their bound may still win."""
    sound = ~_any_pair(wired.broken, sets)
    if sets.shape[1] == 2:
        rate = np.minimum(wired.rates, wired.rates.T)[sets[:, 0], sets[:, 1]] * sound
        return Field(sets, rate, rate, np.zeros(len(sets)), rate, heuristic=False)
    lo, hi, hops = over_pcie(wired, sets)
    planes = wired.plane[sets]
    switched = (planes[:, 0] >= 0) & (planes == planes[:, :1]).all(axis=1)
    if switched.any():
        slowest = lowest_pair(wired.rates, sets[switched])
        lo[switched], hops[switched] = slowest, 0
        hi[switched] = np.maximum(slowest, ring_table(wired.rates, sets.shape[1])[masks(sets[switched])])
    lo, hi, quick = lo * sound, hi * sound, lo * sound
    meshed = np.flatnonzero(~switched & sound & _closed(wired, sets))
    if len(meshed):
        hops[meshed] = 0
        quick[meshed] = hi[meshed] = np.minimum(_narrowest(wired.nvlink, sets[meshed]), _port(wired, sets[meshed]))
        _pack(wired, Field(sets, lo, hi, hops, quick, heuristic=False), meshed, delta)
    return Field(sets, lo, hi, hops, quick, heuristic=False)


def _pack(wired: Wiring, field: Field, meshed: NDArray[np.intp], delta: float) -> None:
    """Fill in `lo` and `hi` of the meshes, the highest bounds first, until no bound reaches the best."""
    packed: dict[bytes, Packed] = {}
    widest: dict[bytes, float] = {}
    enough = field.lo.max(initial=0.0) * (1 - delta)
    keys: dict[int, bytes] = {}
    order = meshed[np.argsort(-field.quick[meshed], kind="stable")]
    for place in order.tolist():
        if field.quick[place] < enough:
            break
        nvlink, links = _ordered(wired, field.sets[place])
        key = keys[place] = nvlink.tobytes()
        if key not in packed:
            bound = widest[key] = cut_bound(nvlink)
            packed[key] = packing(nvlink, links) if bound >= enough else Packed(0, 0.0)
        port = float(wired.port[field.sets[place]].min())
        field.lo[place] = max(field.lo[place], min(packed[key].gbs, port))
        field.hi[place] = min(widest[key], port)
        enough = max(enough, field.lo[place] * (1 - delta))
    fractional: dict[bytes, float] = {}
    for place, key in keys.items():
        if field.lo[place] >= enough:
            if key not in fractional:
                fractional[key] = most(_ordered(wired, field.sets[place])[0], packed[key].gbs)
            field.hi[place] = min(fractional[key], float(wired.port[field.sets[place]].min()))


def _ordered(wired: Wiring, members: NDArray[np.intp]) -> tuple[Values, Values]:
    """Return a mesh's rates and links with the members sorted by what surrounds them, so that alike meshes look alike.

    Equal matrices are equal meshes; alike meshes with different matrices only cost time.
    """
    nvlink = wired.nvlink[np.ix_(members, members)]
    rows = np.sort(nvlink, axis=1)
    near = np.sort(nvlink * rows.sum(axis=1), axis=1)
    order = np.lexsort(np.hstack([near, rows]).T)
    place = np.ix_(members[order], members[order])
    return wired.nvlink[place], wired.links[place]


def _closed(wired: Wiring, sets: Sets) -> NDArray[np.bool_]:
    """Return which sets NVLinks alone close to a ring."""
    if not (wired.nvlink > 0).any():
        return np.zeros(len(sets), dtype=bool)
    closed: NDArray[np.bool_] = ring_table(wired.nvlink, sets.shape[1])[masks(sets)] > 0
    return closed


def _narrowest(nvlink: Values, sets: Sets) -> Values:
    """Return the least that enters or leaves a single member within each set: an upper bound of its packing, GB/s."""
    inside = nvlink[sets[:, :, None], sets[:, None, :]]
    return np.asarray(np.minimum(inside.sum(axis=1).min(axis=1), inside.sum(axis=2).min(axis=1)))


def _port(wired: Wiring, sets: Sets) -> Values:
    """Return what the member with the narrowest port sends over all its NVLinks at most, GB/s."""
    return np.asarray(wired.port[sets].min(axis=1))


def _any_pair(marks: NDArray[np.bool_], sets: Sets) -> NDArray[np.bool_]:
    return lowest_pair(np.where(marks | marks.T, 0.0, 1.0), sets) < 1
