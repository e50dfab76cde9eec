"""What probably causes a verdict, and where to look, in types: `output.causes` words both. Devices are positions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from collbench.analysis.diagnose.evidence import Extent, Presence


class Known(StrEnum):
    """The likely causes that need no device and no figure."""

    OTHER_JOBS = "another job uses the GPUs"
    NVLINK_TRAFFIC = "other traffic on the NVLinks"
    BRIDGE_DETOUR = "copies below one bridge go up to the root"
    FEWER_LANES = "a PCIe slot with fewer lanes"
    LOWER_GENERATION = "a PCIe link of a lower generation"
    CALL_FAILED = "a call, the driver or a process failed"
    FAULTY_CORES = "faulty memory or core"
    FAULTY_NVLINKS = "faulty NVLinks, GPU memory or NVSwitch fabric"
    ACS_CORRUPTS = "IOMMU or ACS corrupts transfers"
    ACS_STALLS = "IOMMU or ACS stalls transfers"
    TIMING_OR_LIMIT = "wrong timing or a wrong limit"
    PEERS_REFUSED = "CUDA refuses peer access"
    NVLINKS_DOWN = "NVLinks down or not set up"
    NVLINKS_LOST = "NVLinks down at one end, or since one source was asked"
    PEERS_TAKEN = "driver, container, MIG, IOMMU or ACS deny peer access"
    LABEL_RULES = "different rules for labels of PCIe paths"
    NVLINKS_NOT_IN_TREE = "the PCIe tree has no NVLinks"
    NVLINKS_OF_LABEL_UNUSED = "the NVLinks of a label's pairs unused or down"
    NVLINK_LANES = "NVLink lanes of one direction"
    PCIE_DIRECTION = "one direction of a PCIe link"
    SHARED_CORES = "cores that share a cache or a busy neighbour"
    NCCL_PAIR = "NCCL's path between one pair"
    NCCL_PATH = "NCCL takes another path than the copies"
    SHARED_PARTS = "a shared part that the label does not show"
    ONE_NVLINK = "one NVLink path"
    ONE_PCIE_PATH = "one PCIe path"


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
    """A device's counter grew by so many errors from before measuring to after it."""

    device: int
    counter: ErrorCounter
    count: int


@dataclass(frozen=True, slots=True)
class VariableSet:
    """An environment variable of NCCL that is set, and explains slow collectives."""

    name: str
    value: str


class GpuPart(StrEnum):
    """What of a GPU is suspected where all of its links are slow."""

    NVLINKS = "its NVLinks"
    ONE_DIRECTION = "its copy engines or ports in one direction"
    ANY = "its slot, NVLinks or clocks"


@dataclass(frozen=True, slots=True)
class GpuItself:
    """One GPU, which is what the slow links have in common."""

    device: int
    part: GpuPart


@dataclass(frozen=True, slots=True)
class NvlinksDegraded:
    """NVLinks are down or slow: of one PAIR or one DIRECTION alone, None of several pairs."""

    alone: Extent | None


@dataclass(frozen=True, slots=True)
class NvlinksIdle:
    """NVLinks do not carry the traffic of a path; `alone` where only that PAIR or DIRECTION may be slow, else None."""

    alone: Extent | None


@dataclass(frozen=True, slots=True)
class PeerDetour:
    """Peer copies over PCIe take a detour; `alone` as in NvlinksIdle."""

    alone: Extent | None


@dataclass(frozen=True, slots=True)
class NoPeerAccess:
    """Pairs of a label have no peer access, so their copies meet in host memory."""

    label: str


@dataclass(frozen=True, slots=True)
class UplinkShared:
    """Pairs of a label share an uplink, or their traffic takes a detour."""

    label: str


@dataclass(frozen=True, slots=True)
class HidesNvlinks:
    """A virtual machine (NVML's word for its kind, "" where there is none) or the driver hides NVLinks."""

    virtualization: str


@dataclass(frozen=True, slots=True)
class HidesPcie:
    """A hypervisor (NVML's word for its kind) hides the PCIe tree."""

    virtualization: str


LikelyCause = (
    Known
    | Throttled
    | NewErrors
    | VariableSet
    | GpuItself
    | NvlinksDegraded
    | NvlinksIdle
    | PeerDetour
    | NoPeerAccess
    | UplinkShared
    | HidesNvlinks
    | HidesPcie
)


class Look(StrEnum):
    """What to look at, to check a likely cause."""

    GPU_PROCESSES = "processes of GPUs"
    RUNNING = "what runs on all GPUs"
    LIMITING = "what limits the clocks of GPUs"
    LABELS = "labels"
    PEERS = "peer access by nvidia-smi"
    PCIE_LABELS = "labels of PCIe paths alone"
    NVLINKS = "state of NVLinks"
    NVLINK_ERRORS = "errors of NVLinks"
    NVLINK_TRAFFIC = "traffic of NVLinks"
    FABRIC_MANAGER = "fabric manager"
    MIG = "MIG mode"
    PCIE_LINKS = "PCIe links of devices"
    PCIE_DEVICES = "PCIe devices of NVIDIA"
    PCIE_TREE = "PCIe tree"
    PCIE_NUMA = "NUMA nodes of PCIe devices"
    ACS = "ACS"
    KERNEL_COMMAND = "options of the kernel"
    LOG_DRIVER = "kernel log: the driver"
    LOG_FABRIC = "kernel log: GPUs and NVSwitches"
    LOG_IOMMU = "kernel log: IOMMU"
    LOG_IOMMU_GPUS = "kernel log: IOMMU and GPUs"
    LOG_IOMMU_DRIVER = "kernel log: IOMMU and the driver"
    LOG_MEMORY = "kernel log: memory"
    MEMORY_TEST = "memory test"
    CORES = "CPU cores"
    NUMA = "NUMA nodes"
    WITHOUT_VARIABLE = "all-reduce without a variable"
    NCCL_LOG = "NCCL's log of an all-reduce"


class Check(NamedTuple):
    """What to look at, of which devices (none: of all), and for WITHOUT_VARIABLE which variable to unset."""

    look: Look
    devices: tuple[int, ...] = ()
    variable: str = ""
