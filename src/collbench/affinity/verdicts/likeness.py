"""Links against each other: the two ways of a pair, and links of one label."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from statistics import fmean, quantiles
from typing import NamedTuple

from collbench.affinity.verdicts.blame import Blame, blames
from collbench.affinity.verdicts.limits import Odd, path_limit
from collbench.affinity.verdicts.readings import Facts, Reading
from collbench.affinity.verdicts.state import Ailing
from collbench.affinity.verdicts.verdict import Finding, Kind, Link, Rates, Told, found
from collbench.machine.labels import is_nvlink
from collbench.operations import Work

# METHOD.md §5: "differ by > 10 %", as a difference of log bandwidth.
_ONE_WAY = -math.log(0.9)
# Pairs of one H200 machine keep differences of up to 2 % from run to run, so an outlier lies below that for certain.
_OUTLYING = 0.025
# The upper quartile lies this many σ above the middle of a normal distribution.
_UPPER_QUARTILE = 0.6745


class Gap(NamedTuple):
    """How far (a difference of logs) a reading lies below what it should equal, and that difference's error."""

    reading: Reading
    gap: float
    error: float
    wild: bool = False  # a few of its visits make it so


def asymmetries(facts: Facts, odd: Odd, ill: Ailing) -> Iterator[Finding]:
    """Yield the links that carry at least 10 % less than their way back, by any kind of copy or by all together."""
    gaps: dict[Link, list[Gap]] = defaultdict(list)
    for work in facts.readings.works(collective=False):
        copies = facts.readings.of(work)
        for (a, b), there in copies.items():
            back = copies.get((b, a))
            if back is not None and odd.speaks(there) and odd.speaks(back):
                gaps[a, b].append(Gap(there, back.middle - there.middle, math.hypot(there.error, back.error)))
    slow = {link: below for link, found in gaps.items() if (below := _certain(facts, found, _ONE_WAY))}
    for blame in blames(facts, slow, gaps):
        worst, readings, works = _worst(blame, slow)
        what = f"{blame.where}: {1 - math.exp(-worst.gap):.0%} slower than the way back ({works})."
        yield _slow(facts, Kind.ASYMMETRY, blame, readings, (what, _one_way_cause(facts, blame)), ill)


def outliers(facts: Facts, odd: Odd, ill: Ailing) -> Iterator[Finding]:
    """Yield the links below the others of their label; copies and collectives apart: NCCL has reasons of its own."""
    for collective in (False, True):
        gaps: dict[Link, list[Gap]] = defaultdict(list)
        for work in facts.readings.works(collective=collective):
            for group in by_label(facts, work, odd).values():
                for gap in _below(facts, group):
                    for link in ways(gap.reading):
                        gaps[link].append(gap)
        slow = {link: below for link, found in gaps.items() if (below := _certain(facts, found, _OUTLYING))}
        for blame in blames(facts, slow, gaps):
            worst, readings, works = _worst(blame, slow)
            what = (
                f"{blame.where}: {1 - math.exp(-worst.gap):.0%} below the best {worst.reading.label} links ({works})."
            )
            words = what, _outlier_cause(facts, blame, worst.reading)
            yield _slow(facts, Kind.INTRA_LABEL_OUTLIER, blame, readings, words, ill)


def _certain(facts: Facts, gaps: Sequence[Gap], threshold: float) -> list[Gap]:
    """Return the gaps of a link that exceed a threshold for certain; all of them where they do so together.

    Each work's noise is its own, so four small gaps that agree are as good as one that is twice as sure.
    """
    z = facts.readings.z
    alone = [gap for gap in gaps if not gap.wild and gap.gap - z * gap.error > threshold]
    error = math.hypot(*(gap.error for gap in gaps)) / len(gaps)
    together = fmean(gap.gap for gap in gaps) - z * error > threshold and all(gap.gap > 0 for gap in gaps)
    return list(gaps) if together else alone


def _worst(blame: Blame, slow: Mapping[Link, Sequence[Gap]]) -> tuple[Gap, list[Reading], str]:
    """Return the widest gap of the blamed links, its work's readings on them, and the names of all works."""
    gaps = [gap for link in sorted(blame.links) for gap in slow[link]]
    worst = max(gaps, key=lambda gap: gap.gap)
    readings = [gap.reading for gap in gaps if gap.reading.work == worst.reading.work]
    return worst, readings, works_of(gap.reading for gap in gaps)


def rates_of(facts: Facts, link: Link, readings: Collection[Reading]) -> Rates:
    """Return the label and limit of a link, and what was measured on it or its like."""
    alone = all(reading.alone for reading in readings)
    return Rates(facts.label(link), path_limit(facts, link), facts.readings.span(readings), confirmed=alone)


