"""What can be timed, and how it runs: each collective is a row of a table; its messages are cut into blocks by rank."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum, StrEnum, auto
from functools import lru_cache
from typing import NamedTuple, Self, TypeAlias

# The properties of a collective. n is the number of ranks, S the bytes of the whole message.


class BusFactor(NamedTuple):
    """busbw = algbw × `of(n)`, and the factor as people write it [nccl-tests doc/PERFORMANCE.md]."""

    formula: str
    of: Callable[[int], float]


class Traffic(NamedTuple):
    """What a collective of S bytes moves at least, over S."""

    # (c, n, root): what crosses the border of any c of n ranks in one direction; `root`: the root is one of the c.
    across: Callable[[int, int, bool], float]
    sent: Callable[[int], float]  # (n): by all ranks together, without a switch that reduces or copies
    in_switch: bool  # NVLink SHARP lets a rank send each element only once
    neighbors: bool  # each rank sends to the next one only, and by no other path


class Buffer(Enum):
    """How much of the message one rank's buffer holds."""

    WHOLE = auto()
    BLOCK = auto()  # 1/n of it
    WHOLE_AT_ROOT = auto()  # elsewhere nothing

    def count(self, whole: int, ranks: int, *, at_root: bool) -> int:
        """Return the elements of one rank's buffer, of `whole` elements in the message."""
        if self is Buffer.BLOCK:
            return whole // ranks
        return whole if self is Buffer.WHOLE or at_root else 0


