"""The recorder's streams of all ranks as one job: ranks and groups, calls, and what repeats with its times."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from collbench.jobs import steps
from collbench.jobs.job import (
    Call,
    Ending,
    Group,
    Job,
    JobRank,
    Phase,
    PointToPoint,
    Position,
    Sample,
    Source,
    Spread,
    Unknown,
)
from collbench.jobs.repeats import PhaseOrder, fold, kept_of, spreads
from collbench.jobs.streams import (
    FUNCTIONS,
    CommunicatorKey,
    NcclCall,
    Numbers,
    Repetition,
    Stream,
    bucket_median,
)
from collbench.model.nccl_options import format_version
from collbench.model.operations import Operation
from collbench.model.units import DTYPE_BYTES, REDOPS

_API_ABI = 5  # from it on NCCL reports calls as they were made; before, launches, whose bytes have lost their type
_DTYPES = tuple(DTYPE_BYTES)  # by ncclDataType_t


@dataclass(frozen=True, slots=True)
class Merged:
    """A job, and what else was found."""

    job: Job
    others: int  # streams of other jobs under the same command
    missing: tuple[int, ...]  # ranks that left no stream
    lacks: Mapping[str, int] = field(default_factory=dict)  # calls without a GPU time, where these were recorded
    too_old: bool = False  # this NCCL has no GPU times


def merge(
    streams: Sequence[Stream],
    command: Sequence[str] = (),
    marks: Mapping[tuple[str, int], Sequence[int]] | None = None,
    calls_per_step: int | None = None,
) -> Merged:
    """Return the job of these streams, one for each rank. Raises ValueError if there is none.

    `marks` are ns at which a process, by host and number, called collbench.step().
    """
    called = [stream for stream in streams if stream.runs or len(stream.tail)]
    if not called:
        raise ValueError("no stream has a call")
    kept = _one_job(called)
    sizes = _sizes(kept)
    numbers, world_size = _numbered(kept, sizes)
    tables = _Tables(sizes)
    for stream, number in zip(kept, numbers, strict=True):
        for communicator in stream.communicators:
            tables.members[communicator.key][communicator.rank] = number
    order = sorted(range(len(kept)), key=lambda index: numbers[index])
    clocks = _clocks(kept)
    started = min(stream.realtime_ns for stream in kept)
    ranks = tuple(_rank(kept[index], numbers[index], tables, clocks[kept[index].host] - started) for index in order)
    first = kept[order[0]]
    groups = tables.grouped()
    job = Job(
        source=Source.PLUGIN,
        started=datetime.fromtimestamp(started / 1e9, UTC).isoformat(timespec="seconds"),
        world_size=world_size,
        groups=groups,
        calls=tuple(tables.calls),
        ranks=ranks,
        command=tuple(command),
        nccl=format_version(first.nccl) if first.nccl >= 10000 else "",
        environment=first.environment,
        unknown=_unknown(kept, ranks, groups, tables.calls),
    )
    marked = {
        numbers[index]: [(mark + clocks[kept[index].host] - started) / 1e3 for mark in own]
        for index in order
        if (own := (marks or {}).get((kept[index].host, kept[index].pid)))
    }
    job = steps.find(job, calls_per_step, marked)
    missing = tuple(sorted(set(range(world_size)) - set(numbers)))
    lacks: Counter[str] = Counter()
    for stream in kept:
        lacks.update(stream.lacks)
    too_old = all(stream.too_old for stream in kept)
    return Merged(job, len(called) - len(kept), missing, +lacks, too_old)


def _unknown(
    streams: Sequence[Stream], ranks: Sequence[JobRank], groups: Sequence[Group], calls: Sequence[Call]
) -> tuple[Unknown, ...]:
    """Return what these streams cannot say, in Unknown's order."""
    # Before ABI 5 nothing says that a call was captured.
    old = any(stream.abi < _API_ABI for stream in streams)
    gpu_times = any(position.gpu for rank in ranks for phase in rank.phases for position in phase.positions)
    unknown = {
        Unknown.REDUCTION: any(call.collective and call.collective.reduces and not call.reduction for call in calls),
        Unknown.PEER: any(not call.collective and call.peer is None for call in calls),
        Unknown.GROUP_RANKS: any(len(group.ranks) != group.size for group in groups),
        Unknown.GPU_TIMES: not gpu_times,
        Unknown.GRAPH_REPLAYS: old or any(call.captured for call in calls),
        Unknown.OVERLAP: True,
    }
    return tuple(what for what, is_unknown in unknown.items() if is_unknown)


# Which streams are of one job, and which rank each is.


