"""The result of choosing k devices: the set, its predicted rate, and what measuring it showed (method/choosing.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from collbench.model.operations import Operation
from collbench.model.run import Device, Members, capabilities, device_sets
from collbench.model.units import amount, figure, fixed, span, verb
from collbench.model.values import one_line

FEW_SETS = 4  # of those in which something is wrong, that a line names
ABOVE_LIMIT = " (a rate above the limit)"  # after the name of a set in which nothing else is wrong


class How(StrEnum):
    """What a set's all-reduce is predicted to run over, in words."""

    BROKEN = "one of its pairs is broken"  # so it cannot all-reduce
    PAIR = "the pair itself"
    NVSWITCH = "NVSwitch"
    NVLINK_RINGS = "NVLink rings"
    PCIE_RING = "one PCIe ring"
    TREE = "one PCIe ring or a tree of NVLinks"


@dataclass(frozen=True, slots=True)
class Band:
    """The all-reduce busbw that a set is predicted to reach, GB/s: at least `lo`, at most `hi`, over `how`.

    `rings` counts the NVLink rings (0 for any other `how`). `hops` counts the hops of a ring that go through the host
    (0 for NVLink). If bands are equal, fewer hops are better: hops may share a link there, which no measurement of
    single pairs shows. `unmeasured` counts the set's pairs without a rate. They may be slower than any other, so `lo`
    is what the set reaches without them, 0 if that is not known; `hi` holds if they are no faster than the fastest
    pair with their label.
    """

    lo: float
    hi: float
    how: How
    hops: float = 0.0
    unmeasured: int = 0
    rings: int = 0

    def __str__(self) -> str:
        """Return "28.5–47.5 GB/s", one figure where both ends print alike, "up to 47.5 GB/s" without a known `lo`."""
        if self.hi <= 0:
            return f"nothing, {self._over}"
        if self.unmeasured and self.lo == 0:
            return f"up to {fixed(self.hi, 3)} GB/s"
        return f"{span((self.lo, self.hi), lambda gbs: fixed(gbs, 3), '–')} GB/s"

    @property
    def basis(self) -> str:
        """The links that give it its rates, and what it supposes: "NVSwitch, if 1 unmeasured pair is as …"."""
        if not self.unmeasured:
            return self._over
        pairs, are = amount(self.unmeasured, "unmeasured pair"), verb(self.unmeasured, "is", "are")
        return f"{self._over}, if {pairs} {are} as fast as any of the same label"

    @property
    def _over(self) -> str:
        return f"{self.rings} {self.how}" if self.how is How.NVLINK_RINGS else self.how.value


class TieBreak(StrEnum):
    """What decides between sets of equal bandwidth, in words (docs/method/choosing.md 4)."""

    IN_USE = "the fewest GPUs in use by others"
    SUSPECT = "the fewest GPUs with throttling or errors"
    FAILED_PAIRS = "the fewest GPUs of a pair that failed"
    LATENCY = "the lower latency for small messages"
    NUMA_NODES = "the fewest NUMA nodes"
    REMAINDER = "the best remaining GPUs for the next job"
    BUS_ID = "the lowest PCI bus ids"
    INDEX = "the lowest indices"
    PREDICTED = "the predicted order"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A set of positions, ascending, and its predicted band. The `default` set is the first k devices.

    `sound` is False if the run has a failure within the set. `measured` is what its all-reduce reached, busbw in GB/s:
    low end of its 95% interval, median, high end; None if it was not measured.
    """

    members: Members
    band: Band
    default: bool
    sound: bool = True
    measured: tuple[float, float, float] | None = None


class Unfit(StrEnum):
    """The kinds of reasons not to choose a device."""

    EXCLUDED = "excluded"
    BUSY = "busy"  # other processes use it or hold most of its memory, whether they can be seen or not
    THROTTLED = "throttled"
    FAULTY = "faulty"


@dataclass(frozen=True, slots=True)
class Why:
    """One reason not to choose a device: "busy: 2 other processes", "faulty: 1 uncorrected ECC error"."""

    sort: Unfit
    text: str


EXCLUDED = Why(Unfit.EXCLUDED, "excluded")


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A device that was not considered, by position, and why."""

    member: int
    why: tuple[Why, ...]

    @property
    def reason(self) -> str:
        """Why it was not considered."""
        return "; ".join(why.text for why in self.why)


