"""What torch writes about its calls: a row of any of its traces, the Flight Recorder, the ExecutionTraceObserver.

All name collectives, types and process groups as torch does; `kineto.py` reads torch.profiler's traces.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

from collbench.jobs.job import Library, PointToPoint, Source
from collbench.jobs.traces import content
from collbench.jobs.traces.content import Trace, TracedCall
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
    **{name: name.lower() for name in ("Float8_e4m3fn", "Float8_e5m2")},
}
# The same as C++ names them, by which torch says the types of tensors: "c10::Half", "Tensor(long int)".
_CPP_TYPES = {name.lower(): name for name in _DTYPES if name not in {"Char", "Byte"}} | {
    "signed char": "Char",
    "unsigned char": "Byte",
    "long int": "Long",
}
# What torch calls its collectives, without underscores; the longest that fits counts [ProcessGroupNCCL.cpp].
_OPERATIONS: dict[str, Operation | PointToPoint] = {
    **{kind.value: kind for kind in Operation if kind.is_collective and not kind.collective.irregular},
    **{kind.value: kind for kind in PointToPoint},
}
_LONGEST_FIRST = sorted(_OPERATIONS, key=len, reverse=True)
# Rows that are no call: a wait, the making of a communicator, a barrier (whose all-reduce has a row of its own), and
# the row of a group in addition to those of its members.
_NO_CALL = re.compile(r"wait|init|barrier|coalesced|allgathercoalesced|reducescattercoalesced|startcoalescing|")
CALL_ROW = "record_param_comms"  # the name of a call's row in the traces of torch.profiler and the observer
_ENDS = re.compile(r"(\d{1,8})(->|<-)(\d{1,8})$")  # of a message: "send 0->1"
_GROUPS_NODE = "process_group:init"  # the name of the node that lists the groups
_MAX_LISTED = 2**16  # ranks of a group that a file may name by their number alone


def tensor_type(name: str) -> str:
    """Return torch's scalar type by its name in C++: "c10::Half", "Tensor(float)"; an unknown one as it is."""
    bare = name.removeprefix("Tensor(").removesuffix(")").removeprefix("c10::")
    return _CPP_TYPES.get(bare.lower(), bare)


def called(
    trace: Trace,
    group: str,
    title: str,
    scalar_type: str,
    elements: tuple[list[int], list[int]],
    *,
    other: int | None = None,
    split_sizes: tuple[Any, ...] = (),
    **known: Any,
) -> TracedCall | None:
    """Return a call as torch names it; None of what is no call, or cannot be read, which is counted.

    `elements` are those of each tensor sent and received, [] if unknown; where torch gives `split_sizes`, of all
    together. An empty `scalar_type` is unknown. `other` is the rank of the group that is its root or peer.
    `known` are other fields of TracedCall.
    """
    title, _, ends = title.partition(" ")
    name = title.replace("_", "").lower()
    if _NO_CALL.fullmatch(name):
        return None
    operation = next((_OPERATIONS[prefix] for prefix in _LONGEST_FIRST if name.startswith(prefix)), None)
    dtype, ranks = _DTYPES.get(scalar_type, ""), trace.groups[group].size
    if operation is None:
        trace.left_out[f"{title}, an unknown operation"] += 1
        return None
    if (scalar_type and not dtype) or min((*elements[0], *elements[1]), default=0) < 0:
        trace.left_out[f"{title} of an unknown type or size"] += 1
        return None
    even = _even(split_sizes) if operation is Operation.ALLTOALL else True
    other = int(match[3]) if (match := _ENDS.search(ends)) else other
    other = other if other is not None and other < ranks else None
    whole = _message_elements(operation, ranks, *elements, listed=not split_sizes) if dtype else None
    if isinstance(operation, PointToPoint):
        known |= {"peer": other, "number": None}
    elif operation.rooted:
        known["root"] = other
    operation = Operation.ALLTOALLV if even is False else operation
    size = None if whole is None else whole * DTYPE_BYTES[dtype]
    return TracedCall(operation.value, size, group, dtype, even=even, **known)