def _one_job(streams: Sequence[Stream]) -> list[Stream]:
    """Return the streams of the job that sent most, where one command ran several: a restart, or one after another."""
    leader = list(range(len(streams)))

    def find(index: int) -> int:
        while leader[index] != index:
            index = leader[index]
        return index

    seen: dict[int, int] = {}
    for index, stream in enumerate(streams):
        for communicator in stream.communicators:
            leader[find(index)] = find(seen.setdefault(communicator.hash, index))
    parts: dict[int, list[Stream]] = defaultdict(list)
    for index, stream in enumerate(streams):
        parts[find(index)].append(stream)
    if len(parts) == 1 or _distinct_hints(streams):
        return list(streams)

    def sent(stream: Stream) -> int:
        return len(stream.tail) + sum(len(stream.phases[phase].symbols) * times for phase, times in stream.runs)

    return max(parts.values(), key=lambda part: sum(map(sent, part)))


def _distinct_hints(streams: Sequence[Stream]) -> bool:
    """True if the launcher's RANK differs between all streams, and is below WORLD_SIZE."""
    hints = [stream.env_rank for stream in streams]
    worlds = {stream.env_world for stream in streams}
    world = worlds.pop() if len(worlds) == 1 else None
    return (
        world is not None
        and len(set(hints)) == len(hints)
        and all(hint is not None and 0 <= hint < world for hint in hints)
    )


def _sizes(streams: Sequence[Stream]) -> dict[CommunicatorKey, int]:
    """Return how many ranks each communicator has; of those of old ABIs, which do not say, as many as were seen."""
    sizes: dict[CommunicatorKey, int] = {}
    for stream in streams:
        for communicator in stream.communicators:
            sizes[communicator.key] = max(sizes.get(communicator.key, 0), communicator.ranks, communicator.rank + 1)
    return sizes


def _numbered(streams: Sequence[Stream], sizes: Mapping[CommunicatorKey, int]) -> tuple[list[int], int]:
    """Return each stream's rank in the job, and the job's size."""
    inside: dict[CommunicatorKey, dict[int, int]] = defaultdict(dict)
    for index, stream in enumerate(streams):
        for communicator in stream.communicators:
            inside[communicator.key][index] = communicator.rank
    widest = max(sizes, key=lambda key: (len(inside[key]), sizes[key]))
    known = inside[widest]
    if len(known) == len(streams) and len(set(known.values())) == len(known):
        return [known[index] for index in range(len(streams))], max(sizes.values())
    if _distinct_hints(streams):
        world = streams[0].env_world or 0
        return [stream.env_rank or 0 for stream in streams], max(world, *sizes.values())
    # No communicator has them all, and no launcher numbered them: by host, process and stream number.
    order = sorted(range(len(streams)), key=lambda index: _who(streams[index]))
    numbers = [0] * len(streams)
    for number, index in enumerate(order):
        numbers[index] = number
    return numbers, max(len(streams), *sizes.values())


def _who(stream: Stream) -> tuple[str, int, int, int]:
    return stream.host, stream.realtime_ns if stream.device is None else stream.device, stream.pid, stream.index


def _clocks(streams: Sequence[Stream]) -> dict[str, int]:
    """Return what to add to each host's monotonic clock for UTC, ns: one number, so that its ranks' times agree."""
    clocks: dict[str, int] = {}
    for stream in sorted(streams, key=lambda stream: stream.realtime_ns):
        clocks.setdefault(stream.host, stream.realtime_ns - stream.monotonic_ns)
    return clocks


# What was called.


