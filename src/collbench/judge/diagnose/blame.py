"""What slow links are due to: the state of their devices, one GPU, or the link itself (docs/method.md 10.2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from collbench.judge.diagnose.causes import (
    Check,
    Either,
    ErrorCounter,
    Known,
    LikelyCause,
    Look,
    NewErrors,
    Shared,
    Throttled,
)
from collbench.judge.diagnose.elements import Element, blamed
from collbench.judge.diagnose.evidence import Evidence, Extent, Presence, Where
from collbench.judge.diagnose.readings import Facts, Reading
from collbench.judge.diagnose.verdict import Kind, Link, Verdict, both_ways, directed_links
from collbench.machine.health import BUSY_PERCENT, holds_back, only_opened
from collbench.model.run import FlagKind, Health, at_the_ends, new_errors

# What was wrong with the devices while they were measured, as causes: other processes, throttling, new errors.


@dataclass(frozen=True, slots=True)
class UnhealthyDevices:
    """What was seen on the devices, by position: throttling, processes of others, new errors."""

    throttled: dict[int, Throttled]
    shared: dict[int, Presence]
    errors: dict[int, NewErrors]

    def cause(self, members: Iterable[int]) -> Throttled | NewErrors | None:
        """Return what was wrong with the first unhealthy one of these devices, None if all were healthy."""
        for member in members:
            seen = self.throttled.get(member) or self.errors.get(member)
            if seen is not None:
                return seen
        return None


def check_of(seen: Throttled | NewErrors, devices: Sequence[int]) -> tuple[Check, ...]:
    """Return where the devices show what was seen on them."""
    return (Check(Look.LIMITING if isinstance(seen, Throttled) else Look.NVLINK_ERRORS, tuple(devices)),)


def unhealthy_devices(facts: Facts) -> UnhealthyDevices:
    """Return what disturbed the devices, by the flags of samples and the health before and after the run."""
    run = facts.run
    trials = sum(len(measurement.samples) for measurement in run.measurements)
    throttled: dict[int, Throttled] = {}
    shared: dict[int, Presence] = {}
    samples = (sample for measurement in run.measurements for sample in measurement.samples)
    flags = Counter(
        (flag.kind, position, flag.reason)
        for sample in samples
        for flag in set(sample.flags)
        for position in flag.devices
    )
    for (kind, position, reason), count in sorted(flags.items()):
        seen = Presence(position, count, trials)
        if kind is FlagKind.SHARED:
            shared[position] = seen
        elif kind is FlagKind.THROTTLED and holds_back(reason):
            throttled[position] = Throttled((reason,), seen)
    for when, position, state in at_the_ends(run):  # where no trial was flagged with it
        seen = Presence(position, when=when)
        if reasons := tuple(reason for reason in state.throttle if holds_back(reason)):
            throttled.setdefault(position, Throttled(reasons, seen))
        if state.processes:
            shared.setdefault(position, seen)
    errors: dict[int, NewErrors] = {}
    for counter in ErrorCounter:
        for position, (first, last) in new_errors(run, counter).items():
            errors.setdefault(position, NewErrors(position, counter, last - first))
    resting = {position for position, state in enumerate(run.health_before) if _rests(state)}
    shared = {position: seen for position, seen in shared.items() if position not in resting}
    return UnhealthyDevices(throttled, shared, errors)


def _rests(state: Health) -> bool:
    """Return whether others' processes on a GPU did nothing: a notebook that holds memory slows nobody."""
    idle = state.utilization is not None and state.utilization <= BUSY_PERCENT
    return bool(state.processes) and (idle or only_opened(state))


# What to blame for slow links: if all links of a GPU are slow, the GPU; if one is, that link (docs/method.md 10.2).

# More links than this, with no GPU in common, share a cause that no single one shows.
_MOST_SINGLE = 4


@dataclass(frozen=True, slots=True)
class Blame:
    """Links with one likely cause: `gpu` is the position of the GPU that they have in common, None if there is none."""

    links: frozenset[Link]
    where: Where
    gpu: int | None = None
    element: Element | None = None

    @property
    def reach(self) -> frozenset[Link]:
        """The links that cross the shared element to blame, whether or not they are significantly slow."""
        return self.element.links if self.element and self.element.shared else frozenset()

    def or_element(self, cause: LikelyCause) -> LikelyCause:
        """Return the shared part of the tree that is to blame, else this cause."""
        return self.element.cause if self.element and isinstance(self.element.cause, Shared | Either) else cause

    @property
    def members(self) -> tuple[int, ...]:
        """The positions to blame."""
        return self.where.devices

    @property
    def single(self) -> Extent | None:
        """PAIR or DIRECTION where no more than that is to blame."""
        if self.gpu is not None or len(both_ways(self.links)) > 2:
            return None
        return Extent.PAIR if len(self.links) > 1 else Extent.DIRECTION