def _even(split_sizes: tuple[Any, ...]) -> bool | None:
    """Return whether an all-to-all's blocks are of one size; torch prints thirty of them, and then dots."""
    whole: list[bool] = []
    for sizes in split_sizes:
        shown = re.findall(r"\d+", sizes) if isinstance(sizes, str) else content.items(sizes)
        if len(set(map(str, shown))) > 1:
            return False
        whole.append("." not in sizes if isinstance(sizes, str) else isinstance(sizes, list))
    return True if whole and all(whole) else None


def _message_elements(
    operation: Operation | PointToPoint, ranks: int, sent: list[int], received: list[int], *, listed: bool
) -> int | None:
    """Return the elements of a message as nccl-tests counts them; None if unknown. `listed`: of a list of blocks."""
    if operation is Operation.ALLGATHER:
        return max(sum(sent) * ranks, sum(received)) if received or ranks else None
    if operation is Operation.REDUCESCATTER:
        return max(sum(sent), sum(received) * ranks) if sent or ranks else None
    if not sent and not received:
        return None
    # torch names a list of blocks at the root, one elsewhere.
    if operation in (Operation.GATHER, Operation.SCATTER) and listed:
        return max(*sent, *received, 0) * ranks if ranks else None
    return max(sum(sent), sum(received))


class FlightRecorderReader:
    """Makes a trace of a dump of the Flight Recorder: an entry for each call, in a ring that may forget the first."""

    title = "a dump of torch's Flight Recorder"
    elements, marks = "entries", (b"entries", b"pg_config")

    def __init__(self, rank: int | None) -> None:
        """Take the rank that the file is named by."""
        self._trace = Trace(Source.FLIGHT_RECORDER, rank)
        self._entries: list[dict[Any, Any]] = []

    def add(self, entry: Any) -> None:
        """Take the next entry."""
        self._entries.append(content.fields(entry))

    def trace(self, fields: dict[Any, Any]) -> Trace:
        """Return the trace."""
        trace = self._trace
        trace.nccl = content.text(fields.get("comm_lib_version") or fields.get("nccl_version"))
        for group in map(content.fields, content.fields(fields.get("pg_config")).values()):
            trace.add_group(content.text(group.get("name")), content.text(group.get("desc")), group.get("ranks"))
        first: Any = self._entries[0].get("record_id") if self._entries else None
        trace.lost, trace.rows = first if content.natural(first) else 0, len(self._entries)
        for entry in self._entries:
            trace.add(self._called(entry))
        return trace

    def _called(self, entry: dict[Any, Any]) -> TracedCall | None:
        key, description, *_ = [*map(content.text, content.items(entry.get("process_group"))), "", ""]
        if key not in self._trace.groups:
            self._trace.add_group(key, description, ())
        listed = (*content.items(entry.get("input_dtypes")), *content.items(entry.get("output_dtypes")))
        scalar_types = {*map(content.text, listed)} - {"UNKNOWN_SCALAR"}  # a scatter's receivers name no output
        library, _, name = content.text(entry.get("profiling_name")).rpartition(":")
        created: Any = entry.get("time_created_ns")
        number = entry.get("collective_seq_id")
        return called(
            self._trace,
            key,
            name,
            scalar_types.pop() if len(scalar_types) == 1 else "several types" if scalar_types else "",
            (content.shaped(entry.get("input_sizes")), content.shaped(entry.get("output_sizes"))),
            start=created / 1e3 if content.natural(created) else math.nan,
            gpu=content.number(entry.get("duration_ms")) * 1e3,
            library=Library.GLOO if library == Library.GLOO else Library.NCCL,
            number=number if content.natural(number) else None,
        )


