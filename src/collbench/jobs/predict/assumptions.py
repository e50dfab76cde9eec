"""What a prediction assumes where nothing was measured, as facts that `output` puts in words."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum, auto

from collbench.choose.choice import Band, Members
from collbench.model.operations import Operation

# Assumptions about a collective's time. Members are positions of the run's devices.


@dataclass(frozen=True, slots=True)
class LikeOperation:
    """It takes as long as another operation, measured on the same devices, takes for `share` times the bytes."""

    operation: Operation
    share: float


@dataclass(frozen=True, slots=True)
class LikeSet:
    """It takes as long as on other devices that are predicted to be as fast; `further` was assumed there."""

    members: Members
    further: LikeOperation | None = None


@dataclass(frozen=True, slots=True)
class LikePair:
    """It is a ring with a band of bandwidth, and its time depends on size as that of an operation on a pair does."""

    band: Band
    operation: Operation
    pair: Members


@dataclass(frozen=True, slots=True)
class BeyondSizes:
    """Beyond the measured sizes, from `least` to `most` bytes, the time is a line of latency and bandwidth."""

    least: int
    most: int


OfTime = LikeOperation | LikeSet | LikePair | BeyondSizes

# Assumptions about a network, a strategy, a step.


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
    """One assumption; if it is about a time, also the operations and devices it was made for, in order."""

    what: OfTime | OfStep
    operations: tuple[Operation, ...] = ()
    sets: tuple[Members, ...] = ()
