"""Copies against the limit of their path: too slow for its NVLinks, or too fast for anything."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from collbench.affinity.verdicts.blame import Blame, blames
from collbench.affinity.verdicts.readings import COPY_BYTES, STAGED, Facts, Reading
from collbench.affinity.verdicts.state import Ailing
from collbench.affinity.verdicts.verdict import Finding, Kind, Link, Rates, Told, both_ways, found
from collbench.machine import theory
from collbench.machine.labels import is_nvlink, nvlink_count
from collbench.model import Device

# METHOD.md §5. Healthy copies reach 0.88 (H200, NVSwitch) to 0.97 (V100) of theory.
_DEGRADED, _IMPOSSIBLE, _HIDDEN = 0.70, 1.02, 1.05
_HEALTHY_SHARE = 0.9
# A PCIe path whose slot nobody tells: generation 6 ×16 is 64 GT/s × 16 × 236/256 / 8 = 118 GB/s [PCIe 6.0 base spec].
_FASTEST_PCIE_GBS = 118.0
# 18 links of 50 GB/s (B200): no hidden NVLink carries more than this.
_FASTEST_NVLINK_GBS = 900.0
VIRTUAL = ("pass-through", "vGPU")  # NVML's words for a GPU inside a virtual machine


def limits(facts: Facts, ill: Ailing) -> Iterator[Finding]:
    """Yield what copies show against their path's theory. Needs copies of 16 MiB or more."""
    links = _links(facts)
    yield from _too_fast(facts, links)
    yield from _too_slow(facts, links, ill)


def slot(device: Device) -> theory.Theory | None:
    """Return the one-way limit of a device's PCIe slot at its best, None where nobody told it."""
    return theory.pcie(device.pcie_generation, device.pcie_width)


def pcie_ceiling(facts: Facts, members: tuple[int, ...]) -> float | None:
    """Return what PCIe carries at most between these devices in GB/s: by their slots, else as measured, else None."""
    slots = [slot(facts.run.devices[member]) for member in members]
    if all(slots):
        return min(limit.gbs for limit in slots if limit)
    readings = facts.readings
    host = [found for member in members for found in readings.host(member)]
    staged = [found for pair, found in readings.of(STAGED, COPY_BYTES).items() if set(pair) <= set(members)]
    measured = [readings.interval(reading)[2] for reading in (*host, *staged)]
    return max(measured, default=None)


def path_limit(facts: Facts, link: Link) -> float | None:
    """Return the theory of a path in GB/s; of a PCIe path the slower slot's where the path has none."""
    path = facts.paths.get(frozenset(link))
    if path is None or facts.run.backend == "host":
        return None
    if path.theory_gbs is not None or is_nvlink(path.label):
        return path.theory_gbs
    return min((limit.gbs for member in link if (limit := slot(facts.run.devices[member]))), default=None)


def _links(facts: Facts) -> dict[Link, Reading]:
    """Return the fastest copy of each link that was measured at a size that shows bandwidth."""
    n = len(facts.run.devices)
    pairs = ((a, b) for a in range(n) for b in range(n) if a != b)
    return {link: reading for link in pairs if (reading := facts.readings.best(link))}


def _too_fast(facts: Facts, links: dict[Link, Reading]) -> Iterator[Finding]:
    hidden: set[Link] = set()
    impossible: set[Link] = set()
    fastest = {link: facts.readings.fastest(link) or reading for link, reading in links.items()}
    for link, reading in links.items() if facts.run.backend != "host" else ():
        limit, low = path_limit(facts, link), facts.readings.interval(reading)[0]
        if is_nvlink(facts.label(link)):
            most = facts.readings.interval(fastest[link])[0]
            impossible |= {link} if limit is not None and most > _IMPOSSIBLE * limit else set()
        elif low > _IMPOSSIBLE * _FASTEST_NVLINK_GBS:
            impossible.add(link)
        elif low > _HIDDEN * (limit or _FASTEST_PCIE_GBS):
            hidden.add(link)
        elif limit is not None and low > _IMPOSSIBLE * limit:
            impossible.add(link)
    for blame in _by_label(facts, hidden, links):
        yield _hidden(facts, blame, links)
    for blame in _by_label(facts, impossible, fastest):
        yield _impossible(facts, blame, fastest)


