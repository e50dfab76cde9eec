"""Which shared element explains slow links: by elimination on a model of the machine (docs/method/verdicts.md 6).

A link crosses elements: its GPUs' ports or slots, its own lanes, over PCIe also uplinks of switches, root complexes,
the link between sockets. An element with a capacity slows what crosses it to that capacity, and nothing else.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from itertools import chain, combinations, compress, permutations
from statistics import fmean, median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collbench.judge.diagnose.readings import COPY_BYTES, STAGED, Facts, Reading
from collbench.judge.diagnose.verdict import Cause, Link, both_ways, directed_links
from collbench.judge.physics import most_over_pcie
from collbench.machine.labels import chained, is_nvlink
from collbench.model.operations import Operation, Variant
from collbench.model.run import Run, tags
from collbench.model.units import STAGED_FASTER, grouped

Values = NDArray[np.float64]
STAGED_GAP = math.log(STAGED_FASTER)
# Copies to the memory of another socket reach two thirds of the rate of those to the own one [nvlink-pairs-2x2].
REMOTE_GAP = -math.log(0.6)
OUT_OF_GPU = (Operation.D2H_CE, Operation.D2H_SM)
# Links of one kind differ by so much without a fault, and copies to host memory by the socket on which it lies.
_UNLIKE, _HOSTS_UNLIKE = 0.015, 0.05
# A residual counts at most so many σ: what no element explains decides for none.
_MAX_SIGMA = 7.0
_SAME_SIGMA = 3.0  # rates that differ by more σ are not the same
_PROMISING = 60  # elements that explain most alone are tried in pairs
# A difference of BIC below this tells two explanations apart no better than 20 to 1 [Kass and Raftery 1995].
_UNDECIDED = 6.0
_PAIRS_OF_FOUR = 6
# The labels of what lies below one switch or root port, one upstream switch, one host bridge.
_BELOW = (("PIX",), ("PIX", "PXB"), ("PIX", "PXB", "PHB"))
_IN_SOCKET = ("PIX", "PXB", "PHB", "NODE")


class Part(StrEnum):
    """A part of a machine that links cross; one that slows them is the name of a cause."""

    GPU = "gpu"
    ONE_DIRECTION = "gpu_direction"
    UPLINK = "uplink"  # of the switch above the devices
    ROOT = "root"  # the root complex above them
    FORWARDING = "forwarding"  # between GPUs by root complexes, not to host memory
    FORWARDING_ROOT = "forwarding_root"  # by one of them
    SOCKETS = "sockets"  # the link between sockets
    PATH = "path"  # what two devices share with no other
    EITHER = "either"  # two explanations that fit equally well


# How a part of some devices is called, and what may be wrong with it.
_CALLED = {
    Part.GPU: ("{}", " itself: its slot, its NVLinks or its clocks, because all of its links are slow"),
    Part.ONE_DIRECTION: ("{}", " itself: its copy engines, or its ports in one direction"),
    Part.UPLINK: ("the uplink of the PCIe switch above {}", " (a lane, a riser, or a lower generation)"),
    Part.ROOT: ("the PCIe root complex above {}", ""),
    Part.FORWARDING: (
        "the root complexes between {}",
        ", which forward copies between GPUs slowly (ACS, an IOMMU, or the CPU's own limit)",
    ),
    Part.FORWARDING_ROOT: (
        "the PCIe root complex above {}",
        ", which forwards copies between GPUs slowly (ACS, an IOMMU, or the CPU's own limit)",
    ),
    Part.SOCKETS: ("the link between the sockets of {}", ""),
    Part.PATH: ("the path between {}", ""),
}


_OF_ROOT = (Part.ROOT, Part.FORWARDING, Part.FORWARDING_ROOT)


def cause_of(run: Run, part: Part, devices: tuple[int, ...]) -> Cause:
    """Return a part of a machine as the cause of slow links."""
    called, wrong = _CALLED[part]
    name = called.format(tags(devices, run.devices))
    return Cause(part, name + wrong, devices=devices, part=name)


@dataclass(frozen=True, slots=True)
class Element:
    """A part that links share: these cross it, and copies between host memory and GPUs, `out` of these or `into` them.

    `devices` are those below or beside it.
    """

    part: Part
    devices: tuple[int, ...]
    links: frozenset[Link]
    out: frozenset[int] = frozenset()
    into: frozenset[int] = frozenset()
    either: tuple[tuple[Element, ...], ...] = ()

    @property
    def of_gpu(self) -> bool:
        """Whether it is one GPU, or its ports in one direction."""
        return self.part in (Part.GPU, Part.ONE_DIRECTION)

    @property
    def shared(self) -> bool:
        """Whether several pairs cross it."""
        return len({frozenset(link) for link in self.links}) > 1

    def cause(self, run: Run) -> Cause:
        """Return it as a likely cause."""
        if not self.either:
            return cause_of(run, self.part, self.devices)
        one, other = (
            " and ".join(dict.fromkeys(_CALLED[part.part][0].format(tags(part.devices, run.devices)) for part in parts))
            for parts in self.either
        )
        causes = tuple(tuple(part.cause(run) for part in parts) for parts in self.either)
        either = f"either {one}, or {other}"
        return Cause(self.part, f"{either}: both explain these links", either=causes, part=either)

    def slows(self, host: Reading) -> bool:
        """Return whether a copy between a GPU and host memory crosses it."""
        near = self.part is Part.SOCKETS and _near(host)
        return not near and host.members[0] in (self.out if host.work.operation in OUT_OF_GPU else self.into)

    def crossed_by(self, seen: _Seen) -> bool:
        """Return whether what was timed crosses it."""
        if seen.kind == _PLAIN:
            return not self.links.isdisjoint(seen.links)
        if seen.near and self.part is Part.SOCKETS:
            return False
        return seen.sender in self.out or seen.receiver in self.into


_PLAIN, _HOST, _STAGED = range(3)
_Crosses = tuple[bool, ...]  # which of what was timed crosses an element


class _Seen(NamedTuple):
    """How far a link's copies, or those with host memory, lie `below` (≤ 0, a log) what is `typical` of their kind.

    `near`: with memory that was bound to the nearest node.
    """

    kind: int
    links: frozenset[Link]
    sender: int | None
    receiver: int | None
    below: float
    typical: float
    error: float
    near: bool = False


def ends(facts: Facts, members: Sequence[int]) -> tuple[str, ...]:
    """Return the products of devices, with their slots: only links between the same ones are compared."""
    devices = [facts.run.devices[member] for member in members] if not facts.on_cores else []
    return tuple(sorted(str((device.name, device.pcie_generation, device.pcie_width)) for device in devices))


@lru_cache(maxsize=1 << 10)  # each rule asks of each link
def likeness(facts: Facts, members: Sequence[int]) -> tuple[object, ...]:
    """Return what links must have in common to be compared: ends, limit, peer access, and the NUMA nodes of many.

    Without peer access copies go through host memory, which a link's label does not tell of. A link without a label is
    like none but its opposite.
    """
    if len(members) != 2:
        return (ends(facts, members),)
    itself = frozenset(() if facts.labelled(members) else members)
    return ends(facts, members), facts.limit(members), facts.has_peers(members), itself, _nodes_apart(facts, members)


def _nodes_apart(facts: Facts, members: Sequence[int]) -> frozenset[int | None]:
    """Return the NUMA nodes of a pair across nodes if GPUs are at more than two: those of one socket are nearer.

    Four nodes may be two sockets with two each, or a ring of four sockets: nothing in a run tells.
    """
    nodes = [device.numa_node for device in facts.run.devices]
    path = facts.paths.get(frozenset(members))
    apart = len({*nodes}) > 2 and path is not None and path.in_tree == "SYS"
    return frozenset(nodes[member] for member in members) if apart and not facts.over_nvlink(members) else frozenset()


def of_likeness(facts: Facts, readings: Iterable[Reading]) -> list[list[Reading]]:
    """Return the readings that should be equal, together.

    Machines are symmetric: of pairs between four NUMA nodes or more no single one is slower than all others. If one is,
    it belongs to the next slowest.
    """
    groups = grouped((likeness(facts, reading.members), reading) for reading in readings)
    apart = ((like, some) for like, some in groups.items() if _nodes_apart(facts, some[0].members))
    for alike in grouped((like[:-1], some) for like, some in apart).values():
        slowest, *others = sorted(alike, key=lambda some: max(reading.middle for reading in some))
        if len(alike) >= _PAIRS_OF_FOUR and len({frozenset(reading.members) for reading in slowest}) == 1:
            others[0].extend(slowest)
            slowest.clear()
    return [some for some in groups.values() if some]


@lru_cache(maxsize=8)  # most rules ask
def blamed(facts: Facts, *, over_nvlink: bool, collective: bool) -> tuple[Element, ...]:
    """Return the elements that explain what is slow, by NVLinks or by PCIe; the sure, then the slowest first."""
    seen = list(_seen(facts, over_nvlink=over_nvlink, collective=collective))
    distinct = _distinct(_candidates(facts, over_nvlink=over_nvlink), seen)
    if not distinct:
        return ()
    candidates = list(distinct.values())
    below, error = (np.array([getattr(reading, name) for reading in seen]) for name in ("below", "error"))
    predicted = np.array([_predicted(crosses, seen, collective=collective) for crosses, _ in distinct])
    cost = 2 * math.log(len(seen)) + 2 * math.log(len(candidates))

    def misfits(of: Values) -> Values:
        squares: Values = np.minimum(((below - of) / error) ** 2, _MAX_SIGMA**2).sum(axis=-1)
        return squares

    typical, plain = (
        np.array([reading.typical for reading in seen]),
        np.array([reading.kind == _PLAIN for reading in seen]),
    )
    slowed_to = np.where(plain & (predicted < 0), typical + predicted, np.inf).min(axis=1)
    shared = [place for place, element in enumerate(candidates) if element.part is not Part.PATH]
    found = _explanations(predicted, shared, cost, misfits)
    if len(found[0]) > 2:  # GPUs may explain as much: then it is all those that may be slow, one more than is needed
        gpus = _slow_gpus(candidates, predicted, error, misfits)
        fits = [float(misfits(_explained(predicted, some))) for some in (gpus, found[0])]
        found = [gpus] if fits[0] < fits[1] + _UNDECIDED and len(gpus) <= len(found[0]) + 1 else found
    return tuple(_agreed([[candidates[place] for place in sorted(some, key=slowed_to.item)] for some in found]))


def _explanations(
    predicted: Values, shared: Sequence[int], cost: float, misfits: Callable[[Values], Values]
) -> list[list[int]]:
    """Return the elements that explain what is slow, and all as many that do so equally well; the best first.

    One more is added as long as that explains more than it costs, from the third on only those that several links
    `shared`: what is slow alone needs no search. Each with each other one, not the best with others: two faults may
    hide behind a third that has none.
    """
    levels = [{frozenset[int](): float(misfits(np.zeros(predicted.shape[1])))}]
    least = [min(levels[0].values())]
    while len(levels) < 3 or least[-1] + cost < least[-2]:
        places = list(range(len(predicted)) if len(levels) < 3 else shared)
        wider = dict[frozenset[int], float]()
        for some in sorted(levels[-1], key=levels[-1].__getitem__)[:_PROMISING]:
            explained = np.minimum(_explained(predicted, some), predicted[places])
            wider |= zip((some | {place} for place in places), misfits(explained).tolist(), strict=True)
        levels.append(wider)
        least.append(min(wider.values(), default=math.inf))
    number = min(range(len(levels)), key=lambda number: least[number] + number * cost)
    found = {some: fit for some, fit in levels[number].items() if fit < least[number] + _UNDECIDED}
    if number > 2:  # else those that no other link crosses were tried with each other one
        alone = sorted({*range(len(predicted))}.difference(shared))
        whole = dict.fromkeys(_with_own(some, alone, predicted, cost, misfits) for some in found)
        scores = {some: float(misfits(_explained(predicted, some))) + len(some) * cost for some in whole}
        limit = min(scores.values()) + _UNDECIDED
        found = {some: score for some, score in scores.items() if score < limit}
    return [sorted(some) for some in sorted(found, key=found.__getitem__)]


def _explained(predicted: Values, some: Collection[int]) -> Values:
    """Return how far below its typical rate some elements together leave each."""
    least: Values = predicted[[*some]].min(axis=0, initial=0.0)
    return least


def _with_own(
    some: frozenset[int],
    alone: Sequence[int],
    predicted: Values,
    cost: float,
    misfits: Callable[[Values], Values],
) -> frozenset[int]:
    """Return elements with those that no other link crosses, as long as these explain more of the rest than they cost.

    Two links that are slow alone are no two ways to explain the same.
    """
    while len(some) < len(predicted) and alone:
        explained = _explained(predicted, some)
        fits = misfits(np.minimum(explained, predicted[alone]))
        if fits.min() + cost >= misfits(explained):
            break
        some |= {alone[int(fits.argmin())]}
    return some


def _slow_gpus(
    candidates: Sequence[Element], predicted: Values, error: Values, misfits: Callable[[Values], Values]
) -> list[int]:
    """Return all GPUs that may be slow at once: each slows something, and nothing that crosses one contradicts it.

    Where GPUs are slow together, a sound one among them may have no fast link; its copies with host memory show it.
    """
    gpus = [place for place, element in enumerate(candidates) if element.part is Part.GPU]
    gpus = [place for place in gpus if (predicted[place] < -2 * error).any()]
    while len(gpus) > 1:
        without = [[other for other in gpus if other != place] for place in gpus]
        left = [float(misfits(_explained(predicted, some))) for some in without]
        if min(left) > misfits(_explained(predicted, gpus)) - _UNDECIDED:
            break
        gpus = without[left.index(min(left))]
    return gpus


def _agreed(alike: Sequence[Sequence[Element]]) -> Iterator[Element]:
    """Yield what all explanations that fit equally well blame, and one element for each part on which they differ.

    If links' own lanes explain all, too, it is these alone: what shares them slows nothing else for certain.
    """
    own = next((elements for elements in alike if all(element.part is Part.PATH for element in elements)), None)
    if own is not None:
        yield from own
        return
    # Those without a link's own lanes first, then GPUs, which outnumber uplinks, as these do root complexes.
    first, *others = sorted(
        alike,
        key=lambda elements: (
            sum(element.part is Part.PATH for element in elements),
            sum(not element.of_gpu for element in elements),
            sum(element.part in _OF_ROOT for element in elements),
        ),
    )
    called = {_called(element): element for element in (*chain(*others), *first)}
    ours, *theirs = (frozenset(map(_called, elements)) for elements in (first, *others))
    # What the others do without and have instead, but for two such changes at once: these are of different parts.
    changes = dict.fromkeys((ours - other, other - ours) for other in theirs if ours - other)
    single = [
        (gone, new)
        for gone, new in changes
        if not any(
            (gone - some, new - instead) in changes for some, instead in changes if some < gone and instead < new
        )
    ]
    together = ((one[0] | other[0], one[1] | other[1]) for one, other in combinations(single, 2))
    parts = chained([*(gone for gone, _ in single), *(gone for gone, new in together if (gone, new) not in changes)])
    sure = [element for element in first if not any(_called(element) in part for part in parts)]
    yield from sure
    open_ways: list[tuple[list[Element], list[Element]]] = []
    for part in parts:
        ways = [part, *(part - gone | new for gone, new in changes if gone <= part)]
        # Nothing is sure that another explanation does without, and two of many ways to see several say too little.
        if all(ways) and (len(part) == 1 or len(first) < 3):
            one, other = ([called[name] for name in way] for way in ways[:2])
            open_ways.append((one, other))
    certain = [_crossing(sure), *(_crossing(one) & _crossing(other) for one, other in open_ways)]
    for place, (one, other) in enumerate(open_ways, 1):
        elsewhere = frozenset[Link]().union(*certain[:place], *certain[place + 1 :])
        yield _either(one, other, elsewhere - certain[place])


def _crossing(elements: Iterable[Element]) -> frozenset[Link]:
    return frozenset[Link]().union(*(element.links for element in elements))


def _called(element: Element) -> object:
    return element.devices if element.of_gpu else (element.part, element.devices)


def _either(one: Sequence[Element], other: Sequence[Element], elsewhere: frozenset[Link]) -> Element:
    """Return one way to explain or the other as an element: what crosses them, but for links explained elsewhere.

    Copies with host memory tell of it only if they cross both.
    """

    def hosts(name: str) -> frozenset[int]:
        first, second = (frozenset[int]().union(*(getattr(part, name) for part in way)) for way in (one, other))
        return first & second

    devices = tuple(sorted({device for part in (*one, *other) for device in part.devices}))
    either = tuple(
        tuple(sorted(way, key=lambda part: (part.devices, part.part is Part.PATH, part.part))) for way in (one, other)
    )
    return Element(Part.EITHER, devices, _crossing([*one, *other]) - elsewhere, hosts("out"), hosts("into"), either)


def _distinct(candidates: Iterable[Element], seen: Sequence[_Seen]) -> dict[tuple[_Crosses, bool], Element]:
    """Return the candidates that something slow crosses; of those that the same things cross the narrowest, first.

    The link to the socket on which memory may lie stays beside the slot of a GPU that is alone on its own.
    """
    found: dict[tuple[_Crosses, bool], Element] = {}
    slow = [*map(_slow, seen)]
    for element in candidates:
        crosses = tuple(map(element.crossed_by, seen))
        if any(compress(slow, crosses)):
            to_memory = element.part is Part.SOCKETS and bool(element.out or element.into)
            found.setdefault((crosses, to_memory), element)
    return found


def _slow(seen: _Seen) -> bool:
    return seen.below < -2 * seen.error


def _predicted(crosses: _Crosses, seen: Sequence[_Seen], *, collective: bool) -> list[float]:
    """Return how far below its typical rate an element leaves each, if its capacity is what slow ones reach."""
    crossing = grouped((reading.kind, reading) for reading in compress(seen, crosses))
    capacity = {
        kind: _capacity(ones, collective=collective) for kind, ones in crossing.items() if any(map(_slow, ones))
    }
    if _PLAIN in capacity and _HOST in capacity:
        carried = max(capacity[_PLAIN], capacity[_HOST]) - STAGED_GAP
        capacity |= {kind: max(capacity[kind], carried) for kind in (_PLAIN, _HOST)}
    direct = min((capacity[kind] for kind in (_PLAIN, _HOST) if kind in capacity), default=math.inf)
    limits = {kind: capacity.get(kind, direct if kind != _STAGED else math.inf) for kind in range(3)}
    return [
        min(0.0, limits[reading.kind] - reading.typical) if through else 0.0
        for reading, through in zip(seen, crosses, strict=True)
    ]


def _capacity(crossing: Sequence[_Seen], *, collective: bool) -> float:
    """Return the log rate that limits what crosses an element, of which some is slow.

    It carries the fastest that crosses it: what is slower than that is slow by something else, too. Of collectives the
    median of slow ones counts, as NCCL reaches another share on each label.
    """
    rates = [reading.typical + reading.below for reading in crossing]
    slow = [rate for rate, reading in zip(rates, crossing, strict=True) if _slow(reading)]
    if collective:
        return median(slow)
    least = max(rate - _SAME_SIGMA * reading.error for rate, reading in zip(rates, crossing, strict=True))
    near = [rate for rate in slow if rate >= least]
    return median(near) if near else max(rates)


# What was timed, against what is typical of its kind.


def _seen(facts: Facts, *, over_nvlink: bool, collective: bool) -> Iterator[_Seen]:
    staged = {} if over_nvlink or collective else facts.readings.of(STAGED, COPY_BYTES)
    groups: list[tuple[int, list[Reading]]] = []
    for work in facts.readings.works(collective=collective):
        readings = facts.readings.of(work).values()
        groups.append((_PLAIN, [reading for reading in readings if _tells(facts, reading, over_nvlink=over_nvlink)]))
    groups.append((_STAGED, [*staged.values()]))
    if not over_nvlink and not collective:
        groups += [(_HOST, hosts) for hosts in with_host_memory(facts)]
    below = grouped(
        ((kind, _crossed(kind, reading), _near(reading)), (reading.middle, typical, reading.error, unlike))
        for kind, group in groups
        for reading, typical, unlike in _typical(facts, group, staged if kind == _PLAIN else {})
    )
    for (kind, crossed, near), values in below.items():
        middles, typicals, errors, unlikes = zip(*values, strict=True)
        unlike = max(_UNLIKE if kind == _PLAIN else _HOSTS_UNLIKE, *unlikes)
        error = math.hypot(math.hypot(*errors) / len(errors), unlike)
        typical = fmean(typicals)
        yield _Seen(kind, *crossed, min(0.0, fmean(middles) - typical), typical, error, near)


def _near(reading: Reading) -> bool:
    return reading.work.numa_node is not None


_Crossed = tuple[frozenset[Link], int | None, int | None]


def _crossed(kind: int, reading: Reading) -> _Crossed:
    """Return the links that a reading crosses, or the GPUs that send to host memory and receive from it."""
    first, last = reading.members[0], reading.members[-1]
    if kind == _PLAIN:
        return frozenset(directed_links(reading.work, reading.members)), None, None
    if kind == _STAGED:
        return frozenset(), first, last
    return (frozenset(), first, None) if reading.work.operation in OUT_OF_GPU else (frozenset(), None, first)


def with_host_memory(facts: Facts) -> Iterator[list[Reading]]:
    """Yield the copies between GPUs and host memory, by operation: of each GPU the fastest, with the nearest memory."""
    best: dict[Operation, dict[int, Reading]] = defaultdict(dict)
    for gpu in range(len(facts.run.devices)):
        for reading in sorted(facts.readings.host(gpu), key=lambda reading: reading.middle):
            best[reading.work.operation][gpu] = reading
    yield from (list(of_gpus.values()) for of_gpus in best.values())


def across_nodes(facts: Facts) -> dict[tuple[int, int], list[tuple[Reading, Reading]]]:
    """Return the copies with memory bound to another NUMA node than the GPU's own, by the nodes from and to which.

    Beside each stands the same GPU's with memory of its own node, if there is one.
    """
    own = [device.numa_node for device in facts.run.devices]
    hosts = {
        (gpu, reading.work.operation, reading.work.numa_node): reading
        for gpu in range(len(own))
        for reading in facts.readings.host(gpu)
    }
    across = defaultdict[tuple[int, int], list[tuple[Reading, Reading]]](list)
    for (gpu, operation, node), far in hosts.items():
        home = own[gpu]
        near = hosts.get((gpu, operation, home))
        if near is not None and home is not None and node is not None and node != home:
            across[(home, node) if operation in OUT_OF_GPU else (node, home)].append((far, near))
    return across


def sockets_of(facts: Facts, reading: Reading) -> tuple[int | None, ...]:
    """Return the sockets of its GPUs, if it is unknown on which of several the memory lies through which they copy.

    Where a GPU's socket is unknown, as in a virtual machine, each may have one of its own.
    """
    members, work = reading.members, reading.work
    by_host = work.variant in (Variant.HOST, Variant.STAGED) or (work.operation.is_collective and facts.nccl_by_host)
    by_host |= len(members) == 2 and not is_nvlink(reading.label) and not facts.has_peers(members)
    sockets = [device.numa_node for device in facts.run.devices]
    if work.variant is Variant.HOST and work.numa_node is None and None in sockets:
        return (~members[0],)
    if not by_host or work.numa_node is not None or len({*sockets}) < 2:
        return ()
    return tuple(sorted((sockets[member] for member in members), key=str))


def _tells(facts: Facts, reading: Reading, *, over_nvlink: bool) -> bool:
    """Return whether a reading on a pair shows its label's links, undisturbed."""
    if len(reading.members) != 2 or is_nvlink(reading.label) is not over_nvlink:
        return False
    isolated = reading.isolated or reading.confirmed
    return over_nvlink or (isolated and reading.gbs <= most_over_pcie(facts.limit(reading.members)))


