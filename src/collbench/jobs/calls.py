"""Reports on a recorded job: each call's transfer and waiting, and which rank the others wait for. Pure.

A kernel of a collective ends when the last rank has arrived and the data has moved. So the shortest duration over the
ranks is the transfer, and the rest of a rank's own duration is waiting (docs/job-page.md).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from collbench.jobs.exposed import Exposure, exposure, pieces
from collbench.jobs.job import MICRO, Call, Job, JobRank, Phase, Position, Sample, Unknown
from collbench.judge.tails import Lateness, after_others, lateness, quantile_ranks
from collbench.model.units import grouped

if TYPE_CHECKING:
    from collbench.jobs.predict.recorded import PredictedJob

Values = NDArray[np.float64]
Places = NDArray[np.intp]

# The kernels of one call do not end at once: of 1,355 calls in kept traces, nine of ten end within 5 µs of the usual
# difference between two ranks.
_RESOLVED_SECONDS = 5e-6
_NONE = Phase(())


def shown_phase(rank: JobRank) -> Phase | None:
    """Return the step, else the longest sequence of calls; None of a rank without calls."""
    return rank.step or max(rank.phases, key=lambda phase: len(phase.positions), default=None)


@dataclass(frozen=True, slots=True)
class MatchedGroup:
    """The collectives of one group in a step, matched over its ranks: the k-th on one is the k-th on each.

    `ranks` are job ranks, `places` the positions in each one's phase, shape (ranks, calls). `times` are seconds of each
    rank's kernels, (ranks, repetitions, calls), `moving` those of the transfer, (repetitions, calls), NaN if unknown.
    `judged` are the calls to which a rank can be late: those with known kernels, except rooted ones, to which ranks
    come at different times by design, and calls sent together with the one before. `whole`: all ranks of the group were
    recorded.
    """

    group: int
    ranks: tuple[int, ...]
    places: Places
    times: Values
    moving: Values
    judged: Places
    whole: bool


@dataclass(frozen=True, slots=True)
class LateRank:
    """A rank that comes late to a group's collectives: by how much, and in which share of `seen` calls it came last.

    `mean` are the seconds by which it comes after the median of the others, over the `calls` of the usual step: a few
    long delays make most of it; `lateness` is the median call's. `waits` are the seconds of a step that the others wait
    for it in their kernels.
    """

    rank: int
    group: int
    lateness: Lateness
    last: float
    seen: int
    calls: int
    mean: float
    waits: float


@dataclass(frozen=True, slots=True)
class Turn:
    """A rank for which the others waited in so many of the counted steps, and the median seconds of these waits."""

    rank: int
    steps: int
    waits: float


@dataclass(frozen=True, slots=True)
class Row:
    """Equal calls of a step. Seconds are of one call, the mean of these calls in the usual repetition: `kernel` of the
    rank shown, waiting included; `transfer` without.

    `bounded`: not all ranks of the group are known, so `transfer` may include waiting. `busbw` in GB/s. `alone` are
    seconds of the same call measured in isolation. None: unknown.
    """

    call: int
    count: int
    kernel: float | None
    exposed: float | None  # of `kernel`: nothing was computed meanwhile
    exposed_waiting: float | None  # of `exposed`: the rest is transfer
    transfer: float | None
    bounded: bool
    busbw: float | None
    alone: float | None


@dataclass(frozen=True, slots=True)
class RankRow:
    """One rank's seconds: from step to step, in kernels of communication, and of these in waiting for other ranks.

    `last` is the share of calls to which it came last, of those to which a rank can be late. None: unknown. `calls` are
    those of one step.
    """

    rank: int
    calls: int
    repetitions: int
    step: float | None
    kernels: float | None
    waiting: float | None
    last: float | None
    ending: str
    dropped: int


@dataclass(frozen=True, slots=True)
class Report:
    """The step of a job as rank `rank` sent it. `rows` has each call once, with its count in the step.

    `late` are the ranks that are significantly late, the costliest first; if none is, `turns` has those that are waited
    for in some steps. `counted` repetitions are what figures are medians of; `late_known`: lateness could be judged.
    `compared_with` are the names of the runs that timed calls in isolation; `elsewhere`: on which GPUs, if not known to
    be the job's machine; `compared_simulated`: those runs were simulated; `other_variables`: of NCCL, with the values
    that the job and the runs had. `slower` is the step on the slowest set of as many devices that these runs have;
    None: it cannot be said.
    """

    job: Job
    rank: int
    phase: Phase
    repeats: bool
    counted: int
    rows: tuple[Row, ...]
    ranks: tuple[RankRow, ...]
    gpu: tuple[Exposure, ...]
    late: tuple[LateRank, ...]
    late_known: bool
    turns: tuple[Turn, ...] = ()
    compared_with: tuple[str, ...] = ()
    elsewhere: str = ""
    compared_simulated: bool = False
    other_variables: tuple[str, ...] = ()
    slower: PredictedJob | None = None

    @property
    def mine(self) -> RankRow:
        """The row of the rank that is shown."""
        return next(row for row in self.ranks if row.rank == self.rank)

    @property
    def others_differ(self) -> int:
        """How many ranks have other calls in their step than the one that is shown."""

        def likeness(phase: Phase) -> list[tuple[str, int, str]]:
            return [(call.operation, call.size_bytes, call.dtype) for call in self.job.called(phase)]

        wanted = likeness(self.phase)
        return sum(likeness(phase) != wanted for phase in filter(None, map(shown_phase, self.job.ranks)))


def busbw_gbs(job: Job, call: Call, seconds: float | None) -> float | None:
    """Return a call's bus bandwidth in GB/s, of a message its rate; None where its time or its bytes are unknown."""
    size, collective = job.groups[call.group].size, call.collective
    if not (seconds and size and call.size_bytes):
        return None
    factor = collective.busbw_factor(size) if collective is not None and size > 1 else 1.0
    return call.size_bytes * factor / seconds / 1e9


