"""What a backend is: devices, and raw seconds for a step; and the messages to the process that has it.

It never computes a bandwidth and never decides.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from statistics import fmean
from typing import Any, TypeAlias

from collbench.machine import variables
from collbench.model.errors import Cause, CollbenchError, Failure, FailureKind, StepFailed
from collbench.model.operations import Blocks, Operation, Variant, Work, blocks_of
from collbench.model.run import Device, Flag, Health, Machine, NetworkPort, Path, RankLaunches, Skipped

# Longest wait of a backend for one batch: the slowest link that we know (staged PCIe gen 3, 3 GB/s) moves 32 × 1 GiB in
# 12 s. A parent process has a shorter timeout for the child that runs the backend.
LONGEST_BATCH_S = 30.0


@dataclass(frozen=True, slots=True)
class Step:
    """One trial: the same work and size on disjoint groups of devices at the same time.

    `groups` are members as in `model.Variant`. They share devices only in variants in which each group names the others
    as busy meanwhile: a device's transfers then run once for all groups. A step has `warmup` untimed batches, then
    `batches` timed ones, each of `iterations` messages (or accesses of a pointer chase). `launches` is how many
    ungraphed launches of a collective are timed in addition, `singles` how many plain launches are timed one by one.
    `verify` False leaves the data of collectives unchecked.
    """

    work: Work
    groups: tuple[tuple[int, ...], ...]
    size_bytes: int
    iterations: int
    batches: int
    warmup: int = 1
    dtype: str = "float32"
    redop: str = "sum"
    root: int = 0
    launches: int = 0
    verify: bool = True
    singles: int = 0

    @property
    def blocks(self) -> Blocks:
        """Bytes from each rank of a group to each, of an irregular collective; () for any other."""
        return blocks_of(self.work.skew, len(self.groups[0]), self.size_bytes) if self.work.operation.irregular else ()


@dataclass(frozen=True, slots=True)
class VerifiedBytes:
    """Bytes that a step's batches, including untimed ones, delivered to a group, and how many were compared there."""

    moved: int
    verified: int


@dataclass(frozen=True, slots=True)
class Timing:
    """Raw seconds per iteration: `seconds[g][b]` for group g and batch b, the maximum over a group's ranks.

    `launch_seconds[g]` is the launch loop's, empty if the step has none. `coverage[g]` says how much data was compared,
    empty if that is not counted; wrong data raises an error instead. `singles[g]` are the single launches of each of
    the group's ranks, in their order, in ns of one clock for all ranks of a host; empty without any. `plain[g]`: the
    group's batches were plain launches, not replays of a graph; empty if all were replays, or nothing is launched.
    `waits[g][r][b]` are the seconds for which rank r of the group was in the barrier before batch b; empty where one
    process has all GPUs. The rank that reaches the barrier last waits least. Except before a step's first batch, each
    rank reaches it as soon as its host can after the batch before. `uncovered[g]` is a device whose load ended before
    the copies of group g that were timed beside it, None if all loads lasted; empty if nothing runs beside the copies.
    """

    seconds: tuple[tuple[float, ...], ...]
    launch_seconds: tuple[float, ...] = ()
    coverage: tuple[VerifiedBytes, ...] = ()
    singles: tuple[tuple[RankLaunches, ...], ...] = ()
    plain: tuple[bool, ...] = ()
    waits: tuple[tuple[tuple[float, ...], ...], ...] = ()
    uncovered: tuple[int | None, ...] = ()

    def region_seconds(self, step: Step) -> float:
        """Return how long the step's batches took; groups that ran concurrently count once."""
        longest: list[float] = [max(batches) for batches in zip(*self.seconds, strict=True)]
        return step.iterations * sum(longest)


def slowest(step: Step, timings: Sequence[Timing] | Mapping[int, Timing]) -> Timing:
    """Return each group's times from `timings` by rank: the maximum of each batch, the mean of the launch loop.

    Bytes received and compared are summed; single launches are kept per rank.
    """

    def by_rank(field: str) -> list[list[Any]]:
        """Return each group's values of this field by rank; nothing if some rank has none."""
        every = [[getattr(timings[rank], field) for rank in group] for group in step.groups]
        return [[own[index] for own in group] for index, group in enumerate(every)] if all(chain(*every)) else []

    return Timing(
        seconds=tuple(tuple(map(max, zip(*own, strict=True))) for own in by_rank("seconds")),
        launch_seconds=tuple(map(fmean, by_rank("launch_seconds"))),
        coverage=tuple(
            VerifiedBytes(sum(part.moved for part in own), sum(part.verified for part in own))
            for own in by_rank("coverage")
        ),
        singles=tuple(tuple(chain(*own)) for own in by_rank("singles")) if step.singles else (),
        plain=tuple(map(any, by_rank("plain"))),
        waits=tuple(tuple(chain(*own)) for own in by_rank("waits")),
    )


