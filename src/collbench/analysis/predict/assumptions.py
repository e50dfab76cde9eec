"""What a prediction assumes where nothing was measured, as facts; `output/assumptions.py` has their words."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum, auto

from collbench.analysis.choice import Band, Members
from collbench.model.operations import Operation

# Of a collective's time. Members are positions of the run's devices.


@dataclass(frozen=True, slots=True)
class LikeOperation:
    """As long as another operation that was measured on the same devices, of `share` times the bytes."""

    operation: Operation
    share: float


@dataclass(frozen=True, slots=True)
class LikeSet:
    """As on other devices, which are predicted to reach the same; `further` is what was assumed there."""

    members: Members
    further: LikeOperation | None = None


@dataclass(frozen=True, slots=True)
class LikePair:
    """A ring at a band of bandwidth, whose time over size has the shape of an operation on a pair."""

    band: Band
    operation: Operation
    pair: Members


@dataclass(frozen=True, slots=True)
class BeyondSizes:
    """Of sizes that were not measured: a line of latency and bandwidth. `least` and `most` bytes were."""

    least: int
    most: int


OfTime = LikeOperation | LikeSet | LikePair | BeyondSizes

# Of a network, a strategy, a step.


@dataclass(frozen=True, slots=True)
class EqualBlocks:
    """All parameters are in equal blocks; `guessed` if the user did not give their number."""

    count: int
    guessed: bool


@dataclass(frozen=True, slots=True)
class HeadShare:
    """Head and loss take this share of the GPU's time."""

    share: float


@dataclass(frozen=True, slots=True)
class OfStrategy:
    """What a strategy of data parallelism sends, and when."""

    name: str


class General(StrEnum):
    """What is assumed of every network."""

    BACKWARD = auto()
    OVERLAP_FREE = auto()
    OVERLAP_MEASURED = auto()
    HOST_LAUNCHES = auto()
    OPTIMIZER = auto()
    HOST_PHASES = auto()


OfNetwork = EqualBlocks | HeadShare
OfStep = OfNetwork | OfStrategy | General


@dataclass(frozen=True, slots=True)
class Assumed:
    """One assumption; of a time, of which operations on which devices, in the order met."""

    what: OfTime | OfStep
    operations: tuple[Operation, ...] = ()
    sets: tuple[Members, ...] = ()
