"""The nouns of a simulated machine: GPUs, NVLinks, switches, the PCIe tree, noise, faults (docs/fabric-file.md).

Rates are what is achieved, in GB/s and one direction; delays are in µs. GPUs are referred to by position.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from collbench.model import Health

_NOTHING_TOLD = Health()


class FaultKind(StrEnum):
    """What can be wrong with a simulated machine, by its mechanism; `faults` maps verdicts to these."""

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


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU in its slot. `bridge` names the bridge or host bridge that the slot hangs on.

    `pcie_gbs` is what its slot achieves; generation and width are the most that slot and GPU can do.
    `nvlink_line_mbps` is the rate of one link as NVML reports it, in MB/s. `health` is what NVML says of its state.
    """

    name: str
    memory_bytes: int
    pci_bus_id: str
    bridge: str
    pcie_gbs: float
    pcie_generation: int = 4
    pcie_width: int = 16
    nvlink_line_mbps: int | None = None
    health: Health = _NOTHING_TOLD


@dataclass(frozen=True, slots=True)
class Bundle:
    """NVLinks that join two GPUs directly; `gbs` is what each link achieves in each direction."""

    gpus: tuple[int, int]
    links: int
    gbs: float
    latency_us: float = 0.5


@dataclass(frozen=True, slots=True)
class Switch:
    """NVSwitches that join these GPUs as one plane; `gbs` is what a GPU's port of all its links achieves each way."""

    gpus: tuple[int, ...]
    links: int
    gbs: float
    latency_us: float = 0.6


@dataclass(frozen=True, slots=True)
class Bridge:
    """A PCIe switch below `parent`, another one or a host bridge. `up_gbs` and `down_gbs` are its uplink's rates.

    `peer_gbs` limits a transfer that turns round in it, from each of its ports; None: nothing does but the slots.
    """

    name: str
    parent: str
    up_gbs: float
    down_gbs: float
    peer_gbs: float | None = None
    latency_us: float = 0.2


@dataclass(frozen=True, slots=True)
class HostBridge:
    """A PCIe root at a NUMA node. `peer_gbs` limits a peer transfer from each of its ports, None: nothing does."""

    name: str
    numa_node: int
    peer_gbs: float | None = None
    latency_us: float = 0.3


@dataclass(frozen=True, slots=True)
class Sockets:
    """The link between each two NUMA nodes, and how fast one node's memory takes staged data, all GPUs together."""

    gbs: float = 40.0
    latency_us: float = 0.4
    memory_gbs: float = 150.0


@dataclass(frozen=True, slots=True)
class Engines:
    """The share of a path's rate that each engine gets: copy engine, kernels, staged copies, NCCL by the medium."""

    ce_write: float = 1.0
    ce_read: float = 0.995
    sm_write: float = 0.935
    sm_read: float = 0.95
    staged: float = 0.7
    nccl_nvlink: float = 0.9
    nccl_pcie: float = 0.85
    nccl_staged: float = 0.6


@dataclass(frozen=True, slots=True)
class Delays:
    """What a message of no bytes takes beside its path's latency, in µs; an access is one of the pointer chase.

    A collective takes `collective` once and `hop` for each step around the ring; its launch takes `launch`.
    """

    copy: float = 1.5
    kernel: float = 2.2
    staged: float = 15.0
    access: float = 0.3
    collective: float = 4.4
    hop: float = 0.2
    launch: float = 2.8


@dataclass(frozen=True, slots=True)
class Noise:
    """Relative σ of a visit and of a block in it, both log-normal."""

    visit: float = 0.003
    block: float = 0.001


@dataclass(frozen=True, slots=True)
class Telling:
    """What the machine's tools say of one pair, where it is not what the structure says; None leaves it.

    `cuda_peers` false is more than words: then no peer access is used.
    """

    gpus: tuple[int, int]
    label: str | None = None
    ancestor: str | None = None
    nvlinks: int | None = None
    peer_access: str | None = None
    tool_label: str | None = None
    tool_peer_access: str | None = None
    cuda_peers: bool | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault and its place. Which of the fields a kind reads stands in docs/fabric-file.md.

    `devices` empty means all of them.
    """

    kind: FaultKind
    devices: tuple[int, ...] = ()
    factor: float = 1.0
    one_way: bool = False
    offset: int = 0
    links: int = 1
    gbs: float = 0.0
    generation: int | None = None
    width: int | None = None
    words: str = ""

    def covers(self, *devices: int) -> bool:
        """Return whether all of these devices are among its own."""
        return not self.devices or set(devices) <= set(self.devices)


@dataclass(frozen=True, slots=True)
class Fabric:
    """A machine to simulate. `source` says where its figures are from.

    `pcie_peers` False: only NVLinks give peer access. `unreachable` lists pairs without it in any case.
    `virtualization` is NVML's word; a passed-through GPU's NUMA node is not told.
    """

    name: str
    source: str
    gpus: tuple[Gpu, ...]
    host_bridges: tuple[HostBridge, ...]
    bridges: tuple[Bridge, ...] = ()
    bundles: tuple[Bundle, ...] = ()
    switches: tuple[Switch, ...] = ()
    sockets: Sockets = Sockets()
    pcie_peers: bool = True
    unreachable: tuple[tuple[int, int], ...] = ()
    engines: Engines = Engines()
    delays: Delays = Delays()
    noise: Noise = Noise()
    labels: tuple[Telling, ...] = ()
    faults: tuple[Fault, ...] = ()
    virtualization: str = "none"
    numa_hidden: bool = False

    def faults_of(self, *kinds: FaultKind) -> tuple[Fault, ...]:
        """Return the faults of these kinds."""
        return tuple(fault for fault in self.faults if fault.kind in kinds)
