"""The nouns that every stage shares: devices, paths, data points, samples and the run that holds them.

Devices are referred to by *position*: the place in `Run.devices`, never an nvidia-smi or CUDA index.
Matrices are row = source, column = destination, diagonal NaN.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from collbench.model.compute import Compute, Priority
from collbench.model.failures import Failure, FailureKind, WrongData
from collbench.model.operations import COLLECTIVES, Operation, Registration, Variant, Work
from collbench.model.skew import Blocks, Skew, blocks_of
from collbench.model.units import format_size

# The phase before a sweep, outside its seconds: communicators being made.
NCCL_START = "NCCL start"


class StopReason(StrEnum):
    """Why a data point was not measured further (docs/method.md 6.4)."""

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
    def is_core(self) -> bool:
        """True for a CPU core of the host backend, which names its devices so."""
        return self.uuid.startswith("CPU-")

    @property
    def tag(self) -> str:
        """What tables call it: "GPU0", "CPU0" for a core of the host backend, "node1:GPU0" in a run of many hosts."""
        name = f"{'CPU' if self.is_core else 'GPU'}{self.index}"
        return f"{self.host}:{name}" if self.host else name


class PeerStatus(StrEnum):
    """One answer of NVML or `nvidia-smi topo -p2p`: does a device reach its peer's memory, and if not, why."""

    OK = "OK"
    CNS = "CNS"
    GNS = "GNS"
    TNS = "TNS"
    NS = "NS"
    DR = "DR"
    UNKNOWN = "U"

    @property
    def allows(self) -> bool | None:
        """True or False; None for unknown."""
        return None if self is PeerStatus.UNKNOWN else self is PeerStatus.OK


@dataclass(frozen=True, slots=True)
class PeerReadWrite:
    """NVML's report on reading and on writing a peer's memory; None if not reported."""

    read: PeerStatus | None = None
    write: PeerStatus | None = None

    @property
    def statuses(self) -> tuple[PeerStatus, ...]:
        """What was reported, reading first, each status once."""
        return tuple(dict.fromkeys(one for one in (self.read, self.write) if one is not None))

    @property
    def denied(self) -> bool:
        """True if reading or writing does not work."""
        return any(status.allows is False for status in self.statuses)

    def __str__(self) -> str:
        """Return "OK", or "read TNS, write OK" where the two differ."""
        statuses = self.statuses
        return f"read {self.read}, write {self.write}" if len(statuses) == 2 else "".join(statuses)


@dataclass(frozen=True, slots=True)
class Path:
    """What the machine's tools report about the path between two devices (an unordered pair of positions).

    `label` is nvidia-smi's word (NV18, PIX, …); `ancestor` the PCIe label alone, as if there were no NVLink;
    `theory_gbs` the one-way limit in GB/s, None if nothing is known; `peer_access` what NVML says of P2P. `tool_label`
    is the word of `nvidia-smi topo -m`, `tool_peer_access` what `-p2p r` says of the first device reading the second's
    memory and of the second reading the first's, `cuda_peers` whether CUDA lets both reach each other's memory; None
    and () if it was not asked.
    """

    devices: tuple[int, int]
    label: str
    ancestor: str | None = None
    nvlinks: int = 0
    theory_gbs: float | None = None
    theory_source: str = ""
    peer_access: PeerReadWrite | None = None
    tool_label: str | None = None
    tool_peer_access: tuple[PeerStatus, ...] = ()
    cuda_peers: bool | None = None

    @property
    def peers_denied(self) -> bool:
        """True if NVML says that the devices do not read or write each other's memory."""
        return self.peer_access is not None and self.peer_access.denied


_work = functools.cache(Work)  # a run has few, and asks for them a hundred thousand times


@dataclass(frozen=True, slots=True)
class DataPoint:
    """One thing to measure: an operation on some devices at one message size.

    `members` are positions, as `Variant` says. The pointer chase has (reader, owner of the memory) or with the host
    variant (reader,), and its message is one access of 8 bytes. `numa_node`, `registration` and
    `skew` as in `operations.Work`.
    """

    operation: Operation
    members: tuple[int, ...]
    size_bytes: int
    variant: Variant = Variant.PLAIN
    numa_node: int | None = None
    registration: Registration = Registration.NONE
    skew: Skew | None = None

    @property
    def work(self) -> Work:
        """The operation and how it runs."""
        return _work(self.operation, self.variant, self.numa_node, self.registration, self.skew)

    @property
    def blocks(self) -> Blocks:
        """Bytes from each rank to each of an irregular collective. Raises ValueError for a size that it cannot have."""
        return blocks_of(self.skew, len(self.members), self.size_bytes)

    @property
    def moved_bytes(self) -> int:
        """Bytes that one iteration moves in total: the message, times the number of concurrent copies."""
        if self.variant is Variant.BOTH_WAYS:
            return 2 * self.size_bytes
        many = self.variant in (Variant.ONE_TO_ALL, Variant.ALL_TO_ONE)
        return self.size_bytes * (len(self.members) - 1 if many else 1)


