"""What NVML, `nvidia-smi topo` and CUDA report of the paths, against each other (docs/method/verdicts.md 5)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from statistics import median

from collbench.judge.diagnose.blame import Blame, blames, verdict_on
from collbench.judge.diagnose.limits import VIRTUAL
from collbench.judge.diagnose.readings import Facts
from collbench.judge.diagnose.verdict import Cause, Kind, Verdict, both_ways, on
from collbench.machine import theory
from collbench.machine.labels import UNKNOWN, is_nvlink, nvlink_count, rank_key
from collbench.model.run import Path, PeerStatus
from collbench.model.units import amount, figure, grouped


def reported(facts: Facts) -> Iterator[Verdict]:
    """Yield the disagreements between what is reported; equal ones share a verdict."""
    if facts.on_cores:
        return
    yield from _link_counts(facts)
    yield from _links_to_switches(facts)
    yield from _peer_answers(facts)
    yield from _other_labels(facts)
    yield from _beside_nvlink(facts)
    yield from _flat(facts)


_Report = tuple[str, str]  # what is reported of a path, and its label


def _merged(
    facts: Facts, kind: Kind, cause: Callable[[tuple[int, ...]], Cause], ask: Callable[[Path], _Report | None]
) -> Iterator[Verdict]:
    """Yield a verdict for each different report, over all pairs that share it; a whole row blames its GPU.

    What has a GPU to blame counts in no other row.
    """
    pairs_of = grouped((report, path.devices) for path in facts.run.paths if (report := ask(path)) is not None)
    every = both_ways(path.devices for path in facts.run.paths)
    for (text, _), pairs in sorted(pairs_of.items(), key=lambda report: -len(report[1])):
        for blame in blames(facts, both_ways(pairs), every):
            every -= blame.links if blame.gpu is not None else frozenset()
            limits = {facts.paths[frozenset(link)].theory_gbs for link in blame.links}
            theory_gbs = limits.pop() if len(limits) == 1 else None
            yield verdict_on(facts, kind, blame, text, cause(blame.members), theory_gbs=theory_gbs)


def _link_counts(facts: Facts) -> Iterator[Verdict]:
    """Compare the NV# of label and topo -m with the links that NVML calls active."""

    def ask(path: Path) -> _Report | None:
        label = _reported_label(path)
        counted = path.nvlinks > 0 or path.tool_label is not None  # files written by hand may lack the count
        if label is None or nvlink_count(label) == path.nvlinks or not counted:
            return None
        source = "nvidia-smi topo -m" if label == path.tool_label else "the label"
        return f"{source} reports {label}, NVML counts {amount(path.nvlinks, 'active NVLink')}", label

    def cause(members: tuple[int, ...]) -> Cause:
        text = "NVLinks are down at one end, or went down between the two queries (or the text is of another machine)"
        return Cause("nvlinks_lost", text, f"nvidia-smi nvlink -s{on(facts.run, members)}")

    for verdict in _merged(facts, Kind.LINKCOUNT_MISMATCH, cause, ask):
        yield _in_proportion(facts, verdict)


# Links of one product carried as much each, within this, however many a path had, and more where others limit it.
_PROPORTION = 0.9


def _in_proportion(facts: Facts, verdict: Verdict) -> Verdict:
    """Return the verdict with what its missing links explain: a rate in proportion to the links that are left.

    Other paths of the same products, on whose links all agree, show what a link carries. If all of the verdict's copies
    are slower than that, its text says so.
    """
    path = facts.paths[frozenset(min(verdict.links))]
    agreed = [
        (other, reading)
        for other in facts.run.paths
        if other.nvlinks and _counts(other) == {other.nvlinks} and _products(facts, other) == _products(facts, path)
        for link in both_ways([other.devices])
        if (reading := facts.readings.best(link))
    ]
    left = min(_counts(path))
    if not agreed or not left:
        return verdict
    carried = left * median(reading.gbs / other.nvlinks for other, reading in agreed)
    verdict = replace(verdict, explains_from_gbs=_PROPORTION * carried)
    copies = [reading for link in verdict.links if (reading := facts.readings.best(link))]
    if not copies or max(facts.readings.interval(copy)[2] for copy in copies) >= _PROPORTION * carried:
        return verdict
    reached = figure(max(copy.gbs for copy in copies))
    slower = f"they reach {reached} GB/s where {amount(left, 'NVLink')} elsewhere carry {figure(carried)}"
    return replace(verdict, text=f"{verdict.text}; {slower}, so something else slows them, too")


def _links_to_switches(facts: Facts) -> Iterator[Verdict]:
    """Yield the paths through NVSwitches with fewer NVLinks than their GPUs have, where all that is reported agrees.

    A GPU whose paths add up to more links than it has shares them among its paths, and each should have all of them;
    and NVSwitches join all GPUs.
    """
    joined = {frozenset(path.devices) for path in facts.run.paths if path.nvlinks}
    if len(joined) < math.comb(len(facts.run.devices), 2):
        return iter(())

    def ask(path: Path) -> _Report | None:
        products = [theory.product(facts.run.devices[position].name) for position in path.devices]
        known = theory.Product() not in products and all(map(facts.hardware.switched, path.devices))
        own = min(product.nvlinks for product in products)
        missing = known and path.nvlinks > 0 and max(_counts(path)) < own
        return (f"fewer than the {amount(own, 'NVLink')} of these GPUs to NVSwitches", "") if missing else None

    def cause(members: tuple[int, ...]) -> Cause:
        fix = f"nvidia-smi nvlink -s{on(facts.run, members[:1])}; sudo dmesg | grep -i -e SXid -e Xid"
        return Cause("nvlinks_lost", "NVLinks are down, or an NVSwitch is", fix)

    return _merged(facts, Kind.LINKCOUNT_MISMATCH, cause, ask)


