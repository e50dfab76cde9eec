"""Links that fail, and copies against the limit of their path: too slow or too fast (docs/method/verdicts.md 5)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import permutations
from statistics import median
from typing import Any, NamedTuple

from collbench.judge.diagnose.blame import THROTTLED, Blame, blames, of_devices, unhealthy_devices, verdict_on
from collbench.judge.diagnose.elements import Part
from collbench.judge.diagnose.readings import CE, CPU, OUTLYING, SM, Facts, Reading
from collbench.judge.diagnose.verdict import (
    NVLINKS_DOWN,
    Cause,
    Kind,
    Link,
    Verdict,
    both_ways,
    directed_links,
    names,
    on,
)
from collbench.judge.outcome import corruptions
from collbench.judge.physics import Impossible, impossible
from collbench.machine.labels import is_nvlink, nvlink_count
from collbench.machine.theory import DEGRADED
from collbench.model.errors import FailureKind
from collbench.model.operations import Work
from collbench.model.run import Measurement, Skipped, tags
from collbench.model.units import amount, grouped

# Wrong data, hangs and other failures: these links are useless, whatever their rate.

_ACS = "sudo lspci -vvv | grep ACSCtl; sudo dmesg | grep -i -e iommu -e dmar -e Xid; cat /proc/cmdline"
_FABRIC = "sudo dmesg | grep -i -e Xid -e SXid; systemctl status nvidia-fabricmanager; nvidia-smi nvlink -e"


def failures(facts: Facts) -> Iterator[Verdict]:
    """Yield the devices where data was wrong, those where the work never ended, and those where it failed otherwise."""
    yield from _corruptions(facts)
    given_up = grouped(
        (Kind.HANG if bad.failure.kind is FailureKind.HANG else Kind.FAILED, bad)
        for bad in facts.run.measurements
        if bad.failure and not bad.untried and not bad.wrong
    )
    for kind, those in given_up.items():
        yield from _given_up(facts, kind, those)


def _corruptions(facts: Facts) -> Iterator[Verdict]:
    cases: dict[tuple[tuple[int, ...], tuple[Link, ...]], Skipped | Measurement] = {}
    for work, members, case in corruptions(facts.run):
        devices = _affected(work, members)
        links = directed_links(work, members) if work else ()
        cases.setdefault((devices, links or tuple(permutations(devices, 2))), case)
    for (members, links), case in cases.items():
        text = "wrong data arrived"
        if isinstance(case, Measurement) and case.failure is None:
            text = f"wrong data arrived, {case.wrong} wrong elements of {case.point.work}"
        place = tags(members, facts.run.devices, " → " if len(links) == 1 else ", ")
        yield _failed(facts, Kind.DATA_CORRUPT, Blame(frozenset(links), members, place), text, case)


def _given_up(facts: Facts, kind: Kind, bad: Sequence[Measurement]) -> Iterator[Verdict]:
    on_links: dict[Link, list[Measurement]] = defaultdict(list)
    elsewhere: dict[tuple[int, ...], list[Measurement]] = defaultdict(list)
    copies = [copy for copy in facts.run.measurements if copy.point.work in (*CE, *SM, *CPU)]
    broken = {link for copy in copies if copy.failure for link in directed_links(copy.point.work, copy.point.members)}
    sound = {link for copy in copies for link in directed_links(copy.point.work, copy.point.members)} - broken
    for failed in bad:
        links = directed_links(failed.point.work, failed.point.members)
        if broken.intersection(links):  # a collective fails with either way of its pair; copies tell which
            links = tuple(link for link in links if link not in sound)
        for link in links:
            on_links[link].append(failed)
        if not links:
            elsewhere[_affected(failed.point.work, failed.point.members)].append(failed)
    points = (measurement.point for measurement in facts.run.measurements)
    tried = {link for point in points for link in directed_links(point.work, point.members)}
    cases = [
        (blame, [measurement for link in sorted(blame.links) for measurement in on_links[link]])
        for blame in blames(facts, on_links, tried)
    ]
    cases += [
        (of_devices(facts, members, permutations(members, 2)), ours) for members, ours in sorted(elsewhere.items())
    ]
    for blame, ours in cases:
        happened = "the work never ended" if kind is Kind.HANG else "the work failed"
        text = f"{happened} ({names(measurement.point.work for measurement in ours)})"
        yield _failed(facts, kind, blame, text, ours[0])


def _affected(work: Work | None, members: tuple[int, ...]) -> tuple[int, ...]:
    """Return the devices to blame: if all copy at once, the one that is timed."""
    return work.place(members) if work and work.variant.at_once else members


def _failed(facts: Facts, kind: Kind, blame: Blame, text: str, case: Skipped | Measurement) -> Verdict:
    """Return a verdict that rests on `case`; a hang's own failure says no more than that it hangs."""
    failure = case.failure if isinstance(case, Measurement) and kind is not Kind.HANG else None
    skipped = case if isinstance(case, Skipped) else None
    return verdict_on(facts, kind, blame, text, _cause(facts, kind, blame.links), failure=failure, skipped=skipped)