class FlagKind(StrEnum):
    """What may be wrong with a device while it is measured."""

    THROTTLED = "throttled"
    HOT = "hot"
    SHARED = "shared"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Flag:
    """One problem of devices, by position, during a trial.

    `figure` is in °C of a hot device, and counts the other processes on a shared one. `reason` is why a device was
    throttled, as in `machine.health`; of OTHER it is the words of an older file that no kind has.
    """

    kind: FlagKind
    devices: tuple[int, ...]
    figure: int | None = None
    reason: str = ""


class MarkKind(StrEnum):
    """What is wrong with a batch: `impossible`, it is faster than the hardware's limit."""

    IMPOSSIBLE = "impossible"


@dataclass(frozen=True, slots=True)
class Mark:
    """What is wrong with a sample, by its fastest batch: the positions whose port, link or slot cannot carry it.

    `rate_gbs` is the batch's (algbw of copies, busbw of collectives) and `limit_gbs` what it cannot exceed, in GB/s.
    """

    kind: MarkKind
    devices: tuple[int, ...]
    rate_gbs: float
    limit_gbs: float


@dataclass(frozen=True, slots=True)
class Sample:
    """One trial of a data point: raw seconds per iteration of each batch, shape (batches,).

    `concurrent` is True when other disjoint pairs were busy at the same time. `launch_seconds`, for collectives,
    is the ungraphed launch loop's time per iteration (None if it was not taken). `flags` say what was wrong with
    the machine meanwhile. `marks` say what is wrong with the sample itself (analysis/physics.py). The trial's
    batches, untimed ones too, delivered `moved_bytes`, of which `verified_bytes` were compared (None: not counted).
    `plain`: a collective's batches were plain launches, as between hosts, not replays of a captured graph. `waits` are
    seconds by member, of `nodes`: the median time for which it waited in the barrier before a batch.
    """

    seconds: tuple[float, ...]
    iterations: int
    concurrent: bool
    launch_seconds: float | None = None
    flags: tuple[Flag, ...] = ()
    marks: tuple[Mark, ...] = ()
    moved_bytes: int | None = None
    verified_bytes: int | None = None
    plain: bool = False
    waits: tuple[float, ...] = ()


@dataclass(slots=True)
class Measurement:
    """All samples of one data point, none if it failed before the first was finished.

    `failure` says why a data point was given up, None if it was not. `wrong` counts elements that failed
    verification: 0, or the run has failed; None if nothing was verified.
    """

    point: DataPoint
    samples: list[Sample] = field(default_factory=list)
    stop: StopReason | None = None
    wrong: int | None = 0
    failure: Failure | None = None

    @property
    def untried(self) -> bool:
        """True if it was not even started, as others before it had failed."""
        return self.failure is not None and self.failure.kind is FailureKind.UNTRIED


@dataclass(frozen=True, slots=True)
class RankLaunches:
    """One rank's single launches, ns: when its stream came to each, and when it had left it; shapes (launches,).

    All of them may be off together by `uncertainty_ns`, as this rank's clock was read against the host's; `step_ns` is
    the smallest step of that clock. Reading it adds `stamp_ns` to each `left - arrived`.
    """

    arrived: tuple[int, ...]
    left: tuple[int, ...]
    stamp_ns: int = 0
    uncertainty_ns: int = 0
    step_ns: int = 0


@dataclass(frozen=True, slots=True)
class Latency:
    """Plain launches of a collective's data point, each timed on its own (docs/method.md 4.6).

    `ranks` are in the order of the point's members, with as many launches each. Times count from the launch's earliest
    arrival; without a `common_clock`, as between hosts, each rank's from its own, so its arrivals are 0. `concurrent`
    and `flags` as in Sample.
    """

    point: DataPoint
    ranks: tuple[RankLaunches, ...]
    common_clock: bool = True
    concurrent: bool = False
    flags: tuple[Flag, ...] = ()

    @property
    def count(self) -> int:
        """How many launches there are of each rank."""
        return len(self.ranks[0].arrived)


