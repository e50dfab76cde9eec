"""Links that fail, and copies against the limit of their path: too slow or too fast (docs/method.md 10.2)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from statistics import median

from collbench.analysis.diagnose.blame import Blame, UnhealthyDevices, blames
from collbench.analysis.diagnose.causes import Check, GpuItself, GpuPart, HidesNvlinks, Known, Look, NvlinksDegraded
from collbench.analysis.diagnose.evidence import (
    Beaten,
    Evidence,
    Extent,
    FewerLinks,
    GivenUp,
    HiddenLinks,
    UnusedNvlinks,
    Where,
    WrongElements,
)
from collbench.analysis.diagnose.readings import COPY_BYTES, STAGED, Facts, Reading
from collbench.analysis.diagnose.verdict import (
    Finding,
    Kind,
    Link,
    Message,
    Rates,
    both_ways,
    directed_links,
    make_finding,
)
from collbench.analysis.physics import DEGRADED, FASTEST_PCIE_GBS, HIDDEN, Impossible, impossible
from collbench.machine.labels import is_nvlink, nvlink_count
from collbench.machine.theory import slot
from collbench.model.capabilities import capabilities
from collbench.model.failures import FailureKind
from collbench.model.operations import Variant, Work
from collbench.model.run import Measurement, SkipKind, Skipped

# Wrong data, hangs and other failures: what makes a link useless, whatever its rate.

_ACS = (Check(Look.ACS), Check(Look.LOG_IOMMU_GPUS), Check(Look.KERNEL_COMMAND))
_FABRIC = (Check(Look.LOG_FABRIC), Check(Look.FABRIC_MANAGER), Check(Look.NVLINK_ERRORS))


def failures(facts: Facts) -> Iterator[Finding]:
    """Yield the devices where data was wrong, those where the work never ended, and those where it failed otherwise."""
    yield from _corruptions(facts)
    given_up = [bad for bad in facts.run.measurements if bad.failure and not bad.untried and not bad.wrong]
    hung = [bad for bad in given_up if bad.failure is not None and bad.failure.kind is FailureKind.HANG]
    yield from _given_up(facts, Kind.HANG, hung)
    yield from _given_up(facts, Kind.FAILED, [bad for bad in given_up if bad not in hung])


def _corruptions(facts: Facts) -> Iterator[Finding]:
    cases: dict[tuple[int, ...], Skipped | Measurement] = {}
    for left in facts.run.skipped:
        if left.kind is SkipKind.WRONG_DATA:
            cases.setdefault(_about(left.work, left.members), left)
    for bad in facts.run.measurements:
        if bad.wrong:
            cases.setdefault(_about(bad.point.work, bad.point.members), bad)
    for members, case in cases.items():
        evidence = WrongElements(0, None)
        if isinstance(case, Measurement) and case.failure is None:
            evidence = WrongElements(case.wrong or 0, case.point.work)
        yield _failure_finding(
            facts, Kind.DATA_CORRUPT, Where(Extent.DEVICES, members), evidence, _set_links(members), case
        )


def _given_up(facts: Facts, kind: Kind, bad: Sequence[Measurement]) -> Iterator[Finding]:
    links: dict[Link, list[Measurement]] = defaultdict(list)
    for one in bad:
        if _on_a_pair(one):
            for link in _links_of(one):
                links[link].append(one)
    tried = {link for m in facts.run.measurements if _on_a_pair(m) for link in _links_of(m)}
    for blame in blames(facts, links, tried):
        ours = [one for link in sorted(blame.links) for one in links[link]]
        yield _failure_finding(facts, kind, blame.where, GivenUp(_works(ours)), blame.links, ours[0])
    for members in sorted({_about(one.point.work, one.point.members) for one in bad if not _on_a_pair(one)}):
        ours = [one for one in bad if _about(one.point.work, one.point.members) == members]
        where = Where(Extent.DEVICES, members)
        yield _failure_finding(facts, kind, where, GivenUp(_works(ours)), _set_links(members), ours[0])


def _works(bad: Sequence[Measurement]) -> tuple[Work, ...]:
    return tuple(sorted({one.point.work for one in bad}, key=str))


def _about(work: Work | None, members: tuple[int, ...]) -> tuple[int, ...]:
    """Return the devices that are to blame: of all at once the one that is timed."""
    return work.place(members) if work and work.variant.at_once else members


def _on_a_pair(measurement: Measurement) -> bool:
    return len(_about(measurement.point.work, measurement.point.members)) == 2


def _links_of(measurement: Measurement) -> tuple[Link, ...]:
    a, b = measurement.point.members
    directed = measurement.point.operation.is_copy and measurement.point.variant is not Variant.BOTH_WAYS
    return ((a, b),) if directed else ((a, b), (b, a))


def _set_links(members: tuple[int, ...]) -> frozenset[Link]:
    return both_ways((a, b) for a in members for b in members if a != b)


def _failure_finding(
    facts: Facts, kind: Kind, where: Where, evidence: Evidence, links: frozenset[Link], case: Skipped | Measurement
) -> Finding:
    """Return a finding that rests on `case`; a hang's own failure says no more than that it hangs."""
    cause, checks = _cause(facts, kind, links)
    first = min(links, default=None)
    label = facts.label(first) if first else ""
    skipped, failure = (case, None) if isinstance(case, Skipped) else (None, case.failure)
    said = None if kind is Kind.HANG else failure
    message = Message(evidence, cause, checks, where, failure=said, skipped=skipped)
    return make_finding(kind, where.devices, links, message, Rates(label))


