"""What NVML says of the paths between GPUs, and what that means for data on its way. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from collbench.doctor.facts import Facts, Gpu
from collbench.doctor.findings import Finding, Group, Level
from collbench.machine import labels
from collbench.model import Path


def judge(facts: Facts, gpus: Sequence[Gpu]) -> list[Finding]:
    """Judge peer access and NVLinks between the GPUs in sight."""
    devices = [gpu.device for gpu in facts.driver.gpus]
    seen = {devices.index(gpu.device) for gpu in gpus}
    paths = [path for path in facts.driver.paths if set(path.devices) <= seen]
    if not paths:
        return []
    kinds = Counter(path.label for path in paths)
    ordered = sorted(kinds, key=labels.rank_key)
    told = ", ".join(f"{kinds[label]} × {label}" for label in ordered)
    return [
        Finding(Group.LINKS, "labels", Level.OK, f"{len(paths)} pair{'s' if len(paths) > 1 else ''}: {told}"),
        _peers(paths, [device.tag for device in devices]),
        *_links_down(gpus),
    ]


def _peers(paths: Sequence[Path], names: Sequence[str]) -> Finding:
    refused = [path for path in paths if path.peer_access not in ("OK", None)]
    if refused:
        pairs = ", ".join("-".join(names[end] for end in path.devices) for path in refused[:4])
        more = f" and {len(refused) - 4} more" if len(refused) > 4 else ""
        words = refused[0].peer_access or ""
        meaning = labels.PEER_STATES.get(words, "the directions differ")
        told = f"refused ({words}: {meaning}) for {pairs}{more}: data goes through host memory"
        fix = "nvidia-smi topo -p2p r; needs NVLink, or GPUs, driver and chipset that allow it"
        return Finding(Group.LINKS, "peer access", Level.WARN, told, fix)
    if any(path.peer_access is None for path in paths):
        return Finding(Group.LINKS, "peer access", Level.UNKNOWN, "NVML does not tell; collbench pairs measures it")
    return Finding(Group.LINKS, "peer access", Level.OK, "OK for every pair")


def _links_down(gpus: Sequence[Gpu]) -> list[Finding]:
    """Warn of GPUs with fewer NVLinks than others of their kind: cards without a bridge have none, and all alike."""
    most = {gpu.device.name: 0 for gpu in gpus}
    for gpu in gpus:
        most[gpu.device.name] = max(most[gpu.device.name], gpu.links_up)
    fewer = [gpu for gpu in gpus if gpu.links_up < most[gpu.device.name]]
    if fewer:
        each = ", ".join(f"{gpu.device.tag} {gpu.links_up} of {most[gpu.device.name]}" for gpu in fewer)
        fix = "nvidia-smi nvlink --status; reset the GPUs or have the machine looked at"
        return [Finding(Group.LINKS, "NVLinks", Level.WARN, f"some are down: {each}", fix)]
    if not any(most.values()):
        return []
    counts = ", ".join(f"{count} up on each {name}" for name, count in most.items() if count)
    return [Finding(Group.LINKS, "NVLinks", Level.OK, counts)]
