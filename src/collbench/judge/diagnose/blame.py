"""What slow links are due to: the state of their devices, one GPU, or the link itself (docs/method/verdicts.md 6)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from collbench.judge.diagnose.elements import Element, Part, blamed, ports_of
from collbench.judge.diagnose.readings import Facts, Reading
from collbench.judge.diagnose.verdict import NEW_ERRORS, Cause, Kind, Link, Verdict, both_ways, directed_links, on
from collbench.judge.outcome import flagged_trials
from collbench.machine.health import BUSY_PERCENT, holds_back, only_opened
from collbench.model.run import FlagKind, Health, Run, at_the_ends, new_errors, tags
from collbench.model.units import every

# What was wrong with the devices while they were measured, as causes: other processes, throttling, new errors.


@dataclass(frozen=True, slots=True)
class UnhealthyDevices:
    """What was seen on the devices, by position: throttling or new errors, and when processes of others were there."""

    run: Run
    causes: dict[int, Cause]
    shared: dict[int, str]

    def cause(self, members: Iterable[int]) -> Cause | None:
        """Return what was wrong with the first unhealthy one of these devices, None if all were healthy.

        If that is throttling, it is of all that were throttled.
        """
        ill = [self.causes[member] for member in members if member in self.causes]
        held = tuple(sorted(cause.devices[0] for cause in ill if cause.name == THROTTLED))
        if len(held) > 1 and ill[0].name == THROTTLED:
            text = f"{named_or_all(self.run, held)} were throttled"
            return replace(ill[0], text=text, fix=clock_state(self.run, held), devices=held)
        return next(iter(ill), None)


def named_or_all(run: Run, positions: tuple[int, ...]) -> str:
    """Return these devices by name, or "all 8 GPUs"."""
    count = len(positions)
    return f"{every(count)} GPUs" if 1 < count == len(run.devices) else tags(positions, run.devices)


THROTTLED = "throttled"


def clock_state(run: Run, positions: Sequence[int]) -> str:
    """Return the command that shows why these devices are throttled."""
    return f"nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER{on(run, positions)}"


def throttled_by(run: Run, position: int, reasons: Sequence[str], when: str) -> Cause:
    """Return throttling of a device, for these reasons as NVML names them, as a cause."""
    text = f"{run.devices[position].tag} was throttled ({', '.join(reasons)}) {when}"
    return Cause(THROTTLED, text, clock_state(run, (position,)), (position,), seen=True)


_COUNTERS = {"nvlink_errors": "NVLink errors", "nvlink_replays": "NVLink replays", "ecc_errors": "ECC errors"}


@lru_cache(maxsize=2)  # most rules ask
def unhealthy_devices(facts: Facts) -> UnhealthyDevices:
    """Return what disturbed the devices, by the flags of samples and the health before and after the run."""
    run = facts.run
    trials = sum(len(measurement.samples) for measurement in run.measurements)
    causes: dict[int, Cause] = {}
    shared: dict[int, str] = {}
    for (kind, position, reason), count in sorted(flagged_trials(run).items()):
        when = f"in {count} of {trials} trials"
        if kind is FlagKind.SHARED:
            shared[position] = when
        elif kind is FlagKind.THROTTLED and holds_back(reason):
            causes[position] = throttled_by(run, position, [reason], when)
    for when, position, state in at_the_ends(run):  # where no trial was flagged with it
        if reasons := [reason for reason in state.throttle if holds_back(reason)]:
            causes.setdefault(position, throttled_by(run, position, reasons, f"{when} measuring"))
        if state.processes:
            shared.setdefault(position, f"{when} measuring")
    for counter, name in _COUNTERS.items():
        for position, (first, last) in new_errors(run, counter).items():
            text = f"{last - first} new {name} on {run.devices[position].tag}"
            fix = f"nvidia-smi nvlink -e{on(run, (position,))}"
            causes.setdefault(position, Cause(NEW_ERRORS, text, fix, (position,), seen=True))
    idle = idle_among(facts, shared.keys())
    shared = {position: seen for position, seen in shared.items() if position not in idle}
    return UnhealthyDevices(run, causes, shared)


def idle_among(facts: Facts, shared: Collection[int]) -> frozenset[int]:
    """Return those of the GPUs `shared` with others' processes on which these did nothing."""
    states = facts.run.health_before
    idle = {position for position, state in enumerate(states) if _rests(state)}.intersection(shared)
    holding = {position for position in idle if not only_opened(states[position])}
    return frozenset(idle - _other_ends(facts, set(shared) - idle, holding))


def _rests(state: Health) -> bool:
    """Return whether others' processes on a GPU did nothing: a notebook that holds memory slows nobody."""
    idle = state.utilization is not None and state.utilization <= BUSY_PERCENT
    return bool(state.processes) and (idle or only_opened(state))