class SkipKind(StrEnum):
    """Why a requested data point is not measured. The fields of Skipped that a kind fills are listed after it."""

    NO_PEERS = "no peer access"  # for a kernel's copy: work, members
    SMALL_BLOCK = "less than 16 bytes a rank"  # as nccl-tests cuts batches: work, sizes, count of ranks
    SMALL_ELEMENT = "less than an element"  # work, sizes
    NODE_LIMIT = "node limit"  # the most with each NUMA node's memory: sizes, limit_bytes
    ROOM = "room"  # in the devices' memory: sizes, limit_bytes of a message, free_bytes
    CONCURRENT_ROOM = "concurrent room"  # in a buffer: work, sizes, limit_bytes of it, count of messages at once
    CACHE = "cache"  # the free memory is too little against the reader's: work, members, limit_bytes
    NUMA = "numa"  # the kernel refuses a node's memory: work and members, or neither; detail
    PROCESSES = "processes"  # each device has its own: work, members
    ALGORITHMS = "algorithms"  # NCCL's choices: detail
    WRONG_DATA = "wrong data"  # ended the run: wrong, or members and detail
    OTHER = "other"  # an older file's sentence: work, members, detail

    @property
    def by_design(self) -> bool:
        """True if nothing is wrong: this machine, or such a launch, never measures it."""
        return self in (SkipKind.NO_PEERS, SkipKind.SMALL_BLOCK, SkipKind.SMALL_ELEMENT, SkipKind.PROCESSES)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a backend cannot do something; `limit_bytes` and `detail` as in Skipped."""

    kind: SkipKind
    limit_bytes: int | None = None
    detail: str = ""


# For copies by kernels: the copy engine and NCCL can do without peer access.
NO_PEERS = Refusal(SkipKind.NO_PEERS)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A data point, a family of data points, or the rest of a run that was not measured.

    With `members` (positions) it is one place of `work`; `sizes` are those that were left out, in bytes. `free_bytes`
    are each device's, () if unreported. `detail` is in another's words: the kernel's, NCCL's, an older file's.
    """

    kind: SkipKind
    work: Work | None = None
    members: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    limit_bytes: int | None = None
    free_bytes: tuple[int, ...] = ()
    count: int | None = None
    wrong: WrongData | None = None
    detail: str = ""

    def __str__(self) -> str:
        """Return "allreduce of 1 B, 2 B: less than an element": a notation, for the texts of exceptions."""
        sizes = f" of {', '.join(map(format_size, self.sizes))}" if self.sizes else ""
        return ": ".join(filter(None, (f"{self.work or 'all'}{sizes}", str(self.kind), self.detail)))


@dataclass(frozen=True, slots=True)
class InterferenceCheck:
    """One comparison of a pair measured alone and among others at a large size (docs/method.md 6.2); None: unrecorded.

    `ratio` is concurrent over isolated bandwidth; `trusted` is False if it leaves 1 ± `delta`.
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
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Machine:
    """Where a run was measured. Versions are the vendors' own strings; empty if there is none.

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


class CommandKind(StrEnum):
    """The command that requested a run. All collectives' commands are COLLECTIVE."""

    PAIRS = "pairs"
    COPIES = "copies"
    LATENCY = "latency"
    CHECK = "check"
    COLLECTIVE = "collective"
    SELECT = "select"
    NODES = "nodes"
    OVERLAP = "overlap"
    REPLAY = "replay"
    OTHER = "other"  # in a file of version 1 whose command line was none of ours

    @property
    def of_links(self) -> bool:
        """False if a run holds no link, pair or collective by itself: only what compute or a job has beside it."""
        return self not in {CommandKind.OVERLAP, CommandKind.REPLAY}

    @classmethod
    def of(cls, name: str) -> CommandKind:
        """Return the kind of the command with this name; OTHER for none of ours."""
        if name in COLLECTIVES:
            return cls.COLLECTIVE
        own = {kind.value: kind for kind in cls if kind is not cls.COLLECTIVE}
        return own.get(name, cls.OTHER)


class Layout(StrEnum):
    """Which communicators collectives ran on."""

    ALL = "all"
    PAIRS = "pairs"
    SPLIT = "split"
    SETS = "sets"


