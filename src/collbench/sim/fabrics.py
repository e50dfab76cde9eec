"""A simulated machine: GPUs, NVLinks, switches, the PCIe tree, noise and faults, and the files that describe it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from importlib.resources.abc import Traversable
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any

from collbench.machine.labels import is_label
from collbench.model.errors import RunFileError, UsageError, did_you_mean
from collbench.model.run import Health, PeerStatus
from collbench.model.values import Range
from collbench.runfile.codec import FileFormat, build, picked

# The parts of a simulated machine: GPUs, NVLinks, switches, the PCIe tree, noise, faults (docs/fabric-file.md).
# Rates are what is achieved, in GB/s and one direction; delays are in µs. GPUs are referred to by position.

_UNKNOWN_HEALTH = Health()
# From a broken link's rate to any future one: values beyond are typos, and might overflow.
_MIN_GBS, _MAX_VALUE = 1e-6, 1e15
_Rate = Annotated[float, Range(_MIN_GBS, _MAX_VALUE, "a plausible number above 0")]
_Number = Annotated[int, Range(1, _MAX_VALUE, "a plausible number above 0")]
_Delay = Annotated[float, Range(0, _MAX_VALUE, "0 or a plausible number")]
_Count = Annotated[int, Range(0, _MAX_VALUE, "0 or a plausible number")]
_Links = Annotated[int, Range(1, 36, "1 to 36")]  # nvml.h of r580: NVML_NVLINK_MAX_LINKS
_Sigma = Annotated[float, Range(0, 1, "a σ from 0 to 1")]  # log-normal noise beyond this is no measurement any more


class FaultKind(StrEnum):
    """What can be wrong with a simulated machine, by its mechanism."""

    SLOW_LINK = "slow-link"
    SLOW_GPU = "slow-gpu"
    CORRUPT_LINK = "corrupt-link"
    HANGING_LINK = "hanging-link"
    THROTTLED_GPU = "throttled-gpu"
    FOREIGN_LOAD = "foreign-load"
    P2P_DISABLED = "p2p-disabled"
    P2P_SLOW = "p2p-slow"
    PCIE_DEGRADED = "pcie-degraded"
    BOTTLENECK = "bottleneck"
    LINKS_DOWN = "links-down"
    NVLINK_UNUSED = "nvlink-unused"
    HIDDEN_NVLINK = "hidden-nvlink"
    MISTIMED = "mistimed"
    SLOW_COLLECTIVES = "slow-collectives"
    LATE_GPU = "late-gpu"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU in its slot."""

    name: str
    memory_bytes: _Number
    pci_bus_id: str
    bridge: str  # the bridge or host bridge above the slot
    pcie_gbs: _Rate  # what the slot achieves
    pcie_generation: _Number = 4  # the most that slot and GPU can do
    pcie_width: _Number = 16  # the most that slot and GPU can do
    nvlink_line_mbps: _Number | None = None  # the rate of one link as NVML reports it, MB/s
    health: Health = _UNKNOWN_HEALTH  # as NVML reports it


@dataclass(frozen=True, slots=True)
class Bundle:
    """NVLinks that join two GPUs directly."""

    gpus: tuple[int, int]
    links: _Links
    gbs: _Rate  # what each link achieves in each direction
    latency_us: _Delay = 0.5


@dataclass(frozen=True, slots=True)
class Switch:
    """NVSwitches that join these GPUs as one plane."""

    gpus: tuple[int, ...]
    links: _Links
    gbs: _Rate  # what a GPU's port of all its links achieves in each direction
    latency_us: _Delay = 0.6


@dataclass(frozen=True, slots=True)
class Bridge:
    """A PCIe switch."""

    name: str
    parent: str  # the bridge or host bridge above it
    up_gbs: _Rate  # of its uplink
    down_gbs: _Rate
    peer_gbs: _Rate | None = (
        None  # the limit, for each port, of transfers that turn round in it; None: that of the slots
    )
    latency_us: _Delay = 0.2


