"""A backend with deterministic times: every link has a rate, every step is remembered, and any step can go wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from collbench.measurement.backends.protocol import Backend, Step, Timing
from collbench.measurement.plan import Plan, StoppingRule, directed_links, unordered_pairs
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import Asked, DataPoint, Device, Path, Run, Skipped
from tests.builders import gpus, run_of

ASKED = Asked(dtype="float32", redop="sum", seed=0, command=())  # with no wish of its own
MIB = 2**20
# No test waits: the deadline is an hour away, or it has passed before the sweep begins.
PATIENT = StoppingRule(
    screening=3, deciding=5, budget_seconds=3600, batch_bytes=64 * MIB, longest_batch_bytes=64 * MIB, rate=1e11
)
HURRIED = replace(PATIENT, budget_seconds=-1)


def plan_for(n: int, sizes: tuple[int, ...] = (MIB, 64 * MIB)) -> Plan:
    """Return the plan of copies on all links and of all-reduces on all pairs."""
    groups = {Work(Operation.CE_WRITE): directed_links(n), Work(Operation.ALLREDUCE): unordered_pairs(n)}
    return Plan(n, groups, dict.fromkeys(groups, sizes), PATIENT.batch_bytes, ASKED)


def empty(count: int, links: Sequence[Path] | None = None) -> Run:
    """Return a run that has just begun."""
    return replace(run_of(gpus(count), [], links), complete=False)


class FakeBackend(Backend):
    """Times any message at `rates` GB/s (by unordered pair, else `gbs`); `on_step(n, step)` may raise at step n.

    `concurrency` gives the share of its rate that a pair keeps while others run; `jitter` multiplies times in turn.
    """

    name = "cuda"

    def __init__(
        self,
        count: int,
        gbs: float = 100.0,
        rates: Mapping[frozenset[int], float] | None = None,
        concurrency: Callable[[frozenset[int]], float] = lambda _: 1.0,
        jitter: Sequence[float] = (1.0,),
        on_step: Callable[[int, Step], None] = lambda _number, _step: None,
    ) -> None:
        self._devices = gpus(count)
        self._gbs, self._rates, self._concurrency = gbs, rates or {}, concurrency
        self._jitter, self._on_step = jitter, on_step
        self.steps: list[Step] = []
        self.reserved: list[int] = []
        self.closed = 0
        self.readied = 0
        self.capacity = 2**40
        self.unreachable: dict[tuple[Operation | int, ...], Skipped] = {}
        self.prepared: tuple[tuple[int, ...], ...] = ()
        self.nodes: tuple[int, ...] = ()

    def devices(self) -> tuple[Device, ...]:
        return self._devices

    def operations(self, variant: Variant) -> tuple[Operation, ...]:
        return (Operation.CE_WRITE, Operation.SM_READ) if variant is not Variant.HOST else (Operation.H2D_CE,)

    def capacity_bytes(self) -> int:
        return self.capacity

    def free_bytes(self) -> tuple[int, ...]:
        return (self.capacity * 3,) * len(self._devices)

    def numa_nodes(self) -> tuple[int, ...]:
        return self.nodes

    def reserve(self, largest_bytes: int) -> None:
        self.reserved.append(largest_bytes)

    def can_run(self, work: Work, members: tuple[int, ...]) -> Skipped | None:
        return self.unreachable.get((work.operation, *members))

    def prepare(self, groups: tuple[tuple[int, ...], ...]) -> None:
        self.prepared = groups

    def ready(self) -> None:
        self.readied += 1

    def close(self) -> None:
        self.closed += 1

    def time(self, step: Step) -> Timing:
        self._on_step(len(self.steps), step)
        self.steps.append(step)
        seconds = tuple(
            tuple(self._batch(step, group, batch) for batch in range(step.batches)) for group in step.groups
        )
        return Timing(seconds, (1e-5,) * len(step.groups) if step.launches else ())

    def _batch(self, step: Step, group: tuple[int, ...], batch: int) -> float:
        pair = frozenset(group)
        share = self._concurrency(pair) if len(step.groups) > 1 else 1.0
        jitter = self._jitter[(len(self.steps) + batch) % len(self._jitter)]
        moved = DataPoint(step.work.operation, group, step.size_bytes, step.work.variant).moved_bytes
        return moved / (self._rates.get(pair, self._gbs) * share * 1e9) * jitter
