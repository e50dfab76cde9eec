"""What torch writes about its calls: the Flight Recorder, torch.profiler (Kineto) and the ExecutionTraceObserver.

All three name collectives, types and process groups as torch does.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from collbench.jobs.job import PointToPoint, Source
from collbench.jobs.traces import values
from collbench.jobs.traces.trace import Trace, TracedCall
from collbench.jobs.traces.values import Content
from collbench.model.operations import Operation
from collbench.model.units import DTYPE_BYTES

# The scalar types of torch that NCCL sends [c10/core/ScalarType.h]; a bool goes as a byte.
_DTYPES = {
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
_LONGEST_FIRST = sorted(_OPERATIONS, key=len, reverse=True)
# Rows that are no call: a wait, the making of a communicator, a barrier (whose all-reduce has a row of its own), and
# the row of a group in addition to those of its members.
_NO_CALL = re.compile(r"wait|init|barrier|coalesced|allgathercoalesced|reducescattercoalesced|startcoalescing|")
_CALL_ROW = "record_param_comms"  # the name of a call's row in the traces of torch.profiler and the observer
_GROUPS_NODE = "process_group:init"  # the name of the node that lists the groups
_UNKNOWN = (math.nan, math.nan)
_MOST_LISTED = 2**16  # ranks of a group that a file may name by their number alone


@dataclass(frozen=True, slots=True)
class _Row:
    """torch's line about a call. Times are µs.

    `sent` and `received` are the elements of each tensor; where torch gives `split_sizes`, of all tensors together.
    `other` is the rank of the group that is its root or peer.
    """

    group: str
    name: str
    scalar_type: str
    sent: list[int]
    received: list[int]
    other: int | None = None
    split_sizes: tuple[Any, ...] = ()
    start: float = math.nan
    gpu: float = math.nan
    gpu_start: float = math.nan

    def add_to(self, trace: Trace) -> None:
        """Add the call to a trace; count a row that cannot be read."""
        name = self.name.partition(" ")[0].replace("_", "").lower()
        if _NO_CALL.fullmatch(name):
            return
        operation = next((_OPERATIONS[prefix] for prefix in _LONGEST_FIRST if name.startswith(prefix)), None)
        dtype = _DTYPES.get(self.scalar_type)
        ranks = trace.size(self.group)
        if operation is None or dtype is None or ranks < 1 or min((*self.sent, *self.received), default=0) < 0:
            trace.skipped += 1
            return
        splits = {size for sizes in self.split_sizes for size in values.naturals(sizes)}
        if operation is Operation.ALLTOALL and len(splits) > 1:
            operation = Operation.ALLTOALLV
        other = self.other if self.other is not None and self.other < ranks else None
        trace.add(
            TracedCall(
                operation.value,
                self._message_elements(operation, ranks) * DTYPE_BYTES[dtype],
                self.group,
                dtype,
                root=other if isinstance(operation, Operation) and operation.rooted else None,
                peer=other if isinstance(operation, PointToPoint) else None,
                start=self.start,
                gpu=self.gpu,
                gpu_start=self.gpu_start,
            )
        )

    def _message_elements(self, operation: Operation | PointToPoint, ranks: int) -> int:
        """Return the elements of a message as nccl-tests counts them."""
        sent, received = sum(self.sent), sum(self.received)
        if operation is Operation.ALLGATHER:
            return max(sent * ranks, received)
        if operation is Operation.REDUCESCATTER:
            return max(sent, received * ranks)
        # torch names a list of blocks at the root, one elsewhere.
        if operation in (Operation.GATHER, Operation.SCATTER) and not self.split_sizes:
            return max((*self.sent, *self.received), default=0) * ranks
        return max(sent, received)


# A dump of the Flight Recorder: an entry for each call, in a ring, so that the first ones may be gone.


def is_flight_recorder(content: Content) -> bool:
    """True for a dump, in a pickle or in JSON."""
    return isinstance(values.fields(content.fields).get("entries"), list)


def read_flight_recorder(content: Content) -> list[Trace]:
    """Return the trace of one rank."""
    fields = content.fields
    trace = Trace(Source.FLIGHT_RECORDER, content.rank)
    trace.nccl = values.text(fields.get("comm_lib_version") or fields.get("nccl_version"))
    for group in map(values.fields, values.fields(fields.get("pg_config")).values()):
        trace.add_group(values.text(group.get("name")), values.text(group.get("desc")), group.get("ranks"))
    entries = [values.fields(entry) for entry in fields["entries"]]
    first: Any = entries[0].get("record_id") if entries else None
    trace.lost = first if values.natural(first) else 0
    for entry in entries:
        key, description, *_ = [*map(values.text, values.items(entry.get("process_group"))), "", ""]
        if key not in trace.members:
            trace.add_group(key, description, ())
        listed = (*values.items(entry.get("input_dtypes")), *values.items(entry.get("output_dtypes")))
        scalar_types = {*map(values.text, listed)} - {"UNKNOWN_SCALAR"}  # a scatter's receivers name no output
        name = values.text(entry.get("profiling_name")).rpartition(":")[2]
        ends = re.search(r"(\d+)(->|<-)(\d+)", name)
        created: Any = entry.get("time_created_ns")
        _Row(
            key,
            name,
            scalar_types.pop() if len(scalar_types) == 1 else "",
            values.shaped(entry.get("input_sizes")),
            values.shaped(entry.get("output_sizes")),
            other=int(ends[3]) if ends and len(ends[3]) < 9 else None,
            start=created / 1e3 if values.natural(created) else math.nan,
            gpu=values.number(entry.get("duration_ms")) * 1e3,
        ).add_to(trace)
    return [trace]


# torch.profiler's trace (Kineto's JSON): a row of the host for each call, and its kernel by the same External id.


def is_kineto(content: Content) -> bool:
    """True for a trace of torch.profiler."""
    return isinstance(values.fields(content.fields).get("traceEvents"), list)


def read_kineto(content: Content) -> list[Trace]:
    """Return the trace of one rank."""
    fields = content.fields
    distributed = values.fields(fields.get("distributedInfo"))
    own_rank = values.rank(distributed.get("rank"))
    trace = Trace(Source.KINETO, content.rank if own_rank is None else own_rank, replays=False)
    trace.world_size = values.size(distributed.get("world_size"))
    trace.nccl = values.text(distributed.get("nccl_version"))
    trace.host = values.text(fields.get("host_name"))
    for group in map(values.fields, values.items(distributed.get("pg_config"))):
        trace.add_group(values.text(group.get("pg_name")), values.text(group.get("pg_desc")), group.get("ranks"))
    base: Any = fields.get("baseTimeNanoseconds")
    origin = base / 1e3 if values.natural(base) else 0.0
    events = [event for event in map(values.fields, fields["traceEvents"]) if event.get("ph") == "X"]
    kernels: dict[int | str, tuple[float, float]] = {}  # of each call: when its first one began, and how long all took
    for event in events:
        if event.get("cat") == "kernel" and "nccl" in values.text(event.get("name")).lower():
            number = values.hashable(values.fields(event.get("args")).get("External id"))
            start, lasted = origin + values.number(event.get("ts")), values.number(event.get("dur"))
            if not number:
                trace.replays = True  # a kernel of NCCL without a call: a graph's
            elif math.isnan(start) or math.isnan(lasted):
                trace.skipped += 1
            else:
                began, before = kernels.get(number, (math.inf, 0.0))
                kernels[number] = min(began, start), before + lasted
    trace.marks = _marks(events, origin)
    rows = [event for event in events if event.get("name") == _CALL_ROW]
    for event in sorted(rows, key=lambda event: values.number(event.get("ts"))):
        arguments = values.fields(event.get("args"))
        key = values.text(arguments.get("Process Group Name"))
        if key not in trace.members:
            trace.add_group(
                key,
                values.text(arguments.get("Process Group Description")),
                values.ranks(arguments.get("Process Group Ranks")),
                values.size(arguments.get("Group size")),
            )
        name = values.text(arguments.get("Collective name"))
        peer = arguments.get("Dst Rank") if name.startswith("send") else arguments.get("Src Rank")
        call_number = values.hashable(arguments.get("External id"))
        began, lasted = kernels.get(call_number, _UNKNOWN) if call_number is not None else _UNKNOWN
        _Row(
            key,
            name,
            values.text(arguments.get("dtype")),
            [values.elements(arguments.get("In msg nelems"))],
            [values.elements(arguments.get("Out msg nelems"))],
            other=values.rank(peer) if name.startswith(("send", "recv")) else None,
            split_sizes=(arguments.get("In split size"), arguments.get("Out split size")),
            start=origin + values.number(event.get("ts")),
            gpu=lasted,
            gpu_start=began,
        ).add_to(trace)
    return [trace]


def _marks(events: Iterable[dict[str, Any]], origin: float) -> list[float]:
    """Return where the profiler's steps begin, and where the last one ends, on the host."""
    spans = [
        (origin + values.number(event.get("ts")), values.number(event.get("dur")))
        for event in events
        if event.get("cat") == "user_annotation" and values.text(event.get("name")).startswith("ProfilerStep#")
    ]
    spans = sorted(span for span in spans if not math.isnan(sum(span)))
    return [*(start for start, _ in spans), *(start + lasted for start, lasted in spans[-1:])]


