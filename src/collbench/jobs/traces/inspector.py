"""JSON lines of NCCL Inspector, a profiler plugin that comes with NCCL: a file for each process, a line for each call.

A line has the call's communicator and the rank in it, no data type, root or rank of the job. When the host made the
call stands there if NCCL_INSPECTOR_DUMP_VERBOSE was set. Names and units are those of inspector_json.cc
[github.com/NVIDIA/nccl, plugins/profiler/inspector].
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from collbench.jobs.job import PointToPoint, Source
from collbench.jobs.traces import values
from collbench.jobs.traces.trace import Trace, TracedCall
from collbench.jobs.traces.values import Unreadable
from collbench.model.operations import Operation

_OPERATIONS: dict[str, Operation | PointToPoint] = {
    **{name: Operation(name.lower()) for name in ("AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce")},
    **{one.value.capitalize(): one for one in PointToPoint},
}
_MOST_CALLS = 2**40
_LOOKED_AT = 16  # lines: the first may be damaged
LONGEST = 2**20  # bytes of a line: a longer one is other JSON


def is_inspector(head: bytes) -> bool:
    """True if one of a file's first lines is about a call."""
    return any(_line(line) is not None for line in head.split(b"\n")[:_LOOKED_AT])


class InspectorReader:
    """Makes the traces of the ranks that a file holds of its lines."""

    def __init__(self, _: int | None) -> None:
        """Start; a line says its own rank."""
        self._damaged = 0
        self._processes: dict[tuple[str, int], list[_Line]] = {}

    def add(self, data: bytes) -> None:
        """Take the next line."""
        if data.strip():
            line = _line(data)
            if line is None:
                self._damaged += 1
            else:
                self._processes.setdefault((line.host, line.process), []).append(line)

    def traces(self, _: dict[Any, Any]) -> list[Trace]:
        """Return the traces. Raises Unreadable if the ranks cannot be distinguished."""
        traces_read = [trace for lines in self._processes.values() for trace in _ranks(lines)]
        if self._damaged and traces_read:
            traces_read[0].left_out["lines that are not about a call"] += self._damaged
        return traces_read


@dataclass(frozen=True, slots=True)
class _Line:
    """A call as its line has it. `number` counts calls of a `function` on a communicator, or messages from 1 on."""

    host: str
    process: int
    communicator: str
    name: str
    rank: int
    ranks: int
    function: str
    number: int
    size_bytes: int
    peer: int | None
    start: float
    gpu: float


def _line(data: bytes) -> _Line | None:
    """Return what a line says; None for a line that is not about a call."""
    try:
        whole = values.fields(json.loads(data))
    except (ValueError, RecursionError):
        return None
    header, about = values.fields(whole.get("header")), values.fields(whole.get("metadata"))
    kind = "coll" if "coll_perf" in whole else "p2p"
    call = values.fields(whole.get(f"{kind}_perf"))
    communicator, function = values.text(header.get("id")), values.text(call.get(kind))
    rank, ranks = values.rank(header.get("rank")), values.size(header.get("n_ranks"))
    number, size = call.get(f"{kind}_sn"), values.elements(call.get(f"{kind}_msg_size_bytes"))
    if not communicator or not function or rank is None or rank >= ranks or size < 0:
        return None
    if not values.natural(number) or number >= _MOST_CALLS:
        return None
    process: Any = about.get("pid")
    name = values.text(header.get("comm_name"))
    times = values.fields(call.get("event_trace_ts"))
    # Any other time is the host's, and says nothing about the kernel.
    on_gpu = call.get(f"{kind}_timing_source") == "kernel_gpu"
    return _Line(
        values.text(about.get("hostname")),
        process if values.natural(process) else 0,
        communicator,
        name if name != "unknown" else "",
        rank,
        ranks,
        function,
        number,
        size,
        values.rank(call.get("p2p_peer")),
        values.number(times.get(f"{kind}_start_ts")) or math.nan,
        (values.number(call.get(f"{kind}_exec_time_us")) or math.nan) if on_gpu else math.nan,
    )


def _ranks(lines: list[_Line]) -> Iterable[Trace]:
    """Return the traces of a process: of one rank, or where it has one communicator alone, of all its ranks on it."""
    pairs = {(line.communicator, line.rank) for line in lines}
    communicators = {communicator for communicator, _ in pairs}
    if len(pairs) == len(communicators):
        return [_trace(lines)]
    if len(communicators) > 1:
        raise Unreadable("a process has several ranks on several communicators: they cannot be matched")
    return [_trace([line for line in lines if line.rank == rank]) for _, rank in sorted(pairs)]


def _trace(lines: list[_Line]) -> Trace:
    trace = Trace(Source.INSPECTOR, None, host=lines[0].host)
    timed = not any(math.isnan(line.start) for line in lines)
    if timed:
        lines = sorted(lines, key=lambda line: line.start)
    numbers: dict[tuple[str, str], set[int]] = {}
    for line in lines:
        key = line.communicator
        if key not in trace.sizes:
            trace.add_group(key, line.name, (), line.ranks)
            trace.names[key] = line.name  # an identifier of one run names no group
            trace.own[key] = line.rank
        operation = _OPERATIONS.get(line.function)
        if operation is None or trace.sizes[key] != line.ranks:
            trace.left_out[f"{line.function}, an unknown operation"] += 1
            continue
        message = isinstance(operation, PointToPoint)
        # NCCL counts collectives of each function from 0, and the plugin messages of either kind from 1.
        numbers.setdefault((key, "" if message else line.function), {0} if message else set()).add(line.number)
        parts = line.ranks if isinstance(operation, Operation) and operation.shares else 1
        peer = line.peer if message and line.peer is not None and line.peer < line.ranks else None
        call = TracedCall(operation.value, line.size_bytes * parts, key, "", peer=peer, start=line.start, gpu=line.gpu)
        trace.add(call)
    trace.lost = sum(max(seen) + 1 - len(seen) for seen in numbers.values())
    messages = any(call.operation in set(PointToPoint) for call in trace.calls)
    trace.ordered = not messages and (timed or len({call.group for call in trace.calls}) < 2)
    return trace
