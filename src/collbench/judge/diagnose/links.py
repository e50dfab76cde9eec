"""Links against each other: two ways of a pair, peer access and staging, one label, two (method/verdicts.md 5)."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations, permutations
from statistics import NormalDist, fmean, median, quantiles
from typing import NamedTuple

from collbench.judge.diagnose.blame import (
    Blame,
    blames,
    first_link,
    nccl_or_link,
    of_devices,
    on_element,
    unhealthy_devices,
    verdict_on,
)
from collbench.judge.diagnose.collectives import by_setting, nccl_path
from collbench.judge.diagnose.elements import (
    REMOTE_GAP,
    STAGED_GAP,
    Part,
    across_nodes,
    blamed,
    cause_of,
    ends,
    of_likeness,
    sockets_of,
    with_host_memory,
)
from collbench.judge.diagnose.limits import excluded_links, limits
from collbench.judge.diagnose.readings import CE, COPY_BYTES, FAR_BELOW, OUTLYING, STAGED, Facts, Reading
from collbench.judge.diagnose.verdict import (
    SLOW_LINK,
    Cause,
    Kind,
    Link,
    Severity,
    Verdict,
    both_ways,
    directed_links,
    names,
    on,
    slots,
    uplink,
)
from collbench.judge.stats import MAD_TO_SIGMA, MEDIAN_ERROR, chance_beyond
from collbench.machine.labels import UNKNOWN, chained, rank_key
from collbench.model.operations import Work
from collbench.model.run import Members
from collbench.model.units import figure, grouped

# The two ways of a pair, links of one label, and peer access against copies through host memory.

# docs/method/verdicts.md 5: 10%, as a difference of log bandwidth.
_ONE_WAY = -math.log(0.9)
# The most that copies through host memory reach of their slots' theoretical rate [nccl#814: 22 of 31.5 GB/s].
_MAX_STAGED = 0.70
# With fewer trials of healthy peers, those of other labels and works tell what noise is like.
_ENOUGH_TRIALS = 12
# docs/method/verdicts.md 5: a quarter, of copies with host memory that should be equal.
_WITH_HOST = math.log(5 / 4)
# docs/method/verdicts.md 5: copies with memory of another node reach two thirds of those with the own one, estimated.
_FAR_MEMORY = -math.log(0.4)
# Up to this many times the peers' lowest trial only ranks count; beyond, the tail of exponential noise.
_FAR_BEYOND = 3.0
_MIN_NOISE = 1e-6
# The upper quartile lies this many σ above the middle of a normal distribution.
_UPPER_QUARTILE = 0.6745


class Gap(NamedTuple):
    """How far a reading lies below what it should equal, a difference of logs, with its standard error."""

    reading: Reading
    gap: float
    error: float
    chance: float  # that noise alone makes all of its trials so low

    @property
    def normal(self) -> float:
        """What it should equal, in GB/s."""
        return math.exp(self.reading.middle + self.gap)


_NVLINK_LANES = Cause(
    "nvlink_lanes", "one direction's lanes: NVLinks of this path replay packets or run at a lower rate"
)
_PCIE_DIRECTION = Cause(
    "pcie_direction",
    "one direction of a PCIe link or switch port on this path: a riser, a lane, or the root port's forwarding",
)


def asymmetries(facts: Facts) -> Iterator[Verdict]:
    """Yield the links at least 10% slower than the opposite ones, by one kind of copy or by all together."""
    gaps: dict[Link, list[Gap]] = defaultdict(list)
    excluded = excluded_links(facts, limits(facts))
    peers, everywhere = _all_peers(facts, collective=False)
    for each in peers:
        for there in each.readings:
            a, b = there.members
            back = facts.readings.of(there.work).get((b, a))
            if back is not None and excluded.comparable(back):
                chance = _chance(there, back.middle - there.high, each.noise(there, everywhere))
                error = math.hypot(there.error, back.error)
                gaps[a, b].append(Gap(there, back.middle - there.middle, error, chance))
    slow = {link: below for link, gaps_of_link in gaps.items() if (below := _certain(facts, gaps_of_link, _ONE_WAY))}
    for blame in blames(facts, slow, gaps, rates=True, one_way=True):
        worst, works, normal = _worst(blame, slow)
        if blame.gpu is not None:
            likely = cause_of(facts.run, Part.ONE_DIRECTION, (blame.gpu,))
        else:
            likely = _NVLINK_LANES if facts.over_nvlink(min(blame.links)) else _PCIE_DIRECTION
        opposite = f"{figure(normal)} GB/s of the opposite direction"
        text = f"{_below(facts, worst, normal)} slower than the {opposite} ({works})"
        yield _slow(facts, Kind.ASYMMETRY, blame, worst, text, likely)


def outliers(facts: Facts) -> Iterator[Verdict]:
    """Yield the links slower than others of their label, by copies and by collectives: NCCL has causes of its own."""
    for collective in (False, True):
        peers, everywhere = _all_peers(facts, collective=collective)
        found = (gap for each in peers for gap in each.gaps(everywhere))
        gaps = grouped((link, gap) for gap in found for link in directed_links(gap.reading.work, gap.reading.members))
        slow = {
            link: below for link, gaps_of_link in gaps.items() if (below := _certain(facts, gaps_of_link, OUTLYING))
        }
        for blame in blames(facts, slow, gaps, rates=True, collective=collective):
            worst, works, normal = _worst(blame, slow)
            best = f"{figure(normal)} GB/s of the best {worst[0].reading.label} links"
            text = f"{_below(facts, worst, normal)} below the {best} ({works})"
            likely = _outlier_cause(facts, blame, worst[0].reading)
            yield _slow(facts, Kind.INTRA_LABEL_OUTLIER, blame, worst, text, likely)


def below_elements(facts: Facts) -> Iterator[Verdict]:
    """Yield the elements shared by links below which copies with host memory are slower than others' by a quarter.

    Labels imply no rate of a link between switches: if all links across are slow, only these copies show it. Those of
    another socket need two thirds if it is unknown on which one memory lies.
    """
    of_socket, of_all = _gaps_with_host(facts)
    gaps = {_WITH_HOST: of_socket, REMOTE_GAP: of_all}  # by the threshold
    sure = frozenset[Link]()  # what crosses a surer element is another verdict's
    # Two GPUs do not show which of them is normal.
    far = len(facts.run.devices) > 2 and any(gap.gap > least for least, some in gaps.items() for gap in some)
    for element in blamed(facts, over_nvlink=False, collective=False) if far else ():
        links, sure = element.links - sure or element.links, sure | element.links
        below = ((threshold, [gap for gap in some if element.slows(gap.reading)]) for threshold, some in gaps.items())
        ours = [gap for threshold, some in below for gap in _certain_below(facts, some, threshold)]
        if not ours:
            continue
        worst, works = max(ours, key=lambda gap: gap.gap), names(Work(gap.reading.work.operation) for gap in ours)
        blame, likely = on_element(facts, element, links), element.cause(facts.run)
        alike = [gap for gap in ours if gap.reading.work.operation is worst.reading.work.operation]
        normal = median(gap.normal for gap in alike)
        text = f"{_below(facts, alike, normal)} below the {figure(normal)} GB/s of the best PCIe links ({works})"
        yield _slow(facts, Kind.INTRA_LABEL_OUTLIER, blame, alike, text, likely)


def _gaps_with_host(facts: Facts) -> tuple[list[Gap], list[Gap]]:
    """Return how far copies with host memory lie below those that should be equal, and below those of other sockets.

    Of other sockets there are none where it is known at which one memory lies: then all should be equal.
    """
    of_socket, of_all = list[Gap](), list[Gap]()
    for hosts in with_host_memory(facts):
        by_socket = grouped((sockets_of(facts, reading), reading) for reading in hosts)
        of_socket += (gap for readings in by_socket.values() for gap in _below_peers(facts, readings))
        of_all += _below_peers(facts, hosts) if len(by_socket) > 1 else ()
    return of_socket, of_all


def _below_peers(facts: Facts, readings: Sequence[Reading]) -> Iterator[Gap]:
    return (gap for each in _peers(facts, readings) for gap in each.gaps(each.deviations))


def _certain_below(facts: Facts, gaps: Sequence[Gap], threshold: float) -> Sequence[Gap]:
    """Return the gaps below one element that exceed a threshold significantly; all of them if their mean does."""
    alone = [gap for gap in gaps if gap.gap - facts.readings.z * gap.error > threshold]
    slow = bool(gaps) and all(gap.gap > 0 for gap in gaps)
    return gaps if slow and _exceeds_on_average(facts, [*_of_operations(gaps)], threshold) else alone


def _of_operations(gaps: Iterable[Gap]) -> Iterator[Gap]:
    """Yield the mean gap of each operation: its gaps have the error of their peers in common, their own ones not."""
    for alike in grouped((gap.reading.work.operation, gap) for gap in gaps).values():
        own = math.hypot(*(gap.reading.error for gap in alike)) / len(alike)
        common = max(gap.error**2 - gap.reading.error**2 for gap in alike)
        yield alike[0]._replace(gap=fmean(gap.gap for gap in alike), error=math.sqrt(own**2 + common))


def far_memory(facts: Facts) -> Iterator[Verdict]:
    """Yield the links between NUMA nodes over which all copies reach far less than with memory of the GPU's own node.

    If all pairs across are slow, none is slower than its like; and what goes through host memory crosses there, too.
    """
    slow = {way: gaps for way, copies in across_nodes(facts).items() if (gaps := _far_gaps(facts, way, copies))}
    node_of = [device.numa_node for device in facts.run.devices]
    for ways in grouped((frozenset(way), way) for way in sorted(slow)).values():
        gaps = [gap for way in ways for gap in slow[way]]
        first, last = ways[0]
        nodes = f"from NUMA node {first} to {last}" if len(ways) == 1 else f"between NUMA nodes {first} and {last}"
        across = [link for way in ways for link in _over_pcie(facts, way)]
        devices = tuple(position for position, node in enumerate(node_of) if node in (first, last))
        normal = median(gap.normal for gap in gaps)
        works = names(Work(gap.reading.work.operation) for gap in gaps)
        text = f"{_below(facts, gaps, normal)} below the {figure(normal)} GB/s with the GPU's own node ({works})"
        crossed = ", which copies between their GPUs cross, too" if across else ""
        likely = Cause(
            Part.SOCKETS,
            f"the link {nodes} (UPI, xGMI){crossed}",
            _between_nodes(first, last),
            devices,
            part=f"the link {nodes}",
        )
        blame = Blame(frozenset(across), devices, f"copies with host memory {nodes}", reach=frozenset(across))
        yield verdict_on(facts, Kind.INTRA_LABEL_OUTLIER, blame, text, likely, [gap.reading for gap in gaps])


def _over_pcie(facts: Facts, way: tuple[int, int]) -> list[Link]:
    """Return the links from the GPUs of one NUMA node to those of another that are not NVLinks."""
    node_of = [device.numa_node for device in facts.run.devices]
    every = permutations(range(len(node_of)), 2)
    return [(a, b) for a, b in every if (node_of[a], node_of[b]) == way and not facts.over_nvlink((a, b))]


def _far_gaps(facts: Facts, way: tuple[int, int], copies: Sequence[tuple[Reading, Reading]]) -> list[Gap]:
    """Return how far copies with another node's memory lie below what is usual of the near ones, if all do by far.

    So far below, ranks tell no more than errors; and as all cross the same link, the error of their mean counts.
    """
    threshold = REMOTE_GAP if _all_far_below(facts, _over_pcie(facts, way)) else _FAR_MEMORY
    near_ones = grouped((near.work.operation, near.middle) for _, near in copies)
    usual = {operation: median(middles) for operation, middles in near_ones.items()}
    gaps = [
        Gap(far, usual[far.work.operation] - far.middle, math.hypot(far.error, near.error), 0.0) for far, near in copies
    ]
    far = _exceeds_on_average(facts, gaps, threshold) and min(gap.gap for gap in gaps) > threshold
    return gaps if far else []


def _all_far_below(facts: Facts, links: Sequence[Link]) -> bool:
    """Return whether copies by peer access on all of these links reach less than half of their theory.

    Labels imply no rate of them, so that accuses none; beside slow copies with host memory it is a second witness.
    """
    excluded, gaps = excluded_links(facts, limits(facts)), list[Gap]()
    for link in links:
        copy, limit = facts.readings.best(link), facts.limit(link)
        if copy is None or limit is None or not facts.has_peers(link) or not excluded.comparable(copy):
            return False
        gaps.append(Gap(copy, math.log(FAR_BELOW * limit) - copy.middle, copy.error, 0.0))
    return bool(gaps) and _exceeds_on_average(facts, gaps, 0.0) and min(gap.gap for gap in gaps) > 0


def staging(facts: Facts) -> Iterator[Verdict]:
    """Yield the links that are faster through host memory than by peer access."""
    excluded, direct = excluded_links(facts, limits(facts)), facts.readings.of(CE[0], COPY_BYTES)
    through = facts.readings.of(STAGED, COPY_BYTES)
    both = {link: (direct[link], through[link]) for link in direct.keys() & through.keys() if facts.has_peers(link)}
    alike = {(link[0], link[1]): pair for link, pair in both.items() if pair[0].size_bytes == pair[1].size_bytes}
    slow = [
        link
        for link, (plain, via) in alike.items()
        if excluded.comparable(plain) and facts.readings.exceeds(via, plain, STAGED_GAP)
    ]
    for blame in blames(facts, slow, alike, rates=True):
        plains, vias = zip(*(alike[link] for link in blame.links), strict=True)
        first = min(blame.links)
        only = blame.only if len(alike) > len(blame.links) else ""
        slow_only = f"{only} is slow (a riser, a switch port), or " if only else ""
        fix = "; ".join(dict.fromkeys((_REDIRECTS, _state(facts, blame))))
        if facts.over_nvlink(first):
            cause = Cause("nvlinks_idle", f"{slow_only}traffic does not use the NVLinks of this path", fix)
        else:
            detour = Cause("peer_detour", f"{slow_only}{_detour(facts, blame.links)}", fix)
            cause = detour if blame.cause is None else replace(blame.cause, fix=fix)
            slower = ", which copies through host memory cross faster" if cause.name == Part.SOCKETS else ""
            faster = "without peer access (NCCL_P2P_DISABLE=1) NCCL is faster [nccl#814]"
            cause = replace(cause, text=f"{cause.text}{slower}; {faster}")
        staged = facts.readings.span(vias)[1]
        text = f"slower by peer access than through host memory, which reaches {staged:.1f} GB/s"
        many = blame.gpu is None and not blame.only  # NCCL takes the same detour
        reach = blame.reach or (blame.links if many else frozenset())
        yield verdict_on(facts, Kind.P2P_SLOWER_THAN_STAGED, replace(blame, reach=reach), text, cause, plains)


def _detour(facts: Facts, links: Collection[Link]) -> str:
    """Return why these links, which share no part that is to blame, are slower by peer access than by host memory.

    Below one switch none crosses a root complex but by a detour, and only between sockets the link between these.
    """
    crossed = {path.in_tree for link in links if (path := facts.paths.get(frozenset(link)))}
    if crossed & {"PIX", "PXB"}:
        return "peer traffic takes a detour, usually because ACS or the IOMMU routes it through the root complex"
    sockets = " or the link between sockets" if "SYS" in crossed else ""
    return f"the root complex{sockets} carries peer traffic slowly (ACS, an IOMMU, or the CPU's own limit)"


def unstaged(facts: Facts, found: Sequence[Verdict]) -> list[Reading]:
    """Return the copies by peer access over PCIe that copies through host memory, not measured, may beat.

    A link whose theory is unknown counts only if a verdict calls it slow. None counts if another reason was seen, or if
    copies through host memory on a pair with the same label were measured both ways and are not faster than P2P.
    """
    excluded, through = excluded_links(facts, found), facts.readings.of(STAGED, COPY_BYTES)
    unhealthy = unhealthy_devices(facts)
    disturbed = unhealthy.causes.keys() | unhealthy.shared.keys()
    slow = {link for v in found if v.kind in SLOW_LINK for link in v.links}
    explained = {link for v in found if v.severity is not Severity.INFO for link in v.links | v.reach} - slow

    detours = {link for v in found if v.kind is Kind.P2P_SLOWER_THAN_STAGED for link in v.links}
    settled = {(reading.label, facts.limit(link)) for link, reading in through.items() if link[::-1] in through}
    settled -= {(reading.label, facts.limit(link)) for link, reading in through.items() if link in detours}

    def may_be_slower(link: Link, reading: Reading) -> bool:
        limit = facts.limit(link)
        if limit is None:
            return link in slow
        return facts.readings.interval(reading)[2] < _MAX_STAGED * math.exp(-STAGED_GAP) * limit

    return [
        reading
        for (a, b), reading in facts.readings.of(CE[0], COPY_BYTES).items()
        if (reading.label, facts.limit((a, b))) not in settled
        if (a, b) not in through and (a, b) not in explained and disturbed.isdisjoint((a, b))
        if facts.has_peers((a, b)) and not facts.over_nvlink((a, b)) and excluded.comparable(reading)
        if may_be_slower((a, b), reading)
    ]


def _certain(facts: Facts, gaps: Sequence[Gap], threshold: float) -> list[Gap]:
    """Return the gaps of a link that exceed a threshold significantly; all of them if their mean does.

    The noise of different works is independent, so the mean of four gaps has half of their error.
    """
    z, most = facts.readings.z, NormalDist().cdf(-facts.readings.z)
    alone = [gap for gap in gaps if gap.chance <= most and gap.gap - z * gap.error > threshold]
    together = _exceeds_on_average(facts, gaps, threshold) and all(gap.gap > 0 for gap in gaps)
    return list(gaps) if together and _of_all([gap.chance for gap in gaps]) <= most else alone


def _exceeds_on_average(facts: Facts, gaps: Sequence[Gap], threshold: float) -> bool:
    """Return whether the mean of gaps whose noise is independent exceeds a threshold significantly."""
    error = math.hypot(*(gap.error for gap in gaps)) / len(gaps)
    return fmean(gap.gap for gap in gaps) - facts.readings.z * error > threshold


def _of_all(chances: Sequence[float]) -> float:
    """Return the joint chance of independent chances this small [Fisher's method]."""
    half = -math.fsum(math.log(max(chance, 1e-12)) for chance in chances)  # half of χ² with twice as many degrees
    return math.exp(-half) * math.fsum(half**n / math.factorial(n) for n in range(len(chances)))


def _worst(blame: Blame, slow: Mapping[Link, Sequence[Gap]]) -> tuple[list[Gap], str, float]:
    """Return the gaps of the blamed links in the work and label of the widest, all works, and their normal rate.

    Of gaps that are as wide it is that of a copy engine, whose rates the page gives of the links that are well.
    """
    gaps = [gap for link in sorted(blame.links) for gap in slow[link]]
    widest = max(gap.gap for gap in gaps)
    worst = max(gaps, key=lambda gap: (gap.gap >= widest - OUTLYING, gap.reading.work in CE, gap.gap))
    alike = [gap for gap in gaps if (gap.reading.work, gap.reading.label) == (worst.reading.work, worst.reading.label)]
    return alike, names(gap.reading.work for gap in gaps), median(gap.normal for gap in alike)


def _below(facts: Facts, gaps: Sequence[Gap], normal: float) -> str:
    """Return by how much the middle of these readings, which the page shows, is below a normal rate, or the worst."""
    middle = facts.readings.span(gap.reading for gap in gaps)[1]
    of_middle, of_worst = (f"{1 - ratio:.0%}" for ratio in (middle / normal, math.exp(-max(gap.gap for gap in gaps))))
    return of_middle if of_middle == of_worst else f"up to {of_worst}"


def _readings_by_label(facts: Facts, work: Work) -> dict[str, list[Reading]]:
    """Return a work's readings on pairs that may be compared, by label."""
    excluded = excluded_links(facts, limits(facts))
    readings = (reading for members, reading in facts.readings.of(work).items() if len(members) == 2)
    return grouped((reading.label, reading) for reading in readings if excluded.comparable(reading))


@dataclass(frozen=True, slots=True)
class _Peers:
    """Readings of one `likeness`, at least two, and what stands for those that are well.

    These are the best one and what ties with it (`tied`). `typical` is their upper quartile, less what noise lifts it
    by, because a slow GPU makes half of the links of four GPUs slow; `error` is the error of one. `deviations` are
    those of their trials from it, ascending.
    """

    readings: Sequence[Reading]
    tied: Sequence[Reading]
    typical: float
    error: float
    deviations: Sequence[float]

    def noise(self, reading: Reading, everywhere: Sequence[float]) -> Sequence[float]:
        """Return the deviations of others that show what noise is like: of few trials those `everywhere`."""
        own = [log - self.typical for log in reading.trials] if reading in self.tied else []
        enough = len(self.deviations) - len(own) >= _ENOUGH_TRIALS
        others = list(self.deviations if enough else everywhere)
        for deviation in own:
            others.pop(bisect_left(others, deviation))
        return others

    def gaps(self, everywhere: Sequence[float]) -> Iterator[Gap]:
        """Yield how far each reading lies below."""
        for reading in self.readings:
            noise = math.hypot(reading.error, self.error / math.sqrt(len(self.tied)))
            chance = _chance(reading, self.typical - reading.high, self.noise(reading, everywhere))
            yield Gap(reading, self.typical - reading.middle, noise, chance)


@lru_cache(maxsize=2)  # of copies two rules ask
def _all_peers(facts: Facts, *, collective: bool) -> tuple[list[_Peers], list[float]]:
    """Return the peers of all copies or all collectives, and the deviations of all of them, ascending."""
    works = facts.readings.works(collective=collective)
    groups = (group for work in works for group in _readings_by_label(facts, work).values())
    of_sockets = (grouped((sockets_of(facts, reading), reading) for reading in group).values() for group in groups)
    peers = [each for some in of_sockets for group in some for each in _peers(facts, group)]
    return peers, sorted(deviation for each in peers for deviation in each.deviations)


def _peers(facts: Facts, group: Sequence[Reading]) -> Iterator[_Peers]:
    for alike in of_likeness(facts, group):
        if len(alike) < 2:
            continue
        tied = facts.readings.tied(alike)
        error = max(reading.error for reading in tied)
        middles = [reading.middle for reading in tied]
        typical = middles[0] if len(tied) == 1 else quantiles(middles, n=4, method="inclusive")[2]
        typical -= _UPPER_QUARTILE * error if len(tied) > 1 else 0.0
        yield _Peers(alike, tied, typical, error, sorted(log - typical for reading in tied for log in reading.trials))


def _chance(reading: Reading, below: float, deviations: Sequence[float]) -> float:
    """Return the chance that noise alone makes all trials of a reading (of seven, all but one) lie so far below.

    By ranks: of all trials, its own and those of its peers, its own are as likely to be the lowest as any others. This
    assumes of the distribution of noise, which is often skewed because a rate has a ceiling, only that it is equally
    wide: a reading that is noisier than its peers lies less far below, in its own noise. Far beyond all of its peers'
    trials the chance is that of exponential noise, which falls off more slowly than normal noise.
    """
    if not deviations:
        return 1.0
    below /= reading.noisier
    own, peers, lower = len(reading.trials), len(deviations), bisect_right(deviations, -below)
    but_one = reading.high != reading.trials[-1]
    times = below / max(-deviations[0], _MIN_NOISE)
    if times > _FAR_BEYOND:
        return own * chance_beyond(own - 1, peers, times) if but_one else chance_beyond(own, peers, times)
    if not but_one:
        return math.comb(own + lower, own) / math.comb(own + peers, own)
    lowest = own - 1 + lower
    ways = math.comb(lowest, own - 1) * (own + peers - lowest) + math.comb(lowest, own)
    return ways / math.comb(own + peers, own)


def _slow(facts: Facts, kind: Kind, blame: Blame, worst: Sequence[Gap], text: str, likely: Cause) -> Verdict:
    """Return the verdict on slow links; a cause that was seen on their devices replaces the likely one."""
    seen = unhealthy_devices(facts).cause(blame.members)
    if seen and blame.gpu is not None:  # whatever their labels
        blame = replace(blame, reach=blame.reach | facts.links_of(blame.gpu))
    cause = seen or replace(blame.cause or likely, fix=_state(facts, blame))
    return verdict_on(facts, kind, blame, text, cause, [gap.reading for gap in worst])


def _state(facts: Facts, blame: Blame) -> str:
    """Return the commands that show the state of what is to blame; without links between GPUs it is their slots."""
    first = min(blame.links, default=None)
    if blame.cause is not None:
        return _state_of(facts, blame.cause, first)
    if blame.gpu is not None:
        return _state_of_gpu(facts, blame.gpu, first)
    return slots(facts.run, blame.members) if first is None else link_state(facts, first)


def _state_of(facts: Facts, cause: Cause, first: Link | None) -> str:
    """Return the commands that show the state of the part that is a cause; `first` of the links that cross it."""
    run, devices = facts.run, cause.devices
    if cause.either:
        commands = (_state_of(facts, part, first) for way in cause.either for part in way)
        return "; ".join(dict.fromkeys(commands))
    if cause.name in (Part.GPU, Part.ONE_DIRECTION):
        return _state_of_gpu(facts, devices[0], first)
    if cause.name == Part.UPLINK:
        below = (facts.paths.get(frozenset(pair)) for pair in combinations(devices, 2))
        return uplink(run, devices, 2 if "PXB" in {path.in_tree for path in below if path} else 1)
    if cause.name in (Part.ROOT, Part.FORWARDING, Part.FORWARDING_ROOT):
        return _REDIRECTS
    nodes = sorted({node for device in devices if (node := run.devices[device].numa_node) is not None})
    if cause.name == Part.SOCKETS and len(nodes) == 2:
        return _between_nodes(nodes[0], nodes[1])
    link = (devices[0], devices[-1]) if cause.name == Part.PATH else first
    return slots(run, devices) if link is None else link_state(facts, link)


def _state_of_gpu(facts: Facts, gpu: int, first: Link | None) -> str:
    """Return the commands that show the state of a GPU's NVLinks, or of its slot; `first` of its slow links."""
    return _nvlinks(facts, (gpu,)) if first and facts.over_nvlink(first) else slots(facts.run, (gpu,))


# What routes or translates the requests between GPUs.
_REDIRECTS = "sudo lspci -vvv | grep ACSCtl; sudo dmesg | grep -i -e iommu -e dmar"


def _between_nodes(first: int, last: int) -> str:
    return f"numactl --cpunodebind={first} --membind={last} nvbandwidth -t host_to_device_memcpy_ce"


def _nvlinks(facts: Facts, devices: Sequence[int]) -> str:
    which = on(facts.run, devices)
    return f"nvidia-smi nvlink -s{which}; nvidia-smi nvlink -e{which}"


def link_state(facts: Facts, link: Link) -> str:
    """Return the commands that show the state of a link."""
    if facts.on_cores:
        return "lscpu -e; numactl --hardware"
    if facts.over_nvlink(link):
        return _nvlinks(facts, link)
    return slots(facts.run, link)


def _outlier_cause(facts: Facts, blame: Blame, worst: Reading) -> Cause:
    if facts.on_cores:
        return Cause("shared_cores", "these cores share a cache or a physical core with other processes")
    if blame.gpu is not None:
        return _of_gpu(facts, blame.gpu, over_nvlink=facts.over_nvlink(min(blame.links)))
    if worst.work.operation.is_collective:
        path = "NCCL's path between the two (its channels, transport or buffers), as every pair has the same label"
        return nccl_or_link(facts, blame.links, Cause("nccl_pair", path))
    if len(blame.links) > 2:
        shared = "several faults at once, or a shared part that labels do not show"
        return Cause("several", f"{shared}: no single part explains all of these pairs")
    if facts.over_nvlink(min(blame.links)):
        return Cause(
            "one_nvlink", "only this link: a cable, bridge or port, or NVLinks that are down or replay packets"
        )
    return Cause("one_pcie_path", "only this path: a riser, a switch port, or a slot with fewer lanes")


def _of_gpu(facts: Facts, gpu: int, *, over_nvlink: bool) -> Cause:
    """Return a GPU as the cause of what is slow on all of its NVLinks or all of its PCIe paths: it may have both."""
    tag, both = facts.run.devices[gpu].tag, len({*map(facts.over_nvlink, facts.links_of(gpu))}) > 1
    which = "NVLinks" if over_nvlink else "PCIe paths"
    slow = f"because all of its {which if both else 'links'} are slow"
    if over_nvlink:
        return Cause(Part.GPU, f"{tag} itself: its NVLinks or its clocks, {slow}", devices=(gpu,))
    slot = f"{tag}'s slot"
    clocks = "" if both else ", or its clocks"
    text = f"{slot} (fewer lanes, a riser, or a lower generation){clocks}, {slow}"
    return Cause(Part.GPU, text, devices=(gpu,), part=slot)


# Labels against each other: is a better one faster?

# docs/method/verdicts.md 5: a worse label is 10% faster, as a difference of log bandwidth.
_INVERTED = math.log(1.1)
# Words without a place in the order of labels.
_NO_ORDER = (UNKNOWN, "?", "NET", "mixed")


class _Beaten(NamedTuple):
    """Readings that those of a worse label exceed by `gap`, a difference of logs."""

    worse: str
    gap: float
    readings: Sequence[Reading]


def inversions(facts: Facts, explained: frozenset[Link]) -> Iterator[Verdict]:
    """Yield groups of links, each of GPUs that one label joins, whose median is below that of a worse label.

    Links that are `explained` by an element to blame are left out.
    """
    beaten: dict[Members, list[_Beaten]] = defaultdict(list)
    compared: dict[Members, str] = {}  # with the label that joins them
    for work in (*facts.readings.works(collective=False), *facts.readings.works(collective=True)):
        groups = {
            label: [r for r in readings if explained.isdisjoint(directed_links(work, r.members))]
            for label, readings in _readings_by_label(facts, work).items()
        }
        ordered = sorted((label for label in groups if label not in _NO_ORDER), key=rank_key)
        for better, worse in combinations(ordered, 2):
            for members, part in _joined(groups[better]).items():
                for alike, others in _of_equal_ends(facts, part, groups[worse]):
                    compared[members] = better
                    gap = _inversion(facts, alike, others)
                    if gap is not None:
                        beaten[members].append(_Beaten(worse, gap, alike))
    labels = grouped((label, members) for members, label in compared.items())
    for members, cases in beaten.items():
        slow = [other for other in labels[compared[members]] if other in beaten]
        alone = len(slow) == 1 and len(labels[compared[members]]) > 1
        yield _inverted(facts, members, cases, alone=alone)


def _of_equal_ends(
    facts: Facts, better: Sequence[Reading], worse: Sequence[Reading]
) -> Iterator[tuple[list[Reading], list[Reading]]]:
    """Yield the readings of both labels between the same two products: the median of a mixture is no link's rate."""
    groups: dict[object, tuple[list[Reading], list[Reading]]] = defaultdict(lambda: ([], []))
    for at, readings in enumerate((better, worse)):
        for reading in readings:
            groups[ends(facts, reading.members)][at].append(reading)
    yield from (both for both in groups.values() if all(both))


def _inverted(facts: Facts, members: Members, cases: Sequence[_Beaten], *, alone: bool) -> Verdict:
    """Return the verdict on links of one label; `alone`: no other GPUs that it joins are slow."""
    worst = max(cases, key=lambda case: case.gap)
    links = both_ways(
        link for case in cases for reading in case.readings for link in directed_links(reading.work, reading.members)
    )
    blame = of_devices(facts, members, links)
    works = frozenset(reading.work for case in cases for reading in case.readings)
    by_nccl = all(work.operation.is_collective for work in works)
    likely = _inverting(facts, links, by_nccl=by_nccl, alone=alone)
    better = f"{facts.label(first_link(blame, worst.readings))} pairs of {blame.place}"
    normal = facts.readings.span(worst.readings)[1] * math.exp(worst.gap)
    less = f"reach {1 - math.exp(-worst.gap):.0%} less than the {figure(normal)} GB/s of {worst.worse} pairs"
    less += f", though the label is better ({names(works)})"
    blame = replace(blame, place=f"{better} {less}")
    return verdict_on(facts, Kind.ORDER_INVERSION, blame, "", likely, worst.readings, works=works)


def _inverting(  # noqa: PLR0911  # a case for each
    facts: Facts, links: frozenset[Link], *, by_nccl: bool, alone: bool
) -> Cause:
    """Return why links of the better label are slower; `by_nccl`: only NCCL shows it."""
    first = min(links)
    own, fix = facts.label(first), f"nvidia-smi topo -p2p r; {link_state(facts, first)}"
    variable = by_setting(facts, first, paths_only=True) if by_nccl else None
    elements = blamed(facts, over_nvlink=facts.over_nvlink(first), collective=False)
    slow = next((element for element in elements if element.shared and links <= element.links), None)
    if variable is not None:
        return variable
    if slow is not None:
        part = slow.cause(facts.run)
        return replace(part, fix=_state_of(facts, part, first))
    if not all(map(facts.has_peers, links)):
        return Cause(
            "no_peer_access",
            f"no peer access on {own} pairs: copies go through host memory, and GPUs near each other share one uplink "
            "to it [nccl#1309]",
            fix,
            by_design=True,
        )
    if facts.over_nvlink(first) and by_nccl and all(map(facts.readings.best, links)):
        return nccl_path(facts, links)
    if facts.over_nvlink(first):
        unused = "the NVLinks of these pairs are not used, or most of them are down"
        return Cause("nvlinks_of_label_unused", unused, fix)
    if alone:
        return Cause(
            "path_alone",
            f"other {own} pairs are not slow: only this path is (a riser, a switch port), or ACS routes its traffic "
            "through the root complex",
            fix,
        )
    return Cause(
        "uplink_shared",
        f"{own} pairs share an uplink, or ACS routes their traffic through the root complex; labels do not name rates",
        fix,
    )


def _joined(group: Sequence[Reading]) -> dict[Members, list[Reading]]:
    """Return a label's readings by the GPUs that it joins, such as those below a switch, which share its faults."""
    islands = chained(reading.members for reading in group)
    return {tuple(sorted(i)): [reading for reading in group if set(reading.members) <= i] for i in islands}


def _inversion(facts: Facts, better: Sequence[Reading], worse: Sequence[Reading]) -> float | None:
    """Return by how much (a difference of logs) the worse label is faster, None if not significantly."""
    upper, upper_error = _typical(worse)
    lower, lower_error = _typical(better)
    gap = upper - lower
    return gap if gap - facts.readings.z * math.hypot(upper_error, lower_error) > _INVERTED else None


def _typical(group: Sequence[Reading]) -> tuple[float, float]:
    """Return the median log rate of a label's links and its error, from noise and from differences between links."""
    middles = [reading.middle for reading in group]
    middle = median(middles)
    spread = MAD_TO_SIGMA * median(abs(value - middle) for value in middles)
    error = math.hypot(max(reading.error for reading in group), spread)
    return middle, error if len(group) == 1 else MEDIAN_ERROR * error / math.sqrt(len(group))
