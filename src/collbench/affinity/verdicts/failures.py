"""Wrong data, hangs and other failures: what makes a link useless, whatever its rate."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from collbench.affinity.verdicts.blame import blames
from collbench.affinity.verdicts.readings import Facts
from collbench.affinity.verdicts.verdict import Finding, Kind, Link, Rates, Told, both_ways, found
from collbench.errors import FailureKind
from collbench.machine.labels import is_nvlink
from collbench.model import Measurement, SkipKind
from collbench.operations import Variant

_ACS = "sudo lspci -vvv | grep ACSCtl; sudo dmesg | grep -i -e iommu -e dmar -e Xid; cat /proc/cmdline"
_LOG = "sudo dmesg | grep -i -e Xid -e nvidia"
_FABRIC = "sudo dmesg | grep -i -e Xid -e SXid; systemctl status nvidia-fabricmanager; nvidia-smi nvlink -e"


def failures(facts: Facts) -> Iterator[Finding]:
    """Yield the places where data was wrong, those where the work never ended, and those where it failed otherwise."""
    yield from _corruptions(facts)
    given_up = [bad for bad in facts.run.measurements if bad.failure and not bad.untried and not bad.wrong]
    yield from _given_up(facts, Kind.HANG, [bad for bad in given_up if bad.failure_kind is FailureKind.HANG])
    yield from _given_up(facts, Kind.FAILED, [bad for bad in given_up if bad.failure_kind is not FailureKind.HANG])


def _corruptions(facts: Facts) -> Iterator[Finding]:
    cases: dict[tuple[int, ...], str] = {}
    for left in facts.run.skipped:
        if left.kind is SkipKind.WRONG_DATA:
            cases.setdefault(left.members, left.reason)
    for bad in facts.run.measurements:
        if bad.wrong:
            cases.setdefault(bad.cell.members, bad.failure or f"{bad.wrong} elements of {bad.cell.work} were wrong")
    for members, reason in cases.items():
        told = f"Wrong data arrived. {reason.rstrip('.')}."
        yield _found(facts, Kind.DATA_CORRUPT, members, told, _links(members))


def _given_up(facts: Facts, kind: Kind, bad: Sequence[Measurement]) -> Iterator[Finding]:
    links: dict[Link, list[Measurement]] = defaultdict(list)
    for one in bad:
        if len(one.cell.members) == 2:
            for link in _links_of(one):
                links[link].append(one)
    tried = {link for m in facts.run.measurements if len(m.cell.members) == 2 for link in _links_of(m)}
    for blame in blames(facts, links, tried):
        ours = [one for link in sorted(blame.links) for one in links[link]]
        yield _found(facts, kind, blame.members, _what(kind, blame.where, ours), blame.links)
    for members in sorted({one.cell.members for one in bad if len(one.cell.members) != 2}):
        ours = [one for one in bad if one.cell.members == members]
        yield _found(facts, kind, members, _what(kind, facts.tags(members), ours), _links(members))


def _what(kind: Kind, where: str, bad: Sequence[Measurement]) -> str:
    works = ", ".join(sorted({str(one.cell.work) for one in bad}))
    if kind is Kind.HANG:
        return f"{where}: the work never ended ({works})."
    return f"{where}: the work failed ({works}). {bad[0].failure.rstrip('.')}."


def _links_of(measurement: Measurement) -> tuple[Link, ...]:
    a, b = measurement.cell.members
    directed = measurement.cell.operation.is_copy and measurement.cell.variant is not Variant.BOTH_WAYS
    return ((a, b),) if directed else ((a, b), (b, a))


def _links(members: tuple[int, ...]) -> frozenset[Link]:
    return both_ways((a, b) for a in members for b in members if a != b)


def _found(facts: Facts, kind: Kind, members: tuple[int, ...], what: str, links: frozenset[Link]) -> Finding:
    cause, command = _cause(facts, kind, links)
    first = min(links, default=None)
    label = facts.label(first) if first else ""
    return found(kind, members, links, Told(what, cause, command, sure=True), Rates(label))


def _cause(facts: Facts, kind: Kind, links: frozenset[Link]) -> tuple[str, str]:
    if kind is Kind.FAILED:
        return "a CUDA or NCCL call, the driver or a worker process failed on the way", _LOG
    if facts.run.backend == "host":
        return "this machine's memory or a core is faulty", "sudo dmesg | grep -i -e mce -e edac; memtest86+"
    if links and all(is_nvlink(facts.label(link)) for link in links):
        broken = "an NVLink, a GPU's memory or the NVSwitch fabric is faulty"
        return f"{broken}; if GPUs sit behind a virtual IOMMU, its settings", f"{_FABRIC}; {_ACS}"
    verb = "corrupts" if kind is Kind.DATA_CORRUPT else "stalls"
    return f"an IOMMU or PCIe ACS {verb} transfers between GPUs [pytorch#84803, nccl#667, nccl#2079]", _ACS
