"""One rank of `collbench replay`: the recorded calls, by torch.distributed, on verified buffers.

As in torch, pauses are on the stream where training computes, and the calls of each group on the group's own stream.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile

from collbench.jobs.job import PointToPoint
from collbench.jobs.replay.schedule import Post, ReplayLoad, ReplayTimes, Schedule, Unit
from collbench.measurement.backends.torch_rank import (
    Elements,
    Message,
    RankPart,
    Segment,
    call_of,
    part_of,
    run,
    takes_one_buffer,
)
from collbench.model.errors import MachineError
from collbench.model.operations import Operation
from collbench.model.units import DTYPE_BYTES
from collbench.overlaps.streams import Device, Stream, opened, room, seconds_between

# A pause that is shorter than a launch is left out.
_MIN_PAUSE_S = 2e-6
# Messages of equal size in two groups differ by this.
_GROUP_SALT = 104_723


def message_of(post: Post, rank: int, members: Sequence[int], group: int, device: torch.device) -> Message:
    """Return the buffers of a call of this rank in a group of `members`."""
    kind = Elements(post.dtype, post.reduction, len(members))
    count, salt = post.size_bytes // DTYPE_BYTES[post.dtype], group * _GROUP_SALT + post.size_bytes
    if post.is_message:
        assert post.peer is not None  # noqa: S101  # as the schedule has it
        sends = post.operation == PointToPoint.SEND
        received = () if sends else (Segment(0, count, (post.peer,)),)
        part = RankPart(count, 0, ()) if sends else RankPart(0, count, received)
        return Message(kind, part, rank, device, in_place=False, salt=salt)
    position, root = members.index(rank), 0 if post.root is None else members.index(post.root)
    part = part_of(Operation(post.operation), count, position, len(members), root)
    return Message(kind, part, position, device, in_place=takes_one_buffer(Operation(post.operation)), salt=salt)


def run_coalesced(
    calls: Sequence[Callable[[], dist.Work | None]], group: dist.ProcessGroup, device: torch.device
) -> None:
    """Run several collectives at once if the backend can; torch's own manager only takes collectives of one kind."""
    if device.type == "cpu":
        for call in calls:
            work = call()
            if work is not None:
                work.wait()
        return
    group._start_coalescing(device)
    for call in calls:
        call()
    work = group._end_coalescing(device)
    if work is not None:
        work.wait()


def exchange(posts: Sequence[Post], messages: Sequence[Message], group: dist.ProcessGroup, rank: int) -> None:
    """Run a unit's sends and receives as one batch; a message from a rank to itself is copied."""
    own: dict[str, list[Message]] = {PointToPoint.SEND: [], PointToPoint.RECV: []}
    batch = []
    for post, message in zip(posts, messages, strict=True):
        if post.peer == rank:
            own[post.operation].append(message)
        elif post.operation == PointToPoint.SEND:
            batch.append(dist.P2POp(dist.isend, message.sent, post.peer, group=group))
        else:
            batch.append(dist.P2POp(dist.irecv, message.received, post.peer, group=group))
    for source, target in zip(own[PointToPoint.SEND], own[PointToPoint.RECV], strict=True):
        target.received.copy_(source.sent)
    for work in dist.batch_isend_irecv(batch) if batch else ():
        work.wait()


@dataclass(slots=True)
class PreparedStep:
    """A rank's step: its units, each one's stream, call and messages. Successive calls of a kind share a message."""

    groups: tuple[tuple[int, ...], ...]
    units: tuple[Unit, ...]
    rest: float  # the pause at the end
    streams: dict[int, Stream]  # by group
    messages: dict[object, Message] = field(default_factory=dict)
    calls: list[Callable[[], object]] = field(default_factory=list)
    used: list[list[Message]] = field(default_factory=list)