class ExecutionTraceReader:
    """Makes a trace of a host trace of ExecutionTraceObserver: a node for each call, numbered in order, without times.

    A node's arguments say all of a call: its tensors, its number, its group, its root or peer, the collective's name,
    its splits, and since 1.0.2 the ranks of its group [ParamCommsUtils.hpp]. gloo has a node "gloo:all_reduce".
    """

    title = "an execution trace of torch's ExecutionTraceObserver"
    elements, marks = "nodes", (b'"nodes"', b'"schema"')

    def __init__(self, rank: int | None) -> None:
        """Take the rank, which only the file's name says."""
        self._trace = Trace(Source.EXECUTION_TRACE, rank)
        self._nodes: list[dict[Any, Any]] = []

    def add(self, node: Any) -> None:
        """Take the next node."""
        node = content.fields(node)
        name = content.text(node.get("name"))
        self._trace.rows += 1
        if _GROUPS_NODE in name:
            self._add_groups("".join(map(content.text, _parts(node, "inputs")[0])))
        elif name == CALL_ROW or name.startswith("gloo:"):
            self._nodes.append(node)

    def trace(self, fields: dict[Any, Any]) -> Trace:
        """Return the trace."""
        for node in sorted(self._nodes, key=_node_number):
            self._trace.add(self._called(node) if node.get("name") == CALL_ROW else self._gloo(node))
        return self._trace

    def _gloo(self, node: dict[Any, Any]) -> TracedCall | None:
        tensors, kinds = _parts(node, "inputs")
        kind = next(map(content.text, kinds), "")
        name = node["name"].removeprefix("gloo:")
        sent, group = [*_elements(tensors)], self._trace.any_group()
        return called(self._trace, group, name, tensor_type(kind), (sent, []), library=Library.GLOO)

    def _called(self, node: dict[Any, Any]) -> TracedCall | None:
        inputs, kinds = _parts(node, "inputs")
        at = next((place for place, value in enumerate(inputs) if isinstance(value, str)), 0)
        if at < 2:
            return None
        group, other, name, *after = inputs[at - 2 :]
        splits, places = after[:2], [value for value in after[2:5] if content.natural(value)]
        key, description, *_ = [*map(content.text, content.items(group) or [str(group)]), "", ""]
        if key not in self._trace.groups or not self._trace.groups[key].size:
            size = content.size(places[-1] if places else len(content.items(*splits[:1] or [None])))
            first, stride = places[:2] if len(places) == 3 else (None, None)
            self._trace.add_group(key, description, _strided(first, stride, size), size)
        kind = re.search(r"Tensor\(([^()]*)\)", " ".join(map(content.text, kinds)))
        elements = [*_elements(inputs[: at - 2])], [*_elements(_parts(node, "outputs")[0])]
        scalar_type, peer = tensor_type(kind[1] if kind else ""), content.rank(other)
        return called(self._trace, key, name, scalar_type, elements, other=peer, split_sizes=tuple(splits))

    def _add_groups(self, listed: str) -> None:
        """Note the groups in torch's JSON about them. A group of all ranks has an empty list there [pg_config_info]."""
        try:
            groups = json.loads(listed)
        except (ValueError, RecursionError):
            return
        for group in map(content.fields, content.items(groups)):
            size = content.size(group.get("group_size"))
            everyone = group.get("ranks") == [] and size <= _MAX_LISTED
            ranks = range(size) if everyone else group.get("ranks")
            name, description = content.text(group.get("pg_name")), content.text(group.get("pg_desc"))
            self._trace.add_group(name, description, list(ranks or ()), size)


def _node_number(node: dict[Any, Any]) -> float:
    number = content.number(node.get("id"))
    return 0 if math.isnan(number) else number


def _parts(node: dict[Any, Any], side: str) -> tuple[list[Any], list[Any]]:
    """Return the values of a node's inputs or outputs, and their types; until 1.0.1 they stand in the node itself."""
    part = node.get(side)
    if isinstance(part, dict):
        return content.items(part.get("values")), content.items(part.get("types"))
    return content.items(part), content.items(node.get(f"{side.removesuffix('s')}_types"))


def _elements(tensors: Any, nested: int = 3) -> Iterator[int]:
    """Yield the elements of each tensor in lists: of [tensor, storage, offset, elements, bytes of each, device]."""
    for items in map(content.items, content.items(tensors) if nested else []):
        if len(items) == 6 and isinstance(items[5], str):
            yield content.elements(items[3])
        else:
            yield from _elements(items, nested - 1)


def _strided(start: Any, stride: Any, size: int) -> list[int]:
    """Return the ranks of a group that torch describes by its first one and their distance; [] of any other."""
    if content.rank(start) is None or content.rank(stride) is None or size > _MAX_LISTED or (size > 1 and not stride):
        return []
    return [start + stride * index for index in range(size)]