@dataclass(frozen=True, slots=True, repr=False)
class Choice:
    """The chosen positions, ascending, and the reason, a clause.

    `finalists` are best first and include the default set: the first k, by PCI bus id, of those not left out.
    `decided_by` are the tie-breaks that decided, in their order; none if bandwidth decided. `tied`: the choice does not
    affect bandwidth. `heuristic`: there are too many devices to try all sets. `estimated`: from labels alone. `gain` is
    the chosen set's measured busbw over the default's: low end of its 95% interval, middle, high end; None if it was
    not measured. `failed` are sets of devices within the chosen set where something failed or moved wrong data; every
    other set has some, too. `impossible` are those of `failed` whose only fault is a rate above its limit. `forgiven`
    are throttled members that were taken because all sets without them include a failure.
    """

    members: Members
    reason: str
    band: Band | None
    finalists: tuple[Candidate, ...]
    left_out: tuple[LeftOut, ...] = ()
    decided_by: tuple[TieBreak, ...] = ()
    tied: bool = False
    heuristic: bool = False
    estimated: bool = False
    gain: tuple[float, float, float] | None = None
    failed: tuple[Members, ...] = ()
    forgiven: tuple[LeftOut, ...] = ()
    impossible: tuple[Members, ...] = ()

    def __repr__(self) -> str:
        """Return one line, for people."""
        band = f", {figure(self.band.lo)} to {figure(self.band.hi)} GB/s" if self.band else ""
        return f"<Choice of {self.members}: {self.reason}{band}, {len(self.finalists)} finalists>"

    def why(self, devices: Sequence[Device]) -> str:
        """Return why the set was chosen among these devices, and what failed within it."""
        text = self.reason
        if self.forgiven:
            taken = ", ".join(f"{devices[left.member].tag} ({left.reason})" for left in self.forgiven)
            text += f"; with {taken}, because every set without them includes a failure"
        if broken := [some for some in self.failed if some not in self.impossible]:
            text += f"; includes failed {device_sets(broken, devices, FEW_SETS)}"
        if above_limit := [some for some in self.failed if some in self.impossible]:
            text += f"; includes {device_sets(above_limit, devices, FEW_SETS)} with a rate above the limit"
        return text

    @property
    def decided(self) -> str:
        """What decided a tie: "the fewest NUMA nodes, then the lowest PCI bus ids"; "" if bandwidth decided."""
        return ", then ".join(self.decided_by)

    def explained(self, devices: Sequence[Device]) -> str:
        """Return why the set was chosen, and what decided a tie."""
        why = self.why(devices)
        return f"{why}; ties decided by {self.decided}" if self.decided else why


# A choice by the devices' own names, with all that explains it: what `collbench select` prints and Python gets.

QUICK_PROBE = "quick probe"


def saved_run(started: str, path: str) -> str:
    """Return the text that names a saved run as a choice's source; `started` is `Run.started`, in its time zone."""
    try:
        when = f"{datetime.fromisoformat(started):%Y-%m-%d %H:%M}"
    except ValueError:  # another machine's file, whose age was not checked
        when = f"'{started}'"
    return f"run of {when}, saved at {one_line(path)}"


def against(used: Sequence[tuple[Device, str]]) -> str:
    """Return devices with what is wrong with each: "GPU1 (busy: 1 other process), GPU3 (faulty: …)"."""
    return ", ".join(f"{device.tag} ({why})" for device, why in used)