def _cause(facts: Facts, kind: Kind, links: frozenset[Link]) -> Cause:
    """Return the likely cause of a failure."""
    if kind is Kind.FAILED:
        text = "a CUDA or NCCL call, the driver or a worker process failed"
        return Cause("call_failed", text, "sudo dmesg | grep -i -e Xid -e nvidia")
    if facts.on_cores:
        text = "this machine's memory or a core is faulty"
        return Cause("faulty_cores", text, "sudo dmesg | grep -i -e mce -e edac; memtest86+")
    if links and all(map(facts.over_nvlink, links)):
        text = "an NVLink, a GPU's memory or the NVSwitch fabric is faulty, or a virtual IOMMU is set up wrongly"
        return Cause("faulty_nvlinks", text, f"{_FABRIC}; {_ACS}")
    does = "corrupts" if kind is Kind.DATA_CORRUPT else "stalls"
    text = (
        f"usually an IOMMU or PCIe ACS, which {does} transfers between GPUs [pytorch#84803, nccl#667, nccl#2079]; "
        "'collbench check --map-p2p' reads both"
    )
    return Cause(f"acs_{does}", text, _ACS)


# Copies against the limit of their path: slower than its NVLinks, or faster than is possible.

# Healthy copies reach 0.88 (H200, NVSwitch) to 0.97 (V100) of theory.
_HEALTHY_SHARE = 0.9
_NEAR_WHOLE = 0.15  # of a link: a rate that differs by more is not that of a whole number of links
VIRTUAL = ("pass-through", "vGPU")  # NVML's words for a GPU inside a virtual machine


@lru_cache(maxsize=2)  # rules that compare links ask, too
def limits(facts: Facts) -> tuple[Verdict, ...]:
    """Return what copies show against their path's theory. Needs copies of 16 MiB or more."""
    # The fastest copy of each link that was measured at a size that shows bandwidth.
    pairs = permutations(range(len(facts.run.devices)), 2)
    links = {link: reading for link in pairs if (reading := facts.readings.best(link))}
    return *_too_fast(facts, links), *_too_slow(facts, links)


def _too_fast(facts: Facts, links: Mapping[Link, Reading]) -> Iterator[Verdict]:
    beaten = impossible(facts.run)
    crossed = ((excess, directed_links(excess.point.work, excess.point.members)) for excess in beaten)
    of_links = grouped((link, excess) for excess, links_crossed in crossed for link in links_crossed)
    yield from _hidden(facts, links, of_links.keys())
    judged = {
        link
        for measurement in facts.run.measurements
        if measurement.samples
        for link in directed_links(measurement.point.work, measurement.point.members)
    }
    for blame in _blames_by_label(facts, set(of_links), judged):
        yield _impossible(facts, blame, [excess for link in sorted(blame.links) for excess in of_links[link]])
    of_others = [excess for excess in beaten if not directed_links(excess.point.work, excess.point.members)]
    if of_others:
        members = tuple(sorted({device for excess in of_others for device in excess.capacity.devices}))
        yield _impossible(facts, of_devices(facts, members), of_others)


