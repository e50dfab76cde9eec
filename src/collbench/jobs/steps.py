"""Where a job's steps begin: at its marks, every N calls if the user says so, else found in its calls. Pure.

Only what the record shows is claimed (docs/method/choosing.md 8). A step is a sequence of kinds of calls, whose sizes
may change, after the longest pause of each repetition. Micro-batches and equal blocks look the same to it if they pause
too: a step that could as well be one of them, or ten steps between two losses, is not claimed.
"""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collbench.jobs.job import (
    Job,
    JobRank,
    Phase,
    PointToPoint,
    Position,
    Sample,
    Steps,
    StepSource,
    Unknown,
)
from collbench.jobs.repeats import medians, micros, periods, typical
from collbench.judge.stats import MAD_TO_SIGMA, MEDIAN_ERROR
from collbench.model.units import amount

Values = NDArray[np.float64]
Places = NDArray[np.intp]

SAMPLES = 32  # repetitions of the step that are kept whole
_WARM_UP = 3  # first steps that are not kept if there are four times as many: buffers, algorithms and clocks settle
_SMALL = 256  # bytes: a call of a loss, a norm or a counter; 0 bytes are a rank's share of nothing
_MIN_REPETITIONS = 3  # repetitions of a step
_CLEAR = 1.3  # a step's pause over the longest pause within it
_STEADY = 0.9  # of calls, from step to step: their sizes do not change
_COVERED = 0.6  # of the calls, by what is a step at all
_NOTICED, _SURE = 0.01, 6.0  # of a step, and standard errors: a pause that is longer by more is longer for a reason
_MICRO_BATCHES, _PLAIN = 4, 0.1  # in a step, as is usual, and of a step: a pause after them that would be noticed
_THRESHOLDS = 64  # of pauses
_FEW = 0.25  # of the steps: an evaluation comes after fewer
_FEW_PARTS = 3  # sequences: a small call after so few of them again and again may end a step of that many
_UNROLLED = 4096  # calls: of a phase that is longer, only the repetitions are unrolled whose times are known
_ALIKE_HERE = "the record does not distinguish steps from micro-batches and equal blocks"
_REDUCING = ("allreduce", "reducescatter", "reduce")


@dataclass(frozen=True, slots=True)
class _Unrolled:
    """A rank's units in order: calls that NCCL got together, of which the first begins at `first` in `calls`.

    `starts`, `gpu` and `begins` are µs of each call, NaN where unknown; `pauses` µs of each unit, `known` where they
    are not a median over repetitions, `usual` those medians. `left` are the units of repetitions that were passed over
    before a unit.
    """

    calls: Places
    first: Places
    starts: Values
    gpu: Values
    begins: Values
    pauses: Values
    known: NDArray[np.bool_]
    left: Places
    kinds: Places
    small: NDArray[np.bool_]
    usual: Values
    on_gpu: bool


@dataclass(frozen=True, slots=True)
class _Level:
    """Sequences of `length` units at `at` among the units `among`, each after a longer pause than any within it."""

    among: Places
    at: Places
    length: int


def find(job: Job, calls_per_step: int | None = None, marks: Mapping[int, Sequence[float]] | None = None) -> Job:
    """Return the job with the step of each rank, or why there is none.

    `marks` are µs by rank at which the job said that a step begins or ends, on the clock of its calls.
    """
    if job.steps.source is StepSource.MARKS:  # as its file has them
        return _beside_marks(job, calls_per_step)
    ranks = {rank.rank: _unroll(job, rank) for rank in job.ranks if rank.calls}
    marking = {number: own for number in ranks if len(own := (marks or {}).get(number, ())) > 1}
    all_mark = bool(marking) and len(marking) == len(ranks)
    if all_mark:
        rows = {number: _rows(ranks[number], _marked(ranks[number], own))[1] for number, own in marking.items()}
        if min(map(len, rows.values())) > 1:
            return _beside_marks(_with_steps(job, ranks, rows, Steps(StepSource.MARKS)), calls_per_step)
    if calls_per_step is not None:
        return _of_length(job, ranks, calls_per_step)
    if all_mark:
        alone = min(map(len, marking.values())) == 2  # a beginning and an end
        single = "only one step is marked, and its end shows only where the next one begins"
        return _without(job, single if alone else "no calls come again between two marks")
    found, why, doubt = _searched(job, ranks)
    if marking and why:
        why = f"only {len(marking)} of {amount(len(ranks), 'rank')} mark it, and {why}"
    rows = {number: _rows(ranks[number], bounds)[1] for number, bounds in found.items()}
    steps = [len(own) for own in rows.values()]
    if not steps or min(steps) < 2:
        why = why or "no call comes again"
    elif max(steps) - min(steps) > 2 + 0.1 * max(steps):
        why = f"ranks have from {min(steps)} to {max(steps)} of them"
    return _without(job, why) if why else _with_steps(job, ranks, rows, Steps(StepSource.FOLDED, doubt))


