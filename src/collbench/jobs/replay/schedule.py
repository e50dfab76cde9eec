"""The schedule of a replay from a recorded job: what each rank posts, in which order, after which pauses. Pure.

What cannot be replayed as recorded is refused here, in one line, before a process starts: a missing rank, groups whose
members disagree, calls that would wait for each other forever.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from collbench.jobs.calls import common, matched, pauses_of, step_seconds
from collbench.jobs.job import Call, Job, JobRank, Phase, PointToPoint, check_sent_again
from collbench.jobs.repeats import medians
from collbench.jobs.replay.results import ReplayedCall
from collbench.model.errors import UsageError
from collbench.model.operations import Operation
from collbench.model.units import DTYPE_BYTES, REDOPS, format_size

P2P, MIXED = "p2p", "mixed"
# What only moves is moved as bytes, as NCCL does it [nccl 2.28 src/collectives.cc: ncclAllGather and ncclBroadcast].
_BYTES = "uint8"
# torch.distributed reduces no unsigned words; a sum of signed ones of the same width is the same work.
_SIGNED = {"uint32": "int32", "uint64": "int64"}


@dataclass(frozen=True, slots=True)
class Post:
    """One call of a rank. `size_bytes` is a whole number of elements, and of blocks if blocks are shared.

    `operation` is a collective's value or a PointToPoint's. `root` and `peer` are ranks of the job.
    """

    operation: str
    size_bytes: int
    dtype: str = _BYTES
    reduction: str = ""
    root: int | None = None
    peer: int | None = None

    @property
    def is_message(self) -> bool:
        """True for a send or a receive."""
        return self.operation in set(PointToPoint)


@dataclass(frozen=True, slots=True)
class Unit:
    """Calls that a rank passes to NCCL together, on one group, `pause` seconds after the unit before.

    `group` is an index into Schedule.groups. Units of the same `meeting`, on several ranks, wait for each other.
    `positions` are those of the recorded step that it was made of.
    """

    group: int
    posts: tuple[Post, ...]
    pause: float = 0.0
    positions: tuple[int, ...] = ()
    meeting: int = -1

    @property
    def messages(self) -> bool:
        """True if it sends and receives, False for collectives."""
        return self.posts[0].is_message

    @property
    def size_bytes(self) -> int:
        """Bytes: the sum of its collectives, or the most that it sends or receives."""
        if not self.messages:
            return sum(post.size_bytes for post in self.posts)
        totals = {
            direction: sum(post.size_bytes for post in self.posts if post.operation == direction)
            for direction in PointToPoint
        }
        return max(totals.values())


@dataclass(frozen=True, slots=True)
class Schedule:
    """A step of all ranks: `ranks[r]` are rank r's units, after which it pauses for `rests[r]` seconds.

    `groups` are ranks, ascending. `kinds[meetings[m]]` is the kind of call of meeting m. `assumed` says
    what is replayed because the recording lacks something.
    """

    groups: tuple[tuple[int, ...], ...]
    ranks: tuple[tuple[Unit, ...], ...]
    rests: tuple[float, ...]
    meetings: tuple[int, ...]
    kinds: tuple[ReplayedCall, ...]
    recorded_seconds: float | None = None
    recorded_step_seconds: float | None = None
    assumed: tuple[str, ...] = ()

    @property
    def pause_seconds(self) -> float:
        """The longest sum of pauses that a rank makes in a step."""
        return max(rest + sum(unit.pause for unit in units) for rest, units in zip(self.rests, self.ranks, strict=True))


def operation_of(name: str) -> Operation:
    """Return the operation as which a kind of call of a schedule is measured."""
    return {P2P: Operation.SENDRECV, MIXED: Operation.ALLREDUCE}.get(name) or Operation(name)


@dataclass(frozen=True, slots=True)
class ReplayLoad:
    """What every rank runs from a common start: so many steps, with pauses, with calls, or with both.

    `delay_s` is how long a GPU waits before the start, so that its host gets ahead of it. A `traced` load runs under
    torch's profiler: its units are as long as their kernels, and its step is of no use.
    """

    steps: int
    pauses: bool = True
    calls: bool = True
    delay_s: float = 0.0
    traced: bool = False


@dataclass(frozen=True, slots=True)
class ReplayTimes:
    """One rank's seconds: of a step, the mean, and of each of its units, from its begin to its end, the mean.

    `units` is () without calls, and where a trace does not say which kernel is whose. A unit's seconds include the wait
    for other ranks. `queued` is False if the host fell behind its device.
    """

    step: float
    units: tuple[float, ...] = ()
    queued: bool = True


def schedule_of(job: Job) -> Schedule:
    """Return what each rank does in a step. Raises UsageError for what cannot be replayed."""
    _check_whole(job)
    by_rank = sorted(job.ranks, key=lambda rank: rank.rank)
    phases = [_step_of(rank) for rank in by_rank]
    repetitions = common(job)
    steps = [step_seconds(phase, repetitions) for phase in phases]
    made = [_units(job, rank, *of_rank) for rank, of_rank in enumerate(zip(phases, steps, strict=True))]
    used = sorted({unit.group for own, _ in made for unit in own})
    if not used:
        raise UsageError("the step sends nothing between two ranks: there is nothing to replay")
    groups = tuple(_members(job, group) for group in used)
    units = [[replace(unit, group=used.index(unit.group)) for unit in own] for own, _ in made]
    meetings = [meeting for group, members in enumerate(groups) for meeting in _Streams(group, members, units).met()]
    meeting_of = {pair: number for number, pairs in enumerate(meetings) for pair in pairs}
    scheduled = tuple(
        tuple(replace(unit, meeting=meeting_of[rank, number]) for number, unit in enumerate(own))
        for rank, own in enumerate(units)
    )
    recorded = _recorded(job, meetings, units)
    kinds, which = _kinds(meetings, scheduled, recorded)
    totals = [[recorded[unit.meeting] for unit in own] for own in scheduled]
    known = all(seconds is not None for own in totals for seconds in own)
    return Schedule(
        groups=groups,
        ranks=scheduled,
        rests=tuple(rest for _, rest in made),
        meetings=which,
        kinds=kinds,
        recorded_seconds=max(sum(filter(None, own)) for own in totals) if known else None,
        recorded_step_seconds=max(filter(None, steps)) if all(steps) else None,
        assumed=tuple(_assumed(job, phases)),
    )


# What can be replayed.


def _check_whole(job: Job) -> None:
    check_sent_again(job)
    missing = sorted(set(range(job.world_size)) - {rank.rank for rank in job.ranks})
    if missing:
        names = ", ".join(map(str, missing[:4])) + (", …" if len(missing) > 4 else "")
        raise UsageError(f"the job has no record of rank {names} of {job.world_size}: its partners would wait forever")
    dropped = [rank.rank for rank in job.ranks if rank.dropped]
    if dropped:
        raise UsageError(f"calls of rank {dropped[0]} were dropped while recording: the other calls would not match")


def _step_of(rank: JobRank) -> Phase:
    if rank.step is None:
        raise UsageError(
            "the job has no known step: record it with collbench.step() in its loop, or say how long a step is with "
            "'collbench import JOB --calls-per-step N'"
        )
    return rank.step


def _shared(job: Job, call: Call) -> bool:
    return job.groups[call.group].size > 1


def _members(job: Job, group: int) -> tuple[int, ...]:
    members = job.groups[group]
    if members.size == job.world_size:
        return tuple(range(job.world_size))
    if not members.ranks:
        raise UsageError(
            f"the recording does not say which {members.size} ranks are in a group: record the job with the plugin"
        )
    return tuple(sorted(members.ranks))


def _assumed(job: Job, phases: Sequence[Phase]) -> Iterator[str]:
    """Yield what is replayed in place of what the recording lacks."""
    calls = {call for phase in phases for call in job.called(phase) if _shared(job, call)}
    reducing = [call for call in calls if call.collective is not None and call.collective.reduces]
    if any(call.reduction not in REDOPS for call in reducing):
        yield "sums: the recording does not have the reduction"
    if any(call.dtype not in DTYPE_BYTES for call in reducing):
        yield "float32 where the recording does not have the type"
    if all(position.pause is None for phase in phases for position in phase.positions):
        yield "no pauses: the recording has none"
    if any(call.captured for call in calls):
        yield "plain launches of calls that the job captured in CUDA graphs"


# From positions to units.


def _units(job: Job, rank: int, phase: Phase, step: float | None) -> tuple[list[Unit], float]:
    """Return a rank's units, whose pauses add up to its step in the job, and the pause at the end.

    Calls of one NCCL group are one unit for each communicator, as torch batches them.
    """
    units, pause, pauses = list[Unit](), 0.0, pauses_of(phase, step)
    for together in phase.units:
        pause += sum(pauses[at] for at in together)
        by_group: dict[int, list[int]] = {}
        for at in together:
            call = job.calls[phase.positions[at].call]
            if _shared(job, call) and call.size_bytes:  # other calls take no time: only their pauses are kept
                by_group.setdefault(call.group, []).append(at)
        for group, own in by_group.items():
            members = _members(job, group)
            if rank not in members:
                raise UsageError(f"rank {rank} calls a group that it is not in: {', '.join(map(str, members))}")
            posts = [post for at in own for post in _posts(job, job.calls[phase.positions[at].call], members, rank)]
            if len({post.is_message for post in posts}) > 1:
                raise UsageError(f"rank {rank} puts sends and collectives into one group: that cannot be replayed")
            units.append(Unit(group, tuple(posts), pause, tuple(own)))
            pause = 0.0
    return units, pause


def _posts(job: Job, call: Call, members: Sequence[int], rank: int) -> Iterator[Post]:
    """Yield what a rank posts for a recorded call. Roots and peers are ranks of the recorded group's own order."""
    order = job.groups[call.group].ranks or tuple(members)
    ranks, operation = len(members), call.collective
    if operation is None:
        if call.peer is None:
            raise UsageError("the recording does not have the peers of sends: record the job with the plugin")
        yield Post(call.operation, call.size_bytes, peer=order[call.peer])
        return
    if operation is Operation.SENDRECV:
        at = members.index(rank)
        yield Post(PointToPoint.SEND, call.size_bytes, peer=members[(at + 1) % ranks])
        yield Post(PointToPoint.RECV, call.size_bytes, peer=members[at - 1])
        return
    if operation.irregular:
        raise UsageError(f"the recording has {operation} without its block sizes: the bytes per peer are unknown")
    if operation.rooted and call.root is None:
        raise UsageError(
            f"the recording does not say which rank is the root of a {operation}: record the job with the plugin"
        )
    dtype = _BYTES
    if operation.reduces:
        dtype = _SIGNED.get(call.dtype, call.dtype) if call.dtype in DTYPE_BYTES else "float32"
    unit = DTYPE_BYTES[dtype] * (ranks if operation.shares else 1)
    yield Post(
        operation.value,
        -(-call.size_bytes // unit) * unit,
        dtype,
        (call.reduction if call.reduction in REDOPS else "sum") if operation.reduces else "",
        None if not operation.rooted or call.root is None else order[call.root],
    )


# Which units wait for each other: the step is executed without time.

_UnitKey = tuple[int, int]  # a rank, and the number of one of its units


class _Streams:
    """The units that each member of a group has yet to run, and those that have met.

    A rank posts without waiting, but each group runs one unit after another, as a stream does.
    """

    def __init__(self, group: int, members: Sequence[int], units: Sequence[Sequence[Unit]]) -> None:
        self._members, self._units = members, units
        self._left = {
            rank: deque((rank, number) for number, unit in enumerate(units[rank]) if unit.group == group)
            for rank in members
        }
        self._partners: dict[_UnitKey, set[_UnitKey]] = {}
        self._ended: dict[_UnitKey, int] = {}  # in which order
        self._open: dict[int, list[Post]] = {}  # of the unit of messages that a rank is in, those without a partner

    def met(self) -> list[tuple[_UnitKey, ...]]:
        """Run all of it; return the meetings in the order in which they end.

        Raises UsageError if some units would wait forever.
        """
        while waiting := [queue[0] for queue in self._left.values() if queue]:
            if not (self._collective(waiting) or self._messages(waiting)):
                raise UsageError(self._stuck(waiting[0]))
        return sorted(_joined(self._partners), key=lambda meeting: max(self._ended[key] for key in meeting))

    def _unit(self, key: _UnitKey) -> Unit:
        return self._units[key[0]][key[1]]

    def _collective(self, waiting: Sequence[_UnitKey]) -> bool:
        """Perform the collectives that all members have reached; return whether there were any."""
        if len(waiting) < len(self._members) or any(self._unit(key).messages for key in waiting):
            return False
        _check_alike([(key[0], self._unit(key)) for key in waiting])
        for key in waiting:
            self._partners[key] = set(waiting) if key is waiting[0] else {waiting[0]}
            self._end(key)
        return True

    def _messages(self, waiting: Sequence[_UnitKey]) -> bool:
        """Let ranks send what others expect; return whether any got further."""
        begun = [key for key in waiting if self._unit(key).messages and key not in self._partners]
        for key in begun:
            self._partners[key] = {key}
            self._open[key[0]] = list(self._unit(key).posts)
        matched = [self._matched(rank, peer) for rank in self._open for peer in self._open]
        for rank in [rank for rank, posts in self._open.items() if not posts]:
            del self._open[rank]
            self._end(self._left[rank][0])
        return bool(begun) or any(matched)

    def _matched(self, rank: int, peer: int) -> bool:
        """Match what a rank sends to a peer with what the peer expects, in order; return whether there was any."""
        sends = [post for post in self._open[rank] if (post.operation, post.peer) == (PointToPoint.SEND, peer)]
        recvs = [post for post in self._open[peer] if (post.operation, post.peer) == (PointToPoint.RECV, rank)]
        for send, recv in zip(sends, recvs, strict=False):
            if send.size_bytes != recv.size_bytes:
                raise UsageError(
                    f"rank {rank} sends {format_size(send.size_bytes)} to rank {peer}, which expects "
                    f"{format_size(recv.size_bytes)}: the steps of the ranks do not match"
                )
            self._open[rank].remove(send)
            self._open[peer].remove(recv)
            here, there = self._left[rank][0], self._left[peer][0]
            self._partners[here].add(there)
            self._partners[there].add(here)
        return bool(sends and recvs)

    def _end(self, key: _UnitKey) -> None:
        self._ended[key] = len(self._ended)
        self._left[key[0]].popleft()

    def _stuck(self, key: _UnitKey) -> str:
        group = ", ".join(map(str, self._members))
        return (
            f"call {key[1] + 1} of rank {key[0]} ({_name(self._unit(key))}, group {group}) would wait forever: "
            "the steps of the ranks do not match"
        )


def _joined(partners: Mapping[_UnitKey, set[_UnitKey]]) -> Iterator[tuple[_UnitKey, ...]]:
    """Yield the sets of units that wait for each other, directly or by others."""
    left = dict(partners)
    while left:
        joined, pending = set[_UnitKey](), [next(iter(left))]
        while pending:
            unit = pending.pop()
            if unit not in joined:
                joined.add(unit)
                pending += left.pop(unit)
        yield tuple(sorted(joined))


def _check_alike(units: Sequence[tuple[int, Unit]]) -> None:
    (first, one), *others = units
    for rank, other in others:
        if other.posts != one.posts:
            raise UsageError(
                f"rank {first} calls {_name(one)} where rank {rank} of its group calls {_name(other)}: the "
                "steps of the ranks do not match"
            )


def _name(unit: Unit) -> str:
    post = unit.posts[0]
    more = f" and {len(unit.posts) - 1} more" if len(unit.posts) > 1 else ""
    return f"{post.operation} of {format_size(post.size_bytes)}{more}"


# Kinds of call, and how long they took in the job.


def _kinds(
    meetings: Sequence[Sequence[_UnitKey]], ranks: Sequence[Sequence[Unit]], recorded: Sequence[float | None]
) -> tuple[tuple[ReplayedCall, ...], tuple[int, ...]]:
    """Return the kinds, the largest messages first, and the kind of each meeting."""
    keys = []
    for meeting in meetings:
        units = [ranks[rank][number] for rank, number in meeting]
        names = {P2P if post.is_message else post.operation for unit in units for post in unit.posts}
        keys.append((names.pop() if len(names) == 1 else MIXED, max(u.size_bytes for u in units), len(units)))
    order = sorted(set(keys), key=lambda key: (-key[1], key))
    kinds = []
    for key in order:
        seconds = [spent for spent, own in zip(recorded, keys, strict=True) if own == key]
        known = [spent for spent in seconds if spent is not None]
        # A rank that sends only to itself is a meeting of one rank, without communication.
        kinds.append(ReplayedCall(*key, len(seconds), fmean(known) if len(known) == len(seconds) else None))
    return tuple(kinds), tuple(order.index(key) for key in keys)


def _recorded(job: Job, meetings: Iterable[Sequence[_UnitKey]], units: Sequence[Sequence[Unit]]) -> list[float | None]:
    """Return the seconds of each meeting's transfer, as the job's page has them; None if unknown, as of messages."""
    usual: dict[tuple[int, int], float] = {}
    for group in matched(job):
        for rank, places in zip(group.ranks, group.places, strict=True) if group.whole else ():
            seconds = medians(group.moving, 0).tolist()
            usual |= {(rank, at): spent for at, spent in zip(places.tolist(), seconds, strict=True)}
    spent = [
        max(usual.get((rank, at), math.nan) for at in units[rank][number].positions) for (rank, number), *_ in meetings
    ]
    return [seconds if math.isfinite(seconds) else None for seconds in spent]
