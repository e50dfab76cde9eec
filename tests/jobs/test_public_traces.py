"""Traces of torch as people have published them, against a parser that shares no code with the readers.

COLLBENCH_TRACES names a folder of more of them: the whole files of those that are cut down here (tests/data/README.md).
"""

from __future__ import annotations

import gzip
import json
import math
import os
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from collbench.jobs.job import Library, Unknown
from collbench.jobs.traces.content import Trace
from collbench.jobs.traces.folding import job_of
from collbench.jobs.traces.formats import read
from collbench.model.errors import UsageError

DATA = Path(__file__).parents[1] / "data" / "traces" / "public"
MORE = Path(os.environ["COLLBENCH_TRACES"]) if "COLLBENCH_TRACES" in os.environ else DATA
FILES = [path for folder in dict.fromkeys((DATA, MORE)) for path in sorted(folder.rglob("*.json*")) if path.is_file()]
Call = tuple[str, int | None, float | None]  # what, bytes, µs of its kernel
BYTES = {
    "float": 4,
    "int": 4,
    "long": 8,
    "long int": 8,
    "unsigned char": 1,
    "signed char": 1,
    "double": 8,
    "Float": 4,
    "Int": 4,
    "Long": 8,
    "Half": 2,
    "BFloat16": 2,
}
NAMES = {
    "all_reduce": "allreduce",
    "allreduce": "allreduce",
    "broadcast": "broadcast",
    "all_to_all": "alltoall",
    "_all_gather_base": "allgather",
    "all_gather": "allgather",
    "_allgather_base": "allgather",
    "_reduce_scatter_base": "reducescatter",
    "reduce_scatter": "reducescatter",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "send": "send",
    "recv": "recv",
}


def content(path: Path) -> Any:
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)


def kind(path: Path) -> str:
    fields = content(path)
    return "events" if "traceEvents" in fields else "nodes" if "nodes" in fields else ""


EVENTS, NODES = ([path for path in FILES if kind(path) == one] for one in ("events", "nodes"))


