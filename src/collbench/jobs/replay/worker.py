"""One rank of `collbench replay`: the recorded calls, by torch.distributed, on verified buffers."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
import torch.distributed as dist

from collbench.jobs.job import PointToPoint
from collbench.jobs.replay.protocol import Prepare, Prepared, ReplayLoad, ReplayTimes, Verified, Verify
from collbench.jobs.replay.schedule import Post, Unit
from collbench.jobs.replay.streams import Accelerator, CpuAccelerator, CudaAccelerator, Units
from collbench.measurement.backends.torch_collectives import Layout, Segment, call_of, hashed, layout_of
from collbench.measurement.backends.torch_rank import Answers, run
from collbench.model.operations import Operation
from collbench.model.units import DTYPE_BYTES

# What ranks send, and what must arrive.

# Elements made and compared at a time, so that a message's data costs no further messages of 64-bit integers.
_WINDOW = 2**22
# Ranks and buffers hold the same random sequence from other elements on, and at every verification: primes, so that no
# swap and no earlier result goes unseen.
_RANK_SHIFT, _GROUP_SHIFT, _SIZE_SHIFT, _VERIFICATION_SHIFT = 4099, 104729, 7919, 15485863
_EIGHT_BITS = ("float8_e4m3fn", "float8_e5m2")


def exact(dtype: str, reduction: str, ranks: int) -> bool:
    """Return whether a reduction of what so many ranks send has one right result in this dtype."""
    float_like = "float" in dtype
    match reduction:
        case "sum":  # of 0s and 1s: e4m3 has all integers up to 16, int8 up to 127
            return ranks <= (16 if dtype in _EIGHT_BITS else 127)
        case "prod":  # of 1s and 2s: int8 wraps at 2^7
            return ranks <= 6
        case "avg":  # 2^k ranks divide without a remainder, which integers would drop
            return float_like and ranks & (ranks - 1) == 0 and ranks <= 16
    return True


def reduce_parts(parts: Sequence[torch.Tensor], reduction: str) -> torch.Tensor:
    """Return the reduction of the ranks' contributions, which are integers."""
    stacked = torch.stack(list(parts))
    match reduction:
        case "sum":
            return stacked.sum(0)
        case "avg":
            return stacked.sum(0, dtype=torch.float64) / len(parts)
        case "prod":
            return stacked.prod(0)
        case "max":
            return stacked.amax(0)
    return stacked.amin(0)


@dataclass(slots=True)
class Buffers:
    """What a rank sends and receives, one tensor if the call is in place; reused by every call of this kind."""

    sent: torch.Tensor
    received: torch.Tensor
    sends: int  # elements of `sent` that are filled
    segments: tuple[Segment, ...]
    salt: int
    post: Post
    verification: int = 0
    uses: int = 0

    @property
    def reduces(self) -> bool:
        """True if the result is a reduction."""
        return bool(self.post.reduction)

    def value(self, rank: int, first: int, count: int) -> torch.Tensor:
        """Return elements of a rank's sequence as integers: bytes, or of a reduction 0 and 1, for products 1 and 2."""
        shift = rank * _RANK_SHIFT + self.verification * _VERIFICATION_SHIFT + self.salt
        values = hashed(first + shift, count, self.sent.device)
        if not self.reduces:
            return values & 0xFF
        return (values & 1) + (1 if self.post.reduction == "prod" else 0)

    def fill(self, rank: int, verification: int) -> None:
        """Write what this rank sends in the verification of that number; where it only receives there are zeros."""
        self.verification = verification
        self.received.zero_()
        self.uses = 0
        for start in range(0, self.sends, _WINDOW):
            stop = min(start + _WINDOW, self.sends)
            self.sent[start:stop] = self.value(rank, start, stop - start).to(self.sent.dtype)

    def make_repeatable(self) -> None:
        """Write zeros if the call is a reduction: repeated in place, other data would overflow."""
        if self.reduces:
            self.sent.zero_()
            self.received.zero_()

    def wrong(self, count: torch.Tensor) -> None:
        """Add to `count` how many received elements are not what the ranks sent."""
        for segment in self.segments:
            for start in range(0, segment.length, _WINDOW):
                length = min(_WINDOW, segment.length - start)
                parts = [self.value(sender, segment.first + start, length) for sender in segment.senders]
                expected = reduce_parts(parts, self.post.reduction) if self.reduces else parts[0]
                begin = segment.start + start
                delivered = self.received[begin : begin + length]
                count += (delivered != expected.to(delivered.dtype)).sum()


