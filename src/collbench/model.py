"""The nouns that every stage shares: devices, paths, cells, samples and the run that holds them.

Devices are referred to by *position*: the place in `Run.devices`, never an nvidia-smi or CUDA index.
Matrices are row = source, column = destination, diagonal NaN.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from collbench.operations import Operation, Variant, Work

# The phase before a sweep, outside its seconds: communicators being made.
NCCL_START = "NCCL start"


class StopReason(StrEnum):
    """Why a cell was not measured further (METHOD.md §2.7)."""

    PRECISION = "precision"
    NOISE = "noise-stable"
    BUDGET = "budget"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU, or on the host backend one CPU core. Identity is `uuid` and `pci_bus_id`; `index` is for display.

    `index` is nvidia-smi's (the core number on the host backend); `cpu_affinity` is a list such as "0-63"; `host` is
    set where a run spans several machines. `pcie_generation` and `pcie_width` are the most that its slot and it can do.
    """

    index: int
    uuid: str
    name: str
    pci_bus_id: str = ""
    memory_bytes: int = 0
    numa_node: int | None = None
    cpu_affinity: str = ""
    host: str = ""
    pcie_generation: int | None = None
    pcie_width: int | None = None

    @property
    def tag(self) -> str:
        """What tables call it: "GPU0", "CPU0" for a core of the host backend, "node1:GPU0" in a run of many hosts."""
        name = f"{'CPU' if self.uuid.startswith('CPU-') else 'GPU'}{self.index}"
        return f"{self.host}:{name}" if self.host else name


@dataclass(frozen=True, slots=True)
class Path:
    """What the machine's own tools say of the path between two devices (an unordered pair of positions).

    `label` is nvidia-smi's word (NV18, PIX, …); `ancestor` the PCIe label alone, as if there were no NVLink;
    `theory_gbs` the one-way limit in GB/s, None where nothing is known; `peer_access` what NVML says of P2P. These are
    NVML's words. `tool_label` and `tool_peer_access` are those of `nvidia-smi topo -m` and `-p2p r`, and `cuda_peers`
    whether CUDA lets both devices reach each other's memory; None where nobody asked.
    """

    devices: tuple[int, int]
    label: str
    ancestor: str | None = None
    nvlinks: int = 0
    theory_gbs: float | None = None
    theory_source: str = ""
    peer_access: str | None = None
    tool_label: str | None = None
    tool_peer_access: str | None = None
    cuda_peers: bool | None = None


@dataclass(frozen=True, slots=True)
class Cell:
    """One thing to measure: an operation on some devices at one message size.

    `members` are positions, as `Variant` says. The pointer chase has (reader, owner of the memory) or with the host
    variant (reader,), and its message is one access of 8 bytes. `numa_node` as in `operations.Work`.
    """

    operation: Operation
    members: tuple[int, ...]
    size_bytes: int
    variant: Variant = Variant.PLAIN
    numa_node: int | None = None

    @property
    def work(self) -> Work:
        """The operation and how it runs."""
        return Work(self.operation, self.variant, self.numa_node)

    @property
    def moved_bytes(self) -> int:
        """Bytes that one iteration moves in all: the message, times the copies that run at once."""
        if self.variant is Variant.BOTH_WAYS:
            return 2 * self.size_bytes
        many = self.variant in (Variant.ONE_TO_ALL, Variant.ALL_TO_ONE)
        return self.size_bytes * (len(self.members) - 1 if many else 1)


@dataclass(frozen=True, slots=True)
class Sample:
    """One visit of a cell: raw seconds per iteration of each timed block, shape (blocks,).

    `concurrent` is True when other disjoint pairs were busy at the same time. `launch_seconds`, for collectives,
    is the ungraphed launch loop's time per iteration (None where it was not taken). `flags` say what was wrong with
    the machine meanwhile: "throttled: SW thermal slowdown on GPU1", "shared: 1 other process on GPU0".
    """

    seconds: tuple[float, ...]
    iterations: int
    concurrent: bool
    launch_seconds: float | None = None
    flags: tuple[str, ...] = ()


@dataclass(slots=True)
class Measurement:
    """All samples of one cell, none where it failed before the first was finished.

    `failure` says why a cell was given up (a hang, a crash). `wrong` counts elements that failed verification: 0, or
    the run has failed; None where nothing was verified.
    """

    cell: Cell
    samples: list[Sample] = field(default_factory=list)
    stop: StopReason | None = None
    wrong: int | None = 0
    failure: str = ""


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
    variant: Variant = Variant.PLAIN


@dataclass(frozen=True, slots=True)
class Machine:
    """Where a run was measured. Versions are the vendors' own strings; empty where there is none.

    `fabric` names the simulated machine of the sim backend, "" for a real one.
    """

    hostname: str
    system: str
    cpu: str
    driver: str = ""
    cuda: str = ""
    nccl: str = ""
    nccl_path: str = ""
    kernel_image: str = ""
    virtualization: str = ""
    multicast: bool | None = None
    fabric: str = ""


@dataclass(frozen=True, slots=True)
class Settings:
    """What was asked for. `environment` holds the NCCL_* variables (and the like) that were set, no others.

    `precision` is half the 95 % interval over the median at which a cell is settled, None for METHOD.md's own;
    `budget_seconds` when visits that are not owed end. `processes` is 1, or the ranks of a launch by `launcher`.
    """

    operations: tuple[Operation, ...]
    sizes: tuple[int, ...]
    dtype: str
    redop: str
    visits: int
    seed: int
    command: tuple[str, ...]
    environment: dict[str, str]
    root: int = 0
    precision: float | None = None
    budget_seconds: float | None = None
    processes: int = 1
    launcher: str = ""


@dataclass(frozen=True, slots=True)
class Chosen:
    """What NCCL said that it chose for a message: algorithm ("RING"), protocol ("LL128") and channels used."""

    operation: Operation
    ranks: int
    size_bytes: int
    algorithm: str
    protocol: str
    channels: int


@dataclass(frozen=True, slots=True)
class Health:
    """One device's state at one moment, as NVML gives it; None where NVML does not.

    Clocks in MHz, temperature in °C, power in W, `throttle` a list of active reasons, errors since driver load.
    `processes` counts other processes with memory on the device. PCIe as it is now: an idle GPU lowers its generation.
    `others_memory` are the bytes that they, and whatever else is not ours, held before ours came.
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
    pcie_generation: int | None = None
    pcie_width: int | None = None
    others_memory: int | None = None


@dataclass(slots=True)
class Run:
    """Everything that one measurement produced, in the order of its stages; `runfile` turns it into JSON.

    `phases` are seconds: of warm-up, audit and visits, the most of `seconds`; of NCCL_START, which came before; and
    "timed", those inside timed regions.
    """

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
    chosen: list[Chosen] = field(default_factory=list)
    phases: dict[str, float] = field(default_factory=dict)
    health_before: tuple[Health, ...] = ()
    health_after: tuple[Health, ...] = ()
    seconds: float = 0.0
    complete: bool = False

    def measured(self, variant: Variant = Variant.PLAIN) -> list[Measurement]:
        """Return the measurements that hold at least one sample of the variant, in the file's order."""
        return [found for found in self.measurements if found.samples and found.cell.variant is variant]
