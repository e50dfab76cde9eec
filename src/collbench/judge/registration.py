"""Registered memory: the same collective on ordinary memory, registered buffers and symmetric windows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import median

from collbench.judge.stats import median_interval, trial_seconds
from collbench.judge.tiers import tolerance
from collbench.model.operations import Operation, Registration, Variant
from collbench.model.run import Measurement, Run


def kinds_of(run: Run) -> tuple[Registration, ...]:
    """Return the kinds of memory that the run's collectives were timed on."""
    kinds = {one.point.registration for one in run.measurements if one.point.operation.is_collective}
    return tuple(kind for kind in Registration if kind in kinds)


def ordinary(run: Run) -> Run:
    """Return the run with only its collectives on ordinary memory, by which machines are judged and GPUs chosen.

    If it has none of these, it returns those on the first other kind of memory.
    """
    kinds = kinds_of(run)
    return run if kinds in ((), (Registration.NONE,)) else on_memory(run, kinds[0])


def on_memory(run: Run, kind: Registration) -> Run:
    """Return the run with only its collectives on one kind of memory, as if that were ordinary."""
    kept = (
        replace(one, point=replace(one.point, registration=Registration.NONE))
        for one in run.measurements
        if one.point.registration is kind or not one.point.operation.is_collective
    )
    return replace(run, measurements=list(kept))


@dataclass(frozen=True, slots=True)
class Slower:
    """How many times as long a collective takes on this memory as on the fastest, and the ratio's 95% interval.

    The interval is None below three trials of both.
    """

    kind: Registration
    ratio: float
    interval: tuple[float, float] | None
    behind: bool  # significantly, and by more than δ


@dataclass(frozen=True, slots=True)
class Winner:
    """On which memory a collective is fastest at one size, one kind or several that tie. `others`: all but the best."""

    size_bytes: int
    fastest: tuple[Registration, ...]
    others: tuple[Slower, ...]

    @property
    def gain(self) -> Slower | None:
        """The gain over ordinary memory, or over the next kind if ordinary memory is fastest; None if all tie."""
        behind = sorted((one for one in self.others if one.behind), key=lambda one: one.ratio)
        return next((one for one in behind if one.kind is Registration.NONE), behind[0] if behind else None)


def winner(size_bytes: int, trials: Mapping[Registration, Sequence[float]]) -> Winner:
    """Return which memory is fastest, from each one's seconds by trial, in the order of the passes.

    Trials of the same pass are compared with each other, because a disturbance affects a whole pass.
    """
    best = min(trials, key=lambda kind: median(trials[kind]))
    others = []
    for kind in trials:
        if kind is not best:
            # Later trials of one have no partner.
            ratios = [own / least for own, least in zip(trials[kind], trials[best], strict=False)]
            ratio, interval = median(ratios), median_interval(ratios)
            behind = interval is not None and interval[0] > 1 and ratio > 1 + tolerance(size_bytes)
            others.append(Slower(kind, ratio, interval, behind))
    slower = {one.kind for one in others if one.behind}
    return Winner(size_bytes, tuple(kind for kind in trials if kind not in slower), tuple(others))


def winners(run: Run, operation: Operation, members: tuple[int, ...], variant: Variant) -> tuple[Winner, ...]:
    """Return the fastest memory at each size at which a communicator used several kinds, ascending."""
    return tuple(
        winner(size, {kind: trial_seconds(measurement) for kind, measurement in kinds.items()})
        for size, kinds in side_by_side(run, operation, members, variant).items()
        if len(kinds) > 1
    )


def side_by_side(
    run: Run, operation: Operation, members: tuple[int, ...], variant: Variant
) -> dict[int, dict[Registration, Measurement]]:
    """Return a communicator's measurements by size, ascending, and by kind of memory."""
    kinds = tuple(Registration)
    measurements = [
        one for one in run.measured(variant) if (one.point.operation, one.point.members) == (operation, members)
    ]
    made: dict[int, dict[Registration, Measurement]] = {}
    for one in sorted(measurements, key=lambda one: (one.point.size_bytes, kinds.index(one.point.registration))):
        made.setdefault(one.point.size_bytes, {})[one.point.registration] = one
    return made


def ranges(all_winners: Sequence[Winner]) -> Iterator[tuple[Winner, ...]]:
    """Yield groups of neighboring sizes at which the same memory is fastest."""
    for _, same in groupby(all_winners, key=lambda one: one.fastest):
        yield tuple(same)
