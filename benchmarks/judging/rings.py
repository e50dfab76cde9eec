"""What NCCL reaches on k GPUs of a made machine: its rings, packed by a search of its own; no code of collbench's.

NCCL gives all rings of an all-reduce the same rate and an equal share of the data. A machine's NCCL either knows what
each link carries (`by_rate`: it takes the packing of the highest total), or it knows the links' number alone, as NVML
reports it, and goes through GPUs in the order of their bus ids where that is possible: then the slowest link that it
happens to use slows all rings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations

import numpy as np

from collbench.measurement.backends.protocol import Step, Timing

from .machines import Made, Pair
from .measured import MadeBackend, Situation

_BRUTE = 6  # members up to which the packing is searched, not only tried
_LISTED = 7  # up to which all rings are listed
_TRIES, _NODES = 12, 4000


class RingsBackend(MadeBackend):
    """A made machine whose all-reduces on three and more GPUs run over NCCL's rings, at these GB/s of each set."""

    def __init__(self, made: Made, situation: Situation, gbs: Mapping[tuple[int, ...], float]) -> None:
        super().__init__(made, situation)
        self._gbs = gbs

    def time(self, step: Step) -> Timing:
        """Return drawn times."""
        if not step.work.operation.is_collective or min(map(len, step.groups)) < 3:
            return super().time(step)
        drawn = [self._drawn(step, some, self._gbs[tuple(sorted(some))], limit=np.inf) for some in step.groups]
        timing = Timing(seconds=tuple(drawn))
        self._seconds += timing.region_seconds(step) + 6e-4
        return timing


def busbw(made: Made, members: Sequence[int], *, by_rate: bool) -> float:
    """Return the GB/s of NCCL's rings through the members, before NCCL's share."""
    members = tuple(sorted(members))
    if len(members) == 2:
        return min(made.rates([(members[0], members[1]), (members[1], members[0])]))
    direct = over_links(made, members, by_rate=by_rate)
    if direct and not by_rate:
        return direct
    return max(direct, _one_ring(made, members, any_order=by_rate))


def over_links(made: Made, members: Sequence[int], *, by_rate: bool) -> float:
    """Return the GB/s of rings over the members' own NVLinks, 0 if these make no ring through all of them."""
    if made.family not in ("mesh", "bridged"):
        return 0.0
    members = tuple(sorted(members))
    links = {pair: made.links[pair] for pair in permutations(members, 2) if made.links.get(pair)}
    each = {pair: made.rates([pair])[0] / count for pair, count in links.items()}
    return _by_rate(members, links, each) if by_rate else _as_labelled(members, links, each)


def _by_rate(members: Sequence[int], links: Mapping[Pair, int], each: Mapping[Pair, float]) -> float:
    """Return the highest total of rings of one rate, each of which takes that rate from every hop."""
    best = 0.0
    for rate in sorted({links[p] * each[p] / share for p in links for share in range(1, links[p] + 1)}, reverse=True):
        room = {pair: int(links[pair] * each[pair] / rate + 1e-9) for pair in links}
        if rate * _degree(members, room) > best:
            best = max(best, rate * len(_packed(members, room)))
    return best


def _as_labelled(members: Sequence[int], links: Mapping[Pair, int], each: Mapping[Pair, float]) -> float:
    rings = _packed(members, links)
    return len(rings) * min((each[hop] for ring in rings for hop in _hops(ring)), default=0.0)


def _hops(ring: Sequence[int]) -> list[Pair]:
    return list(zip(ring, (*ring[1:], ring[0]), strict=True))


def _degree(members: Sequence[int], room: Mapping[Pair, int]) -> int:
    """Return a bound of the number of rings: what leaves or enters the member with the least room."""
    out = [sum(room.get((a, b), 0) for b in members if b != a) for a in members]
    into = [sum(room.get((b, a), 0) for b in members if b != a) for a in members]
    return min(*out, *into)