@dataclass(frozen=True, slots=True)
class HostBridge:
    """A PCIe root at a NUMA node."""

    name: str
    numa_node: _Count
    peer_gbs: _Rate | None = None  # the limit, for each port, of transfers between GPUs; None: that of the slots
    latency_us: _Delay = 0.3


@dataclass(frozen=True, slots=True)
class Sockets:
    """The link between each two NUMA nodes, and a node's memory."""

    gbs: _Rate = 40.0
    latency_us: _Delay = 0.4
    memory_gbs: _Rate = 150.0  # how fast one node's memory takes staged data, of all GPUs together


@dataclass(frozen=True, slots=True)
class Engines:
    """The share of a path's rate that each engine gets: copy engine, kernels, staged copies, NCCL by the medium."""

    ce_write: _Rate = 1.0
    ce_read: _Rate = 0.995
    sm_write: _Rate = 0.935
    sm_read: _Rate = 0.95
    staged: _Rate = 0.7
    nccl_nvlink: _Rate = 0.9
    nccl_pcie: _Rate = 0.85
    nccl_staged: _Rate = 0.6


@dataclass(frozen=True, slots=True)
class Delays:
    """The time of an empty message in µs, in addition to its path's latency; an access is one of the pointer chase.

    A collective takes `collective` once and `hop` for each step around the ring; its launch takes `launch`.
    """

    copy: _Delay = 1.5
    kernel: _Delay = 2.2
    staged: _Delay = 15.0
    access: _Delay = 0.3
    collective: _Delay = 4.4
    hop: _Delay = 0.2
    launch: _Delay = 2.8


@dataclass(frozen=True, slots=True)
class Noise:
    """Relative σ of a trial and of a batch in it, both log-normal."""

    trial: _Sigma = 0.003
    batch: _Sigma = 0.001


