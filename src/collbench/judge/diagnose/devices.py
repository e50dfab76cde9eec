"""Faults of GPUs: other processes, slots; and pairs that slow each other down (docs/method/verdicts.md 5)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from collbench.judge.diagnose.blame import Blame, UnhealthyDevices, blames, verdict_on
from collbench.judge.diagnose.elements import STAGED_FASTER
from collbench.judge.diagnose.limits import ExcludedLinks
from collbench.judge.diagnose.readings import CE, COPY_BYTES, SM, STAGED, Facts
from collbench.judge.diagnose.verdict import Cause, Kind, Link, Verdict, both_ways, names, on, slots
from collbench.judge.physics import most_over_pcie
from collbench.machine import theory
from collbench.machine.labels import is_nvlink, rank_key
from collbench.machine.theory import Theory, slot
from collbench.model.capabilities import capabilities
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import InterferenceCheck

_BY_ENGINE = (Operation.H2D_CE, Operation.D2H_CE)  # between a device and host memory


def other_processes(facts: Facts, unhealthy: UnhealthyDevices) -> Iterator[Verdict]:
    """Yield the GPUs that other people's processes used during the run: what was measured on them includes those."""
    gpus = tuple(sorted(unhealthy.shared))
    if gpus:
        seen = ", ".join(f"on {facts.run.devices[gpu].tag} {unhealthy.shared[gpu]}" for gpu in gpus)
        cause = Cause(
            "other_jobs",
            "another job computes, copies or holds memory there; measure again when it has ended",
            f"nvidia-smi{on(facts.run, gpus)} --query-compute-apps=pid,name,used_memory --format=csv",
        )
        links = frozenset[Link]().union(*(facts.links_of(gpu) for gpu in gpus))
        yield Verdict(Kind.CONTENTION, gpus, f"another process was {seen}", "", cause, links=links)


def interference(facts: Facts) -> Iterator[Verdict]:
    """Yield pairs that an interference check finds slower concurrently than isolated, although they share no link.

    NVLinks of disjoint pairs share nothing, nor do peer copies below one PCIe bridge. The labels of longer PCIe paths
    imply shared links, so there it is no contradiction.
    """
    worse = [
        check
        for check in facts.run.interference_checks
        if not check.trusted
        and _shares_nothing(facts, check)
        and -math.log(max(check.ratio, 1e-9)) > check.delta + _check_noise(facts, check)
    ]
    for over_nvlink in (True, False):
        checks = [check for check in worse if is_nvlink(check.label) is over_nvlink]
        if checks:
            yield _disturbed(facts, checks, over_nvlink=over_nvlink)


def _disturbed(facts: Facts, checks: list[InterferenceCheck], *, over_nvlink: bool) -> Verdict:
    check = min(checks, key=lambda one: one.ratio)
    labels = tuple(sorted({one.label for one in checks}, key=rank_key))
    works = names(Work(one.operation, one.variant) for one in checks)
    links = both_ways((a, b) for path in facts.run.paths if path.label in labels for a, b in [path.devices])
    members = tuple(sorted({member for link in links for member in link}))
    state = "nvidia-smi topo -m; nvidia-smi pmon -c 1"
    if over_nvlink:
        cause = Cause(
            "nvlink_traffic",
            "traffic of other jobs on the NVLinks, GPUs that share ports, or NCCL and copies that share another link",
            f"{state}; nvidia-smi nvlink -gt d{on(facts.run, members[:1])}",
        )
    else:
        cause = Cause(
            "bridge_detour",
            "copies below one bridge are routed through the root complex (ACS, an IOMMU), or other jobs load the "
            "bridge",
            f"{state}; sudo lspci -vvv | grep ACSCtl",
        )
    gbs, off = check.concurrent_gbs, math.exp(_check_noise(facts, check))
    text = f"concurrently they reach {check.ratio:.2f} of their isolated rate ({works})"
    return verdict_on(
        facts,
        Kind.CONTENTION,
        Blame(links, members, f"{' and '.join(labels)} pairs"),
        text,
        cause,
        label=check.label,
        theory_gbs=check.isolated_gbs,
        measured=(gbs / off, gbs, gbs * off),
    )


def _shares_nothing(facts: Facts, check: InterferenceCheck) -> bool:
    """Return whether a checked pair has its links to itself, by the labels: NVLinks in use, or one bridge with peers.

    Of four GPUs there is one other pair; if each of the two pairs has its own NUMA node, they share nothing.
    """
    if is_nvlink(check.label):
        ceiling = facts.pcie_ceiling(check.members)
        return ceiling is None or check.isolated_gbs > ceiling  # else it runs over PCIe, which is another verdict's
    others = [m for m in range(len(facts.run.devices)) if m not in check.members]
    nodes = [{facts.run.devices[member].numa_node for member in pair} for pair in (check.members, others)]
    apart = len(others) == 2 and nodes[0].isdisjoint(nodes[1]) and all(len(node) == 1 for node in nodes)
    own = check.label == "PIX" or (apart and None not in nodes[0] | nodes[1])
    return own and facts.has_peers(check.members)


def _check_noise(facts: Facts, check: InterferenceCheck) -> float:
    """Return how far noise may lower the log ratio of an interference check, which has two medians of three trials."""
    alike = [r for r in facts.readings.points if r.work == Work(check.operation, check.variant)]
    if not alike:
        return check.delta
    # A reading's error is that of a median of at least three, as an interference check's two medians are
    # (measurement/interference.py).
    return facts.readings.z * math.sqrt(2) * max(reading.error for reading in alike)


