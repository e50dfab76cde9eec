"""What every stage shares: backends, devices, paths, data points, samples, and the run that holds them.

Devices are referred to by *position*: the place in `Run.devices`, never an nvidia-smi or CUDA index.
Matrices are row = source, column = destination, diagonal NaN.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import chain
from typing import Any, Protocol

from collbench.model.errors import Failure, FailureKind, UsageError, WrongData
from collbench.model.operations import COLLECTIVES, Blocks, Operation, Registration, Skew, Variant, Work, blocks_of
from collbench.model.units import abridged, amount, counted, format_size
from collbench.model.values import Amount, Count, Ordinal, Positive, Seed, Whole

# The phase before a sweep, in which communicators are made; it is not part of the sweep's seconds.
NCCL_START = "NCCL start"

# Positions of devices: of any set, and of two.
Members = tuple[int, ...]
Pair = tuple[int, int]


# Backends: what each is and can do, by its name, which is all that a saved run has of it.


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """One row of the table of backends. No field has a default: a row that lacks one does not import.

    Code asks for a capability here, and never compares names of backends.
    """

    name: str
    simulated: bool  # its figures are drawn: nothing was measured, and nothing of it is here
    # Its devices are CPU cores and its collectives gloo's, which times no single launches and verifies every result, so
    # none in place that is undefined; else GPUs, whose links and ports have known limits.
    cores: bool
    nccl: bool  # its collectives are NCCL's, which heeds NCCL_* variables
    # This machine's NVIDIA driver reports its devices: their health, the driver's version, CUDA's; and
    # CUDA_VISIBLE_DEVICES chooses among them.
    nvml: bool
    largest_bytes: int  # of the sizes that are measured by default
    largest_pattern_bytes: int  # of copies in all patterns by default


CUDA = Capabilities(
    name="cuda",
    simulated=False,
    cores=False,
    nccl=True,
    nvml=True,
    largest_bytes=2**30,
    largest_pattern_bytes=512 * 2**20,
)
HOST = Capabilities(
    name="host",
    simulated=False,
    cores=True,
    nccl=False,
    nvml=False,
    largest_bytes=64 * 2**20,  # larger ones take cores minutes
    largest_pattern_bytes=64 * 2**20,
)
SIM = Capabilities(
    name="sim",
    simulated=True,
    cores=False,
    nccl=False,
    nvml=False,
    largest_bytes=2**30,
    largest_pattern_bytes=512 * 2**20,
)
BACKENDS = {row.name: row for row in (CUDA, HOST, SIM)}


def capabilities(name: str) -> Capabilities:
    """Return what the backend of this name is and can do. Raises UsageError for an unknown name."""
    if name not in BACKENDS:
        raise UsageError(f"backend '{name}' is unknown to this collbench: it knows {', '.join(BACKENDS)}")
    return BACKENDS[name]


def is_simulated(name: str) -> bool:
    """Return whether a word of --backend, "auto" among them, names a machine that is only simulated."""
    return name in BACKENDS and BACKENDS[name].simulated


# A run and its parts.


class StopReason(StrEnum):
    """Why a data point was not measured further (docs/method/measuring.md 15)."""

    PRECISION = "precision"
    NOISE = "noise-stable"
    BUDGET = "budget"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU, or on the host backend one CPU core. Identity is `uuid` and `pci_bus_id`."""

    index: Count  # nvidia-smi's, or the core's number; for display
    uuid: str
    name: str
    pci_bus_id: str = ""
    memory_bytes: Count = 0
    numa_node: Whole | None = None
    cpu_affinity: str = ""  # a list such as "0-63"
    host: str = ""  # where a run spans several hosts
    pcie_generation: Ordinal | None = None  # the most that the device and its slot support
    pcie_width: Ordinal | None = None  # the same

    @property
    def is_core(self) -> bool:
        """True for a CPU core of the host backend, which names its devices so."""
        return self.uuid.startswith("CPU-")

    @property
    def tag(self) -> str:
        """What tables call it: "GPU0", "CPU0" for a core of the host backend, "node1:GPU0" in a run of many hosts."""
        name = f"{'CPU' if self.is_core else 'GPU'}{self.index}"
        return f"{self.host}:{name}" if self.host else name


