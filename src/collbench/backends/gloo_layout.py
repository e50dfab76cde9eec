"""Which elements a gloo rank puts into a collective and gets out of it, by nccl-tests' definitions. Free of torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from collbench.backends.gloo_messages import Task

REDUCING = ("allreduce", "reduce", "reducescatter")
# torch gives these no second buffer: gloo works in the one that holds the input.
ONE_BUFFER = ("allreduce", "broadcast", "reduce")


@dataclass(frozen=True, slots=True)
class Segment:
    """Received elements [start, start + length): the reduction of what `senders` put in from element `offset` on."""

    senders: Sequence[int]
    offset: int
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Layout:
    """One rank's buffers in elements: it sends `sent` and receives `received`, of which `segments` are verified.

    With `shared` both lie in one buffer, the shorter at element `place` of the longer.
    """

    sent: int
    received: int
    segments: tuple[Segment, ...]
    shared: bool
    place: int

    @property
    def length(self) -> int:
        """Elements of all buffers together."""
        return max(self.sent, self.received) if self.shared else self.sent + self.received


def layout(task: Task, position: int, members: int) -> Layout:
    """Return the buffers of the rank at `position` of so many members."""
    count, operation = task["count"], task["operation"]
    block, at_root = count // members, position == task["root"]
    whole = {
        "gather": (block, count if at_root else 0),
        "scatter": (count if at_root else 0, block),
        "allgather": (block, count),
        "reducescatter": (count, block),
    }
    sent, received = whole.get(operation, (count, count))
    shared = task["in_place"] or operation in ONE_BUFFER
    place = position * block if 0 < min(sent, received) < max(sent, received) else 0
    return Layout(sent, received, tuple(_segments(task, position, members)), shared, place)


def _segments(task: Task, position: int, members: int) -> Iterator[Segment]:
    """Yield where each stretch of what this rank receives must come from; nothing where the result is undefined."""
    count, root = task["count"], task["root"]
    block, everyone = count // members, range(members)
    match task["operation"]:
        case "allreduce":
            yield Segment(everyone, 0, 0, count)
        case "reduce":
            yield Segment(everyone, 0, 0, count if position == root else 0)
        case "broadcast":
            yield Segment((root,), 0, 0, count)
        case "reducescatter":
            yield Segment(everyone, position * block, 0, block)
        case "scatter":
            yield Segment((root,), position * block, 0, block)
        case "sendrecv":
            yield Segment(((position - 1) % members,), 0, 0, count)
        case "alltoall":
            yield from (Segment((sender,), position * block, sender * block, block) for sender in everyone)
        case "allgather":
            yield from (Segment((sender,), 0, sender * block, block) for sender in everyone)
        case "gather" if position == root:
            yield from (Segment((sender,), 0, sender * block, block) for sender in everyone)
