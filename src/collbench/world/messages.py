"""What rank 0 and the ranks say to each other. One answer to each request, except to Abandon and Leave.

Each message is a type: they travel as its name and its fields (codec.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from collbench.backends.protocol import Step, Timing
from collbench.backends.worker_messages import Prepare, Reserve
from collbench.errors import CollbenchError
from collbench.model import Device, Flag, Health, Machine, Path


@dataclass(frozen=True, slots=True)
class Introduce:
    """Asks who is there; the answer is an Introduction."""


@dataclass(frozen=True, slots=True)
class Introduction:
    """A rank's host, machine and device. `host_key` tells hosts apart that share a name."""

    host: str
    host_key: str
    backend: str
    version: str
    device: Device
    machine: Machine


@dataclass(frozen=True, slots=True)
class MakeId:
    """Asks for what the ranks of a new world must share: the answer is a UniqueId."""


@dataclass(frozen=True, slots=True)
class UniqueId:
    """NCCL's id in hexadecimal digits; empty where the backend needs none."""

    digits: str


@dataclass(frozen=True, slots=True)
class OpenRank:
    """Opens the rank's device for a world of `devices`, by rank; the answer is RankFacts.

    `key` names what the ranks share in the store. `address` is the rank's own for reaching the other hosts, empty where
    all ranks are on one.
    """

    devices: tuple[Device, ...]
    key: str
    address: str


@dataclass(frozen=True, slots=True)
class RankFacts:
    """What opening found: bytes that fit, free bytes (None where devices share memory), and where it comes from."""

    capacity_bytes: int
    free_bytes: int | None = None
    kernel_image: str = ""
    nccl: str = ""
    nccl_path: str = ""
    multicast: bool | None = None


@dataclass(frozen=True, slots=True)
class FindPaths:
    """Asks for the paths between devices of the rank's own host, by their places in `devices`: FoundPaths."""

    devices: tuple[Device, ...]


@dataclass(frozen=True, slots=True)
class FoundPaths:
    """Those paths; none where nobody tells."""

    paths: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class TakeHealth:
    """Asks for the state of the rank's device: the answer is FoundHealth."""


@dataclass(frozen=True, slots=True)
class FoundHealth:
    """One state, or none where nobody tells."""

    states: tuple[Health, ...]


@dataclass(frozen=True, slots=True)
class Abandon:
    """Ends the step that the rank is in: another rank has failed, and this one would wait for it."""


@dataclass(frozen=True, slots=True)
class Leave:
    """Ends the rank: all is measured, or rank 0 has said why not."""


Value: TypeAlias = Introduction | UniqueId | RankFacts | FoundPaths | FoundHealth | Timing | None


@dataclass(frozen=True, slots=True)
class Done:
    """A request's result. `flags` say what was wrong with the rank's device meanwhile, which is position 0 to it."""

    value: Value
    flags: tuple[Flag, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Alive:
    """Not an answer: the rank still works on it."""


Request: TypeAlias = Introduce | MakeId | OpenRank | Reserve | Prepare | Step | FindPaths | TakeHealth
Order: TypeAlias = Request | Abandon | Leave
# A failure travels as its class and text.
Reply: TypeAlias = Done | CollbenchError
Word: TypeAlias = Reply | Alive