def report(job: Job, rank: int | None = None, alone: Mapping[int, float] | None = None) -> Report | None:
    """Return the report on a rank's step, by default of the lowest recorded rank; None if the rank sent nothing.

    `alone` are seconds by index in the job's table of calls.
    """
    phases = {job_rank.rank: phase for job_rank in job.ranks if (phase := shown_phase(job_rank)) is not None}
    chosen = min(phases, default=None) if rank is None else rank
    if chosen is None or chosen not in phases:
        return None
    phase, repetitions = phases[chosen], common(job)
    groups = matched(job, repetitions)
    times = _kernel_times(phase, repetitions)
    moving, whole = _moving(groups, chosen, times)
    times = np.where(np.isnan(moving), np.nan, times)  # both are medians over the same repetitions
    exposed, waiting = (_sampled(phase, repetitions, field, zeros=True) for field in ("exposed", "exposed_waiting"))
    exposed = np.minimum(exposed, times[: len(exposed)])
    waiting = np.minimum(waiting, exposed)

    def row(call: int, indices: Sequence[int]) -> Row:
        at = list(indices)
        kernel, transfer = _usual(times[:, at]), _usual(moving[:, at])
        waits = _usual(waiting[:, at]) if whole[at].all() else None
        if waits is not None and kernel is not None and transfer is not None:
            waits = min(waits, kernel - transfer)  # each is a median of its own, of steps that differ
        return Row(
            call=call,
            count=len(indices),
            kernel=kernel,
            exposed=_usual(exposed[:, at]),
            exposed_waiting=waits,
            transfer=transfer,
            bounded=not whole[at].all(),
            busbw=busbw_gbs(job, job.calls[call], transfer),
            alone=(alone or {}).get(call),
        )

    rank_rows = tuple(
        _rank_row(job, job_rank, phases.get(job_rank.rank), groups, repetitions) for job_rank in job.ranks
    )
    late = [_within(late_rank, group.ranks, rank_rows) for group in groups for late_rank in _late(group)]
    passed = (exposure(job_rank, repetitions, row.waiting) for job_rank, row in zip(job.ranks, rank_rows, strict=True))
    return Report(
        job=job,
        rank=chosen,
        phase=phase,
        repeats=job.steps.source is not None,
        counted=len(repetitions),
        rows=tuple(row(call, indices) for call, indices in _equal(job, phase).items()),
        ranks=rank_rows,
        gpu=tuple(exposed for exposed in passed if exposed is not None),
        late=tuple(sorted(late, key=lambda late_rank: (-late_rank.waits, late_rank.rank))),
        late_known=any(len(group.judged) for group in groups),
        turns=() if late or len(groups) != 1 or not groups[0].whole else _turns(groups[0]),
    )