def tags(positions: Sequence[int], devices: Sequence[Device], between: str = ", ") -> str:
    """Return the names of devices: "GPU0, GPU1"."""
    return between.join(devices[position].tag for position in positions)


def device_sets(sets: Sequence[Sequence[int]], devices: Sequence[Device], most: int | None = None) -> str:
    """Return the names of sets of devices: "GPU2-GPU3; GPU4"; "an unknown device" for an empty one.

    Of more than `most` sets the first are named, and the others counted.
    """
    names = (tags(device_set, devices, "-" if len(device_set) == 2 else ", ") for device_set in sets)
    return abridged([name or "an unknown device" for name in names], len(sets) if most is None else most, "; ")


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
        return tuple(dict.fromkeys(status for status in (self.read, self.write) if status is not None))

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
    """What the machine's tools report about the path between two devices, an unordered pair of positions.

    None and () stand for what was not asked, or not reported.
    """

    devices: tuple[int, int]
    label: str  # nvidia-smi's word: NV18, PIX, …
    ancestor: str | None = None  # the PCIe label alone, as if there were no NVLink
    nvlinks: Count = 0
    theory_gbs: Positive | None = None  # the limit in one direction, GB/s
    theory_source: str = ""
    peer_access: PeerReadWrite | None = None  # by NVML
    tool_label: str | None = None  # by `nvidia-smi topo -m`
    tool_peer_access: tuple[PeerStatus, ...] = ()  # by `-p2p r`: the first reads the second's memory, and the reverse
    cuda_peers: bool | None = None  # whether CUDA lets both reach each other's memory

    @property
    def in_tree(self) -> str:
        """The label of the path over PCIe, where it has NVLinks, too."""
        return self.ancestor or self.label

    @property
    def peers_denied(self) -> bool:
        """True if NVML says that the devices do not read or write each other's memory."""
        return self.peer_access is not None and self.peer_access.denied


_work = functools.cache(Work)  # a run has few, and asks for them a hundred thousand times


@dataclass(frozen=True, slots=True)
class DataPoint:
    """One thing to measure: an operation on some devices at one message size."""

    operation: Operation
    # Positions, as Variant says. The pointer chase has (reader, owner of the memory), or with the host variant
    # (reader,), and its message is one access of 8 bytes.
    members: tuple[int, ...]
    size_bytes: Ordinal
    variant: Variant = Variant.PLAIN
    numa_node: Whole | None = None  # as in Work, like the next two
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
    """One problem of devices during a trial."""

    kind: FlagKind
    devices: tuple[int, ...]  # positions
    figure: Whole | None = None  # °C of a hot device, or the number of other processes on a shared one
    reason: str = ""  # why a device was throttled, as in machine/health.py; of OTHER any words


class MarkKind(StrEnum):
    """What is wrong with a batch: `impossible`, it is faster than the hardware's limit."""

    IMPOSSIBLE = "impossible"


@dataclass(frozen=True, slots=True)
class Mark:
    """What is wrong with a sample, by its fastest batch."""

    kind: MarkKind
    devices: tuple[int, ...]  # positions whose port, link or slot cannot be so fast
    rate_gbs: Positive  # the batch's: algbw of copies, busbw of collectives
    limit_gbs: Positive  # which it cannot exceed