@dataclass(frozen=True, slots=True)
class ReportedPath:
    """What the machine's tools report of one pair, where it differs from the structure; None: it does not."""

    gpus: tuple[int, int]
    label: str | None = None
    ancestor: str | None = None
    nvlinks: Annotated[int, Range(0, 36, "0 to 36")] | None = None
    peer_access: PeerStatus | None = None
    tool_label: str | None = None
    tool_peer_access: PeerStatus | None = None
    cuda_peers: bool | None = None  # False is more than a report: no peer access is used


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault and its place. docs/fabric-file.md says which fields each kind reads.

    `devices` empty means all of them.
    """

    kind: FaultKind
    devices: tuple[int, ...] = ()
    factor: _Delay = 1.0
    one_way: bool = False
    offset: _Count = 0
    links: _Count = 1
    gbs: _Delay = 0.0
    us: _Delay = 0.0
    generation: _Count | None = None
    width: _Count | None = None
    words: str = ""

    def covers(self, *devices: int) -> bool:
        """Return whether all of these devices are among its own."""
        return not self.devices or set(devices) <= set(self.devices)

    def on_link(self, a: int, b: int) -> bool:
        """Return whether it is on this link: a fault of one device is on all links of it."""
        return self.covers(a, b) or (len(self.devices) == 1 and self.devices[0] in (a, b))


@dataclass(frozen=True, slots=True)
class Fabric:
    """A machine to simulate."""

    name: str
    source: str  # where its figures are from
    gpus: tuple[Gpu, ...]
    host_bridges: tuple[HostBridge, ...]
    bridges: tuple[Bridge, ...] = ()
    bundles: tuple[Bundle, ...] = ()
    switches: tuple[Switch, ...] = ()
    sockets: Sockets = Sockets()
    pcie_peers: bool = True  # False: only NVLinks give peer access
    unreachable: tuple[tuple[int, int], ...] = ()  # pairs without peer access in any case
    engines: Engines = Engines()
    delays: Delays = Delays()
    noise: Noise = Noise()
    labels: tuple[ReportedPath, ...] = ()
    faults: tuple[Fault, ...] = ()
    virtualization: str = "none"  # NVML's word
    numa_hidden: bool = False  # as for a passed-through GPU, whose NUMA node is not reported

    def __hash__(self) -> int:
        """Return a hash of the name and the faults only: caches look a fabric up for every pair."""
        return hash((self.name, self.faults))

    def faults_of(self, *kinds: FaultKind) -> tuple[Fault, ...]:
        """Return the faults of these kinds."""
        return tuple(fault for fault in self.faults if fault.kind in kinds)


# What must hold in a fabric apart from its fields' types, so that the simulation does not fail.

# NVML and the label matrix were seen with 16 GPUs in a node; more is a mistake, or several nodes.
_MAX_GPUS = 64
_MIN_GPUS = 2
_ON_A_LINK = (
    FaultKind.SLOW_LINK,
    FaultKind.CORRUPT_LINK,
    FaultKind.HANGING_LINK,
    FaultKind.P2P_SLOW,
)
_ON_NVLINKS = (FaultKind.NVLINK_UNUSED, FaultKind.HIDDEN_NVLINK)
_LEAVES_A_SHARE = (FaultKind.SLOW_LINK, FaultKind.SLOW_GPU, FaultKind.SLOW_COLLECTIVES, FaultKind.FOREIGN_LOAD)
_PCI_BUS_ID = re.compile(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]", re.ASCII)
_VARIABLE = re.compile(r"NCCL_[A-Z0-9_]+=[ -~]+", re.ASCII)


def check(fabric: Fabric) -> None:
    """Raise ValueError that names the part of a fabric that is invalid."""
    if not _MIN_GPUS <= len(fabric.gpus) <= _MAX_GPUS:
        raise ValueError(f"fabric.gpus has {len(fabric.gpus)} items: write {_MIN_GPUS} to {_MAX_GPUS}")
    if not fabric.name or not fabric.name.isprintable():
        raise ValueError("fabric.name is empty or has unprintable characters")
    _check_gpu_names(fabric)
    _check_tree(fabric)
    _check_nvlinks(fabric)
    for number, fault in enumerate(fabric.faults):
        _check_fault(fault, len(fabric.gpus), f"fabric.faults[{number}]")
        _check_effect(fault, fabric, f"fabric.faults[{number}]")
    for number, pair in enumerate(fabric.unreachable):
        _check_gpus(pair, len(fabric.gpus), f"fabric.unreachable[{number}]")
    _check_labels(fabric)


def _check_gpu_names(fabric: Fabric) -> None:
    seen: set[str] = set()
    for number, gpu in enumerate(fabric.gpus):
        if not gpu.name.isprintable() or not _PCI_BUS_ID.fullmatch(gpu.pci_bus_id):
            raise ValueError(f"fabric.gpus[{number}] needs a printable name and a pci_bus_id such as 00000000:06:00.0")
        if gpu.pci_bus_id in seen:
            raise ValueError(f"fabric.gpus[{number}].pci_bus_id is another GPU's, too")
        seen.add(gpu.pci_bus_id)


def _check_tree(fabric: Fabric) -> None:
    """Raise ValueError where the PCIe tree has a part twice, a loose end or a loop."""
    parts: list[HostBridge | Bridge] = [*fabric.host_bridges, *fabric.bridges]
    seen: set[str] = set()
    for part in parts:
        where = "host_bridges" if isinstance(part, HostBridge) else "bridges"
        if part.name in seen:
            raise ValueError(f"fabric.{where} has '{part.name}' twice")
        seen.add(part.name)
    parents = {bridge.name: bridge.parent for bridge in fabric.bridges}
    roots = {root.name for root in fabric.host_bridges}
    above = [*((f"gpus[{i}].bridge", gpu.bridge) for i, gpu in enumerate(fabric.gpus))]
    above += [(f"bridges[{i}].parent", bridge.parent) for i, bridge in enumerate(fabric.bridges)]
    for where, name in above:
        steps, part_above = 0, name
        while part_above in parents and steps <= len(parents):
            part_above, steps = parents[part_above], steps + 1
        if part_above not in roots:
            why = "is above itself" if steps > len(parents) else "leads to no host bridge"
            raise ValueError(f"fabric.{where} is '{name}', which {why}")


def _check_nvlinks(fabric: Fabric) -> None:
    count = len(fabric.gpus)
    joined: set[frozenset[int]] = set()
    for number, bundle in enumerate(fabric.bundles):
        _check_gpus(bundle.gpus, count, f"fabric.bundles[{number}]")
        if frozenset(bundle.gpus) in joined:
            raise ValueError(f"fabric.bundles[{number}] joins two GPUs that another bundle joins")
        joined.add(frozenset(bundle.gpus))
    for number, switch in enumerate(fabric.switches):
        _check_gpus(switch.gpus, count, f"fabric.switches[{number}]")
        for other in fabric.switches[:number]:
            if len(set(other.gpus) & set(switch.gpus)) > 1:
                raise ValueError(f"fabric.switches[{number}] joins two GPUs that another switch joins")


def _check_fault(fault: Fault, count: int, where: str) -> None:
    if fault.kind in _ON_A_LINK and len(fault.devices) != 2:
        raise ValueError(f"{where}.devices is {list(fault.devices)}: a {fault.kind} lies between two GPUs")
    if fault.kind is FaultKind.FOREIGN_LOAD and not 1 <= len(fault.devices) <= 2:
        raise ValueError(f"{where}.devices is {list(fault.devices)}: a foreign load is on one GPU or on a link")
    if fault.kind is FaultKind.MISTIMED and len(fault.devices) == 1:
        raise ValueError(f"{where}.devices is {list(fault.devices)}: times are of two GPUs or more")
    if fault.kind is FaultKind.SLOW_COLLECTIVES and len(fault.devices) == 1:
        raise ValueError(f"{where}.devices is {list(fault.devices)}: a collective is among two GPUs or more")
    if fault.kind is FaultKind.P2P_DISABLED and fault.words and not _VARIABLE.fullmatch(fault.words):
        raise ValueError(f"{where}.words is '{fault.words}', not an NCCL variable as NAME=VALUE")
    if not fault.words.isprintable():
        raise ValueError(f"{where}.words has unprintable characters")
    if fault.kind is FaultKind.LATE_GPU and fault.us <= 0:
        raise ValueError(f"{where} needs us above 0: the µs by which the GPU is late")
    if fault.kind is FaultKind.BOTTLENECK and fault.gbs <= 0:
        raise ValueError(f"{where} needs gbs above 0: the GB/s of the bottleneck")
    if fault.devices:
        _check_gpus(fault.devices, count, f"{where}.devices", fewest=1)
    _check_factor(fault, where)


def _check_factor(fault: Fault, where: str) -> None:
    """Raise ValueError for a factor with which a fault would do nothing, or all would stand still."""
    if fault.factor < _MIN_GBS:
        raise ValueError(f"{where}.factor is {fault.factor}: nothing moves at that rate; use hanging-link for a hang")
    if fault.kind in _LEAVES_A_SHARE and fault.factor >= 1:
        raise ValueError(f"{where} needs a factor below 1: what a {fault.kind} leaves of the rate")
    if fault.kind is FaultKind.MISTIMED and fault.factor <= 1:
        raise ValueError(f"{where} needs a factor above 1: by how much rates grow")


def _check_effect(fault: Fault, fabric: Fabric, where: str) -> None:
    """Raise ValueError for a fault that would do nothing on this machine: a user would think that it was missed."""
    covered = fault.devices or range(len(fabric.gpus))
    if fault.kind is FaultKind.PCIE_DEGRADED:
        slots = [fabric.gpus[gpu] for gpu in covered]
        if all(
            (fault.generation or slot.pcie_generation) >= slot.pcie_generation
            and (fault.width or slot.pcie_width) >= slot.pcie_width
            for slot in slots
        ):
            now = f"gen {slots[0].pcie_generation} and width {slots[0].pcie_width}"
            raise ValueError(f"{where} leaves the slot as it is: give a generation or a width below {now}")
    elif fault.kind is FaultKind.LINKS_DOWN:
        _check_links_down(fault, fabric, where)
    elif fault.kind in _ON_NVLINKS:
        switched = (pair for switch in fabric.switches for pair in combinations(switch.gpus, 2))
        if not any(fault.on_link(*pair) for pair in (*(bundle.gpus for bundle in fabric.bundles), *switched)):
            raise ValueError(f"{where}.devices is {list(fault.devices)}: no NVLink is there for {fault.kind}")


def _check_links_down(fault: Fault, fabric: Fabric, where: str) -> None:
    """Raise ValueError for NVLinks that are not there, and for all of a path's, without which it would be PCIe's."""
    owners = [(set(bundle.gpus), bundle.links) for bundle in fabric.bundles]
    owners += [({gpu}, switch.links) for switch in fabric.switches for gpu in switch.gpus]
    links = max((links for gpus, links in owners if gpus == set(fault.devices)), default=0)
    taken = f"{where} takes {fault.links} NVLinks of {list(fault.devices)}"
    if not fault.links or not links:
        raise ValueError(f"{taken}: name two GPUs that NVLinks join directly, or one at a switch, and 1 link or more")
    down = sum(other.links for other in fabric.faults_of(fault.kind) if set(other.devices) == set(fault.devices))
    if down >= links:
        raise ValueError(f"{taken}, and leaves none of {links}: nvlink-unused is traffic that takes PCIe")


def _check_labels(fabric: Fabric) -> None:
    for number, reported in enumerate(fabric.labels):
        where = f"fabric.labels[{number}]"
        _check_gpus(reported.gpus, len(fabric.gpus), where)
        for name, word in picked(reported, "label", "ancestor", "tool_label").items():
            if word is not None and not is_label(word):
                raise ValueError(f"{where}.{name} is '{word}', not a label of nvidia-smi")


def _check_gpus(numbers: Sequence[int], count: int, where: str, fewest: int = 2) -> None:
    if len(numbers) < fewest or len(set(numbers)) < len(numbers) or not set(numbers) <= set(range(count)):
        raise ValueError(f"{where} names {list(numbers)}: write {fewest} or more distinct positions of {count} GPUs")


# Fabric files (docs/fabric-file.md): the named ones that are shipped, and a user's own. JSON ↔ Fabric.

# Sixteen GPUs take 4 KB; a file of more than 1 MiB is another one.
FORMAT = FileFormat(
    "collbench-fabric", 2, "fabric", again="write it as docs/fabric-file.md says", most_bytes=2**20, by_hand=True
)
_SUFFIX = ".json"


def names() -> tuple[str, ...]:
    """Return the names of the shipped fabrics, in alphabetical order."""
    files = (file.name for file in _shipped().iterdir())
    return tuple(sorted(name.removesuffix(_SUFFIX) for name in files if name.endswith(_SUFFIX)))


def load(name_or_path: str) -> Fabric:
    """Return the shipped fabric of this name, else the one in the file. Raises UsageError, and as `loads`."""
    if name_or_path in names():
        return loads(_text(name_or_path), name_or_path)
    known = ", ".join(names())
    if re.fullmatch(r"[\w-]+", name_or_path) and not Path(name_or_path).exists():
        near = did_you_mean(name_or_path, names())
        raise UsageError(f"no simulated machine is called '{name_or_path}': choose from {known}, or name a file{near}")
    try:
        text = FORMAT.read(Path(name_or_path))
    except (RunFileError, ValueError) as error:  # the latter for a zero byte in the name
        raise UsageError(str(error), f"name a file, or one of {known}") from error
    return loads(text, name_or_path)


def loads(text: str, name: str) -> Fabric:
    """Return the fabric in JSON text; `name` is the file's, for errors. Raises RunFileError: what is wrong, where."""
    return FORMAT.loads(text, name, _build)


def _build(fields: dict[str, Any]) -> Fabric:
    base = fields.pop("base", None)
    if base is not None:
        if base not in names():
            raise ValueError(f"fabric.base is '{base}', not one of {', '.join(names())}")
        shipped = json.loads(_text(base))
        fields = {key: shipped[key] for key in shipped if key not in (*FORMAT.head, "name")} | fields
    fabric: Fabric = build(Fabric, fields, "fabric", by_hand=True)
    check(fabric)
    return fabric


def _shipped() -> Traversable:
    return resources.files("collbench.sim") / "machines"


def _text(name: str) -> str:
    return (_shipped() / f"{name}{_SUFFIX}").read_text(encoding="utf-8")