class Backend(ABC):
    """A source of samples. Errors are CollbenchErrors; wrong data raises DataCorruption, which names the offset.

    A backend defines `name` and the abstract methods, and overrides the others if their default does not apply to it.
    """

    name: str

    @abstractmethod
    def devices(self) -> tuple[Device, ...]:
        """Return the devices that steps refer to, by position."""

    @abstractmethod
    def operations(self, variant: Variant) -> tuple[Operation, ...]:
        """Return the copies that can be timed in this variant; in the plain and host ones also the pointer chase."""

    @abstractmethod
    def capacity_bytes(self) -> int:
        """Return the largest message size in bytes that every device has room for."""

    @abstractmethod
    def time(self, step: Step) -> Timing:
        """Time the step on all of its groups concurrently. Raises StepFailed if that costs the step's points only."""

    def time_steps(self, steps: Iterable[Step]) -> Iterator[tuple[Step, Timing | StepFailed]]:
        """Time steps one after another and yield each with its result; steps may be drawn a little ahead."""
        for step in steps:
            try:
                yield step, time_step(self, step)
            except StepFailed as error:
                yield step, error

    def free_bytes(self) -> tuple[int, ...]:
        """Return each device's free memory in bytes, by position; empty if devices share the machine's."""
        return ()

    def numa_nodes(self) -> tuple[int, ...]:
        """Return the host's NUMA nodes between which host copies may differ; empty if there are none to compare."""
        return ()

    def can_run(self, work: Work, members: tuple[int, ...]) -> Skipped | None:
        """Return None if these devices can do this copy or chase, else the reason why they cannot."""
        return None

    def reserve(self, largest_bytes: int) -> None:  # noqa: B027
        """Make room for messages of up to `largest_bytes`; called once, before the first step."""

    def prepare(self, groups: tuple[tuple[int, ...], ...]) -> None:  # noqa: B027
        """Start to create the communicator of all devices and those of these groups.

        That may continue while this process plans.
        """

    def ready(self) -> None:  # noqa: B027
        """Wait for what `prepare` started, so that no step has to. Its failure shows in the first collective."""

    def close(self) -> None:  # noqa: B027
        """Release what would outlive the process; must be safe to call twice."""


def time_step(backend: Backend, step: Step) -> Timing:
    """Time a step. Raises StepFailed if it costs its data points only, or if a batch took no time."""
    timing = backend.time(step)
    shortest = min(seconds for batches in timing.seconds for seconds in batches)
    if not shortest > 0:  # NaN, or a clock that does not run
        raise StepFailed(failure=Failure(FailureKind.ERROR, Cause.NO_TIME, seconds=shortest))
    return timing


@dataclass(frozen=True, kw_only=True)
class OpenDevices:
    """Devices that were opened to be measured: what is known of them and of their machine.

    `health` reads the devices' current state, by position; `flags` returns what is wrong on some positions right now.
    `environment` are the variables that change figures, `clock` gives the seconds that budgets count. `close` releases
    everything and waits until the devices have their memory back.
    """

    machine: Machine
    paths: tuple[Path, ...] = ()
    health: Callable[[], tuple[Health, ...]] = tuple
    flags: Callable[[tuple[int, ...]], tuple[Flag, ...]] = lambda _positions: ()
    environment: Mapping[str, str] = field(default_factory=variables.recorded)
    clock: Callable[[], float] = time.monotonic
    close: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Opened(OpenDevices):
    """An open backend, of `processes` that a `launcher` started.

    `ports` reads the network cards' ports of several hosts, () if no host has any; None where they are not read, as on
    one host.
    """

    backend: Backend
    ports: Callable[[], tuple[NetworkPort, ...] | None] = lambda: None
    processes: int = 1
    launcher: str = ""


# The messages between the GPU worker and its parent; rank 0 calls other ranks by `Call`, too.


@dataclass(frozen=True, slots=True)
class NcclWorld:
    """Processes with one GPU each, by their GPUs' positions; this worker is rank `rank` of them.

    `unique_id` is NCCL's id of their world.
    """

    positions: tuple[int, ...]
    rank: int
    unique_id: bytes

    @property
    def position(self) -> int:
        """The position of this worker's GPU."""
        return self.positions[self.rank]


@dataclass(frozen=True, slots=True)
class Call:
    """Calls a method of the worker; its result, or the error that it raises, is the answer."""

    method: str
    arguments: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True)
class Open:
    """Which GPUs to open, and how: BackendFacts answer it. Positions in all later requests are indices of `devices`.

    `peers` False leaves peer access off: copies then go through host memory. With a `world` only this rank's own GPU is
    opened. `registrations` is how many kinds of registered memory collectives will need. A batch of copies that is not
    done after `copies_s` seconds hangs.
    """

    devices: tuple[Device, ...]
    nccl_path: str | None = None
    collectives: bool = False
    peers: bool = True
    world: NcclWorld | None = None
    registrations: int = 0
    copies_s: float = LONGEST_BATCH_S


@dataclass(frozen=True, slots=True)
class BackendFacts:
    """What opening found: what Backend's methods of these names return, the device code, and NCCL's version and file.

    `multicast` is whether all GPUs support NVLink multicast, which NCCL's NVLS needs, None if that is not known.
    `peers[i][j]`: CUDA lets GPU i reach GPU j's memory; empty if each GPU has a process of its own.
    """

    free_bytes: tuple[int, ...]
    capacity_bytes: int
    kernel_image: str = ""
    nccl: str = ""
    nccl_path: str = ""
    multicast: bool | None = None
    peers: tuple[tuple[bool, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Prepared:
    """Not an answer: the communicators exist, and the first step after that begins."""


@dataclass(frozen=True, slots=True)
class WorkerAnswer:
    """One request's result, and how many seconds the worker took."""

    value: tuple[str, ...] | bytes | BackendFacts | Skipped | str | Timing | None
    seconds: float


# A failure travels as the exception itself, with its type and text.
Reply: TypeAlias = WorkerAnswer | CollbenchError | Prepared