def _typical(
    facts: Facts, group: Sequence[Reading], staged: Mapping[tuple[int, ...], Reading]
) -> Iterator[tuple[Reading, float, float]]:
    """Yield a work's readings, each with what the best of its label and products reach, or staging if that is more.

    The last is its error as what is typical: of a pair that none is like, the same both ways, only copies with host
    memory tell what its GPUs carry. Copies with memory of an unknown socket are compared with those of GPUs on the same
    one: others may be nearer to it.
    """
    levels = [
        (like, some, median(one.middle for one in facts.readings.tied(some))) for like, some in _equal(facts, group)
    ]
    best = {like: max(alike) for like, alike in grouped((like, level) for like, _, level in levels).items()}
    for like, readings, level in levels:
        with_memory = any(len(reading.members) == 1 for reading in readings)
        typical = max(level, best[like] - REMOTE_GAP) if with_memory else level
        pairs = {frozenset(reading.members) for reading in readings}
        alone = not with_memory and len(pairs) == 1 and len(facts.readings.tied(readings)) == len(readings)
        for reading in readings:
            through = staged.get(reading.members)
            faster = through is not None and through.middle - max(typical, reading.middle) > STAGED_GAP
            if through is not None and faster:
                yield reading, through.middle, 0.0
            else:
                yield reading, typical, STAGED_GAP if alone else 0.0