def step_seconds(phase: Phase, repetitions: Collection[int] = ()) -> float | None:
    """Return the median seconds from one step to the next, else the sum of the median pauses; None if unknown.

    It is over those `repetitions` of which the rank knows them; without any, over all of its own.
    """
    lasted = {sample.repetition: sample.step for sample in phase.samples if sample.step}
    steps = [lasted[repetition] for repetition in lasted.keys() & repetitions or _settled(lasted)]
    pauses = [position.pause for position in phase.positions if position.pause is not None]
    total = median(steps) if steps else sum(pauses) if len(pauses) == len(phase.positions) else 0.0
    return total * MICRO if math.isfinite(total) and total > 0 else None


def _settled(repetitions: Collection[int]) -> list[int]:
    """Return the repetitions without the first one, in which ranks wait for one another, if there are others."""
    return sorted({*repetitions} - {0} or repetitions)


def common(job: Job) -> tuple[int, ...]:
    """Return the repetitions over which all figures are medians: all ranks kept them, and know how long they took.

    If no length is known, none need be.
    """
    return tuple(_settled(_kept(job, lambda sample: sample.step > 0) or _kept(job)))


def _kept(job: Job, wanted: Callable[[Sample], bool] = lambda _: True) -> set[int]:
    """Return the repetitions of which all ranks kept a sample that is wanted."""
    phases = [phase for rank in job.ranks if (phase := shown_phase(rank))]
    return set.intersection(
        *({sample.repetition for sample in phase.samples if wanted(sample)} for phase in phases or [_NONE])
    )


def _sampled(phase: Phase, repetitions: Sequence[int], field: str, *, zeros: bool = False) -> Values:
    """Return seconds of each call in these repetitions, NaN where unknown: shape (repetitions, calls).

    `zeros`: a time of 0 is known.
    """
    own = {sample.repetition: sample for sample in phase.samples}
    rows = [getattr(own[repetition], field) or (np.nan,) * len(phase.positions) for repetition in repetitions]
    values = np.array(rows, dtype=float).reshape(len(repetitions), len(phase.positions))
    return np.where(np.isfinite(values) & ((values > 0) | zeros), values, np.nan) * MICRO


def _kernel_times(phase: Phase, repetitions: Sequence[int]) -> Values:
    """Return the seconds of each kernel, (repetitions, calls); the medians of all as one repetition if none is kept."""
    times = _sampled(phase, repetitions, "gpu")
    if not np.isnan(times).all() and len(times):
        return times
    medians = [position.gpu or 0.0 for position in phase.positions]
    values = np.array([medians or []])
    values = np.where(np.isfinite(values) & (values > 0), values, np.nan) * MICRO
    return np.repeat(values, max(1, len(repetitions)), axis=0)


def pauses_of(phase: Phase, step: float | None) -> list[float]:
    """Return the seconds before each call of a usual step, which add up to `step`; zeros if they are unknown.

    The medians of the host's pauses do not add up to it: the host may run ahead of the GPU, and each is a median of its
    own.
    """
    medians = [max(0.0, position.pause or 0.0) for position in phase.positions]
    total = sum(medians)
    return [pause * step / total for pause in medians] if step is not None and total > 0 else [0.0] * len(medians)


