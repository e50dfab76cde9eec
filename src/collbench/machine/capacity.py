"""The most that an operation can reach on a run's devices: what its narrowest link, port or slot carries (method.md).

Everything is GB/s in one direction. A message of S bytes loads what it crosses; a link of capacity C takes at least
load × S / C for it, so no rate exceeds the smallest C / load of all that is crossed. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations

from collbench.machine import theory
from collbench.machine.labels import is_nvlink, nvlinks
from collbench.machine.nvls import Nvls, nvls
from collbench.model import Cell, Device, Path, Run
from collbench.operations import Operation, Variant
from collbench.units import busbw_factor

# Light takes 0.33 ns there and back between chips 5 cm apart, as near as two GPUs of one board are.
_LIGHT_S = 2 * 0.05 / 299_792_458
_ACCESS_BYTES = 8  # of a load of the pointer chase


class Part(StrEnum):
    """What sets a limit: the link between two devices, all links of a device, its way to the host, or light."""

    LINK = "link"
    PORT = "port"
    SLOT = "slot"
    LIGHT = "light"


@dataclass(frozen=True, slots=True)
class Capacity:
    """The most that a cell's rate can be, in GB/s (algbw of a copy, busbw of a collective), and what sets it.

    `devices` are the positions whose `part` it is.
    """

    gbs: float
    part: Part
    devices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Traffic:
    """What a collective of S bytes moves at least, over S. Sources: each line's own comment.

    `across(c, n, root)` must cross the border of any c of n ranks in one direction; `root` says whether the root is
    among them. `sent` is what all n ranks send together, without a switch that reduces or copies.
    """

    across: Callable[[int, int, bool], float]
    sent: Callable[[int], float]


def _whole(_count: int, _ranks: int, _root: bool) -> float:
    return 1.0


def _blocks(count: int, ranks: int, _root: bool) -> float:
    return max(count, ranks - count) / ranks


# Every element depends on every rank, so S leaves each set of ranks and S enters it. Patarasuk and Yuan, J. Parallel
# Distrib. Comput. 69 (2009), §3: all ranks send 2(n−1)S together.
_ALLREDUCE = _Traffic(_whole, lambda n: 2.0 * (n - 1))
_TRAFFIC = {
    Operation.ALLREDUCE: _ALLREDUCE,
    # S enters every set without the root; from each rank of a reduction S leaves, or what it was added to.
    Operation.BROADCAST: _Traffic(_whole, lambda n: n - 1.0),
    Operation.REDUCE: _Traffic(_whole, lambda n: n - 1.0),
    # Each rank has one block of n and wants the others', or the reverse.
    Operation.ALLGATHER: _Traffic(_blocks, lambda n: n - 1.0),
    Operation.REDUCESCATTER: _Traffic(_blocks, lambda n: n - 1.0),
    # Each rank of a set has a block of S/n for each rank outside.
    Operation.ALLTOALL: _Traffic(lambda c, n, _root: c * (n - c) / n, lambda n: n - 1.0),
    # Rank r sends S to r + 1: a set is left once at least.
    Operation.SENDRECV: _Traffic(_whole, float),
    # The root gets, or gives, a block of S/n of each other rank.
    Operation.GATHER: _Traffic(lambda c, n, root: (n - c if root else c) / n, lambda n: (n - 1) / n),
    Operation.SCATTER: _Traffic(lambda c, n, root: (n - c if root else c) / n, lambda n: (n - 1) / n),
}
# What NVLink SHARP does in the switch: there a rank sends each element once. It saves a broadcast's senders nothing.
_IN_SWITCH = (Operation.ALLREDUCE, Operation.ALLGATHER, Operation.REDUCESCATTER)


class Hardware:
    """What the devices and paths of a run carry. `hidden` pairs have NVLinks though their label is of PCIe.

    Of those nobody knows the links: a GPU's most stands for them.
    """

    def __init__(self, run: Run, hidden: Iterable[frozenset[int]] = ()) -> None:
        self._devices: tuple[Device, ...] = run.devices
        self._paths: dict[frozenset[int], Path] = {frozenset(path.devices): path for path in run.paths}
        self._hidden = frozenset(hidden)
        self._root = run.settings.root
        # What NCCL may do, it is allowed to have done: it is asked after the sweep, or never.
        self._in_switch = nvls(run) is not Nvls.OFF
        self._on_cores = run.backend == "host"
        self._switched = {place: self._on_a_switch(place) for place in range(len(run.devices))}
        self._ports = {place: self._reach(place, range(len(run.devices))) for place in range(len(run.devices))}
        self._limits: dict[tuple[Operation, Variant, tuple[int, ...]], Capacity | None] = {}

    def of(self, cell: Cell) -> Capacity | None:
        """Return the most that a cell can reach; None where it is not known, as of CPU cores."""
        alike = (cell.operation, cell.variant, cell.members)  # of any size
        if alike not in self._limits:
            self._limits[alike] = self._limit(cell)
        return self._limits[alike]

    def _limit(self, cell: Cell) -> Capacity | None:
        if self._on_cores or not self._known(cell.members):
            return None
        if cell.operation is Operation.CHASE:
            return Capacity(_ACCESS_BYTES / _LIGHT_S / 1e9, Part.LIGHT, cell.members)
        limits = list(self._collective(cell) if cell.operation.is_collective else self._copies(cell))
        known = sorted((limit for limit in limits if limit is not None), key=lambda limit: limit.part is not Part.LINK)
        return min(known, key=lambda limit: limit.gbs, default=None)

    def link(self, a: int, b: int) -> float | None:
        """Return the limit of the path between two devices, GB/s; of PCIe without one that of the slower slot."""
        path = self._paths.get(frozenset((a, b)))
        if path is None or self._on_cores:
            return None
        if frozenset((a, b)) in self._hidden:
            return min(theory.most_nvlink_gbs(self._devices[place].name) for place in (a, b))
        if path.theory_gbs is not None or is_nvlink(path.label):
            return path.theory_gbs
        return min((limit.gbs for place in (a, b) if (limit := theory.slot(self._devices[place]))), default=None)

    def over_nvlink(self, a: int, b: int) -> bool:
        """Return whether NVLinks join two devices, by their label or as measured."""
        pair = frozenset((a, b))
        return pair in self._hidden or (pair in self._paths and is_nvlink(self._paths[pair].label))

    def switched(self, place: int) -> bool:
        """Return whether a device's NVLinks lead to a switch."""
        return self._switched[place]

    def _known(self, members: Sequence[int]) -> bool:
        return all(frozenset(pair) in self._paths for pair in combinations(members, 2))

    def _joined(self, place: int, others: Iterable[int]) -> list[int]:
        return [other for other in others if other != place and self.over_nvlink(place, other)]

    def _on_a_switch(self, place: int) -> bool:
        """Return whether links, each counted for every neighbour that it reaches, are more than a device has."""
        others = self._joined(place, range(len(self._devices)))
        counts = [self._paths[frozenset((place, other))] for other in others]
        links = sum(map(nvlinks, counts))
        hidden = any(frozenset((place, other)) in self._hidden for other in others)
        return hidden or links > theory.most_nvlinks(self._devices[place].name)

    def _reach(self, place: int, others: Iterable[int]) -> float | None:
        """Return what a device's NVLinks to some others carry, 0 without any; None where a link is not known.

        Through a switch they carry no more than one path does: that has all of them.
        """
        limits = [self.link(place, other) for other in self._joined(place, others)]
        known = [limit for limit in limits if limit is not None]
        if len(known) < len(limits):
            return None
        return max(known) if known and self.switched(place) else sum(known)

    def _slot(self, place: int) -> float | None:
        """Return what joins a device to its host carries; where nobody told its slot, by its paths over PCIe."""
        limit = theory.slot(self._devices[place])
        if limit is not None:
            return limit.gbs
        others = (other for other in range(len(self._devices)) if other != place)
        over_pcie = (self.link(place, other) for other in others if not self.over_nvlink(place, other))
        return max((gbs for gbs in over_pcie if gbs is not None), default=None)

    def _copies(self, cell: Cell) -> Iterator[Capacity | None]:
        """Yield what each link, port and slot allows all messages of a cell together."""
        messages = _messages(cell)
        through_host = cell.variant in (Variant.HOST, Variant.STAGED)
        loads: dict[tuple[Part, tuple[int, ...], bool], int] = {}
        for src, dst in messages:
            direct = not through_host and src is not None and dst is not None
            ends = [(place, outward) for place, outward in ((src, True), (dst, False)) if place is not None]
            part = Part.PORT if direct and self.over_nvlink(src or 0, dst or 0) else Part.SLOT
            crossed: list[tuple[Part, tuple[int, ...], bool]] = []
            crossed += [(Part.LINK, (src or 0, dst or 0), True)] if direct else []
            crossed += [(part, (place,), outward) for place, outward in ends]
            for what in crossed:
                loads[what] = loads.get(what, 0) + 1
        for (part, places, _), load in loads.items():
            gbs = self._carried(part, places)
            yield None if gbs is None else Capacity(len(messages) * gbs / load, part, places)

    def _carried(self, part: Part, places: tuple[int, ...]) -> float | None:
        if part is Part.LINK:
            return self.link(places[0], places[1])
        return self._ports[places[0]] if part is Part.PORT else self._slot(places[0])

    def _collective(self, cell: Cell) -> Iterator[Capacity | None]:
        """Yield what the border of each rank, and of each group that NVLinks join, allows, and all ranks together."""
        members, traffic = cell.members, _TRAFFIC[cell.operation]
        ranks, factor = len(members), busbw_factor(cell.operation, len(members))
        root = members[self._root] if self._root < ranks else members[0]
        islands = [island for island in self._islands(members) if 1 < len(island) < ranks]
        borders: dict[tuple[int, ...], float | None] = {}
        for inside in [*((member,) for member in members), *islands]:
            border = self._border(inside, [member for member in members if member not in inside])
            least = traffic.across(len(inside), ranks, root in inside)
            yield None if border is None else Capacity(border * factor / least, self._part(inside), inside)
            borders[inside] = border
        if not (self._in_switch and cell.operation in _IN_SWITCH and all(map(self.switched, members))):
            each = [borders[member,] for member in members]
            known = [gbs for gbs in each if gbs is not None]
            sent = sum(known) * factor / traffic.sent(ranks)
            yield Capacity(sent, self._part(members), members) if len(known) == ranks else None
        if cell.operation is Operation.SENDRECV:
            yield from (self._hop(a, b) for a, b in zip(members, (*members[1:], members[0]), strict=True))

    def _part(self, members: Sequence[int]) -> Part:
        return Part.PORT if any(self._ports[member] for member in members) else Part.SLOT

    def _hop(self, a: int, b: int) -> Capacity | None:
        """Return what a message to the next rank may take: its NVLinks; elsewhere the ranks' borders say it."""
        gbs = self.link(a, b) if self.over_nvlink(a, b) else float("inf")
        return None if gbs is None else Capacity(gbs, Part.LINK, (a, b))

    def _border(self, inside: Sequence[int], outside: Sequence[int]) -> float | None:
        """Return what leaves some devices for others at most: over NVLinks, and over PCIe where some have no other way.

        NCCL may send each part of a message by another way, so both count.
        """
        total = 0.0
        for place in inside:
            ways = [self._reach(place, outside)]
            if len(self._joined(place, outside)) < len(outside):
                ways.append(self._slot(place))
            if None in ways:
                return None
            total += sum(gbs for gbs in ways if gbs is not None)
        return total

    def _islands(self, members: Sequence[int]) -> list[tuple[int, ...]]:
        """Return the groups of members that NVLinks chain together."""
        islands: list[set[int]] = []
        for member in members:
            touched = [island for island in islands if self._joined(member, island)]
            islands = [island for island in islands if island not in touched]
            islands.append({member}.union(*touched))
        return [tuple(sorted(island)) for island in islands]


def _messages(cell: Cell) -> list[tuple[int | None, int | None]]:
    """Return (source, destination) of each message of a copy, None for host memory."""
    first, *rest = cell.members
    if cell.variant is Variant.HOST:
        return [(None, first) if cell.operation in (Operation.H2D_CE, Operation.H2D_SM) else (first, None)]
    if cell.variant is Variant.BOTH_WAYS:
        return [(first, rest[0]), (rest[0], first)]
    if cell.variant is Variant.ALL_TO_ONE:
        return [(other, first) for other in rest]
    return [(first, other) for other in rest]