def _beside_marks(job: Job, calls_per_step: int | None) -> Job:
    """Return a job with marked steps, and that these count where the user says another length."""
    lengths = sorted({len(rank.step.positions) for rank in job.ranks if rank.step})
    why = f"its marks say {' or '.join(map(str, lengths))} calls, not {calls_per_step}: they count"
    return replace(job, steps=replace(job.steps, why="" if calls_per_step in {None, *lengths} else why))


def _of_length(job: Job, ranks: Mapping[int, _Unrolled], calls: int) -> Job:
    """Return a job with steps of so many calls, or with the reason why the record contradicts them.

    What repeats after fewer calls, or after more with what comes between steps, is no contradiction, but said.
    """
    rows = {number: _rows(rank, _given(rank, calls))[1] for number, rank in ranks.items()}
    said = ""
    for number, rank in ranks.items():
        lengths = periods(rank.calls)
        if lengths and calls % lengths[0] and calls not in lengths:
            if not _in_a_row(rank, rows[number]):
                return _without(job, f"rank {number} sends the same calls again every {lengths[0]}, not every {calls}")
            said = said or f"with what comes between steps, the record repeats every {lengths[0]} calls"
    if min(map(len, rows.values()), default=0) < 2:
        return _without(job, f"no {amount(calls, 'call')} in a row come again")
    first = min(rows)
    block = len(_calls(ranks[first], rows[first][0][: _part(ranks[first], rows[first])]))
    if block < calls and _repeated(ranks[first], block) > _repeated(ranks[first], calls) - (1 - _STEADY):
        said = f"{calls} calls are {calls // block} equal blocks of {block}: the record repeats after each"
    return _with_steps(job, ranks, rows, Steps(StepSource.GIVEN, said))


def _repeated(rank: _Unrolled, calls: int) -> float:
    """Return the share of calls that come again, with their sizes, after so many."""
    return float(np.mean(rank.calls[calls:] == rank.calls[:-calls]))


def _in_a_row(rank: _Unrolled, rows: Places) -> bool:
    """Return whether steps of calls that do not change mostly follow one another: else they may be cut wrongly."""
    steps = rank.calls[rank.first[rows]]
    steady = len(rows) > 1 and np.mean(steps[1:] == steps[:-1]) >= _STEADY
    return bool(steady and np.mean(rows[1:, 0] == rows[:-1, -1] + 1) > 0.5)


def _without(job: Job, why: str) -> Job:
    return replace(
        job, steps=Steps(why=why), ranks=tuple(replace(rank, step=None, before_step=0) for rank in job.ranks)
    )


# A rank's calls, one after the other, with what is known of their times.


