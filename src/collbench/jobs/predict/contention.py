"""How a step's transfers and its compute slow each other down, from measured overlaps (docs/method.md 12.1)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from collbench.choose.choice import Members
from collbench.jobs.predict.step import Contention, Group, Transfer
from collbench.jobs.predict.timing import INSTEAD, SENT, Evidence, belongs, positions_in
from collbench.judge.stats import FEWEST_TRIALS
from collbench.model.errors import UsageError
from collbench.model.operations import Operation
from collbench.model.run import Compute, Overlap, Priority, Run
from collbench.overlaps.factors import Slowdown, by_condition, slowdown


@dataclass(frozen=True, eq=False)
class OverlapCurve:
    """Factors of one operation during one kind of compute, over sizes; `points` ascend, and each has an interval.

    `members` are positions in the evidence's run; `unused` counts data points that failed, had wrong data or fewer than
    three trials; `nccl` is the version that was timed, which is torch's.
    """

    source: str
    operation: Operation
    members: Members
    compute: Compute
    points: tuple[Overlap, ...]
    unused: int
    nccl: str

    @property
    def sizes(self) -> tuple[int, int]:
        """The smallest and the largest measured size, bytes."""
        return self.points[0].size_bytes, self.points[-1].size_bytes

    def covers(self, size_bytes: float) -> bool:
        """Return whether a size lies among the measured ones."""
        return self.sizes[0] <= size_bytes <= self.sizes[1]

    def at(self, size_bytes: float) -> Slowdown:
        """Return the factors at a size, none below 1; beyond the measured sizes those of the nearest.

        Beyond the measured sizes their error is unknown, so the upper ends are the highest at any size.
        """
        nearest = min(max(size_bytes, self.sizes[0]), self.sizes[1])
        measured = slowdown(self.points, self.operation, nearest, compute=self.compute)
        assert measured is not None  # noqa: S101  # it is a measured size, or lies between two
        most = measured if self.covers(size_bytes) else self._most
        return Slowdown(
            max(1.0, measured.collective),
            max(1.0, measured.compute),
            max(1.0, measured.collective, most.collective_most),
            max(1.0, measured.compute, most.compute_most),
        )

    def equivalent(self, operation: Operation, size_bytes: float, ranks: int) -> float:
        """Return the size at which the curve's own operation sends as many bytes as another on so many ranks."""
        return size_bytes * operation.busbw_factor(ranks) / self.operation.busbw_factor(ranks)

    @cached_property
    def _most(self) -> Slowdown:
        every = [
            measured
            for one in self.points
            if (measured := slowdown(self.points, self.operation, one.size_bytes, compute=self.compute))
        ]
        collective = max(measured.collective_most for measured in every)
        compute = max(measured.compute_most for measured in every)
        return Slowdown(collective, compute, collective, compute)


@dataclass(frozen=True, slots=True)
class OverlapUse:
    """How a curve was used for a step's messages of one operation on some devices: the ranges of sizes and factors.

    `sizes` are bytes on the curve: half of the message for a gather that borrows the factors of an all-reduce.
    """

    operation: Operation
    members: Members
    curve: OverlapCurve
    sizes: tuple[float, float]
    transfers: tuple[float, float]
    compute: tuple[float, float]

    @property
    def borrowed(self) -> bool:
        """True if this operation was not measured during compute, and another one's factors replace its own."""
        return self.operation is not self.curve.operation

    @property
    def elsewhere(self) -> bool:
        """True if the factors were measured on other devices than these."""
        return set(self.members) != set(self.curve.members)

    @property
    def beyond(self) -> bool:
        """True if a message is smaller or larger than any that was measured."""
        return not all(map(self.curve.covers, self.sizes))


def gather(evidence: Evidence, runs: Sequence[tuple[str, Run]]) -> tuple[OverlapCurve, ...]:
    """Return the curves of runs of `overlap`, each with its file's name, in their order.

    Raises UsageError for a run of another machine or other settings than the evidence's, and for one without a curve.
    """
    gathered: list[OverlapCurve] = []
    for name, run in runs:
        belongs(evidence.name, evidence.run, name, run)
        curves = list(_curves(name, run, evidence.run))
        if not curves:
            titles = ", ".join(operation.collective.title for operation in SENT)
            raise UsageError(
                f"{name} cannot be used to predict: this needs {FEWEST_TRIALS} trials of {titles} at normal "
                "priority and with NCCL's own CTAs: measure with 'collbench overlap'"
            )
        gathered += curves
    return tuple(gathered)


