"""The capacity of the hardware, and the batches that exceed it (docs/method/verdicts.md 3). Pure."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from itertools import combinations
from statistics import median

from collbench.judge.stats import rate_gbs, trial_seconds
from collbench.machine import theory
from collbench.machine.labels import chained, is_nvlink, nvlinks
from collbench.machine.theory import HIDDEN
from collbench.model.operations import Operation, Variant, across, leaving
from collbench.model.run import DataPoint, Device, Mark, MarkKind, Measurement, Path, Run, Sample, capabilities

# Whether NCCL used NVLink SHARP (NVLS) in a run: it decides what an all-reduce can reach.

NVLS_VARIABLE = "NCCL_NVLS_ENABLE"


class Nvls(StrEnum):
    """What a run shows of NVLS. POSSIBLE: NCCL was free to use it."""

    OFF = "off"
    POSSIBLE = "possible"
    UNKNOWN = "unknown"


def nvls(run: Run) -> Nvls:
    """Return whether NCCL could use NVLS: by the variable, then by what the GPUs can do."""
    if run.settings.environment.get(NVLS_VARIABLE) == "0" or run.machine.multicast is False:
        return Nvls.OFF
    return Nvls.UNKNOWN if run.machine.multicast is None else Nvls.POSSIBLE


# The most that an operation can reach on a run's devices: its narrowest link, port or slot.
#
# Everything is GB/s in one direction. A message of S bytes loads what it crosses; a link of capacity C takes at least
# load × S / C for it, so no rate exceeds the smallest C / load of all that is crossed.

# Light takes 0.33 ns there and back between chips 5 cm apart, as near as two GPUs of one board are.
_LIGHT_S = 2 * 0.05 / 299_792_458
_ACCESS_BYTES = 8  # of a load of the pointer chase
_UNKNOWN = math.inf  # the capacity of a part of which nothing is known: it limits nothing
# Twice the largest L2 that we know (B200: 126 MB).
_BEYOND_CACHES = 256 * 2**20


class Bottleneck(StrEnum):
    """What sets a limit: a link, all links of a device, its way to the host, its own memory, or light."""

    LINK = "link"
    PORT = "port"
    SLOT = "slot"
    MEMORY = "memory"
    LIGHT = "light"


@dataclass(frozen=True, slots=True)
class Capacity:
    """The most that a data point's rate can be, in GB/s (algbw of a copy, busbw of a collective), and what sets it.

    `devices` are the positions whose `part` it is.
    """

    gbs: float
    part: Bottleneck
    devices: tuple[int, ...]


class Hardware:
    """The capacities of devices and paths. `hidden` pairs have NVLinks though their label is of PCIe.

    If the number of links is unknown, it is taken as the GPU's maximum.
    """

    def __init__(
        self,
        devices: tuple[Device, ...],
        paths: tuple[Path, ...],
        backend: str,
        root: int,
        of_switches: Nvls,
        hidden: frozenset[frozenset[int]],
    ) -> None:
        self._devices = devices
        self._paths = {frozenset(path.devices): path for path in paths}
        self._hidden = hidden
        hosts = [device.host for device in devices]
        of_one_host = sum(len({hosts[position] for position in pair}) == 1 for pair in self._paths)
        self._all_known = of_one_host == sum(math.comb(count, 2) for count in Counter(hosts).values())
        # Neighbors by NVLinks, because in a cluster of a thousand devices each has only a few.
        joined = self._hidden | {pair for pair, path in self._paths.items() if is_nvlink(path.label)}
        self._neighbours: dict[int, list[int]] = {position: [] for position in range(len(devices))}
        for pair in joined:
            for position in pair:
                self._neighbours[position] += pair - {position}
        self._root = root
        # NCCL may have used NVLS wherever it could: which algorithm it chose is known after the sweep, or never.
        self._in_switch = of_switches is not Nvls.OFF
        self._on_cores = capabilities(backend).cores
        self._switched = {position: self._on_a_switch(position) for position in range(len(devices))}
        self._ports = {position: self._reach(position, range(len(devices))) for position in range(len(devices))}
        self._limits: dict[object, Capacity | None] = {}

    def of(self, point: DataPoint) -> Capacity | None:
        """Return the most that a data point can reach; None if it is not known, as for CPU cores."""
        if point.variant is Variant.LOCAL and point.size_bytes < _BEYOND_CACHES:
            return None  # messages that fit in a cache need not reach the memory
        # The limit is the same for all sizes, unless blocks have sizes of their own, which are whole units.
        uneven = None if point.skew is None else (point.skew, point.size_bytes)
        alike = (point.operation, point.variant, point.members, uneven)
        if alike not in self._limits:
            self._limits[alike] = self._limit(point)
        return self._limits[alike]

    def _limit(self, point: DataPoint) -> Capacity | None:
        if self._on_cores or not self._known(point.members):
            return None
        if point.operation is Operation.CHASE:
            return Capacity(_ACCESS_BYTES / _LIGHT_S / 1e9, Bottleneck.LIGHT, point.members)
        if point.variant is Variant.LOCAL:
            memory = theory.product(self._devices[point.members[0]].name).memory_gbs
            # Each byte is read and written.
            return None if memory is None else Capacity(memory / 2, Bottleneck.MEMORY, point.members)
        limits = self._collective(point) if point.operation.is_collective else self._copies(point)
        known = sorted(
            (limit for limit in limits if limit.gbs < _UNKNOWN), key=lambda limit: limit.part is not Bottleneck.LINK
        )
        return min(known, key=lambda limit: limit.gbs, default=None)

    def link(self, a: int, b: int) -> float | None:
        """Return the limit of the path between two devices, GB/s; for PCIe without one, that of the slower slot."""
        path = self._paths.get(frozenset((a, b)))
        if self._on_cores or not self._known((a, b)):
            return None
        if frozenset((a, b)) in self._hidden:
            return min(theory.product(self._devices[position].name).nvlink_gbs for position in (a, b))
        if path is not None and (path.theory_gbs is not None or is_nvlink(path.label)):
            return path.theory_gbs
        return min((limit.gbs for position in (a, b) if (limit := theory.slot(self._devices[position]))), default=None)

    def over_nvlink(self, a: int, b: int) -> bool:
        """Return whether NVLinks join two devices, by their label or as measured."""
        pair = frozenset((a, b))
        return pair in self._hidden or (pair in self._paths and is_nvlink(self._paths[pair].label))

    def switched(self, position: int) -> bool:
        """Return whether a device's NVLinks lead to a switch."""
        return self._switched[position]

    def _known(self, members: Sequence[int]) -> bool:
        """Return whether the path between any two members is known: between hosts it is the network's."""
        if self._all_known:
            return True
        hosts = [self._devices[member].host for member in members]
        pairs = zip(combinations(members, 2), combinations(hosts, 2), strict=True)
        return all(first != second or frozenset(pair) in self._paths for pair, (first, second) in pairs)

    def _joined(self, position: int, others: Iterable[int]) -> list[int]:
        wanted = set(others)
        return sorted(other for other in self._neighbours[position] if other in wanted)

    def _on_a_switch(self, position: int) -> bool:
        """Return whether a device's links, summed over its neighbors, are more than it has: a switch shares them."""
        others = self._joined(position, range(len(self._devices)))
        counts = [self._paths[frozenset((position, other))] for other in others]
        links = sum(map(nvlinks, counts))
        hidden = any(frozenset((position, other)) in self._hidden for other in others)
        return hidden or links > theory.product(self._devices[position].name).nvlinks

    def _gbs(self, a: int, b: int) -> float:
        limit = self.link(a, b)
        return _UNKNOWN if limit is None else limit

    def _reach(self, position: int, others: Iterable[int]) -> float:
        """Return the capacity of a device's NVLinks to some others, 0 without any.

        Through a switch it is the capacity of one path, which has all of the links.
        """
        limits = [self._gbs(position, other) for other in self._joined(position, others)]
        return max(limits, default=0.0) if self.switched(position) else sum(limits)

    def _slot(self, position: int) -> float:
        """Return the limit of a device's link to its host, GB/s; if its slot was not reported, by its PCIe paths."""
        limit = theory.slot(self._devices[position])
        if limit is not None:
            return limit.gbs
        others = (other for other in range(len(self._devices)) if other != position)
        over_pcie = (self.link(position, other) for other in others if not self.over_nvlink(position, other))
        return max((gbs for gbs in over_pcie if gbs is not None), default=_UNKNOWN)

    def _copies(self, point: DataPoint) -> Iterator[Capacity]:
        """Yield the limit that each link, port and slot sets to all messages of a data point together."""
        messages = point.work.transfers(point.members)
        if point.variant.host_memory:
            messages = messages[:1]  # the timed copy: concurrent ones are not counted
        through_host = point.variant.host_memory or point.variant is Variant.STAGED
        # How many messages cross each part, by direction: True is outward.
        loads: Counter[tuple[Bottleneck, tuple[int, ...], bool]] = Counter()
        for src, dst in messages:
            part = Bottleneck.SLOT
            if src is not None and dst is not None and not through_host:
                loads[Bottleneck.LINK, (src, dst), True] += 1
                part = Bottleneck.PORT if self.over_nvlink(src, dst) else Bottleneck.SLOT
            if src is not None:
                loads[part, (src,), True] += 1
            if dst is not None:
                loads[part, (dst,), False] += 1
        for (part, positions, _), load in loads.items():
            if part is Bottleneck.LINK:
                gbs = self._gbs(*positions)
            else:
                gbs = self._ports[positions[0]] if part is Bottleneck.PORT else self._slot(positions[0])
            yield Capacity(len(messages) * gbs / load, part, positions)

    def _collective(self, point: DataPoint) -> Iterator[Capacity]:
        """Yield the limits by what leaves each rank, each group that NVLinks join, and all ranks together."""
        members, row = point.members, point.operation.collective
        ranks, factor, traffic = len(members), row.busbw.of(len(members)), row.traffic
        root = members[self._root] if self._root < ranks else members[0]
        uneven = point.blocks if point.skew else None
        islands = chained((member, *self._joined(member, members)) for member in members)  # by NVLinks
        inner = [tuple(sorted(island)) for island in islands if 1 < len(island) < ranks]
        borders: dict[tuple[int, ...], float] = {}
        for inside in [*((member,) for member in members), *inner]:
            border = self._border(inside, [member for member in members if member not in inside])
            borders[inside] = border
            if uneven:
                least = across(uneven, tuple(map(members.index, inside))) / point.size_bytes
            else:
                least = traffic.across(len(inside), ranks, root in inside)
            if least > 0:  # a rank that only keeps its own blocks sends nothing
                yield Capacity(border * factor / least, self._part(inside), inside)
        if not (self._in_switch and traffic.in_switch and all(map(self.switched, members))):
            moved = leaving(uneven) / point.size_bytes if uneven else traffic.sent(ranks)
            if moved > 0:
                sent = sum(borders[member,] for member in members) * factor / moved
                yield Capacity(sent, self._part(members), members)
        if traffic.neighbors:  # over PCIe borders limit messages to the next rank
            hops = zip(members, (*members[1:], members[0]), strict=True)
            yield from (Capacity(self._gbs(*hop), Bottleneck.LINK, hop) for hop in hops if self.over_nvlink(*hop))

    def _part(self, members: Sequence[int]) -> Bottleneck:
        return Bottleneck.PORT if any(self._ports[member] for member in members) else Bottleneck.SLOT

    def _border(self, inside: Sequence[int], outside: Sequence[int]) -> float:
        """Return the most that leaves some devices for others: over NVLinks, and over PCIe if some have no NVLinks.

        NCCL may send each part of a message over a different path, so both count.
        """
        total = 0.0
        for position in inside:
            total += self._reach(position, outside)
            if len(self._joined(position, outside)) < len(outside):
                total += self._slot(position)
        return total