def _unroll(job: Job, rank: JobRank) -> _Unrolled:
    calls: list[Places] = []
    times: list[Values] = []  # shape (4, calls): starts, GPU times, beginnings, pauses
    heads: list[NDArray[np.bool_]] = []
    left: list[tuple[int, int]] = []  # a place, and the units that were passed over before it
    seen = [0] * len(rank.phases)
    total = 0
    for number, repetitions in rank.runs:
        phase = rank.phases[number]
        length = len(phase.positions)
        samples = {sample.repetition - seen[number]: sample for sample in phase.samples}
        seen[number] += repetitions
        kept = range(repetitions)
        if repetitions * length > _UNROLLED:
            kept = sorted({*range(min(2, repetitions)), *(at for at in samples if 0 <= at < repetitions)})  # type: ignore[assignment]
        own_calls = np.array([position.call for position in phase.positions])
        own_heads = np.array([not position.together for position in phase.positions])
        own_heads[0] = True
        pauses = [np.nan if position.pause is None else position.pause for position in phase.positions]
        after, units = 0, int(own_heads.sum())
        for repetition in kept:
            sample = samples.get(repetition)
            rows = np.full((4, length), np.nan)
            rows[3] = pauses
            if sample is not None:
                for row, own in enumerate((sample.starts, sample.gpu, sample.gpu_starts)):
                    if own:
                        rows[row] = own
            rows[1:3][rows[1:3] <= 0] = np.nan
            if repetition > after:
                left.append((total, (repetition - after) * units))
            after = repetition + 1
            calls.append(own_calls)
            times.append(rows)
            heads.append(own_heads)
            total += length
        if repetitions > after:
            left.append((total, (repetitions - after) * units))
    return _units(job, np.concatenate(calls), np.concatenate(times, axis=1), np.concatenate(heads), left)


def _units(
    job: Job, calls: Places, times: Values, heads: NDArray[np.bool_], left: Sequence[tuple[int, int]]
) -> _Unrolled:
    first = np.flatnonzero(heads)
    starts, gpu, begins, usual = times
    known_begins = np.isfinite(begins[first])
    on_gpu = bool(known_begins.any()) and bool(known_begins[np.isfinite(starts[first])].mean() > 0.9)
    ends = begins + gpu if on_gpu else starts
    lasts = np.append(first[1:], len(calls)) - 1
    measured = (begins if on_gpu else starts)[first] - np.append(np.nan, ends[lasts[:-1]])
    skipped = np.zeros(len(first) + 1, int)
    for place, units in left:
        skipped[np.searchsorted(first, place)] += units
    measured[skipped[:-1] > 0] = np.nan
    known = np.isfinite(measured)
    pauses = np.where(known, measured.clip(min=0.0), np.nan if on_gpu else usual[first])
    names: dict[Any, int] = {}
    kinds_of = [_kind(job, call) for call in range(len(job.calls))]
    kinds, small = np.zeros(len(first), int), np.zeros(len(first), bool)
    seen: dict[bytes, tuple[int, bool]] = {}  # most units are of few calls
    for unit, (start, end) in enumerate(zip(first.tolist(), (lasts + 1).tolist(), strict=True)):
        own = calls[start:end]
        if (key := own.tobytes()) not in seen:
            parts = [kinds_of[call] for call in own]
            kind: Any = tuple(parts)
            if len(parts) > 1 and all(part[0] in set(PointToPoint) for part in parts):
                kind = "exchange", frozenset(part[1] for part in parts)  # torch leaves out what is empty
            seen[key] = names.setdefault(kind, len(names)), all(part[-1] for part in parts)
        kinds[unit], small[unit] = seen[key]
    return _Unrolled(calls, first, starts, gpu, begins, pauses, known, skipped[:-1], kinds, small, usual[first], on_gpu)


def _kind(job: Job, number: int) -> tuple[Any, ...]:
    """Return what makes a call the same in every step, whatever its size."""
    call = job.calls[number]
    return (
        call.operation.replace("alltoallv", "alltoall"),
        call.group,
        call.dtype,
        call.peer,
        0 < call.size_bytes <= _SMALL,
    )


# Sequences between pauses.


def _levels(rank: _Unrolled, pauses: Values, among: Places) -> list[_Level]:
    """Return the sequences that come again between pauses longer than those within them, the shortest first."""
    kinds, exact = rank.kinds[among], rank.calls[rank.first[among]]
    known = pauses[np.isfinite(pauses)]
    if len(known) < 2 * _MIN_REPETITIONS:
        return []
    found: dict[bytes, list[int]] = {}  # where each sequence begins, if it is cut as often as it ever is
    for least in np.geomspace(max(1.0, known.min()), max(2.0, known.max()), _THRESHOLDS):
        bounds = np.unique(np.concatenate([[0], np.flatnonzero(~(pauses <= least)), [len(kinds)]]))
        at: dict[bytes, list[int]] = defaultdict(list)
        for start, end in pairwise(bounds.tolist()):
            at[kinds[start:end].tobytes()].append(start)
        key, begins = max(at.items(), key=lambda item: len(item[0]) * len(item[1]))
        if len(begins) > len(found.get(key, ())) and len(key) * len(begins) >= _COVERED * kinds.nbytes:
            found[key] = begins
    levels = []
    for key, begins in found.items():
        length, starts = len(key) // kinds.itemsize, np.array(begins)
        within = pauses[starts[:, None] + np.arange(length)]
        middle = medians(within, 0)
        if length < 2 or len(starts) < _MIN_REPETITIONS or np.isfinite(within[:, 0]).sum() < 2:
            continue
        if middle[0] >= _CLEAR * np.nanmax(middle[1:], initial=1.0):
            alike = kinds if len(np.unique(kinds[starts[0] : starts[0] + length])) > 1 else exact
            levels.append(_Level(among, _stalled(alike, starts, length), length))
    return sorted(levels, key=lambda level: level.length)