# What works in the buffer that holds the input.
_IN_PLACE = (Operation.ALLREDUCE, Operation.REDUCE, Operation.BROADCAST)


def buffers_of(post: Post, rank: int, members: Sequence[int], group: int, device: torch.device) -> Buffers:
    """Return the buffers of a call of this rank in a group of `members`."""
    dtype = getattr(torch, post.dtype)
    layout = _layout(post, rank, members, post.size_bytes // DTYPE_BYTES[post.dtype])
    known = not post.reduction or exact(post.dtype, post.reduction, len(members))
    salt = (group * _GROUP_SHIFT + post.size_bytes * _SIZE_SHIFT) % 2**31
    if post.operation in _IN_PLACE:
        sent = received = torch.empty(max(layout.sends, layout.receives), dtype=dtype, device=device)
    else:
        sent, received = (torch.empty(n, dtype=dtype, device=device) for n in (layout.sends, layout.receives))
    return Buffers(sent, received, layout.sends, layout.segments if known else (), salt, post)


def _layout(post: Post, rank: int, members: Sequence[int], count: int) -> Layout:
    """Return what a rank sends and receives of a call of `count` elements; senders are ranks of the job."""
    if post.operation == PointToPoint.SEND:
        return Layout(count, 0, ())
    if post.operation == PointToPoint.RECV:
        assert post.peer is not None  # noqa: S101  # as the schedule has it
        return Layout(0, count, (Segment(0, count, (post.peer,)),))
    root = 0 if post.root is None else members.index(post.root)
    layout = layout_of(Operation(post.operation), count, members.index(rank), len(members), root)
    by_rank = (replace(one, senders=tuple(members[sender] for sender in one.senders)) for one in layout.segments)
    return replace(layout, segments=tuple(by_rank))


# The calls.


def run_coalesced(
    calls: Sequence[Callable[[], dist.Work | None]], group: dist.ProcessGroup, device: torch.device
) -> None:
    """Run several collectives at once if the backend can; torch's own manager only takes collectives of one kind."""
    if device.type == "cpu":
        for call in calls:
            one = call()
            if one is not None:
                one.wait()
        return
    group._start_coalescing(device)
    for call in calls:
        call()
    work = group._end_coalescing(device)
    if work is not None:
        work.wait()


def exchange(posts: Sequence[Post], buffers: Sequence[Buffers], group: dist.ProcessGroup, rank: int) -> None:
    """Run a unit's sends and receives as one batch; a message from a rank to itself is copied."""
    own = [one.sent for post, one in zip(posts, buffers, strict=True) if _to_self(post, rank, PointToPoint.SEND)]
    kept = [one.received for post, one in zip(posts, buffers, strict=True) if _to_self(post, rank, PointToPoint.RECV)]
    for source, target in zip(own, kept, strict=True):
        target.copy_(source)
    batch = [
        dist.P2POp(dist.isend, one.sent, post.peer, group=group)
        if post.operation == PointToPoint.SEND
        else dist.P2POp(dist.irecv, one.received, post.peer, group=group)
        for post, one in zip(posts, buffers, strict=True)
        if post.peer != rank
    ]
    for work in dist.batch_isend_irecv(batch) if batch else ():
        work.wait()


def _to_self(post: Post, rank: int, direction: PointToPoint) -> bool:
    return post.peer == rank and post.operation == direction


@dataclass(slots=True)
class PreparedStep:
    """A rank's step: its units with their groups, calls and buffers."""

    request: Prepare
    groups: list[dist.ProcessGroup | None]
    buffers: dict[object, Buffers] = field(default_factory=dict)
    posts: list[Callable[[], object]] = field(default_factory=list)
    uses: list[list[Buffers]] = field(default_factory=list)


class Rank:
    """One rank, and the step that it has prepared."""

    def __init__(self, rank: int, ranks: int, accelerator: Accelerator) -> None:
        self._rank, self._accelerator = rank, accelerator
        self._world = accelerator.group(range(ranks))
        self._tiny = torch.zeros(1, device=accelerator.device)
        self._step: PreparedStep | None = None
        self._verifications = itertools.count()  # the same on all ranks, which get the same requests

    def prepare(self, request: Prepare) -> Prepared:
        """Make groups, and one pair of buffers for each kind of call; the answer says why if they do not fit."""
        accelerator, device = self._accelerator, self._accelerator.device
        groups = [accelerator.group(members) for members in request.groups]
        mine = [group for group, members in enumerate(request.groups) if self._rank in members]
        for group in mine:  # starts its communicator, and registered memory needs it
            dist.all_reduce(self._tiny, group=groups[group])
        accelerator.finish()
        step = self._step = PreparedStep(request, list(groups))
        try:
            accelerator.use(request.pauses)
            for group in mine:
                with accelerator.memory(groups[group], request.registration):
                    self._allocate(step, group)
            for unit, used in zip(request.units, step.uses, strict=True):
                step.posts.append(self._post(unit, used, groups[unit.group], device))
            accelerator.finish()
        except (torch.cuda.OutOfMemoryError, MemoryError, AttributeError, RuntimeError, TypeError) as error:
            self._step = None
            return Prepared(str(error).splitlines()[0] if str(error) else "out of memory")
        return Prepared()

    def verify(self) -> Verified:
        """Run a step without pauses, on new data; compare each buffer after its first use, on the stream of that."""
        step, verification = self._prepared(), next(self._verifications)
        count = {
            group: torch.zeros((), dtype=torch.int64, device=self._accelerator.device)
            for group in {unit.group for unit in step.request.units}
        }
        for one in step.buffers.values():
            one.fill(self._rank, verification)
        self._accelerator.finish()
        checked = [
            self._checked(post, used, count[unit.group])
            for unit, post, used in zip(step.request.units, step.posts, step.uses, strict=True)
        ]
        self._run(ReplayLoad(1, pauses=False), checked)
        wrong = sum(int(one) for one in count.values())
        for one in step.buffers.values():
            one.make_repeatable()
        self._accelerator.finish()
        compared = any(one.segments for one in step.buffers.values())
        return Verified(wrong if compared else None)

    def run(self, load: ReplayLoad) -> ReplayTimes:
        """Run a load."""
        return self._run(load, self._prepared().posts)

    def _run(self, load: ReplayLoad, posts: Sequence[Callable[[], object]]) -> ReplayTimes:
        request = self._prepared().request
        pauses = [*(unit.pause for unit in request.units), request.rest]
        units = Units([unit.group for unit in request.units], posts, pauses)
        return self._accelerator.run(load, lambda: dist.all_reduce(self._tiny, group=self._world), units)

    def _prepared(self) -> PreparedStep:
        if self._step is None:
            raise RuntimeError("nothing is prepared: the first request must be a step")
        return self._step

    def _allocate(self, step: PreparedStep, group: int) -> None:
        """Make the buffers of one group: concurrent calls have their own, successive ones share."""
        if not step.uses:
            step.uses = [[] for _ in step.request.units]
        members = step.request.groups[group]
        for number, unit in enumerate(step.request.units):
            if unit.group != group:
                continue
            seen: dict[object, int] = {}
            for post in unit.posts:
                key: object = (group, post)
                if post.operation == PointToPoint.SEND:  # it only reads
                    key = (group, post.operation, post.size_bytes)
                else:
                    seen[key] = seen.get(key, 0) + 1
                    key = (key, seen[key])
                if key not in step.buffers:
                    device = self._accelerator.device
                    step.buffers[key] = buffers_of(post, self._rank, members, group, device)
                step.uses[number].append(step.buffers[key])

    def _post(
        self, unit: Unit, used: Sequence[Buffers], group: dist.ProcessGroup, device: torch.device
    ) -> Callable[[], object]:
        if unit.messages:
            return lambda: exchange(unit.posts, used, group, self._rank)
        members, several = self._prepared().request.groups[unit.group], len(unit.posts) > 1
        calls = []
        for post, one in zip(unit.posts, used, strict=True):
            root, redop = post.root or 0, post.reduction or "sum"
            call = call_of(Operation(post.operation), group, members, self._rank, root=root, redop=redop)
            calls.append(partial(call, one.sent, one.received, async_op=several))
        return calls[0] if len(calls) == 1 else lambda: run_coalesced(calls, group, device)

    @staticmethod
    def _checked(post: Callable[[], object], used: Sequence[Buffers], count: torch.Tensor) -> Callable[[], object]:
        def run_and_compare() -> None:
            post()
            for one in used:
                one.uses += 1
                if one.uses == 1:
                    one.wrong(count)

        return run_and_compare


# The process.


def opened(backend: str, index: int) -> Accelerator:
    """Open the GPU or the core."""
    return CudaAccelerator(index) if backend == "cuda" else CpuAccelerator()


def answers_of(number: int, ranks: int, accelerator: Accelerator) -> Answers:
    """Return what answers each request."""
    rank = Rank(number, ranks, accelerator)
    return {Prepare: rank.prepare, Verify: lambda _: rank.verify(), ReplayLoad: rank.run}


if __name__ == "__main__":
    run(sys.argv[1:], opened, answers_of)