# A host trace of ExecutionTraceObserver: a node for each call, numbered in order, without times.


def is_execution_trace(content: Content) -> bool:
    """True for a trace of ExecutionTraceObserver."""
    fields = values.fields(content.fields)
    return isinstance(fields.get("nodes"), list) and "chakra" in values.text(fields.get("schema"))


def read_execution_trace(content: Content) -> list[Trace]:
    """Return the trace of one rank, which its file's name must say."""
    trace = Trace(Source.EXECUTION_TRACE, content.rank)
    nodes = [values.fields(node) for node in content.fields["nodes"]]
    for node in nodes:
        if _GROUPS_NODE in values.text(node.get("name")):
            _add_groups(trace, "".join(map(values.text, _inputs(node))))
    for node in sorted((node for node in nodes if node.get("name") == _CALL_ROW), key=_node_number):
        attributes = {
            attribute["name"]: attribute.get("value")
            for attribute in map(values.fields, values.items(node.get("attrs")))
            if isinstance(attribute.get("name"), str)
        }
        key, name = values.text(attributes.get("pg_name")), values.text(attributes.get("collective_name"))
        if key not in trace.members:
            size = values.size(attributes.get("pg_size"))
            members = _strided(attributes.get("global_rank_start"), attributes.get("global_rank_stride"), size)
            trace.add_group(key, values.text(attributes.get("pg_desc")), members, size)
        # The root or peer is the argument before the collective's name [ParamCommsUtils.hpp].
        inputs = _inputs(node)
        place = inputs.index(name) if name in inputs else 0
        _Row(
            key,
            name,
            values.text(attributes.get("dtype")),
            [values.elements(attributes.get("in_msg_nelems"))],
            [values.elements(attributes.get("out_msg_nelems"))],
            other=values.rank(inputs[place - 1]) if place else None,
            split_sizes=(attributes.get("in_split_size"), attributes.get("out_split_size")),
        ).add_to(trace)
    return [trace]


def _add_groups(trace: Trace, listed: str) -> None:
    """Note the groups in torch's JSON about them. A group of all ranks has an empty list there [pg_config_info]."""
    try:
        groups = json.loads(listed)
    except (ValueError, RecursionError):
        return
    for group in map(values.fields, values.items(groups)):
        size = values.size(group.get("group_size"))
        everyone = group.get("ranks") == [] and size <= _MOST_LISTED
        ranks = range(size) if everyone else group.get("ranks")
        trace.add_group(values.text(group.get("pg_name")), values.text(group.get("pg_desc")), list(ranks or ()), size)


def _node_number(node: dict[str, Any]) -> float:
    number = values.number(node.get("id"))
    return 0 if math.isnan(number) else number


def _inputs(node: dict[str, Any]) -> list[Any]:
    return values.items(values.fields(node.get("inputs")).get("values"))


def _strided(start: Any, stride: Any, size: int) -> list[int]:
    """Return the ranks of a group that torch describes by its first one and their distance; [] of any other."""
    if values.rank(start) is None or values.rank(stride) is None or size > _MOST_LISTED or (size > 1 and not stride):
        return []
    return [start + stride * index for index in range(size)]