class Rank:
    """One rank, and the step that it has prepared."""

    def __init__(self, rank: int, ranks: int, device: Device) -> None:
        self._rank, self._device = rank, device
        self._world = device.group(range(ranks))
        self._tiny = torch.zeros(1, device=device.device)
        self._step: PreparedStep | None = None
        self._verifications = itertools.count()  # the same on all ranks, which get the same requests

    def prepare(self, schedule: Schedule) -> None:
        """Make groups, and messages for each kind of call. Raises MachineError if they do not fit, or a type lacks."""
        self._step = None
        groups = [self._device.group(members) for members in schedule.groups]
        mine = [group for group, members in enumerate(schedule.groups) if self._rank in members]
        for group in mine:  # starts its communicator
            dist.all_reduce(self._tiny, group=groups[group])
        units, rest = schedule.ranks[self._rank], schedule.rests[self._rank]
        step = PreparedStep(schedule.groups, units, rest, {group: self._device.stream() for group in mine})
        try:
            with room():
                for unit in units:
                    used = [self._message(step, unit, at) for at in range(len(unit.posts))]
                    step.used.append(used)
                    step.calls.append(self._call(unit, used, groups[unit.group], step.groups[unit.group]))
            self._device.finish()
        except (AttributeError, RuntimeError, TypeError) as error:  # of a torch without this type
            raise MachineError(str(error).splitlines()[0]) from error
        self._step = step

    def verify(self) -> int | None:
        """Run a step without pauses, on new data; compare each message after its first use, on the stream of that.

        Return how many elements were wrong; None if no result is known.
        """
        step, verification = self._prepared(), next(self._verifications)
        counts = {group: torch.zeros((), dtype=torch.int64, device=self._device.device) for group in step.streams}
        for message in step.messages.values():
            message.fill(verification)
        self._device.finish()
        checked = [
            partial(_call_and_compare, call, used, counts[unit.group])
            for unit, call, used in zip(step.units, step.calls, step.used, strict=True)
        ]
        self._run(ReplayLoad(1, pauses=False), checked)
        for message in step.messages.values():
            message.fill(verification, steady=True)  # repeated in place, other data would overflow
        self._device.finish()
        known = any(message.known for message in step.messages.values())
        return sum(map(int, counts.values())) if known else None

    def run(self, load: ReplayLoad) -> ReplayTimes:
        """Run a load."""
        calls = self._prepared().calls
        if not load.traced:
            return self._run(load, calls)
        with profile(activities=[ProfilerActivity.CUDA]) as trace:
            self._run(load, calls)
        return ReplayTimes(0.0, _means(kernel_seconds(trace.events(), len(calls) * load.steps), load.steps))

    def _run(self, load: ReplayLoad, calls: Sequence[Callable[[], object]]) -> ReplayTimes:
        """Queue all of it. A call waits for what was queued before it on the main stream, as in torch; the step ends
        when its pauses and all of its calls have.
        """
        step, main = self._prepared(), self._device.main
        if load.delay_s:
            main.sleep(load.delay_s)
        main.do(lambda: dist.all_reduce(self._tiny, group=self._world))  # brings the ranks together
        start, stamps, last = main.stamp(), list[tuple[Any, Any]](), None
        for _ in range(load.steps):
            for unit, call in zip(step.units, calls, strict=True):
                if load.pauses and unit.pause >= _MIN_PAUSE_S:
                    main.sleep(unit.pause)
                if load.calls:
                    side, last = step.streams[unit.group], main.stamp()
                    side.wait(last)
                    begin = side.stamp()
                    side.do(call)
                    stamps.append((begin, side.stamp()))
            if load.pauses and step.rest >= _MIN_PAUSE_S:
                main.sleep(step.rest)
            if load.calls:
                for side in step.streams.values():
                    main.wait(side.stamp())
        end = main.stamp()
        queued = not (self._device.runs_ahead and last is not None and last.query())
        self._device.finish()
        took = [seconds_between(*moments) for moments in stamps]
        return ReplayTimes(seconds_between(start, end) / load.steps, _means(took, load.steps), queued)

    def _prepared(self) -> PreparedStep:
        if self._step is None:
            raise RuntimeError("nothing is prepared: the first request must be a step")
        return self._step

    def _message(self, step: PreparedStep, unit: Unit, at: int) -> Message:
        """Return the message of one of a unit's calls: concurrent ones have their own, successive ones share."""
        post = unit.posts[at]
        key: object = (unit.group, post, unit.posts[:at].count(post))
        if post.operation == PointToPoint.SEND:  # it only reads
            key = (unit.group, post.operation, post.size_bytes)
        if key not in step.messages:
            members = step.groups[unit.group]
            step.messages[key] = message_of(post, self._rank, members, unit.group, self._device.device)
        return step.messages[key]

    def _call(
        self, unit: Unit, used: Sequence[Message], group: dist.ProcessGroup, members: Sequence[int]
    ) -> Callable[[], object]:
        if unit.messages:
            return lambda: exchange(unit.posts, used, group, self._rank)
        several = len(unit.posts) > 1
        calls = []
        for post, message in zip(unit.posts, used, strict=True):
            root, redop = post.root or 0, post.reduction or "sum"
            call = call_of(Operation(post.operation), group, members, self._rank, root=root, redop=redop)
            calls.append(partial(call, message.sent, message.received, async_op=several))
        return calls[0] if len(calls) == 1 else lambda: run_coalesced(calls, group, self._device.device)


def _call_and_compare(call: Callable[[], object], used: Sequence[Message], count: torch.Tensor) -> None:
    call()
    for message in used:
        message.uses += 1
        if message.uses == 1:
            message.wrong(count)


def _means(took: Sequence[float], steps: int) -> tuple[float, ...]:
    """Return each unit's mean over the steps, which `took` has one after another."""
    units = len(took) // steps
    return tuple(sum(took[number::units]) / steps for number in range(units))


# The names of NCCL's kernels, ncclKernel_… before 2.19. The profiler's own ranges on the GPU are named nccl:….
_KERNEL = re.compile(r"nccl(Dev)?Kernel")
_autograd: Any = torch.autograd


def kernel_seconds(events: Iterable[FunctionEvent], calls: int) -> list[float]:
    """Return the seconds of each call's kernel, in launch order; [] if calls and kernels do not match.

    The common start is one kernel before them. A call has no kernel on a single rank, and several if NCCL splits it.
    """
    kernels = [
        event for event in events if event.device_type == _autograd.DeviceType.CUDA and _KERNEL.match(event.name)
    ]
    kernels.sort(key=lambda event: event.id)  # CUPTI numbers launches
    if not calls <= len(kernels) <= calls + 1:
        return []
    return [(event.time_range.end - event.time_range.start) / 1e6 for event in kernels[len(kernels) - calls :]]


if __name__ == "__main__":
    run(sys.argv[1:], Rank, opened)
