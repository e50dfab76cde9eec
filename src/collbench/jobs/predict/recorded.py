"""How much longer a recorded job's step takes on other links: the pauses stay, each call's time changes.

A record does not show which transfers compute waits for, so the change is a band, from full overlap with compute to
none, and an estimate within it (docs/predict.md, Method).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import floor
from statistics import median

from collbench.jobs.calls import common, pauses_of, shown_phase, step_seconds
from collbench.jobs.job import MICRO, MIN_COVERED, Call, Job, Phase
from collbench.jobs.predict.links import Links, NoEvidence, Price
from collbench.jobs.predict.network import SHARE, Span
from collbench.model.errors import UsageError
from collbench.model.run import Device
from collbench.model.units import grouped

# The share of their change that messages of activations add to a step; three tensor-parallel jobs on H200 added 0.53,
# 0.82 and 0.82, one on H100, where the host limits the step, 1.34 [benchmarks/results/2026-11-29-extra-time].
WAITED = 0.75
_TINY = 0.01  # of a group's largest message
# The longest pause of a group of activations, as a share of a step: above two thirds, the larger half of a layer, where
# the record shows a layer as a step. Kept tensor-parallel jobs have at most 0.21, DDP of six equal buckets has 0.84
# [benchmarks/results/2026-11-26-2xh100-jobs].
_MOST_PAUSE = 0.7
# A host that runs ahead of its GPU makes calls whose kernels begin this share of a step later. In five jobs that the
# GPU limited the median call was 0.35 to 0.6 of a step early, in those that a host limited at most 0.03
# [benchmarks/results/2026-11-28-2xh100-jobs].
_AHEAD = 0.1
# The mean error of the estimate on that many recorded jobs without P2P, ms [benchmarks/results/2026-11-29-extra-time].
MEAN_ERROR_MS, JOBS = 3.0, 13


@dataclass(frozen=True, slots=True)
class PlacedJob:
    """The links between the devices of a job's ranks; `positions` are the ranks' devices in the run."""

    links: Links
    positions: Mapping[int, int]

    @property
    def devices(self) -> tuple[Device, ...]:
        """The ranks' devices, in the order of the run."""
        return tuple(self.links.run.devices[position] for position in sorted(self.positions.values()))

    def price(self, job: Job, call: Call) -> Price | None:
        """Return the isolated seconds of a call; None if no measurement covers it, or its members are unknown."""
        group = job.groups[call.group]
        ranks = group.ranks or (tuple(range(job.world_size)) if group.size == job.world_size else ())
        if call.collective is None or not call.size_bytes or len(ranks) < 2 or not set(ranks) <= self.positions.keys():
            return None
        try:
            members = tuple(sorted(self.positions[rank] for rank in ranks))
            return self.links.price(call.collective, call.size_bytes, members)
        except NoEvidence:
            return None  # the page names the calls that stay as they were recorded


@dataclass(frozen=True, slots=True)
class Sent:
    """One call of a step: the pause before it, its group, its bytes, and its isolated seconds on both links."""

    pause: float
    group: int
    size_bytes: int
    before: float
    after: float


def activations(calls: Sequence[Sent]) -> frozenset[int]:
    """Return the groups that send activations: several messages, all of one size except tiny ones, such as a loss.

    The sizes of parameters and gradients differ: of layers and embeddings, of full buckets and the last one. Where all
    buckets are equal, a pause tells them apart: every layer sends activations, forwards and backwards, and gradients
    are sent only backwards.
    """
    period = sum(call.pause for call in calls)
    sizes, begins = defaultdict[int, list[int]](list), defaultdict[int, list[float]](list)
    for call, begin in zip(calls, accumulate(call.pause for call in calls), strict=True):
        sizes[call.group].append(call.size_bytes)
        begins[call.group].append(begin)
    return frozenset(
        group
        for group, own in sizes.items()
        if _several_of_one_size(own) and _longest_pause(begins[group], period) <= _MOST_PAUSE * period
    )


def _several_of_one_size(sizes: Sequence[int]) -> bool:
    large = [size for size in sizes if size >= _TINY * max(sizes)]
    return len(large) > 1 and len({*large}) == 1


def _longest_pause(begins: Sequence[float], period: float) -> float:
    """Return the longest time from one of these moments to the next, of a step that repeats after `period`."""
    return max(after - before for before, after in pairwise([*begins, begins[0] + period]))


def limited_by_gpu(phase: Phase) -> bool:
    """Return whether the GPU, not the host, limits a step: its calls' kernels begin long after the calls.

    False, too, where the record does not have both times.
    """
    ahead = [
        begin - called
        for sample in phase.samples
        if sample.gpu_starts
        for called, begin in zip(sample.starts, sample.gpu_starts, strict=True)
        if begin
    ]
    seconds = step_seconds(phase)
    return bool(ahead) and seconds is not None and median(ahead) * MICRO > _AHEAD * seconds