def kernels(phase: Phase, seconds: Values) -> Values:
    """Return the seconds of each repetition from (repetitions, calls); of calls got together the longest counts."""
    spent = np.zeros(len(seconds))
    for unit in phase.units:
        times = seconds[:, unit]
        spent += np.where(np.isnan(times), -np.inf, times).max(axis=1)
    return np.where(np.isinf(spent), np.nan, spent)


@dataclass(frozen=True, slots=True)
class _Caller:
    """A rank that calls collectives of a group in its step: at which positions.

    `sent` is how many it sent there before the step, and which in it: places in the job's table.
    """

    rank: int
    phase: Phase
    indices: tuple[int, ...]
    sent: tuple[int, ...]


def matched(job: Job, repetitions: Sequence[int] | None = None) -> list[MatchedGroup]:
    """Return the collectives that are known to be the same on several ranks, by group, with times of `repetitions`.

    None: those of all figures. Ranks of a group that sent different calls in their step, or a different number before
    it, are not matched.
    """
    callers: dict[int, list[_Caller]] = defaultdict(list)
    for rank in sorted(job.ranks, key=lambda rank: rank.rank):
        phase = shown_phase(rank)
        if phase is None:
            continue
        calls = ((index, job.calls[position.call]) for index, position in enumerate(phase.positions))
        indices = grouped((call.group, index) for index, call in calls if call.collective is not None)
        before = _sent_before(job, rank, phase)
        for group, own in indices.items():
            known = job.groups[group].ranks
            if not known or rank.rank in known:
                sent = (before[group], *(phase.positions[index].call for index in own))
                callers[group].append(_Caller(rank.rank, phase, tuple(own), sent))
    repetitions = common(job) if repetitions is None else repetitions
    groups = (_matched_group(job, group, ours, repetitions) for group, ours in sorted(callers.items()))
    return [group for group in groups if group is not None]


def _sent_before(job: Job, rank: JobRank, phase: Phase) -> Counter[int]:
    """Return how many collectives a rank sent to each group before its step, or what is shown in place of one."""
    before = rank.before_step
    for number, repetitions in rank.runs if rank.step is None else ():
        if rank.phases[number] is phase:
            break
        before += repetitions * len(rank.phases[number].positions)
    calls = [job.calls[number] for number in islice(rank.unfolded(), before)]
    return Counter(call.group for call in calls if call.collective is not None)


def _matched_group(job: Job, group: int, callers: Sequence[_Caller], repetitions: Sequence[int]) -> MatchedGroup | None:
    first, size = callers[0], job.groups[group].size
    if not 2 <= len(callers) <= size or any(caller.sent != first.sent for caller in callers):
        return None
    indices = np.array([caller.indices for caller in callers])
    times = np.array(
        [_kernel_times(caller.phase, repetitions)[:, row] for caller, row in zip(callers, indices, strict=True)]
    )
    positions = [first.phase.positions[index] for index in first.indices]
    sampled = bool(repetitions) and not any(
        np.isnan(_sampled(caller.phase, repetitions, "gpu")).all() for caller in callers
    )
    judged = [_is_judged(job, position) for position in positions] & np.isfinite(times).all(axis=(0, 1))
    return MatchedGroup(
        group,
        tuple(caller.rank for caller in callers),
        indices,
        times,
        times.min(axis=0),  # NaN where any rank's is unknown
        np.flatnonzero(judged & sampled),
        whole=len(callers) == size,
    )


def _is_judged(job: Job, position: Position) -> bool:
    collective = job.calls[position.call].collective
    return collective is not None and not collective.rooted and not position.together


def transfers(job: Job) -> dict[tuple[int, int], Values]:
    """Return the µs of each call's transfer by rank and repetition of the step, NaN where a rank's is unknown."""
    repetitions = sorted(_kept(job))
    found = {
        (rank.rank, repetition): np.full(len(phase.positions), np.nan)
        for rank in job.ranks
        if (phase := shown_phase(rank)) is not None
        for repetition in repetitions
    }
    for group in matched(job, repetitions):
        for rank, places in zip(group.ranks, group.places, strict=True) if group.whole else ():
            for repetition, moving in zip(repetitions, group.moving, strict=False):
                found[rank, repetition][places] = moving / MICRO
    return found


