"""NCCL against the links: a collective far below what its links allow, and why (docs/method/verdicts.md 5)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations

from collbench.judge.diagnose.blame import (
    Blame,
    blames,
    first_link,
    nccl_or_link,
    together,
    unhealthy_devices,
    verdict_on,
)
from collbench.judge.diagnose.limits import excluded_links, limits
from collbench.judge.diagnose.readings import COLLECTIVE_BYTES, Facts, Reading
from collbench.judge.diagnose.verdict import Cause, Kind, Link, Verdict, both_ways, indices, names
from collbench.machine.theory import DEGRADED
from collbench.model.run import tags
from collbench.model.units import grouped, span

# NCCL's busbw over the rate of copy engines on the slowest link. Over NVLink 64 MiB on two H200 reach 0.68 and
# 1 GiB 0.83, with NCCL_P2P_DISABLE=1 0.07 [H200x4]. Over PCIe both ways share more, and NCCL takes host memory between
# NUMA nodes by itself. Where a variable forbids P2P, a share that no healthy pair has is its doing.
_FAR_BELOW_NVLINK, _FORBIDDEN, _FAR_BELOW_PCIE = 0.5, 0.6, 0.3
# Through host memory, traffic between GPUs below one PCIe switch shares its uplink, which NCCL uses in both directions
# at once, but a copy in one: NCCL reaches at most half of a copy. A variable that forbids P2P is found by that.
_ONE_UPLINK, _BELOW_ONE = 0.5, ("PIX", "PXB")
# Variables that users set and forget, and what each does [NCCL docs, environment variables], strongest first: those
# that forbid paths. Pairs, because a dict with such keys looks like an environment that sets them.
_P2P = (
    ("NCCL_P2P_DISABLE", "disables direct transfers between GPUs, so NCCL goes through host memory"),
    ("NCCL_P2P_LEVEL", "limits direct transfers to nearer GPUs; farther ones go through host memory"),
    ("NCCL_SHM_DISABLE", "disables shared host memory: without direct transfers NCCL uses the network"),
    ("NCCL_TOPO_FILE", "replaces the topology that NCCL detects by one from a file"),
    ("NCCL_NET_DISABLE_INTRA", "changes how GPUs of one node reach each other"),
)
_CHANNELS = "limits the channels, and so how many links are used at once"
SLOWING = (
    *_P2P,
    ("NCCL_PROTO", "fixes the protocol: LL moves at most half of a link's bandwidth"),
    ("NCCL_ALGO", "fixes the algorithm for all sizes"),
    ("NCCL_MAX_NCHANNELS", _CHANNELS),
    ("NCCL_MAX_CTAS", _CHANNELS),
    ("NCCL_MAX_NRINGS", _CHANNELS),
    ("NCCL_NTHREADS", "limits the threads that move data"),
    ("NCCL_BUFFSIZE", "sets the size of NCCL's buffers, and so of each transfer"),
    ("NCCL_IB_DISABLE", "disables InfiniBand: between nodes NCCL uses sockets"),
    ("NCCL_NET", "chooses the network"),
    ("NCCL_SOCKET_IFNAME", "chooses the network card"),
)
_OFF = ("", "0")


def collectives(facts: Facts) -> Iterator[Verdict]:
    """Yield the sets on which NCCL is far slower than its links, and those on which NVLinks bring nothing over PCIe."""
    if facts.on_cores:
        return  # gloo uses sockets or shared memory, not the paths between cores
    excluded = excluded_links(facts, limits(facts))
    works = (work for work in facts.readings.works(collective=True) if work.operation.collective.ring_bound)
    large = [reading for work in works for reading in facts.readings.of(work, COLLECTIVE_BYTES).values()]
    heard = [reading for reading in large if len(reading.members) > 2 or excluded.comparable(reading)]
    readings = [reading for reading in heard if not _links(reading) <= excluded.unused]
    slow = [case for reading in readings if (case := _far_below(facts, reading))]
    judged = frozenset(link for reading in readings for link in _links(reading))
    for over_nvlink in (True, False):
        ours = [case for case in slow if case.over_nvlink is over_nvlink]
        unused = [case for case in ours if case.no_faster_than_pcie]
        yield from _verdicts(facts, Kind.NV_NOT_USED, unused, judged)
        yield from _verdicts(facts, Kind.COLLECTIVE_CONTRADICTION, ours, judged)


@dataclass(frozen=True, slots=True)
class _Case:
    """A collective that is far below its slowest link, which carries `capacity` GB/s in copies, else in theory."""

    reading: Reading
    capacity: float
    by_copies: bool
    over_nvlink: bool
    no_faster_than_pcie: bool


def by_setting(facts: Facts, link: Link, *, paths_only: bool) -> Cause | None:
    """Return the NCCL variable that explains slow collectives, with a check without it on a link; None if none is."""
    for name, does in _P2P if paths_only else SLOWING:
        value = facts.run.settings.environment.get(name, "")
        if value not in _OFF or (value == "0" and name == "NCCL_P2P_LEVEL"):
            text = f"the environment variable {name}={value} {does}"
            return Cause(name, text, f"env -u {name} {_again(facts, link)}", seen=True)
    return None


def nccl_path(facts: Facts, links: Collection[Link]) -> Cause:
    """Return NCCL's path as the cause of slow collectives, or the links where no copies show that they are well."""
    other_path = Cause(
        "nccl_path",
        "NCCL uses another path than the copies (no peer access inside its container, a small /dev/shm, an IOMMU) or "
        "too few channels; its log names the path",
        f"NCCL_DEBUG=INFO NCCL_DEBUG_FILE=/tmp/nccl.%p {_again(facts, min(links))}; grep ' via ' /tmp/nccl.*",
    )
    return nccl_or_link(facts, links, other_path)