def _stalled(kinds: Places, at: Places, length: int) -> Places:
    """Return where sequences begin, with those in which a longer pause came, or before which none did.

    `kinds` are calls where a sequence is of one kind, so that equal calls stay apart from those of other sizes.
    """
    own, filled = kinds[at[0] : at[0] + length], list(at[:1])
    for before, after in pairwise(at.tolist()):
        gap = kinds[before + length : after]
        if len(gap) and not len(gap) % length and len(set(own.tolist())) > 1 and (gap.reshape(-1, length) == own).all():
            filled += range(before + length, after, length)
        filled.append(after)
    return np.array(filled)


def _searched(job: Job, ranks: Mapping[int, _Unrolled]) -> tuple[dict[int, Places], str, str]:
    """Return where each rank's steps begin, as units, or {} and why they are not claimed; and what is in doubt."""
    if Unknown.PAUSES in job.unknown:
        return {}, "the record does not say when calls were made", ""
    found: dict[int, Places] = {}
    reasons: dict[int, str] = {}
    for number, rank in ranks.items():
        level, why = _chosen(job, rank)
        if level is None:
            reasons[number] = why
        else:
            found[number] = _bounds(rank, level)
    for number, why in reasons.items():
        bounds = next(
            (own for peer in found if (own := _as_on(job, ranks[peer], found[peer], ranks[number])) is not None), None
        )
        if bounds is None:
            return {}, why, ""
        found[number] = bounds
    doubts = (_doubt(rank, found[number]) for number, rank in ranks.items())
    return found, "", next(filter(None, doubts), "")


def _as_on(job: Job, peer: _Unrolled, bounds: Places, rank: _Unrolled) -> Places | None:
    """Return where a rank's steps begin, by the calls that it shares with a peer whose steps are known; None if none.

    A step begins after as many collectives of a shared group as on the peer, at the longest pause before the next.
    """
    for group in sorted({call.group for call in job.calls if call.collective}):
        mine, its = (_collectives(job, each, group) for each in (rank, peer))
        counts = np.searchsorted(its, bounds)
        if len(mine) != len(its) or rank.left.any() or peer.left.any() or (np.diff(counts) < 1).any():
            continue
        edges = np.concatenate([[-1], mine, [len(rank.first)]])
        after = np.mean(np.isin(bounds - 1, its)) > 0.5
        spans = [
            (int(edges[count]) + 1, int(edges[count]) + 2 if after else int(edges[count + 1]) + 1) for count in counts
        ]
        return np.array(
            [start + int(np.argmax(np.nan_to_num(np.append(rank.pauses, 0.0)[start:end]))) for start, end in spans]
        )
    return None


def _collectives(job: Job, rank: _Unrolled, group: int) -> Places:
    """Return the units that are collectives of a group."""
    wanted = np.array([call.group == group and call.collective is not None for call in job.calls])
    return np.flatnonzero(wanted[rank.calls[rank.first]])


