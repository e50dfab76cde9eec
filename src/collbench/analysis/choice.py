"""What choosing k devices answers: the set, its predicted rate, and what measuring it showed (docs/method.md 11)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum, auto

from collbench.analysis.tiers import Ranking
from collbench.model.errors import UsageError
from collbench.model.run import Device

Members = tuple[int, ...]


class How(StrEnum):
    """By what a set is predicted to all-reduce."""

    BROKEN = auto()  # a pair of it is, so it cannot
    PAIR = auto()
    NVSWITCH = auto()
    NVLINK_RINGS = auto()
    PCIE_RING = auto()


@dataclass(frozen=True, slots=True)
class Band:
    """The all-reduce busbw that a set is predicted to reach, GB/s: at least `lo`, at most `hi`; `how` says by what.

    `rings` counts the NVLink rings, where they are what carries it.

    `hops` counts the hops of a ring that go through the host (0 for NVLink). Where bands are equal, fewer are better:
    they may meet there, which no measurement of single pairs shows. `unmeasured` counts the set's pairs without a rate:
    they may be slower than any other, so `lo` is what the set has without them, 0 if that is not known.
    """

    lo: float
    hi: float
    how: How
    hops: float = 0.0
    unmeasured: int = 0
    rings: int = 0


class TieBreak(StrEnum):
    """What decides between sets of equal bandwidth (docs/method.md 11.4)."""

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
    """A set of positions, ascending, and its predicted band. The `default` is what takes no choosing: the first k.

    `sound` is False if the run has a failure within it."""

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


# Others use the device, or hold most of it, seen or not.
BUSY = frozenset({Unfit.PROCESSES, Unfit.TRIALS_SHARED, Unfit.UTILISATION, Unfit.MEMORY})
FAULTY = frozenset({Unfit.ECC_ERRORS, Unfit.NVLINK_ERRORS, Unfit.FAILING_PAIRS})


@dataclass(frozen=True, slots=True)
class Why:
    """One thing that is said against a device.

    `figure` counts processes or errors, is a share of trials, a percentage of utilisation, or the bytes that are free
    of the device's `total`. `reasons` are those to throttle.
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
    """Fewer devices are left than requested: `out` of `devices` are not considered.

    `predicting`: for a prediction, which takes at least two.
    """

    def __init__(self, asked: int, devices: Sequence[Device], out: tuple[LeftOut, ...], *, predicting: bool = False):
        """Take what `output.sentences.refusal` words, with the reasons."""
        verb = "predict for" if predicting else "choose"
        super().__init__(f"cannot {verb} {asked} of {len(devices)} devices: {len(devices) - len(out)} are left")
        self.asked, self.devices, self.out, self.predicting = asked, tuple(devices), out, predicting

    @property
    def forgivable(self) -> bool:
        """Whether some of them are out for what --allow-busy overlooks."""
        return any(not {one.kind for one in left.why} & {Unfit.EXCLUDED, *FAULTY} for left in self.out)


@dataclass(frozen=True, slots=True)
class Verified:
    """A finalist's measured all-reduce busbw, GB/s: the median over trials and its 95 % interval."""

    members: Members
    gbs: float
    interval: tuple[float, float] | None


# Why a set was chosen: `output.sentences.reason` words it.


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
    """How far the slowest given rate lies below the fastest, as a share; `tied` where that is within δ."""

    spread: float
    tied: bool


Grounds = Ranking | SameLabels | RatesSpread


@dataclass(frozen=True, slots=True)
class Undecided:
    """No pair is better than another, or none significantly, by this."""

    grounds: Grounds


@dataclass(frozen=True, slots=True)
class BestPair:
    """The pair reaches `gbs`, the machine's worst measured pair `worst_gbs`; `all_measured`: there is no other."""

    gbs: float
    worst_gbs: float
    all_measured: bool


@dataclass(frozen=True, slots=True)
class Predicted:
    """The set is predicted to reach a band, the first k another; None if they are the same set."""

    band: Band
    first: Band | None


@dataclass(frozen=True, slots=True)
class Measured:
    """The set reached `gbs` of all-reduce busbw; `first` where it is the first k, `gain` over them as in Choice."""

    gbs: float
    simulated: bool
    first: bool
    gain: tuple[float, float, float] | None


@dataclass(frozen=True, slots=True)
class BestForJob:
    """A step of the job communicates for `seconds` on the set, the best of the `finalists` that did not fail.

    `tied`: as long on all of them; `significant`: longer on each of the others.
    """

    job: str
    seconds: float
    finalists: int
    tied: bool
    significant: bool
    simulated: bool


Reason = AllLeft | OneDevice | Undecided | BestPair | Predicted | Measured | BestForJob


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen positions, ascending, and why.

    `finalists` are best first and hold the default set, the first k by PCI bus id of those that were not left out.
    `decided_by` are the tie-breaks that decided, in their order; none if bandwidth did. `tied`: the choice does not
    affect bandwidth. `heuristic`: too many devices to try all sets. `estimated`: from labels alone. `gain` is the
    chosen set's measured busbw over the default's: low end of its 95 % interval, middle, high end; None if it was
    not measured.
    `failed` are sets of devices within it where something failed or moved wrong data: there was no set without.
    `forgiven` are throttled members that were taken all the same, because all sets without them include what failed.
    `trials` are the fewest that a pair which decides got, None if none decides.
    `impossible` are those of `failed` on which nothing failed but a rate was above its limit.
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
