"""The recorder's streams of all ranks as one job: ranks and groups, calls, and what repeats with its times."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
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
    PointToPoint,
    Source,
    not_said,
)
from collbench.jobs.repeats import Folded, PartialPhase, Times, sample, typical
from collbench.jobs.streams import (
    FUNCTIONS,
    CommunicatorKey,
    NcclCall,
    Numbers,
    Repeated,
    Repetition,
    Stream,
)
from collbench.model.operations import Operation, format_version
from collbench.model.units import DTYPE_BYTES, REDOPS, grouped

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

    `marks` are ns at which a process, by host and number, marked a step.
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
    # A captured call is seen once; before ABI 5 nothing says that one was captured.
    replays = any(stream.abi < _API_ABI for stream in kept) or any(call.captured for call in tables.calls)
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
        unknown=not_said(groups, tables.calls, ranks, GRAPH_REPLAYS=replays, OVERLAP=True),
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
    parts = grouped((find(index), stream) for index, stream in enumerate(streams))
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
    """Return how many ranks each communicator has; old ABIs do not say, so theirs have as many as were seen."""
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
    def who(index: int) -> tuple[str, int, int, int]:
        stream = streams[index]
        return stream.host, stream.realtime_ns if stream.device is None else stream.device, stream.pid, stream.index

    order = sorted(range(len(streams)), key=who)
    return [order.index(index) for index in range(len(streams))], max(len(streams), *sizes.values())


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
    calls: dict[Call, int] = field(default_factory=dict)

    def call_number(self, call: Call) -> int:
        """Return a call's number in the job's table."""
        return self.calls.setdefault(call, len(self.calls))

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
    """Return one rank's record; `clock` as in _Places.times."""
    calls = [tables.translate(stream, call) for call in stream.calls]
    folded = Folded()
    places = {phase: _places(stream.phases[phase].symbols, calls, tables) for phase in dict(stream.runs)}
    partials: dict[int, PartialPhase] = {}
    for phase, repetitions in stream.runs:
        if places[phase].at:
            partials[phase] = folded.add(places[phase].symbols, repetitions)
    for phase, partial in partials.items():
        _add_samples(partial, stream.phases[phase], places[phase], clock)
    tail = _places(stream.tail, calls, tables)
    folded.fold(np.array(tail.symbols, int))
    unknown = sum(places[phase].unknown * repetitions for phase, repetitions in stream.runs) + tail.unknown
    return JobRank(
        rank=number,
        phases=folded.phases(tail.times(stream.tail_times, clock)),
        host=stream.host,
        device=stream.device,
        ending=Ending.COMPLETE if stream.complete else Ending.CUT_OFF,
        dropped=stream.dropped + unknown,
        order=folded.order,
    )


@dataclass(frozen=True, slots=True)
class _Places:
    """A sequence of NCCL's calls as calls of the job's table: where those of each stand, and Folded's symbols.

    What this collbench does not know is left out, and counted. A group of one send to and one receive from every rank,
    all of one size, is what NCCL makes of an all-to-all, and becomes one again.
    """

    at: tuple[slice, ...]
    firsts: Numbers  # where each of `at` begins
    symbols: tuple[int, ...]
    unknown: int

    def first(self, times: Numbers) -> Numbers:
        """Return times of the first call at each place."""
        return times[self.firsts]

    def over(self, function: Callable[[Numbers], Any], times: Numbers) -> Numbers:
        """Return a function of the times at each place: parts of an all-to-all share a kernel."""
        if len(self.at) + self.unknown == len(times):  # a call at each place, as nearly always
            return self.first(times)
        return np.array([function(times[at]) for at in self.at], float)

    def times(self, repetition: Repetition, clock: int) -> Times:
        """Return the times of a repetition; `clock` turns its starts into ns from the job's own."""
        pauses = np.diff(repetition.starts, prepend=repetition.before or np.nan).clip(min=0.0) / 1e3
        return Times(
            self.first(_micro(repetition.starts, clock)),
            self.first(pauses),
            self.over(np.max, _micro(repetition.gpu)),
            self.over(np.min, _micro(repetition.begins, clock)),
            self.over(np.max, repetition.ahead / 1e3),
        )


def _places(symbols: Numbers, translated: Sequence[Call | None], tables: _Tables) -> _Places:
    grouped, at, numbers = symbols % 2 == 1, list[slice](), list[int]()
    starts = [index for index in range(len(symbols)) if not grouped[index] or index == 0]
    calls = [translated[symbol // 2] for symbol in symbols.tolist()]
    for start, end in itertools.pairwise([*starts, len(symbols)]):
        exchange = None if grouped[start] else _exchange(calls[start:end], tables)
        if exchange is not None:
            at.append(slice(start, end))
            numbers.append(2 * tables.call_number(exchange))
            continue
        for index, call in enumerate(calls[start:end], start):
            if call is not None:
                at.append(slice(index, index + 1))
                numbers.append(2 * tables.call_number(call) + int(grouped[index]))
    return _Places(tuple(at), np.array([place.start for place in at], int), tuple(numbers), calls.count(None))


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


def _add_samples(partial: PartialPhase, repeated: Repeated, places: _Places, clock: int) -> None:
    """Add the repetitions that the plugin kept of a phase, and their usual times."""
    kept = [raw for raw in repeated.samples if raw.repetition < partial.repetitions]
    timed = [places.times(raw, clock) for raw in kept]
    partial.pauses, partial.gpu = (
        typical(np.reshape(rows, (-1, len(places.at))))
        for rows in ([times.pauses for times in timed], [times.gpu for times in timed])
    )
    partial.samples += [
        sample(raw.repetition, times.starts, times.gpu, times.begins) for raw, times in zip(kept, timed, strict=True)
    ]


def _micro(times: Numbers, clock: int = 0) -> Numbers:
    """Return ns as µs on the job's clock, NaN where they are 0: unknown."""
    return np.where(times > 0, times / 1e3 + clock / 1e3, np.nan)