_hardware = lru_cache(maxsize=8)(Hardware)  # a run is looked at again and again while it grows


def hardware(run: Run, hidden: Iterable[frozenset[int]] = ()) -> Hardware:
    """Return the capacities of a run's devices and paths, of which `hidden` pairs have NVLinks."""
    return _hardware(run.devices, run.paths, run.backend, run.settings.root, nvls(run), frozenset(hidden))


# Impossible rates: batches that exceed the capacity of the hardware.
#
# A rate above a limit means that the timing is wrong, or what the driver reports about the links. If no limit is known
# (`Hardware.of` is None), nothing is judged.

# Healthy copies reach 0.88 (H200, NVSwitch) to 0.97 (V100) of theory.
MARGIN = 1.02
# A PCIe path with an unreported slot: generation 6 ×16 is 64 GT/s × 16 × 236/256 / 8 = 118 GB/s [PCIe 6.0 base spec].
_FASTEST_PCIE_GBS = 118.0
# From this size on a copy shows whether a pair uses PCIe: it comes within 5% of its plateau [4 × H200].
_SHOWS_BANDWIDTH = 16 * 2**20
_BY_ENGINE = (Operation.CE_WRITE, Operation.CE_READ)
_BY_KERNEL = (Operation.SM_WRITE, Operation.SM_READ)


