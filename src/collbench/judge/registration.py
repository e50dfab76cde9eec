"""Collectives on ordinary memory, registered buffers and symmetric windows; inference's small all-reduces."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import groupby
from statistics import median
from typing import TYPE_CHECKING

from collbench.judge.stats import median_interval, summarize, trial_seconds
from collbench.judge.tiers import tolerance
from collbench.model.operations import Operation, Registration, Variant
from collbench.model.run import Measurement, Run, capabilities
from collbench.model.units import grouped
from collbench.model.values import Positive, Several
from collbench.runfile.codec import build

if TYPE_CHECKING:
    from collbench.judge.tails import Tails


def by_communicator(run: Run) -> dict[tuple[Operation, tuple[int, ...]], list[Measurement]]:
    """Return the collectives of each operation on each set of devices, in the file's order."""
    collectives = (measurement for measurement in run.measurements if measurement.point.operation.is_collective)
    return grouped(((timed.point.operation, timed.point.members), timed) for timed in collectives)


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
        behind = sorted((other for other in self.others if other.behind), key=lambda other: other.ratio)
        return next((other for other in behind if other.kind is Registration.NONE), behind[0] if behind else None)


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
    slower = {other.kind for other in others if other.behind}
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
        timed for timed in run.measured(variant) if (timed.point.operation, timed.point.members) == (operation, members)
    ]
    made: dict[int, dict[Registration, Measurement]] = {}
    for timed in sorted(
        measurements, key=lambda timed: (timed.point.size_bytes, kinds.index(timed.point.registration))
    ):
        made.setdefault(timed.point.size_bytes, {})[timed.point.registration] = timed
    return made


def ranges(all_winners: Sequence[Winner]) -> Iterator[tuple[Winner, ...]]:
    """Yield groups of neighboring sizes at which the same memory is fastest."""
    for _, same in groupby(all_winners, key=lambda at_size: at_size.fastest):
        yield tuple(same)


# Small all-reduces as inference sends them: for a token, and as vLLM's own are published.

# A decode batch of one token of hidden size 8192 in bfloat16, as of Llama-70B.
TOKEN_BYTES, TOKEN_HIDDEN = 16 * 2**10, 8192
# With tensor parallelism a layer has one after attention, and one after the MLP.
ALLREDUCES_A_LAYER = 2


@dataclass(frozen=True, slots=True)
class Timed:
    """An all-reduce of one size on one kind of memory: seconds in a CUDA graph, and single launches if there are any.

    A graph's figure is the median of the trials.
    """

    size_bytes: int
    kind: Registration
    seconds: float
    launches: Tails | None

    def launch_at(self, percent: int) -> float | None:
        """Return a percentile of the single launches' seconds, None if they are too few."""
        spread = self.launches and (self.launches.transfer or self.launches.waited)
        return spread.at(percent) if spread else None


@dataclass(frozen=True, slots=True)
class CustomAllReduce:
    """Published times of vLLM's custom all-reduce on one kind of GPU; `gpus` is a regular expression for its name."""

    gpus: str
    machine: str
    ranks: Several
    vllm: str
    microseconds: tuple[Positive, ...]  # at each of the file's sizes


@dataclass(frozen=True, slots=True)
class PublishedTimes:
    """The file of these times (benchmarks/published_latencies.py makes it, and says which machines it leaves out)."""

    conditions: str
    source: str
    license: str
    sizes: tuple[int, ...]
    figures: tuple[CustomAllReduce, ...]


@cache
def published() -> PublishedTimes:
    """Return the shipped file. Raises ValueError for a file that is none: it is a part of the program."""
    text = resources.files("collbench.judge").joinpath("custom_all_reduce.json").read_text(encoding="utf-8")
    file: PublishedTimes = build(PublishedTimes, json.loads(text), "custom_all_reduce.json")
    return file


@dataclass(frozen=True, slots=True)
class SmallAllreduces:
    """What a run says about small all-reduces of one number of ranks, on the devices `members`.

    `custom` are vLLM's published times on as many GPUs of this kind, None if there are none. `token_seconds` is what
    the all-reduces of a token take, by kind of memory; empty if its size was not measured.
    """

    members: tuple[int, ...]
    timed: tuple[Timed, ...]  # by size, then by kind
    winners: tuple[Winner, ...]
    token_seconds: dict[Registration, float]
    custom: CustomAllReduce | None

    @property
    def kinds(self) -> tuple[Registration, ...]:
        """The kinds of memory that were measured."""
        return tuple(kind for kind in Registration if any(allreduce.kind is kind for allreduce in self.timed))

    def at(self, size_bytes: int) -> dict[Registration, Timed]:
        """Return what was measured at one size."""
        return {allreduce.kind: allreduce for allreduce in self.timed if allreduce.size_bytes == size_bytes}

    def won(self, size_bytes: int) -> tuple[Registration, ...]:
        """Return the kinds that are fastest at one size; none where it was not measured on two."""
        return next((winner.fastest for winner in self.winners if winner.size_bytes == size_bytes), ())

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes in bytes that were measured, ascending."""
        return tuple(sorted({allreduce.size_bytes for allreduce in self.timed}))

    def custom_seconds(self, size_bytes: int) -> float | None:
        """Return vLLM's published time at one size, None if there is none."""
        if self.custom is None or size_bytes not in published().sizes:
            return None
        return self.custom.microseconds[published().sizes.index(size_bytes)] * 1e-6


def small_allreduces(run: Run) -> tuple[SmallAllreduces, ...]:
    """Return what a run of `latency --collectives` says, for each number of ranks, ascending."""
    from collbench.judge.tails import tails  # late: few runs have single launches

    launches = {tail.point: tail for tail in tails(run)}
    calls = run.settings.layers * ALLREDUCES_A_LAYER
    every = []
    for members in sorted({members for _, members in by_communicator(run)}, key=len):
        timed = tuple(
            Timed(size, kind, summarize(measurement).seconds, launches.get(measurement.point))
            for size, by_kind in side_by_side(run, Operation.ALLREDUCE, members, Variant.PLAIN).items()
            for kind, measurement in by_kind.items()
        )
        token = {call.kind: call.seconds * calls for call in timed if call.size_bytes == TOKEN_BYTES}
        won = winners(run, Operation.ALLREDUCE, members, Variant.PLAIN)
        if timed:
            every.append(SmallAllreduces(members, timed, won, token, next(_alike(run, members), None)))
    return tuple(every)


def _alike(run: Run, members: tuple[int, ...]) -> Iterator[CustomAllReduce]:
    """Yield the published times of such devices, of no simulated ones."""
    names = {run.devices[member].name for member in members}
    if len(names) == 1 and not capabilities(run.backend).simulated:
        (name,) = names
        yield from (
            figure for figure in published().figures if figure.ranks == len(members) and re.search(figure.gpus, name)
        )