class InPlace(Enum):
    """Whether a collective may receive into the buffer that it sends from, and whether its result is then defined.

    nccl-tests times UNDEFINED ones and checks nothing [src/alltoall.cu:44, src/sendrecv.cu:34]: their ranks overwrite
    what others still read.
    """

    NONE = auto()
    UNDEFINED = auto()
    DEFINED = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One row of the table of collectives. No field has a default: a row that lacks one does not import."""

    title: str  # in a sentence
    does: str  # in its help: what a rank gets or gives
    example: str  # options in its help's second example
    nccl: str  # NCCL's name, after "nccl" [nccl.h; collectives.cc, ncclFuncToString]
    nccl_tests: str  # nccl-tests' program
    reduces: bool  # the reduction (--op) matters
    rooted: bool  # one rank is the root
    shares: bool  # the message size is the total over ranks, in equal blocks (docs/method/measuring.md 1)
    irregular: bool  # each block has a size of its own (--skew); the message size is the busiest rank's
    sends: Buffer
    receives: Buffer
    in_place: InPlace
    busbw: BusFactor
    traffic: Traffic
    ring_bound: bool  # its busbw is that of a ring's slowest link; others' depends on how many links a GPU has
    steps: Callable[[int], int]  # of a ring of n, one after another


_RING = BusFactor("2(n-1)/n", lambda n: 2 * (n - 1) / n)
_OTHERS = BusFactor("(n-1)/n", lambda n: (n - 1) / n)
_ONE = BusFactor("1", lambda _n: 1.0)


def _whole(_count: int, _ranks: int, _root: bool) -> float:
    return 1.0


# Every element depends on every rank, so S leaves each set of ranks and S enters it. Patarasuk and Yuan, J. Parallel
# Distrib. Comput. 69 (2009), §3: all ranks send 2(n−1)S together.
_ALLREDUCED = Traffic(_whole, lambda n: 2.0 * (n - 1), in_switch=True, neighbors=False)
# S enters every set without the root; in a reduction, S (or a sum with it) leaves each rank. NVLink SHARP saves a
# broadcast's senders nothing.
_FROM_ROOT = Traffic(_whole, lambda n: n - 1.0, in_switch=False, neighbors=False)
# Each rank has one block of n and wants the others', or the reverse.
_GATHERED = Traffic(lambda c, n, _root: max(c, n - c) / n, lambda n: n - 1.0, in_switch=True, neighbors=False)
# Each rank of a set has a block of S/n for each rank outside; with blocks of their own sizes `across` says it.
_EXCHANGED = Traffic(lambda c, n, _root: c * (n - c) / n, lambda n: n - 1.0, in_switch=False, neighbors=False)
# Rank r sends S to r + 1: a set is left once at least.
_PASSED_ON = Traffic(_whole, float, in_switch=False, neighbors=True)
# The root gets, or gives, a block of S/n of each other rank.
_AT_ROOT = Traffic(
    lambda c, n, root: (n - c if root else c) / n, lambda n: (n - 1) / n, in_switch=False, neighbors=False
)


# The rows. One that hardly differs from another is a copy of it, and says what differs.
_ALLREDUCE = Collective(
    title="all-reduce",
    does="every rank gets the reduction of all ranks' data",
    example="--op max",
    nccl="AllReduce",
    nccl_tests="all_reduce_perf",
    reduces=True,
    rooted=False,
    shares=False,
    irregular=False,
    sends=Buffer.WHOLE,
    receives=Buffer.WHOLE,
    in_place=InPlace.DEFINED,
    busbw=_RING,
    traffic=_ALLREDUCED,
    ring_bound=True,
    steps=lambda n: 2 * (n - 1),
)
_BROADCAST = Collective(
    title="broadcast",
    does="every rank gets the root's data",
    example="--devices 0,1",
    nccl="Broadcast",
    nccl_tests="broadcast_perf",
    reduces=False,
    rooted=True,
    shares=False,
    irregular=False,
    sends=Buffer.WHOLE,
    receives=Buffer.WHOLE,
    in_place=InPlace.DEFINED,
    busbw=_ONE,
    traffic=_FROM_ROOT,
    ring_bound=True,
    steps=lambda n: n - 1,
)
_REDUCE = replace(
    _BROADCAST,
    title="reduce",
    does="the root gets the reduction of all ranks' data",
    example="--op avg --root 1",
    nccl="Reduce",
    nccl_tests="reduce_perf",
    reduces=True,
)
_ALLGATHER = Collective(
    title="all-gather",
    does="every rank gets every rank's block",
    example="--dtype bfloat16",
    nccl="AllGather",
    nccl_tests="all_gather_perf",
    reduces=False,
    rooted=False,
    shares=True,
    irregular=False,
    sends=Buffer.BLOCK,
    receives=Buffer.WHOLE,
    in_place=InPlace.DEFINED,
    busbw=_OTHERS,
    traffic=_GATHERED,
    ring_bound=True,
    steps=lambda n: n - 1,
)
_REDUCESCATTER = replace(
    _ALLGATHER,
    title="reduce-scatter",
    does="each rank gets its block of the reduction of all ranks' data",
    example="--split 2",
    nccl="ReduceScatter",
    nccl_tests="reduce_scatter_perf",
    reduces=True,
    sends=Buffer.WHOLE,
    receives=Buffer.BLOCK,
)
_ALLTOALL = Collective(
    title="all-to-all",
    does="each rank sends a block to every rank",
    example="--precision 0.5%",
    nccl="AlltoAll",
    nccl_tests="alltoall_perf",
    reduces=False,
    rooted=False,
    shares=True,
    irregular=False,
    sends=Buffer.WHOLE,
    receives=Buffer.WHOLE,
    in_place=InPlace.UNDEFINED,
    busbw=_OTHERS,
    traffic=_EXCHANGED,
    ring_bound=False,
    steps=lambda n: n - 1,
)
_ALLTOALLV = replace(
    _ALLTOALL,
    title="all-to-all-v",
    does="each rank sends a block of its own size to every rank",
    example="--skew zipf:1.2",
    nccl="AlltoAllv",
    nccl_tests="alltoallv_perf",
    shares=False,
    irregular=True,
)
_SENDRECV = Collective(
    title="send/recv",
    does="each rank sends to the next and receives from the one before",
    example="--pairs",
    nccl="SendRecv",
    nccl_tests="sendrecv_perf",
    reduces=False,
    rooted=False,
    shares=False,
    irregular=False,
    sends=Buffer.WHOLE,
    receives=Buffer.WHOLE,
    in_place=InPlace.UNDEFINED,
    busbw=_ONE,
    traffic=_PASSED_ON,
    ring_bound=False,
    steps=lambda _n: 1,
)
_GATHER = Collective(
    title="gather",
    does="the root gets every rank's block",
    example="--root 1",
    nccl="Gather",
    nccl_tests="gather_perf",
    reduces=False,
    rooted=True,
    shares=True,
    irregular=False,
    sends=Buffer.BLOCK,
    receives=Buffer.WHOLE_AT_ROOT,
    in_place=InPlace.DEFINED,
    busbw=_OTHERS,
    traffic=_AT_ROOT,
    ring_bound=False,
    steps=lambda n: n - 1,
)
_SCATTER = replace(
    _GATHER,
    title="scatter",
    does="each rank gets its block of the root's data",
    nccl="Scatter",
    nccl_tests="scatter_perf",
    sends=Buffer.WHOLE_AT_ROOT,
    receives=Buffer.BLOCK,
)


class Operation(StrEnum):
    """What is timed. A copy names the engine that moves bytes and the side that issues it; a collective has its row.

    To add a collective, add a row; CONTRIBUTING.md lists what makes its calls.
    """

    row: Collective | None

    def __new__(cls, value: str, row: Collective | None = None) -> Self:
        """Make a member of its name, and of a collective its row."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.row = row
        return member

    CE_WRITE = "ce-write"
    CE_READ = "ce-read"
    SM_WRITE = "sm-write"
    SM_READ = "sm-read"
    CPU_WRITE = "cpu-write"
    CPU_READ = "cpu-read"
    H2D_CE = "h2d-ce"
    D2H_CE = "d2h-ce"
    H2D_SM = "h2d-sm"
    D2H_SM = "d2h-sm"
    CHASE = "chase"
    ALLREDUCE = "allreduce", _ALLREDUCE
    BROADCAST = "broadcast", _BROADCAST
    REDUCE = "reduce", _REDUCE
    ALLGATHER = "allgather", _ALLGATHER
    REDUCESCATTER = "reducescatter", _REDUCESCATTER
    ALLTOALL = "alltoall", _ALLTOALL
    ALLTOALLV = "alltoallv", _ALLTOALLV
    SENDRECV = "sendrecv", _SENDRECV
    GATHER = "gather", _GATHER
    SCATTER = "scatter", _SCATTER

    @property
    def is_collective(self) -> bool:
        """True for a collective on a communicator, False for what one link or device does."""
        return self.row is not None

    @property
    def is_copy(self) -> bool:
        """True for bytes moved between memories, False for a collective and for the pointer chase."""
        return self is not Operation.CHASE and not self.is_collective

    @property
    def by_kernel(self) -> bool:
        """True for a copy that the GPU's multiprocessors make, False for one of the copy engine or of a CPU."""
        return "sm" in self.value.split("-")

    @property
    def collective(self) -> Collective:
        """The row of a collective. Raises ValueError for a copy, which has none."""
        if self.row is None:
            raise ValueError(f"{self.value} is no collective: it has no row in the table of collectives")
        return self.row

    @property
    def reduces(self) -> bool:
        """True if the reduction (--op) matters."""
        return self.row is not None and self.row.reduces

    @property
    def rooted(self) -> bool:
        """True if one rank is the root."""
        return self.row is not None and self.row.rooted

    @property
    def shares(self) -> bool:
        """True if the message size is the total over ranks, in equal blocks (docs/method/measuring.md 1)."""
        return self.row is not None and self.row.shares

    @property
    def irregular(self) -> bool:
        """True if each block has a size of its own, and the message size is the busiest rank's bytes."""
        return self.row is not None and self.row.irregular

    def busbw_factor(self, world_size: int) -> float:
        """Return the factor from algbw to busbw for this number of ranks; 1 for copies."""
        return 1.0 if self.row is None else self.row.busbw.of(world_size)


