"""What any format has of one rank: its groups and its calls."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from collbench.jobs.job import Source
from collbench.jobs.traces import values
from collbench.jobs.traces.values import Unreadable

_MOST_MEMBERS = 2**22  # of all groups together: ten groups of each rank, of four hundred thousand ranks
_MOST_BYTES = 2**53  # numbers of a job file are exact in every reader of JSON


@dataclass(frozen=True, slots=True)
class TracedCall:
    """One call as a trace has it. Times are NaN where unknown."""

    operation: str
    size_bytes: int
    group: str  # the trace's own name of it
    dtype: str
    root: int | None = None  # a rank of the group, None if unknown
    peer: int | None = None  # a rank of the group, None if unknown
    start: float = math.nan  # UTC, µs
    gpu: float = math.nan  # how long it ran there, µs
    gpu_start: float = math.nan  # UTC, µs


@dataclass(slots=True)
class Trace:
    """One rank's trace. Groups have the trace's own names as keys."""

    source: Source
    rank: int | None
    calls: list[TracedCall] = field(default_factory=list)
    members: dict[str, tuple[int, ...]] = field(default_factory=dict)  # each group's ranks of the job
    sizes: dict[str, int] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    marks: list[float] = field(default_factory=list)  # where a step begins, and the last one ends: UTC, µs
    own: dict[str, int] = field(default_factory=dict)  # its own rank in each group, where the trace says no members
    world_size: int = 0
    nccl: str = ""
    host: str = ""
    known_members: int = 0  # of all its groups
    lost: int = 0  # calls that the job made, and the trace has not kept
    skipped: int = 0  # rows that could not be read
    replays: bool = True  # a captured graph's calls are there once, or its kernels without a call
    ordered: bool = True  # False if it does not say the order of calls of different groups

    def add_group(self, key: str, description: str, ranks: Any, size: int = 0) -> None:
        """Note a group's ranks, or () and its size where these are unknown. Raises Unreadable for too many of them."""
        members = values.ranks(ranks)
        self.known_members += len(members)
        if self.known_members > _MOST_MEMBERS:
            raise Unreadable(f"its groups have more than {_MOST_MEMBERS:,} members together, which no job has")
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
