"""One gloo rank's process: makes groups, times iterations, verifies every element outside the timed region.

Started as `… -m collbench.backends.gloo_worker FD RANK WORLD_SIZE CORE FOLDER [HOST PORT PREFIX]`.
"""

from __future__ import annotations

import functools
import os
import pathlib
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, cast

import torch
import torch.distributed as dist

from collbench.backends.gloo_tasks import DTYPE_BYTES, REDOPS, Reply, Task, Wrong, layout
from collbench.machine import lifeline
from collbench.model.operations import Operation

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store  # dist.Store, whose name the types of torch.distributed lack


# What gloo ranks send, and what must arrive: small integers, so that every reduction is exact in every dtype.


# Rank r's data is one random sequence from element r × this on: ranks differ, and no stretch of memory repeats
# another. Prime, so that no swap of aligned blocks or ranks goes unseen.
_RANK_SHIFT = 4099

# Elements made and compared at a time: they stay in cache, and a message costs no second message of memory.
_WINDOW = 2**18

_COMBINE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.add,
    "prod": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
}

# What a reduction in place does not carry away when it is repeated; minimum and maximum keep any result.
_NEUTRAL = {"sum": 0, "prod": 1}


@dataclass(frozen=True, slots=True)
class Slot:
    """One message's elements: what the rank sends and where it receives, in one buffer or in two."""

    sent: torch.Tensor
    received: torch.Tensor


class Message:
    """What the rank at `position` of `members` ranks puts into the task's collective, and must get out of it.

    A reduction in place overwrites its input, and a copy of fresh input would be timed with the iterations. So for them
    the data is `steady`: zeros to be summed and ones to be multiplied; all else repeats unharmed with the data it has.
    """

    def __init__(self, task: Task, position: int, members: int) -> None:
        self._layout = layout(task, position, members)
        self._dtype: torch.dtype = getattr(torch, task["dtype"])
        self._redop = task["redop"] if Operation(task["operation"]).reduces else ""
        self._overwrites = bool(self._redop) and self._layout.shared
        self._position = position
        self._base = _random_base(task["count"] + members * _RANK_SHIFT)

    def slot(self) -> Slot:
        """Return new buffers for one message."""
        elements = self._layout
        buffer = torch.empty(elements.length, dtype=self._dtype)
        if not elements.shared:
            return Slot(buffer[: elements.sent], buffer[elements.sent :])
        inner = slice(elements.offset, elements.offset + min(elements.sent, elements.received))
        return Slot(buffer, buffer[inner]) if elements.sent >= elements.received else Slot(buffer[inner], buffer)

    def fill(self, slot: Slot, *, steady: bool) -> None:
        """Write what this rank puts in; where it only receives there are zeros, which no rank sends by itself."""
        slot.received.zero_()
        for start, stop in _windows(self._layout.sent):
            slot.sent[start:stop] = self._contribution(self._position, start, stop, steady=steady)

    def first_wrong(self, slot: Slot, *, steady: bool) -> Wrong | None:
        """Return the first received element that is not what the ranks' contributions make, or None."""
        for segment in self._layout.segments:
            for start, stop in _windows(segment.length):
                first, last = segment.offset + start, segment.offset + stop
                parts = (self._contribution(sender, first, last, steady=steady) for sender in segment.senders)
                expected = functools.reduce(_COMBINE.get(self._redop, torch.add), parts)
                delivered = slot.received[segment.start + start : segment.start + stop]
                if not torch.equal(delivered, expected):
                    at = int((delivered != expected).nonzero()[0])
                    offset = (segment.start + start + at) * delivered.element_size()
                    return offset, float(expected[at]), float(delivered[at])
        return None

    def _contribution(self, sender: int, start: int, stop: int, *, steady: bool) -> torch.Tensor:
        """Return elements [start, stop) of what the rank at position `sender` puts in.

        1 … 8, so that 15 ranks sum to no more than int8 holds; 1 or 2 to be multiplied, whose products are powers of
        two: exact in floats, and equal modulo 2^bits in integers.
        """
        if steady and self._overwrites and self._redop in _NEUTRAL:
            return torch.full((stop - start,), _NEUTRAL[self._redop], dtype=self._dtype)
        shift = sender * _RANK_SHIFT
        values = self._base[shift + start : shift + stop]
        return ((values & 1 if self._redop == "prod" else values) + 1).to(self._dtype)


