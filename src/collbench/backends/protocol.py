"""What a backend is: devices, and raw seconds for a step. It never computes a bandwidth and never decides."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from collbench.model.errors import StepFailed
from collbench.model.failures import Cause, Failure, FailureKind
from collbench.model.operations import Operation, Registration, Variant, Work
from collbench.model.run import DataPoint, Device, Flag, Health, Machine, Path, RankLaunches, Refusal
from collbench.model.skew import Blocks, Skew, blocks_of


@dataclass(frozen=True, slots=True)
class Step:
    """One trial's work: the same operation and size on disjoint groups of devices at the same time.

    `groups` are members as in `model.Variant`. They share devices where each names the others as busy meanwhile: a
    device's transfers then run once for all groups. `iterations` per batch (accesses of a pointer chase), `batches`
    batches, `warmup` untimed batches first. `launches` is how many ungraphed launches of a collective to time
    beside (0: none), `singles` how many plain launches to time one by one. `verify` False leaves the data of
    collectives unchecked. `numa_node`, `registration` and `skew` as in
    `operations.Work`.
    """

    operation: Operation
    groups: tuple[tuple[int, ...], ...]
    size_bytes: int
    iterations: int
    batches: int
    warmup: int = 1
    dtype: str = "float32"
    redop: str = "sum"
    root: int = 0
    launches: int = 0
    variant: Variant = Variant.PLAIN
    verify: bool = True
    numa_node: int | None = None
    singles: int = 0
    registration: Registration = Registration.NONE
    skew: Skew | None = None

    @property
    def work(self) -> Work:
        """The operation and how it runs."""
        return Work(self.operation, self.variant, self.numa_node, self.registration, self.skew)

    @property
    def blocks(self) -> Blocks:
        """Bytes from each rank to each of a group of an irregular collective; () for any other."""
        return blocks_of(self.skew, len(self.groups[0]), self.size_bytes) if self.operation.irregular else ()


@dataclass(frozen=True, slots=True)
class Coverage:
    """Bytes that a step's batches delivered to a group, untimed ones too, and how many of them were compared there."""

    moved: int
    verified: int


@dataclass(frozen=True, slots=True)
class Timing:
    """Raw seconds per iteration: `seconds[g][b]` for group g and batch b, the maximum over a group's ranks.

    `launch_seconds[g]` is the launch loop's, empty when it was not asked for. Wrong data raised; `coverage[g]` says how
    much was compared, empty if uncounted. `singles[g]` are the single launches of each of the group's ranks, in
    their order, in ns of one clock for all ranks of a host; empty without any. `plain[g]`: the group's batches were
    plain launches, not replays of a graph; empty if all were replays, or nothing is launched. `waits[g][r][b]` are
    the seconds for which rank r of the group was in the barrier before batch b; empty in a single process. The last one
    to come waits least, and but for a step's first batch each comes as soon as its host can after the batch before.
    """

    seconds: tuple[tuple[float, ...], ...]
    launch_seconds: tuple[float, ...] = ()
    coverage: tuple[Coverage, ...] = ()
    singles: tuple[tuple[RankLaunches, ...], ...] = ()
    plain: tuple[bool, ...] = ()
    waits: tuple[tuple[tuple[float, ...], ...], ...] = ()

    def region_seconds(self, step: Step) -> float:
        """Return how long the step's batches took; groups that ran at once count once."""
        longest: list[float] = [max(together) for together in zip(*self.seconds, strict=True)]
        return step.iterations * sum(longest)


class Backend(Protocol):
    """A source of samples. Errors are CollbenchErrors; wrong data raises DataCorruption and names the offset."""

    name: str

    def devices(self) -> tuple[Device, ...]:
        """Return the devices that steps refer to, by position."""

    def operations(self, variant: Variant) -> tuple[Operation, ...]:
        """Return the copies (and with the plain or host variant the pointer chase) that this backend can time so."""

    def capacity_bytes(self) -> int:
        """Return the largest message size in bytes that every device has room for."""

    def free_bytes(self) -> tuple[int, ...]:
        """Return each device's free memory in bytes, by position; empty if devices share the machine's."""

    def numa_nodes(self) -> tuple[int, ...]:
        """Return the host's NUMA nodes between which host copies may differ; empty if there are none to compare."""

    def reserve(self, largest_bytes: int) -> None:
        """Make room for messages of up to `largest_bytes`; called once, before the first step."""

    def can_run(self, work: Work, members: tuple[int, ...]) -> Refusal | None:
        """Return None if these devices can do this copy or chase, else the reason why they cannot."""

    def prepare(self, groups: tuple[tuple[int, ...], ...]) -> None:
        """Expect collectives on these groups: their communicators may be made meanwhile, beside copies."""

    def ready(self) -> None:
        """Wait for what `prepare` began, so that no step has to. Its failure shows in the first collective."""

    def time_copies(self, step: Step) -> Timing:
        """Time the step's copies, or pointer chases, on all of its groups concurrently."""

    def time_collective(self, step: Step) -> Timing:
        """Time one collective on each of the step's communicators, concurrently."""

    def time_steps(self, steps: Iterable[Step]) -> Iterator[tuple[Step, Timing | StepFailed]]:
        """Time steps one after another and yield each with what became of it; steps are drawn a little ahead."""

    def close(self) -> None:
        """Release what would outlive the process; must be safe to call twice."""