def change(calls: Sequence[Sent], *, gpu_limits: bool = False) -> Span:
    """Return the seconds by which a step of these calls gets longer: with full overlap, the estimate, without overlap.

    With full overlap a step gets longer only if a group's transfers outlast it. The estimate goes by group: compute
    waits for most activations. If the GPU limits the step, messages of parameters and gradients add a share of their
    change. Else they overlap compute until the host's last call, and the step ends with the last of them.
    """
    period, waiting = sum(call.pause for call in calls), activations(calls)
    groups = grouped((call.group, call) for call in calls)
    serial = sum(call.after - call.before for call in calls)
    outlasting = max(
        sum(call.after for call in own) - max(period, sum(call.before for call in own)) for own in groups.values()
    )
    waited = sum(call.after - call.before for call in calls if call.group in waiting)
    if gpu_limits:
        expected = WAITED * waited + SHARE * (serial - waited)
    else:
        before, after = (
            [0.0 if call.group in waiting else took for call, took in zip(calls, seconds, strict=True)]
            for seconds in ([call.before for call in calls], [call.after for call in calls])
        )
        expected = WAITED * waited + _drained(calls, after) - _drained(calls, before)
    least = max(0.0, outlasting) if serial > 0 else max(serial, -period)
    most = max(least, serial, outlasting, 0.0)
    return least, min(max(expected, least), most), most


def _drained(calls: Sequence[Sent], seconds: Sequence[float]) -> float:
    """Return how long transfers go on after the host's last call, if each group sends one at a time."""
    now, ends = 0.0, defaultdict[int, float](float)
    for call, took in zip(calls, seconds, strict=True):
        now += call.pause
        ends[call.group] = max(ends[call.group], now) + took
    return max(0.0, *(end - now for end in ends.values()))


@dataclass(frozen=True, slots=True)
class PredictedJob:
    """A recorded step on other links, of the rank whose step changes most.

    `step` are its recorded seconds, `change` the seconds by which it gets longer. `gpu_limits` says that its host runs
    ahead of its GPU. `waiting` are the groups whose messages are taken for activations. `prices` are each call's on the
    links that it was recorded on and on the others, by index in the job's table; the calls `kept` are in no run.
    `covered` is the share of the step's bytes that have prices. `here` are the others, `recorded` those that the job
    used.
    """

    rank: int
    step: float
    change: Span
    gpu_limits: bool
    waiting: frozenset[int]
    prices: dict[int, tuple[Price, Price]]
    kept: tuple[int, ...]
    covered: float
    here: PlacedJob
    recorded: PlacedJob

    @property
    def percent(self) -> int:
        """The share of the step's bytes that the runs cover, in whole percent; 100 only for all."""
        return floor(100 * self.covered)

    @property
    def same_figures(self) -> bool:
        """Whether the same measurements stand for both links, so that nothing can change."""
        same_links = self.here.links.run == self.recorded.links.run and self.here.positions == self.recorded.positions
        return same_links and all(before == after for before, after in self.prices.values())


def predict_job(job: Job, new: PlacedJob, recorded: PlacedJob) -> PredictedJob:
    """Return the change of a job's step from the links that it was recorded on to the new ones.

    Raises UsageError if the record has no step with known pauses, or the runs cover too few of a step's bytes: calls
    that no run covers are assumed not to change, so a step of many of them cannot be predicted.
    """
    both = {at: (recorded.price(job, call), new.price(job, call)) for at, call in enumerate(job.calls)}
    prices = {at: (before, after) for at, (before, after) in both.items() if before is not None and after is not None}
    seconds = {at: (before.seconds, after.seconds) for at, (before, after) in prices.items()}
    repetitions = common(job)
    found: list[PredictedJob] = []
    for rank in job.ranks:
        phase = shown_phase(rank)
        step = None if phase is None else step_seconds(phase, repetitions)
        if phase is None or phase.repetitions < 2 or step is None:
            continue
        numbers = [position.call for position in phase.positions]
        calls = [
            Sent(pause, job.calls[at].group, job.calls[at].size_bytes, *seconds.get(at, (0.0, 0.0)))
            for at, pause in zip(numbers, pauses_of(phase, step), strict=True)
        ]
        kept = tuple(dict.fromkeys(at for at in numbers if at not in prices))
        used = {at: prices[at] for at in dict.fromkeys(numbers) if at in prices}
        sent = [(job.calls[at].size_bytes, at in prices) for at in numbers if job.groups[job.calls[at].group].size != 1]
        covered = sum(size for size, known in sent if known) / max(1, sum(size for size, _ in sent))
        limits, waiting = limited_by_gpu(phase), activations(calls)
        longer = change(calls, gpu_limits=limits)
        found.append(PredictedJob(rank.rank, step, longer, limits, waiting, used, kept, covered, new, recorded))
    if not found:
        raise UsageError(
            "the job has no step with known pauses to predict: record one that repeats, with 'collbench record'"
        )
    least = min(found, key=lambda prediction: prediction.covered)
    if least.covered < MIN_COVERED:
        raise UsageError(
            f"the runs cover {least.percent}% of the bytes of the job's step (rank {least.rank}) on both links, which "
            "says too little to predict it: measure the collectives that it sends, on its devices and at its sizes"
        )
    return max(found, key=lambda prediction: abs(prediction.change[1]))
