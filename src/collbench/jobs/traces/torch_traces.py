"""What torch writes about its calls: a row of any of its traces, the Flight Recorder, the ExecutionTraceObserver.

All name collectives, types and process groups as torch does; `kineto.py` reads torch.profiler's traces.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from collbench.jobs.job import Library, PointToPoint, Source
from collbench.jobs.traces import values
from collbench.jobs.traces.trace import Trace, TracedCall
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
# The same as C++ names them, by which torch says the types of tensors: "c10::Half", "Tensor(long int)".
_CPP_TYPES = {
    "signed char": "Char",
    "unsigned char": "Byte",
    "long int": "Long",
    **{name.lower(): name for name in _DTYPES if name not in {"Char", "Byte"}},
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
CALL_ROW = "record_param_comms"  # the name of a call's row in the traces of torch.profiler and the observer
_ENDS = re.compile(r"(\d{1,8})(->|<-)(\d{1,8})$")  # of a message: "send 0->1"
_GROUPS_NODE = "process_group:init"  # the name of the node that lists the groups
_MOST_LISTED = 2**16  # ranks of a group that a file may name by their number alone


def tensor_type(name: str) -> str:
    """Return torch's scalar type by its name in C++: "c10::Half", "Tensor(float)"; an unknown one as it is."""
    bare = name.removeprefix("Tensor(").removesuffix(")").removeprefix("c10::")
    return _CPP_TYPES.get(bare.lower(), bare)


@dataclass(slots=True)
class Row:
    """torch's line about a call. Times are µs.

    `sent` and `received` are the elements of each tensor, [] if unknown; where torch gives `split_sizes`, of all
    tensors together. An empty `scalar_type` is unknown. `other` is the rank of the group that is its root or peer.
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
    exposed: float = math.nan
    captured: bool = False
    library: Library = Library.NCCL
    number: int | None = None

    def add_to(self, trace: Trace) -> None:
        """Add the call to a trace; count a row that cannot be read."""
        title, _, ends = self.name.partition(" ")
        name = title.replace("_", "").lower()
        if _NO_CALL.fullmatch(name):
            return
        operation = next((_OPERATIONS[prefix] for prefix in _LONGEST_FIRST if name.startswith(prefix)), None)
        dtype, ranks = _DTYPES.get(self.scalar_type, ""), trace.size(self.group)
        if operation is None:
            trace.left_out[f"{title}, an unknown operation"] += 1
            return
        if (self.scalar_type and not dtype) or min((*self.sent, *self.received), default=0) < 0:
            trace.left_out[f"{title} of an unknown type or size"] += 1
            return
        even = self._even() if operation is Operation.ALLTOALL else True
        if even is False:
            operation = Operation.ALLTOALLV
        other = int(match[3]) if (match := _ENDS.search(ends)) else self.other
        other = other if other is not None and other < ranks else None
        elements = self._message_elements(operation, ranks) if dtype else None
        trace.add(
            TracedCall(
                operation.value,
                None if elements is None else elements * DTYPE_BYTES[dtype],
                self.group,
                dtype,
                root=other if isinstance(operation, Operation) and operation.rooted else None,
                peer=other if isinstance(operation, PointToPoint) else None,
                start=self.start,
                gpu=self.gpu,
                gpu_start=self.gpu_start,
                exposed=self.exposed,
                captured=self.captured,
                library=self.library,
                even=even,
                number=None if isinstance(operation, PointToPoint) else self.number,
            )
        )

    def _even(self) -> bool | None:
        """Return whether an all-to-all's blocks are of one size; torch prints thirty of them, and then dots."""
        whole: list[bool] = []
        for sizes in self.split_sizes:
            shown = re.findall(r"\d+", sizes) if isinstance(sizes, str) else values.items(sizes)
            if len(set(shown)) > 1:
                return False
            whole.append("." not in sizes if isinstance(sizes, str) else isinstance(sizes, list))
        return True if whole and all(whole) else None

    def _message_elements(self, operation: Operation | PointToPoint, ranks: int) -> int | None:
        """Return the elements of a message as nccl-tests counts them; None if the row does not say them."""
        sent, received = sum(self.sent), sum(self.received)
        if operation is Operation.ALLGATHER:
            return max(sent * ranks, received) if self.received or ranks else None
        if operation is Operation.REDUCESCATTER:
            return max(sent, received * ranks) if self.sent or ranks else None
        # torch names a list of blocks at the root, one elsewhere.
        if operation in (Operation.GATHER, Operation.SCATTER) and not self.split_sizes:
            return max((*self.sent, *self.received)) * ranks if ranks and (self.sent or self.received) else None
        return max(sent, received) if self.sent or self.received else None