COLLECTIVES = tuple(operation for operation in Operation if operation.is_collective)


class Endpoints(Enum):
    """What the members of a copy's data point are, and in which order."""

    LINK = auto()  # (source, destination)
    PAIR = auto()  # (a, b), in either order the same
    DEVICE = auto()  # one
    DEVICE_AND_OTHERS = auto()  # the timed device, then all others that copy concurrently


class Variant(StrEnum):
    """How an operation runs. The comment on each variant says what the members of a data point are.

    A covered variant times one GPU's messages in one direction, while the copies in its comment run all the time.
    """

    endpoints: Endpoints
    host_memory: bool  # one end is pinned host memory
    covered: bool  # other copies run during the whole timed copy

    def __new__(
        cls, value: str, endpoints: Endpoints = Endpoints.LINK, host_memory: bool = False, covered: bool = False
    ) -> Self:
        """Make a member of its name and its facts."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.endpoints, member.host_memory, member.covered = endpoints, host_memory, covered
        return member

    PLAIN = "plain"  # a copy: (src, dst); a collective, out of place: the ranks in order
    IN_PLACE = "in-place"  # a collective: the ranks in order
    BOTH_WAYS = "both-ways", Endpoints.PAIR  # (a, b): two messages at once
    ONE_TO_ALL = "one-to-all", Endpoints.DEVICE_AND_OTHERS  # (src, *dsts): n-1 messages at once
    ALL_TO_ONE = "all-to-one", Endpoints.DEVICE_AND_OTHERS  # (dst, *srcs): n-1 messages at once
    STAGED = "staged"  # (src, dst) through host memory, peer access off
    HOST = "host", Endpoints.DEVICE, True  # (gpu,): to or from pinned host memory
    HOST_BOTH_WAYS = "host-both-ways", Endpoints.DEVICE, True, True  # (gpu,), during its own opposite direction
    HOST_ALL = "host-all", Endpoints.DEVICE_AND_OTHERS, True, True  # (gpu, *others): the others in the same direction
    HOST_ALL_BOTH_WAYS = "host-all-both-ways", Endpoints.DEVICE_AND_OTHERS, True, True  # the same, in both directions
    LOCAL = "local", Endpoints.DEVICE  # (gpu,): from its own memory to its own

    @property
    def at_once(self) -> bool:
        """True if every device of a data point copies, and one step times each of them."""
        return self.covered and self.endpoints is Endpoints.DEVICE_AND_OTHERS

    @property
    def opposed(self) -> bool:
        """True if the timed copy's link is also busy in the opposite direction."""
        return self in (Variant.HOST_BOTH_WAYS, Variant.HOST_ALL_BOTH_WAYS)

    @property
    def gpu_operations(self) -> tuple[Operation, ...]:
        """The copies that GPUs do in a variant, and with the plain or host variant the pointer chase."""
        if self is Variant.HOST:
            return (*_HOST_COPIES, Operation.CHASE)
        if self.host_memory:
            return _HOST_COPIES
        if self is Variant.STAGED:
            return (Operation.CE_WRITE,)
        if self is Variant.LOCAL:  # the GPU writes what it reads
            return (Operation.CE_WRITE, Operation.SM_WRITE)
        return (*_PEER_COPIES, Operation.CHASE) if self is Variant.PLAIN else _PEER_COPIES


