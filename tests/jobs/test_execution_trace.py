"""Execution traces of torch as jobs: its nodes about calls of NCCL, and a real one of gloo, which names no group."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import pytest

from collbench.jobs.job import Library, Source, Unknown
from collbench.jobs.traces.content import Trace
from collbench.jobs.traces.folding import job_of
from collbench.jobs.traces.formats import parse, read
from tests.jobs.traces import noted, observed

# Some nodes of torch 2.11's trace of two gloo ranks (2026-11-23).
GLOO = [Path(__file__).parents[1] / "data" / "traces" / f"gloo-{rank}.json" for rank in range(2)]
WORLD = {"pg_name": "0", "pg_desc": "default_pg", "ranks": [], "group_size": 4}
PAIR = {"pg_name": "5", "pg_desc": "undefined", "ranks": [1, 3], "group_size": 2}


def trace_of(*nodes: dict[str, Any]) -> Trace:
    return parse(io.BytesIO(observed(nodes, (WORLD, PAIR))), "et_1.json")


def test_a_real_trace_of_gloo_has_its_calls() -> None:
    """They name no group, but all of the trace's groups have the same ranks."""
    job = job_of(read(GLOO))
    assert (job.source, job.library, job.world_size) == (Source.EXECUTION_TRACE, Library.GLOO, 2)
    assert [[job.calls[call].size_bytes for call in rank.unfolded()] for rank in job.ranks] == [[4096], [4096]]
    assert [group.ranks for group in job.groups] == [(0, 1)]


def test_calls_of_gloo_beside_those_of_nccl_are_left_out_and_counted() -> None:
    fields = json.loads(GLOO[1].read_text())
    fields["nodes"] += [noted("allreduce", 100, 100, number=90), noted("wait", 100, 100, number=91)]
    trace = parse(io.BytesIO(json.dumps(fields).encode()), GLOO[1].name)
    job = job_of([trace])
    assert (job.library, [call.size_bytes for call in job.calls]) == (Library.NCCL, [400])
    assert trace.left_out == {"calls of gloo beside NCCL's": 1}


# Elements that go in and come out on each of 4 ranks, as ProcessGroupNCCL notes them: floats of 4 bytes.
@pytest.mark.parametrize(
    ("name", "in_elements", "out_elements", "operation", "size_bytes"),
    [
        ("allreduce", 100, 100, "allreduce", 400),
        ("_allgather_base", 25, 100, "allgather", 400),
        ("_reduce_scatter_base", 100, 25, "reducescatter", 400),
        ("broadcast", 7, 7, "broadcast", 28),
        ("all_to_all", 100, 100, "alltoall", 400),
        ("scatter", 100, 25, "scatter", 400),
        ("send", 5, 5, "send", 20),
    ],
)
def test_a_call_has_the_size_that_nccl_tests_would_give_it(
    name: str, in_elements: int, out_elements: int, operation: str, size_bytes: int
) -> None:
    (call,) = trace_of(noted(name, in_elements, out_elements, rank=2)).calls
    assert (call.operation, call.size_bytes, call.dtype) == (operation, size_bytes, "float32")
    rooted = operation in {"broadcast", "reduce", "gather", "scatter"}
    assert (call.root, call.peer) == (2 if rooted else None, 2 if operation in {"send", "recv"} else None)
    assert math.isnan(call.start)
    assert math.isnan(call.gpu)


def test_groups_are_those_that_torch_lists_or_describes() -> None:
    trace = trace_of(
        noted("allreduce", 4, 4, number=11, group="5"),
        noted("allreduce", 4, 4, number=12, group="8", places=(1, 2, 2)),
        noted("allreduce", 4, 4, number=13, group="9", places=(1, -1, 2)),
        noted("allreduce", 4, 4, number=14, group="10"),
    )
    members = {key: group.ranks for key, group in trace.groups.items()}
    assert members == {"0": (0, 1, 2, 3), "5": (1, 3), "8": (1, 3), "9": (), "10": (0, 1, 2, 3)}
    assert [(call.group, trace.groups[call.group].size) for call in trace.calls] == [
        ("5", 2),
        ("8", 2),
        ("9", 2),
        ("10", 4),
    ]
    assert Unknown.GROUP_RANKS in job_of([trace]).unknown


def test_calls_are_in_the_order_of_their_numbers_and_uneven_ones_are_known() -> None:
    trace = trace_of(
        noted("all_to_all", 4, 4, number=30, splits=[1, 3]),
        noted("broadcast", 4, 4, number=20),
    )
    assert [call.operation for call in trace.calls] == ["broadcast", "alltoallv"]


def test_what_the_trace_lacks_is_unknown() -> None:
    job = job_of([trace_of(noted("broadcast", 4, 4, rank=7))])
    assert set(job.unknown) == {
        Unknown.ROOT,
        Unknown.PAUSES,
        Unknown.GPU_TIMES,
        Unknown.GRAPH_REPLAYS,
        Unknown.OVERLAP,
    }


@pytest.mark.parametrize(
    "unclear",
    [
        noted("all_smile", 4, 4),
        noted("allreduce", 4, 4, dtype="c10::complex<float>"),
        noted("allreduce", -1, 4),
        {"name": "record_param_comms"},
    ],
)
def test_what_cannot_be_read_is_counted_and_not_guessed(unclear: dict[str, Any]) -> None:
    trace = trace_of(unclear, noted("allreduce", 4, 4, number=11))
    left_out = int("inputs" in unclear)  # a node that names no collective is no call
    assert (len(trace.calls), trace.left_out.total()) == (1, left_out)
