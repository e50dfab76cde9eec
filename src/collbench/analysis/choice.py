"""What choosing k devices answers: the set, its predicted rate, and what measuring it showed (docs/method.md 11)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from collbench.model.units import amount, fixed, format_approximate_size, span

Members = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Band:
    """The all-reduce busbw that a set is predicted to reach, GB/s: at least `lo`, at most `hi`; `how` says by what.

    `hops` counts the hops of a ring that go through the host (0 for NVLink). Where bands are equal, fewer are better:
    they may meet there, which no measurement of single pairs shows. `unmeasured` counts the set's pairs without a rate:
    they may be slower than any other, so `lo` is what the set has without them, 0 where that is not known.
    """

    lo: float
    hi: float
    how: str
    hops: float = 0.0
    unmeasured: int = 0

    def __str__(self) -> str:
        """Return "28.5–47.5 GB/s", one figure where both ends print alike, "at most 47.5 GB/s" with an unknown `lo`."""
        if self.unmeasured and self.lo == 0:
            return f"at most {fixed(self.hi, 3)} GB/s"
        return f"{span(fixed(self.lo, 3), fixed(self.hi, 3), '–')} GB/s"

    @property
    def basis(self) -> str:
        """What the band rests on, in words: "NVSwitch, 1 pair not measured"."""
        return self.how + (f", {amount(self.unmeasured, 'pair')} not measured" if self.unmeasured else "")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A set of positions, ascending, and its predicted band. The `default` is what takes no choosing: the first k."""

    members: Members
    band: Band
    default: bool


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


_WORDS = {
    Unfit.EXCLUDED: "excluded",
    Unfit.PROCESSES: "busy: {0.figure:.0f} other process{es}",
    Unfit.TRIALS_SHARED: "busy: another process in {0.figure:.0%} of its trials",
    Unfit.UTILISATION: "busy: {0.figure:.0f}% utilisation",
    Unfit.MEMORY: "busy: only {free} of {total} free",
    Unfit.THROTTLED: "throttled: {reasons}",
    Unfit.TRIALS_THROTTLED: "throttled in {0.figure:.0%} of its trials",
    Unfit.ECC_ERRORS: "faulty: {0.figure:.0f} uncorrected ECC error{s}",
    Unfit.NVLINK_ERRORS: "faulty: {0.figure:.0f} new NVLink error{s}",
    Unfit.FAILING_PAIRS: "faulty: its pairs failed or moved wrong data, those of the others did not",
}


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

    def __str__(self) -> str:
        """Return "busy: 2 other processes", "faulty: 1 uncorrected ECC error", "throttled: SW power cap"."""
        one = self.figure == 1
        return _WORDS[self.kind].format(
            self,
            es="" if one else "es",
            s="" if one else "s",
            free=format_approximate_size(int(self.figure)),
            total=format_approximate_size(self.total),
            reasons=", ".join(self.reasons),
        )


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A device that was not considered, by position, and why."""

    member: int
    why: tuple[Why, ...]

    @property
    def reason(self) -> str:
        """Why, in words."""
        return "; ".join(map(str, self.why))


@dataclass(frozen=True, slots=True)
class Verified:
    """A finalist's measured all-reduce busbw, GB/s: the median over trials and its 95 % interval."""

    members: Members
    gbs: float
    interval: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen positions, ascending, and why in half a sentence.

    `finalists` are best first and hold the default set, the first k by PCI bus id of those that were not left out.
    `decided_by` names the tie-break that decided, "" where bandwidth did. `tied`: the choice does not affect bandwidth.
    `heuristic`: too many devices to try all sets. `estimated`: from labels alone. `gain` is the chosen set's measured
    busbw over the default's: low end of its 95 % interval, middle, high end; None where it was not measured.
    `failed` are places within the set where something failed or moved wrong data: there was no set without.
    """

    members: Members
    reason: str
    band: Band | None
    finalists: tuple[Candidate, ...]
    left_out: tuple[LeftOut, ...] = ()
    decided_by: str = ""
    tied: bool = False
    heuristic: bool = False
    estimated: bool = False
    verified: tuple[Verified, ...] = ()
    gain: tuple[float, float, float] | None = None
    failed: tuple[Members, ...] = ()