def blames(
    facts: Facts, slow: Collection[Link], judged: Collection[Link], *, rates: bool = False, collective: bool = False
) -> tuple[Blame, ...]:
    """Return the slow links in groups; `judged` are all links that could have been slow.

    NVLinks and PCIe paths of one GPU are different links, so they are grouped apart. With `rates` what was measured
    tells which elements they share: first by copies, then what is left of slow `collective` links by collectives.
    """
    groups: list[Blame] = []
    for over_nvlink in (True, False):
        ours = frozenset(link for link in slow if facts.over_nvlink(link) is over_nvlink)
        alike = frozenset(link for link in judged if facts.over_nvlink(link) is over_nvlink)
        if ours and ours == alike and len(both_ways(ours)) > 2:
            groups.append(_together(facts, ours, everything=True))
            continue
        for with_nccl in (False, True) if rates and ours else ():
            if ours and with_nccl <= collective:
                found = _by_elements(facts, ours, blamed(facts, over_nvlink=over_nvlink, collective=with_nccl))
                groups += found
                ours = ours.difference(*(one.links for one in found))
        groups += _grouped(facts, ours, alike)
    return tuple(groups)


def _by_elements(facts: Facts, slow: frozenset[Link], elements: Sequence[Element]) -> list[Blame]:
    groups: list[Blame] = []
    for element in elements:
        ours = (slow & element.links).difference(*(one.links for one in groups))
        if ours and element.shared:
            groups.append(on_element(facts, element, ours))
    return groups


def on_element(facts: Facts, element: Element, links: frozenset[Link]) -> Blame:
    """Return the blame of an element that several pairs share for these links, which cross it."""
    if element.extent is Extent.PAIRS:
        return replace(_together(facts, links, everything=False), element=element)
    return Blame(links, Where(element.extent, element.devices), element.devices[0], element)


def _grouped(facts: Facts, slow: frozenset[Link], judged: frozenset[Link]) -> Iterator[Blame]:
    rest = set(slow)
    for blame in _rows(slow, judged):
        if not blame.links & rest:
            continue
        yield replace(blame, links=blame.links & rest)
        rest -= blame.links
    single = list(_singles(frozenset(rest)))
    if len(single) > _MOST_SINGLE:
        yield _together(facts, frozenset(rest), everything=False)
    else:
        yield from single


def _rows(slow: frozenset[Link], judged: frozenset[Link]) -> list[Blame]:
    """Return the GPUs all of whose links, or all in one direction, are slow; those with most links first."""
    rows = []
    for gpu in sorted({member for link in slow for member in link}):
        both = frozenset(link for link in judged if gpu in link)
        candidates = (
            (both, Extent.ALL),
            (frozenset(link for link in both if link[0] == gpu), Extent.SENT),
            (frozenset(link for link in both if link[1] == gpu), Extent.RECEIVED),
        )
        for links, extent in candidates:
            if len({frozenset(link) for link in links}) > 1 and links <= slow:
                rows.append(Blame(links, Where(extent, (gpu,)), gpu))
                break
    return sorted(rows, key=lambda blame: -len(blame.links))


def _singles(slow: frozenset[Link]) -> Iterator[Blame]:
    for low, high in sorted({(min(link), max(link)) for link in slow}):
        links = [link for link in ((low, high), (high, low)) if link in slow]
        extent = Extent.PAIR if len(links) == 2 else Extent.DIRECTION
        yield Blame(frozenset(links), Where(extent, links[0]))


def _together(facts: Facts, links: frozenset[Link], *, everything: bool) -> Blame:
    pairs = {frozenset(link) for link in links}
    members = tuple(sorted({member for link in links for member in link}))
    names = tuple(sorted({facts.label(link) for link in links}))
    extent = Extent.ALL_PAIRS if everything else Extent.PAIRS
    return Blame(links, Where(extent, members, len(pairs), names, one_way=both_ways(links) != links))


def nccl_or_link(facts: Facts, links: Collection[Link], nccl: Known) -> Known:
    """Return `nccl` as the cause of slow collectives on links whose copies show that the links are not to blame."""
    return nccl if all(facts.readings.best(link) for link in links) else Known.LINK_OR_NCCL


def verdict_on(
    facts: Facts,
    kind: Kind,
    blame: Blame,
    readings: Collection[Reading],
    evidence: Evidence,
    cause: LikelyCause,
    checks: tuple[Check, ...],
) -> Verdict:
    """Return the verdict on some links by what was measured on them, with the label and limit of the first of these."""
    measured_links = {link for r in readings for link in directed_links(r.work, r.members)} & blame.links
    first = min(measured_links or blame.links)
    return Verdict(
        kind,
        blame.where,
        evidence,
        cause,
        checks,
        label=facts.label(first),
        theory_gbs=facts.limit(first),
        measured=facts.readings.span(readings),
        confirmed=all(reading.confirmed for reading in readings),
    )
