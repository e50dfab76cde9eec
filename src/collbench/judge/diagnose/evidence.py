"""What a verdict rests on, in types: `output.sentences` puts it in words. Shares are of 1, rates GB/s one way.

`works` are what was timed, in the order of their names. Devices, links and their label are the verdict's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from collbench.model.operations import Work


class Extent(StrEnum):
    """Which links of its devices something is about."""

    DEVICES = "the devices themselves"
    PAIR = "a pair, both ways"
    DIRECTION = "one direction of a pair"
    ALL = "all links of a device"
    SENT = "all that a device sends"
    RECEIVED = "all that a device receives"
    PAIRS = "some pairs"  # pairs, labels, one_way
    ALL_PAIRS = "all pairs"  # pairs, labels, one_way
    SET = "a set of devices together"


@dataclass(frozen=True, slots=True)
class Where:
    """Where something is: positions of devices, and of many pairs how many they are and what labels they have."""

    extent: Extent
    devices: tuple[int, ...]
    pairs: int = 0
    labels: tuple[str, ...] = ()
    one_way: bool = False


class Source(StrEnum):
    """What reports paths apart from NVML's labels."""

    LABEL = "the label"
    NVML = "NVML"
    TOPOLOGY = "nvidia-smi topo -m"
    PEERS = "nvidia-smi topo -p2p"
    CUDA = "CUDA"


@dataclass(frozen=True, slots=True)
class WrongElements:
    """A number of wrong elements of a work, 0 if a failure says more."""

    elements: int
    work: Work | None


@dataclass(frozen=True, slots=True)
class OfWorks:
    """The works that the verdict's kind is about: they hang, fail, or use no NVLinks; () for all copies, or no work."""

    works: tuple[Work, ...] = ()


class Presence(NamedTuple):
    """What was seen on a device: in a number of the run's trials, or "before" or "after" them."""

    device: int
    trials: int = 0
    of_trials: int = 0
    when: str = ""


@dataclass(frozen=True, slots=True)
class OtherProcesses:
    """Other people's processes were there."""

    seen: tuple[Presence, ...]


@dataclass(frozen=True, slots=True)
class Disturbed:
    """Pairs of these labels reach `ratio` of their isolated rate concurrently."""

    labels: tuple[str, ...]
    ratio: float
    works: tuple[Work, ...]


@dataclass(frozen=True, slots=True)
class LinkCount:
    """A source's NV# label and NVML's count of active NVLinks differ."""

    source: Source
    label: str
    nvlinks: int


@dataclass(frozen=True, slots=True)
class PeerAnswers:
    """What each source answers about peer access; `agree` where all deny it, though the label promises it."""

    label: str
    answers: tuple[tuple[Source, str], ...]
    agree: bool


@dataclass(frozen=True, slots=True)
class FewerLinks:
    """A path has the rate of `links` of its `count` NVLinks."""

    links: float
    count: int


@dataclass(frozen=True, slots=True)
class Beaten:
    """A rate above the capacity of a part (the verdict's theory), in a number of batches."""

    gbs: float
    part: str
    works: tuple[Work, ...]
    batches: int


@dataclass(frozen=True, slots=True)
class Slower:
    """Slower by this share than what the kind compares with: the way back, the best links of `label`, or all links."""

    share: float
    works: tuple[Work, ...]
    label: str = ""


@dataclass(frozen=True, slots=True)
class SlowerFor:
    """Slower by this share from one pass to another (1 is the first) of so many than in the other passes."""

    share: float
    first: int
    last: int
    passes: int


@dataclass(frozen=True, slots=True)
class SlotBelowBest:
    """(generation, width) of a device's PCIe link right after measuring, and at best."""

    now: tuple[int | None, int | None]
    best: tuple[int | None, int | None]


@dataclass(frozen=True, slots=True)
class StagedFaster:
    """Copies through host memory are faster than by peer access, at this rate."""

    staged_gbs: float


@dataclass(frozen=True, slots=True)
class Inverted:
    """Pairs of the verdict's label reach this share less than those of a `worse` one."""

    share: float
    worse: str
    works: tuple[Work, ...]


@dataclass(frozen=True, slots=True)
class OtherLabel:
    """nvidia-smi and NVML label a path differently."""

    tool: str
    nvml: str


@dataclass(frozen=True, slots=True)
class TreeLabels:
    """Labels that name NVLinks, and what the PCIe tree says of the same paths."""

    labels: tuple[str, ...]
    ancestors: tuple[str, ...]


Evidence = (
    WrongElements
    | OfWorks
    | OtherProcesses
    | Disturbed
    | LinkCount
    | PeerAnswers
    | FewerLinks
    | Beaten
    | Slower
    | SlowerFor
    | SlotBelowBest
    | StagedFaster
    | Inverted
    | OtherLabel
    | TreeLabels
)
