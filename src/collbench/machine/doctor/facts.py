"""The doctor's input: plain facts about a machine, None or "" if nothing reported them. No judgment here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from collbench.machine.network_affinity import NetworkAffinity
from collbench.model.run import Device, NetworkPort, Path


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as NVML has it now.

    `compute_mode`, `fabric_state` are NVML's numbers; `repair_pending` and `repair_failed` are about memory rows that a
    reset, or nothing any more, will replace; `links_up` counts active NVLinks; `memory_used` is in bytes,
    `temperature` in °C.
    """

    device: Device
    compute_mode: int | None = None
    persistence: bool | None = None
    mig: bool | None = None
    ecc_errors: int | None = None
    repair_pending: bool | None = None
    repair_failed: bool | None = None
    fabric_state: int | None = None
    links_up: int = 0
    processes: int | None = None
    memory_used: int | None = None
    temperature: int | None = None
    throttle: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Driver:
    """The NVIDIA driver through NVML. `error` says why it does not answer, `missing` that its library is not here.

    `advice` says what to do about the error.
    `on_the_bus` counts NVIDIA GPUs that PCI has.
    """

    version: str = ""
    cuda: str = ""
    error: str = ""
    gpus: tuple[Gpu, ...] = ()
    paths: tuple[Path, ...] = ()
    virtualization: str = ""
    on_the_bus: int | None = None
    nvidia_smi: str = ""
    missing: bool = False
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Software:
    """Libraries: `nccl` is what collbench would time, `wheel` that next to torch, `wheel_version` what pip calls it.

    `nccl_error` says why NCCL cannot be opened, `nccl_advice` what to do. Versions of CUDA are as people write them
    ("13.0"); `torch_cuda` is "" for a build without CUDA.
    """

    nccl: str = ""
    nccl_path: str = ""
    nccl_error: str = ""
    wheel: str = ""
    wheel_version: str = ""
    libcuda: str = ""
    libcuda_error: str = ""
    torch: str = ""
    torch_cuda: str = ""
    nccl_advice: str = ""


@dataclass(frozen=True, slots=True)
class Space:
    """A file system: its size and what this user may still write, in bytes."""

    total: int
    free: int


@dataclass(frozen=True, slots=True)
class Folder:
    """Where runs are saved: the path, the room there, whether this user may write. `error` where there is none."""

    path: str = ""
    space: Space | None = None
    writable: bool = False
    error: str = ""


@dataclass(frozen=True, slots=True)
class Slot:
    """The PCIe way up from one GPU: the kernel's word for its IOMMU group, and bridges that redirect peer traffic.

    `redirecting` are the PCI ids of bridges whose ACS control sends peer requests up to the CPU; `unreadable` counts
    bridges whose registers only root may read.
    """

    iommu_type: str = ""
    redirecting: tuple[str, ...] = ()
    unreadable: int = 0


@dataclass(frozen=True, slots=True)
class Host:
    """The operating system around the process. Limits: None if unknown, -1 where there is none.

    `cpus` this process may run on, `cpu_quota` the CPUs' worth of time that its cgroups allow, `memory_nodes` the NUMA
    nodes it may take memory from; `slots` by the GPUs' indices; `memory_available` in bytes.
    """

    name: str = ""
    system: str = ""
    shm: Space | None = None
    memlock: int | None = None
    open_files: int | None = None
    cpus: tuple[int, ...] = ()
    cpu_quota: float | None = None
    memory_nodes: tuple[int, ...] = ()
    memory_available: int = 0
    container: str = ""
    hypervisor: str = ""
    iommu: bool | None = None
    slots: Mapping[int, Slot] = field(default_factory=dict)
    network_cards: tuple[str, ...] = ()
    network_ports: tuple[NetworkPort, ...] = ()
    network_affinity: NetworkAffinity = field(default_factory=NetworkAffinity)
    peermem: bool = False
    open_modules: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """All of it. `environment` holds the variables that NCCL and CUDA read, `configured` those that nccl.conf sets."""

    backend: str
    host: Host
    runs: Folder
    driver: Driver = field(default_factory=Driver)
    software: Software = field(default_factory=Software)
    environment: Mapping[str, str] = field(default_factory=dict)
    configured: tuple[tuple[str, str, str], ...] = ()  # file, name, value