LABELS = "labels"  # what stands for a backend where nothing was measured and label text was read


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the evidence came from: a backend (LABELS for label text), a host, and words that name the source.

    `fabric` names the simulated machine of a sim run, "" otherwise. `verification` are the files of the runs that
    measured the finalists at `size_bytes`, with commas; "" and None if none did. `operation` at `measured_bytes` is
    what the run's pairs are ranked by, and so what is predicted; None for all-reduces of labels' rates. `interrupted`
    says how much an interrupted run has, "" for a whole one.
    """

    backend: str
    source: str
    machine: str = ""
    fabric: str = ""
    verification: str = ""
    size_bytes: int | None = None
    operation: Operation | None = None
    measured_bytes: int | None = None
    interrupted: str = ""

    @property
    def simulated(self) -> bool:
        """True if the figures are a simulation's."""
        return self.backend != LABELS and capabilities(self.backend).simulated

    @property
    def acts(self) -> bool:
        """True if CUDA_VISIBLE_DEVICES can choose the devices."""
        return self.backend == LABELS or capabilities(self.backend).nvml


@dataclass(frozen=True, slots=True)
class Finalist:
    """One of the best sets by its devices' tags; `first` are the first ones by PCI bus id that were not left out.

    `predicted` is (low, high), `measured` (low, median, high) of its 95% interval: all-reduce busbw in GB/s. Labels
    alone predict none. `unmeasured` counts its pairs without a rate, which the prediction takes for as fast as others.
    """

    devices: tuple[str, ...]
    predicted: tuple[float, float] | None
    measured: tuple[float, float, float] | None = None
    first: bool = False
    unmeasured: int = 0


@dataclass(frozen=True, slots=True)
class Published:
    """What healthy machines of this kind reach with as many devices and such labels: all-reduce busbw in GB/s.

    `gbs` are the lowest and the highest published figure, `band` is what is normal by them; the highest is None where
    an acceptance test asks for the lowest. `sources` are places in documents, of `origins` authors. `nvls` is "on" or
    "off" where NVLink SHARP matters.
    """

    gbs: tuple[float, float | None]
    band: tuple[float, float | None]
    origins: int
    size_bytes: int
    machine: str
    nvls: str | None
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Omitted:
    """A device that was not considered, by tag and reason."""

    device: str
    reason: str


@dataclass(frozen=True, slots=True, repr=False)
class Selection:
    """The chosen devices and why; rates are all-reduce busbw in GB/s, predicted as (low, high).

    `environment` is what makes CUDA see them alone. `decided_by` names the tie-breaks, "" if bandwidth decided;
    `tied`: the choice does not affect bandwidth; `heuristic`: not all sets were looked at; `estimated`: from labels
    alone, nothing was measured. `gain` is chosen over first ones, as measured: (low, median, high), 1.0 for none.
    `failed` are sets of devices within it on which something failed or moved wrong data. `contradiction` is what failed
    on other devices, else the worst that `check` finds in the evidence, on any device, "" for none. `published` are
    reference figures, where labels decided and the GPUs have a name.
    """

    devices: tuple[Device, ...]
    environment: dict[str, str]
    reason: str
    origin: Origin
    predicted: tuple[float, float] | None = None
    predicted_how: str = ""
    finalists: tuple[Finalist, ...] = ()
    gain: tuple[float, float, float] | None = None
    decided_by: str = ""
    tied: bool = False
    heuristic: bool = False
    estimated: bool = False
    left_out: tuple[Omitted, ...] = ()
    failed: tuple[str, ...] = ()
    contradiction: str = ""
    published: tuple[Published, ...] = ()

    @property
    def impossible(self) -> bool:
        """Whether rates above their limit are all that is wrong within it: then nothing failed."""
        return bool(self.failed) and all(one.endswith(ABOVE_LIMIT) for one in self.failed)

    def __repr__(self) -> str:
        return f"<Selection of {self}>"

    def __str__(self) -> str:
        """Return one line: which devices and why."""
        return f"{', '.join(device.tag for device in self.devices)}: {self.reason} ({self.origin.source})"