def _chosen(job: Job, rank: _Unrolled) -> tuple[_Level | None, str]:
    """Return the level that is the step, or None and why none is claimed."""
    counts = np.bincount(rank.kinds)
    rare = rank.small & (counts[rank.kinds] <= len(rank.kinds) / 4)
    among = np.flatnonzero(~rare)
    if not len(among):
        return None, "no call comes again"
    sums = np.add.reduceat(rank.pauses, np.append(0, among[:-1] + 1))  # a small call's pause is part of the next one's
    levels = _levels(rank, sums, among)
    if not levels:
        return None, "no calls come again after a pause longer than those between them"
    # The longest may be ten steps between two losses, or a shorter one a micro-batch.
    shorter = (each for each in levels if 2 * each.length <= levels[-1].length)
    level = next((each for each in shorter if not _has_only_messages(job, rank, each)), levels[-1])
    part = _part(rank, level.among[level.at[:, None] + np.arange(level.length)])
    if part < level.length:
        return None, f"it may have {part} or {level.length} calls: {_ALIKE_HERE}"
    if not _is_step(job, rank, level):
        return None, f"the {level.length} calls that come again may be only a part of one: {_ALIKE_HERE}"
    return level, ""


def _has_only_messages(job: Job, rank: _Unrolled, level: _Level) -> bool:
    """True for micro-batches of a pipeline."""
    units = level.among[level.at[0] : level.at[0] + level.length]
    return all(job.calls[call].collective is None for call in rank.calls[rank.first[units]])


def _part(rank: _Unrolled, rows: Places) -> int:
    """Return the length of the shortest sequence that repeats to a step's: of equal calls, where these are steady.

    `rows` are units, shape (steps, units).
    """
    calls = rank.calls[rank.first[rows]]
    kinds = calls[-1] if np.mean((calls == calls[-1]).all(axis=1)) > 0.8 else rank.kinds[rows[-1]]
    parts = (length for length in range(1, len(kinds)) if not len(kinds) % length)
    return next((length for length in parts if np.array_equal(kinds[length:], kinds[:-length])), len(kinds))


def _extras(rank: _Unrolled, level: _Level) -> list[tuple[int, Places]]:
    """Return in or after how many of a level's sequences other units came, and those units.

    Kinds that come with nearly every sequence do not count: they are part of it.
    """
    own = level.among[level.at[:-1, None] + np.arange(level.length)]
    spans = pairwise(level.among[level.at].tolist())
    others = [np.setdiff1d(np.arange(*span), units) for span, units in zip(spans, own, strict=True)]
    counts = Counter(kind for units in others for kind in set(rank.kinds[units].tolist()))
    always = [kind for kind, count in counts.items() if count >= 0.9 * len(others)]
    extras = ((number, units[~np.isin(rank.kinds[units], always)]) for number, units in enumerate(others, 1))
    return [(number, units) for number, units in extras if len(units)]


def _is_step(job: Job, rank: _Unrolled, level: _Level) -> bool:
    """True unless a level's sequences may be parts of a longer step, by what comes between them and their pauses."""
    extras = _extras(rank, level)
    large = {number: units for number, units in extras if not rank.small[units].all()}
    own = level.among[level.at[0] : level.at[0] + level.length]
    of_training = any(_reduces(job, rank, unit) for unit in own)  # else what comes between may be the end of a step
    again = any(_reduces(job, rank, unit) for unit in chain(*large.values()))
    if large and (again or not of_training or len(large) > _FEW * len(level.at)):
        return False
    small = [number for number, _ in extras if number not in large]
    distances = Counter(after - number for number, after in pairwise(small))
    every, times = distances.most_common(1)[0] if distances else (0, 0)
    # Parts of a step would be whole from the first one on; passes of equal blocks come by twos and threes.
    periodic = every > _FEW_PARTS and times >= 2 and small[0] <= every - 2 and min(distances) == every
    if small and not periodic:
        return False
    return not _uneven(rank, _bounds(rank, level), {number for number, _ in extras})


def _reduces(job: Job, rank: _Unrolled, unit: int) -> bool:
    """True if a unit reduces data, and not a loss."""
    return not rank.small[unit] and job.calls[rank.calls[rank.first[unit]]].operation in _REDUCING


def _bounds(rank: _Unrolled, level: _Level) -> Places:
    """Return the units before which a level's sequences begin, and the one after the last."""
    last = level.at[-1] + level.length
    bounds: Places = np.append(level.among[level.at], level.among[last] if last < len(level.among) else len(rank.first))
    apart = np.diff(bounds[:-1])
    length, before = int(apart[0]), int(bounds[0])
    whole = (apart == length).all() and not len(rank.first) % length and before < length
    if whole and np.array_equal(rank.kinds[length:], rank.kinds[:-length]):  # from a step's beginning to another's end
        return np.arange(0, len(rank.first) + 1, length)
    return bounds


