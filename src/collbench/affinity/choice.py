"""What choosing k devices answers: the set, what it is predicted to carry, and what measuring it showed."""

from __future__ import annotations

from dataclasses import dataclass

Members = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Band:
    """The all-reduce busbw that a set is predicted to reach, GB/s: at least `lo`, at most `hi`; `how` says by what.

    `hops` counts the hops of a ring that go through the host (0 for NVLink). Where bands are equal, fewer are better:
    they may meet there, which no measurement of single pairs shows.
    """

    lo: float
    hi: float
    how: str
    hops: float = 0.0

    def __str__(self) -> str:
        """Return "28.5–47.5 GB/s", or one figure where both ends print alike."""
        lo, hi = f"{self.lo:.3g}", f"{self.hi:.3g}"
        return f"{hi} GB/s" if lo == hi else f"{lo}–{hi} GB/s"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A set of positions, ascending, and its predicted band. The `default` is what takes no choosing: the first k."""

    members: Members
    band: Band
    default: bool = False


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A device that was not considered, by position, and why."""

    member: int
    reason: str


@dataclass(frozen=True, slots=True)
class Verified:
    """A finalist's measured all-reduce busbw, GB/s: the median over visits and its 95 % interval."""

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