def _packed(members: Sequence[int], room: Mapping[Pair, int]) -> list[tuple[int, ...]]:
    """Return the most rings found that share no link: all tried up to six members, random greedy tries beyond."""
    bound = _degree(members, room)
    if not bound:
        return []
    if len(members) > _LISTED:
        return max((_walked(members, room, seed, bound) for seed in range(_TRIES)), key=len)
    rings = [(members[0], *rest) for rest in permutations(members[1:])]
    rings = [ring for ring in rings if all(room.get(hop, 0) for hop in _hops(ring))]
    best = max((_greedily(rings, room, seed, bound) for seed in range(_TRIES)), key=len)
    if len(best) < bound and len(members) <= _BRUTE:
        best = max(best, _searched(rings, room, len(best), bound), key=len)
    return best


def _greedily(
    rings: Sequence[tuple[int, ...]], room: Mapping[Pair, int], seed: int, bound: int
) -> list[tuple[int, ...]]:
    left, taken = dict(room), list[tuple[int, ...]]()
    order = range(len(rings)) if seed == 0 else np.random.default_rng(seed).permutation(len(rings)).tolist()
    for index in order:
        ring = rings[index]
        for one in (ring, (ring[0], *ring[:0:-1])) if seed % 2 else (ring,):  # often there and back
            hops = _hops(one)
            if all(left.get(hop, 0) for hop in hops):
                taken.append(one)
                for hop in hops:
                    left[hop] -= 1
        if len(taken) >= bound:
            break
    return taken


def _walked(members: Sequence[int], room: Mapping[Pair, int], seed: int, bound: int) -> list[tuple[int, ...]]:
    """Return rings found one after the other, each by a depth-first walk that goes where most links are left."""
    rng, left, taken = np.random.default_rng(seed), dict(room), list[tuple[int, ...]]()
    while len(taken) < bound and (ring := _walk(members, left, rng)):
        taken.append(ring)
        for hop in _hops(ring):
            left[hop] -= 1
    return taken


def _walk(members: Sequence[int], left: Mapping[Pair, int], rng: np.random.Generator) -> tuple[int, ...]:
    nodes = 0

    def deeper(path: tuple[int, ...]) -> tuple[int, ...]:
        nonlocal nodes
        nodes += 1
        if len(path) == len(members):
            return path if left.get((path[-1], path[0]), 0) else ()
        onward = [member for member in members if member not in path and left.get((path[-1], member), 0)]
        for one in sorted(onward, key=lambda one: (-left[path[-1], one], rng.random())):
            ring = deeper((*path, one)) if nodes < _NODES else ()
            if ring:
                return ring
        return ()

    return deeper((members[0],))


def _searched(
    rings: Sequence[tuple[int, ...]], room: Mapping[Pair, int], least: int, bound: int
) -> list[tuple[int, ...]]:
    """Return a larger packing than `least` by depth-first search, empty if there is none."""
    left, best, nodes = dict(room), list[tuple[int, ...]](), 0

    def deeper(start: int, taken: list[tuple[int, ...]]) -> bool:
        nonlocal nodes, best
        nodes += 1
        if len(taken) > max(least, len(best)):
            best = list(taken)
        if len(best) >= bound or nodes > _NODES:
            return True
        for index in range(start, len(rings)):
            hops = _hops(rings[index])
            if all(left[hop] for hop in hops):
                for hop in hops:
                    left[hop] -= 1
                done = deeper(index, [*taken, rings[index]])
                for hop in hops:
                    left[hop] += 1
                if done:
                    return True
        return False

    deeper(0, [])
    return best


def _one_ring(made: Made, members: Sequence[int], *, any_order: bool) -> float:
    """Return the rate of one ring over whatever joins the members: in ascending order, or the best order."""
    orders = [tuple(members)]
    if any_order and len(members) <= _BRUTE:
        orders = [(members[0], *rest) for rest in permutations(members[1:])]
    best, ring = max((min(made.rates(_hops(order))), order) for order in orders)
    improved = any_order and len(members) > _BRUTE
    while improved:  # by exchanging two members
        improved = False
        for i in range(len(ring)):
            for j in range(i + 1, len(ring)):
                other = list(ring)
                other[i], other[j] = other[j], other[i]
                rate = min(made.rates(_hops(other)))
                if rate > best * 1.000001:
                    best, ring, improved = rate, tuple(other), True
    return best
