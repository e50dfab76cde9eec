"""Messages between the gloo parent and its workers, and the elements that each rank sends. Does not load torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias, TypedDict

from collbench.model.operations import Operation

# The elements that a gloo rank contributes to a collective and receives, by nccl-tests' definitions.


@dataclass(frozen=True, slots=True)
class Segment:
    """Received elements [start, start + length): the reduction of what `senders` put in from element `offset` on."""

    senders: Sequence[int]
    offset: int
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Layout:
    """One rank's buffers in elements: it sends `sent` and receives `received`; the `segments` of these are verified.

    With `shared` both lie in one buffer, the shorter at element `offset` of the longer.
    """

    sent: int
    received: int
    segments: tuple[Segment, ...]
    shared: bool
    offset: int

    @property
    def length(self) -> int:
        """Elements of all buffers together."""
        return max(self.sent, self.received) if self.shared else self.sent + self.received


def layout(task: Task, position: int, members: int) -> Layout:
    """Return the buffers of the rank at `position` of so many members."""
    row, at_root = Operation(task["operation"]).collective, position == task["root"]
    sent, received = (part.count(task["count"], members, at_root=at_root) for part in (row.sends, row.receives))
    if row.irregular:
        sent, received = sum(task["blocks"][position]), sum(row[position] for row in task["blocks"])
    shared = task["in_place"] or row.gloo_buffers == 1  # gloo works in the buffer that holds the input
    offset = position * (task["count"] // members) if 0 < min(sent, received) < max(sent, received) else 0
    return Layout(sent, received, tuple(_segments(task, position, members)), shared, offset)


def _segments(task: Task, position: int, members: int) -> Iterator[Segment]:  # noqa: C901 - a case for each
    """Yield where each stretch of what this rank receives must come from; nothing if the result is undefined."""
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
        case "alltoallv":
            lengths = [row[position] for row in task["blocks"]]
            starts = accumulate(lengths, initial=0)
            befores = (sum(row[:position]) for row in task["blocks"])
            yield from map(Segment, ((sender,) for sender in everyone), befores, starts, lengths)
        case "allgather":
            yield from (Segment((sender,), 0, sender * block, block) for sender in everyone)
        case "gather":
            yield from (Segment((sender,), 0, sender * block, block) for sender in everyone if position == root)
        case unknown:
            raise ValueError(f"the expected data of {unknown} is not defined: it cannot be verified")


# Messages between the gloo parent and its workers, and what gloo can reduce.


# Bytes per element of gloo's types [torch 2.13 ProcessGroupGloo.cpp, GENERATE_ALL_TYPES]; not int16, not float8.
DTYPE_BYTES = {
    "float32": 4,
    "float64": 8,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "int64": 8,
    "int8": 1,
    "uint8": 1,
}

# Our name → torch.distributed.ReduceOp. No avg: gloo lacks it, torch divides a sum afterwards on the caller's thread.
REDOPS = {"sum": "SUM", "prod": "PRODUCT", "min": "MIN", "max": "MAX"}


# The first wrong element: its byte offset in the message, the expected and the found value.
Wrong: TypeAlias = tuple[int, float, float]


class Task(TypedDict):
    """One step. `groups` hold ranks; `root` is a position within its group; `count` is the size in elements.

    `blocks` are the elements from each rank to each, in the order of a group's members; () if they are alike.
    """

    operation: str
    groups: tuple[tuple[int, ...], ...]
    count: int
    iterations: int
    batches: int
    warmup: int
    dtype: str
    redop: str
    root: int
    in_place: bool
    verify: bool
    blocks: tuple[tuple[int, ...], ...]


class Reply(TypedDict):
    """One rank's seconds per iteration of each block (none for a bystander), and its first wrong element, if any.

    `waits` are the seconds for which it was in the barrier before each block.
    """

    seconds: list[float]
    waits: list[float]
    wrong: Wrong | None
