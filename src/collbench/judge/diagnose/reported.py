"""What NVML, `nvidia-smi topo` and CUDA report of the paths, against each other (docs/method.md 10.2)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from collbench.judge.diagnose.blame import blames
from collbench.judge.diagnose.causes import Check, Known, Look
from collbench.judge.diagnose.evidence import (
    Extent,
    LinkCount,
    OfWorks,
    OtherLabel,
    PeerAnswers,
    Source,
    TreeLabels,
    Where,
)
from collbench.judge.diagnose.limits import VIRTUAL
from collbench.judge.diagnose.readings import Facts
from collbench.judge.diagnose.verdict import Finding, Kind, Link, Verdict, both_ways
from collbench.machine.labels import UNKNOWN, is_nvlink, nvlink_count, rank_key
from collbench.model.run import Path, PeerStatus


def reported(facts: Facts) -> Iterator[Finding]:
    """Yield the disagreements between what is reported; equal ones share a finding."""
    if facts.on_cores:
        return
    yield from _merged(facts, Kind.LINKCOUNT_MISMATCH, Known.NVLINKS_LOST, _link_count)
    yield from _merged(facts, Kind.P2P_CAP_MISMATCH, Known.PEERS_TAKEN, _peer_access)
    yield from _merged(facts, Kind.LABELS_DIFFER, Known.LABEL_RULES, _other_label)
    yield from _beside_nvlink(facts)
    yield from _flat(facts)


_Reports = LinkCount | PeerAnswers | OtherLabel


def _merged(facts: Facts, kind: Kind, cause: Known, ask: Callable[[Path], _Reports | None]) -> Iterator[Finding]:
    """Yield a finding for each different report, over all pairs that share it; a whole row blames its GPU."""
    pairs_of: dict[_Reports, list[Link]] = defaultdict(list)
    for path in facts.run.paths:
        evidence = ask(path)
        if evidence is not None:
            pairs_of[evidence].append(path.devices)
    every = both_ways(path.devices for path in facts.run.paths)
    for evidence, pairs in pairs_of.items():
        for blame in blames(facts, both_ways(pairs), every):
            limits = {facts.paths[frozenset(link)].theory_gbs for link in blame.links}
            verdict = Verdict(
                kind,
                blame.where,
                evidence,
                cause,
                _checks(kind, blame.members),
                label=facts.label(min(blame.links)),
                theory_gbs=limits.pop() if len(limits) == 1 else None,
            )
            yield Finding(verdict, blame.links)


def _checks(kind: Kind, members: tuple[int, ...]) -> tuple[Check, ...]:
    if kind is Kind.LINKCOUNT_MISMATCH:
        return (Check(Look.NVLINKS, members[:1]),)
    if kind is Kind.P2P_CAP_MISMATCH:
        return Check(Look.PEERS), Check(Look.MIG, members), Check(Look.LOG_IOMMU_DRIVER)
    return Check(Look.LABELS), Check(Look.PCIE_TREE)


def _link_count(path: Path) -> LinkCount | None:
    """Compare the NV# of label and topo -m with the links that NVML calls active."""
    label = path.tool_label if path.tool_label not in (None, UNKNOWN) else path.label
    counted = path.nvlinks > 0 or path.tool_label is not None  # files written by hand may lack the count
    if label is None or nvlink_count(label) == path.nvlinks or not counted:
        return None
    source = Source.TOPOLOGY if label == path.tool_label else Source.LABEL
    return LinkCount(source, label, path.nvlinks)


def _peer_access(path: Path) -> PeerAnswers | None:
    """Compare the sources on peer access with each other, and with an NVLink label, which promises it."""
    # `topo -p2p r` is about reading, so NVML's status of reading is compared with it.
    nvml = None if path.peer_access is None else _all_allow(path.peer_access.statuses[:1])
    allowed = {Source.NVML: nvml, Source.PEERS: _all_allow(path.tool_peer_access), Source.CUDA: path.cuda_peers}
    answers = {source: answer for source, answer in allowed.items() if answer is not None}
    tool = ", ".join(dict.fromkeys(path.tool_peer_access))
    shown = {Source.NVML: str(path.peer_access), Source.PEERS: tool, Source.CUDA: "yes" if path.cuda_peers else "no"}
    agree = len(set(answers.values())) < 2
    if agree and not (is_nvlink(path.label) and answers and not any(answers.values())):
        return None
    return PeerAnswers(path.label, tuple((source, shown[source]) for source in answers), agree)


def _all_allow(statuses: Sequence[PeerStatus]) -> bool | None:
    """Return False if one status denies, None if none does and one is unknown, or there is none."""
    answers = [status.allows for status in statuses]
    if False in answers:
        return False
    return True if answers and None not in answers else None


def _other_label(path: Path) -> OtherLabel | None:
    tool = path.tool_label
    if tool in (None, UNKNOWN) or path.label in (tool, UNKNOWN):
        return None
    if nvlink_count(tool or "") != path.nvlinks or is_nvlink(path.label):
        return None  # differences in NVLinks are LINKCOUNT_MISMATCH
    return OtherLabel(tool or "", path.label)


def _beside_nvlink(facts: Facts) -> Iterator[Finding]:
    """Explain why `nvidia-smi topo -p` names a PCIe path where `topo -m` says NV#."""
    paths = [path for path in facts.run.paths if is_nvlink(path.label) and path.ancestor is not None]
    if not paths:
        return
    members = tuple(sorted({member for path in paths for member in path.devices}))
    labels = tuple(sorted({path.label for path in paths}, key=rank_key))
    ancestors = tuple(sorted({str(path.ancestor) for path in paths}, key=rank_key))
    verdict = Verdict(
        Kind.LABELS_DIFFER,
        Where(Extent.DEVICES, members),
        TreeLabels(labels, ancestors),
        Known.NVLINKS_NOT_IN_TREE,
        (Check(Look.LABELS), Check(Look.PCIE_LABELS, paths[0].devices)),
        label=labels[0],
    )
    yield Finding(verdict, both_ways(path.devices for path in paths))


def _flat(facts: Facts) -> Iterator[Finding]:
    run = facts.run
    names = {path.label for path in run.paths}
    flat = len(names) == 1 and not is_nvlink(next(iter(names)))
    if flat and run.machine.virtualization in VIRTUAL and all(device.numa_node is None for device in run.devices):
        label = next(iter(names))
        verdict = Verdict(
            Kind.VIRTUAL_FLAT,
            Where(Extent.DEVICES, tuple(range(len(run.devices)))),
            OfWorks(),
            Known.PCIE_TREE_HIDDEN,
            (Check(Look.PCIE_TREE), Check(Look.PCIE_NUMA)),
            label=label,
        )
        yield Finding(verdict, both_ways(path.devices for path in run.paths))
