"""The nouns that every stage shares: devices, paths, cells, samples and the run that holds them.

Devices are referred to by *position*: the place in `Run.devices`, never an nvidia-smi or CUDA index.
Matrices are row = source, column = destination, diagonal NaN.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Operation(StrEnum):
    """What is timed. A copy names who moves the bytes (engine) and which side issues it (METHOD.md §1)."""

    CE_WRITE = "ce-write"
    CE_READ = "ce-read"
    SM_WRITE = "sm-write"
    SM_READ = "sm-read"
    CPU_WRITE = "cpu-write"
    CPU_READ = "cpu-read"
    ALLREDUCE = "allreduce"
    BROADCAST = "broadcast"

    @property
    def is_copy(self) -> bool:
        """True for a copy on one directed link, False for a collective on a communicator."""
        return self not in (Operation.ALLREDUCE, Operation.BROADCAST)


class StopReason(StrEnum):
    """Why a cell was not measured further (METHOD.md §2.7)."""

    PRECISION = "precision"
    NOISE = "noise-stable"
    BUDGET = "budget"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU, or on the host backend one CPU core. Identity is `uuid` and `pci_bus_id`; `index` is for display.

    `index` is nvidia-smi's (the core number on the host backend); `cpu_affinity` is a list such as "0-63".
    """

    index: int
    uuid: str
    name: str
    pci_bus_id: str = ""
    memory_bytes: int = 0
    numa_node: int | None = None
    cpu_affinity: str = ""

    @property
    def tag(self) -> str:
        """What tables call it: "GPU0", or "CPU0" for a core of the host backend."""
        return f"{'CPU' if self.uuid.startswith('CPU-') else 'GPU'}{self.index}"


@dataclass(frozen=True, slots=True)
class Path:
    """What the machine's own tools say of the path between two devices (an unordered pair of positions).

    `label` is nvidia-smi's word (NV18, PIX, …); `ancestor` the PCIe label alone, as if there were no NVLink;
    `theory_gbs` the one-way limit in GB/s, None where nothing is known; `peer_access` what NVML says of P2P.
    """

    devices: tuple[int, int]
    label: str
    ancestor: str | None = None
    nvlinks: int = 0
    theory_gbs: float | None = None
    theory_source: str = ""
    peer_access: str | None = None


@dataclass(frozen=True, slots=True)
class Cell:
    """One thing to measure: an operation on some devices at one message size.

    `members` are positions: (src, dst) for a copy, the ranks of the communicator in order for a collective.
    """

    operation: Operation
    members: tuple[int, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One visit of a cell: raw seconds per iteration of each timed block, shape (blocks,).

    `concurrent` is True when other disjoint pairs were busy at the same time. `launch_seconds`, for collectives,
    is the ungraphed launch loop's time per iteration (None where it was not taken).
    """

    seconds: tuple[float, ...]
    iterations: int
    concurrent: bool
    launch_seconds: float | None = None


@dataclass(slots=True)
class Measurement:
    """All samples of one cell. `wrong` counts elements that failed verification (0 or the run has failed)."""

    cell: Cell
    samples: list[Sample] = field(default_factory=list)
    stop: StopReason | None = None
    wrong: int = 0


@dataclass(frozen=True, slots=True)
class Skipped:
    """A cell or family of cells that was not measured, by name and reason."""

    what: str
    reason: str


@dataclass(frozen=True, slots=True)
class Audit:
    """One comparison of a pair measured alone and among others, at the largest size (METHOD.md §3).

    `ratio` is concurrent over isolated bandwidth; `trusted` is False where it leaves 1 ± `delta`.
    """

    operation: Operation
    members: tuple[int, ...]
    label: str
    isolated_gbs: float
    concurrent_gbs: float
    ratio: float
    delta: float
    trusted: bool


@dataclass(frozen=True, slots=True)
class Machine:
    """Where a run was measured. Versions are the vendors' own strings; empty where there is none."""

    hostname: str
    system: str
    cpu: str
    driver: str = ""
    cuda: str = ""
    nccl: str = ""
    nccl_path: str = ""
    kernel_image: str = ""
    virtualization: str = ""


@dataclass(frozen=True, slots=True)
class Settings:
    """What was asked for. `environment` holds the NCCL_* variables (and the like) that were set, no others."""

    operations: tuple[Operation, ...]
    sizes: tuple[int, ...]
    dtype: str
    redop: str
    visits: int
    seed: int
    command: tuple[str, ...]
    environment: dict[str, str]


@dataclass(frozen=True, slots=True)
class Health:
    """One device's state at one moment, as NVML gives it; None where NVML does not.

    Clocks in MHz, temperature in °C, power in W, `throttle` a list of active reasons, errors since driver load.
    `processes` counts other processes with memory on the device.
    """

    sm_clock: int | None = None
    memory_clock: int | None = None
    temperature: int | None = None
    power: float | None = None
    throttle: tuple[str, ...] = ()
    utilization: int | None = None
    memory_used: int | None = None
    nvlink_replays: int | None = None
    nvlink_errors: int | None = None
    ecc_errors: int | None = None
    processes: int | None = None


@dataclass(slots=True)
class Run:
    """Everything that one measurement produced, in the order of its stages; `runfile` turns it into JSON."""

    backend: str
    version: str
    started: str
    machine: Machine
    devices: tuple[Device, ...]
    paths: tuple[Path, ...]
    settings: Settings
    measurements: list[Measurement] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    audits: list[Audit] = field(default_factory=list)
    health_before: tuple[Health, ...] = ()
    health_after: tuple[Health, ...] = ()
    seconds: float = 0.0
    complete: bool = False