def most_over_pcie(limit_gbs: float | None) -> float:
    """Return the most that PCIe with this limit may show, GB/s; None: no slot reports one.

    What is faster than PCIe by more than 5% takes NVLinks that no label shows.
    """
    return HIDDEN * (limit_gbs or _FASTEST_PCIE_GBS)


@dataclass(frozen=True, slots=True)
class Impossible:
    """A data point with batches that beat its limit: how many of how many, and the fastest one's rate, GB/s.

    A launch loop counts as a batch.
    """

    point: DataPoint
    capacity: Capacity
    rate_gbs: float
    batches: int
    of: int


# What the last runs were found to hold. Every ranking of a page asks the same of the same run, some dozens of times.
_recent: deque[tuple[object, tuple[Impossible, ...]]] = deque(maxlen=4)


def impossible(run: Run) -> list[Impossible]:
    """Return the data points of a run that hold impossible batches, those furthest beyond their limit first."""
    known = _decisive(run)
    for index, (key, answer) in enumerate(_recent):
        if key == known:
            _recent[index] = known, answer  # of the same objects, which are compared at once: one may be read again
            return list(answer)
    check = Check(run)
    checked = (check.beaten(measurement) for measurement in run.measurements)
    answer = tuple(
        sorted(
            (excess for excess in checked if excess is not None),
            key=lambda excess: (
                -excess.rate_gbs / excess.capacity.gbs,
                str(excess.point.work),
                excess.point.members,
                excess.point.size_bytes,
            ),
        )
    )
    _recent.append((known, answer))
    return list(answer)


