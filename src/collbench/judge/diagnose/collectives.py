"""NCCL against the links: a collective far below what its links allow, and why (docs/method.md 10.2)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations, permutations

from collbench.judge.diagnose.blame import Blame, UnhealthyDevices, blames, check_of, nccl_or_link, verdict_on
from collbench.judge.diagnose.causes import Check, Known, LikelyCause, Look, VariableSet
from collbench.judge.diagnose.evidence import Evidence, Extent, OfWorks, Slower, Where
from collbench.judge.diagnose.limits import ExcludedLinks
from collbench.judge.diagnose.readings import COLLECTIVE_BYTES, Facts, Reading
from collbench.judge.diagnose.verdict import Finding, Kind, Link, both_ways, by_name
from collbench.judge.physics import DEGRADED

# NCCL's busbw over the rate of copy engines on the slowest link. Over NVLink 64 MiB on two H200 reach 0.68 and
# 1 GiB 0.83, with NCCL_P2P_DISABLE=1 0.07 [H200x4]. Over PCIe both ways share more, and NCCL takes host memory between
# NUMA nodes by itself.
_FAR_BELOW_NVLINK, _FAR_BELOW_PCIE = 0.5, 0.3
# Without peer access, traffic between GPUs below one PCIe switch shares its uplink, which NCCL uses in both directions
# at the same time, a copy in one.
_ONE_UPLINK, _BELOW_ONE = 0.5, ("PIX", "PXB")
# Variables that users set and forget [NCCL docs, environment variables], strongest first: those that forbid paths.
_P2P = ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE", "NCCL_TOPO_FILE", "NCCL_NET_DISABLE_INTRA")
_SLOWER = (
    "NCCL_PROTO",
    "NCCL_ALGO",
    "NCCL_MAX_NCHANNELS",
    "NCCL_MAX_CTAS",
    "NCCL_MAX_NRINGS",
    "NCCL_NTHREADS",
    "NCCL_BUFFSIZE",
    "NCCL_IB_DISABLE",
    "NCCL_NET",
    "NCCL_SOCKET_IFNAME",
)
SLOWING = _P2P + _SLOWER
_OFF = ("", "0")


def collectives(facts: Facts, excluded: ExcludedLinks, unhealthy: UnhealthyDevices) -> Iterator[Finding]:
    """Yield the sets on which NCCL is far slower than its links, and those on which NVLinks bring nothing over PCIe."""
    if facts.on_cores:
        return  # gloo uses sockets or shared memory, not the paths between cores
    works = (work for work in facts.readings.works(collective=True) if work.operation.collective.ring_bound)
    large = [reading for work in works for reading in facts.readings.of(work, COLLECTIVE_BYTES).values()]
    heard = [reading for reading in large if len(reading.members) > 2 or excluded.comparable(reading)]
    readings = [reading for reading in heard if not _links(reading) <= excluded.unused]
    slow = [case for reading in readings if (case := _far_below(facts, reading))]
    judged = frozenset(link for reading in readings for link in _links(reading))
    for over_nvlink in (True, False):
        ours = [case for case in slow if case.over_nvlink is over_nvlink]
        unused = [case for case in ours if case.no_faster_than_pcie]
        yield from _findings(facts, Kind.NV_NOT_USED, unused, judged, unhealthy)
        yield from _findings(facts, Kind.COLLECTIVE_CONTRADICTION, ours, judged, unhealthy)


@dataclass(frozen=True, slots=True)
class _Case:
    """A collective that is far below `allowed` GB/s."""

    reading: Reading
    allowed: float
    over_nvlink: bool
    no_faster_than_pcie: bool


def setting(environment: Mapping[str, str], *, paths_only: bool) -> VariableSet | None:
    """Return the NCCL variable that explains slow collectives; None if none is set."""
    for name in _P2P if paths_only else SLOWING:
        value = environment.get(name, "")
        if value not in _OFF or (value == "0" and name == "NCCL_P2P_LEVEL"):
            return VariableSet(name, value)
    return None


def _links(reading: Reading) -> frozenset[Link]:
    return both_ways(combinations(reading.members, 2))


def _far_below(facts: Facts, reading: Reading) -> _Case | None:
    over_nvlink = all(map(facts.over_nvlink, combinations(reading.members, 2)))
    if not over_nvlink and len(reading.members) > 2:
        return None  # rings over PCIe share uplinks: no single link limits them
    allowed = _allowed(facts, reading.members, over_nvlink=over_nvlink)
    high, share = facts.readings.interval(reading)[2], _FAR_BELOW_NVLINK
    if not over_nvlink:
        below_one = facts.label(reading.members) in _BELOW_ONE and not facts.has_peers(reading.members)
        share = _FAR_BELOW_PCIE * (_ONE_UPLINK if below_one else 1.0)
    if allowed is None or high >= share * allowed:
        return None
    ceiling = facts.pcie_ceiling(reading.members) if over_nvlink else None
    return _Case(reading, allowed, over_nvlink, no_faster_than_pcie=ceiling is not None and high <= ceiling)


def _allowed(facts: Facts, members: tuple[int, ...], *, over_nvlink: bool) -> float | None:
    """Return the rate of the slowest link among the members in GB/s, measured or by theory; None if unknown."""
    carried = []
    for link in permutations(members, 2):
        copy, limit = facts.readings.best(link), facts.limit(link)
        if copy is not None:
            carried.append(facts.readings.interval(copy)[0])
        elif over_nvlink and limit is not None:
            carried.append(DEGRADED * limit)  # no copy shows its rate; a lower rate is the subject of NV_DEGRADED
        else:
            return None
    return min(carried)


def _findings(
    facts: Facts, kind: Kind, cases: list[_Case], judged: frozenset[Link], unhealthy: UnhealthyDevices
) -> Iterator[Finding]:
    """Yield a finding for each group of pairs, and for each larger set that is slow."""
    pairs: dict[Link, list[_Case]] = defaultdict(list)
    for case in cases:
        if len(case.reading.members) == 2:
            for link in _links(case.reading):
                pairs[link].append(case)
    for blame in blames(facts, pairs, judged):
        ours = [case for link in sorted(blame.links) if link[0] < link[1] for case in pairs[link]]
        yield _finding(facts, kind, blame, ours, unhealthy)
    for case in cases:
        if len(case.reading.members) > 2:
            blame = Blame(_links(case.reading), Where(Extent.SET, case.reading.members))
            yield _finding(facts, kind, blame, [case], unhealthy)


def _finding(facts: Facts, kind: Kind, blame: Blame, cases: list[_Case], unhealthy: UnhealthyDevices) -> Finding:
    unused = kind is Kind.NV_NOT_USED
    worst = min(cases, key=lambda case: case.reading.middle - case.allowed)
    works = by_name(case.reading.work for case in cases)
    cause, checks, sure = _cause(facts, blame, unhealthy, unused=unused)
    ours = [case.reading for case in cases if case.reading.work == worst.reading.work]
    evidence: Evidence = OfWorks(works) if unused else Slower(1 - worst.reading.gbs / worst.allowed, works)
    verdict = verdict_on(facts, kind, blame, ours, evidence, cause, checks)
    if not unused:
        verdict = replace(verdict, theory_gbs=worst.allowed)
    return Finding(verdict, blame.links, sure)


def _cause(
    facts: Facts, blame: Blame, unhealthy: UnhealthyDevices, *, unused: bool
) -> tuple[LikelyCause, tuple[Check, ...], bool]:
    """Return the likely cause, how to check it, and whether it was seen."""
    gpus = min(blame.links)
    environment = facts.run.settings.environment
    variable = setting(environment, paths_only=unused) or setting(environment, paths_only=False)
    if variable is not None:
        return variable, (Check(Look.WITHOUT_VARIABLE, gpus, variable.name),), True
    seen = unhealthy.cause(blame.members)
    if seen is not None:
        return seen, check_of(seen, gpus), True
    return nccl_or_link(facts, blame.links, Known.NCCL_PATH), (Check(Look.NCCL_LOG, gpus),), False
