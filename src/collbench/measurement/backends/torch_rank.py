"""The side of TorchWorkers' workers: one rank joins the others and answers its parent until one of them is gone.

Started as `… -m MODULE FD RANK WORLD_SIZE BACKEND DEVICE FILE [HOST PORT PREFIX]`: FD is its end of the pipe, BACKEND
cuda or host, DEVICE the GPU's number among those that CUDA shows, or the core. The ranks meet in the open FILE, or in
the TCPStore at HOST. `gloo_worker` is such a module, and annexes have others. Below stand the collectives that they
all time.
"""

from __future__ import annotations

import functools
import os
import pathlib
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
import torch.distributed as dist

from collbench.measurement.backends import child_process
from collbench.measurement.backends.child_process import Joined
from collbench.model.errors import DataCorruption, MachineError
from collbench.model.operations import InPlace, Operation

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store  # dist.Store, whose name the types of torch.distributed lack


def _file_store(file: str, ranks: int) -> Store:
    """Return a store for ranks that share an open file, by its descriptor."""
    return dist.FileStore(f"/proc/self/fd/{file}", ranks)  # type: ignore[attr-defined]  # absent from __all__


def _tcp_store(host: str, port: str, prefix: str) -> Store:
    """Return the part called `prefix` of the store that another process serves at this address."""
    store = dist.TCPStore(host, int(port), is_master=False)  # type: ignore[attr-defined]  # likewise
    return dist.PrefixStore(prefix, store)  # type: ignore[attr-defined]


def joined(backend: str) -> Joined:
    """Return what this process has loaded."""
    release = str(torch.__version__)  # a plain one: unpickling torch's own kind of string would import torch
    if backend != "cuda":
        return Joined(release)
    nccl: Any = torch.cuda.nccl  # without types
    version = ".".join(map(str, nccl.version()))
    maps = pathlib.Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    path = next((line.split(maxsplit=5)[-1] for line in maps if "libnccl.so" in line), "")
    return Joined(release, version, path)


def run(arguments: list[str], make_rank: Callable[[int, int, Any], object], open_device: Callable[..., object]) -> None:
    """Join the world, and call methods of a rank until the parent closes the pipe, or is gone.

    `open_device` gets the backend and the device's number, `make_rank` the rank, the number of ranks and the device.
    What a method returns is the answer; if it raises DataCorruption or MachineError, the parent raises that, and may go
    on asking.
    """
    child_process.leave_signals_to_parent()
    descriptor, rank, ranks = map(int, arguments[:3])
    backend, number = arguments[3], int(arguments[4])
    # This process may end at any moment, also in a collective. It ends by os._exit: FileStore's destructor would try to
    # remove its file, or abort where it cannot.
    child_process.leave_with_parent(descriptor)
    if backend != "cuda":
        os.sched_setaffinity(0, {number})  # before there are other threads, which inherit the core
        torch.set_num_threads(1)
    device = open_device(backend, number)
    pipe: Connection[Any, Any] = Connection(descriptor)
    try:
        store = _tcp_store(*arguments[6:9]) if arguments[6:] else _file_store(arguments[5], ranks)
        # The groups that are timed are made of it; its own communicator is never used, so NCCL never starts for it.
        name = "nccl" if backend == "cuda" else "gloo"
        dist.init_process_group(name, store=store, rank=rank, world_size=ranks)
        pipe.send(joined(backend))
        made = make_rank(rank, ranks, device)
        while True:
            method, given = pipe.recv()
            try:
                answer = getattr(made, method)(*given)
            except (DataCorruption, MachineError) as error:
                answer = error
            pipe.send(answer)
    except (EOFError, ConnectionError):
        os._exit(0)  # at once, with all that is open: the driver takes back what CUDA and NCCL hold
    except BaseException:  # noqa: BLE001  # the parent reads the traceback's last line
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # at once: NCCL's threads would wait for a rank that is gone


# Collectives by torch.distributed: the calls, what each rank sends and must receive, compared.


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
class RankPart:
    """How many elements a rank sends and receives, and what it must receive."""

    sends: int
    receives: int
    segments: tuple[Segment, ...]