def _other_ends(facts: Facts, working: Collection[int], holding: Collection[int]) -> set[int]:
    """Return the GPUs to or from whose memory a process copies that works on another GPU.

    NVML counts utilization only where the engine or kernel that copies runs. Such a copy leaves through the ports of
    one of the GPUs and enters through those of the other, so both must be slow, in opposite directions.
    """
    ends: set[int] = set()
    for over_nvlink in (True, False) if working and holding else ():
        ports = [port for port in blamed(facts, over_nvlink=over_nvlink, collective=False) if port.of_gpu]
        out, into = (
            frozenset[int]().union(*of_ports) for of_ports in ([p.out for p in ports], [p.into for p in ports])
        )
        for side, other in ((out, into), (into, out)):
            if not side.isdisjoint(working):
                ends |= other.intersection(holding)
    return ends


# What to blame for slow links: if all links of a GPU are slow, the GPU; if one is, that link (method/verdicts.md 6).

# More links than this, with no GPU in common, share a cause that no single one shows.
_MAX_SINGLE = 4


@dataclass(frozen=True, slots=True)
class Blame:
    """Links with one likely cause, at a place: of the devices `members`, those to blame.

    `gpu` is the GPU that all of the links have in common, None if there is none. If several pairs share an element that
    is to blame, `reach` are all links that cross it, whether or not they are significantly slow; if it is no single
    GPU, it is the `cause`.
    """

    links: frozenset[Link]
    members: tuple[int, ...]
    place: str
    gpu: int | None = None
    reach: frozenset[Link] = frozenset()
    cause: Cause | None = None

    @property
    def only(self) -> str:
        """The path or direction, where no more than that is to blame, else ""."""
        if self.gpu is not None or len(both_ways(self.links)) > 2:
            return ""
        return "only this path" if len(self.links) > 1 else "only one direction of this path"


def blames(
    facts: Facts,
    slow: Collection[Link],
    judged: Collection[Link],
    *,
    rates: bool = False,
    collective: bool = False,
    one_way: bool = False,
) -> tuple[Blame, ...]:
    """Return the slow links in groups; `judged` are all links that could have been slow.

    NVLinks and PCIe paths of one GPU are different links, so they are grouped apart. With `rates` what was measured
    tells which elements they share: first by copies, then what is left of slow `collective` links by collectives.
    `one_way`: they are slower than their opposites, which no element explains that both cross.
    """
    groups: list[Blame] = []
    for over_nvlink in (True, False):
        ours = frozenset(link for link in slow if facts.over_nvlink(link) is over_nvlink)
        alike = frozenset(link for link in judged if facts.over_nvlink(link) is over_nvlink)
        if ours and ours == alike and len(both_ways(ours)) > 2 and not _of_one_gpu(facts, ours):
            groups.append(together(facts, ours, everything=True))
            continue
        alone = frozenset[Link]()  # slow by what no other pair crosses
        of_all = ours
        for with_nccl in (False, True) if rates and ours else ():
            if ours and with_nccl <= collective:
                # In their order: a link that crosses two is certainly slow because of the first.
                for element in blamed(facts, over_nvlink=over_nvlink, collective=with_nccl):
                    crossing = frozenset(
                        link for link in element.links if not one_way or link[::-1] not in element.links
                    )
                    crossing = both_ways(crossing) if collective else crossing  # as slow as the slower direction
                    # Of GPUs that are slow together, the last has no link that is not another's, too.
                    mine = ours & crossing or (of_all & crossing if element.part is Part.GPU else frozenset())
                    if mine and (element.shared or element.either):
                        groups.append(on_element(facts, element, mine))
                    elif not element.shared:
                        alone |= ours & crossing
                    ours -= crossing
        groups += _grouped(facts, ours | alone, alike)
    return tuple(groups)


def _of_one_gpu(facts: Facts, links: frozenset[Link]) -> bool:
    """Return whether these links have one GPU in common, and others of the machine's NVLinks, or PCIe paths, do not.

    So they are all that were judged because they have a label or a limit of their own.
    """
    common = frozenset.intersection(*map(frozenset, links))
    alike = (path for path in facts.run.paths if facts.over_nvlink(path.devices) is facts.over_nvlink(min(links)))
    return len(common) == 1 and any(common.isdisjoint(path.devices) for path in alike)