def _by_label(facts: Facts, bad: set[Link], links: dict[Link, Reading]) -> Iterator[Blame]:
    """Yield the groups of bad links, each within one label and limit: they are compared with it."""
    classes: dict[tuple[str, float | None], set[Link]] = defaultdict(set)
    for link in bad:
        classes[facts.label(link), path_limit(facts, link)].add(link)
    for (label, limit), ours in sorted(classes.items(), key=lambda item: item[0][0]):
        alike = [link for link in links if (facts.label(link), path_limit(facts, link)) == (label, limit)]
        yield from blames(facts, ours, alike)


def _finding(facts: Facts, kind: Kind, blame: Blame, links: dict[Link, Reading], told: Told) -> Finding:
    readings = [links[link] for link in blame.links]
    first = min(blame.links)
    rates = Rates(
        facts.label(first),
        path_limit(facts, first),
        facts.readings.span(readings),
        confirmed=all(reading.alone for reading in readings),
    )
    return found(kind, blame.members, blame.links, told, rates)


def _hidden(facts: Facts, blame: Blame, links: dict[Link, Reading]) -> Finding:
    virtual = facts.run.machine.virtualization
    where = f"the virtual machine ({virtual})" if virtual not in ("", "none") else "a virtual machine or the driver"
    told = Told(
        f"{blame.where}: no NVLink in the label, and faster than PCIe can be.",
        f"{where} hides the NVLinks or NVSwitches from the labels; the wires are there and are used",
        f"nvidia-smi nvlink -s -i {facts.indices(blame.members[:1])}; lspci | grep -i nvidia",
        sure=True,
    )
    return _finding(facts, Kind.HIDDEN_NVLINK, blame, links, told)


def _impossible(facts: Facts, blame: Blame, links: dict[Link, Reading]) -> Finding:
    told = Told(
        f"{blame.where}: faster than the path can carry.",
        "the timing is wrong, or the limit is: the driver reports fewer or slower links than there are",
        f"nvidia-smi nvlink -s -i {facts.indices(blame.members[:1])}; nvidia-smi topo -m",
    )
    return _finding(facts, Kind.IMPOSSIBLE, blame, links, told)


def _too_slow(facts: Facts, links: dict[Link, Reading], ill: Ailing) -> Iterator[Finding]:
    unused: set[Link] = set()
    degraded: set[Link] = set()
    for link, reading in links.items():
        limit = path_limit(facts, link)
        if limit is None or not is_nvlink(facts.label(link)):
            continue
        high = facts.readings.interval(reading)[2]
        if high < _DEGRADED * limit:
            ceiling = pcie_ceiling(facts, link)
            (unused if ceiling is not None and high <= ceiling else degraded).add(link)
    for blame in _by_label(facts, unused, links):
        yield _unused(facts, blame, links)
    for blame in _by_label(facts, degraded, links):
        yield _degraded(facts, blame, links, ill)


def _unused(facts: Facts, blame: Blame, links: dict[Link, Reading]) -> Finding:
    refused = any(facts.paths[frozenset(link)].cuda_peers is False for link in blame.links)
    gpu = facts.indices(blame.members[:1])
    told = Told(
        f"{blame.where}: copies are no faster than PCIe allows, though the label is {facts.label(min(blame.links))}.",
        "CUDA refuses peer access, so copies pass through host memory"
        if refused
        else "the NVLinks are down or not set up (on NVSwitch machines: the fabric manager does not run)",
        f"nvidia-smi topo -p2p r; nvidia-smi nvlink -s -i {gpu}; systemctl status nvidia-fabricmanager",
        sure=refused,
    )
    return _finding(facts, Kind.NV_NOT_USED, blame, links, told)


