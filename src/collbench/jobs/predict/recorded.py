"""A recorded job's step on other links: pauses stay, transfers change (docs/predict.md).

If the record has the beginnings of kernels, it shows how the step responds to longer transfers (responses.py). If not,
it does not show what computes during a transfer, and the step lies between two bounds: it changes by all that transfers
gain or lose, or by nothing as long as compute hides them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from collbench.choose.choice import Members
from collbench.jobs.calls import kernels, matched, pauses_of, shown_phase, step_seconds, transfers
from collbench.jobs.job import Call, Job, Phase
from collbench.jobs.predict.assumptions import OfTime
from collbench.jobs.predict.contention import OverlapCurve, curve_for
from collbench.jobs.predict.predict import Machine
from collbench.jobs.predict.responses import SLACK, Response, Responses, Share, responses
from collbench.jobs.predict.timing import SENT, Evidence, Span, Timings, assumed_of
from collbench.judge.fits import Curve
from collbench.judge.stats import summarize
from collbench.model.errors import UsageError
from collbench.model.operations import Operation, Variant


@dataclass(frozen=True, slots=True)
class Priced:
    """A call's seconds on some links, isolated: least, middle, most; `assumed` is () of what was measured there.

    `concurrent` and `compute` are the factors by which it and compute slow each other down, 1 where not known.
    """

    seconds: Span
    assumed: tuple[OfTime, ...] = ()
    concurrent: float = 1.0
    compute: float = 1.0


class Links:
    """The seconds that a job's calls take on a run's links, given the position of each rank's device."""

    def __init__(self, evidence: Evidence, positions: Mapping[int, int], overlaps: Sequence[OverlapCurve] = ()) -> None:
        """Take a run's evidence, the position of each job rank's device, and factors beside compute."""
        machine = Machine(evidence)
        self._timings = Timings(evidence, machine.band, machine.delta, machine.port)
        self._positions, self._overlaps = positions, overlaps
        self._others = _others(evidence)

    def price(self, job: Job, call: Call) -> Priced | None:
        """Return the seconds of a call; None if no measurement covers it, or its members are unknown."""
        operation, members = call.collective, self._members(job, call)
        if operation is None or members is None or len(members) == 1 or not call.size_bytes:
            return None
        if operation not in SENT:
            curve = self._others.get((operation, members))
            seconds = curve(call.size_bytes) if curve and curve.covers(call.size_bytes) else None
            return None if seconds is None else Priced((seconds, seconds, seconds))
        try:
            timing = self._timings.of(operation, members)
        except UsageError:
            return None  # the page names the calls that stay as they were recorded
        assumed = tuple(assumed_of(timing, [call.size_bytes]))
        slow = curve_for(self._overlaps, operation, members)
        if slow is None:
            return Priced(timing.seconds(call.size_bytes), assumed)
        factors = slow.at(slow.equivalent(operation, call.size_bytes, len(members)))
        return Priced(timing.seconds(call.size_bytes), assumed, factors.collective, factors.compute)

    def _members(self, job: Job, call: Call) -> Members | None:
        group = job.groups[call.group]
        ranks = group.ranks or (tuple(range(job.world_size)) if group.size == job.world_size else ())
        if not ranks or any(rank not in self._positions for rank in ranks):
            return None
        return tuple(sorted(self._positions[rank] for rank in ranks))


def _others(evidence: Evidence) -> dict[tuple[Operation, Members], Curve]:
    """Return the curves of collectives that no other can replace: they are used only on the measured devices.

    Collectives with block sizes of their own are left out, because a record has only their sum.
    """
    points: dict[tuple[Operation, Members], dict[int, float]] = defaultdict(dict)
    for measurement in evidence.run.measured(Variant.PLAIN):
        point = measurement.point
        other = (
            point.operation.is_collective and point.operation not in SENT and not point.operation.collective.irregular
        )
        if other and not (measurement.wrong or measurement.failure) and point.registration is evidence.registration:
            points[point.operation, tuple(sorted(point.members))][point.size_bytes] = summarize(measurement).seconds
    return {key: Curve(sizes) for key, sizes in points.items()}


# The step.


@dataclass(frozen=True, slots=True)
class Sent:
    """One call of a step, in seconds: the pause before it, its transfer as recorded, and on the other links.

    `concurrent` and `compute` as in Priced.
    """

    pause: float
    lane: int
    before: float
    after: Span
    concurrent: float = 1.0
    compute: float = 1.0