def _cause(facts: Facts, kind: Kind, links: frozenset[Link]) -> tuple[Known, tuple[Check, ...]]:
    if kind is Kind.FAILED:
        return Known.CALL_FAILED, (Check(Look.LOG_DRIVER),)
    if capabilities(facts.run.backend).cores:
        return Known.FAULTY_CORES, (Check(Look.LOG_MEMORY), Check(Look.MEMORY_TEST))
    if links and all(is_nvlink(facts.label(link)) for link in links):
        return Known.FAULTY_NVLINKS, _FABRIC + _ACS
    return Known.ACS_CORRUPTS if kind is Kind.DATA_CORRUPT else Known.ACS_STALLS, _ACS


# Copies against the limit of their path: too slow for its NVLinks, or too fast for anything.

# Healthy copies reach 0.88 (H200, NVSwitch) to 0.97 (V100) of theory.
_HEALTHY_SHARE = 0.9
VIRTUAL = ("pass-through", "vGPU")  # NVML's words for a GPU inside a virtual machine


def limits(facts: Facts, ill: UnhealthyDevices) -> Iterator[Finding]:
    """Yield what copies show against their path's theory. Needs copies of 16 MiB or more."""
    # The fastest copy of each link that was measured at a size that shows bandwidth.
    pairs = permutations(range(len(facts.run.devices)), 2)
    links = {link: reading for link in pairs if (reading := facts.readings.best(link))}
    yield from _too_fast(facts, links)
    yield from _too_slow(facts, links, ill)


def pcie_ceiling(facts: Facts, members: tuple[int, ...]) -> float | None:
    """Return what PCIe carries at most between these devices in GB/s: by their slots, else as measured, else None."""
    slots = [slot(facts.run.devices[member]) for member in members]
    if all(slots):
        return min(limit.gbs for limit in slots if limit)
    readings = facts.readings
    host = [reading for member in members for reading in readings.host(member)]
    staged = [reading for pair, reading in readings.of(STAGED, COPY_BYTES).items() if set(pair) <= set(members)]
    measured = [readings.interval(reading)[2] for reading in (*host, *staged)]
    return max(measured, default=None)


def path_limit(facts: Facts, link: Link) -> float | None:
    """Return the theory of a path in GB/s; of a PCIe path the slower slot's where the path has none."""
    return facts.hardware.link(*link)