def _windows(count: int) -> Iterator[tuple[int, int]]:
    return ((start, min(start + _WINDOW, count)) for start in range(0, count, _WINDOW))


def _random_base(length: int) -> torch.Tensor:
    """Return `length` or a few more uint8 values 0 … 7, the same in every process: eight from each random word."""
    words = torch.empty(length // 8 + 1, dtype=torch.int64).random_(generator=torch.Generator().manual_seed(length))
    return words.view(torch.uint8).bitwise_and_(7)


# What one gloo rank does with torch: make groups, time iterations, verify every element outside the timed region.


# Small messages rotate over this many bytes, beyond a core's own L2 (docs/method.md 3.5).
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
        return Reply(seconds=[], waits=[], wrong=None) if mine is None else self._measure(task, mine)

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
        task = {**task, "root": order.index(members[task["root"]]), "blocks": _sorted(task["blocks"], members)}
        run = _collective(task, order, self._rank, group)
        message = Message(task, order.index(self._rank), len(order))
        slots = [message.slot() for _ in range(_slots(task))]

        message.fill(slots[0], steady=False)
        run(slots[0])  # untimed: real data, and the group's first use opens its connections
        wrong = message.first_wrong(slots[0], steady=False) if task["verify"] else None
        for slot in slots:
            message.fill(slot, steady=True)
        times = [_time_batch(run, slots, task["iterations"], group) for _ in range(task["warmup"] + task["batches"])]
        timed = times[task["warmup"] :]
        for slot in slots if task["verify"] else ():
            wrong = wrong or message.first_wrong(slot, steady=True)
        return Reply(seconds=[took for _, took in timed], waits=[wait for wait, _ in timed], wrong=wrong)


def file_store(folder: pathlib.Path, world_size: int) -> Store:
    """Return a store for ranks that share a folder."""
    # Opened here: where the folder is gone, FileStore would wait 300 s for it, and let no other thread run meanwhile.
    file = os.open(folder / "rendezvous", os.O_RDWR | os.O_CREAT, 0o600)
    return dist.FileStore(f"/proc/self/fd/{file}", world_size)  # type: ignore[attr-defined]  # absent from __all__


def tcp_store(host: str, port: int, prefix: str) -> Store:
    """Return the part called `prefix` of a store that somebody keeps at this address."""
    store = dist.TCPStore(host, port, is_master=False)  # type: ignore[attr-defined]  # likewise
    return dist.PrefixStore(prefix, store)  # type: ignore[attr-defined]


def _sorted(blocks: Sequence[Sequence[int]], members: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Return blocks that are in the members' order in that of their ranks."""
    order = sorted(range(len(members)), key=lambda index: members[index])
    return tuple(tuple(blocks[src][dst] for dst in order) for src in order) if blocks else ()


def _slots(task: Task) -> int:
    """Return how many messages the iterations rotate over: enough for _SPAN_BYTES, no more than are used."""
    enough = max(1, _SPAN_BYTES // (task["count"] * DTYPE_BYTES[task["dtype"]]))
    return min(task["iterations"], enough)


def _collective(task: Task, order: Sequence[int], rank: int, group: dist.ProcessGroup) -> Callable[[Slot], object]:
    """Return the task's collective among the ranks `order`, on the buffers that it is given."""
    ranks, root = len(order), order[task["root"]]
    after, before = (order[(order.index(rank) + offset) % ranks] for offset in (1, -1))
    redop = getattr(dist.ReduceOp, REDOPS.get(task["redop"], "SUM"))

    def send_and_receive(slot: Slot) -> None:
        for one in (dist.isend(slot.sent, after, group=group), dist.irecv(slot.received, before, group=group)):
            if one is not None:
                one.wait()

    def exchange(slot: Slot) -> None:
        mine, here = task["blocks"][order.index(rank)], order.index(rank)
        theirs = [row[here] for row in task["blocks"]]
        dist.all_to_all_single(slot.received, slot.sent, theirs, list(mine), group=group)

    def parts(whole: torch.Tensor) -> list[torch.Tensor] | None:
        return list(whole.chunk(ranks)) if rank == root else None

    calls: dict[str, Callable[[Slot], object]] = {
        "allreduce": lambda slot: dist.all_reduce(slot.sent, redop, group=group),
        "broadcast": lambda slot: dist.broadcast(slot.sent, root, group=group),
        "reduce": lambda slot: dist.reduce(slot.sent, root, redop, group=group),
        "allgather": lambda slot: dist.all_gather_into_tensor(slot.received, slot.sent, group=group),
        "reducescatter": lambda slot: dist.reduce_scatter_tensor(slot.received, slot.sent, redop, group=group),
        "alltoall": lambda slot: dist.all_to_all_single(slot.received, slot.sent, group=group),
        "alltoallv": exchange,
        "sendrecv": send_and_receive,
        "gather": lambda slot: dist.gather(slot.sent, parts(slot.received), root, group=group),
        "scatter": lambda slot: dist.scatter(slot.received, parts(slot.sent), root, group=group),
    }
    return calls[task["operation"]]


def _time_batch(
    run: Callable[[Slot], object], slots: Sequence[Slot], iterations: int, group: dist.ProcessGroup
) -> tuple[float, float]:
    """Return this rank's seconds until the group had met, and per iteration, back to back after that."""
    order = [slots[i % len(slots)] for i in range(iterations)]
    arrived = time.perf_counter()
    dist.barrier(group=group)
    start = time.perf_counter()
    for slot in order:
        run(slot)
    return start - arrived, (time.perf_counter() - start) / iterations


# One gloo rank's process: `… -m collbench.backends.gloo_worker FD RANK WORLD_SIZE CORE FOLDER [HOST PORT PREFIX]`.
#
# The ranks meet in FOLDER, or in the TCPStore at HOST. It answers tasks from the pipe FD until the pipe closes.
# Whatever fails here ends the process with a traceback: the parent reads its last line.


# How often to remove the folder: a rank that begins meanwhile may put its file into it.
_REMOVALS = 10


def main(arguments: list[str]) -> None:
    """Join the world and serve tasks until the parent closes the pipe, or is gone."""
    lifeline.leave_signals_to_parent()
    descriptor, rank, world_size, core = map(int, arguments[:4])
    folder = pathlib.Path(arguments[4])

    def clean_up() -> None:
        for _ in range(_REMOVALS):
            shutil.rmtree(folder, ignore_errors=True)
            if not folder.exists():
                return

    # At any moment, in the middle of a collective too: the parent may be killed before it could clean up. It ends by
    # os._exit: FileStore's destructor would make its file again, or abort where it cannot.
    lifeline.leave_with_parent(descriptor, clean_up)
    # Before torch comes, so that its threads, and gloo's, inherit the core.
    os.sched_setaffinity(0, {core})

    pipe: Connection[Reply, Task] = Connection(descriptor)
    try:
        match arguments[5:]:
            case [host, port, prefix]:
                store = tcp_store(host, int(port), prefix)
            case _:
                store = file_store(folder, world_size)
        member = GlooRank(rank, world_size, store)
        pipe.send(Reply(seconds=[], waits=[], wrong=None))
        while True:
            pipe.send(member.perform(pipe.recv()))
    except (EOFError, ConnectionError):
        clean_up()
        os._exit(0)
    # A peer is gone, or the folder, perhaps together with our parent, which reads the traceback otherwise.
    except (RuntimeError, OSError):
        if lifeline.parent_is_gone(descriptor):
            clean_up()
        raise


if __name__ == "__main__":
    main(sys.argv[1:])