_FEWER_LANES = "the slot has fewer lanes, the card is badly seated or on a riser, or the link trained down"
_LOWER_GENERATION = "the link trained down to a lower generation, or power management holds it there under load"


def degraded_slots(facts: Facts) -> Iterator[Verdict]:
    """Yield the GPUs whose PCIe link is narrower or slower than its best, read with their contexts still open.

    A link that carried more than its state allows was only read after it had gone to rest. Resting lowers the
    generation, never the width, so a low generation needs evidence that the slot is slow: copies to or from host memory
    that are no faster than it allows. A copy to another GPU may be slow for other reasons.
    """
    for position, (device, state) in enumerate(zip(facts.run.devices, facts.run.health_after, strict=False)):
        best = (device.pcie_generation, device.pcie_width)
        now = (state.pcie_generation, state.pcie_width)
        copies = (reading for reading in facts.readings.host(position) if reading.work.operation in _BY_ENGINE)
        seen = max(copies, key=lambda reading: reading.middle, default=None)
        carried = _carried(facts, position)
        few_lanes = _below(now[1], best[1]) and not _beats(carried, theory.pcie(best[0] or now[0], now[1]))
        low_generation = _below(now[0], best[0]) and not _beats(carried, theory.pcie(now[0], now[1] or best[1]))
        if not few_lanes and not (low_generation and seen):
            continue
        ideal, fix = slot(device), slots(facts.run, (position,))
        yield Verdict(
            Kind.PCIE_DEGRADED,
            (position,),
            device.tag,
            f"PCIe gen {now[0]} ×{now[1]} right after measuring; its maximum is gen {best[0]} ×{best[1]}",
            Cause("fewer_lanes", _FEWER_LANES, fix) if few_lanes else Cause("lower_generation", _LOWER_GENERATION, fix),
            theory_gbs=ideal.gbs if ideal else None,
            measured=facts.readings.interval(seen) if seen else None,
            links=frozenset(link for link in facts.links_of(position) if not facts.over_nvlink(link)),
        )


def _below(now: int | None, best: int | None) -> bool:
    return now is not None and best is not None and now < best


def _beats(gbs: float, limit: Theory | None) -> bool:
    return limit is not None and gbs > limit.gbs


def _carried(facts: Facts, device: int) -> float:
    """Return the lower bound in GB/s of the fastest copy over a device's slot, 0 if there is none.

    Copies to other GPUs count unless their label or their rate says that they take NVLinks.
    """
    copies = list(facts.readings.host(device))
    for reading in facts.readings.points:
        if reading.work in (*CE, *SM, STAGED) and reading.size_bytes >= COPY_BYTES and device in reading.members:
            copies.append(reading)
    most = most_over_pcie(limit.gbs if (limit := slot(facts.run.devices[device])) else None)
    over_slot = [r for r in copies if r.work.variant is not Variant.PLAIN or not facts.over_nvlink(r.members)]
    return max((facts.readings.interval(r)[0] for r in over_slot if r.gbs <= most), default=0.0)


def staging(facts: Facts, excluded: ExcludedLinks) -> Iterator[Verdict]:
    """Yield the links that are faster through host memory than by peer access."""
    direct = facts.readings.of(CE[0], COPY_BYTES)
    through = facts.readings.of(STAGED, COPY_BYTES)
    both = {link: (direct[link], through[link]) for link in direct.keys() & through.keys() if facts.has_peers(link)}
    alike = {(link[0], link[1]): pair for link, pair in both.items() if pair[0].size_bytes == pair[1].size_bytes}
    slow = [
        link
        for link, (plain, via) in alike.items()
        if excluded.comparable(plain) and facts.readings.exceeds(via, plain, STAGED_FASTER)
    ]
    for blame in blames(facts, slow, alike, rates=True):
        plains, vias = zip(*(alike[link] for link in blame.links), strict=True)
        first = min(blame.links)
        only = blame.only if len(alike) > 2 else ""
        slow_only = f"{only} is slow (a riser, a switch port), or " if only else ""
        fix = "sudo lspci -vvv | grep ACSCtl; sudo dmesg | grep -i -e iommu -e dmar; " + slots(facts.run, first)
        if facts.over_nvlink(first):
            cause = Cause("nvlinks_idle", f"{slow_only}traffic does not use the NVLinks of this path", fix)
        else:
            cause = Cause(
                "peer_detour",
                f"peer traffic takes a detour: {slow_only}ACS or the IOMMU routes it through the root complex, or the "
                "link between sockets is slow; without peer access (NCCL_P2P_DISABLE=1) NCCL is faster [nccl#814]",
                fix,
            )
        unit = "GB/s sim" if capabilities(facts.run.backend).simulated else "GB/s"
        staged = f"{facts.readings.span(vias)[1]:.1f} {unit}"
        text = f"slower by peer access than through host memory, which reaches {staged}"
        many = blame.gpu is None and not blame.only  # NCCL takes the same detour
        reach = blame.reach or (blame.links if many else frozenset())
        yield verdict_on(facts, Kind.P2P_SLOWER_THAN_STAGED, replace(blame, reach=reach), text, cause, plains)