def _equal(facts: Facts, group: Sequence[Reading]) -> Iterator[tuple[object, list[Reading]]]:
    """Yield a work's readings that should be equal, with what those on other sockets have in common with them."""
    if all(reading.work.variant is Variant.PLAIN for reading in group):
        of_label = grouped(((reading.label, sockets_of(facts, reading)), reading) for reading in group)
        yield from (((), some) for readings in of_label.values() for some in of_likeness(facts, readings))
        return
    alike: dict[tuple[object, object], list[Reading]] = defaultdict(list)
    for reading in group:
        through_host = reading.work.variant is Variant.STAGED
        apart = _nodes_apart(facts, reading.members)
        like = (ends(facts, reading.members), apart) if through_host else likeness(facts, reading.members)
        path = facts.paths.get(frozenset(reading.members)) if through_host else None
        label = path.in_tree if path else reading.label
        alike[(like, label), sockets_of(facts, reading)].append(reading)
    yield from ((like, some) for (like, _), some in alike.items())


# What may be to blame, narrowest first.


def _candidates(facts: Facts, *, over_nvlink: bool) -> Iterator[Element]:
    every = range(len(facts.run.devices))
    links = frozenset(link for link in permutations(every, 2) if facts.over_nvlink(link) is over_nvlink)
    for low, high in combinations(every, 2):
        if (low, high) in links:
            pair = (low, high)
            yield Element(Part.PATH, pair, both_ways([pair]))
    for link in sorted(links):
        yield Element(Part.PATH, link, frozenset((link,)))
    yield from ports_of(every, links)
    if not over_nvlink and not facts.on_cores:
        yield from _of_tree(facts, links)