def _too_fast(facts: Facts, links: dict[Link, Reading]) -> Iterator[Finding]:
    beaten, of_links = impossible(facts.run), defaultdict[Link, list[Impossible]](list)
    for one in beaten:
        for link in directed_links(one.point.work, one.point.members):
            of_links[link].append(one)
    on_cores = capabilities(facts.run.backend).cores
    over_pcie = {link for link in links if not on_cores and not is_nvlink(facts.label(link))} - of_links.keys()
    most = {link: HIDDEN * (path_limit(facts, link) or FASTEST_PCIE_GBS) for link in over_pcie}
    hidden = {link for link in over_pcie if facts.readings.interval(links[link])[0] > most[link]}
    for blame in _by_label(facts, hidden, links):
        yield _hidden(facts, blame, links)
    judged = {
        link
        for measurement in facts.run.measurements
        if measurement.samples
        for link in directed_links(measurement.point.work, measurement.point.members)
    }
    for blame in _by_label(facts, set(of_links), judged):
        yield _impossible(facts, blame, [one for link in sorted(blame.links) for one in of_links[link]])
    of_others = [one for one in beaten if not directed_links(one.point.work, one.point.members)]
    if of_others:
        members = tuple(sorted({device for one in of_others for device in one.capacity.devices}))
        yield _impossible(facts, Blame(members, frozenset(), Where(Extent.DEVICES, members)), of_others)


def _by_label(facts: Facts, bad: set[Link], links: Collection[Link]) -> Iterator[Blame]:
    """Yield the groups of bad links, each within one label and limit: they are compared with it."""
    classes: dict[tuple[str, float | None], set[Link]] = defaultdict(set)
    for link in bad:
        classes[facts.label(link), path_limit(facts, link)].add(link)
    for (label, limit), ours in sorted(classes.items(), key=lambda item: item[0][0]):
        alike = [link for link in links if (facts.label(link), path_limit(facts, link)) == (label, limit)]
        yield from blames(facts, ours, alike)


def _finding(facts: Facts, kind: Kind, blame: Blame, links: dict[Link, Reading], message: Message) -> Finding:
    readings = [links[link] for link in blame.links]
    first = min(blame.links)
    rates = Rates(
        facts.label(first),
        path_limit(facts, first),
        facts.readings.span(readings),
        confirmed=all(reading.alone for reading in readings),
    )
    return make_finding(kind, blame.members, blame.links, message, rates)


def _hidden(facts: Facts, blame: Blame, links: dict[Link, Reading]) -> Finding:
    virtual = facts.run.machine.virtualization
    message = Message(
        HiddenLinks(),
        HidesNvlinks(virtual if virtual != "none" else ""),
        (Check(Look.NVLINKS, blame.members[:1]), Check(Look.PCIE_DEVICES)),
        blame.where,
    )
    return _finding(facts, Kind.HIDDEN_NVLINK, blame, links, message)


def _impossible(facts: Facts, blame: Blame, beaten: Sequence[Impossible]) -> Finding:
    """Return the finding on what beats its limit; noise needs no margin here, for no batch can be too fast."""
    worst = max(beaten, key=lambda one: one.rate_gbs / one.capacity.gbs)
    works = tuple(sorted({one.point.work for one in beaten}, key=str))
    batches = sum({one.point: one.batches for one in beaten}.values())
    message = Message(
        Beaten(worst.rate_gbs, worst.capacity.part, worst.capacity.gbs, works, batches),
        Known.TIMING_OR_LIMIT,
        (Check(Look.NVLINKS, blame.members[:1]), Check(Look.LABELS)),
        blame.where,
    )
    rates = sorted(one.rate_gbs for one in beaten)
    label = facts.label(min(blame.links)) if blame.links else ""
    measured = (rates[0], median(rates), rates[-1])
    return make_finding(
        Kind.IMPOSSIBLE, blame.members, blame.links, message, Rates(label, worst.capacity.gbs, measured)
    )


def _too_slow(facts: Facts, links: dict[Link, Reading], ill: UnhealthyDevices) -> Iterator[Finding]:
    unused: set[Link] = set()
    degraded: set[Link] = set()
    for link, reading in links.items():
        limit = path_limit(facts, link)
        if limit is None or not is_nvlink(facts.label(link)):
            continue
        high = facts.readings.interval(reading)[2]
        if high < DEGRADED * limit:
            ceiling = pcie_ceiling(facts, link)
            (unused if ceiling is not None and high <= ceiling else degraded).add(link)
    for blame in _by_label(facts, unused, links):
        yield _unused(facts, blame, links)
    for blame in _by_label(facts, degraded, links):
        yield _degraded(facts, blame, links, ill)