class FlightRecorderReader:
    """Makes a trace of a dump of the Flight Recorder: an entry for each call, in a ring that may forget the first."""

    def __init__(self, rank: int | None) -> None:
        """Take the rank that the file is named by."""
        self._trace = Trace(Source.FLIGHT_RECORDER, rank)
        self._entries: list[dict[Any, Any]] = []

    def add(self, entry: Any) -> None:
        """Take the next entry."""
        self._entries.append(values.fields(entry))

    def traces(self, fields: dict[Any, Any]) -> list[Trace]:
        """Return the trace of one rank."""
        trace = self._trace
        trace.nccl = values.text(fields.get("comm_lib_version") or fields.get("nccl_version"))
        for group in map(values.fields, values.fields(fields.get("pg_config")).values()):
            trace.add_group(values.text(group.get("name")), values.text(group.get("desc")), group.get("ranks"))
        first: Any = self._entries[0].get("record_id") if self._entries else None
        trace.lost, trace.rows = first if values.natural(first) else 0, len(self._entries)
        for entry in self._entries:
            self._row(entry).add_to(trace)
        return [trace]

    def _row(self, entry: dict[Any, Any]) -> Row:
        key, description, *_ = [*map(values.text, values.items(entry.get("process_group"))), "", ""]
        if key not in self._trace.members:
            self._trace.add_group(key, description, ())
        listed = (*values.items(entry.get("input_dtypes")), *values.items(entry.get("output_dtypes")))
        scalar_types = {*map(values.text, listed)} - {"UNKNOWN_SCALAR"}  # a scatter's receivers name no output
        library, _, name = values.text(entry.get("profiling_name")).rpartition(":")
        created: Any = entry.get("time_created_ns")
        number = entry.get("collective_seq_id")
        return Row(
            key,
            name,
            scalar_types.pop() if len(scalar_types) == 1 else "several types" if scalar_types else "",
            values.shaped(entry.get("input_sizes")),
            values.shaped(entry.get("output_sizes")),
            start=created / 1e3 if values.natural(created) else math.nan,
            gpu=values.number(entry.get("duration_ms")) * 1e3,
            library=Library.GLOO if library == Library.GLOO else Library.NCCL,
            number=number if values.natural(number) else None,
        )