def _hidden(facts: Facts, links: Mapping[Link, Reading], impossible_links: Collection[Link]) -> Iterator[Verdict]:
    """Yield where NVLinks that no label shows carry what was measured: large copies, else anything beyond PCIe."""
    check, rates = facts.check, defaultdict[Link, list[float]](list)
    others: dict[tuple[int, ...], list[float]] = defaultdict(list)  # of more than two devices
    for measurement in facts.run.measurements:
        if check.shows_hidden(measurement):
            point, rate = measurement.point, check.fastest(measurement)
            crossed = directed_links(point.work, point.members)
            for link in crossed:
                rates[link].append(rate)
            if not crossed:
                others[tuple(sorted(point.members))].append(rate)
    shown = {link for link in links if frozenset(link) in check.hidden}
    hidden = (shown | rates.keys()) - {*impossible_links}
    cases = [
        (blame, [rate for link in blame.links for rate in rates[link]])
        for blame in _blames_by_label(facts, hidden, links.keys() | hidden)
    ]
    cases += [
        (of_devices(facts, members), beyond)
        for members, beyond in sorted(others.items())
        if not any({*link} <= {*members} for link in hidden)
    ]
    vm = facts.run.machine.virtualization
    hides = "a virtual machine or the driver" if vm in ("", "none") else f"the virtual machine ({vm})"
    for blame, beyond in cases:
        cause = Cause(
            "nvlinks_hidden",
            f"{hides} hides NVLinks or NVSwitches that the copies use, so no label shows them; or the timing is wrong",
            f"nvidia-smi nvlink -s{on(facts.run, blame.members[:1])}; lspci | grep -i nvidia",
        )
        text, more = "faster than PCIe can be, though the label has no NVLink", dict[str, Any]()
        readings = [links[link] for link in blame.links if link in shown]
        if not readings:  # then it says of the fastest batches of data points
            limit = facts.limit(min(blame.links)) if blame.links else None
            more = {"theory_gbs": limit, "measured": (min(beyond), median(beyond), max(beyond))}
        yield verdict_on(facts, Kind.HIDDEN_NVLINK, blame, text, cause, readings, **more)


def _blames_by_label(facts: Facts, bad: set[Link], links: Collection[Link], *, rates: bool = False) -> Iterator[Blame]:
    """Yield the groups of bad links, each within one label and limit: they are compared with it."""
    classes: dict[tuple[str, float | None], set[Link]] = defaultdict(set)
    for link in bad:
        classes[facts.label(link), facts.limit(link)].add(link)
    for (label, limit), ours in sorted(classes.items(), key=lambda item: item[0][0]):
        alike = [link for link in links if (facts.label(link), facts.limit(link)) == (label, limit)]
        yield from blames(facts, ours, alike, rates=rates)


def _impossible(facts: Facts, blame: Blame, beaten: Sequence[Impossible]) -> Verdict:
    """Return the verdict on rates above their limit; noise needs no margin here, because no batch can be too fast."""
    worst = max(beaten, key=lambda excess: excess.rate_gbs / excess.capacity.gbs)
    works, batches = (
        names(excess.point.work for excess in beaten),
        sum({excess.point: excess.batches for excess in beaten}.values()),
    )
    above = f"{worst.rate_gbs:.0f} GB/s, above the capacity of the {worst.capacity.part}, {worst.capacity.gbs:.0f} GB/s"
    rates = sorted(excess.rate_gbs for excess in beaten)
    text = f"{above} ({works}; {batches} batch{'' if batches == 1 else 'es'})"
    cause = Cause(
        "timing_or_limit",
        "the timing is wrong, or the limit is: the driver may report fewer or slower links than there are",
        f"nvidia-smi nvlink -s{on(facts.run, blame.members[:1])}; nvidia-smi topo -m",
    )
    measured = rates[0], median(rates), rates[-1]
    return verdict_on(facts, Kind.IMPOSSIBLE, blame, text, cause, theory_gbs=worst.capacity.gbs, measured=measured)


