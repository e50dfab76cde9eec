"""What can be timed, and how it runs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Operation(StrEnum):
    """What is timed. A copy names who moves the bytes (engine) and which side issues it (docs/method.md 2.2)."""

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
    ALLREDUCE = "allreduce"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    ALLGATHER = "allgather"
    REDUCESCATTER = "reducescatter"
    ALLTOALL = "alltoall"
    SENDRECV = "sendrecv"
    GATHER = "gather"
    SCATTER = "scatter"

    @property
    def is_collective(self) -> bool:
        """True for a collective on a communicator, False for what one link or device does."""
        return self in COLLECTIVES

    @property
    def is_copy(self) -> bool:
        """True for bytes moved between memories, False for a collective and for the pointer chase."""
        return self is not Operation.CHASE and not self.is_collective

    @property
    def reduces(self) -> bool:
        """True where the reduction (--op) matters."""
        return self in (Operation.ALLREDUCE, Operation.REDUCE, Operation.REDUCESCATTER)

    @property
    def rooted(self) -> bool:
        """True where one rank is the root."""
        return self in (Operation.BROADCAST, Operation.REDUCE, Operation.GATHER, Operation.SCATTER)

    @property
    def shares(self) -> bool:
        """True where the message size is the total over ranks, each with an equal block of it (docs/method.md 2.1)."""
        return self in (
            Operation.ALLGATHER,
            Operation.REDUCESCATTER,
            Operation.ALLTOALL,
            Operation.GATHER,
            Operation.SCATTER,
        )


COLLECTIVES = (
    Operation.ALLREDUCE,
    Operation.BROADCAST,
    Operation.REDUCE,
    Operation.ALLGATHER,
    Operation.REDUCESCATTER,
    Operation.ALLTOALL,
    Operation.SENDRECV,
    Operation.GATHER,
    Operation.SCATTER,
)


class Variant(StrEnum):
    """How an operation runs. A cell's members mean, by variant of a copy:

    plain (src, dst); both ways (a, b), two messages at once; one to all (src, *dsts) and all to one (dst, *srcs),
    n-1 messages at once; staged (src, dst) through host memory, peer access off; host (gpu,), to or from pinned
    host memory. A collective is plain (out of place) or in place; its members are the ranks in order.
    """

    PLAIN = "plain"
    IN_PLACE = "in-place"
    BOTH_WAYS = "both-ways"
    ONE_TO_ALL = "one-to-all"
    ALL_TO_ONE = "all-to-one"
    STAGED = "staged"
    HOST = "host"


@dataclass(frozen=True, slots=True)
class Work:
    """An operation and how it runs: what a plan lists groups and sizes for.

    `numa_node` is where the host memory of a host copy lies, None for wherever the system puts it.
    """

    operation: Operation
    variant: Variant = Variant.PLAIN
    numa_node: int | None = None

    @property
    def verifiable(self) -> bool:
        """False where the result is undefined: in place, all-to-all and send/recv overwrite what they have to send."""
        overwrites = self.operation in (Operation.ALLTOALL, Operation.SENDRECV)
        return not (overwrites and self.variant is Variant.IN_PLACE)

    def __str__(self) -> str:
        """Return what tables call it: "ce-write", "ce-write both-ways", "allreduce in-place", "h2d-ce host node 1"."""
        where = "" if self.numa_node is None else f" node {self.numa_node}"
        return f"{self.operation}" if self.variant is Variant.PLAIN else f"{self.operation} {self.variant}{where}"