def _counts(path: Path) -> set[int]:
    """Return how many NVLinks a path has by NVML and by its label."""
    return {path.nvlinks, nvlink_count(_reported_label(path) or "")}


def _reported_label(path: Path) -> str | None:
    """Return a path's label of `topo -m`, or its own."""
    return path.tool_label if path.tool_label not in (None, UNKNOWN) else path.label


def _products(facts: Facts, path: Path) -> list[str]:
    return sorted(facts.run.devices[position].name for position in path.devices)


def _peer_answers(facts: Facts) -> Iterator[Verdict]:
    """Compare the sources on peer access with each other, and with an NVLink label, which promises it."""

    def cause(members: tuple[int, ...]) -> Cause:
        text = "the driver, a container or MIG mode disables peer access, or an IOMMU or ACS setting forbids it"
        mig = f"nvidia-smi -q{on(facts.run, members)} | grep -A2 'MIG Mode'"
        return Cause("peers_taken", text, f"nvidia-smi topo -p2p r; {mig}; sudo dmesg | grep -i -e iommu -e NVRM")

    return _merged(facts, Kind.P2P_CAP_MISMATCH, cause, _peer_access)


def _peer_access(path: Path) -> _Report | None:
    # `topo -p2p r` is about reading, so NVML's status of reading is compared with it.
    nvml = None if path.peer_access is None else _all_allow(path.peer_access.statuses[:1])
    tool = ", ".join(dict.fromkeys(path.tool_peer_access))
    sources = (
        ("NVML", nvml, str(path.peer_access)),
        ("nvidia-smi topo -p2p", _all_allow(path.tool_peer_access), tool),
        ("CUDA", path.cuda_peers, "yes" if path.cuda_peers else "no"),
    )
    answers = {allows for _, allows, _ in sources if allows is not None}
    said = ", ".join(f"{source} {shown}" for source, allows, shown in sources if allows is not None)
    if len(answers) > 1:
        return f"the sources disagree on peer access: {said}", path.label
    if is_nvlink(path.label) and answers == {False}:
        return f"the label {path.label} implies peer access, but no source allows it: {said}", path.label
    return None


def _all_allow(statuses: Sequence[PeerStatus]) -> bool | None:
    """Return False if one status denies, None if none does and one is unknown, or there is none."""
    answers = [status.allows for status in statuses]
    if False in answers:
        return False
    return True if answers and None not in answers else None


def _other_labels(facts: Facts) -> Iterator[Verdict]:
    def ask(path: Path) -> _Report | None:
        tool = path.tool_label
        if tool in (None, UNKNOWN) or path.label in (tool, UNKNOWN):
            return None
        if nvlink_count(tool or "") != path.nvlinks or is_nvlink(path.label):
            return None  # differences in NVLinks are LINKCOUNT_MISMATCH
        return f"nvidia-smi topo -m reports {tool}, NVML reports {path.label}", path.label

    cause = Cause(
        "label_rules",
        "the two tools label PCIe paths by different rules on some machines; a label names the path, not its rate",
        "nvidia-smi topo -m; lspci -t",
    )
    return _merged(facts, Kind.LABELS_DIFFER, lambda _: cause, ask)


_BRIDGES = {"PIX": "one PCIe bridge", "PXB": "PCIe bridges", "PHB": "a PCIe host bridge", "NODE": "the host bridges"}


def _beside_nvlink(facts: Facts) -> Iterator[Verdict]:
    """Explain why `nvidia-smi topo -p` names a PCIe path where `topo -m` says NV#."""
    paths = [path for path in facts.run.paths if is_nvlink(path.label) and path.ancestor is not None]
    if not paths:
        return
    members = tuple(sorted({member for path in paths for member in path.devices}))
    labels = sorted({path.label for path in paths}, key=rank_key)
    ancestors = sorted({str(path.ancestor) for path in paths}, key=rank_key)
    bridges = f" ({_BRIDGES[ancestors[0]]})" if len(ancestors) == 1 and ancestors[0] in _BRIDGES else ""
    tree = f"the PCIe tree (topo -p) has {', '.join(ancestors)}{bridges}"
    cause = Cause(
        "nvlinks_not_in_tree",
        "topo -p reports only the PCIe path and no NVLinks; traffic uses the NVLinks",
        f"nvidia-smi topo -m; nvidia-smi topo -p{on(facts.run, paths[0].devices)}",
    )
    place = f"topo -m reports {', '.join(labels)}; {tree}. Both are right"
    blame = Blame(both_ways(path.devices for path in paths), members, place)
    yield verdict_on(facts, Kind.LABELS_DIFFER, blame, "", cause, label=labels[0])


def _flat(facts: Facts) -> Iterator[Verdict]:
    run = facts.run
    names = {path.label for path in run.paths}
    flat = len(names) == 1 and not is_nvlink(next(iter(names)))
    if flat and run.machine.virtualization in VIRTUAL and all(device.numa_node is None for device in run.devices):
        label = next(iter(names))
        cause = Cause(
            "pcie_tree_hidden",
            f"the hypervisor hides the PCIe tree ({run.machine.virtualization}); only measurements show the paths",
            "lspci -t; cat /sys/bus/pci/devices/*/numa_node | sort | uniq -c",
        )
        place = f"All pairs have the label {label} and no GPU has a NUMA node"
        blame = Blame(both_ways(path.devices for path in run.paths), tuple(range(len(run.devices))), place)
        yield verdict_on(facts, Kind.VIRTUAL_FLAT, blame, "the labels carry no information", cause)
