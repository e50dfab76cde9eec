"""torch.profiler's trace (Kineto's JSON): a row of the host for each call, and its kernel by the same External id."""

from __future__ import annotations

import math
from typing import Any

from collbench.model.job import Source
from collbench.runfile.traces import values
from collbench.runfile.traces.content import Content
from collbench.runfile.traces.trace import DTYPES, Row, Trace

_NELEMS = ("In msg nelems", "Out msg nelems")


def holds(content: Content) -> bool:
    """True for such a trace."""
    return isinstance(values.fields(content.fields).get("traceEvents"), list)


def traces(content: Content) -> list[Trace]:
    """Return the trace of one rank."""
    fields = content.fields
    distributed = values.fields(fields.get("distributedInfo"))
    own_rank = values.rank(distributed.get("rank"))
    trace = Trace(Source.KINETO, content.rank if own_rank is None else own_rank, replays=False)
    trace.world_size = values.size(distributed.get("world_size"))
    trace.nccl = values.text(distributed.get("nccl_version"))
    trace.host = values.text(fields.get("host_name"))
    for group_fields in map(values.fields, values.items(distributed.get("pg_config"))):
        trace.add_group(
            values.text(group_fields.get("pg_name")),
            values.text(group_fields.get("pg_desc")),
            group_fields.get("ranks"),
        )
    base: Any = fields.get("baseTimeNanoseconds")
    origin = base / 1e3 if values.natural(base) else 0.0
    events = [event for event in map(values.fields, fields["traceEvents"]) if event.get("ph") == "X"]
    kernels: dict[Any, tuple[float, float]] = {}  # of each call: when its first one began, and how long all took
    for event in events:
        if event.get("cat") == "kernel" and "nccl" in values.text(event.get("name")).lower():
            number = values.hashable(values.fields(event.get("args")).get("External id"))
            lasted = values.number(event.get("dur"))
            if not number:
                trace.replays = True  # a kernel of NCCL without a call: a graph's
            elif not math.isnan(lasted):
                began, before = kernels.get(number, (math.inf, 0.0))
                kernels[number] = min(began, origin + values.number(event.get("ts"))), before + lasted
    rows = [event for event in events if event.get("name") == "record_param_comms"]
    for event in sorted(rows, key=lambda event: values.number(event.get("ts"))):
        arguments = values.fields(event.get("args"))
        group = values.text(arguments.get("Process Group Name"))
        if group not in trace.members:
            ranks = values.ranks(arguments.get("Process Group Ranks"))
            description = values.text(arguments.get("Process Group Description"))
            trace.add_group(group, description, ranks, values.size(arguments.get("Group size")))
        name = values.text(arguments.get("Collective name"))
        splits = (*values.naturals(arguments.get("In split size")), *values.naturals(arguments.get("Out split size")))
        peer = arguments.get("Dst Rank") if name.startswith("send") else arguments.get("Src Rank")
        sent, received = (values.elements(arguments.get(key)) for key in _NELEMS)
        began, lasted = kernels.get(values.hashable(arguments.get("External id")), (math.nan, math.nan))
        Row(
            name,
            group,
            DTYPES.get(values.text(arguments.get("dtype")), ""),
            [sent],
            [received],
            values.rank(peer) if name.startswith(("send", "recv")) else None,
            start=origin + values.number(event.get("ts")),
            gpu=lasted,
            gpu_start=began,
            uneven=len(set(splits)) > 1,
            summed=True,
        ).add_to(trace)
    return [trace]
