"""Wrong data and hangs: what makes a link useless, whatever its rate."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from collbench.affinity.verdicts.blame import blames
from collbench.affinity.verdicts.readings import Facts
from collbench.affinity.verdicts.verdict import Finding, Kind, Link, Rates, Told, both_ways, found
from collbench.machine.labels import is_nvlink
from collbench.model import Measurement
from collbench.operations import Variant

# The words of backends/child.py, the native HangError's and the gloo workers' silence; see errors.StepFailed.
_HANG = re.compile(r"\bhang|\bno answer\b|did not finish|behind a gate took more|timed out", re.IGNORECASE)
_WRONG = re.compile(r"\bwrong (?:data|bytes?)\b|corrupt", re.IGNORECASE)
# session.py keeps the text of DataCorruption under this name when it ends a run.
_ENDED = "all that was left"
# A cell that was not even tried because others failed (measure/visits.py).
_UNTRIED = "not tried"
_TAG = re.compile(r"(?:[\w.-]+:)?(?:GPU|CPU)\d+|\bcore \d+")
_ACS = "sudo lspci -vvv | grep ACSCtl; sudo dmesg | grep -i -e iommu -e dmar -e Xid; cat /proc/cmdline"
_FABRIC = "sudo dmesg | grep -i -e Xid -e SXid; systemctl status nvidia-fabricmanager; nvidia-smi nvlink -e"


def failures(facts: Facts) -> Iterator[Finding]:
    """Yield the places where data was wrong, and those where the work never ended."""
    yield from _corruptions(facts)
    yield from _hangs(facts)


def _corruptions(facts: Facts) -> Iterator[Finding]:
    cases: dict[tuple[int, ...], str] = {}
    for left in facts.run.skipped:
        if left.what == _ENDED:
            cases.setdefault(_named(facts, left.reason), left.reason)
    for bad in facts.run.measurements:
        if bad.wrong or _WRONG.search(bad.failure):
            cases.setdefault(bad.cell.members, bad.failure or f"{bad.wrong} elements of {bad.cell.work} were wrong")
    for members, reason in cases.items():
        yield _hard(facts, Kind.DATA_CORRUPT, members, f"Wrong data arrived. {reason.rstrip('.')}.", _links(members))


def _hangs(facts: Facts) -> Iterator[Finding]:
    hung = [
        bad
        for bad in facts.run.measurements
        if _HANG.search(bad.failure) and not bad.failure.startswith(_UNTRIED) and not _WRONG.search(bad.failure)
    ]
    links: dict[Link, list[Measurement]] = defaultdict(list)
    for bad in hung:
        if len(bad.cell.members) == 2:
            for link in _links_of(bad):
                links[link].append(bad)
    tried = {link for m in facts.run.measurements if len(m.cell.members) == 2 for link in _links_of(m)}
    for blame in blames(facts, links, tried):
        works = sorted({str(bad.cell.work) for link in blame.links for bad in links[link]})
        what = f"{blame.where}: the work never ended ({', '.join(works)})."
        yield _hard(facts, Kind.HANG, blame.members, what, blame.links)
    for members in sorted({bad.cell.members for bad in hung if len(bad.cell.members) != 2}):
        works = sorted({str(bad.cell.work) for bad in hung if bad.cell.members == members})
        what = f"{facts.tags(members)}: the work never ended ({', '.join(works)})."
        yield _hard(facts, Kind.HANG, members, what, _links(members))


def _links_of(measurement: Measurement) -> tuple[Link, ...]:
    a, b = measurement.cell.members
    directed = measurement.cell.operation.is_copy and measurement.cell.variant is not Variant.BOTH_WAYS
    return ((a, b),) if directed else ((a, b), (b, a))


def _links(members: tuple[int, ...]) -> frozenset[Link]:
    return both_ways((a, b) for a in members for b in members if a != b)


def _named(facts: Facts, text: str) -> tuple[int, ...]:
    """Return the positions of the devices that a message names, in its order."""
    place = {device.tag: position for position, device in enumerate(facts.run.devices)}
    place |= {f"core {device.index}": p for p, device in enumerate(facts.run.devices) if device.tag.startswith("CPU")}
    return tuple(dict.fromkeys(place[tag] for tag in _TAG.findall(text) if tag in place))


def _hard(facts: Facts, kind: Kind, members: tuple[int, ...], what: str, links: frozenset[Link]) -> Finding:
    cause, command = _cause(facts, kind, links)
    first = min(links, default=None)
    label = facts.label(first) if first else ""
    return found(kind, members, links, Told(what, cause, command, sure=True), Rates(label))


def _cause(facts: Facts, kind: Kind, links: frozenset[Link]) -> tuple[str, str]:
    if facts.run.backend == "host":
        return "this machine's memory or a core is faulty", "sudo dmesg | grep -i -e mce -e edac; memtest86+"
    if links and all(is_nvlink(facts.label(link)) for link in links):
        broken = "an NVLink, a GPU's memory or the NVSwitch fabric is faulty"
        return f"{broken}; if GPUs sit behind a virtual IOMMU, its settings", f"{_FABRIC}; {_ACS}"
    verb = "corrupts" if kind is Kind.DATA_CORRUPT else "stalls"
    return f"an IOMMU or PCIe ACS {verb} transfers between GPUs [pytorch#84803, nccl#667, nccl#2079]", _ACS