_PEER_COPIES = (Operation.CE_WRITE, Operation.CE_READ, Operation.SM_WRITE, Operation.SM_READ)
_FROM_HOST = (Operation.H2D_CE, Operation.H2D_SM)
_HOST_COPIES = (Operation.H2D_CE, Operation.D2H_CE, Operation.H2D_SM, Operation.D2H_SM)


# How messages are cut into blocks by rank: equal ones, Zipf's law, or a matrix (docs/method/collectives.md 9).

# Bytes from each rank (row) to each rank (column), its own block on the diagonal.
Blocks = tuple[tuple[int, ...], ...]

# nccl-tests cuts each rank's block to whole units of 16 bytes, so that NCCL's widest loads fit [src/all_gather.cu:10,
# src/alltoallv.cu].
BLOCK_UNIT = 16
# Shares are whole numbers of 2^-40, so that blocks are cut exactly and alike on every machine.
_ALL = 2**40
# With a larger exponent all but one rank get nothing, at any size.
LARGEST_EXPONENT = 40


class SkewKind(StrEnum):
    """Where the sizes of blocks come from."""

    ZIPF = "zipf"
    MATRIX = "matrix"


@dataclass(frozen=True, slots=True)
class Skew:
    """The sizes of blocks relative to each other, where they are not all alike.

    By Zipf's law each rank sends as much in all, and the k-th most popular rank receives a share ∝ 1/k^`exponent` of
    it; `seed` shuffles which rank is how popular. A `matrix` holds bytes, row = source, column = destination.
    """

    kind: SkewKind
    exponent: float = 0.0
    seed: int = 0
    matrix: Blocks = ()

    def __post_init__(self) -> None:
        """Raise ValueError for what is no skew."""
        if not 0 <= self.exponent <= LARGEST_EXPONENT:
            raise ValueError(f"the exponent of a skew is {self.exponent}, not 0 to {LARGEST_EXPONENT}")
        if self.kind is SkewKind.ZIPF:
            if self.matrix:
                raise ValueError("a skew has both an exponent and a matrix")
            return
        if any(len(row) != len(self.matrix) for row in self.matrix):
            raise ValueError("the matrix of a skew is not square")
        if any(value < 0 or value % BLOCK_UNIT for row in self.matrix for value in row):
            raise ValueError("the matrix of a skew has a value that is negative or not a multiple of 16 bytes")
        if not any(map(any, self.matrix)):
            raise ValueError("the matrix of a skew sends nothing")

    def check(self, ranks: int) -> None:
        """Raise ValueError if it does not fit this number of ranks."""
        if self.kind is SkewKind.MATRIX and len(self.matrix) != ranks:
            side = len(self.matrix)
            raise ValueError(
                f"the matrix is {side} × {side}, and there are {ranks} ranks: choose {side} of the devices, or write a "
                f"matrix of {ranks} × {ranks}"
            )

    @property
    def own_bytes(self) -> int | None:
        """The size at which a matrix is sent as it stands: its busiest rank's bytes. None for other kinds."""
        return busiest(self.matrix) if self.kind is SkewKind.MATRIX else None

    def weights(self, ranks: int) -> Blocks:
        """Return the blocks' sizes relative to each other."""
        self.check(ranks)
        if self.kind is SkewKind.MATRIX:
            return self.matrix
        from hashlib import sha256  # late: OpenSSL, 4 ms, and few blocks are uneven

        shares = [0] * ranks
        # By a hash, so that a seed means the same with every Python.
        popular = sorted(range(ranks), key=lambda rank: sha256(f"{self.seed}:{rank}".encode()).digest())
        for position, rank in enumerate(popular, start=1):
            shares[rank] = round(_ALL / position**self.exponent)
        return (tuple(shares),) * ranks

    def __str__(self) -> str:
        """Return "zipf:1.2", "zipf:1.2:7" with a seed, or a matrix with its checksum: "matrix 8x8 1c291ca3"."""
        if self.kind is SkewKind.ZIPF:
            exponent = f"{self.exponent:.6f}".rstrip("0").rstrip(".")
            return f"zipf:{exponent}" + (f":{self.seed}" if self.seed else "")
        side, mark = len(self.matrix), zlib.crc32(repr(self.matrix).encode())
        return f"matrix {side}x{side} {mark:08x}"