@dataclass(frozen=True, slots=True)
class Settings:
    """What was asked for: enough to ask for the same again, with what was planned of it.

    `operations` and `sizes` are those of the plan, `requested_sizes` those that were asked for (None: the default).
    `environment` holds the NCCL_* variables (and the like) that were set, no others. `command` is the command line, for
    people: nothing reads it. `precision` is half the 95 % interval over the median at which a data point has converged,
    None for docs/method.md 6.4's; `budget_seconds` when trials that are not owed end. `processes` is 1, or the ranks of
    a launch by `launcher`. `devices` are the words of --devices, () for all. `copies` lists how raw copies ran, `chase`
    adds the pointer chase. `collectives` ran on all devices, each pair, `split` disjoint sets, or `sets`, as `layout`
    says. `nccl_config` holds the fields of ncclConfig_t that were asked for. `isolated`: no link or pair while another
    was busy. `launches`: the ungraphed loop was timed too. `latency`: so many launches of each collective were timed
    one by one. `iterations` and `warmup` None leave the choice to the
    method. `graph` is nccl-tests' -G. `fabric` names the simulated machine or its file.
    """

    operations: tuple[Operation, ...]
    sizes: tuple[int, ...]
    dtype: str
    redop: str
    trials: int
    seed: int
    command: tuple[str, ...]
    environment: dict[str, str]
    root: int = 0
    precision: float | None = None
    budget_seconds: float | None = None
    processes: int = 1
    launcher: str = ""
    kind: CommandKind = CommandKind.PAIRS
    devices: tuple[str, ...] = ()
    requested_sizes: tuple[int, ...] | None = None
    copies: tuple[Variant, ...] = ()
    chase: bool = False
    collectives: tuple[Work, ...] = ()
    layout: Layout = Layout.ALL
    split: int = 1
    sets: tuple[tuple[int, ...], ...] = ()
    isolated: bool = False
    launches: bool = False
    iterations: int | None = None
    warmup: int | None = None
    verify: bool = True
    quick: bool = False
    algorithms: bool = False
    graph: int = 0
    fabric: str = ""
    latency: int = 0
    nccl_config: dict[str, int] = field(default_factory=dict)

    @property
    def command_name(self) -> str:
        """The command that asked for it: "pairs", "allreduce"; "" if it was none of ours."""
        return command_name(self.kind, self.collectives)


def command_name(kind: CommandKind, collectives: Sequence[Work]) -> str:
    """Return the name of the command of this kind: of a collective its own, "" for none of ours."""
    if kind is CommandKind.COLLECTIVE:
        return collectives[0].operation.value if collectives else ""
    return "" if kind is CommandKind.OTHER else kind.value


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
class OverlapTrial:
    """One trial of a collective that overlaps compute: seconds by rank, in the order of `Overlap.members`.

    `collective_*` are mean seconds a call and `compute_*` mean seconds a unit of compute, each alone and beside the
    other. `beside_calls` are the seconds of each call beside compute, of its slowest rank: they began at random moments
    of the compute. `calls` and `units` are a fixed amount: `collective_amount` and `compute_amount` are its seconds
    alone, and `together` those of both at once, from their common start to the later end. `covered_units` of it ran
    while the collective did, on every rank: the seconds beside are theirs. `flags` as in Sample.
    """

    collective_alone: tuple[float, ...]
    compute_alone: tuple[float, ...]
    collective_beside: tuple[float, ...]
    compute_beside: tuple[float, ...]
    beside_calls: tuple[float, ...]
    collective_amount: tuple[float, ...]
    compute_amount: tuple[float, ...]
    together: tuple[float, ...]
    calls: int
    units: int
    covered_units: int
    flags: tuple[Flag, ...] = ()


@dataclass(slots=True)
class Overlap:
    """What a collective and compute cost each other when they run at the same time on each GPU.

    `members` are positions in the order of ranks. `ctas` is how many thread blocks NCCL was given for the collective
    (its channels), None for its own choice. `wrong` counts elements of the collective, and `wrong_compute` those of
    the compute's result, that were not what they are without the other; None if nothing was compared.
    """

    work: Work
    members: tuple[int, ...]
    size_bytes: int
    compute: Compute
    priority: Priority = Priority.NORMAL
    ctas: int | None = None
    trials: list[OverlapTrial] = field(default_factory=list)
    wrong: int | None = None
    wrong_compute: int | None = None
    failure: Failure | None = None


class Pauses(StrEnum):
    """What a replay does in the recorded pauses between calls."""

    NONE = "none"  # the GPU idles
    RECORDED = "recorded"  # it computes matrix products for as long