def ports_of(gpus: Iterable[int], links: Collection[Link]) -> Iterator[Element]:
    """Yield each GPU and its ports in each direction, with those of the links that cross them."""
    for gpu in gpus:
        sent, received = (frozenset(link for link in links if link[end] == gpu) for end in (0, 1))
        alone = frozenset((gpu,))
        yield Element(Part.GPU, (gpu,), sent | received, alone, alone)
        yield Element(Part.ONE_DIRECTION, (gpu,), sent, out=alone)
        yield Element(Part.ONE_DIRECTION, (gpu,), received, into=alone)


def _of_tree(facts: Facts, links: frozenset[Link]) -> Iterator[Element]:
    """Yield the parts of the PCIe tree that labels tell of."""
    tree = {pair: path.in_tree for pair, path in facts.paths.items()}
    inside = frozenset(link for link in links if tree.get(frozenset(link)) in ("PHB", "NODE"))
    for labels in _BELOW:
        for group in _groups(tree, labels):
            up, down = _leaving(group, links)
            devices, part = tuple(sorted(group)), Part.ROOT if "PHB" in labels else Part.UPLINK
            yield Element(part, devices, up | down, group, group)
            yield Element(part, devices, up, out=group)
            yield Element(part, devices, down, into=group)
            if part is Part.ROOT:
                yield from _forwarding(Part.FORWARDING_ROOT, group, inside, up, down)
    across = frozenset(link for link in links if tree.get(frozenset(link)) == "SYS")
    sockets = _groups(tree, _IN_SOCKET, alone=range(len(facts.run.devices)))
    for socket in sockets:
        yield from _forwarding(Part.FORWARDING, socket, inside, *_leaving(socket, across))
    yield from _between(sockets, across, by_memory=any(sockets_of(facts, reading) for reading in facts.readings.points))
    for part, crossing in ((Part.SOCKETS, across), (Part.FORWARDING, inside), (Part.FORWARDING, inside | across)):
        yield Element(part, tuple(sorted({member for link in crossing for member in link})), crossing)


