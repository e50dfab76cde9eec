"""The result of choosing k devices: the set, its predicted rate, and what measuring it showed (method/choosing.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum, auto

from collbench.judge.tiers import Ranking
from collbench.model.errors import UsageError
from collbench.model.run import Device
from collbench.model.units import figure

Members = tuple[int, ...]


class How(StrEnum):
    """What a set's all-reduce is predicted to run over."""

    BROKEN = auto()  # a pair of the set is broken, so it cannot all-reduce
    PAIR = auto()
    NVSWITCH = auto()
    NVLINK_RINGS = auto()
    PCIE_RING = auto()


@dataclass(frozen=True, slots=True)
class Band:
    """The all-reduce busbw that a set is predicted to reach, GB/s: at least `lo`, at most `hi`, over `how`.

    `rings` counts the NVLink rings (0 for any other `how`). `hops` counts the hops of a ring that go through the host
    (0 for NVLink). If bands are equal, fewer hops are better: hops may share a link there, which no measurement of
    single pairs shows. `unmeasured` counts the set's pairs without a rate. They may be slower than any other, so `lo`
    is what the set reaches without them, 0 if that is not known.
    """

    lo: float
    hi: float
    how: How
    hops: float = 0.0
    unmeasured: int = 0
    rings: int = 0


class TieBreak(StrEnum):
    """What decides between sets of equal bandwidth (docs/method/choosing.md 4)."""

    IN_USE = auto()
    SUSPECT = auto()
    LATENCY = auto()
    NUMA_NODES = auto()
    REMAINDER = auto()
    BUS_ID = auto()
    INDEX = auto()
    PREDICTED = auto()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A set of positions, ascending, and its predicted band. The `default` set is the first k devices.

    `sound` is False if the run has a failure within the set.
    """

    members: Members
    band: Band
    default: bool
    sound: bool = True


class Unfit(StrEnum):
    """Why a device is not to be chosen."""

    EXCLUDED = "excluded"
    PROCESSES = "processes"
    TRIALS_SHARED = "trials-shared"
    UTILISATION = "utilisation"
    MEMORY = "memory"
    THROTTLED = "throttled"
    TRIALS_THROTTLED = "trials-throttled"
    ECC_ERRORS = "ecc-errors"
    NVLINK_ERRORS = "nvlink-errors"
    FAILING_PAIRS = "failing-pairs"


# Other processes use the device or hold most of its memory, whether they can be seen or not.
BUSY = frozenset({Unfit.PROCESSES, Unfit.TRIALS_SHARED, Unfit.UTILISATION, Unfit.MEMORY})
FAULTY = frozenset({Unfit.ECC_ERRORS, Unfit.NVLINK_ERRORS, Unfit.FAILING_PAIRS})


@dataclass(frozen=True, slots=True)
class Why:
    """One reason not to choose a device.

    `figure` is a number of processes or errors, a share of trials, a percentage of utilisation, or the free bytes of
    the device's `total`. `reasons` are those of throttling.
    """

    kind: Unfit
    figure: float = 0.0
    total: int = 0
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A device that was not considered, by position, and why."""

    member: int
    why: tuple[Why, ...]


class TooFewLeft(UsageError):
    """Fewer devices are left than requested: `out` of `devices` are not considered."""

    def __init__(self, asked: int, devices: Sequence[Device], out: tuple[LeftOut, ...]):
        """Take the facts from which `output.sentences.refusal` makes its message."""
        super().__init__(f"cannot choose {asked} of {len(devices)} devices: {len(devices) - len(out)} are left")
        self.asked, self.devices, self.out = asked, tuple(devices), out

    @property
    def forgivable(self) -> bool:
        """Whether --allow-busy would admit some of them."""
        return any(not {one.kind for one in left.why} & {Unfit.EXCLUDED, *FAULTY} for left in self.out)