def on_element(facts: Facts, element: Element, links: frozenset[Link]) -> Blame:
    """Return the blame of an element that several pairs share for these links, which cross it.

    Where NVLinks join all GPUs none does: only copies with host memory show the slot or uplink.
    """
    if not element.links:
        cause, place = element.cause(facts.run), tags(element.devices, facts.run.devices)
        if element.of_gpu:
            slot = f"the PCIe slot of {place}"
            cause = replace(cause, text=f"{slot}: it has fewer lanes, a riser, or trained down", part=slot)
        return Blame(links, element.devices, f"copies of {place} with host memory", cause=cause)
    if not element.of_gpu:
        cause = element.cause(facts.run)
        return replace(together(facts, links, everything=False), reach=element.links, cause=cause)
    way = "of" if element.out and element.into else "from" if element.out else "to"
    gpu = element.devices[0]
    over_nvlink = facts.over_nvlink(min(links))
    both = any(facts.over_nvlink(link) is not over_nvlink for link in facts.links_of(gpu))
    which = "NVLinks" if over_nvlink else "PCIe paths"  # one of them has the rate beside it
    place = f"all {which if both else 'links'} {way} {tags(element.devices, facts.run.devices)}"
    return Blame(links, element.devices, place, gpu, element.links)


def _grouped(facts: Facts, slow: frozenset[Link], judged: frozenset[Link]) -> Iterator[Blame]:
    """Yield the GPUs all of whose links, or all in one direction, are slow, those with most first; then what is left.

    Without rates nothing is known of links that are not slow, so a blame reaches no further than these.
    """
    rest = set(slow)
    ports = ports_of(range(len(facts.run.devices)), judged)
    for port in sorted(
        (port for port in ports if port.shared and port.links <= slow), key=lambda port: -len(port.links)
    ):
        if ours := port.links & rest:
            yield replace(on_element(facts, port, ours), reach=frozenset())
            rest -= ours
    pairs = sorted({(min(link), max(link)) for link in rest})
    if len(pairs) > _MAX_SINGLE:
        yield together(facts, frozenset(rest), everything=False)
        return
    for low, high in pairs:
        links = [link for link in ((low, high), (high, low)) if link in rest]
        yield Blame(frozenset(links), links[0], _of_pair(facts, links))


def _of_pair(facts: Facts, links: Collection[Link]) -> str:
    """Return the name of a pair, or of one direction of it, by its links: "GPU0-GPU1", "GPU1 → GPU0"."""
    return tags(min(links), facts.run.devices, "-" if len(links) == 2 else " → ")


def together(facts: Facts, links: frozenset[Link], *, everything: bool) -> Blame:
    """Return the blame of some links together; `everything`: there are no others that could have been slow."""
    pairs = {frozenset(link) for link in links}
    if len(pairs) == 1:
        return Blame(links, min(links), _of_pair(facts, links))
    members = tuple(sorted({member for link in links for member in link}))
    labels = " and ".join(sorted({facts.label(link) for link in links}))
    opposite = len(links) > len(pairs)
    one_way = "" if both_ways(links) == links else " (some in one direction)" if opposite else " (one direction each)"
    return Blame(links, members, f"{every(len(pairs)) if everything else len(pairs)} {labels} pairs{one_way}")


def nccl_or_link(facts: Facts, links: Collection[Link], nccl: Cause) -> Cause:
    """Return `nccl` as the cause of slow collectives on links whose copies show that the links are not to blame."""
    if all(facts.readings.best(link) for link in links):
        return nccl
    text = "the link itself or NCCL's path over it: copies show which ('collbench pairs'), and none were measured on it"
    return Cause("link_or_nccl", text, nccl.fix)


def first_link(blame: Blame, readings: Collection[Reading]) -> Link:
    """Return the first of the links that these readings are about: a verdict has its label and limit."""
    return min({link for r in readings for link in directed_links(r.work, r.members)} & blame.links or blame.links)


def verdict_on(
    facts: Facts,
    kind: Kind,
    blame: Blame,
    text: str,
    cause: Cause,
    readings: Collection[Reading] = (),
    theory_gbs: float | None = None,
    **more: Any,
) -> Verdict:
    """Return a verdict on what is to blame; `readings` show it, and `more` are other fields.

    Its label is that of the first link, of those with a reading if there are any, and its limit that link's.
    """
    first = first_link(blame, readings) if blame.links else None
    if first is not None and readings and theory_gbs is None:
        theory_gbs = facts.limit(first)
    found = {
        "label": "" if first is None else facts.label(first),
        "theory_gbs": theory_gbs,
        "measured": facts.readings.span(readings) if readings else None,
        "confirmed": all(reading.confirmed for reading in readings),
        "links": blame.links,
        "reach": blame.reach,
        "works": frozenset(reading.work for reading in readings),
    }
    return Verdict(kind, blame.members, blame.place, text, cause, **(found | more))


def of_devices(facts: Facts, members: tuple[int, ...], links: Iterable[Link] = ()) -> Blame:
    """Return the blame of some devices together for these links."""
    return Blame(frozenset(links), members, tags(members, facts.run.devices))
