"""What any format has of one rank: its groups and its calls."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from collbench.jobs.exposed import Timeline
from collbench.jobs.job import Group, Library, Source
from collbench.jobs.traces import content
from collbench.jobs.traces.content import Unreadable

_MAX_MEMBERS = 2**22  # of all groups together: ten groups of each rank, of four hundred thousand ranks
_MAX_BYTES = 2**53  # numbers of a job file are exact in every reader of JSON


@dataclass(slots=True)
class TracedCall:
    """One call as a trace has it. Times are NaN where unknown."""

    operation: str
    size_bytes: int | None  # None if unknown
    group: str  # the trace's own name of it
    dtype: str
    root: int | None = None  # a rank of the group, None if unknown
    peer: int | None = None  # a rank of the group, None if unknown
    start: float = math.nan  # when the host made it, µs from the trace's origin
    gpu: float = math.nan  # how long its kernel ran, µs
    gpu_start: float = math.nan  # when that began, µs from the trace's origin
    exposed: float = math.nan  # how long it ran while nothing was computed, µs
    alone_from: float = math.nan  # when no kernel of communication ran any more that began earlier, µs from the origin
    captured: bool = False  # inside a CUDA graph
    library: Library = Library.NCCL
    even: bool | None = True  # its blocks are of one size; None if unknown
    number: int | None = None  # of the collectives of its group, on all ranks alike


@dataclass(slots=True)
class Trace:
    """One rank's trace. Groups have the trace's own names as keys."""

    source: Source
    rank: int | None
    calls: list[TracedCall] = field(default_factory=list)
    groups: dict[str, Group] = field(default_factory=dict)
    marks: list[float] = field(default_factory=list)  # where a step begins, and the last one ends, µs from the origin
    world_size: int = 0
    nccl: str = ""
    host: str = ""
    file: str = ""
    origin: float = 0.0  # UTC, µs: a float of the whole moment would be exact to a quarter of one
    gpu: Timeline | None = None  # µs from the origin
    rows: int = 0  # of the file, of any kind
    known_members: int = 0  # of all its groups
    lost: int = 0  # calls that the job made, and the trace has not kept
    left_out: Counter[str] = field(default_factory=Counter)  # rows that could not be read, by what they are

    def add_group(self, key: str, description: str, ranks: Any, size: int = 0) -> None:
        """Note a group's ranks, or () and its size where these are unknown. Raises Unreadable for too many of them."""
        members = content.ranks(ranks)
        self.known_members += len(members)
        if self.known_members > _MAX_MEMBERS:
            raise Unreadable(f"its groups have more than {_MAX_MEMBERS:,} members together, which no job has")
        name = description if description not in {"", "undefined"} else key
        self.groups[key] = Group(members, len(members) or size, name)

    def any_group(self) -> str:
        """Return the group of a call that names none: its ranks are known if all groups have the same."""
        if "" not in self.groups:
            known = {group.ranks for group in self.groups.values()}
            self.add_group("", "", known.pop() if len(known) == 1 else ())
        return ""

    def add(self, call: TracedCall | None) -> None:
        """Add a call, if it is one; only count an impossible one."""
        if call is not None and call.size_bytes is not None and not 0 <= call.size_bytes < _MAX_BYTES:
            self.left_out[f"{call.operation} of an impossible size"] += 1
        elif call is not None:
            self.calls.append(call)
