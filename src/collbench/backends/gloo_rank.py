"""What one gloo rank does with torch: make groups, time iterations, verify every element outside the timed region."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import cast

import torch
import torch.distributed as dist

from collbench.backends.gloo_data import Message
from collbench.backends.gloo_messages import DTYPE_BYTES, REDOPS, Reply, Task

# Small messages rotate over this many bytes, beyond a core's own L2 (METHOD.md §2.4).
_SPAN_BYTES = 8 * 2**20


class GlooRank:
    """A process's place in the world, and its process groups."""

    def __init__(self, rank: int, world_size: int, rendezvous: str) -> None:
        """Join `world_size` ranks that meet at the file `rendezvous`."""
        torch.set_num_threads(1)  # the process has one core
        store = dist.FileStore(rendezvous, world_size)  # type: ignore[attr-defined]  # absent from torch's __all__
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
        self._rank = rank
        self._groups: dict[tuple[int, ...], dist.ProcessGroup] = {}

    def perform(self, task: Task) -> Reply:
        """Time the task's collective in this rank's group; a rank outside all groups answers at once."""
        for members in task["groups"]:
            self._group(members)
        mine = next((members for members in task["groups"] if self._rank in members), None)
        return Reply(seconds=[], wrong=None) if mine is None else self._measure(task, mine)

    def _group(self, members: tuple[int, ...]) -> dist.ProcessGroup:
        """Return the members' process group, made by *all* ranks of the world at its first use.

        torch sorts the members: their order shapes no pair, and in larger groups only gloo's ring.
        """
        if members not in self._groups:
            # Typed as what it returns to members; the others get a placeholder, which they never use.
            self._groups[members] = cast("dist.ProcessGroup", dist.new_group(list(members), backend="gloo"))
        return self._groups[members]

    def _measure(self, task: Task, members: tuple[int, ...]) -> Reply:
        group = self._group(members)
        run = _collective(task, members, group)
        message = Message(task, members.index(self._rank), len(members))
        work = _slots(task)

        message.fill(work[0], steady=False)
        run(work[0])  # untimed: real data, and the group's first use opens its connections
        wrong = message.first_wrong(work[0], steady=False)
        for slot in work:
            message.fill(slot, steady=True)
        seconds = [_time_block(run, work, task["iterations"], group) for _ in range(task["warmup"] + task["blocks"])]
        for slot in work:
            wrong = wrong or message.first_wrong(slot, steady=True)
        return Reply(seconds=seconds[task["warmup"] :], wrong=wrong)


def _slots(task: Task) -> list[torch.Tensor]:
    """Return the messages that the iterations rotate over: enough for _SPAN_BYTES, no more than are used."""
    enough = max(1, _SPAN_BYTES // (task["count"] * DTYPE_BYTES[task["dtype"]]))
    slots = min(task["iterations"], enough)
    return list(torch.empty((slots, task["count"]), dtype=getattr(torch, task["dtype"])))


def _collective(task: Task, members: tuple[int, ...], group: dist.ProcessGroup) -> Callable[[torch.Tensor], object]:
    """Return the task's collective, in place on the tensor it is given."""
    if task["operation"] == "broadcast":
        root = members[task["root"]]
        return lambda tensor: dist.broadcast(tensor, root, group=group)
    redop = getattr(dist.ReduceOp, REDOPS[task["redop"]])
    return lambda tensor: dist.all_reduce(tensor, redop, group=group)


def _time_block(
    run: Callable[[torch.Tensor], object], work: Sequence[torch.Tensor], iterations: int, group: dist.ProcessGroup
) -> float:
    """Return this rank's seconds per iteration, back to back after the group has met."""
    order = [work[i % len(work)] for i in range(iterations)]
    dist.barrier(group=group)
    start = time.perf_counter()
    for tensor in order:
        run(tensor)
    return (time.perf_counter() - start) / iterations
