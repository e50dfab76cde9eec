"""MLCommons' Chakra trace: protobuf, a message about the trace and one for each node, in a file for each rank.

Numbers of fields are those of et_def.proto [github.com/mlcommons/chakra, schema/protobuf].
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from typing import Any

from collbench.jobs.job import PointToPoint, Source
from collbench.jobs.traces import protobuf, values
from collbench.jobs.traces.torch_traces import add_groups, lists_groups
from collbench.jobs.traces.trace import Trace, TracedCall
from collbench.jobs.traces.values import Content, Unreadable
from collbench.model.operations import Operation
from collbench.model.units import DTYPE_BYTES

_METADATA, _SEND, _RECV, _COLLECTIVE = 1, 5, 6, 7  # NodeType
_BARRIER = 9
_OPERATIONS = (  # CollectiveCommType
    Operation.ALLREDUCE,
    Operation.REDUCE,
    Operation.ALLGATHER,
    Operation.GATHER,
    Operation.SCATTER,
    Operation.BROADCAST,
    Operation.ALLTOALL,
    Operation.REDUCESCATTER,
    Operation.REDUCESCATTER,
)
# Each rank passes in its own block alone.
_OF_BLOCKS = (Operation.ALLGATHER, Operation.GATHER)
# C++'s types in torch's names of tensors.
_DTYPES = {
    "float": "float32",
    "double": "float64",
    "c10::Half": "float16",
    "c10::BFloat16": "bfloat16",
    "c10::Float8_e4m3fn": "float8_e4m3fn",
    "c10::Float8_e5m2": "float8_e5m2",
    "unsigned char": "uint8",
    "signed char": "int8",
    "bool": "uint8",
    "int": "int32",
    "long": "int64",
    "long int": "int64",
}
_EVERYONE = ""  # the group of a call that names none


def is_chakra(content: Content) -> bool:
    """True if the first message can be about a trace, and the second a node."""
    try:
        first, *second = itertools.islice(protobuf.messages(content.data), 2)
        about = protobuf.fields(first)
        return (
            bool(second)
            and about.keys() <= {1, 2}
            and all(isinstance(value, bytes) for field_values in about.values() for value in field_values)
            and protobuf.fields(second[0]).keys() <= set(range(1, 11))
        )
    except (protobuf.Malformed, ValueError):
        return False


def read_chakra(content: Content) -> list[Trace]:
    """Return the trace of one rank, which its file's name must say. Raises Unreadable."""
    trace = Trace(Source.CHAKRA, content.rank)
    nodes = 0
    try:
        for message in itertools.islice(protobuf.messages(content.data), 1, None):
            _add(trace, protobuf.fields(message), content)
            nodes += 1
    except protobuf.Malformed as error:
        raise Unreadable(f"it is cut off or damaged after {nodes} nodes") from error
    # Nodes say what they wait for, which orders them on one group alone.
    messages = any(call.operation in set(PointToPoint) for call in trace.calls)
    trace.ordered = not messages and len({call.group for call in trace.calls}) < 2
    return [trace]


def _add(trace: Trace, node: protobuf.Fields, content: Content) -> None:
    """Add a node's call, if it has one."""
    kind = _number(node, 3)
    if kind == _METADATA and lists_groups(_text(node, 2)):
        # A list's text of Python, with JSON in it.
        listed = re.search(r"\[\{.*\}\]", _text(_message(node, 8), 1), re.DOTALL)
        add_groups(trace, listed[0] if listed else "")
    if kind not in (_SEND, _RECV, _COLLECTIVE):
        return
    attributes = _attributes(node)
    collective_type = attributes.get("comm_type")
    on_host = attributes.get("is_cpu_op")
    if kind == _COLLECTIVE and (collective_type == _BARRIER or (collective_type is None and on_host)):
        return  # the host's row about a kernel that has its own row
    group = values.text(attributes.get("pg_name"))
    if group == _EVERYONE and group not in trace.members:
        _add_everyone(trace, content)
    ranks = trace.size(group)
    size_bytes = values.elements(attributes.get("comm_size", attributes.get("tensor_size")))
    dims = attributes.get("involved_dim", ())
    if size_bytes < 0 or not ranks or not isinstance(dims, list | tuple) or not all(dims):
        trace.skipped += 1
        return
    dtype = _dtype(_text(_message(node, 8), 3), size_bytes)
    gpu = values.number(_number(node, 7)) if on_host is False else 0.0
    operation: Operation | PointToPoint
    peer = None
    if kind == _COLLECTIVE:
        if not values.natural(collective_type) or collective_type >= len(_OPERATIONS):
            trace.skipped += 1
            return
        operation = _OPERATIONS[collective_type]
        if operation in _OF_BLOCKS:
            size_bytes *= ranks
    else:
        operation = PointToPoint.SEND if kind == _SEND else PointToPoint.RECV
        end = values.rank(attributes.get("comm_dst" if kind == _SEND else "comm_src"))
        members = trace.members[group]
        peer = members.index(end) if end in members else None
    trace.add(TracedCall(operation.value, size_bytes, group, dtype, peer=peer, gpu=gpu or math.nan))


def _add_everyone(trace: Trace, content: Content) -> None:
    """Note the group of all ranks, which are those whose traces are imported together."""
    if content.rank is None or content.files < 2 or content.rank >= content.files:
        raise Unreadable(
            "its calls name no group, so they are of all ranks: name the traces of all ranks, trace.0.et, trace.1.et, …"
        )
    trace.add_group(_EVERYONE, "", list(range(content.files)))


def _attributes(node: protobuf.Fields) -> dict[str, Any]:
    attributes = {}
    for attribute in node.get(10, ()):
        fields = protobuf.fields(attribute) if isinstance(attribute, bytes) else {}
        attributes[_text(fields, 1)] = next(
            (_value(number, held[-1]) for number, held in fields.items() if number > 2), None
        )
    return attributes


def _value(number: int, held: int | bytes) -> Any:
    """Return an attribute's value, by the number of its field; None of a kind that no call has."""
    if isinstance(held, bytes):
        if number == 29:
            return held.decode(errors="replace")
        bools = protobuf.fields(held).get(1, []) if number == 28 else None
        return bools and [bit for one in bools for bit in (protobuf.varints(one) if isinstance(one, bytes) else [one])]
    if number in (7, 9):
        return protobuf.signed(held)
    if number == 27:
        return bool(held)
    return held if number in (11, 13) else None


def _dtype(types: str, size_bytes: int) -> str:
    """Return the type of all tensors that go in; "" if it is not clear."""
    dtypes = {_DTYPES.get(type_name, "") for type_name in re.findall(r"Tensor\(([^()]*)\)", types)}
    dtype = dtypes.pop() if len(dtypes) == 1 else ""
    return dtype if dtype and size_bytes % DTYPE_BYTES[dtype] == 0 else ""


def _last(message: protobuf.Fields, number: int) -> int | bytes | None:
    held: Sequence[int | bytes] = message.get(number, ())
    return held[-1] if held else None


def _number(message: protobuf.Fields, number: int) -> int:
    held = _last(message, number)
    return held if isinstance(held, int) else 0


def _text(message: protobuf.Fields, number: int) -> str:
    held = _last(message, number)
    return held.decode(errors="replace") if isinstance(held, bytes) else ""


def _message(message: protobuf.Fields, number: int) -> protobuf.Fields:
    held = _last(message, number)
    return protobuf.fields(held) if isinstance(held, bytes) else {}