@dataclass
class _Tables:
    """The job's groups and calls that have been seen so far."""

    sizes: dict[CommunicatorKey, int]
    members: dict[CommunicatorKey, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    groups: dict[CommunicatorKey, int] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    call_numbers: dict[Call, int] = field(default_factory=dict)

    def call_number(self, call: Call) -> int:
        """Return a call's number in the job's table."""
        if call not in self.call_numbers:
            self.call_numbers[call] = len(self.calls)
            self.calls.append(call)
        return self.call_numbers[call]

    def grouped(self) -> tuple[Group, ...]:
        """Return the groups that were used. One whose ranks are not all known has none of them."""
        all_groups = []
        for key in self.groups:
            members, size = self.members[key], self.sizes[key]
            whole = sorted(members) == list(range(size)) and len(set(members.values())) == size
            all_groups.append(Group(tuple(members[rank] for rank in range(size)) if whole else (), size, key[1]))
        return tuple(all_groups)

    def translate(self, stream: Stream, call: NcclCall) -> Call | None:
        """Return what a rank asked for; None for a function or type that this collbench does not know."""
        operation = FUNCTIONS[call.function] if call.function < len(FUNCTIONS) else ""
        if not operation or call.datatype >= len(_DTYPES):
            return None
        communicator = stream.communicators[call.communicator]
        key = communicator.key
        size = self.sizes[key]
        dtype = _DTYPES[call.datatype]
        parts = size if operation not in set(PointToPoint) and Operation(operation).shares else 1
        root, peer = (rank if 0 <= rank < size else None for rank in (call.root, call.peer))
        # Launches count these in bytes [NCCL, enqueue.cc, collTaskAppend].
        bytes_only = stream.abi < _API_ABI and operation in {"allgather", "broadcast"}
        return Call(
            operation,
            call.count * DTYPE_BYTES[dtype] * parts,
            self.groups.setdefault(key, len(self.groups)),
            dtype="" if bytes_only else dtype,
            reduction=REDOPS[call.reduction - 1] if 0 < call.reduction <= len(REDOPS) else "",
            root=root,
            peer=peer,
            captured=call.captured,
        )


# In which order, and when.


def _rank(stream: Stream, number: int, tables: _Tables, clock: int) -> JobRank:
    """Return one rank's record; `clock` turns its starts into ns from the job's own."""
    folded = _Folded()
    _add_runs(folded, stream)
    _add_tail(folded, stream)
    translated = {index: tables.translate(stream, call) for index, call in enumerate(stream.calls)}
    all_phases = [
        _phase(symbols, partial, _positions(symbols, translated, tables), clock)
        for symbols, partial in folded.phases.items()
    ]
    unknown = sum(
        partial.repetitions
        for symbols, partial in folded.phases.items()
        for symbol in symbols
        if translated[symbol // 2] is None
    )
    # A phase of nothing but calls that this collbench does not know is left out, and counted.
    renumbered = {
        old: new for new, old in enumerate(index for index, phase in enumerate(all_phases) if phase.positions)
    }
    order = tuple((renumbered[index], times) for index, times in folded.sequence.order if index in renumbered)
    once = len(order) == len(renumbered)
    return JobRank(
        rank=number,
        phases=tuple(phase for phase in all_phases if phase.positions),
        host=stream.host,
        device=stream.device,
        ending=Ending.COMPLETE if stream.complete else Ending.CUT_OFF,
        dropped=stream.dropped + unknown,
        order=() if once else order,
    )


def _add_runs(folded: _Folded, stream: Stream) -> None:
    """Add the phases that the plugin folded, with its sums and samples."""
    symbols = [tuple(phase.symbols.tolist()) for phase in stream.phases]
    for phase, repetitions in stream.runs:
        folded.add(symbols[phase], repetitions)
    for phase in {phase for phase, _ in stream.runs}:
        repeated = stream.phases[phase]
        partial = folded.phases[symbols[phase]]
        partial.samples += [sample for sample in repeated.samples if sample.repetition < partial.repetitions]
        if repeated.times is not None:
            partial.pauses = [_summed(times) for times in repeated.times]
        if repeated.gpu_times is not None:
            partial.gpu = [_summed(times) for times in repeated.gpu_times]


def _add_tail(folded: _Folded, stream: Stream) -> None:
    """Fold the calls that the plugin had not folded yet, and add what repeats in them."""
    pauses = np.diff(stream.tail_starts, prepend=stream.before_tail or np.nan).clip(min=0.0) / 1e3
    for start, period, repetitions in fold(stream.tail):
        symbols = tuple(stream.tail[start : start + period].tolist())
        before = folded.add(symbols, repetitions)
        partial, size = folded.phases[symbols], period * repetitions
        starts = stream.tail_starts[start : start + size].reshape(repetitions, period)
        gpu = stream.tail_gpu[start : start + size].reshape(repetitions, period)
        partial.samples += [
            Repetition(
                before + repetition,
                starts[repetition],
                gpu[repetition],
                _begins(stream, start + repetition * period, period),
            )
            for repetition in kept_of(repetitions, period)
        ]
        partial.tails.append(pauses[start : start + size].reshape(repetitions, period))
        partial.gpu_tails.append(_micro(gpu))


def _begins(stream: Stream, start: int, period: int) -> Numbers:
    """Return Repetition.begins of a repetition in the tail."""
    begins, ahead = stream.tail_begins[start : start + period, 0], int(stream.tail_begins[start + period - 1, 1])
    return np.where(begins > 0, begins + ahead, 0)


@dataclass
class _PartialPhase:
    """One phase while it is put together."""

    repetitions: int = 0
    samples: list[Repetition] = field(default_factory=list)
    pauses: list[Spread | None] | None = None  # from the plugin's sums
    gpu: list[Spread | None] | None = None
    tails: list[Numbers] = field(default_factory=list)  # pauses in µs, a row for each repetition
    gpu_tails: list[Numbers] = field(default_factory=list)


@dataclass
class _Folded:
    """A rank's phases while they are put together, and their order."""

    phases: dict[tuple[int, ...], _PartialPhase] = field(default_factory=dict)
    sequence: PhaseOrder = field(default_factory=PhaseOrder)

    def add(self, symbols: tuple[int, ...], repetitions: int) -> int:
        """Note that a phase came; return how often it had come before."""
        self.sequence.add(symbols, repetitions)
        partial = self.phases.setdefault(symbols, _PartialPhase())
        before = partial.repetitions
        partial.repetitions += repetitions
        return before


@dataclass(frozen=True, slots=True)
class _PhasePosition:
    """One position: where its calls stand in the sequence, which call of the job's table, grouped with the last one."""

    at: slice
    call: int
    together: bool


def _positions(symbols: Sequence[int], translated: dict[int, Call | None], tables: _Tables) -> list[_PhasePosition]:
    """Return a phase's positions.

    What this collbench does not know is left out. A group of one send to and one receive from every rank, all of one
    size, is what NCCL makes of an all-to-all, and becomes one again.
    """
    starts = [index for index, symbol in enumerate(symbols) if symbol % 2 == 0 or index == 0]
    positions: list[_PhasePosition] = []
    for start, end in itertools.pairwise([*starts, len(symbols)]):
        calls = [translated[symbol // 2] for symbol in symbols[start:end]]
        exchange = None if symbols[start] % 2 else _exchange(calls, tables)
        if exchange is not None:
            positions.append(_PhasePosition(slice(start, end), tables.call_number(exchange), False))
            continue
        positions += [
            _PhasePosition(slice(index, index + 1), tables.call_number(call), symbols[index] % 2 == 1)
            for index, call in enumerate(calls, start)
            if call is not None
        ]
    return positions


def _exchange(calls: Sequence[Call | None], tables: _Tables) -> Call | None:
    """Return the all-to-all that a whole group of sends and receives is; None if it is anything else."""
    first = calls[0]
    if first is None or first.operation not in set(PointToPoint):
        return None
    size = tables.sizes[list(tables.groups)[first.group]]
    ends = {(call.operation, call.peer) for call in calls if call is not None}
    alike = {replace(call, operation="", peer=None) for call in calls if call is not None}
    wanted = (
        {(direction.value, peer) for direction in PointToPoint for peer in range(size)}
        if len(calls) == 2 * size
        else None
    )
    if ends != wanted or len(alike) != 1:
        return None
    return replace(first, operation=Operation.ALLTOALL.value, size_bytes=first.size_bytes * size, peer=None)


def _phase(symbols: Sequence[int], partial: _PartialPhase, positions: Sequence[_PhasePosition], clock: int) -> Phase:
    length = len(symbols)
    whole = sorted(partial.samples, key=lambda sample: sample.repetition)
    none = np.empty((0, length))  # where no repetition is here
    since_last = [np.diff(sample.starts, prepend=np.nan)[None, :].clip(min=0.0) / 1e3 for sample in whole]
    pauses = partial.pauses or spreads(np.concatenate([none, *(partial.tails or since_last)]))
    took = partial.gpu_tails or [_micro(sample.gpu)[None, :] for sample in whole]
    gpu = partial.gpu or spreads(np.concatenate([none, *took]))
    return Phase(
        tuple(
            Position(position.call, position.together, pauses[position.at.start], _longest(gpu[position.at]))
            for position in positions
        ),
        partial.repetitions,
        tuple(_sample(sample, positions, clock) for sample in whole) if positions else (),
    )


def _sample(whole: Repetition, positions: Sequence[_PhasePosition], clock: int) -> Sample:
    # Parts of an all-to-all share a kernel, which begins with the first and ends with the last of them.
    took = [int(whole.gpu[position.at].max()) if whole.gpu[position.at].all() else 0 for position in positions]
    began = [int(whole.begins[position.at].min()) for position in positions]

    def micro(times: Iterable[int]) -> tuple[float, ...]:
        return tuple(round((time + clock) / 1e3, 3) if time else 0.0 for time in times)

    return Sample(
        whole.repetition,
        micro(int(whole.starts[position.at.start]) for position in positions),
        tuple(round(time / 1e3, 3) for time in took) if any(took) else (),
        micro(began) if any(began) else (),
    )


def _longest(parts: Sequence[Spread | None]) -> Spread | None:
    known = [part for part in parts if part is not None]
    return max(known, key=lambda part: part.mean) if len(known) == len(parts) else None


def _micro(times: Numbers) -> Numbers:
    """Return ns as µs, NaN where they are 0: unknown."""
    return np.where(times > 0, times / 1e3, np.nan)


def _summed(times: Any) -> Spread | None:
    count = int(times["count"])
    if not count or not math.isfinite(float(times["sum"])):
        return None
    least, most = float(times["least"]), float(times["most"])
    figures = (least, bucket_median(times), float(times["sum"]) / count, most)
    return Spread(count, *(round(figure / 1e3, 3) for figure in figures))
