"""One rank of the host backend's collectives: it times gloo's calls, and verifies all data outside the timed region."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias, cast

import torch
import torch.distributed as dist

from collbench.measurement.backends.protocol import Step, Timing
from collbench.measurement.backends.torch_rank import (
    Blocks,
    Elements,
    Message,
    call_of,
    part_of,
    run,
    takes_one_buffer,
)
from collbench.model.errors import DataCorruption, WrongData
from collbench.model.operations import Variant
from collbench.model.units import DTYPE_BYTES

# Small messages rotate over this many bytes, beyond a core's own L2 (docs/method/measuring.md 8).
_SPAN_BYTES = 8 * 2**20
_CORE = torch.device("cpu")
_Seconds: TypeAlias = tuple[float, ...]
_Wrong: TypeAlias = tuple[int, float, float]  # the first wrong element: its byte offset, what it must be, what it is


class GlooRank:
    """One rank of the world, and its process groups."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._groups: dict[tuple[int, ...], dist.ProcessGroup] = {}
        self._steps = 0  # so far, the same on all ranks

    def time(self, step: Step, positions: Sequence[int]) -> Timing:
        """Time the step in this rank's group; a rank outside all groups answers at once.

        `positions` are those of the world's ranks: groups are of positions. Raises DataCorruption.
        """
        self._steps += 1
        groups = [tuple(map(positions.index, members)) for members in step.groups]
        for members in groups:
            self._group(members)
        mine = next((at for at, members in enumerate(groups) if self._rank in members), None)
        if mine is None:
            return Timing(((),) * len(groups), waits=((),) * len(groups))
        seconds, waits, wrong = self._measure(step, groups[mine])
        if wrong is not None:
            here = positions[self._rank]
            found_by_first = (here, *(member for member in step.groups[mine] if member != here))
            raise DataCorruption(wrong=WrongData(step.work, step.size_bytes, found_by_first, None, *wrong))
        return Timing(
            tuple(seconds if at == mine else () for at in range(len(groups))),
            waits=tuple((waits,) if at == mine else () for at in range(len(groups))),
        )

    def _group(self, members: tuple[int, ...]) -> dist.ProcessGroup:
        """Return the members' process group, made by *all* ranks of the world at its first use.

        torch sorts the members: their order shapes no pair, and in larger groups only gloo's ring.
        """
        if members not in self._groups:
            # Typed as what it returns to members; the others get a placeholder, which they never use.
            self._groups[members] = cast("dist.ProcessGroup", dist.new_group(list(members), backend="gloo"))
        return self._groups[members]

    def _measure(self, step: Step, members: tuple[int, ...]) -> tuple[_Seconds, _Seconds, _Wrong | None]:
        """Return this rank's seconds of each batch, those in the barrier before it, and the first wrong element."""
        group = self._group(members)
        order = sorted(members)  # as torch has them: blocks come in this order
        root = members[step.root]
        blocks = _sorted_blocks(step, members)
        call = call_of(step.work.operation, group, order, self._rank, root=root, redop=step.redop, blocks=blocks)
        messages = _messages(step, order.index(self._rank), order.index(root), blocks, self._steps)
        first = messages[0]

        def collective(message: Message) -> None:
            call(message.sent, message.received)
            message.uses += 1

        first.fill(0)
        collective(first)  # untimed: real data, and the group's first use opens its connections
        wrong = first.first_wrong() if step.verify else None
        times = []
        for filling in range(1, step.warmup + step.batches + 1):
            for message in messages:
                message.fill(filling, steady=True)
            times.append(_time_batch(collective, messages, step.iterations, group))
        waits, seconds = zip(*times, strict=True)
        for message in messages if step.verify else ():
            wrong = wrong or message.first_wrong()
        return seconds[step.warmup :], waits[step.warmup :], wrong


def _messages(step: Step, position: int, root: int, blocks: Blocks, salt: int) -> list[Message]:
    """Return new buffers to rotate over: enough for _SPAN_BYTES, no more than are used. `blocks` are elements."""
    operation, ranks = step.work.operation, len(step.groups[0])
    part = part_of(operation, step.size_bytes // DTYPE_BYTES[step.dtype], position, ranks, root, blocks)
    in_place = step.work.variant is Variant.IN_PLACE or takes_one_buffer(operation)
    kind = Elements(step.dtype, step.redop if operation.reduces else "", ranks)
    several = min(step.iterations, max(1, _SPAN_BYTES // step.size_bytes))
    return [Message(kind, part, position, _CORE, in_place=in_place, salt=salt) for _ in range(several)]


def _sorted_blocks(step: Step, members: Sequence[int]) -> Blocks:
    """Return the step's blocks, which are bytes in the members' order, as elements in the order of their ranks."""
    order = sorted(range(len(members)), key=lambda index: members[index])
    width = DTYPE_BYTES[step.dtype]
    return [[step.blocks[src][dst] // width for dst in order] for src in order] if step.blocks else ()


def _time_batch(
    run: Callable[[Message], object], messages: Sequence[Message], iterations: int, group: dist.ProcessGroup
) -> tuple[float, float]:
    """Return this rank's seconds until the group has met, and per iteration of the back-to-back calls after that."""
    order = [messages[i % len(messages)] for i in range(iterations)]
    arrived = time.perf_counter()
    dist.barrier(group=group)
    start = time.perf_counter()
    for message in order:
        run(message)
    return start - arrived, (time.perf_counter() - start) / iterations


if __name__ == "__main__":
    # The process is on its core already.
    run(sys.argv[1:], lambda rank, _ranks, _device: GlooRank(rank), lambda _backend, _core: None)