def part_of(operation: Operation, count: int, rank: int, ranks: int, root: int = 0, blocks: Blocks = ()) -> RankPart:
    """Return one rank's part of a collective of `count` elements, as nccl-tests defines count.

    `rank`, `root` and the senders are positions in the group of `ranks`.
    """
    row, at_root = operation.collective, rank == root
    sends, receives = (part.count(count, ranks, at_root=at_root) for part in (row.sends, row.receives))
    if row.irregular:
        sends, receives = sum(blocks[rank]), sum(row[rank] for row in blocks)
    return RankPart(sends, receives, tuple(_segments(operation, count, rank, ranks, root, blocks)))


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
    return functools.partial(calls[operation], group=group)


# What ranks send, and what must arrive: made, and compared without waiting.

# Elements made and compared at a time: they stay in a core's cache, and a message needs no second copy in GPU memory.
_CORE_WINDOW, _GPU_WINDOW = 2**18, 2**22
# All data are one random sequence of bytes, which repeats after a prime number of elements. Ranks, fillings and buffers
# begin at places that are multiples of primes apart, so that no swap of blocks or ranks and no earlier result goes
# unseen.
_PERIOD = 2**22 - 3
_RANK_SHIFT, _FILLING_SHIFT, _SALT_SHIFT = 4099, 104729, 7919

# Up to which integer a type has all integers, and how many factors of 2 it has room for.
_EXACT = {
    "float8_e4m3fn": (16, 8),
    "float8_e5m2": (8, 15),
    "bfloat16": (256, 127),
    "float16": (2048, 15),
    "int8": (127, 62),
    "uint8": (255, 62),
}
_WIDE = 2**15, 62  # others have more
_MAX_VALUE = 8  # more different values find no more faults
# What all ranks send so that a reduction in place, when repeated, has the same result.
_NEUTRAL = {"sum": 0, "avg": 0, "prod": 1}
_COMBINE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.add,
    "avg": torch.add,
    "prod": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
}