def _uneven(rank: _Unrolled, bounds: Places, dropped: set[int]) -> bool:
    """True if some pause of these sequences is longer in every n-th of them, of some n, beyond chance.

    `dropped` are sequences whose first pause is not looked at.
    """
    numbers, rows = _rows(rank, bounds)
    count, width = len(bounds) - 1, rows.shape[1]
    if not width:  # a damaged stream: nothing shows that they are even
        return True
    if len(rows) < _COVERED * count and not rank.left.any():  # some have a call that others lack
        return True
    values = np.full((count, width), np.nan)
    values[numbers] = np.where(rank.known, rank.pauses, np.nan)[rows]
    values[sorted(number for number in dropped if number < count), 0] = np.nan
    seen = ~np.isnan(values).all(axis=1)
    in_a_row = int((seen[1:] & seen[:-1]).sum()) if not rank.left.any() else int((rank.left[rows[1:, 0]] == 0).sum())
    if in_a_row < 10 and (rank.left.any() or (count >= 20 and seen.mean() < 0.4)):
        return True  # too few are known that follow one another
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of what is unknown throughout
        step = float(np.nansum(np.nanmedian(values, axis=0)))
        for period in range(2, min(64, count // 5) + 1):
            times = count // period
            blocks = values[: times * period].reshape(times, period, width)
            known = (~np.isnan(blocks)).sum(axis=0).min(axis=0)  # of the residue that is known least, by call
            middles = np.nanmedian(blocks, axis=0)
            noise = MAD_TO_SIGMA * np.nanmedian(np.abs(blocks - middles), axis=(0, 1))
            longest = np.nanmax(middles, axis=0)
            more = longest - (np.nansum(middles, axis=0) - longest) / (period - 1)
            error = MEDIAN_ERROR * noise * np.sqrt(1 / np.maximum(known, 1) * period / (period - 1))
            if ((known >= 5) & (more > _NOTICED * step) & (more > _SURE * error)).any():
                return True
    return False


def _doubt(rank: _Unrolled, bounds: Places) -> str:
    """Return what the record cannot exclude: "" where a longer pause after every few repetitions would be noticed."""
    _, rows = _rows(rank, bounds)
    pauses = rank.pauses[rows]
    first = pauses[:, :1][np.isfinite(pauses[:, :1])]
    if len(first) >= 5 * _MICRO_BATCHES:
        noise = MAD_TO_SIGMA * float(np.median(np.abs(first - np.median(first))))
        error = MEDIAN_ERROR * noise * _MICRO_BATCHES / (len(first) * (_MICRO_BATCHES - 1)) ** 0.5
        if _SURE * error <= _PLAIN * float(np.nansum(medians(pauses, 0))):
            return ""
    return f"a micro-batch may look the same in {amount(len(rows), 'repetition')}"


# Steps that somebody named.


def _marked(rank: _Unrolled, marks: Sequence[float]) -> Places:
    """Return the units before which a mark stands; what is before the first mark and after the last is no step."""
    starts = rank.starts[rank.first]
    known = np.flatnonzero(np.isfinite(starts))
    places: Places = np.unique(np.append(known, len(starts))[np.searchsorted(starts[known], np.asarray(marks))])
    # A mark beside repetitions of which no time is known stands nowhere.
    before = np.isin(places - 1, known) | (places == 0)
    passed = np.append(rank.left, 0)[places] > 0
    bounds: Places = places[before & ~passed]
    return bounds


def _given(rank: _Unrolled, calls: int) -> Places:
    """Return the units that begin a sequence of so many calls that comes most, after the longest pause."""
    sizes = np.append(rank.first, len(rank.calls))
    windows: dict[bytes, list[int]] = defaultdict(list)
    for start, end in enumerate(np.searchsorted(sizes, sizes[:-1] + calls).tolist()):
        if end < len(sizes) and sizes[end] == sizes[start] + calls:
            windows[rank.kinds[start:end].tobytes()].append(start)
    if not windows:
        return np.zeros(0, int)

    def pause(starts: list[int]) -> float:
        own = rank.pauses[starts]
        return float(np.median(own[np.isfinite(own)])) if np.isfinite(own).any() else 0.0

    most = max(map(len, windows.values()))
    window, best = max((item for item in windows.items() if len(item[1]) >= most - 1), key=lambda item: pause(item[1]))
    bounds, end, length = list[int](), 0, len(window) // rank.kinds.itemsize
    for start in best:
        if start >= end:
            bounds += [end, start] if end and start > end else [start]
            end = start + length
    return np.array([*bounds, end], int)


# From where steps begin to what they are.


def _rows(rank: _Unrolled, bounds: Places) -> tuple[list[int], Places]:
    """Return which parts between bounds are steps, and their units, shape (steps, units).

    A step has the kinds that are most usual between two bounds, in order. Other calls may be among them; where these
    are not all there, there is no step.
    """
    parts = [range(start, end) for start, end in pairwise(bounds.tolist())]
    whole = [len(part) > 0 and not rank.left[part.start + 1 : part.stop].any() for part in parts]
    sequences = Counter(
        tuple(rank.kinds[p.start : p.stop].tolist()) for p, kept in zip(parts, whole, strict=True) if kept
    )
    if not sequences:
        return [], np.zeros((0, 0), int)
    usual = max(sequences, key=lambda sequence: (sequences[sequence] * len(sequence), sequence))
    numbers, rows = [], []
    for number, part in enumerate(parts):
        row: list[int] = []
        for unit in part if whole[number] else ():
            if len(row) < len(usual) and rank.kinds[unit] == usual[len(row)]:
                row.append(unit)
        if len(row) == len(usual):
            numbers.append(number)
            rows.append(row)
    return numbers, np.array(rows, int).reshape(len(rows), len(usual))


def _with_steps(job: Job, ranks: Mapping[int, _Unrolled], rows: Mapping[int, Places], steps: Steps) -> Job:
    # The number of each step counts those of repetitions that were passed over.
    numbers: dict[int, Places] = {
        number: np.arange(len(own)) + np.cumsum(ranks[number].left)[own[:, 0]] // own.shape[1]
        for number, own in rows.items()
    }
    timed = {
        number: {
            int(step): at
            for at, step in enumerate(numbers[number])
            if not ranks[number].left[own[at][0] + 1 : own[at][-1] + 1].any()
            and (Unknown.PAUSES in job.unknown or np.isfinite(ranks[number].starts[ranks[number].first[own[at]]]).all())
        }
        for number, own in rows.items()
    }
    common = sorted(set.intersection(*(set(own) for own in timed.values()))) if timed else []
    common = [step for step in common if step >= _WARM_UP] if len(common) >= 4 * _WARM_UP else common
    common = [common[at] for at in np.unique(np.linspace(0, len(common) - 1, min(SAMPLES, len(common))).astype(int))]
    sizes = {number: np.array([call.size_bytes for call in job.calls])[rank.calls] for number, rank in ranks.items()}

    def weight(step: int) -> int:
        return sum(
            int(sizes[number][_calls(ranks[number], rows[number][timed[number][step]])].sum()) for number in rows
        )

    order = sorted(common, key=weight)
    usual = order[(len(order) - 1) // 2] if order else None
    made = []
    for rank in job.ranks:
        if rank.rank not in rows:
            made.append(replace(rank, step=None, before_step=0))
            continue
        unrolled, own = ranks[rank.rank], rows[rank.rank]
        at = {step: timed[rank.rank][step] for step in common}
        step = _phase(unrolled, own, at, 0 if usual is None else at[usual], numbers[rank.rank], sizes[rank.rank])
        made.append(replace(rank, step=step, before_step=_before(rank, unrolled, int(own[0, 0]))))
    # What the steps cover; repetitions that were passed over as those that were not.
    inside = {number: _calls(ranks[number], own.ravel()) for number, own in rows.items()}
    asked = {number: _to_cover(ranks[number], own) for number, own in inside.items()}
    covered, sent = (sum(int(sizes[number][own].sum()) for number, own in of.items()) for of in (inside, asked))
    steps = replace(
        steps,
        calls=sum(map(len, inside.values())) / sum(map(len, asked.values())),
        size_bytes=covered / sent if sent else 1.0,
    )
    return replace(job, steps=steps, ranks=tuple(made))


def _to_cover(rank: _Unrolled, inside: Places) -> Places:
    """Return the places of the calls from the first step to the last, and of a step's own calls before and after.

    Others there are no part of the steps: what sets a job up, a warm-up with other sizes, what follows the last step.
    """
    places = np.arange(len(rank.calls))
    wanted = np.isin(rank.calls, rank.calls[inside]) | ((inside.min() <= places) & (places <= inside.max()))
    return np.flatnonzero(wanted)


def _calls(rank: _Unrolled, units: Places) -> Places:
    """Return the places of the calls of these units."""
    ends = np.append(rank.first[1:], len(rank.calls))
    return np.concatenate([np.arange(rank.first[unit], ends[unit]) for unit in units])


def _before(rank: JobRank, unrolled: _Unrolled, unit: int) -> int:
    """Return how many calls a rank sent before a unit, those of repetitions that were passed over included."""
    passed = int(unrolled.left[: unit + 1].sum())
    heads = (at for at, position in enumerate(rank.positions()) if not position.together)
    return next(islice(heads, passed + unit, None), rank.calls) if passed else int(unrolled.first[unit])


def _phase(rank: _Unrolled, rows: Places, kept: Mapping[int, int], usual: int, numbers: Places, sizes: Any) -> Phase:
    """Return the step: its calls as the usual repetition made them, and the repetitions that are kept whole."""
    places = _calls(rank, rows[usual])
    unit_of = np.searchsorted(rank.first[rows[usual]], places, side="right") - 1
    heads = np.append(True, np.diff(unit_of) > 0)
    samples = tuple(_sample(rank, rows, step, at, places, unit_of) for step, at in kept.items())
    if not any(sample.step for sample in samples):  # no two in a row were kept: the usual pause is the one between them
        samples = tuple(
            replace(
                sample, step=max(0.0, round(sample.starts[-1] - sample.starts[0] + float(rank.usual[rows[at][0]]), 3))
            )
            if sample.starts and np.isfinite(rank.usual[rows[at][0]])
            else sample
            for sample, at in zip(samples, kept.values(), strict=True)
        )
    starts = np.array([sample.starts for sample in samples if sample.starts]).reshape(-1, len(places))
    pauses = np.diff(starts, axis=1, prepend=np.nan)
    lasted = np.array([sample.step or np.nan for sample in samples if sample.starts])
    pauses[:, 0] = (lasted - (starts[:, -1] - starts[:, 0])).clip(min=0.0)
    if not len(starts):
        pauses = np.where(heads, rank.usual[rows[usual]][unit_of], 0.0)[None, :]
    gpu = np.array([sample.gpu for sample in samples if sample.gpu]).reshape(-1, len(places))
    gpu = np.where(gpu > 0, gpu, np.nan)
    edges = np.append(rank.first, len(rank.calls))
    sums = np.append(0, np.cumsum(sizes))
    extent = sums[edges[rows + 1]] - sums[edges[rows]]  # bytes, shape (steps, units)
    spans = [
        (int(low), int(high)) if low < high else () for low, high in zip(extent.min(0), extent.max(0), strict=True)
    ]
    positions = tuple(
        Position(int(rank.calls[place]), not head, pause, took, spans[unit])
        for place, head, pause, took, unit in zip(places, heads, typical(pauses), typical(gpu), unit_of, strict=True)
    )
    return Phase(positions, int(numbers[-1]) + 1, samples)


def _sample(rank: _Unrolled, rows: Places, step: int, at: int, places: Places, unit_of: Places) -> Sample:
    row, own = rows[at], _calls(rank, rows[at])
    clock = rank.begins if rank.on_gpu else rank.starts
    lasted = np.nan
    if at + 1 < len(rows) and not rank.left[row[0] + 1 : rows[at + 1][0] + 1].any():
        lasted = clock[rank.first[rows[at + 1][0]]] - clock[rank.first[row[0]]]
    # An exchange with other members than in the usual repetition has the times of its first call.
    own = own if len(own) == len(places) else rank.first[row][unit_of]
    return Sample(
        step,
        micros(rank.starts[own]),
        micros(rank.gpu[own]),
        micros(rank.begins[own]),
        round(float(lasted), 3) if np.isfinite(lasted) and lasted > 0 else 0.0,
    )