def _decisive(run: Run) -> object:
    """Return all of a run that decides what is impossible in it, as it is now: runs grow, and their parts do not."""
    samples = [part for measurement in run.measurements for part in (measurement.point, *measurement.samples)]
    return run.backend, run.devices, run.paths, run.settings.root, nvls(run), samples


def by_point(run: Run) -> dict[DataPoint, Impossible]:
    """Return the same by data point."""
    return {excess.point: excess for excess in impossible(run)}


def marked(run: Run) -> bool:
    """Set the marks of all samples to what the whole run shows, and return whether there are any."""
    check = Check(run)
    for measurement in run.measurements:
        measurement.samples[:] = [check.marked(measurement.point, sample) for sample in measurement.samples]
    return any(sample.marks for measurement in run.measurements for sample in measurement.samples)


class Check:
    """The limits of a run, as its labels say and as its copies show.

    A pair over PCIe whose copies show more has NVLinks that no label shows. One without large copies may have: what
    beats PCIe there by far is judged by the most that a GPU's NVLinks carry.
    """

    def __init__(self, run: Run) -> None:
        self.labelled = hardware(run)
        pairs = [frozenset(path.devices) for path in run.paths]
        over_pcie = [pair for pair in pairs if not self.labelled.over_nvlink(*sorted(pair))]
        shown = _shown(run)
        most = {pair: most_over_pcie(self.labelled.link(*sorted(pair))) for pair in over_pcie}
        kept = {pair for pair in over_pcie if pair in shown and shown[pair] <= most[pair]}
        self.hidden = frozenset(pair for pair in over_pcie if pair in shown) - kept
        self._beyond = hardware(run, [pair for pair in over_pcie if pair not in kept])
        self._open = {pair for pair in over_pcie if pair not in kept}

    def limit(self, point: DataPoint, rate: float) -> Capacity | None:
        """Return what a data point's rate in GB/s is judged by; None if it is not known."""
        limit = self.labelled.of(point)
        if limit is not None and rate <= MARGIN * limit.gbs:
            return limit
        elsewhere = point.variant.host_memory or point.variant is Variant.STAGED or point.operation is Operation.CHASE
        pairs = set() if elsewhere else {frozenset(pair) for pair in combinations(point.members, 2)}
        shown = bool(pairs & self.hidden)  # then a collective, slower than copies, may use the same links
        if shown or (pairs & self._open and rate > most_over_pcie(limit.gbs if limit else None)):
            return self._beyond.of(point)
        return limit

    def flag(self, point: DataPoint, seconds: float) -> Mark | None:
        """Return what a batch of this time per iteration is marked with, None if nothing is."""
        rate = rate_gbs(point, seconds)
        limit = self.limit(point, rate)
        if limit is None or rate <= MARGIN * limit.gbs:
            return None
        return Mark(MarkKind.IMPOSSIBLE, limit.devices, rate, limit.gbs)

    def marked(self, point: DataPoint, sample: Sample) -> Sample:
        """Return the sample with its marks: one flag, of its fastest batch."""
        flag = self.flag(point, min(_times(sample)))
        marks = () if flag is None else (flag,)
        return sample if sample.marks == marks else replace(sample, marks=marks)

    def fastest(self, measurement: Measurement) -> float:
        """Return the rate of a data point's fastest batch, GB/s; 0.0 without any."""
        batches = [seconds for sample in measurement.samples for seconds in _times(sample)]
        return rate_gbs(measurement.point, min(batches)) if batches else 0.0

    def shows_hidden(self, measurement: Measurement) -> bool:
        """Return whether a data point beats what its labels allow and only NVLinks that none of them shows carry it."""
        rate, labelled = self.fastest(measurement), self.labelled.of(measurement.point)
        return labelled is not None and rate > MARGIN * labelled.gbs and self.beaten(measurement) is None

    def beaten(self, measurement: Measurement) -> Impossible | None:
        """Return what is impossible in a data point, None if nothing is."""
        batches = [seconds for sample in measurement.samples for seconds in _times(sample)]
        labelled = self.labelled.of(measurement.point)
        if labelled and (not batches or rate_gbs(measurement.point, min(batches)) <= MARGIN * labelled.gbs):
            return None  # as for nearly all data points; every ranking asks of every one
        count = sum(self.flag(measurement.point, seconds) is not None for seconds in batches)
        rate = rate_gbs(measurement.point, min(batches)) if count else 0.0
        limit = self.limit(measurement.point, rate) if count else None
        return None if limit is None else Impossible(measurement.point, limit, rate, count, len(batches))


def _times(sample: Sample) -> tuple[float, ...]:
    """Return all times of a sample: its batches', and the launch loop's."""
    return sample.seconds if sample.launch_seconds is None else (*sample.seconds, sample.launch_seconds)


def _shown(run: Run) -> dict[frozenset[int], float]:
    """Return what each pair's copies carry, GB/s: by the copy engines where they were timed, else by kernels."""
    by_engine, by_kernel = dict[frozenset[int], float](), dict[frozenset[int], float]()
    for measurement in run.measured():
        point = measurement.point
        if point.size_bytes < _SHOWS_BANDWIDTH or point.operation not in (*_BY_ENGINE, *_BY_KERNEL):
            continue
        kind = by_engine if point.operation in _BY_ENGINE else by_kernel
        middle = rate_gbs(point, median(trial_seconds(measurement)))
        kind[frozenset(point.members)] = max(kind.get(frozenset(point.members), 0.0), middle)
    return by_kernel | by_engine