def busiest(blocks: Blocks) -> int:
    """Return the bytes of the rank that sends or receives the most, as nccl-tests counts an all-to-all-v's size."""
    return max(*map(sum, blocks), *map(sum, zip(*blocks, strict=True)))


def imbalance(blocks: Blocks) -> float:
    """Return the busiest rank's bytes over the mean rank's: 1 where all blocks are alike."""
    return busiest(blocks) * len(blocks) / sum(map(sum, blocks))


def whole_blocks(size_bytes: int, world_size: int) -> int:
    """Return the largest size ≤ size_bytes that `world_size` ranks share in equal blocks of whole 16-byte units.

    Source: nccl-tests' all_gather.cu, GetCollByteCount. 0 if the message is too small for that.
    """
    unit = world_size * BLOCK_UNIT
    return size_bytes // unit * unit


def whole_size(skew: Skew | None, ranks: int, size_bytes: int) -> int:
    """Return what the busiest rank sends or receives of a message of `size_bytes`, in bytes.

    At most that many, as each block is cut to 16 bytes; 0 if nothing is left. None is uniform. Raises ValueError
    where the skew is not for so many ranks.
    """
    return busiest(_cut(_weights(skew, ranks), size_bytes))


@lru_cache(maxsize=256)
def blocks_of(skew: Skew | None, ranks: int, size_bytes: int) -> Blocks:
    """Return the bytes of each block. The busiest rank sends or receives `size_bytes` in all.

    None is uniform. Raises ValueError for a size that `whole_size` does not return, and as it does.
    """
    weights = _weights(skew, ranks)
    # The least size that is cut to this one: any two that are cut to it may differ in other ranks' blocks.
    low, high = size_bytes, size_bytes + ranks * BLOCK_UNIT
    while busiest(_cut(weights, high)) < size_bytes:
        high += ranks * BLOCK_UNIT
    while low < high:
        middle = (low + high) // 2
        if busiest(_cut(weights, middle)) < size_bytes:
            low = middle + 1
        else:
            high = middle
    blocks = _cut(weights, low)
    if size_bytes < 1 or busiest(blocks) != size_bytes:
        raise ValueError(f"blocks of 16 B multiples cannot give {size_bytes} bytes on the busiest of {ranks} ranks")
    return blocks


def across(blocks: Blocks, inside: tuple[int, ...]) -> int:
    """Return the bytes that must cross the border of some ranks in one direction, that with the most."""
    within, everyone = set(inside), range(len(blocks))
    out = sum(blocks[src][dst] for src in inside for dst in everyone if dst not in within)
    into = sum(blocks[src][dst] for dst in inside for src in everyone if src not in within)
    return max(out, into)