def _curves(name: str, run: Run, base: Run) -> Iterator[OverlapCurve]:
    """Yield a curve for each operation and set of devices, for the first compute that was measured with both."""
    here = positions_in(base, run)
    known: set[tuple[Operation, Members]] = set()
    for condition, ones in by_condition(run.overlaps).items():
        if condition.operation not in SENT or (condition.priority, condition.ctas) != (Priority.NORMAL, None):
            continue
        for members in dict.fromkeys(one.members for one in ones):
            mine = [one for one in ones if one.members == members]
            # With fewer trials a factor has no interval (docs/method.md 8.1): it is no evidence.
            sound = tuple(
                one
                for one in mine
                if not (one.failure or one.wrong or one.wrong_compute) and len(one.trials) >= FEWEST_TRIALS
            )
            positions = tuple(sorted(here[member] for member in members))
            if sound and (condition.operation, positions) not in known:
                known.add((condition.operation, positions))
                unused = len(mine) - len(sound)
                nccl = run.machine.nccl
                yield OverlapCurve(name, condition.operation, positions, condition.compute, sound, unused, nccl)


def curve_for(curves: Sequence[OverlapCurve], operation: Operation, members: Members) -> OverlapCurve | None:
    """Return the best curve: of this operation, then of these devices, then of as many; None if there is none."""
    for other in INSTEAD[operation]:
        alike = [curve for curve in curves if curve.operation is other]
        if alike:
            return min(alike, key=lambda one: (set(one.members) != set(members), len(one.members) != len(members)))
    return None


@dataclass(frozen=True, slots=True)
class Contended:
    """A step's factors, those by the upper ends of their intervals, and where they are from."""

    middle: Contention
    most: Contention
    uses: tuple[OverlapUse, ...]


def contended(
    curves: Sequence[OverlapCurve],
    transfers: Sequence[Transfer],
    seconds: Sequence[float],
    devices: Callable[[Group], Members],
) -> Contended | None:
    """Return how much transfers (of these isolated seconds) and compute slow each other down; None if not measured.

    `devices` are those that run a group's collective. Compute's factor is the mean over the transfers, each counted by
    its seconds.
    """
    known: dict[tuple[Operation, int, Group], tuple[OverlapCurve, float, Slowdown]] = {}
    for transfer in transfers:
        key = transfer.operation, transfer.size_bytes, transfer.group
        if key in known:
            continue
        members = devices(transfer.group)
        curve = curve_for(curves, transfer.operation, members)
        if curve is None:
            return None
        size = curve.equivalent(transfer.operation, transfer.size_bytes, len(members))
        known[key] = curve, size, curve.at(size)
    factors = [known[one.operation, one.size_bytes, one.group][2] for one in transfers]
    compute = _mean([one.compute for one in factors], seconds)
    most = _mean([one.compute_most for one in factors], seconds)
    return Contended(
        Contention(tuple(one.collective for one in factors), compute),
        Contention(tuple(one.collective_most for one in factors), most),
        tuple(_uses(known, devices)),
    )


def _mean(factors: Sequence[float], weights: Sequence[float]) -> float:
    """Return the weighted mean of factors of 1 or more, 1 without any; it never falls when a factor grows."""
    total = sum(weights)
    return 1.0 + sum((one - 1) * weight / total for one, weight in zip(factors, weights, strict=True) if total)


def _uses(
    known: dict[tuple[Operation, int, Group], tuple[OverlapCurve, float, Slowdown]],
    devices: Callable[[Group], Members],
) -> Iterator[OverlapUse]:
    for operation, group in dict.fromkeys((operation, group) for operation, _, group in known):
        mine = [use for (one, _, its), use in known.items() if (one, its) == (operation, group)]
        sizes = [size for _, size, _ in mine]
        slow = [factors for _, _, factors in mine]
        yield OverlapUse(
            operation,
            devices(group),
            mine[0][0],
            (min(sizes), max(sizes)),
            (min(one.collective for one in slow), max(one.collective for one in slow)),
            (min(one.compute for one in slow), max(one.compute for one in slow)),
        )