@dataclass(frozen=True, slots=True)
class StepBounds:
    """A step in seconds: as recorded, and on the other links at least, as scheduled, and at most.

    `before` and `after` are its transfers one after the other, isolated.
    """

    recorded: float
    step: Span
    before: float
    after: float


def bounds(calls: Sequence[Sent]) -> StepBounds:
    """Return a step's bounds. On the recorded links all three are equal to the recorded step.

    One bound assumes that compute waits for every transfer: the step changes by as much as the transfers do. The other
    assumes that the step hides transfers: it grows only if one group's transfers last longer than the step. The least
    is the smaller of the two. The most is the larger, where hidden transfers also add what compute loses during longer
    ones (a GPU that waits for its host has time for that). No bound falls when links get slower. The middle assumes
    that transfers start with the host's call, one at a time in each group, and that the step ends with the last.
    """
    period = sum(one.pause for one in calls)
    before = sum(one.before for one in calls)
    # If all kernels together last longer than the step, those of several groups ran concurrently. Those of one group
    # never do: if they seem to, their times include something else.
    shrink = min(1.0, period / before) if before else 1.0
    sums: dict[int, float] = defaultdict(float)
    for one in calls:
        sums[one.lane] += one.before
    own = {lane: min(1.0, period / took) if took else 1.0 for lane, took in sums.items()}

    def serial(which: int) -> float:
        return period - before * shrink + sum(one.after[which] for one in calls) * shrink

    def hidden(which: int) -> float:
        lanes: dict[int, float] = defaultdict(float)
        for one in calls:
            lanes[one.lane] += max(_during_compute(one, which), one.after[which]) * own[one.lane]
        return max(period, *lanes.values()) if lanes else period

    def slowed(which: int) -> float:
        lost = sum((one.compute - 1) * max(0.0, one.after[which] - one.before) for one in calls) * shrink
        most = max((one.compute for one in calls), default=1.0) - 1
        return min(lost, most * period)

    ends = [(min(serial(at), hidden(at)), max(serial(at), hidden(at) + slowed(at))) for at in range(3)]
    least, most = ends[0][0], ends[2][1]
    moved = _drained(calls, [one.after[1] * own[one.lane] for one in calls])
    scheduled = period + moved - _drained(calls, [one.before * own[one.lane] for one in calls])
    middle = min(max(scheduled, ends[1][0]), ends[1][1])
    return StepBounds(period, (least, middle, most), before, sum(one.after[1] for one in calls))


def responding(calls: Sequence[Sent], answer: Responses) -> StepBounds:
    """Return a step's bounds if the record shows how it responds to longer transfers.

    If the GPU waits for its host, longer transfers first use up that time; the most assumes that they do not.
    """
    period = sum(one.pause for one in calls)
    ends = (*answer.places[1:], len(calls))
    units = [calls[first:end] for first, end in zip(answer.places, ends, strict=True)]

    def change(which: int) -> float:
        longer = [max(one.after[which] for one in unit) - unit[0].before for unit in units]
        return answer.step(longer, which) - answer.step([0.0] * len(units), which)

    def reached(extra: float) -> float:
        if extra < 0:
            return period if slack > SLACK * period else max(0.0, period + extra)
        return period + max(0.0, extra - slack)

    slack = max(0.0, period - answer.step([0.0] * len(units)))
    extras = [change(which) for which in range(3)]
    middle = reached(extras[1])
    least, most = min(reached(extras[0]), middle), max(middle, period + extras[2], reached(extras[2]))
    before = sum(one.before for one in calls)
    return StepBounds(period, (least, middle, most), before, sum(one.after[1] for one in calls))


def _during_compute(one: Sent, which: int) -> float:
    """Return a transfer's seconds during compute: the recorded time already contains the recorded slowdown."""
    gained = max(0.0, one.after[which] - one.before)
    return one.after[which] + (one.concurrent - 1) * gained


def _drained(calls: Sequence[Sent], seconds: Sequence[float]) -> float:
    """Return how long transfers continue after the host's last call, if each group runs one after the other."""
    now, ends = 0.0, defaultdict[int, float](float)
    for one, took in zip(calls, seconds, strict=True):
        now += one.pause
        ends[one.lane] = max(ends[one.lane], now) + took
    return max(0.0, *(end - now for end in ends.values())) if ends else 0.0