@dataclass(frozen=True, slots=True)
class Sample:
    """One trial of a data point: raw seconds per iteration of each batch, shape (batches,)."""

    seconds: tuple[Positive, ...]
    iterations: Ordinal
    concurrent: bool  # other disjoint pairs were busy at the same time
    launch_seconds: Positive | None = None  # of a collective's ungraphed launches, per iteration; None if not timed
    flags: tuple[Flag, ...] = ()  # what was wrong with the machine meanwhile
    marks: tuple[Mark, ...] = ()  # what is wrong with the sample itself (judge/physics.py)
    moved_bytes: Ordinal | None = None  # that the trial's batches delivered, untimed ones too; None: not counted
    verified_bytes: Count | None = None  # of these, compared with what was sent
    plain: bool = False  # a collective's batches were plain launches, as between hosts, not replays of a captured graph
    waits: tuple[Amount, ...] = ()  # of `nodes`: seconds by member, median wait in the barrier before a batch
    confirms: bool = False  # made after a judgment, to confirm what it accuses: then only such trials are judged


@dataclass(frozen=True, slots=True)
class Noise:
    """What the run's trials of a data point's kind show of the noise of one trial (judge/point_noise.py)."""

    sigma: Positive  # standard deviation of its log seconds
    freedom: Positive  # the degrees of freedom that `sigma` rests on
    widening: Positive = 1.0  # of intervals, because trials resemble those before
    uneven: bool = False  # not as normal noise is: two of three trials are close, and the third is far
    most_widening: Positive | None = None  # the largest that the trials allow (95%); None in older files


@dataclass(slots=True)
class Measurement:
    """All samples of one data point, none if it failed before the first was finished."""

    point: DataPoint
    samples: list[Sample] = field(default_factory=list)
    stop: StopReason | None = None
    wrong: Count | None = 0  # elements that failed verification: 0, or the run has failed; None: nothing was verified
    failure: Failure | None = None  # why the data point was given up
    noise: Noise | None = None  # of its trials; None: only its own trials show it

    @property
    def untried(self) -> bool:
        """True if nothing is known of it: others before it had failed, or the host was too busy to run its process."""
        return self.failure is not None and self.failure.kind in (FailureKind.UNTRIED, FailureKind.BUSY)


@dataclass(frozen=True, slots=True)
class RankLaunches:
    """One rank's single launches, ns, shapes (launches,)."""

    arrived: tuple[Whole, ...]  # when its stream came to each launch
    left: tuple[Whole, ...]  # when it had left it
    stamp_ns: Whole = 0  # what reading the clock adds to each `left - arrived`
    uncertainty_ns: Count = 0  # by which all may be off together, as this rank's clock was read against the host's
    step_ns: Count = 0  # the smallest step of that clock


@dataclass(frozen=True, slots=True)
class Latency:
    """Plain launches of a collective's data point, each timed on its own (docs/method/collectives.md 6)."""

    point: DataPoint
    ranks: tuple[RankLaunches, ...]  # in the order of the point's members, with as many launches each
    # Times count from the launch's earliest arrival; without a common clock, as between hosts, each rank's from its
    # own, so its arrivals are 0.
    common_clock: bool = True
    concurrent: bool = False  # as in Sample
    flags: tuple[Flag, ...] = ()  # as in Sample

    @property
    def count(self) -> int:
        """How many launches there are of each rank."""
        return len(self.ranks[0].arrived)