def _moving(matched_groups: Sequence[MatchedGroup], rank: int, times: Values) -> tuple[Values, NDArray[np.bool_]]:
    """Return the transfer of each call of a rank, shaped as its `times`, and whether all ranks of its group say so.

    If no other rank is known, it is the rank's own time, which includes waiting.
    """
    moving, whole = times.copy(), np.zeros(times.shape[1], dtype=bool)
    for matched_group in matched_groups:
        if rank in matched_group.ranks:
            places = matched_group.places[matched_group.ranks.index(rank)]
            known = ~np.isnan(matched_group.moving).all(axis=0)
            moving[:, places] = np.where(known, matched_group.moving, moving[:, places])
            whole[places] = known & matched_group.whole
    return moving, whole


def _rank_row(
    job: Job,
    rank: JobRank,
    phase: Phase | None,
    matched_groups: Sequence[MatchedGroup],
    repetitions: Sequence[int],
) -> RankRow:
    """Return a rank's figures: medians over the same repetitions, in each of which waiting ≤ kernels ≤ step."""
    if phase is None:
        return RankRow(rank.rank, 0, 0, None, None, None, None, str(rank.ending), rank.dropped)
    own = _kernel_times(phase, repetitions)
    lasted = np.full(len(own), np.nan)
    if rank.step is not None and Unknown.PAUSES not in job.unknown:
        each = {sample.repetition: sample.step * MICRO for sample in phase.samples if sample.step}
        usual = step_seconds(phase, repetitions) or np.nan
        lasted = np.array([each.get(repetition, np.nan) for repetition in repetitions or (0,)])
        lasted = lasted if np.isfinite(lasted).any() else np.full(len(own), usual)
    waiting = np.where([position.together for position in phase.positions], 0.0, np.full(own.shape, np.nan))
    waiting[:, 0] = np.nan
    for matched_group in matched_groups:
        if rank.rank in matched_group.ranks and matched_group.whole:
            at = matched_group.ranks.index(rank.rank)
            waiting[:, matched_group.places[at]] = matched_group.times[at] - matched_group.moving
    busy = _busy(phase, own, repetitions, lasted)
    waits = np.minimum(kernels(phase, waiting), busy)
    timed = np.isfinite(lasted) if np.isfinite(lasted).any() else np.ones(len(own), bool)
    step, kernel, wait = (
        None if np.isnan(values[timed]).any() else float(np.median(values[timed])) for values in (lasted, busy, waits)
    )
    assert wait is None or kernel is None or wait <= kernel  # noqa: S101  # no page shows an impossible figure
    assert kernel is None or step is None or kernel <= step  # noqa: S101
    lasts = [_came_last(group)[group.ranks.index(rank.rank)] for group in matched_groups if rank.rank in group.ranks]
    came_last = np.concatenate([each.ravel() for each in lasts]) if lasts else np.empty(0)
    return RankRow(
        rank.rank,
        len(phase.positions),
        phase.repetitions,
        step,
        kernel,
        wait,
        float(came_last.mean()) if came_last.size else None,
        str(rank.ending),
        rank.dropped,
    )


def _busy(phase: Phase, own: Values, repetitions: Sequence[int], lasted: Values) -> Values:
    """Return how long kernels of communication ran in each repetition: their union where all beginnings are known.

    Where the source has all that ran on the GPU, calls between steps are in it. Without beginnings it is the sum, at
    most the step, because kernels of several groups may overlap.
    """
    sums = kernels(phase, own)
    passed = {sample.repetition: sample.gpu_time for sample in phase.samples}
    for at, begins in enumerate(_sampled(phase, repetitions, "gpu_starts")):
        both = np.stack([begins, begins + own[at]], axis=1)
        whole = passed[repetitions[at]]
        if np.isfinite(both).all():
            sums[at] = np.diff(pieces(both)).sum() if whole is None else (whole.exposed + whole.overlapped) * MICRO
    return np.where(np.isnan(sums) | np.isnan(lasted), sums, np.minimum(sums, lasted))


