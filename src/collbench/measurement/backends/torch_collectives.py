"""Collectives by torch.distributed: the calls, and what each rank sends and must receive. Loads torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, TypeAlias

import torch
import torch.distributed as dist

from collbench.model.operations import InPlace, Operation

Blocks: TypeAlias = Sequence[Sequence[int]]  # elements from each rank to each, of an irregular collective
# A collective that sends from the first tensor and receives into the second. With `async_op` it returns at once what
# the caller must wait for; without, it returns when a caller on the same stream may use the result.
Call: TypeAlias = Callable[..., dist.Work | None]


@dataclass(frozen=True, slots=True)
class Segment:
    """Received elements [start, start + length): what `senders` send from element `first` on, reduced if several."""

    start: int
    length: int
    senders: tuple[int, ...]
    first: int = 0


@dataclass(frozen=True, slots=True)
class Layout:
    """How many elements a rank sends and receives, and what it must receive."""

    sends: int
    receives: int
    segments: tuple[Segment, ...]


def layout_of(operation: Operation, count: int, rank: int, ranks: int, root: int = 0, blocks: Blocks = ()) -> Layout:
    """Return one rank's part of a collective of `count` elements, as nccl-tests defines count.

    `rank`, `root` and the senders are positions in the group of `ranks`.
    """
    row, at_root = operation.collective, rank == root
    sends, receives = (part.count(count, ranks, at_root=at_root) for part in (row.sends, row.receives))
    if row.irregular:
        sends, receives = sum(blocks[rank]), sum(row[rank] for row in blocks)
    return Layout(sends, receives, tuple(_segments(operation, count, rank, ranks, root, blocks)))


def _segments(  # noqa: C901, PLR0912  # a case for each
    operation: Operation, count: int, rank: int, ranks: int, root: int, blocks: Blocks
) -> Iterator[Segment]:
    """Yield where each stretch of what this rank receives must come from; nothing if the result is undefined."""
    block, everyone = count // ranks, tuple(range(ranks))
    match operation:
        case Operation.ALLREDUCE:
            yield Segment(0, count, everyone)
        case Operation.REDUCE:
            if rank == root:
                yield Segment(0, count, everyone)
        case Operation.BROADCAST:
            yield Segment(0, count, (root,))
        case Operation.REDUCESCATTER:
            yield Segment(0, block, everyone, first=rank * block)
        case Operation.SCATTER:
            yield Segment(0, block, (root,), first=rank * block)
        case Operation.SENDRECV:
            yield Segment(0, count, ((rank - 1) % ranks,))
        case Operation.ALLTOALL:
            yield from (Segment(sender * block, block, (sender,), first=rank * block) for sender in everyone)
        case Operation.ALLTOALLV:
            starts = accumulate((row[rank] for row in blocks), initial=0)
            for sender, start in zip(everyone, starts, strict=False):
                yield Segment(start, blocks[sender][rank], (sender,), first=sum(blocks[sender][:rank]))
        case Operation.ALLGATHER:
            yield from (Segment(sender * block, block, (sender,)) for sender in everyone)
        case Operation.GATHER:
            if rank == root:
                yield from (Segment(sender * block, block, (sender,)) for sender in everyone)
        case unknown:
            raise ValueError(f"the expected data of {unknown} is not defined: it cannot be verified")


def takes_one_buffer(operation: Operation) -> bool:
    """Return whether torch's call takes one buffer, which holds the input: all-reduce's, broadcast's and reduce's."""
    row = operation.collective
    return row.sends is row.receives and row.in_place is InPlace.DEFINED


def call_of(  # as many as torch's own calls have together
    operation: Operation,
    group: dist.ProcessGroup,
    ranks: Sequence[int],
    rank: int,
    *,
    root: int = 0,
    redop: str = "sum",
    blocks: Blocks = (),
) -> Call:
    """Return the call of a collective in a group of these `ranks` of the world; `rank` and `root` are two of them."""
    name = redop if operation.reduces else "sum"
    op = getattr(dist.ReduceOp, "PRODUCT" if name == "prod" else name.upper())
    position = ranks.index(rank)

    def blocks_at_root(whole: torch.Tensor) -> list[torch.Tensor] | None:
        return list(whole.chunk(len(ranks))) if rank == root else None

    def exchange_blocks(sent: torch.Tensor, received: torch.Tensor, **how: Any) -> dist.Work | None:
        to_here = [row[position] for row in blocks]
        work: dist.Work | None = dist.all_to_all_single(received, sent, to_here, list(blocks[position]), **how)
        return work

    def send_and_receive(sent: torch.Tensor, received: torch.Tensor, **how: Any) -> None:
        after, before = (ranks[(position + offset) % len(ranks)] for offset in (1, -1))
        for work in (dist.isend(sent, after, how["group"]), dist.irecv(received, before, how["group"])):
            if work is not None:
                work.wait()

    calls: dict[Operation, Callable[..., dist.Work | None]] = {
        Operation.ALLREDUCE: lambda sent, _received, **how: dist.all_reduce(sent, op, **how),
        Operation.BROADCAST: lambda sent, _received, **how: dist.broadcast(sent, root, **how),
        Operation.REDUCE: lambda sent, _received, **how: dist.reduce(sent, root, op, **how),
        Operation.ALLGATHER: lambda sent, received, **how: dist.all_gather_into_tensor(received, sent, **how),
        Operation.REDUCESCATTER: lambda sent, received, **how: dist.reduce_scatter_tensor(received, sent, op, **how),
        Operation.ALLTOALL: lambda sent, received, **how: dist.all_to_all_single(received, sent, **how),
        Operation.ALLTOALLV: exchange_blocks,
        Operation.SENDRECV: send_and_receive,
        Operation.GATHER: lambda sent, received, **how: dist.gather(sent, blocks_at_root(received), root, **how),
        Operation.SCATTER: lambda sent, received, **how: dist.scatter(received, blocks_at_root(sent), root, **how),
    }
    return partial(calls[operation], group=group)