def _degraded(facts: Facts, blame: Blame, links: dict[Link, Reading], ill: Ailing) -> Finding:
    count = nvlink_count(facts.label(min(blame.links)))
    seen = ill.cause(blame.members)
    if blame.gpu is not None:
        likely = f"{facts.tags((blame.gpu,))} itself: its NVLinks are down or slow, or its ports at the switch"
    else:
        where = blame.alone or "these paths"
        likely = f"{where}: NVLinks are down, run at a lower rate, or replay packets (a cable, bridge or port)"
    gpus = facts.indices(blame.members[:2])
    told = Told(
        f"{blame.where}: carries {_worth(facts, blame, links, count)} of {count} links' worth.",
        seen[0] if seen else likely,
        f"nvidia-smi nvlink -s -i {gpus}; nvidia-smi nvlink -e -i {gpus}",
        sure=seen is not None,
    )
    return _finding(facts, Kind.NV_DEGRADED, blame, links, told)


def _worth(facts: Facts, blame: Blame, links: dict[Link, Reading], count: int) -> str:
    """Return how many links' worth the slow path carries, by what a link of a healthy path here carries."""
    limit = path_limit(facts, min(blame.links)) or 0.0
    healthy = [
        reading.gbs / nvlink_count(facts.label(link))
        for link, reading in links.items()
        if is_nvlink(facts.label(link)) and reading.gbs >= _DEGRADED * (path_limit(facts, link) or float("inf"))
    ]
    one = median(healthy) if healthy else _HEALTHY_SHARE * limit / count
    carried = median(links[link].gbs for link in blame.links) / one
    return f"{carried:.0f}" if carried >= 1 else f"{carried:.1f}"


@dataclass(frozen=True, slots=True)
class Odd:
    """What nobody should be compared with: links that their label says nothing of, and labels that mix unlike paths.

    `unused` are NVLinks that copies do not use: NCCL does not either.
    """

    links: frozenset[Link]
    labels: frozenset[str]
    unused: frozenset[Link]

    def speaks(self, reading: Reading) -> bool:
        """Return whether a reading may be compared with others of its label.

        PCIe paths share wires: there only what ran alone counts, or what an audit of their label found to be as fast
        as alone. Of a label that mixes unlike paths, or whose copies all meet in host memory, an audit says nothing but
        of the two pairs that it sampled.
        """
        if self.links & {(reading.members[0], reading.members[-1])}:
            return False
        return is_nvlink(reading.label) or reading.isolated or (reading.alone and reading.label not in self.labels)


def has_peers(facts: Facts, link: tuple[int, ...]) -> bool:
    """Return whether nobody denies peer access to a pair."""
    path = facts.paths.get(frozenset(link))
    return path is not None and path.cuda_peers is not False and path.peer_access in (None, "OK")


def beyond_labels(facts: Facts, findings: list[Finding]) -> Odd:
    """Return what the findings of `limits` show to be beyond its label; in a virtual machine that is all of PCIe."""

    def links_of(*kinds: Kind) -> frozenset[Link]:
        return both_ways(link for finding in findings if finding.verdict.kind in kinds for link in finding.links)

    hidden = {finding.verdict.label for finding in findings if finding.verdict.kind is Kind.HIDDEN_NVLINK}
    virtual = facts.run.machine.virtualization in VIRTUAL
    mixed = (virtual or path.label in hidden or not has_peers(facts, path.devices) for path in facts.run.paths)
    labels = frozenset(path.label for path, unlike in zip(facts.run.paths, mixed, strict=True) if unlike)
    return Odd(links_of(Kind.HIDDEN_NVLINK, Kind.IMPOSSIBLE), labels, links_of(Kind.NV_NOT_USED))
