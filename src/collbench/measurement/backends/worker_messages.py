"""The messages between the GPU worker and its parent; rank 0 calls other ranks by `Call`, too.

It imports little, because the parent waits for the worker.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from collbench.measurement.backends.protocol import Backend, Timing
from collbench.model.errors import CollbenchError
from collbench.model.operations import Operation, Variant
from collbench.model.run import Device, Refusal


@dataclass(frozen=True, slots=True)
class World:
    """The worker's rank among processes with one GPU each; `unique_id` is NCCL's id of their world."""

    rank: int
    world_size: int
    unique_id: bytes


@dataclass(frozen=True, slots=True)
class Call:
    """Calls a method of the worker; its result, or the error that it raises, is the answer."""

    method: str
    arguments: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True)
class Open:
    """Which GPUs to open, and how; the answer is Facts. Positions in all later requests are indices of `devices`.

    `peers` False leaves peer access off: copies then go through host memory. With a `world`, positions are its ranks,
    and only this rank's own GPU is opened. `registrations` is how many kinds of registered memory
    collectives will need.
    """

    devices: tuple[Device, ...]
    nccl_path: str | None
    collectives: bool
    peers: bool = True
    world: World | None = None
    registrations: int = 0


@dataclass(frozen=True, slots=True)
class Facts:
    """What opening found: what Backend's methods of these names return, the device code, and NCCL's version and file.

    `operations` are by variant; `multicast` is whether all GPUs support it, None if that is not known. `peers[i][j]`:
    CUDA lets GPU i reach GPU j's memory; empty if each GPU has a process of its own.
    """

    free_bytes: tuple[int, ...]
    capacity_bytes: int
    operations: dict[Variant, tuple[Operation, ...]] = field(default_factory=dict)
    kernel_image: str = ""
    nccl: str = ""
    nccl_path: str = ""
    multicast: bool | None = None
    peers: tuple[tuple[bool, ...], ...] = ()

    @classmethod
    def of(cls, backend: Backend, **known: Any) -> Facts:
        """Return the facts of an open backend, with what is known besides."""
        operations = {variant: backend.operations(variant) for variant in Variant}
        return cls(backend.free_bytes(), backend.capacity_bytes(), operations, **known)


@dataclass(frozen=True, slots=True)
class Prepared:
    """Not an answer: the communicators exist, and the first step after that begins."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One request's result, and how many seconds the worker took."""

    value: tuple[str, ...] | bytes | Facts | Refusal | str | Timing | None
    seconds: float


# A failure travels as the exception itself, with its type and text.
Reply: TypeAlias = Answer | CollbenchError | Prepared