def leaving(blocks: Blocks) -> int:
    """Return the bytes that all ranks send to others."""
    return sum(map(sum, blocks)) - sum(row[rank] for rank, row in enumerate(blocks))


def _weights(skew: Skew | None, ranks: int) -> Blocks:
    return ((1,) * ranks,) * ranks if skew is None else skew.weights(ranks)


def _cut(weights: Blocks, size_bytes: int) -> Blocks:
    """Return the blocks of a message whose busiest rank has `size_bytes` before the cut to whole units."""
    most = busiest(weights)
    rows: dict[tuple[int, ...], tuple[int, ...]] = {}  # Zipf's law makes them all equal
    for row in weights:
        if row not in rows:
            rows[row] = tuple(size_bytes * weight // most // BLOCK_UNIT * BLOCK_UNIT for weight in row)
    return tuple(rows[row] for row in weights)


# What is timed: an operation, its variant, its memory, its blocks.


def format_version(version: int) -> str:
    """Return NCCL's number of a version as people write it: 22809 is "2.28.9"."""
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"


class Registration(StrEnum):
    """How the memory of a collective is registered with NCCL (docs/method/collectives.md 7)."""

    NONE = "none"  # nothing: memory of cuMemAlloc, as torch has it unless a job asks for more
    BUFFER = "buffer"  # of ncclMemAlloc, and each communicator knows it by ncclCommRegister
    WINDOW = "window"  # of ncclMemAlloc, a symmetric window on all ranks by ncclCommWindowRegister

    @property
    def oldest_nccl(self) -> int:
        """The oldest NCCL that has it, as NCCL numbers its versions."""
        return {Registration.NONE: 0, Registration.BUFFER: 21900, Registration.WINDOW: 22700}[self]

    def lacking(self, version: str) -> str:
        """Return which NCCL this kind of memory needs, as a clause, if this version ("2.26.2") lacks it; else ""."""
        major, minor, patch = map(int, version.split("."))
        if major * 10000 + minor * 100 + patch >= self.oldest_nccl:
            return ""
        return f"needs NCCL {format_version(self.oldest_nccl).removesuffix('.0')}, and this is {version}"


Transfer: TypeAlias = tuple[int | None, int | None]  # source and destination; None is host memory


@dataclass(frozen=True, slots=True)
class Work:
    """An operation and how it runs: what a plan lists groups and sizes for."""

    operation: Operation
    variant: Variant = Variant.PLAIN
    # Where the host memory of a host copy lies. None: where the system puts it; if all devices copy at once and the
    # machine has several nodes, each device's own node.
    numa_node: int | None = None
    registration: Registration = Registration.NONE  # of a collective's memory
    skew: Skew | None = None  # how the blocks of an irregular collective differ; None: they do not

    @property
    def verifiable(self) -> bool:
        """False if the result is undefined: in place, the ranks of some collectives overwrite what others read."""
        row = self.operation.row
        return row is None or self.variant is not Variant.IN_PLACE or row.in_place is InPlace.DEFINED

    def place(self, members: tuple[int, ...]) -> tuple[int, ...]:
        """Return the devices that a data point describes, ascending: of copies on all devices, the timed one."""
        return members[:1] if self.variant.at_once else tuple(sorted(members))

    def transfers(self, members: tuple[int, ...]) -> list[Transfer]:
        """Return the transfers of a group's copy; of a pointer chase as (reader, owner of the memory).

        Of copies with host memory they are the first member's: its timed one, then one in the opposite direction if
        the variant has it.
        """
        first, *rest = members
        if self.variant.host_memory:
            timed: Transfer = (None, first) if self.operation in _FROM_HOST else (first, None)
            return [timed, (timed[1], timed[0])] if self.variant.opposed else [timed]
        if self.variant is Variant.LOCAL:
            return [(first, first)]
        if self.variant is Variant.BOTH_WAYS:
            return [(first, rest[0]), (rest[0], first)]
        if self.variant is Variant.ALL_TO_ONE:
            return [(other, first) for other in rest]
        return [(first, other) for other in rest]

    def __str__(self) -> str:
        """Return what tables call it: "h2d-ce host node 1", "allreduce in-place", "alltoallv zipf:1.2:7"."""
        where = "" if self.numa_node is None else f" node {self.numa_node}"
        how = "" if self.variant is Variant.PLAIN else f" {self.variant}{where}"
        known = "" if self.registration is Registration.NONE else f" {self.registration}"
        uneven = "" if self.skew is None else f" {self.skew}"
        return f"{self.operation}{how}{known}{uneven}"