@dataclass(frozen=True, slots=True)
class Verified:
    """A finalist's measured all-reduce busbw, GB/s: the median over trials and its 95% interval."""

    members: Members
    gbs: float
    interval: tuple[float, float] | None


# Why a set was chosen: `output.sentences.reason` puts it in words.


@dataclass(frozen=True, slots=True)
class AllLeft:
    """No choice is left: all `count` remaining devices are taken."""

    count: int
    of: int


@dataclass(frozen=True, slots=True)
class OneDevice:
    """One device has no pair to compare."""


@dataclass(frozen=True, slots=True)
class SameLabels:
    """The pairs' labels, where nothing was measured."""

    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RatesSpread:
    """How far the slowest given rate lies below the fastest, as a share; `tied` if that is within δ."""

    spread: float
    tied: bool


Grounds = Ranking | SameLabels | RatesSpread


@dataclass(frozen=True, slots=True)
class Undecided:
    """No pair is better than another, or none significantly; `grounds` show it."""

    grounds: Grounds


@dataclass(frozen=True, slots=True)
class BestPair:
    """The pair reaches `gbs`, the worst measured pair `worst_gbs`; `all_measured`: all pairs were measured."""

    gbs: float
    worst_gbs: float
    all_measured: bool


@dataclass(frozen=True, slots=True)
class ByLabels:
    """Labels have an order and no rates: those `inside` the set, best first, and the machine's `worst`.

    `band` says how they join the set, and what its rates are for nobody to see; `first` of the first k, None if they
    are the same set.
    """

    inside: tuple[str, ...]
    worst: str
    band: Band
    first: Band | None


@dataclass(frozen=True, slots=True)
class Predicted:
    """The set is predicted to reach `band`, the `first` k devices another one; None if they are the same set."""

    band: Band
    first: Band | None


@dataclass(frozen=True, slots=True)
class Measured:
    """The set reached `gbs` of all-reduce busbw; `first` if it is the first k, `gain` over these as in Choice."""

    gbs: float
    simulated: bool
    first: bool
    gain: tuple[float, float, float] | None


@dataclass(frozen=True, slots=True)
class Told:
    """What measured the finalists by something else than all-reduces says of the set."""

    text: str


Reason = AllLeft | OneDevice | Undecided | BestPair | ByLabels | Predicted | Measured | Told


@dataclass(frozen=True, slots=True, repr=False)
class Choice:
    """The chosen positions, ascending, and why.

    `finalists` are best first and include the default set: the first k, by PCI bus id, of those not left out.
    `decided_by` are the tie-breaks that decided, in their order; none if bandwidth decided. `tied`: the choice does not
    affect bandwidth. `heuristic`: there are too many devices to try all sets. `estimated`: from labels alone. `gain` is
    the chosen set's measured busbw over the default's: low end of its 95% interval, middle, high end; None if it was
    not measured. `failed` are sets of devices within the chosen set where something failed or moved wrong data; every
    other set has some, too. `impossible` are those of `failed` whose only fault is a rate above its limit. `forgiven`
    are throttled members that were taken because all sets without them include a failure. `trials` is the smallest
    number of trials of the pairs that decide, None if there are none.
    """

    members: Members
    reason: Reason
    band: Band | None
    finalists: tuple[Candidate, ...]
    left_out: tuple[LeftOut, ...] = ()
    decided_by: tuple[TieBreak, ...] = ()
    tied: bool = False
    heuristic: bool = False
    estimated: bool = False
    verified: tuple[Verified, ...] = ()
    gain: tuple[float, float, float] | None = None
    failed: tuple[Members, ...] = ()
    forgiven: tuple[LeftOut, ...] = ()
    trials: int | None = None
    impossible: tuple[Members, ...] = ()

    def __repr__(self) -> str:
        """Return one line, for people."""
        band = f", {figure(self.band.lo)} to {figure(self.band.hi)} GB/s" if self.band else ""
        return f"<Choice of {self.members}: {type(self.reason).__name__}{band}, {len(self.finalists)} finalists>"