class SkipKind(StrEnum):
    """Why a requested data point is not measured. The fields of Skipped that a kind fills are listed after it."""

    NO_PEERS = "no peer access"  # for a kernel's copy: work, members
    PEERS_REFUSED = "peer access refused"  # by the driver, which had called it possible: work, members, detail
    SMALL_BLOCK = "less than 16 bytes a rank"  # as nccl-tests cuts batches: work, sizes, count of ranks
    SMALL_ELEMENT = "less than an element"  # work, sizes
    NODE_LIMIT = "node limit"  # the most with each NUMA node's memory: sizes, limit_bytes
    ONE_DEVICE = "one device"  # which has no link to another: work
    ROOM = "room"  # in the devices' memory: sizes, limit_bytes of a message, free_bytes
    CONCURRENT_ROOM = "concurrent room"  # in a buffer: work, sizes, limit_bytes of it, count of messages at once
    CACHE = "cache"  # the free memory is too little against the reader's: work, members, limit_bytes
    NUMA = "numa"  # the kernel refuses a node's memory: work and members, or neither; detail
    PROCESSES = "processes"  # each device has its own: work, members
    OLD_NCCL = "old NCCL"  # which lacks the kind of memory: work, detail
    WRONG_DATA = "wrong data"  # ended the run: wrong, or members and detail
    OTHER = "other"  # a sentence: work, members, detail

    @property
    def by_design(self) -> bool:
        """True if nothing is wrong: this machine, or such a launch, never measures it."""
        return self in (
            SkipKind.NO_PEERS,
            SkipKind.SMALL_BLOCK,
            SkipKind.SMALL_ELEMENT,
            SkipKind.ONE_DEVICE,
            SkipKind.PROCESSES,
            SkipKind.OLD_NCCL,
        )


@dataclass(frozen=True, slots=True)
class Skipped:
    """A data point, a family of data points, or the rest of a run that was not measured."""

    kind: SkipKind
    work: Work | None = None
    members: tuple[int, ...] = ()  # positions, where it is on some devices only
    sizes: tuple[Ordinal, ...] = ()  # that were left out, bytes
    limit_bytes: Count | None = None
    free_bytes: tuple[Count, ...] = ()  # each device's, () if unreported
    count: Ordinal | None = None
    wrong: WrongData | None = None
    detail: str = ""  # in another's words: the kernel's, NCCL's, an older file's

    def __str__(self) -> str:
        """Return "allreduce of 1 B, 2 B is left out (less than an element)", for the texts of exceptions."""
        sizes = f" of {', '.join(map(format_size, self.sizes))}" if self.sizes else ""
        why = ": ".join(filter(None, (str(self.kind), self.detail)))
        return f"{self.work or 'all'}{sizes} is left out ({why})"


# For copies by kernels: the copy engine and NCCL can do without peer access.
NO_PEERS = Skipped(SkipKind.NO_PEERS)


@dataclass(frozen=True, slots=True)
class InterferenceCheck:
    """One comparison of a pair measured alone and among others at a large size (docs/method/measuring.md 14)."""

    operation: Operation
    members: tuple[int, ...]
    label: str
    isolated_gbs: Positive
    concurrent_gbs: Positive
    ratio: Positive  # concurrent over isolated bandwidth
    delta: Amount
    trusted: bool  # the ratio is within 1 ± delta
    variant: Variant = Variant.PLAIN
    size_bytes: Ordinal | None = None  # None: an older file does not say


@dataclass(frozen=True, slots=True)
class Machine:
    """Where a run was measured. Versions are the vendors' own strings; empty if there is none.

    `fabric` names the simulated machine of the sim backend, "" for a real one. `gpus` are all that it has, measured or
    not, 0 if that is not known.
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
    gpus: Count = 0


class CommandKind(StrEnum):
    """The command of the main house that requested a run. All collectives' commands are COLLECTIVE."""

    PAIRS = "pairs"
    COPIES = "copies"
    LATENCY = "latency"
    CHECK = "check"
    COLLECTIVE = "collective"
    SELECT = "select"
    OTHER = "other"  # none of ours

    @classmethod
    def of(cls, name: str) -> CommandKind:
        """Return the kind of the command with this name; OTHER for none of ours."""
        if name in COLLECTIVES:
            return cls.COLLECTIVE
        return cls(name) if name in {*cls} - {cls.COLLECTIVE} else cls.OTHER