def _too_slow(facts: Facts, links: Mapping[Link, Reading]) -> Iterator[Verdict]:
    ours = {link: reading for link, reading in links.items() if facts.limit(link) and facts.over_nvlink(link)}
    slow = {link: DEGRADED * (facts.limit(link) or 0.0) for link in ours}
    ceilings = {link: ceiling for link in ours if (ceiling := facts.pcie_ceiling(link)) is not None}
    unused = _below(facts, ours, {link: min(slow[link], ceiling) for link, ceiling in ceilings.items()})
    degraded = _below(facts, ours, slow)
    # A slow GPU lowers its single NVLinks below a slot's rate, too: if others that are as slow are used, these are.
    in_use = degraded - {link for link in degraded if ours[link].gbs <= ceilings.get(link, 0.0)}
    of_slow = {gpu for link in in_use for gpu in link if all(other in degraded for other in ours if gpu in other)}
    unused -= {link for link in unused if of_slow & {*link}}
    # Throttling does so, too, if only links of throttled GPUs are so slow.
    held_back = {gpu for gpu, cause in unhealthy_devices(facts).causes.items() if cause.name == THROTTLED}
    if all(held_back & {*link} for link in unused) and ours.keys() - degraded:
        unused = set()
    for blame in _blames_by_label(facts, unused, links):
        yield _unused(facts, blame, links)
    for blame in _blames_by_label(facts, degraded - unused, links, rates=True):
        yield _degraded(facts, blame, links)


def _below(facts: Facts, links: Mapping[Link, Reading], bounds: Mapping[Link, float]) -> set[Link]:
    """Return the links whose rates lie below their bounds: surely, and no link as slow as they are may be above it.

    Near a bound all links of a kind are equally slow, and noise chooses those that lie below. A link that is too noisy
    for certainty, and otherwise like those that are surely below, counts as they do.
    """
    sure = {link for link, bound in bounds.items() if facts.readings.interval(links[link])[2] < bound}
    below = set[Link]()
    for alike in grouped(((facts.label(link), facts.limit(link)), link) for link in bounds).values():
        for link in sure.intersection(alike):
            near = {other for other in alike if not facts.readings.exceeds(links[other], links[link], OUTLYING)}
            off = facts.readings.z * links[link].error
            if all(other in sure or math.exp(links[other].middle + off) < bounds[other] for other in near):
                below |= near
    return below


def _unused(facts: Facts, blame: Blame, links: Mapping[Link, Reading]) -> Verdict:
    fix = f"nvidia-smi topo -p2p r; nvidia-smi nvlink -s{on(facts.run, blame.members[:2])}"
    down = "the NVLinks are down or not set up"
    others = any(facts.over_nvlink(link) for link in links.keys() - blame.links)
    if not others and all(map(facts.hardware.switched, blame.members)):
        fix, down = f"{fix}; systemctl status nvidia-fabricmanager", f"{down}, or the fabric manager is not running"
    if any(facts.paths[frozenset(link)].cuda_peers is False for link in blame.links):
        refused = "CUDA refuses peer access, so copies pass through host memory"
        cause = Cause("peers_refused", refused, fix, seen=True)
    else:
        common = set[int].intersection(*({*link} for link in blame.links))
        of_gpu = () if blame.gpu is None else (blame.gpu,)
        cause = unhealthy_devices(facts).cause(common) or Cause(NVLINKS_DOWN, down, fix, of_gpu)
    text = f"copies are no faster than PCIe allows, though the label is {facts.label(min(blame.links))}"
    return verdict_on(facts, Kind.NV_NOT_USED, blame, text, cause, [links[link] for link in blame.links])


