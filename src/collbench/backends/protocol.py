"""What a backend is: devices, and raw seconds for a step. It never computes a bandwidth and never decides."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from collbench.errors import StepFailed
from collbench.model import Device, Refusal
from collbench.operations import Operation, Variant, Work
from collbench.units import fixed


@dataclass(frozen=True, slots=True)
class Step:
    """One visit's work: the same operation and size on disjoint groups of devices at the same time.

    `groups` are members as in `model.Variant`. `iterations` per block (accesses of a pointer chase), `blocks`
    timed blocks, `warmup` untimed blocks first. `launches` is how many ungraphed launches of a collective to time
    beside (0: none). `verify` False leaves the data of collectives unchecked. `numa_node` as in `operations.Work`.
    """

    operation: Operation
    groups: tuple[tuple[int, ...], ...]
    size_bytes: int
    iterations: int
    blocks: int
    warmup: int = 1
    dtype: str = "float32"
    redop: str = "sum"
    root: int = 0
    launches: int = 0
    variant: Variant = Variant.PLAIN
    verify: bool = True
    numa_node: int | None = None

    @property
    def work(self) -> Work:
        """The operation and how it runs."""
        return Work(self.operation, self.variant, self.numa_node)


@dataclass(frozen=True, slots=True)
class Coverage:
    """Bytes that a step's blocks delivered to a group, untimed ones too, and how many of them were compared there."""

    moved: int
    verified: int


@dataclass(frozen=True, slots=True)
class Timing:
    """Raw seconds per iteration: `seconds[g][b]` for group g and block b, the maximum over a group's ranks.

    `launch_seconds[g]` is the launch loop's, empty when it was not asked for. Wrong data raised; `coverage[g]` says how
    much was compared, empty where nobody counts.
    """

    seconds: tuple[tuple[float, ...], ...]
    launch_seconds: tuple[float, ...] = ()
    coverage: tuple[Coverage, ...] = ()

    def region_seconds(self, step: Step) -> float:
        """Return how long the step's timed blocks took; groups that ran at once count once."""
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
        """Return each device's free memory in bytes, by position; empty where devices share the machine's."""

    def numa_nodes(self) -> tuple[int, ...]:
        """Return the host's NUMA nodes between which host copies may differ; empty where there are none to compare."""

    def reserve(self, largest_bytes: int) -> None:
        """Make room for messages of up to `largest_bytes`; called once, before the first step."""

    def can_run(self, work: Work, members: tuple[int, ...]) -> Refusal | None:
        """Return None where these devices can do this copy or chase, else the reason why they cannot."""

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
    """Time a step of either kind. Raises StepFailed where it costs its cells only."""
    found = sound(backend.time_collective(step) if step.operation.is_collective else backend.time_copies(step))
    if isinstance(found, StepFailed):
        raise found
    return found


def sound(outcome: Timing | StepFailed) -> Timing | StepFailed:
    """Return what became of a step: a failure where a block took no time, which no clock that runs gives."""
    if isinstance(outcome, StepFailed):
        return outcome
    least = min(seconds for blocks in outcome.seconds for seconds in blocks)
    if least > 0:
        return outcome
    return StepFailed(f"the clock stood still or ran back: a timed block took {fixed(least)} s; measure again")


def time_each(backend: Backend, steps: Iterable[Step]) -> Iterator[tuple[Step, Timing | StepFailed]]:
    """Time steps one by one: what `time_steps` means for a backend that gains nothing from knowing the next."""
    for step in steps:
        try:
            yield step, time_step(backend, step)
        except StepFailed as error:
            yield step, error
