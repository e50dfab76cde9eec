"""What the tools say of the paths, against each other: NVML, `nvidia-smi topo`, CUDA (docs/method.md 10.2)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from collbench.analysis.diagnose.blame import blames
from collbench.analysis.diagnose.evidence import FlatLabels, LinkCount, OtherLabel, PeerAnswers, Source, TreeLabels
from collbench.analysis.diagnose.limits import VIRTUAL
from collbench.analysis.diagnose.readings import Facts
from collbench.analysis.diagnose.verdict import Finding, Kind, Link, Message, Rates, both_ways, found
from collbench.machine.labels import UNKNOWN, is_nvlink, nvlink_count, rank_key
from collbench.model.capabilities import capabilities
from collbench.model.run import Path, PeerStatus


def reported(facts: Facts) -> Iterator[Finding]:
    """Yield the disagreements between the tools; equal ones share a finding."""
    if capabilities(facts.run.backend).cores:
        return  # the labels of CPU cores are our own
    yield from _merged(facts, Kind.LINKCOUNT_MISMATCH, _link_count)
    yield from _merged(facts, Kind.P2P_CAP_MISMATCH, _peer_access)
    yield from _merged(facts, Kind.LABELS_DIFFER, _other_label)
    yield from _beside_nvlink(facts)
    yield from _flat(facts)


def _merged(facts: Facts, kind: Kind, ask: Callable[[Path], Message | None]) -> Iterator[Finding]:
    """Yield a finding for each distinct saying, over all the pairs that share it; a whole row blames its GPU."""
    sayings: dict[Message, list[Link]] = defaultdict(list)
    for path in facts.run.paths:
        saying = ask(path)
        if saying is not None:
            sayings[saying].append(path.devices)
    every = both_ways(path.devices for path in facts.run.paths)
    for saying, pairs in sayings.items():
        for blame in blames(facts, both_ways(pairs), every):
            gpus = {"first": facts.indices(blame.members[:1]), "all": facts.indices(blame.members)}
            message = saying._replace(command=saying.command.format(**gpus), where=blame.where)
            limits = {facts.paths[frozenset(link)].theory_gbs for link in blame.links}
            rates = Rates(facts.label(min(blame.links)), limits.pop() if len(limits) == 1 else None)
            yield found(kind, blame.members, blame.links, message, rates)


def _link_count(path: Path) -> Message | None:
    """Compare the NV# of label and topo -m with the links that NVML calls active."""
    label = path.tool_label if path.tool_label not in (None, UNKNOWN) else path.label
    counted = path.nvlinks > 0 or path.tool_label is not None  # a file by hand may leave the count out
    if label is None or nvlink_count(label) == path.nvlinks or not counted:
        return None
    source = Source.TOPOLOGY if label == path.tool_label else Source.LABEL
    return Message(
        LinkCount(source, label, path.nvlinks),
        "NVLinks are down at one end, or went down after one of the two was asked (or the text is another machine's)",
        "nvidia-smi nvlink -s -i {first}",
    )


def _peer_access(path: Path) -> Message | None:
    """Compare who allows peer access with the others, and with an NVLink label, which promises it."""
    # As `topo -p2p r` is about reading, so is what NVML says of it.
    nvml = None if path.peer_access is None else _all_allow(path.peer_access.statuses[:1])
    allowed = {Source.NVML: nvml, Source.PEERS: _all_allow(path.tool_peer_access), Source.CUDA: path.cuda_peers}
    answers = {source: answer for source, answer in allowed.items() if answer is not None}
    tool = ", ".join(dict.fromkeys(path.tool_peer_access))
    words = {Source.NVML: str(path.peer_access), Source.PEERS: tool, Source.CUDA: "yes" if path.cuda_peers else "no"}
    agree = len(set(answers.values())) < 2
    if agree and not (is_nvlink(path.label) and answers and not any(answers.values())):
        return None
    return Message(
        PeerAnswers(path.label, tuple((source, words[source]) for source in answers), agree),
        "the driver, a container or MIG mode takes peer access away, or an IOMMU or ACS setting forbids it",
        "nvidia-smi topo -p2p r; nvidia-smi -q -i {all} | grep -A2 'MIG Mode'; sudo dmesg | grep -i -e iommu -e NVRM",
    )


def _all_allow(statuses: Sequence[PeerStatus]) -> bool | None:
    """Return False if one status denies, None if none does and one is unknown, or there is none."""
    answers = [status.allows for status in statuses]
    if False in answers:
        return False
    return True if answers and None not in answers else None


def _other_label(path: Path) -> Message | None:
    tool = path.tool_label
    if tool in (None, UNKNOWN) or path.label in (tool, UNKNOWN):
        return None
    if nvlink_count(tool or "") != path.nvlinks or is_nvlink(path.label):
        return None  # of NVLinks: LINKCOUNT_MISMATCH says it
    return Message(
        OtherLabel(tool or "", path.label),
        "the two name PCIe paths by different rules on some machines; both name the way, and neither the rate",
        "nvidia-smi topo -m; lspci -t",
    )


def _beside_nvlink(facts: Facts) -> Iterator[Finding]:
    """Explain why `nvidia-smi topo -p` names a PCIe path where `topo -m` says NV#."""
    paths = [path for path in facts.run.paths if is_nvlink(path.label) and path.ancestor is not None]
    if not paths:
        return
    members = tuple(sorted({member for path in paths for member in path.devices}))
    labels = tuple(sorted({path.label for path in paths}, key=rank_key))
    ancestors = tuple(sorted({str(path.ancestor) for path in paths}, key=rank_key))
    message = Message(
        TreeLabels(labels, ancestors),
        "topo -p reports how the PCIe slots meet and knows no NVLink; traffic takes the NVLinks",
        f"nvidia-smi topo -m; nvidia-smi topo -p -i {facts.indices(paths[0].devices)}",
    )
    yield found(Kind.LABELS_DIFFER, members, both_ways(path.devices for path in paths), message, Rates(labels[0]))


def _flat(facts: Facts) -> Iterator[Finding]:
    run = facts.run
    names = {path.label for path in run.paths}
    flat = len(names) == 1 and not is_nvlink(next(iter(names)))
    if flat and run.machine.virtualization in VIRTUAL and all(device.numa_node is None for device in run.devices):
        words = Message(
            FlatLabels(next(iter(names))),
            f"the hypervisor hides the PCIe tree ({run.machine.virtualization}): only measuring shows the paths",
            "lspci -t; cat /sys/bus/pci/devices/*/numa_node | sort | uniq -c",
        )
        links = both_ways(path.devices for path in run.paths)
        yield found(Kind.VIRTUAL_FLAT, tuple(range(len(run.devices))), links, words, Rates(next(iter(names))))
