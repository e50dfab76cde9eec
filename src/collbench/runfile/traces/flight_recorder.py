"""A dump of torch's Flight Recorder: an entry for each call, in a ring, so that the first ones may be gone."""

from __future__ import annotations

import math
import re
from typing import Any

from collbench.model.job import Source
from collbench.runfile.traces import values
from collbench.runfile.traces.content import Content
from collbench.runfile.traces.trace import DTYPES, Row, Trace


def holds(content: Content) -> bool:
    """True for a dump, in a pickle or in JSON."""
    return isinstance(values.fields(content.fields).get("entries"), list)


def traces(content: Content) -> list[Trace]:
    """Return the trace of one rank."""
    fields = content.fields
    trace = Trace(Source.FLIGHT_RECORDER, content.rank)
    trace.nccl = values.text(fields.get("comm_lib_version") or fields.get("nccl_version"))
    for group_fields in map(values.fields, values.fields(fields.get("pg_config")).values()):
        trace.add_group(
            values.text(group_fields.get("name")), values.text(group_fields.get("desc")), group_fields.get("ranks")
        )
    entries = [values.fields(entry) for entry in fields["entries"]]
    first: Any = entries[0].get("record_id") if entries else None
    trace.lost = first if values.natural(first) else 0
    for entry in entries:
        names = [*values.items(entry.get("process_group")), "", ""]
        group = values.text(names[0])
        if group not in trace.members:
            trace.add_group(group, values.text(names[1]), ())
        # A scatter's receivers name no output.
        kinds = {
            values.text(kind) for key in ("input_dtypes", "output_dtypes") for kind in values.items(entry.get(key))
        }
        kinds -= {"UNKNOWN_SCALAR"}
        name = values.text(entry.get("profiling_name")).rpartition(":")[2]
        ends = re.search(r"(\d+)(->|<-)(\d+)", name)
        created: Any = entry.get("time_created_ns")
        Row(
            name,
            group,
            DTYPES.get(kinds.pop(), "") if len(kinds) == 1 else "",
            values.shaped(entry.get("input_sizes")),
            values.shaped(entry.get("output_sizes")),
            int(ends[3]) if ends and len(ends[3]) < 9 else None,
            start=created / 1e3 if values.natural(created) else math.nan,
            gpu=values.number(entry.get("duration_ms")) * 1e3,
        ).add_to(trace)
    return [trace]