def _degraded(facts: Facts, blame: Blame, links: Mapping[Link, Reading]) -> Verdict:
    count = nvlink_count(facts.label(min(blame.links)))
    worth = _worth(facts, blame, links, count)
    whole = round(worth) if abs(worth - round(worth)) <= _NEAR_WHOLE else 0  # else no number of links explains it
    text = f"reaches {worth / count:.0%} of what {amount(count, 'healthy link')} {'does' if count == 1 else 'do'}"
    if whole:
        text = f"reaches the rate of {whole} of {amount(count, 'link')}"
    cause = unhealthy_devices(facts).cause(blame.members) or _lanes(facts, blame)
    return verdict_on(facts, Kind.NV_DEGRADED, blame, text, cause, [links[link] for link in blame.links])


def _lanes(facts: Facts, blame: Blame) -> Cause:
    which = on(facts.run, blame.members[:2])
    fix = f"nvidia-smi nvlink -s{which}; nvidia-smi nvlink -e{which}"
    if blame.cause is not None:
        return replace(blame.cause, fix=fix)
    if blame.gpu is not None:
        ports = " or its switch ports" if facts.hardware.switched(blame.gpu) else ""
        own = f"{facts.run.devices[blame.gpu].tag} itself: its NVLinks{ports} are down or slow"
        return Cause(Part.GPU, own, fix, (blame.gpu,))
    wrong = "NVLinks are down, run at a lower rate, or replay packets (a cable, bridge or port)"
    return Cause("nvlinks_degraded", f"{blame.only or 'these paths'}: {wrong}", fix)


def _worth(facts: Facts, blame: Blame, links: Mapping[Link, Reading], count: int) -> float:
    """Return how many healthy NVLinks of this machine would have the rate of the slow path."""
    limit = facts.limit(min(blame.links)) or 0.0
    healthy = [
        reading.gbs / nvlink_count(facts.label(link))
        for link, reading in links.items()
        if facts.over_nvlink(link) and reading.gbs >= DEGRADED * (facts.limit(link) or float("inf"))
    ]
    one = median(healthy) if healthy else _HEALTHY_SHARE * limit / count
    return median(links[link].gbs for link in blame.links) / one


class ExcludedLinks(NamedTuple):
    """Links and labels to leave out of comparisons, because the label does not describe the link or mixes unlike paths.

    `unused` are NVLinks that copies do not use: NCCL does not use them either.
    """

    links: frozenset[Link]
    labels: frozenset[str]
    unused: frozenset[Link]

    def comparable(self, reading: Reading) -> bool:
        """Return whether a reading may be compared with others of its label.

        PCIe paths share links, so only isolated samples count, and those of labels that interference checks found to be
        as fast concurrently. An interference check samples two pairs. For a label that mixes unlike paths, or whose
        copies all go through host memory, it does not stand for the other pairs.
        """
        if self.links & {(reading.members[0], reading.members[-1])}:
            return False
        return is_nvlink(reading.label) or reading.isolated or (reading.confirmed and reading.label not in self.labels)


def excluded_links(facts: Facts, found: Sequence[Verdict]) -> ExcludedLinks:
    """Return what the labels do not describe, by the verdicts of `limits`; in a virtual machine that is all of PCIe."""

    def links_of(*kinds: Kind) -> frozenset[Link]:
        return both_ways(link for verdict in found if verdict.kind in kinds for link in verdict.links)

    hidden = {verdict.label for verdict in found if verdict.kind is Kind.HIDDEN_NVLINK}
    virtual = facts.run.machine.virtualization in VIRTUAL
    mixed = (virtual or path.label in hidden or not facts.has_peers(path.devices) for path in facts.run.paths)
    labels = frozenset(path.label for path, unlike in zip(facts.run.paths, mixed, strict=True) if unlike)
    return ExcludedLinks(links_of(Kind.HIDDEN_NVLINK, Kind.IMPOSSIBLE), labels, links_of(Kind.NV_NOT_USED))
