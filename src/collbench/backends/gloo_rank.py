"""What one gloo rank does with torch: make groups, time iterations, verify every element outside the timed region."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

import torch
import torch.distributed as dist

from collbench.backends.gloo_data import Message, Slot
from collbench.backends.gloo_messages import DTYPE_BYTES, REDOPS, Reply, Task

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store  # dist.Store, whose name the types of torch.distributed lack

# Small messages rotate over this many bytes, beyond a core's own L2 (METHOD.md §2.4).
_SPAN_BYTES = 8 * 2**20


class GlooRank:
    """A process's place in the world, and its process groups."""

    def __init__(self, rank: int, world_size: int, store: Store) -> None:
        """Join `world_size` ranks that meet in the store."""
        torch.set_num_threads(1)  # the process has one core
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
        order = sorted(members)  # as torch has them: blocks come in this order
        task = {**task, "root": order.index(members[task["root"]])}
        run = _collective(task, order, self._rank, group)
        message = Message(task, order.index(self._rank), len(order))
        slots = [message.slot() for _ in range(_slots(task))]

        message.fill(slots[0], steady=False)
        run(slots[0])  # untimed: real data, and the group's first use opens its connections
        wrong = message.first_wrong(slots[0], steady=False) if task["verify"] else None
        for slot in slots:
            message.fill(slot, steady=True)
        seconds = [_time_block(run, slots, task["iterations"], group) for _ in range(task["warmup"] + task["blocks"])]
        for slot in slots if task["verify"] else ():
            wrong = wrong or message.first_wrong(slot, steady=True)
        return Reply(seconds=seconds[task["warmup"] :], wrong=wrong)


def file_store(folder: pathlib.Path, world_size: int) -> Store:
    """Return a store for ranks that share a folder."""
    return dist.FileStore(str(folder / "rendezvous"), world_size)  # type: ignore[attr-defined]  # absent from __all__


def tcp_store(host: str, port: int, prefix: str) -> Store:
    """Return the part called `prefix` of a store that somebody keeps at this address."""
    store = dist.TCPStore(host, port, is_master=False)  # type: ignore[attr-defined]  # likewise
    return dist.PrefixStore(prefix, store)  # type: ignore[attr-defined]


def _slots(task: Task) -> int:
    """Return how many messages the iterations rotate over: enough for _SPAN_BYTES, no more than are used."""
    enough = max(1, _SPAN_BYTES // (task["count"] * DTYPE_BYTES[task["dtype"]]))
    return min(task["iterations"], enough)


def _collective(task: Task, order: Sequence[int], rank: int, group: dist.ProcessGroup) -> Callable[[Slot], object]:
    """Return the task's collective among the ranks `order`, on the buffers that it is given."""
    ranks, root = len(order), order[task["root"]]
    after, before = (order[(order.index(rank) + way) % ranks] for way in (1, -1))
    redop = getattr(dist.ReduceOp, REDOPS.get(task["redop"], "SUM"))

    def send_and_receive(slot: Slot) -> None:
        for one in (dist.isend(slot.sent, after, group=group), dist.irecv(slot.received, before, group=group)):
            if one is not None:
                one.wait()

    def parts(whole: torch.Tensor) -> list[torch.Tensor] | None:
        return list(whole.chunk(ranks)) if rank == root else None

    calls: dict[str, Callable[[Slot], object]] = {
        "allreduce": lambda slot: dist.all_reduce(slot.sent, redop, group=group),
        "broadcast": lambda slot: dist.broadcast(slot.sent, root, group=group),
        "reduce": lambda slot: dist.reduce(slot.sent, root, redop, group=group),
        "allgather": lambda slot: dist.all_gather_into_tensor(slot.received, slot.sent, group=group),
        "reducescatter": lambda slot: dist.reduce_scatter_tensor(slot.received, slot.sent, redop, group=group),
        "alltoall": lambda slot: dist.all_to_all_single(slot.received, slot.sent, group=group),
        "sendrecv": send_and_receive,
        "gather": lambda slot: dist.gather(slot.sent, parts(slot.received), root, group=group),
        "scatter": lambda slot: dist.scatter(slot.received, parts(slot.sent), root, group=group),
    }
    return calls[task["operation"]]


def _time_block(
    run: Callable[[Slot], object], slots: Sequence[Slot], iterations: int, group: dist.ProcessGroup
) -> float:
    """Return this rank's seconds per iteration, back to back after the group has met."""
    order = [slots[i % len(slots)] for i in range(iterations)]
    dist.barrier(group=group)
    start = time.perf_counter()
    for slot in order:
        run(slot)
    return (time.perf_counter() - start) / iterations