class Layout(StrEnum):
    """Which communicators collectives ran on."""

    ALL = "all"
    PAIRS = "pairs"
    SPLIT = "split"
    SETS = "sets"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What was asked for, as a request says it and a run's settings keep it."""

    kind: str = CommandKind.PAIRS  # or the name of an annex's command
    command: tuple[str, ...]  # the command line, for people: nothing reads it
    copies: tuple[Variant, ...] = ()  # how raw copies run
    chase: bool = False  # adds the pointer chase
    collectives: tuple[Work, ...] = ()
    split: Ordinal = 1  # disjoint sets of devices
    isolated: bool = False  # no link or pair is measured while another is busy
    dtype: str
    redop: str
    root: Count = 0
    seed: Seed
    precision: Positive | None = None  # half the 95% interval over the median; None: docs/method/measuring.md 15
    budget_seconds: Positive | None = None  # when trials end that are not owed; None: the method's choice
    quick: bool = False
    launches: bool = False  # the ungraphed loop is timed, too
    iterations: Ordinal | None = None  # None: the method's choice
    warmup: Count | None = None  # None: the method's choice
    verify: bool = True
    latency: Count = 0  # launches of each collective that are timed one by one
    layers: Count = 0  # of the model whose token the page counts, for `latency --collectives`; 0 for all others
    graph: Count = 0  # nccl-tests' -G

    @property
    def command_name(self) -> str:
        """The command that asks for it: "pairs", "allreduce"; "" if it is none of ours."""
        if self.kind == CommandKind.COLLECTIVE:
            return self.collectives[0].operation.value if self.collectives else ""
        return "" if self.kind == CommandKind.OTHER else str(self.kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(Asked):
    """What was asked for, with what was planned of it."""

    operations: tuple[Operation, ...]  # of the plan
    sizes: tuple[Ordinal, ...]  # of the plan
    trials: Ordinal
    environment: dict[str, str]  # the variables of NCCL, CUDA and torch that change figures, no others
    processes: Ordinal = 1  # or the ranks of a launch by `launcher`
    launcher: str = ""
    devices: tuple[str, ...] = ()  # the words of --devices; () for all
    requested_sizes: tuple[Ordinal, ...] | None = None  # None: the default
    layout: Layout = Layout.ALL
    sets: tuple[tuple[int, ...], ...] = ()
    fabric: str = ""  # the simulated machine's name, or its file


@dataclass(frozen=True, slots=True)
class Health:
    """One device's state at one moment, as NVML gives it; None if NVML does not."""

    sm_clock: Count | None = None  # MHz
    memory_clock: Count | None = None  # MHz
    temperature: Whole | None = None  # °C
    power: Amount | None = None  # W
    throttle: tuple[str, ...] = ()  # active reasons
    utilization: Count | None = None  # percent
    memory_used: Count | None = None  # bytes
    nvlink_replays: Count | None = None  # since the driver was loaded, as all errors
    nvlink_errors: Count | None = None
    ecc_errors: Count | None = None
    processes: Count | None = None  # other processes with memory on the device
    pcie_generation: Ordinal | None = None  # now: an idle GPU lowers it
    pcie_width: Ordinal | None = None
    others_memory: Count | None = None  # bytes that others' processes, and whatever else is not ours, held before ours


@dataclass(frozen=True, slots=True)
class NetworkPort:
    """One port of a host's InfiniBand or RoCE card at one moment, as the kernel reports it, "" if unreported."""

    card: str
    number: Whole
    state: str = ""
    physical_state: str = ""
    rate_gbits: Amount | None = None  # Gbit/s
    link_layer: str = ""  # InfiniBand or Ethernet
    model: str = ""  # the card's type (hca_type), such as "MT4129"
    counters: dict[str, Whole] = field(default_factory=dict)  # of errors and congestion, since the driver was loaded
    host: str = ""

    @property
    def name(self) -> str:
        """As NCCL_IB_HCA has it: "mlx5_0:1"."""
        return f"{self.card}:{self.number}"


class Trial(Protocol):
    """One trial of a result, or of a data point of the main house."""

    @property
    def flags(self) -> tuple[Flag, ...]:
        """What was wrong with the machine meanwhile."""


class Result(Protocol):
    """One item of a section, a dataclass of the annex: what was measured on some devices.

    A trial's lists have a time for each member, besides its flags and what `Results.CALLS` names.
    """

    @property
    def members(self) -> tuple[int, ...]:
        """Positions in the order of ranks."""

    @property
    def trials(self) -> Sequence[Trial]:
        """All trials, none if it failed before the first was finished."""

    @property
    def failure(self) -> Failure | None:
        """Why it was given up."""

    @property
    def wrong_data(self) -> bool:
        """True if something was not what it should be."""


@dataclass(slots=True, repr=False)
class Run:
    """All results of one measurement, in the order of its stages; `runfile` converts it to JSON."""

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
    # What annexes measured, by the section's name: a list of the annex's own type, a Result.
    sections: dict[str, list[Any]] = field(default_factory=dict)
    # Seconds of warm-up, interference check, trials and single launches, which are most of `seconds`; of NCCL_START,
    # which came before; and "timed", those inside timed regions.
    phases: dict[str, Amount] = field(default_factory=dict)
    health_before: tuple[Health, ...] = ()
    health_after: tuple[Health, ...] = ()
    ports_before: tuple[NetworkPort, ...] = ()
    ports_after: tuple[NetworkPort, ...] = ()
    ports_after_read: bool = False  # hosts were asked for their ports: then no port means that there was none
    seconds: Amount = 0.0
    complete: bool = False

    def __repr__(self) -> str:
        """Return one line, for people: all fields would be a megabyte."""
        what = self.settings.command_name or "data points"
        where = f"simulated {self.machine.fabric}" if self.machine.fabric else self.machine.hostname
        points = amount(len(self.measurements) + len([*self.results]), "data point")
        rest = "" if self.complete else ", incomplete"
        devices = counted(device.name for device in self.devices)
        return f"<Run of {what} on {devices}, {where}, {self.started}: {points}{rest}>"

    @property
    def results(self) -> Iterator[Result]:
        """What annexes measured, of all sections."""
        return chain.from_iterable(self.sections.values())

    def measured(self, variant: Variant = Variant.PLAIN) -> list[Measurement]:
        """Return the measurements that hold at least one sample of the variant, in the file's order."""
        return [
            measurement
            for measurement in self.measurements
            if measurement.samples and measurement.point.variant is variant
        ]


def at_the_ends(run: Run) -> Iterator[tuple[str, int, Health]]:
    """Yield each device's position and state before measuring, then after it, with that word."""
    for when, states in (("before", run.health_before), ("after", run.health_after)):
        for position, state in enumerate(states[: len(run.devices)]):
            yield when, position, state


def new_errors(run: Run, field: str) -> dict[int, tuple[int, int]]:
    """Return the devices on which one of `Health`'s counters grew during the run, with its first and last value."""
    states = zip(range(len(run.devices)), run.health_before, run.health_after, strict=False)
    counts = {position: (getattr(before, field), getattr(after, field)) for position, before, after in states}
    return {position: ends for position, ends in counts.items() if None not in ends and ends[0] < ends[1]}


def registrations(run: Run) -> tuple[Registration, ...]:
    """Return the kinds of memory that the run's collectives were timed on."""
    kinds = {timed.point.registration for timed in run.measurements if timed.point.operation.is_collective}
    return tuple(kind for kind in Registration if kind in kinds)


def ordinary(run: Run) -> Run:
    """Return the run with only its collectives on ordinary memory, by which machines are judged and GPUs chosen.

    If it has none of these, it returns those on the first other kind of memory, as if that were ordinary.
    """
    kinds = registrations(run)
    if kinds in ((), (Registration.NONE,)):
        return run
    kept = (
        replace(timed, point=replace(timed.point, registration=Registration.NONE))
        for timed in run.measurements
        if timed.point.registration is kinds[0] or not timed.point.operation.is_collective
    )
    return replace(run, measurements=list(kept))