def values_of(dtype: str, redop: str, ranks: int) -> range:
    """Return the integers that each rank may send so that the result is exact in this type; none if it cannot be.

    Zero, which a buffer holds that nothing wrote, is among them only if there is just one other. `redop` is "" for what
    only moves.
    """
    largest, exponent = _EXACT.get(dtype, _WIDE)
    match redop:
        case "":
            return range(1, 256)
        case "prod":  # powers of two; integers wrap, equally everywhere
            return range(1, 3) if ranks <= exponent else range(0)
        case "avg" if "float" not in dtype or ranks & (ranks - 1):
            return range(0)
        case "sum" | "avg":
            most = min(_MAX_VALUE, largest // ranks)
            return range(int(most > 1), most + 1) if most else range(0)
    return range(1, _MAX_VALUE + 1)


@functools.cache
def _sequence(device: torch.device) -> torch.Tensor:
    """Return the random sequence, and after it its beginning, for a window that begins near its end."""
    generator = torch.Generator().manual_seed(1)
    whole = torch.randint(0, 256, (_PERIOD,), dtype=torch.uint8, generator=generator)
    return torch.cat([whole, whole[: _window(device)]]).to(device)


def _window(device: torch.device) -> int:
    return _CORE_WINDOW if device.type == "cpu" else min(_GPU_WINDOW, _PERIOD)


@dataclass(frozen=True, slots=True)
class Elements:
    """A type of element, how it is reduced ("" if it only moves), and by how many ranks."""

    dtype: str
    redop: str
    ranks: int


class Message:
    """One rank's buffers of a collective, with what it sends in them and what it must receive.

    `sent` and `received` share memory if the call works in place. Whoever makes a call counts it in `uses`.
    """

    def __init__(
        self, kind: Elements, part: RankPart, sender: int, device: torch.device, *, in_place: bool, salt: int = 0
    ) -> None:
        """Take memory. `sender` is this rank as the part's segments name it; ranks that share a call share `salt`."""
        self._kind, self._part, self._sender = kind, part, sender
        self._values = values_of(kind.dtype, kind.redop, kind.ranks)
        self._salt = salt * _SALT_SHIFT
        self._overwrites = bool(kind.redop) and in_place
        self._filling = 0
        self._constant: int | None = None  # that all ranks send
        self.uses = 0
        sizes, dtype = (part.sends, part.receives), getattr(torch, kind.dtype)
        if not in_place:
            self.sent, self.received = (torch.empty(size, dtype=dtype, device=device) for size in sizes)
            return
        # The shorter one is this rank's block of the longer.
        shorter, longer = sorted(sizes)
        start = sender * shorter if shorter < longer else 0
        buffer = torch.empty(longer, dtype=dtype, device=device)
        inner = buffer[start : start + shorter]
        self.sent, self.received = (buffer, inner) if sizes[0] >= sizes[1] else (inner, buffer)

    @property
    def known(self) -> bool:
        """True if there is one right result, and this rank receives some of it."""
        return bool(self._part.segments and self._values)

    @property
    def comparable(self) -> bool:
        """True if what it holds now is known, too: a sum in place that is repeated multiplies its own result."""
        return self.known and self._growth() is not None

    def fill(self, filling: int, *, steady: bool = False) -> None:
        """Write what this rank sends in the filling of that number; where it only receives there are zeros.

        With `steady`, a reduction in place that is repeated has the same result each time.
        """
        self._filling, self.uses = filling, 0
        self._constant = _NEUTRAL.get(self._kind.redop) if steady and self._overwrites else None
        self.received.zero_()
        for start, stop in self._windows(self._part.sends):
            self.sent[start:stop] = self._contribution(self._sender, start, stop)

    def compared(self) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
        """Yield windows of what is received: their first element, what is there, and what must be."""
        growth = self._growth()
        if not self.known or growth is None:
            return
        floating = self.received.is_floating_point()
        exact = torch.float64 if floating else torch.int64
        for segment in self._part.segments:
            for start, stop in self._windows(segment.length):
                first, last = segment.first + start, segment.first + stop
                parts = (self._contribution(sender, first, last) for sender in segment.senders)
                if self._kind.redop:
                    expected = functools.reduce(_COMBINE[self._kind.redop], (part.to(exact) for part in parts)) * growth
                    if self._kind.redop == "avg":
                        expected /= self._kind.ranks
                else:
                    expected = next(parts)
                begin = segment.start + start
                delivered = self.received[begin : begin + stop - start]
                yield begin, delivered, expected.to(delivered.dtype)

    def wrong(self, count: torch.Tensor) -> None:
        """Add to `count`, which is on the device, how many received elements are not what they must be."""
        for _, delivered, expected in self.compared():
            count += (delivered != expected).sum()

    def first_wrong(self) -> tuple[int, float, float] | None:
        """Return the first wrong element: its byte offset, what it must be, and what it is."""
        for begin, delivered, expected in self.compared():
            if not torch.equal(delivered, expected):
                at = int((delivered != expected).nonzero()[0])
                return (begin + at) * delivered.element_size(), float(expected[at]), float(delivered[at])
        return None

    def _growth(self) -> int | None:
        """Return by what repetition has multiplied the first result; None if that is not exact, or nothing was used."""
        if self.uses == 0:
            return None
        if self.uses == 1 or not self._overwrites or self._constant is not None or self._kind.redop in ("min", "max"):
            return 1
        ranks = self._kind.ranks
        doublings = (ranks.bit_length() - 1) * (self.uses - 1)
        room = _EXACT.get(self._kind.dtype, _WIDE)[1] - _MAX_VALUE
        exact = self._kind.redop == "sum" and self.received.is_floating_point() and ranks & (ranks - 1) == 0
        return 2**doublings if exact and doublings <= room else None

    def _contribution(self, sender: int, start: int, stop: int) -> torch.Tensor:
        """Return elements [start, stop) of what a rank sends."""
        if self._constant is not None:
            return torch.full((stop - start,), self._constant, dtype=self.sent.dtype, device=self.sent.device)
        shift = sender * _RANK_SHIFT + self._filling * _FILLING_SHIFT + self._salt
        at = (start + shift) % _PERIOD
        part = _sequence(self.sent.device)[at : at + stop - start]
        return (part % len(self._values) + self._values.start if self._values else part).to(self.sent.dtype)

    def _windows(self, count: int) -> Iterator[tuple[int, int]]:
        width = _window(self.sent.device)
        return ((start, min(start + width, count)) for start in range(0, count, width))
