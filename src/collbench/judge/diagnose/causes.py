"""What probably causes a verdict, and what to check, in types: `output.causes` puts both in words.

Devices are positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum, auto
from typing import NamedTuple

from collbench.judge.diagnose.evidence import Extent, Presence


class Known(StrEnum):
    """The likely causes that are known by name: no figure or device of the run belongs to them."""

    OTHER_JOBS = auto()
    NVLINK_TRAFFIC = auto()
    BRIDGE_DETOUR = auto()
    FEWER_LANES = auto()
    LOWER_GENERATION = auto()
    CALL_FAILED = auto()
    FAULTY_CORES = auto()
    FAULTY_NVLINKS = auto()
    ACS_CORRUPTS = auto()
    ACS_STALLS = auto()
    TIMING_OR_LIMIT = auto()
    PEERS_REFUSED = auto()
    NVLINKS_DOWN = auto()
    NVLINKS_LOST = auto()
    PEERS_TAKEN = auto()
    LABEL_RULES = auto()
    NVLINKS_NOT_IN_TREE = auto()
    NVLINKS_OF_LABEL_UNUSED = auto()
    NVLINK_LANES = auto()
    PCIE_DIRECTION = auto()
    SHARED_CORES = auto()
    NCCL_PAIR = auto()
    NCCL_PATH = auto()
    LINK_OR_NCCL = auto()
    SEVERAL = auto()
    CHANGED = auto()
    ONE_NVLINK = auto()
    ONE_PCIE_PATH = auto()
    NVLINKS_HIDDEN = auto()
    PCIE_TREE_HIDDEN = auto()
    NVLINKS_DEGRADED = auto()  # this one and the next two in OfLinks
    NVLINKS_IDLE = auto()
    PEER_DETOUR = auto()
    NO_PEER_ACCESS = auto()  # this one and the next in OfLabel
    UPLINK_SHARED = auto()


@dataclass(frozen=True, slots=True)
class Throttled:
    """A device was throttled for these reasons, as NVML names them; `seen` says which device, and when."""

    reasons: tuple[str, ...]
    seen: Presence


class ErrorCounter(StrEnum):
    """The fields of Health that count errors."""

    NVLINK = "nvlink_errors"
    REPLAYS = "nvlink_replays"
    ECC = "ecc_errors"


@dataclass(frozen=True, slots=True)
class NewErrors:
    """How much a device's error counter grew between the start and the end of the measurement."""

    device: int
    counter: ErrorCounter
    count: int


@dataclass(frozen=True, slots=True)
class VariableSet:
    """An environment variable of NCCL that is set, and explains slow collectives."""

    name: str
    value: str


class GpuPart(StrEnum):
    """The part of a GPU that is suspected if all of its links are slow."""

    NVLINKS = auto()
    ONE_DIRECTION = auto()
    ANY = auto()


@dataclass(frozen=True, slots=True)
class GpuItself:
    """One GPU, which all of the slow links have in common."""

    device: int
    part: GpuPart


@dataclass(frozen=True, slots=True)
class OfLinks:
    """A known cause (NVLINKS_DEGRADED, NVLINKS_IDLE or PEER_DETOUR) of one PAIR or DIRECTION; None: of several."""

    known: Known
    single: Extent | None


@dataclass(frozen=True, slots=True)
class OfLabel:
    """A known cause (NO_PEER_ACCESS or UPLINK_SHARED) of all pairs of a label."""

    known: Known
    label: str


class SharedPart(StrEnum):
    """A part of a machine that links cross."""

    UPLINK = auto()  # of the switch above the devices
    ROOT = auto()  # the root complex above them
    FORWARDING = auto()  # between GPUs by root complexes, not to host memory
    SOCKETS = auto()  # the link between sockets
    BELOW = auto()  # the switch between them, or the detour that ACS makes there
    PATH = auto()  # what two devices share with no other


@dataclass(frozen=True, slots=True)
class Shared:
    """A shared part, and the devices below or beside it."""

    part: SharedPart
    devices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Either:
    """Two explanations that fit what was measured equally well, each of one fault or of several."""

    first: tuple[GpuItself | Shared, ...]
    second: tuple[GpuItself | Shared, ...]


LikelyCause = Known | OfLinks | OfLabel | Throttled | NewErrors | VariableSet | GpuItself | Shared | Either


class Look(StrEnum):
    """What to look at, to check a likely cause."""

    GPU_PROCESSES = auto()
    RUNNING = auto()
    LIMITING = auto()
    LABELS = auto()
    PEERS = auto()
    PCIE_LABELS = auto()
    NVLINKS = auto()
    NVLINK_ERRORS = auto()
    NVLINK_TRAFFIC = auto()
    FABRIC_MANAGER = auto()
    MIG = auto()
    PCIE_LINKS = auto()
    PCIE_DEVICES = auto()
    PCIE_TREE = auto()
    PCIE_NUMA = auto()
    ACS = auto()
    KERNEL_COMMAND = auto()
    LOG_DRIVER = auto()
    LOG_FABRIC = auto()
    LOG_IOMMU = auto()
    LOG_IOMMU_GPUS = auto()
    LOG_IOMMU_DRIVER = auto()
    LOG_MEMORY = auto()
    MEMORY_TEST = auto()
    CORES = auto()
    NUMA = auto()
    WITHOUT_VARIABLE = auto()
    NCCL_LOG = auto()


class Check(NamedTuple):
    """What to look at, on which devices (none means all); for WITHOUT_VARIABLE also the variable to unset."""

    look: Look
    devices: tuple[int, ...] = ()
    variable: str = ""