@dataclass(frozen=True, slots=True)
class PredictedJob:
    """A recorded step on other links, of the rank whose step is longest there.

    `kept` are the calls, as indices in the job's table, that no measurement covers: they stay as recorded.
    `calibrated`: recorded times are scaled by the ratio of two measured ones, not replaced. `waited` is, by call, how
    much of a longer transfer delays the kernel after it; {} if the record does not show it.
    """

    rank: int
    bounds: StepBounds
    prices: dict[int, Priced]
    kept: tuple[int, ...]
    calibrated: bool
    waited: dict[int, Share]

    @property
    def assumed(self) -> tuple[tuple[OfTime, ...], ...]:
        """What was assumed of any call, each once."""
        return tuple(dict.fromkeys(one.assumed for one in self.prices.values() if one.assumed))


def predict_job(job: Job, links: Links, recorded: Links | None = None) -> PredictedJob:
    """Return the step of a job on other links. `recorded` are those that it ran on, None if they are not known.

    Raises UsageError if the record does not say how long a step or its transfers took.
    """
    matched_groups = matched(job)
    prices = {number: price for number, call in enumerate(job.calls) if (price := links.price(job, call))}
    olds = {} if recorded is None else {at: price for at in prices if (price := recorded.price(job, job.calls[at]))}
    seen = responses(job)
    best: tuple[float, PredictedJob] | None = None
    for rank in job.ranks:
        phase = shown_phase(rank)
        if phase is None or phase.repetitions < 2 or step_seconds(phase) is None:
            continue
        sent, kept = _sent(job, phase, transfers(matched_groups, rank.rank, phase), prices, olds)
        answer = seen.get(rank.rank)
        its = bounds(sent) if answer is None else responding(sent, answer)
        waited = {} if answer is None else _waited(phase, answer)
        # The others wait for the rank that waits least; without beginnings, for the one whose step gets longest.
        order = its.step[1] if answer is None else sum(one.before for one in sent) - sum(k.took for k in answer.kernels)
        if best is None or order > best[0]:
            best = order, PredictedJob(rank.rank, its, prices, kept, bool(olds), waited)
    if best is None:
        raise UsageError(
            "the job has no step with known pauses to predict: record one that repeats, with 'collbench record'"
        )
    return best[1]


def _waited(phase: Phase, answer: Responses) -> dict[int, Share]:
    """Return by call how much of a longer transfer delays the next kernel, the mean over its positions."""
    by_call: dict[int, list[Response]] = defaultdict(list)
    for index, after in zip(answer.places, (*answer.kernels[1:], answer.kernels[0]), strict=True):
        by_call[phase.positions[index].call].append(after)
    return {
        call: Share(*(fmean(ends) for ends in zip(*((one.share, one.low, one.high) for one in own), strict=True)))
        for call, own in by_call.items()
    }


def _sent(
    job: Job,
    phase: Phase,
    least: NDArray[np.float64],
    prices: Mapping[int, Priced],
    olds: Mapping[int, Priced],
) -> tuple[list[Sent], tuple[int, ...]]:
    """Return a step's calls with their transfers before and after, and which stay as recorded.

    Raises UsageError for a call of unknown length.
    """
    shared = kernels(phase.positions, least)
    sent, kept = [], dict[int, None]()
    for index, (position, pause) in enumerate(zip(phase.positions, pauses_of(phase), strict=True)):
        call, price, old = position.call, prices.get(position.call), olds.get(position.call)
        before = float(shared[index])
        if np.isnan(before):
            if old is None:
                one = job.calls[call]
                raise UsageError(
                    f"the job does not say how long {one.operation} of {one.size_bytes} B took, nor does a run of the "
                    "links that it ran on: add --recorded RUN, or record with --gpu-times"
                )
            before = old.seconds[1]
        after = (before, before, before)
        if price is None:
            kept[call] = None
        elif old is not None:
            # The job's transfers take longer than isolated ones by the same ratio on the other links.
            low, middle, high = (before * seconds / old.seconds[1] for seconds in price.seconds)
            after = low, middle, high
        else:
            after = price.seconds
        factors = (price.concurrent, price.compute) if price is not None else (1.0, 1.0)
        sent.append(Sent(pause, job.calls[call].group, before, after, *factors))
    return sent, tuple(kept)
