"""A host trace of torch's ExecutionTraceObserver: a node for each call, numbered in order, without times."""

from __future__ import annotations

import json
import math
from typing import Any

from collbench.model.job import Source
from collbench.runfile.traces import values
from collbench.runfile.traces.content import Content
from collbench.runfile.traces.trace import DTYPES, Row, Trace

GROUPS = "process_group:init"  # the name of the node that lists them
_MOST_LISTED = 2**16  # ranks of a group that a file may name by their number alone


def holds(content: Content) -> bool:
    """True for such a trace."""
    fields = values.fields(content.fields)
    return isinstance(fields.get("nodes"), list) and "chakra" in values.text(fields.get("schema"))


def traces(content: Content) -> list[Trace]:
    """Return the trace of one rank, which its file's name must say."""
    trace = Trace(Source.EXECUTION_TRACE, content.rank)
    nodes = [values.fields(node) for node in content.fields["nodes"]]
    for node in nodes:
        if GROUPS in values.text(node.get("name")):
            add_groups(trace, "".join(map(values.text, _inputs(node))))
    calls = [node for node in nodes if node.get("name") == "record_param_comms"]
    for node in sorted(
        calls, key=lambda node: number if not math.isnan(number := values.number(node.get("id"))) else 0
    ):
        listed = map(values.fields, values.items(node.get("attrs")))
        attributes = {
            attribute.get("name"): attribute.get("value")
            for attribute in listed
            if isinstance(attribute.get("name"), str)
        }
        group, name = values.text(attributes.get("pg_name")), values.text(attributes.get("collective_name"))
        if group not in trace.members:
            size = values.size(attributes.get("pg_size"))
            members = _strided(attributes.get("global_rank_start"), attributes.get("global_rank_stride"), size)
            trace.add_group(group, values.text(attributes.get("pg_desc")), members, size)
        splits = (*values.naturals(attributes.get("in_split_size")), *values.naturals(attributes.get("out_split_size")))
        sent, received = (values.elements(attributes.get(key)) for key in ("in_msg_nelems", "out_msg_nelems"))
        Row(
            name,
            group,
            DTYPES.get(values.text(attributes.get("dtype")), ""),
            [sent],
            [received],
            _before(_inputs(node), name),
            uneven=len(set(splits)) > 1,
            summed=True,
        ).add_to(trace)
    return [trace]


def add_groups(trace: Trace, listed: str) -> None:
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


def _inputs(node: dict[str, Any]) -> list[Any]:
    return values.items(values.fields(node.get("inputs")).get("values"))


def _before(inputs: list[Any], name: str) -> int | None:
    """Return the rank that is the root or peer: the argument before the collective's name [ParamCommsUtils.hpp]."""
    at = inputs.index(name) if name in inputs else 0
    return values.rank(inputs[at - 1]) if at else None


def _strided(start: Any, stride: Any, size: int) -> list[int]:
    """Return the ranks of a group that torch describes by its first one and their distance; [] of any other."""
    if values.rank(start) is None or values.rank(stride) is None or size > _MOST_LISTED or (size > 1 and not stride):
        return []
    return [start + stride * index for index in range(size)]
