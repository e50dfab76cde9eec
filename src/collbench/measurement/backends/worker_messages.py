"""The messages between the GPU worker and its parent. It imports little, because the parent waits for the worker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from collbench.measurement.backends.protocol import Step, Timing
from collbench.model.errors import CollbenchError
from collbench.model.nccl_options import NcclOptions
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import Device, Refusal


@dataclass(frozen=True, slots=True)
class World:
    """The worker's rank among processes with one GPU each; `unique_id` is NCCL's id of their world."""

    rank: int
    world_size: int
    unique_id: bytes


@dataclass(frozen=True, slots=True)
class ListGpus:
    """Asks for the UUIDs of the GPUs that CUDA shows, in its order."""


@dataclass(frozen=True, slots=True)
class MakeUniqueId:
    """Asks for the 128 bytes by which the ranks of a world find each other; `nccl_path` is for find_nccl."""

    nccl_path: str | None


@dataclass(frozen=True, slots=True)
class Open:
    """Opens GPUs; the answer is Facts. Positions in all later requests are indices of `devices`.

    `peers` False leaves peer access off: copies then go through host memory. With a `world`, positions are its ranks,
    and only this rank's own GPU is opened. `options` are those of the communicators.
    """

    devices: tuple[Device, ...]
    nccl_path: str | None
    collectives: bool
    peers: bool = True
    world: World | None = None
    options: NcclOptions = field(default_factory=NcclOptions)


@dataclass(frozen=True, slots=True)
class Facts:
    """What opening found: what Backend's methods of these names return, the device code, and NCCL's version and file.

    `operations` are by variant; `multicast` is whether all GPUs support it, None if that is not known. `peers[i][j]`:
    CUDA lets GPU i reach GPU j's memory; empty if each GPU has a process of its own.
    """

    free_bytes: tuple[int, ...]
    capacity_bytes: int
    operations: dict[Variant, tuple[Operation, ...]]
    kernel_image: str
    nccl: str
    nccl_path: str
    multicast: bool | None
    peers: tuple[tuple[bool, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class CanRun:
    """Asks what Backend.can_run returns."""

    work: Work
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reserve:
    """Allocates the buffers."""

    largest_bytes: int


@dataclass(frozen=True, slots=True)
class Prepare:
    """Starts to create the groups' communicators; answered at once. The first collective waits for them."""

    groups: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class AwaitPrepared:
    """Asks to be answered when the creation of communicators has succeeded, failed, or timed out."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """Not an answer: the communicators exist, and the first collective begins."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One request's result, and how many seconds the worker took."""

    value: tuple[str, ...] | bytes | Facts | Refusal | str | Timing | None
    seconds: float


Request: TypeAlias = ListGpus | MakeUniqueId | Open | CanRun | Reserve | Prepare | AwaitPrepared | Step
# A failure travels as the exception itself, with its type and text.
Reply: TypeAlias = Answer | CollbenchError | Prepared