def _groups(
    tree: Mapping[frozenset[int], str], labels: Collection[str], alone: Iterable[int] = ()
) -> list[frozenset[int]]:
    """Return the GPUs that paths with these labels join, and those `alone`."""
    joined = (tuple(pair) for pair, label in tree.items() if label in labels)
    return sorted((frozenset(island) for island in chained([*joined, *((gpu,) for gpu in alone)])), key=sorted)


def _leaving(group: frozenset[int], links: Iterable[Link]) -> tuple[frozenset[Link], frozenset[Link]]:
    """Return the links out of a group of GPUs, and those into it."""
    leaving = [link for link in links if not group.issuperset(link) and not group.isdisjoint(link)]
    return frozenset(link for link in leaving if link[0] in group), frozenset(
        link for link in leaving if link[1] in group
    )


def _forwarding(
    part: Part, group: frozenset[int], inside: frozenset[Link], up: frozenset[Link], down: frozenset[Link]
) -> Iterator[Element]:
    """Yield the root complex above a group of GPUs: it forwards what stays inside, and what leaves or enters, or both.

    If it forwards nothing inside, what it does is that of an uplink or of the link between sockets.
    """
    within = frozenset(link for link in inside if group.issuperset(link))
    for beyond in (frozenset[Link](), up, down, up | down) if within else ():
        yield Element(part, tuple(sorted(group)), within | beyond)


def _between(sockets: Sequence[frozenset[int]], across: frozenset[Link], *, by_memory: bool) -> Iterator[Element]:
    """Yield the links between each two sockets, both ways and one way; copies with memory of the other may cross it."""
    for first, other in permutations(sockets, 2):
        devices = tuple(sorted(first | other))
        between = frozenset((a, b) for a, b in across if a in first and b in other)
        if min(first) < min(other):
            yield Element(Part.SOCKETS, devices, both_ways(between))
        yield Element(Part.SOCKETS, devices, between)
        if by_memory:  # which lies on the other one, or on this one
            yield Element(Part.SOCKETS, devices, both_ways(between), out=first, into=first)
            yield Element(Part.SOCKETS, devices, between, out=first)
            yield Element(Part.SOCKETS, devices, between, into=other)
