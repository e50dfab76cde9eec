"""One rank's trace: its groups and calls as any format has them, and torch's names of them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

from collbench.model.dtypes import DTYPE_BYTES
from collbench.model.job import PointToPoint, Source
from collbench.model.operations import Operation
from collbench.runfile.traces import values

# The scalar types of torch that NCCL sends [c10/core/ScalarType.h]; a bool goes as a byte.
DTYPES = {
    "Char": "int8",
    "Byte": "uint8",
    "Bool": "uint8",
    "Int": "int32",
    "Long": "int64",
    "Half": "float16",
    "Float": "float32",
    "Double": "float64",
    "BFloat16": "bfloat16",
    "Float8_e4m3fn": "float8_e4m3fn",
    "Float8_e5m2": "float8_e5m2",
}
# What torch calls its collectives, without underscores; the longest that fits counts [ProcessGroupNCCL.cpp].
_OPERATIONS: dict[str, Operation | PointToPoint] = {
    "allreduce": Operation.ALLREDUCE,
    "broadcast": Operation.BROADCAST,
    "reduce": Operation.REDUCE,
    "allgather": Operation.ALLGATHER,
    "reducescatter": Operation.REDUCESCATTER,
    "alltoall": Operation.ALLTOALL,
    "gather": Operation.GATHER,
    "scatter": Operation.SCATTER,
    "send": PointToPoint.SEND,
    "recv": PointToPoint.RECV,
}
# Rows that are no call: a wait, the making of a communicator, a barrier (whose all-reduce has a row of its own), and
# the row of a group beside those of its members.
_NO_CALL = re.compile(r"wait|init|barrier|coalesced|allgathercoalesced|reducescattercoalesced|startcoalescing|")
_LONGEST_FIRST = sorted(_OPERATIONS, key=len, reverse=True)
_MOST_BYTES = 2**53  # numbers of a job file are exact in every reader of JSON


class Unreadable(Exception):
    """Why a file is not a readable trace."""


@dataclass(frozen=True, slots=True)
class TracedCall:
    """One call as a trace has it. `group` is the trace's own name; `start` UTC µs; `gpu` µs, NaN where unknown.

    `root` and `peer` are ranks of the group, None if unknown.
    """

    operation: str
    size_bytes: int
    group: str
    dtype: str
    root: int | None = None
    peer: int | None = None
    start: float = math.nan
    gpu: float = math.nan
    gpu_start: float = math.nan


@dataclass(slots=True)
class Trace:
    """One rank's trace. `members` are the job ranks of each group by its name; `skipped` rows could not be read."""

    source: Source
    rank: int | None
    calls: list[TracedCall] = field(default_factory=list)
    members: dict[str, tuple[int, ...]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    own: dict[str, int] = field(default_factory=dict)  # its own rank in each group, where the trace says no members
    world_size: int = 0
    nccl: str = ""
    host: str = ""
    lost: int = 0  # calls that the job made, and the trace has not kept
    skipped: int = 0
    replays: bool = True  # a captured graph's calls are there once, or its kernels without a call
    ordered: bool = True  # False if it does not say the order of calls of different groups

    def add_group(self, key: str, description: str, ranks: Any, size: int = 0) -> None:
        """Note who is in a group: its ranks, or where these are unknown () and its size."""
        members = values.ranks(ranks)
        self.members[key], self.sizes[key] = members, len(members) or size
        self.names[key] = description if description not in {"", "undefined"} else key

    def own_size(self, group: str) -> int:
        """Return the size of a group in which the trace says its own rank; 0 of any other."""
        return self.sizes[group] if group in self.own else 0

    def size(self, group: str) -> int:
        """Return how many ranks a group has; 0 if unknown."""
        return max(self.sizes.get(group, 0), len(self.members.get(group, ())))

    def add(self, call: TracedCall) -> None:
        """Add a call; only count an impossible one."""
        ranks = self.size(call.group)
        if ranks < 1 or not 0 <= call.size_bytes < _MOST_BYTES:
            self.skipped += 1
            return
        self.calls.append(call)


@dataclass(frozen=True, slots=True)
class Row:
    """torch's line about a call: its name of it, elements of the tensors that it sends and gets, times in µs.

    `given` and `got` are a list with each tensor's elements, or (`summed`) with their sum. `other` is the rank of the
    group that is its root or peer.
    """

    name: str
    group: str
    dtype: str
    given: list[int]
    got: list[int]
    other: int | None = None
    start: float = math.nan
    gpu: float = math.nan
    gpu_start: float = math.nan
    uneven: bool = False
    summed: bool = False

    def add_to(self, trace: Trace) -> None:
        """Add the call to a trace; count a row that cannot be read."""
        name = self.name.partition(" ")[0].replace("_", "").lower()
        if _NO_CALL.fullmatch(name):
            return
        operation = next((_OPERATIONS[prefix] for prefix in _LONGEST_FIRST if name.startswith(prefix)), None)
        ranks = trace.size(self.group)
        if operation is None or not self.dtype or ranks < 1 or min((*self.given, *self.got), default=0) < 0:
            trace.skipped += 1
            return
        if self.uneven and operation is Operation.ALLTOALL:
            operation = Operation.ALLTOALLV
        other = self.other if self.other is not None and self.other < ranks else None
        trace.add(
            TracedCall(
                operation.value,
                self._message(operation, ranks) * DTYPE_BYTES[self.dtype],
                self.group,
                self.dtype,
                root=other if isinstance(operation, Operation) and operation.rooted else None,
                peer=other if isinstance(operation, PointToPoint) else None,
                start=self.start,
                gpu=self.gpu,
                gpu_start=self.gpu_start,
            )
        )

    def _message(self, operation: Operation | PointToPoint, ranks: int) -> int:
        """Return the elements of a message as nccl-tests counts them."""
        given, got = sum(self.given), sum(self.got)
        if operation is Operation.ALLGATHER:
            return max(given * ranks, got)
        if operation is Operation.REDUCESCATTER:
            return max(given, got * ranks)
        # torch names a list of blocks at the root, one elsewhere.
        if operation in (Operation.GATHER, Operation.SCATTER) and not self.summed:
            return max((*self.given, *self.got), default=0) * ranks
        return max(given, got)
