"""The doctor's facts about a machine, and its findings: a level, what was found, and its fix."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial

from collbench.model.run import Device, Health, NetworkPort, Path

# The facts: None or "" if nothing reported them.


@dataclass(frozen=True, slots=True)
class GpuState:
    """One GPU as NVML has it now."""

    device: Device
    health: Health = field(default_factory=Health)
    compute_mode: int | None = None  # nvmlComputeMode_t
    persistence: bool | None = None
    mig: bool | None = None
    repair_pending: bool | None = None  # a reset will replace memory rows
    repair_failed: bool | None = None  # memory rows that nothing can replace any more
    fabric_state: int | None = None  # nvmlGpuFabricState_t
    links_up: int = 0  # active NVLinks
    bar1_bytes: int | None = None  # of its memory that other devices can address over PCIe


@dataclass(frozen=True, slots=True)
class Driver:
    """The NVIDIA driver through NVML."""

    version: str = ""
    cuda: str = ""
    error: str = ""  # why it does not answer
    gpus: tuple[GpuState, ...] = ()
    paths: tuple[Path, ...] = ()
    virtualization: str = ""
    on_the_bus: int | None = None  # NVIDIA GPUs on PCI
    nvidia_smi: str = ""  # that program's path
    missing: bool = False  # the driver's library is not here
    advice: str = ""  # what to do about the error


@dataclass(frozen=True, slots=True)
class Software:
    """Libraries. Versions of CUDA are as people write them: "13.0"."""

    nccl: str = ""  # the version that collbench would time
    nccl_path: str = ""
    nccl_error: str = ""  # why NCCL cannot be opened
    wheel: str = ""  # the NCCL library next to torch
    wheel_version: str = ""  # as pip calls it
    libcuda: str = ""
    libcuda_error: str = ""
    torch: str = ""
    torch_cuda: str = ""  # "" for a build without CUDA
    nccl_advice: str = ""  # what to do about `nccl_error`


@dataclass(frozen=True, slots=True)
class Space:
    """A file system: its size and what this user may still write, in bytes."""

    total: int
    free: int


@dataclass(frozen=True, slots=True)
class Slot:
    """The PCIe path up from one GPU."""

    iommu_type: str = ""  # the kernel's word for its IOMMU group
    redirecting: tuple[str, ...] = ()  # PCI ids of bridges whose ACS control sends peer requests up to the CPU
    unreadable: int = 0  # bridges whose registers only root may read


@dataclass(frozen=True, slots=True)
class Host:
    """The operating system around the process. Its `memlock`, bytes that it may lock, is -1 for any number."""

    name: str = ""
    system: str = ""
    shm: Space | None = None
    memlock: int = -1
    cpus: tuple[int, ...] = ()  # that this process may run on
    cpu_quota: float | None = None  # CPUs' worth of time that its cgroups allow
    memory_nodes: tuple[int, ...] = ()  # NUMA nodes that it may take memory from
    memory_available: int = 0  # bytes
    container: str = ""
    hypervisor: str = ""
    iommu: bool | None = None
    iommu_parameters: tuple[str, ...] = ()  # of the kernel's command line
    slots: Mapping[int, Slot] = field(default_factory=dict)  # by the GPUs' indices
    network_cards: tuple[str, ...] = ()
    network_ports: tuple[NetworkPort, ...] = ()
    near_cards: Mapping[int, Mapping[str, str]] = field(default_factory=dict)  # by GPU and card, as nvidia-smi says it
    peermem: bool = False
    open_modules: bool | None = None  # the driver's kernel modules are the open ones; None: they do not say
    registry: str = ""  # settings of the driver's module (NVreg_RegistryDwords)


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """All facts about a machine."""

    backend: str
    host: Host
    driver: Driver = field(default_factory=Driver)
    software: Software = field(default_factory=Software)
    environment: Mapping[str, str] = field(default_factory=dict)  # variables that NCCL and CUDA read
    configured: tuple[tuple[str, str, str], ...] = ()  # what nccl.conf sets: file, name, value


class Level(StrEnum):
    """How a fact affects a run: no effect, a cost in speed or certainty, a failure, or not reported."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"


class Topic(StrEnum):
    """What a finding is about; the report's sections, in its order."""

    GPUS = "GPUs"
    LINKS = "links"
    LIBRARIES = "libraries"
    HOST = "host"
    VARIABLES = "variables"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report: what was found, in a sentence that nothing reads, and what to do about it.

    `fix` is one command or sentence, "" if nothing is to be done. `devices` are the GPUs that it is about, by
    nvidia-smi's indices; () for all of them, and for none.
    """

    group: Topic
    name: str
    level: Level
    text: str
    fix: str = ""
    devices: tuple[int, ...] = ()


# The exit status if any finding fails; warnings leave it at 0.
FAILED = 1


def status(findings: Sequence[Finding]) -> int:
    """Return the exit status: 0 if nothing fails, else FAILED."""
    return FAILED if any(finding.level is Level.FAIL for finding in findings) else 0


# A finding whose group is not yet known: all lines of one judging function are in the same group.
Line = Callable[[Topic], Finding]
Lines = Iterator[Line]


def line(level: Level, name: str, text: str, fix: str = "", gpus: Collection[GpuState] = ()) -> Line:
    """Return a line about these GPUs; the functions below fix its level."""
    return lambda group: Finding(group, name, level, text, fix, tuple(gpu.device.index for gpu in gpus))


ok = partial(line, Level.OK)
warn = partial(line, Level.WARN)
fail = partial(line, Level.FAIL)
unknown = partial(line, Level.UNKNOWN)


def tags(gpus: Collection[GpuState], among: Collection[GpuState] = ()) -> str:
    """Return the GPUs' names as "GPU0, GPU2", or "all 8 GPUs" where these are all of many."""
    if len(gpus) == len(among) > 2:
        return f"all {len(gpus)} GPUs"
    return ", ".join(gpu.device.tag for gpu in gpus)


def nvidia_smi(gpus: Collection[GpuState], options: str) -> str:
    """Return the command that changes these GPUs."""
    return f"sudo nvidia-smi -i {','.join(str(gpu.device.index) for gpu in gpus)} {options}"