def _came_last(matched_group: MatchedGroup) -> NDArray[np.bool_]:
    """Return to which judged calls each rank came last, (ranks, repetitions, calls), beyond doubt."""
    times = matched_group.times[:, :, matched_group.judged]
    last, next_to_last = np.sort(times, axis=0)[:2]
    came_last: NDArray[np.bool_] = (times == last) & (next_to_last - last > _RESOLVED_SECONDS)
    return came_last


def _late(matched_group: MatchedGroup) -> Iterator[LateRank]:
    """Yield the ranks that come significantly late to a group's collectives: their kernels end with the others'."""
    if not len(matched_group.judged):
        return
    times = matched_group.times[:, :, matched_group.judged]
    ranks, samples, calls = times.shape
    after, came_last = after_others(-times.reshape(ranks, -1)), _came_last(matched_group)
    shortest, second = np.sort(times, axis=0)[:2]
    low = (quantile_ranks(samples, 50) or (1, samples))[0]
    for index, rank in enumerate(matched_group.ranks):
        own = after[index].reshape(samples, calls)
        # Calls of one step are not independent: a rank that is late to the first one may stay late.
        by_step = np.sort(np.median(own, axis=1))
        lateness_of_rank = lateness(after[index], _RESOLVED_SECONDS)
        if lateness_of_rank.significant and by_step[low - 1] > _RESOLVED_SECONDS:
            yield LateRank(
                rank,
                matched_group.group,
                lateness_of_rank,
                last=float(came_last[index].mean()),
                seen=samples * calls,
                calls=calls,
                mean=float(np.median(own.clip(min=0.0).sum(axis=1))) / calls,
                # All others wait until the last rank comes: at least as long as the next to last.
                waits=float(np.median(np.where(times[index] == shortest, second - shortest, 0.0).sum(axis=1))),
            )


def _turns(matched_group: MatchedGroup) -> tuple[Turn, ...]:
    """Return the ranks that are waited for in turn, those in most steps first; none if fewer than two are.

    Their waits in all steps together have medians that hide the less frequent kind of step.
    """
    times = matched_group.times[:, :, matched_group.judged]
    waits = (times - times.min(axis=0)).sum(axis=2)
    awaited, longest = waits.argmin(axis=0), waits.max(axis=0)
    found = [
        Turn(rank, int(steps.sum()), float(np.median(longest[steps])))
        for index, rank in enumerate(matched_group.ranks)
        if (steps := (awaited == index) & (longest > _RESOLVED_SECONDS)).any()
    ]
    return tuple(sorted(found, key=lambda turn: -turn.steps)) if len(found) > 1 else ()


def _within(late_rank: LateRank, ranks: Sequence[int], rows: Sequence[RankRow]) -> LateRank:
    """Return a late rank for which no other waits longer than for all ranks together, or than a step."""
    others = [row for row in rows if row.rank in ranks and row.rank != late_rank.rank]
    limits = [row.step if row.waiting is None else row.waiting for row in others]
    return replace(late_rank, waits=min([late_rank.waits, *(limit for limit in limits if limit is not None)]))


def _equal(job: Job, phase: Phase) -> dict[int, list[int]]:
    """Return the positions of equal calls, by the first of them, in order.

    Sends to several peers are alike: one call stands for all.
    """
    first: dict[Call, int] = {}
    positions: dict[int, list[int]] = defaultdict(list)
    for index, position in enumerate(phase.positions):
        positions[first.setdefault(replace(job.calls[position.call], peer=None), position.call)].append(index)
    return positions


def _usual(values: Values) -> float | None:
    """Return the median over repetitions of the mean of equal calls, (repetitions, calls); None if none is known.

    The mean comes first: if each waits in different repetitions, their medians add up to less than any step.
    """
    known = values[~np.isnan(values).all(axis=1)]
    return float(np.median(np.nanmean(known, axis=1))) if len(known) else None