class ExecutionTraceReader:
    """Makes a trace of a host trace of ExecutionTraceObserver: a node for each call, numbered in order, without times.

    Until 1.0.3 a node's arguments say all of a call; since 1.1.0 attributes do, too. The arguments are, from the
    collective's name on, its splits and the ranks of its group; before it are its root or peer, its group, its number
    and its tensors [ParamCommsUtils.hpp]. gloo has a node "gloo:all_reduce" of the tensor that goes in.
    """

    def __init__(self, rank: int | None) -> None:
        """Take the rank, which only the file's name says."""
        self._trace = Trace(Source.EXECUTION_TRACE, rank)
        self._nodes: list[dict[Any, Any]] = []

    def add(self, node: Any) -> None:
        """Take the next node."""
        node = values.fields(node)
        name = values.text(node.get("name"))
        self._trace.rows += 1
        if _GROUPS_NODE in name:
            self._add_groups("".join(map(values.text, _parts(node, "inputs")[0])))
        elif name == CALL_ROW or name.startswith("gloo:"):
            self._nodes.append(node)

    def traces(self, fields: dict[Any, Any]) -> list[Trace]:
        """Return the trace of one rank."""
        for node in sorted(self._nodes, key=_node_number):
            row = self._called(node) if node.get("name") == CALL_ROW else self._gloo(node)
            row.add_to(self._trace)
        return [self._trace]

    def _gloo(self, node: dict[Any, Any]) -> Row:
        tensors, kinds = _parts(node, "inputs")
        kind = next(map(values.text, kinds), "")
        name = node["name"].removeprefix("gloo:")
        group = self._trace.any_group()
        return Row(group, name, tensor_type(kind), [*_elements(tensors)], [], library=Library.GLOO)

    def _called(self, node: dict[Any, Any]) -> Row:
        attributes = {
            attribute["name"]: attribute.get("value")
            for attribute in map(values.fields, values.items(node.get("attrs")))
            if isinstance(attribute.get("name"), str)
        }
        inputs, kinds = _parts(node, "inputs")
        at = next((place for place, value in enumerate(inputs) if isinstance(value, str)), 0)
        if at < 2:  # no arguments of a call
            inputs, at = [[], None, "", *inputs[at:]], 2
        group, other, name, *after = inputs[at - 2 :]
        splits, places = after[:2], [value for value in after[2:5] if values.natural(value)]
        key, description, *_ = [*(values.items(group) or [str(group)]), "", ""]
        key = values.text(attributes.get("pg_name")) or values.text(key)
        listed = len(values.items(splits[0])) if splits else 0
        size = values.size(attributes.get("pg_size")) or values.size(places[-1] if places else listed)
        first, stride = places[:2] if len(places) == 3 else (None, None)
        if not self._trace.size(key):
            first, stride = attributes.get("global_rank_start", first), attributes.get("global_rank_stride", stride)
            name_of_group = values.text(attributes.get("pg_desc")) or values.text(description)
            self._trace.add_group(key, name_of_group, _strided(first, stride, size), size)
        sent, received = attributes.get("in_msg_nelems"), attributes.get("out_msg_nelems")
        kind = re.search(r"Tensor\(([^()]*)\)", " ".join(map(values.text, kinds)))
        return Row(
            key,
            values.text(attributes.get("collective_name")) or values.text(name),
            values.text(attributes.get("dtype")) or tensor_type(kind[1] if kind else ""),
            [*_elements(inputs[: at - 2])] if sent is None else [values.elements(sent)],
            [*_elements(_parts(node, "outputs")[0])] if received is None else [values.elements(received)],
            other=values.rank(other),
            split_sizes=tuple(
                attributes.get(side, default)
                for side, default in zip(("in_split_size", "out_split_size"), (*splits, None, None), strict=False)
            ),
        )

    def _add_groups(self, listed: str) -> None:
        """Note the groups in torch's JSON about them. A group of all ranks has an empty list there [pg_config_info]."""
        try:
            groups = json.loads(listed)
        except (ValueError, RecursionError):
            return
        for group in map(values.fields, values.items(groups)):
            size = values.size(group.get("group_size"))
            everyone = group.get("ranks") == [] and size <= _MOST_LISTED
            ranks = range(size) if everyone else group.get("ranks")
            name, description = values.text(group.get("pg_name")), values.text(group.get("pg_desc"))
            self._trace.add_group(name, description, list(ranks or ()), size)


def _node_number(node: dict[Any, Any]) -> float:
    number = values.number(node.get("id"))
    return 0 if math.isnan(number) else number


def _parts(node: dict[Any, Any], side: str) -> tuple[list[Any], list[Any]]:
    """Return the values of a node's inputs or outputs, and their types; until 1.0.1 they stand in the node itself."""
    part = node.get(side)
    if isinstance(part, dict):
        return values.items(part.get("values")), values.items(part.get("types"))
    return values.items(part), values.items(node.get(f"{side.removesuffix('s')}_types"))


def _elements(tensors: Any, nested: int = 3) -> Iterator[int]:
    """Yield the elements of each tensor in lists: of [tensor, storage, offset, elements, bytes of each, device]."""
    for items in map(values.items, values.items(tensors) if nested else []):
        if len(items) == 6 and isinstance(items[5], str):
            yield values.elements(items[3])
        else:
            yield from _elements(items, nested - 1)


def _strided(start: Any, stride: Any, size: int) -> list[int]:
    """Return the ranks of a group that torch describes by its first one and their distance; [] of any other."""
    if values.rank(start) is None or values.rank(stride) is None or size > _MOST_LISTED or (size > 1 and not stride):
        return []
    return [start + stride * index for index in range(size)]