def around(event: dict[str, Any], others: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the last of others, on the same thread, in which an event begins."""
    inside = [
        other
        for other in others
        if other["tid"] == event["tid"] and other["ts"] <= event["ts"] <= other["ts"] + other.get("dur", 0)
    ]
    return max(inside, key=lambda other: other["ts"], default=None)


def calls_in(events: list[dict[str, Any]]) -> list[Call]:
    """Return the calls of NCCL in Kineto's events, or of gloo if there are none: rows, shapes, launches."""
    found = [event for event in events if event.get("ph") == "X"]
    rows = [event for event in found if event["name"] == "record_param_comms"]
    operations = [event for event in found if event["name"].startswith("c10d::")]
    titles = [
        event for event in found if event["name"][:5] in {"nccl:", "gloo:"} and event["cat"] != "gpu_user_annotation"
    ]
    launches = {e["args"]["correlation"]: e for e in found if "aunch" in e["name"] and "correlation" in e["args"]}
    took: dict[int, float] = {}
    for kernel in found:
        launch = launches.get(kernel["args"].get("correlation"))
        if kernel.get("cat") == "kernel" and "nccl" in kernel["name"].lower() and launch is not None:
            row = around(launch, rows) or around(launch, titles)
            if row is not None:
                took[id(row)] = took.get(id(row), 0.0) + kernel["dur"]
    calls: list[tuple[float, str, Call]] = []
    for row in rows:
        args = row["args"]
        name = args.get("Collective name", "wait")
        if name not in {"wait", "barrier", "init"}:
            elements = max(args["In msg nelems"], args["Out msg nelems"])
            calls.append((row["ts"], "nccl", (NAMES[name], elements * BYTES[args["dtype"]], took.get(id(row)))))
    for title in titles:
        row = around(title, rows)
        if title["name"] != "gloo:barrier" and not (row is not None and "Collective name" in row["args"]):
            library, name = title["name"].split(":")
            call = NAMES[name], shaped(title, around(title, operations)), took.get(id(row or title))
            calls.append((title["ts"], library, call))
    wanted = "nccl" if any(library == "nccl" for _, library, _ in calls) else "gloo"
    return [call for _, library, call in sorted(calls, key=lambda call: call[0]) if library == wanted]


def shaped(title: dict[str, Any], outer: dict[str, Any] | None) -> int | None:
    """Return the bytes of a call of which only the tensor that goes in is known, None without it."""
    library, name = title["name"].split(":")
    if "Input Dims" not in title["args"]:
        return None
    elements = sum(math.prod(shape) for shape in title["args"]["Input Dims"])
    if name == "_all_gather_base" and outer is not None:
        elements = math.prod(outer["args"]["Input Dims"][0])
    if library == "gloo" and name in {"all_gather", "gather"}:
        elements *= 2  # of the two ranks of the kept traces
    kinds = title["args"]["Input type"]
    return elements * BYTES[kinds[0]] if kinds else None


def read_as(trace: Trace) -> list[Call]:
    """Return a trace's calls, without those that are of a kernel alone."""
    return [
        (call.operation.replace("alltoallv", "alltoall"), call.size_bytes, None if math.isnan(call.gpu) else call.gpu)
        for call in trace.calls
    ]


@pytest.mark.parametrize("path", EVENTS, ids=lambda path: path.name)
def test_operations_bytes_order_and_kernel_times_are_those_of_another_parser(path: Path) -> None:
    (trace,) = read([path])
    expected = calls_in(content(path)["traceEvents"])
    found = [(one, size, took and pytest.approx(took, abs=1e-3)) for one, size, took in expected]
    assert read_as(trace) == found


@pytest.mark.parametrize("path", NODES, ids=lambda path: path.name)
def test_calls_of_an_execution_trace_are_those_of_another_parser(path: Path) -> None:
    """Each call's tensor stands in a second node, "nccl:all_reduce", the child of the one that is read."""
    nodes = content(path)["nodes"]
    expected = []
    for node in sorted(nodes, key=lambda node: node["id"]):
        if node["name"].startswith("nccl:"):
            inputs = node["inputs"] if isinstance(node["inputs"], list) else node["inputs"]["values"]
            size, unit = inputs[0][3:5]
            parent = next(one for one in nodes if one["id"] == node.get("ctrl_deps", node.get("parent")))
            if node["name"] == "nccl:all_to_all":  # the larger side of one with blocks of several sizes
                outputs = parent["outputs"] if isinstance(parent["outputs"], list) else parent["outputs"]["values"]
                size = max(size, outputs[0][3])
            ranks = 2 if node["name"] == "nccl:all_gather" else 1  # of the only trace with an all-gather
            called = parent["id"], NAMES[node["name"][5:]], size * unit * ranks
            expected.append(called)
    (trace,) = read([path])
    assert [(what, size) for what, size, _ in read_as(trace)] == [(what, size) for _, what, size in sorted(expected)]


@pytest.mark.parametrize("path", [*EVENTS, *NODES], ids=lambda path: path.name)
def test_a_trace_is_refused_only_if_it_has_no_call_and_the_line_says_what_it_has(path: Path) -> None:
    fields = content(path)
    rows = fields.get("traceEvents", fields.get("nodes"))
    named = Counter(row["name"] for row in rows if str(row.get("name")).startswith(("nccl:", "gloo:", "c10d::")))
    if {name for name in named if name != "gloo:barrier" and not name.startswith("c10d::")}:
        job = job_of(read([path]))
        assert sum(rank.calls for rank in job.ranks) == sum(len(trace.calls) for trace in read([path])) > 0
        return
    most = max(named, key=lambda name: named[name], default="")
    found = f"found {named[most]:,} × {most}" if most else f"none of {len(rows):,} rows is a call of NCCL or gloo"
    with pytest.raises(UsageError, match=re.escape(f"no trace has a collective that can be read, {found}")):
        job_of(read([path]))


def passed(events: list[dict[str, Any]], start: float, end: float) -> tuple[float, ...]:
    """Return compute, overlapped and exposed communication, copies and idle between two moments: a union of kernels."""
    edges: list[tuple[float, int, int]] = []
    for event in events:
        category = event.get("cat")
        if event.get("ph") == "X" and category in {"kernel", "gpu_memcpy", "gpu_memset"}:
            kinds = 2 if category != "kernel" else 1 if "nccl" in event["name"].lower() else 0
            edges += [(event["ts"], kinds, 1), (event["ts"] + event["dur"], kinds, -1)]
    running, times, last = [0, 0, 0], [0.0] * 5, start
    for moment, which, change in sorted(edges):
        now = min(max(moment, start), end)
        if now > last:
            compute, sends, copies = (count > 0 for count in running)
            times[0] += (now - last) * compute
            times[1] += (now - last) * (compute and sends)
            times[2] += (now - last) * (sends and not compute)
            times[3] += (now - last) * (copies and not sends and not compute)
            times[4] += (now - last) * (not any(running))
            last = now
        running[which] += change
    return tuple(times)


COMPUTING = [
    path
    for path in EVENTS
    if any("nccl" in e["name"] and e.get("cat") == "kernel" for e in content(path)["traceEvents"])
]


@pytest.mark.parametrize("path", COMPUTING, ids=lambda path: path.name)
def test_the_time_of_a_gpu_is_the_union_of_its_kernels(path: Path) -> None:
    events = content(path)["traceEvents"]
    (trace,) = read([path])
    assert trace.gpu is not None
    whole = trace.gpu.between(*trace.gpu.ends)
    names = ("compute", "overlapped", "exposed", "copies", "idle")
    own = tuple(getattr(whole, name) for name in names)
    assert own == pytest.approx(passed(events, *trace.gpu.ends), abs=0.01)
    starts = sorted(call.gpu_start for call in trace.calls if not math.isnan(call.gpu_start))
    for begin, end in list(pairwise(starts))[:12]:
        part = trace.gpu.between(begin, end)
        assert tuple(getattr(part, name) for name in names) == pytest.approx(passed(events, begin, end), abs=0.01)
    kernels = sum("nccl" in e["name"] and e.get("cat") == "kernel" for e in events)
    calls = [call.exposed for call in trace.calls if not math.isnan(call.exposed)]
    if kernels == len(calls):  # each is a call's
        assert sum(calls) == pytest.approx(whole.exposed, abs=0.01)
    assert sum(calls) <= whole.exposed + 0.01
    (rank,) = job_of([trace]).ranks
    samples = [sample for phase in (rank.phases if rank.step is None else (rank.step,)) for sample in phase.samples]
    if sum(len(sample.exposed) for sample in samples) == len(trace.calls):  # each call is in one
        assert sum(sum(sample.exposed) for sample in samples) == pytest.approx(sum(calls), abs=0.1)
    assert rank.gpu_time == whole
    assert all(call.exposed <= call.gpu for call in trace.calls if not math.isnan(call.exposed))


def test_what_published_traces_lack_is_unknown() -> None:
    """Rows of older torch name no group, without shapes no bytes; only the observer has the splits."""
    names = [
        path.name for path in FILES if path.parent == DATA and path.name not in {"hccl-0.json.gz", "no-calls-0.json.gz"}
    ]
    jobs = {name.removesuffix(".json.gz"): job_of(read([DATA / name])) for name in names}
    assert {Unknown.GROUP_RANKS, Unknown.SPLITS} <= set(jobs["dlrm-0"].unknown)
    assert Unknown.SIZES in jobs["no-shapes-1"].unknown
    assert {call.size_bytes for call in jobs["no-shapes-1"].calls} == {0}
    assert [group.size for group in jobs["no-shapes-1"].groups] == [0]
    assert not {Unknown.GROUP_RANKS, Unknown.OVERLAP, Unknown.GPU_TIMES} & set(jobs["resnet-0"].unknown)
    assert jobs["et-1.0.1-dlrm-0"].world_size == jobs["et-1.0.1-dlrm-0"].groups[0].size == 8
    assert {call.operation for call in jobs["et-1.0.1-dlrm-0"].calls} == {"alltoall", "alltoallv", "allreduce"}
    # A profiler sees each replay, an observer of the host not even the capture.
    assert {name[:3] for name, job in jobs.items() if Unknown.GRAPH_REPLAYS in job.unknown} == {"et-"}


def test_a_trace_of_gloo_has_what_the_program_sent() -> None:
    """Two ranks of torch 2.13, three steps: gloo makes an all-reduce of a reduce-scatter; a barrier is no call."""
    job = job_of(read([DATA / f"gloo-torch-2.13-{rank}.json.gz" for rank in range(2)]))
    sent = ["allreduce", "broadcast", "allgather", "allgather", "allreduce", "reduce", "alltoall", "gather", "scatter"]
    assert (job.library, [group.ranks for group in job.groups]) == (Library.GLOO, [(0, 1)])
    for rank, message in zip(job.ranks, ("send", "recv"), strict=True):
        calls = [job.calls[call] for call in rank.unfolded()]
        assert [call.operation for call in calls] == [*sent, message] * 3
        sizes = [4096, 4096, 8192, 8192, 4096, 4096, 4096, 8192, 8192 if rank.rank == 0 else 0, 4096]
        assert [call.size_bytes for call in calls] == sizes * 3
