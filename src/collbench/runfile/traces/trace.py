"""What any format has of one rank: its groups and its calls."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from collbench.model.job import Source
from collbench.runfile.traces import values

_MOST_BYTES = 2**53  # numbers of a job file are exact in every reader of JSON


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