def _again(facts: Facts, link: Link) -> str:
    """Return the command that measures a pair's all-reduce again."""
    return f"collbench allreduce --devices {indices(facts.run, link)} --sizes 64M"


def _links(reading: Reading) -> frozenset[Link]:
    return both_ways(combinations(reading.members, 2))


def _least(facts: Facts, members: tuple[int, ...], *, over_nvlink: bool) -> float:
    """Return the share of a copy below which a collective contradicts it."""
    a, b, *_ = members
    forbidden = by_setting(facts, (a, b), paths_only=True) is not None
    if over_nvlink:
        return _FORBIDDEN if forbidden else _FAR_BELOW_NVLINK
    if facts.label(members) in _BELOW_ONE:
        if not facts.has_peers(members):
            return _FAR_BELOW_PCIE * _ONE_UPLINK
        if forbidden:
            return _ONE_UPLINK
    return _FAR_BELOW_PCIE


def _far_below(facts: Facts, reading: Reading) -> _Case | None:
    over_nvlink = all(map(facts.over_nvlink, combinations(reading.members, 2)))
    if not over_nvlink and len(reading.members) > 2:
        return None  # rings over PCIe share uplinks: no single link limits them
    slowest = _slowest(facts, reading.members, over_nvlink=over_nvlink)
    high = facts.readings.interval(reading)[2]
    share = _least(facts, reading.members, over_nvlink=over_nvlink)
    if slowest is None or high >= share * slowest[0]:
        return None
    _expected, capacity, by_copies = slowest
    ceiling = facts.pcie_ceiling(reading.members) if over_nvlink else None
    unused = ceiling is not None and high <= ceiling
    return _Case(reading, capacity, by_copies, over_nvlink, no_faster_than_pcie=unused)


def _slowest(facts: Facts, members: tuple[int, ...], *, over_nvlink: bool) -> tuple[float, float, bool] | None:
    """Return what the slowest link carries at least, its capacity, and whether copies showed it; None if unknown."""
    carried = []
    for link in permutations(members, 2):
        copy, limit = facts.readings.best(link), facts.limit(link)
        if copy is not None:
            least = facts.readings.interval(copy)[0]
            carried.append((least, least, True))
        elif over_nvlink and limit is not None:
            carried.append((DEGRADED * limit, limit, False))  # NV_DEGRADED is about a lower rate
        else:
            return None
    return min(carried)


def _verdicts(facts: Facts, kind: Kind, cases: list[_Case], judged: frozenset[Link]) -> Iterator[Verdict]:
    """Yield a verdict for each group of pairs, and for each larger set that is slow."""
    of_pairs = (case for case in cases if len(case.reading.members) == 2)
    pairs = grouped((link, case) for case in of_pairs for link in _links(case.reading))
    groups: Sequence[Blame] = blames(facts, pairs, judged)
    if len(pairs) > 2 and by_setting(facts, min(pairs), paths_only=False) is not None:  # it is no single GPU's
        groups = [together(facts, frozenset(pairs), everything=pairs.keys() == judged)]
    for blame in groups:
        ours = [case for link in sorted(blame.links) if link[0] < link[1] for case in pairs[link]]
        yield _verdict(facts, kind, blame, ours)
    for case in cases:
        if len(case.reading.members) > 2:
            members = case.reading.members
            blame = Blame(_links(case.reading), members, f"all of {tags(members, facts.run.devices)}")
            yield _verdict(facts, kind, blame, [case])


def _verdict(facts: Facts, kind: Kind, blame: Blame, cases: list[_Case]) -> Verdict:
    unused = kind is Kind.NV_NOT_USED
    worst = min(cases, key=lambda case: case.reading.middle - case.capacity)
    works = names(case.reading.work for case in cases)
    cause = _cause(facts, blame, unused=unused)
    alike = [case for case in cases if case.reading.work == worst.reading.work]
    ours = [case.reading for case in alike]
    if unused:
        label = facts.label(first_link(blame, ours))
        text = f"NCCL is no faster than PCIe, though the label is {label} ({works})"
        return verdict_on(facts, kind, blame, text, cause, ours)
    share = span([case.reading.gbs / case.capacity for case in alike], "{:.0%}".format)
    text = f"{share} of what NVLink allows in theory ({works})"
    if by_copies := all(case.by_copies for case in alike):
        text = f"NCCL reaches {share} of the capacity of its slowest link ({works})"
    limit = "links" if by_copies else "theory"
    label = facts.label(worst.reading.members)
    beside = [reading for reading in ours if facts.label(reading.members) == label]  # what the capacity is that of
    return verdict_on(facts, kind, blame, text, cause, beside, worst.capacity, limit=limit)


def _cause(facts: Facts, blame: Blame, *, unused: bool) -> Cause:
    """Return the likely cause."""
    first = min(blame.links)
    variable = by_setting(facts, first, paths_only=unused) or by_setting(facts, first, paths_only=False)
    if variable is not None:
        return variable
    return unhealthy_devices(facts).cause(blame.members) or nccl_path(facts, blame.links)