def time_step(backend: Backend, step: Step) -> Timing:
    """Time a step of either kind. Raises StepFailed if it costs its data points only."""
    timing = sound(backend.time_collective(step) if step.operation.is_collective else backend.time_copies(step))
    if isinstance(timing, StepFailed):
        raise timing
    return timing


def sound(outcome: Timing | StepFailed) -> Timing | StepFailed:
    """Return what became of a step: a failure where a batch took no time, which no clock that runs gives."""
    if isinstance(outcome, StepFailed):
        return outcome
    least = min(seconds for batches in outcome.seconds for seconds in batches)
    if least > 0:
        return outcome
    return StepFailed(failure=Failure(FailureKind.ERROR, Cause.NO_TIME, seconds=least))


def time_each(backend: Backend, steps: Iterable[Step]) -> Iterator[tuple[Step, Timing | StepFailed]]:
    """Time steps one by one: what `time_steps` means for a backend that gains nothing from knowing the next."""
    for step in steps:
        try:
            yield step, time_step(backend, step)
        except StepFailed as error:
            yield step, error


# How long silence may last before it is a hang: from the bytes that a step moves, or from its own earlier times.


# A message costs at least this many seconds on the slowest path that we know: small collectives over sockets.
_SECONDS_A_MESSAGE = 1e-4
# Ungraphed launches that warm up the timed ones, generously (nccl-tests: 5).
_LAUNCH_WARMUP = 10
# A step that took this much longer than the slowest of its kind before would be no measurement anyway.
_MULTIPLE = 20


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds to wait, and the slowest rates in B/s that a message may have.

    Staged PCIe gen 3 gives 3 GB/s, shared by several pairs a part of it; between hosts 1 Gbit Ethernet 0.12 GB/s.
    Opening may start the driver on every GPU, a second each without nvidia-persistenced. Starting NCCL takes 0.7 s on
    4 × H200 [docs/method.md 4.1], and much longer where it first looks for networks. A worker's first step loads code.
    """

    opening_s: float = 120.0
    communicators_s: float = 60.0
    first_s: float = 20.0
    floor_s: float = 5.0
    slowest_rate: float = 1e9
    slowest_network: float = 0.1e9

    def for_step(self, step: Step, known_s: float | None, *, network: bool) -> float:
        """Return the seconds for a step; `known_s` is the longest that its like took before, None at first."""
        rate = self.slowest_network if network else self.slowest_rate
        return self.floor_s + (_expected_s(step, rate) if known_s is None else _MULTIPLE * known_s)


def _expected_s(step: Step, rate: float) -> float:
    messages = step.iterations * (step.warmup + step.batches)
    messages += step.launches + _LAUNCH_WARMUP if step.launches else 0
    messages += 2 * step.singles + _LAUNCH_WARMUP if step.singles else 0  # the untimed ones of its bursts, too
    points = (DataPoint(step.operation, members, step.size_bytes, step.variant) for members in step.groups)
    ranks = len(step.groups[0]) if step.operation.is_collective else 1  # each of them sends the message about once
    if step.variant.covered:  # all members copy, and as much again behind what is timed, perhaps in both directions
        ranks = 2 * len(step.groups[0]) * (2 if step.variant.opposed else 1)
    return messages * (_SECONDS_A_MESSAGE + sum(point.moved_bytes for point in points) * ranks / rate)


Workers_co = TypeVar("Workers_co", covariant=True)


@dataclass(frozen=True)
class OpenWorkers(Generic[Workers_co]):
    """Open workers with torch, or simulated ones, and what is known of their machine, as in `factory.Opened`.

    `worlds` are all ranks of a run with overlap, or those of each arm of a replay. `span_seconds` is how long a load
    runs: in a trial with overlap collective and compute each, in a replay at least. `clock` gives the seconds that a
    run took. `traces`: loads can be traced.
    """

    name: str
    worlds: tuple[Workers_co, ...]
    devices: tuple[Device, ...]
    machine: Machine
    paths: tuple[Path, ...]
    span_seconds: float
    environment: dict[str, str] = field(default_factory=dict)
    health: Callable[[], tuple[Health, ...]] = tuple
    flags: Callable[[tuple[int, ...]], tuple[Flag, ...]] = lambda _members: ()
    close: Callable[[], None] = lambda: None
    clock: Callable[[], float] = time.monotonic
    traces: bool = False
