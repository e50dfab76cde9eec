"""Which sets of k devices are predicted best, and which of them to measure (docs/method/choosing.md 4, 5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from collbench.choose.bands import (
    FEW_RANKS,
    MAX_MEMBERS,
    MAX_OF_MANY_SWITCHED,
    MAX_OF_PAIRS,
    MIN_OF_MANY,
    MIN_OVER_PCIE,
    all_sets,
    by_pairs,
    cut_bound,
    lowest_pair,
    masks,
    over_pcie,
    over_pcie_bound,
    over_tree,
    packing,
    predict,
    ring_bound,
    ring_table,
)
from collbench.choose.choice import Candidate
from collbench.choose.wiring import CROWDED, Sets, Values, Wiring
from collbench.model.run import Members

# Sets of k of many devices that are worth a look: grown from several starts, then improved by swaps (a heuristic).

# Starts are the devices with the best neighborhoods; more of them found nothing better in simulations.
_STARTS = 16
_MAX_SWAPS = 50
# Only the weakest members are worth replacing.
_WEAKEST = 8


def grown(wired: Wiring, k: int) -> set[Members]:
    """Return sets of k positions, ascending, that greedy growth and swaps end at, and the first k. Deterministic.

    Grown twice: for the best slowest pair, as a switch or PCIe asks, and for the most NVLinks inside, as a mesh does.
    """
    kept_sets = {tuple(range(k))}
    for rates in (wired.rates, wired.nvlink) if wired.links.any() else (wired.rates,):
        sound = np.where(wired.broken, 0.0, np.minimum(rates, rates.T))
        kept_sets |= {tuple(sorted(_improved(sound, _grow(sound, start, k)))) for start in _starts(sound, k)}
    return kept_sets


def _starts(rates: Values, k: int) -> list[int]:
    """Return the devices whose (k−1)th best neighbor is fastest: no set around another device can beat theirs."""
    reach = np.partition(rates, len(rates) - k + 1, axis=1)[:, len(rates) - k + 1]
    return [int(index) for index in np.argsort(-reach, kind="stable")[:_STARTS]]


def _grow(rates: Values, start: int, k: int) -> list[int]:
    members = [start]
    lowest, total = rates[start].copy(), rates[start].copy()
    while len(members) < k:
        lowest[members] = -1.0
        index = _best(lowest, total)
        members.append(index)
        lowest = np.minimum(lowest, rates[index])
        total = total + rates[index]
    return members


def _improved(rates: Values, members: list[int]) -> list[int]:
    """Replace one member after the other while that raises the slowest pair, or the sum where that stays."""

    def worth(some: list[int]) -> tuple[float, float]:
        inside = rates[np.ix_(some, some)]
        return float(inside[~np.eye(len(some), dtype=bool)].min()), float(inside.sum())

    for _ in range(_MAX_SWAPS):
        swapped = max((_swap(rates, members, index) for index in _weakest(rates, members)), key=worth)
        if worth(swapped) <= worth(members):
            break
        members = swapped
    return members


def _swap(rates: Values, members: list[int], index: int) -> list[int]:
    """Return the members with the one at an index replaced by the best for the others, which may be itself."""
    others = members[:index] + members[index + 1 :]
    lowest, total = rates[:, others].min(axis=1), rates[:, others].sum(axis=1)
    lowest[others] = -1.0
    return [*others, _best(lowest, total)]


def _best(lowest: Values, total: Values) -> int:
    """Return the index with the highest lowest rate, of equal ones that with the highest total."""
    top = np.flatnonzero(lowest == lowest.max())
    return int(top[np.argmax(total[top])])


def _weakest(rates: Values, members: list[int]) -> list[int]:
    """Return the indices of the members with the slowest pairs inside; of equally slow ones those of lowest sums."""
    inside = rates[np.ix_(members, members)]
    slowest = np.where(np.eye(len(members), dtype=bool), np.inf, inside).min(axis=1)
    return [int(index) for index in np.lexsort((inside.sum(axis=1), slowest))[:_WEAKEST]]


# Which sets of k devices are predicted best: all sets up to 16 devices, a heuristic beyond (docs/method/choosing.md 4).

# A band of 16 devices takes a quarter of a second.
_MAX_JUDGED = 6


@dataclass(frozen=True, slots=True)
class Candidates:
    """The sets that were examined, shape (sets, k), each with its band's ends in GB/s and the hops through the host.

    `quick` is a cheap value of each set, GB/s: an upper bound for meshes, else `lo`. A mesh whose bound is too low for
    it to be among the best keeps that bound as `hi`. `bound` is what no ring exceeds: over PCIe it may be above `hi`.
    `tree` is what NCCL's tree reaches at most over NVLinks that make no ring, 0 where it cannot run.
    """

    sets: Sets
    lo: Values
    hi: Values
    hops: Values
    quick: Values
    tree: Values
    bound: Values
    heuristic: bool

    def only(self, which: NDArray[np.bool_]) -> Candidates:
        """Return the sets that are flagged."""
        names = ("sets", "lo", "hi", "hops", "quick", "tree", "bound")
        return replace(self, **{name: getattr(self, name)[which] for name in names})


_AT_MOST = ("hi", "quick", "tree", "bound")


def search(wired: Wiring, k: int, delta: float) -> Candidates:
    """Return the sets of k devices with their bands; `delta` is the ratio up to which two are equal."""
    if len(wired) > MAX_MEMBERS:
        return _judge_some(wired, sorted(grown(wired, k)))
    sets = all_sets(len(wired), k)
    candidates = _judge_all(wired, sets, delta)
    if wired.labelled is not None:
        other = _judge_all(wired.labelled, sets, delta)
        most = {name: np.maximum(getattr(candidates, name), getattr(other, name)) for name in _AT_MOST}
        return replace(candidates, lo=np.minimum(candidates.lo, other.lo), **most)
    if wired.filled is None:
        return candidates
    filled = _judge_all(wired.filled, sets, delta)
    return replace(filled, lo=np.minimum(candidates.lo, filled.hi), quick=candidates.quick)


def best(candidates: Candidates, delta: float) -> NDArray[np.intp]:
    """Return the indices of the sets that no figure separates from the best: by `lo`, then `hi`, then fewest hops."""
    indices = np.arange(len(candidates.sets))
    for values in (candidates.lo, candidates.hi):
        indices = indices[values[indices] >= values[indices].max() * (1 - delta)]
    return np.asarray(indices[candidates.hops[indices] == candidates.hops[indices].min()])


def _judge_some(wired: Wiring, grown_sets: Sequence[Members]) -> Candidates:
    """Judge the sets with the highest quick bounds, and the first one, which is the default."""
    first, *others = grown_sets
    quick = sorted(others, key=lambda members: -ring_bound(wired.rates[np.ix_(members, members)]))
    sets = [first, *quick[:_MAX_JUDGED]]
    bands = [by_pairs(wired.of(members)) for members in sets]
    lo, hi, hops = (np.array([getattr(band, end) for band in bands], dtype=float) for end in ("lo", "hi", "hops"))
    return Candidates(np.array(sets, dtype=np.intp), lo, hi, hops, lo, np.zeros(len(sets)), hi, heuristic=True)


def _judge_all(wired: Wiring, sets: Sets, delta: float) -> Candidates:
    """Judge all sets: switches and PCIe rings in one go, meshes one by one while their bound may still win."""
    sound = lowest_pair(np.where(wired.broken | wired.broken.T, 0.0, 1.0), sets) >= 1
    if sets.shape[1] == 2:
        rate = np.minimum(wired.rates, wired.rates.T)[sets[:, 0], sets[:, 1]] * sound
        none = np.zeros(len(sets))
        return Candidates(sets, rate, rate, none, rate, none, rate, heuristic=False)
    lo, hi, hops = over_pcie(wired, sets)
    switched = _switched(wired, sets)
    if switched.any():
        slowest = lowest_pair(wired.rates, sets[switched])
        lo[switched], hops[switched] = slowest, 0
        hi[switched] = np.maximum(slowest, ring_table(wired.rates, sets.shape[1])[masks(sets[switched])])
    lo, hi, quick = lo * sound, hi * sound, lo * sound
    bound = hi if switched.all() else np.maximum(hi, over_pcie_bound(wired, sets) * sound)
    closed = np.zeros(len(sets), dtype=bool)  # by NVLinks alone, to a ring
    if (wired.nvlink > 0).any():
        closed = ring_table(wired.nvlink, sets.shape[1])[masks(sets)] > 0
    meshed = np.flatnonzero(~switched & sound & closed)
    tree = np.where(switched | closed, 0.0, over_tree(wired, sets) * sound)
    bound[switched] = hi[switched]
    candidates = Candidates(sets, lo, hi, hops, quick, tree, bound, heuristic=False)
    if len(meshed):
        hops[meshed] = 0
        # The least that enters or leaves a member within its set, and what the narrowest port sends: upper bounds.
        inside = wired.nvlink[sets[meshed][:, :, None], sets[meshed][:, None, :]]
        narrowest = np.minimum(inside.sum(axis=1).min(axis=1), inside.sum(axis=2).min(axis=1))
        quick[meshed] = np.minimum(narrowest, wired.port[sets[meshed]].min(axis=1))
        quick[meshed] = np.maximum(quick[meshed], hi[meshed])
        # No ring of NVLinks is slower than the slowest of them.
        link = np.where(wired.links > 0, wired.nvlink / np.maximum(wired.links, 1), np.inf)
        lo[meshed] = np.minimum(lo[meshed], lowest_pair(link, sets[meshed]))
        _pack(wired, candidates, meshed, delta)
        bound[meshed] = hi[meshed]
    return candidates


def _switched(wired: Wiring, sets: Sets) -> NDArray[np.bool_]:
    """Return which sets are behind one plane of NVSwitches."""
    planes = wired.plane[sets]
    return np.asarray((planes[:, 0] >= 0) & (planes == planes[:, :1]).all(axis=1))


def _pack(wired: Wiring, candidates: Candidates, meshed: NDArray[np.intp], delta: float) -> None:
    """Fill in `lo` and `hi` of the meshes, the highest bounds first, until no bound reaches the best."""
    packed_gbs: dict[bytes, float] = {}
    widest: dict[bytes, float] = {}
    over_pcie_hi = candidates.hi.copy()
    candidates.hi[meshed] = candidates.quick[meshed]
    enough = candidates.lo.max(initial=0.0) * (1 - delta)
    order = meshed[np.argsort(-candidates.quick[meshed], kind="stable")]
    for index in order.tolist():
        if candidates.quick[index] < enough:
            break
        nvlink, links = _ordered(wired, candidates.sets[index])
        key = nvlink.tobytes()
        if key not in packed_gbs:
            bound = widest[key] = cut_bound(nvlink)
            packed_gbs[key] = packing(nvlink, links)[1] if bound >= enough else 0.0
        port = float(wired.port[candidates.sets[index]].min())
        candidates.lo[index] = max(candidates.lo[index], min(packed_gbs[key], port))
        candidates.hi[index] = max(min(widest[key], port), over_pcie_hi[index])
        enough = max(enough, candidates.lo[index] * (1 - delta))


def _ordered(wired: Wiring, members: NDArray[np.intp]) -> tuple[Values, Values]:
    """Return a mesh's rates and links with its members sorted by their links, so that equal meshes look equal.

    Equal matrices mean equal meshes. Equal meshes with different matrices only cost time.
    """
    nvlink = wired.nvlink[np.ix_(members, members)]
    rows = np.sort(nvlink, axis=1)
    near = np.sort(nvlink * rows.sum(axis=1), axis=1)
    order = np.lexsort(np.hstack([near, rows]).T)
    index = np.ix_(members[order], members[order])
    return wired.nvlink[index], wired.links[index]


# Which few sets are worth measuring: the chosen one, others that may be better in ways that no pair shows, the default.

# Each costs a communicator and six trials; the default is one more.
MAX_FINALISTS = 4
# Rounds of as many further sets, while what was measured leaves sets that may be better.
FURTHER_ROUNDS = 4
# So few members have one ring, whatever their order.
_ONE_RING = 3


def finalists(wired: Wiring, candidates: Candidates, chosen: int, delta: float) -> tuple[Candidate, ...]:
    """Return the set at the index `chosen` and up to three others, best first, and the default set in any case.

    All could be as good as the chosen one: their `hi` reaches its `lo`. In a PCIe ring, hops may keep as little as
    `CROWDED` of their rate, whatever interference checks found. Sets of equal predictions look alike to the
    prediction, so one of each kind comes first, then the sets that share the fewest devices with the others.
    """
    least = candidates.lo[chosen]
    if candidates.hops[chosen]:
        least = min(least, CROWDED * candidates.hi[chosen])
    able = np.maximum(candidates.bound, candidates.tree) >= least * (1 - delta)
    lo, hi, tree = _steps(np.array([candidates.lo, candidates.hi, candidates.tree]), delta)
    kinds = np.array([lo, hi, candidates.hops, tree]).T
    # The sum of all rates within a set tells otherwise equal sets with weak devices apart.
    inside = wired.rates[candidates.sets[:, :, None], candidates.sets[:, None, :]].sum(axis=(1, 2))
    order = np.lexsort((-inside, *kinds.T[::-1]))
    order = order[able[order]]
    picked = [chosen]
    for groups in (kinds, _looks(wired, candidates.sets)):
        _, first = np.unique(groups[order], axis=0, return_index=True)
        picked += [index for index in order[np.sort(first)].tolist() if index not in picked]
        picked = picked[:MAX_FINALISTS]
    while len(picked) < min(MAX_FINALISTS, len(order)):
        picked.append(_farthest(candidates, order, picked))
    return with_default(wired, [tuple(candidates.sets[index].tolist()) for index in picked])


def further(
    wired: Wiring, candidates: Candidates, measured: Mapping[Members, float], delta: float, share: float
) -> tuple[Candidate, ...]:
    """Return up to four sets that may be more than δ better than the best of the `measured` ones, GB/s, best first.

    `share` is what pairs reach there of what they do here, 0 if that is not known. One of the sets that NCCL cannot
    tell apart is measured. If it falls far short of its prediction, those follow that share the fewest devices with it.
    """
    index_of = {tuple(some): index for index, some in enumerate(candidates.sets.tolist())}
    known = np.array([index_of[some] for some in measured if some in index_of], dtype=np.intp)
    looks = _looks(wired, candidates.sets)
    reached = np.array([measured[tuple(candidates.sets[index].tolist())] for index in known])
    bounds = _may_reach(wired, candidates, looks, known, reached, share)
    able = np.flatnonzero(bounds > max(measured.values()) * (1 + delta))
    bound, lo = _steps(np.array([bounds[able], candidates.lo[able]]), delta)
    order = able[np.lexsort((lo, candidates.hops[able], bound))]
    _, first = np.unique(looks[order], return_index=True)
    picked = order[np.sort(first)].tolist()[:MAX_FINALISTS]
    again = order[np.isin(looks[order], looks[known])]
    while len(picked) < min(MAX_FINALISTS, len(again)):
        picked.append(_farthest(candidates, again, [*known, *picked]))
    if len(known):
        second = _second_of_fewest_hops(candidates, known, known[np.argmax(reached)])
        picked = [*dict.fromkeys([*second, *picked])][:MAX_FINALISTS]
    sets = [tuple(candidates.sets[index].tolist()) for index in picked]
    return tuple(Candidate(some, predict(wired.of(some)), default=False) for some in sets)


def _second_of_fewest_hops(candidates: Candidates, known: NDArray[np.intp], best: np.intp) -> list[int]:
    """Return a second set of the fewest hops through the host, where one is `known` and the best has more hops.

    The measured one may have a GPU that is slow in one direction, which its pairs do not show.
    """
    hops = np.where(candidates.hi > 0, candidates.hops, np.inf)
    fewest = hops == hops.min()
    if fewest[best] or fewest[known].sum() != 1:
        return []
    fewest[known] = False
    return [int(np.argmax(np.where(fewest, candidates.hi, 0.0)))] if fewest.any() else []


def _may_reach(
    wired: Wiring,
    candidates: Candidates,
    looks: NDArray[np.intp],
    known: NDArray[np.intp],
    reached: Values,
    share: float,
) -> Values:
    """Return what each set reaches at most, GB/s, 0 for those at the indices `known`, which reached what is given.

    k GPUs exceed pairs at most by the published factor, and their bound at most by the factor by which the best
    measured set over NVLinks, or over PCIe, exceeds its `lo`. A set reaches the same share of its bound as one that
    NCCL cannot tell from it. Sets on which trees can run over equal links show what trees reach: NCCL does not know
    which links are slow. A set that falls far short of all published figures says nothing about others.
    """
    host, (least, most) = candidates.hops > 0, _published(wired, candidates)
    telling = reached >= share * least[known] * candidates.lo[known]
    told, gbs = known[telling], reached[telling]
    bounds = candidates.bound * (share * most if share else np.inf)
    for over in (host, ~host):
        if over[told].any():
            top = np.argmax(np.where(over[told], gbs, 0.0))
            bounds[over] = np.minimum(bounds, candidates.bound * gbs[top] / max(candidates.lo[told[top]], 1e-9))[over]
    trees = (candidates.tree[known] > 0) & (lowest_pair(np.where(wired.slow, 0.0, 1.0), candidates.sets[known]) > 0)
    of_trees = (reached / np.maximum(candidates.tree[known], 1e-9))[trees].max(initial=0.0) or 1.0
    bounds = np.maximum(bounds, of_trees * candidates.tree)
    ceilings = np.maximum(candidates.bound, candidates.tree)
    for look in np.unique(looks[told]):
        part = (gbs / np.maximum(ceilings[told], 1e-9))[looks[told] == look].max()
        bounds[looks == look] = ceilings[looks == look] * part
    bounds[known] = 0.0
    return bounds


def _published(wired: Wiring, candidates: Candidates) -> tuple[Values, Values]:
    """Return the least and the most that k GPUs were published to reach of what pairs do, for each set."""
    k = candidates.sets.shape[1]
    if k == 2:
        return np.full(len(candidates.sets), MIN_OF_MANY), np.ones(len(candidates.sets))
    switched, host = _switched(wired, candidates.sets), candidates.hops > 0
    most = np.where(host, 1.0, np.where(switched & (k > FEW_RANKS), MAX_OF_MANY_SWITCHED, MAX_OF_PAIRS))
    return np.where(host, MIN_OVER_PCIE, MIN_OF_MANY), most


def _looks(wired: Wiring, sets: Sets) -> NDArray[np.intp]:
    """Return a number for each set, equal for those whose rings NCCL orders alike and whose slow pairs are the same.

    NCCL goes by what joins its GPUs and, where that is equal, by the order of their bus ids.
    """
    whole = wired.filled or wired
    looks = whole.links * 2 + whole.slow
    for group in (whole.plane, whole.host, whole.socket, *(level.group for level in whole.uplinks)):
        looks = looks * 2 + np.equal.outer(group, group)
    inside = looks[sets[:, :, None], sets[:, None, :]].reshape(len(sets), -1)
    if sets.shape[1] <= _ONE_RING:
        inside.sort(axis=1)
    # As bytes, the highest first, rows sort as their numbers do, and four times as fast.
    rows = np.ascontiguousarray(inside, ">i8").view(f"V{8 * inside.shape[1]}").ravel()
    return np.asarray(np.unique(rows, return_inverse=True)[1])


def with_default(wired: Wiring, sets: Sequence[Members]) -> tuple[Candidate, ...]:
    """Return sets of as many devices with their bands; the last one is the first k, where these are not among them."""
    default = tuple(range(len(sets[0])))
    return tuple(
        Candidate(some, predict(wired.of(some)), default=some == default) for some in dict.fromkeys([*sets, default])
    )


def _steps(rates: Values, delta: float) -> Values:
    """Return rates in steps of δ, smaller is better."""
    return np.asarray(-np.round(np.log(np.maximum(rates, 1e-9)) / delta))


def _farthest(candidates: Candidates, order: NDArray[np.intp], picked: list[int]) -> int:
    """Return the set that shares the fewest members with any picked one, the best predicted of those."""
    shared = np.zeros(len(order))
    for index in picked:
        common = np.isin(candidates.sets[order], candidates.sets[index]).sum(axis=1)
        shared = np.maximum(shared, common)
    shared[np.isin(order, picked)] = np.inf
    return int(order[np.argmin(shared)])