def _unused(facts: Facts, blame: Blame, links: dict[Link, Reading]) -> Finding:
    refused = any(facts.paths[frozenset(link)].cuda_peers is False for link in blame.links)
    message = Message(
        UnusedNvlinks(facts.label(min(blame.links))),
        Known.PEERS_REFUSED if refused else Known.NVLINKS_DOWN,
        (Check(Look.PEERS), Check(Look.NVLINKS, blame.members[:1]), Check(Look.FABRIC_MANAGER)),
        blame.where,
        sure=refused,
    )
    return _finding(facts, Kind.NV_NOT_USED, blame, links, message)


def _degraded(facts: Facts, blame: Blame, links: dict[Link, Reading], ill: UnhealthyDevices) -> Finding:
    count = nvlink_count(facts.label(min(blame.links)))
    likely = NvlinksDegraded(blame.alone) if blame.gpu is None else GpuItself(blame.gpu, GpuPart.NVLINKS)
    gpus = blame.members[:2]
    message = Message(
        FewerLinks(_worth(facts, blame, links, count), count),
        ill.cause(blame.members) or likely,
        (Check(Look.NVLINKS, gpus), Check(Look.NVLINK_ERRORS, gpus)),
        blame.where,
    )
    return _finding(facts, Kind.NV_DEGRADED, blame, links, message)


def _worth(facts: Facts, blame: Blame, links: dict[Link, Reading], count: int) -> float:
    """Return how many links' worth the slow path carries, by what a link of a healthy path here carries."""
    limit = path_limit(facts, min(blame.links)) or 0.0
    healthy = [
        reading.gbs / nvlink_count(facts.label(link))
        for link, reading in links.items()
        if is_nvlink(facts.label(link)) and reading.gbs >= DEGRADED * (path_limit(facts, link) or float("inf"))
    ]
    one = median(healthy) if healthy else _HEALTHY_SHARE * limit / count
    return median(links[link].gbs for link in blame.links) / one


@dataclass(frozen=True, slots=True)
class ExcludedLinks:
    """Links that others must not be compared with: their label says nothing of them, or mixes unlike paths.

    `unused` are NVLinks that copies do not use: NCCL does not either.
    """

    links: frozenset[Link]
    labels: frozenset[str]
    unused: frozenset[Link]

    def speaks(self, reading: Reading) -> bool:
        """Return whether a reading may be compared with others of its label.

        PCIe paths share links: there only what ran alone counts, or what an interference check of their label found to
        be as fast as alone. Of a label that mixes unlike paths, or whose copies all meet in host memory, an
        interference check says nothing but of the two pairs that it sampled.
        """
        if self.links & {(reading.members[0], reading.members[-1])}:
            return False
        return is_nvlink(reading.label) or reading.isolated or (reading.alone and reading.label not in self.labels)


def has_peers(facts: Facts, link: tuple[int, ...]) -> bool:
    """Return whether no source denies peer access to a pair."""
    path = facts.paths.get(frozenset(link))
    return path is not None and path.cuda_peers is not False and not path.peers_denied


def beyond_labels(facts: Facts, findings: list[Finding]) -> ExcludedLinks:
    """Return what the findings of `limits` show to be beyond its label; in a virtual machine that is all of PCIe."""

    def links_of(*kinds: Kind) -> frozenset[Link]:
        return both_ways(link for finding in findings if finding.verdict.kind in kinds for link in finding.links)

    hidden = {finding.verdict.label for finding in findings if finding.verdict.kind is Kind.HIDDEN_NVLINK}
    virtual = facts.run.machine.virtualization in VIRTUAL
    mixed = (virtual or path.label in hidden or not has_peers(facts, path.devices) for path in facts.run.paths)
    labels = frozenset(path.label for path, unlike in zip(facts.run.paths, mixed, strict=True) if unlike)
    return ExcludedLinks(links_of(Kind.HIDDEN_NVLINK, Kind.IMPOSSIBLE), labels, links_of(Kind.NV_NOT_USED))