def ways(reading: Reading) -> tuple[Link, ...]:
    """Return the directed links that a reading speaks for: a collective on a pair uses both."""
    a, b = reading.members
    return ((a, b), (b, a)) if reading.work.operation.is_collective else ((a, b),)


def works_of(readings: Iterable[Reading]) -> str:
    """Name the works of some readings."""
    return ", ".join(sorted({str(reading.work) for reading in readings}))


def by_label(facts: Facts, work: Work, odd: Odd) -> dict[str, list[Reading]]:
    """Return a work's readings on pairs, by label; of NVLinks and PCIe paths alike, limits of other slots apart."""
    groups: dict[str, list[Reading]] = defaultdict(list)
    for members, reading in facts.readings.of(work).items():
        if len(members) == 2 and odd.speaks(reading):
            groups[reading.label].append(reading)
    return groups


def _below(facts: Facts, group: Sequence[Reading]) -> Iterator[Gap]:
    """Yield how far each reading lies below its like: those of the same limit, at least two.

    Its like are the best link and what ties with it; their upper quartile, less what noise lifts it by, stands for
    them, because a slow GPU makes half of the links of four GPUs slow.
    """
    by_limit: dict[float | None, list[Reading]] = defaultdict(list)
    for reading in group:
        by_limit[path_limit(facts, (reading.members[0], reading.members[1]))].append(reading)
    for alike in by_limit.values():
        if len(alike) < 2:
            continue
        top = max(alike, key=lambda reading: reading.middle)
        tied = [r for r in alike if not facts.readings.exceeds(top, r, _OUTLYING)]
        error = max(reading.error for reading in tied)
        middles = [reading.middle for reading in tied]
        typical = middles[0] if len(tied) == 1 else quantiles(middles, n=4, method="inclusive")[2]
        typical -= _UPPER_QUARTILE * error if len(tied) > 1 else 0.0
        for reading in alike:
            noise = math.hypot(reading.error, error / math.sqrt(len(tied)))
            yield Gap(reading, typical - reading.middle, noise, wild=reading.high >= typical - _OUTLYING)


def _slow(
    facts: Facts, kind: Kind, blame: Blame, readings: Collection[Reading], told: tuple[str, str], ill: Ailing
) -> Finding:
    """Return the finding; `told` are what and the likely cause, which gives way to one that was seen."""
    first = min(blame.links)
    seen = ill.cause((blame.gpu,) if blame.gpu is not None else blame.members)
    command = f"nvidia-smi {seen[1]} -i {facts.indices(blame.members[:2])}" if seen else link_state(facts, first)
    words = Told(told[0], seen[0] if seen else told[1], command, sure=seen is not None)
    return found(kind, blame.members, blame.links, words, rates_of(facts, first, readings))


def link_state(facts: Facts, link: Link) -> str:
    """Return the command that shows the state of a link's wires."""
    if facts.run.backend == "host":
        return "lscpu -e; numactl --hardware"
    if is_nvlink(facts.label(link)):
        return f"nvidia-smi nvlink -s -i {facts.indices(link)}; nvidia-smi nvlink -e -i {facts.indices(link)}"
    return lspci(facts, link)


def lspci(facts: Facts, members: Iterable[int]) -> str:
    """Return the command that shows the PCIe link of devices as it is now."""
    ids = [facts.run.devices[member].pci_bus_id for member in members]
    known = [f"{int(domain, 16):04x}:{rest.lower()}" for domain, _, rest in (i.partition(":") for i in ids) if rest]
    if not known:
        return "sudo lspci -vvv | grep -e NVIDIA -e LnkSta"
    return "; ".join(f"sudo lspci -vvv -s {place} | grep LnkSta:" for place in known)


def _one_way_cause(facts: Facts, blame: Blame) -> str:
    if blame.gpu is not None:
        return f"{facts.tags((blame.gpu,))} itself: its copy engines, or its ports in one direction"
    if is_nvlink(facts.label(min(blame.links))):
        return "the lanes of one direction: NVLinks of this path replay packets or run at a lower rate"
    return "one direction of a PCIe link or switch port on the way: a riser, a lane, or how the root port forwards it"


def _outlier_cause(facts: Facts, blame: Blame, worst: Reading) -> str:
    if facts.run.backend == "host":
        return "these cores share a cache, a core's threads or a busy neighbour with somebody"
    if blame.gpu is not None:
        return f"{facts.tags((blame.gpu,))} itself: its slot, its NVLinks or its clocks, as all of its links are slow"
    if worst.work.operation.is_collective:
        return "NCCL's path between the two (its channels, transport or buffers), as every pair has the same label"
    if len(blame.links) > 2:
        return "these pairs share a bridge, a switch port or a socket's link that the label does not show"
    if is_nvlink(facts.label(min(blame.links))):
        return "this link alone: a cable, bridge or port, or NVLinks that are down or replay packets"
    return "this path alone: a riser, a switch port, or a slot with fewer lanes"
