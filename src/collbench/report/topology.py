"""The label matrix of a machine as text of 80 columns, and one pair explained in a sentence."""

from __future__ import annotations

from collections.abc import Sequence

from collbench.machine import labels
from collbench.model.run import Device, Path, PeerReadWrite, PeerStatus
from collbench.model.units import NARROW, amount, columns, filled, fixed

# How a PCIe path runs, after "GPU0 and GPU1 meet …" and "the path would run …".
_ROUTES = {
    "PIX": "through a single PCIe bridge",
    "PXB": "through several PCIe bridges, below the host bridge",
    "PHB": "through a PCIe host bridge, typically the CPU",
    "NODE": "across the interconnect between PCIe host bridges of one NUMA node",
    "SYS": "across the interconnect between NUMA nodes, such as QPI or UPI",
}


def render_topology(devices: Sequence[Device], paths: Sequence[Path], width: int = NARROW) -> str:
    """Return the label matrix with affinities, its legend, and the theory of each label in GB/s one way.

    `paths` holds each unordered pair of positions in `devices`. The matrix reads as `nvidia-smi topo -m` does; its
    affinities stand below it where `width` columns do not hold them, and sentences are wrapped to these.
    """
    entries = "\n".join(_entry(label, text, width) for label, text in labels.legend(path.label for path in paths))
    blocks = [render_labels(devices, paths, width), f"Legend:\n{entries}", _theory(paths, width)]
    return "\n\n".join(block for block in blocks if block) + "\n"


def render_labels(devices: Sequence[Device], paths: Sequence[Path], width: int = NARROW) -> str:
    """Return the label matrix, with the affinities to its right if so many columns allow, else below it."""
    names = [device.tag for device in devices]
    places = range(len(names))
    cells = [[labels.SELF if row == column else labels.UNKNOWN for column in places] for row in places]
    for path in paths:
        first, second = path.devices
        cells[first][second] = cells[second][first] = path.label
    matrix = [["", *names], *([name, *row] for name, row in zip(names, cells, strict=True))]
    affinities = [["CPU Affinity", "NUMA Affinity"]]
    for device in devices:
        numa = labels.UNKNOWN if device.numa_node is None else str(device.numa_node)
        affinities.append([device.cpu_affinity or labels.UNKNOWN, numa])
    for gap in ("  ", " "):
        wide = columns([row + affinity for row, affinity in zip(matrix, affinities, strict=True)], gap)
        if max(map(len, wide)) <= width:
            return "\n".join(wide)
    below = [[name, *affinity] for name, affinity in zip(["", *names], affinities, strict=True)]
    return "\n".join([*columns(matrix, " "), "", *columns(below)])


def explain_pair(devices: Sequence[Device], path: Path) -> str:
    """Return one sentence on a path: what connects the pair, its one-way limit in GB/s, and its peer access."""
    first, second = (devices[position].tag for position in path.devices)
    clauses = [f"{first} and {second} {_joined(path)}"]
    if labels.is_nvlink(path.label) and path.ancestor in _ROUTES:
        clauses.append(f"without NVLink the path would run {_ROUTES[path.ancestor]} ({path.ancestor})")
    return "; ".join([*clauses, _peer_access(path.peer_access)]) + "."


def _theory(paths: Sequence[Path], width: int) -> str:
    """Return a line for each distinct label and limit, best label first, and one for labels without a known limit."""
    known = {(path.label, path.theory_gbs, path.theory_source) for path in paths if path.theory_gbs is not None}
    limits = sorted(known, key=lambda limit: (labels.rank_key(limit[0]), -limit[1], limit[2]))
    lines = [_entry(label, f"{fixed(gbs, 6)} GB/s: {source}", width) for label, gbs, source in limits]
    unknown = sorted({path.label for path in paths if path.theory_gbs is None}, key=labels.rank_key)
    if unknown:
        text = f"{', '.join(unknown)}: not known, a label does not give the rate of its links"
        lines.append(filled(text, width, "  ", " " * 9))
    return "Theory, one direction:\n" + "\n".join(lines) if lines else ""


def _entry(label: str, text: str, width: int) -> str:
    return filled(text, width, f"  {label:<4} = ", " " * 9)


def _joined(path: Path) -> str:
    limit = ""
    if path.theory_gbs is not None:
        limit = f": {fixed(path.theory_gbs, 6)} GB/s each way in theory ({path.theory_source})"
    if labels.is_nvlink(path.label):
        return f"are connected by {amount(labels.nvlink_count(path.label), 'NVLink')} ({path.label}){limit}"
    if path.label in _ROUTES:
        return f"have no NVLink and connect {_ROUTES[path.label]} ({path.label}){limit}"
    return f"are connected by a path that the driver does not name ({path.label}){limit}"


def _peer_access(access: PeerReadWrite | None) -> str:
    """Return NVML's peer access status, with its meaning: "CNS", or "read TNS, write OK" if they differ."""
    if access is None or not access.statuses or access.statuses == (PeerStatus.UNKNOWN,):
        return "peer access unknown"
    if access.statuses == (PeerStatus.OK,):
        return "peer access OK"
    if len(access.statuses) == 1:
        return (
            f"peer access refused ({access}: {labels.PEER_STATES[access.statuses[0]]}), "
            "so copies pass through host memory"
        )
    refusals = [f"{status}: {labels.PEER_STATES[status]}" for status in access.statuses if status is not PeerStatus.OK]
    return f"peer access incomplete ({access}; {', '.join(refusals)})"