@dataclass(frozen=True, slots=True)
class ReplayedCall:
    """One kind of call of a replayed step: all that agree in these fields, the members of a group being one call.

    `operation` is a collective's value, "p2p" for sends and receives, or "mixed" for a group of several collectives;
    `size_bytes` the message as in a data point, of a group the sum, of sends and receives the most that a rank sends
    or receives. `ranks` took part. `count` is per step, `recorded_seconds` the mean that a call took in the job, None
    if unknown.
    """

    operation: str
    size_bytes: int
    ranks: int
    count: int
    recorded_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class ReplayTrial:
    """One trial of a replayed step: raw seconds a step by rank, in the order of `Replay.members`, over `steps` steps.

    `step` is with pauses and calls, `pauses` the pauses alone, `calls` the calls alone, one after another.
    `communication` is within the step: the sum over a rank's calls, each as long as on the rank that waited least.
    `call_seconds` are the same for each of `Replay.calls`: a call's mean.
    `queued` is False if a host was too slow to keep its device supplied. `kernels` is True if a call is as long
    as its kernel; else it is what lies between two events, its launch included. `flags` as in Sample.
    """

    step: tuple[float, ...]
    pauses: tuple[float, ...]
    calls: tuple[float, ...]
    communication: tuple[float, ...]
    call_seconds: tuple[float, ...]
    steps: int
    queued: bool = True
    kernels: bool = False
    flags: tuple[Flag, ...] = ()


@dataclass(slots=True)
class Replay:
    """A recorded step on these devices: the job's rank r on `members[r]`, a position.

    `job` is its file's name, `phase` which phase of the first rank it was, from 0. `without` lists what NCCL went
    without ("p2p"). `recorded_seconds` is the job's own communication a step, as in ReplayTrial, None if unknown or of
    another number of ranks. `wrong` counts elements that did not arrive as sent; None if nothing was compared.
    """

    job: str
    phase: int
    members: tuple[int, ...]
    recorded_ranks: int
    pauses: Pauses
    registration: Registration
    calls: tuple[ReplayedCall, ...]
    without: tuple[str, ...] = ()
    recorded_seconds: float | None = None
    trials: list[ReplayTrial] = field(default_factory=list)
    wrong: int | None = None
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Health:
    """One device's state at one moment, as NVML gives it; None if NVML does not.

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


@dataclass(frozen=True, slots=True)
class NetworkPort:
    """One port of a host's InfiniBand or RoCE card at one moment, as the kernel reports it, "" if unreported.

    `rate_gbits` in Gbit/s, None if unknown; `model` is the card's type (hca_type, as "MT4129"), `link_layer` InfiniBand
    or Ethernet. `counters` are those of errors and congestion, by the kernel's names, since the driver was loaded.
    """

    card: str
    number: int
    state: str = ""
    physical_state: str = ""
    rate_gbits: float | None = None
    link_layer: str = ""
    model: str = ""
    counters: dict[str, int] = field(default_factory=dict)
    host: str = ""

    @property
    def name(self) -> str:
        """As NCCL_IB_HCA has it: "mlx5_0:1"."""
        return f"{self.card}:{self.number}"


@dataclass(slots=True)
class Run:
    """All results of one measurement, in the order of its stages; `runfile` converts it to JSON.

    `phases` are seconds: of warm-up, interference check, trials and single launches, the most of `seconds`; of
    NCCL_START, which came before; and "timed", those inside timed regions. `ports_before_read` and `ports_after_read`
    say whether hosts were asked for their ports: then no port means that none was there, else that nobody looked.
    """

    backend: str
    version: str
    started: str
    machine: Machine
    devices: tuple[Device, ...]
    paths: tuple[Path, ...]
    settings: Settings
    measurements: list[Measurement] = field(default_factory=list)
    latencies: list[Latency] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    interference_checks: list[InterferenceCheck] = field(default_factory=list)
    chosen: list[Chosen] = field(default_factory=list)
    overlaps: list[Overlap] = field(default_factory=list)
    replays: list[Replay] = field(default_factory=list)
    phases: dict[str, float] = field(default_factory=dict)
    health_before: tuple[Health, ...] = ()
    health_after: tuple[Health, ...] = ()
    ports_before: tuple[NetworkPort, ...] = ()
    ports_after: tuple[NetworkPort, ...] = ()
    ports_before_read: bool = False
    ports_after_read: bool = False
    seconds: float = 0.0
    complete: bool = False

    def measured(self, variant: Variant = Variant.PLAIN) -> list[Measurement]:
        """Return the measurements that hold at least one sample of the variant, in the file's order."""
        return [
            measurement
            for measurement in self.measurements
            if measurement.samples and measurement.point.variant is variant
        ]
