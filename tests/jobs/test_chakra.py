"""Chakra's traces as jobs: nodes, groups, and bytes with a false length."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from collbench.jobs import job_file
from collbench.jobs.job import Source, Unknown
from collbench.jobs.traces import protobuf
from collbench.jobs.traces.folding import job_of
from collbench.jobs.traces.formats import parse, read
from collbench.jobs.traces.trace import Trace
from collbench.jobs.traces.values import Unreadable
from collbench.model.errors import RunFileError
from tests.jobs.traces import ABOUT, delimited, node

METADATA, COMPUTE, SEND, RECV, COLLECTIVE = 1, 4, 5, 6, 7


def traced(*nodes: bytes, rank: int = 0, files: int = 4) -> Trace:
    (trace,) = parse(delimited(ABOUT, *nodes), f"job.{rank}.et", files=files)
    return trace


def call(kind: int, size: int, number: int = 1, **more: Any) -> bytes:
    return node(number, COLLECTIVE, is_cpu_op=False, comm_type=kind, comm_size=size, **more)


def test_handwritten_bytes_are_read() -> None:
    """A broadcast of 424 bytes, as et_def.proto has it: key = number of the field × 8 + its type."""
    attributes = (
        b"\x52\x0e\x0a\x09is_cpu_op\xd8\x01\x00"  # field 10: name (1), bool_val (27)
        b"\x52\x0d\x0a\x09comm_type\x48\x05"  # int64_val (9)
        b"\x52\x0e\x0a\x09comm_size\x48\xa8\x03"
    )
    types = b"\x42\x16\x1a\x14['Tensor(long int)']"  # inputs (8): types (3)
    body = b"\x08\xee\x04\x12\x04nccl\x18\x07\x38\x05" + types + attributes
    data = b"\x07\x0a\x050.0.4" + bytes([len(body)]) + body
    (trace,) = parse(data, "job.1.et", files=2)
    (parsed,) = trace.calls
    assert (parsed.operation, parsed.size_bytes, parsed.dtype, parsed.gpu) == ("broadcast", 424, "int64", 5.0)
    assert (trace.source, trace.rank, trace.members) == (Source.CHAKRA, 1, {"": (0, 1)})


# comm_size is what each of 4 ranks passes in.
@pytest.mark.parametrize(
    ("kind", "operation", "size_bytes"),
    [
        (0, "allreduce", 400),
        (1, "reduce", 400),
        (2, "allgather", 1600),
        (3, "gather", 1600),
        (4, "scatter", 400),
        (5, "broadcast", 400),
        (6, "alltoall", 400),
        (7, "reducescatter", 400),
        (8, "reducescatter", 400),
    ],
)
def test_a_call_has_the_size_that_nccl_tests_would_give_it(kind: int, operation: str, size_bytes: int) -> None:
    assert [(traced_call.operation, traced_call.size_bytes) for traced_call in traced(call(kind, 400)).calls] == [
        (operation, size_bytes)
    ]


def test_nodes_other_than_calls_are_left_out_silently() -> None:
    host = node(1, COLLECTIVE, is_cpu_op=True, op_schema="c10d::broadcast_")
    trace = traced(host, node(2, COMPUTE, lasted=5), call(9, 0, 3), call(0, 8, 4))
    assert ([recorded.operation for recorded in trace.calls], trace.skipped) == (["allreduce"], 0)


@pytest.mark.parametrize(
    "unclear",
    [
        call(10, 8),
        call(-1, 8),
        call(0, -8),
        node(1, COLLECTIVE, is_cpu_op=False, comm_type=0),
        node(1, COLLECTIVE, is_cpu_op=False, comm_size=8),
        call(0, 8, pg_name="7"),
        call(0, 8, involved_dim=[True, False]),
        node(1, COLLECTIVE, is_cpu_op=False, comm_type=0, comm_size=8.0),
    ],
)
def test_what_cannot_be_read_is_counted_and_not_guessed(unclear: bytes) -> None:
    trace = traced(unclear, call(0, 16, 2, involved_dim=[True, True]))
    assert ([recorded.size_bytes for recorded in trace.calls], trace.skipped) == ([16], 1)


def test_groups_are_those_that_torch_listed() -> None:
    groups = [
        {"pg_name": "0", "pg_desc": "default_pg", "ranks": [], "group_size": 4},
        {"pg_name": "3", "pg_desc": "mesh_tp", "ranks": [2, 3], "group_size": 2},
    ]
    listed = node(1, METADATA, values=str([json.dumps(groups)]))
    trace = traced(listed, call(2, 8, 2, pg_name="3"), call(2, 8, 3, pg_name="0"), rank=2)
    job = job_of([trace])
    assert [(group.ranks, group.name) for group in job.groups] == [((2, 3), "mesh_tp"), ((0, 1, 2, 3), "default_pg")]
    assert [recorded.size_bytes for recorded in job.calls] == [16, 32]
    assert Unknown.ORDER in job.unknown  # nodes say what they wait for, not how two groups follow one another
    assert Unknown.ORDER not in job_of([traced(call(0, 8))]).unknown


def test_messages_have_the_peer_that_is_named() -> None:
    trace = traced(
        node(1, SEND, is_cpu_op=False, comm_size=8, comm_dst=3),
        node(2, RECV, is_cpu_op=False, tensor_size=16, comm_src=1),
        node(3, SEND, is_cpu_op=False, comm_size=8, comm_dst=9),
    )
    assert [(recorded.operation, recorded.size_bytes, recorded.peer) for recorded in trace.calls] == [
        ("send", 8, 3),
        ("recv", 16, 1),
        ("send", 8, None),
    ]
    assert {Unknown.PEER, Unknown.ORDER} <= set(job_of([trace]).unknown)


def test_types_are_known_where_all_tensors_have_one() -> None:
    def dtype(types: str, size: int = 8) -> str:
        return traced(call(0, size, types=types)).calls[0].dtype

    assert dtype("['Tensor(c10::BFloat16)']") == "bfloat16"
    assert dtype("['GenericList[Tensor(float),Tensor(float)]', 'Int']") == "float32"
    assert dtype("['Tensor(float)', 'Tensor(double)']") == ""
    assert dtype("['Tensor(c10::complex<float>)']") == ""
    assert dtype("['Tensor(float)']", 6) == ""


def test_times_are_those_of_kernels_only() -> None:
    job = job_of([traced(call(0, 8, lasted=28))])
    assert job.ranks[0].phases[0].positions[0].gpu is not None
    assert {Unknown.PAUSES, Unknown.REDUCTION, Unknown.GRAPH_REPLAYS} <= set(job.unknown)
    assert Unknown.GPU_TIMES not in job.unknown
    host = node(1, COLLECTIVE, lasted=28, is_cpu_op=True, comm_type=0, comm_size=8)
    for without_times in (host, call(0, 8)):
        assert Unknown.GPU_TIMES in job_of([traced(without_times)]).unknown


@pytest.mark.parametrize(("name", "files"), [("job.0.et", 1), ("job.et", 4), ("job.4.et", 4)])
def test_a_group_of_all_ranks_needs_all_their_traces(name: str, files: int) -> None:
    with pytest.raises(Unreadable, match="name the traces of all"):
        parse(delimited(ABOUT, call(0, 8)), name, files=files)


def test_a_file_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    whole = delimited(ABOUT, *(call(0, 8, number) for number in range(3)))
    paths = [tmp_path / f"job.{rank}.et" for rank in range(2)]
    for path in paths:
        path.write_bytes(whole)
    assert [len(trace.calls) for trace in read(paths)] == [3, 3]
    paths[1].write_bytes(whole[:-1])
    with pytest.raises(RunFileError, match=r"job\.1\.et: it is cut off or damaged after 2 nodes"):
        read(paths)


@pytest.mark.parametrize(
    "lying",
    [
        b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f",  # a message of 2^63 bytes
        b"\xff" * 11,  # a number without an end
        b"\x04\x52\xff\xff\x7f",  # an attribute of 2 MiB in a node of 4 bytes
        b"\x02\x0b\x0c",  # a group, which proto3 has not
        b"\x02\x00\x00",  # field 0
    ],
)
def test_lengths_that_lie_get_no_memory(lying: bytes) -> None:
    data = delimited(ABOUT, call(0, 8)) + lying
    tracemalloc.start()
    try:
        with pytest.raises(Unreadable, match="after 1 nodes"):
            parse(data, "job.0.et", files=2)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_a_list_of_a_group_cannot_ask_for_memory() -> None:
    groups = [{"pg_name": "0", "ranks": [], "group_size": 2**19}]
    trace = traced(node(1, METADATA, values=str([json.dumps(groups)])), call(0, 8, pg_name="0"))
    assert (trace.members["0"], trace.sizes["0"]) == ((), 2**19)


def test_a_job_of_it_survives_its_file() -> None:
    job = job_of([traced(*(call(0, 8 * (1 + n % 3), n, lasted=n) for n in range(60)), rank=rank) for rank in range(4)])
    assert job_file.loads(job_file.dumps(job), "job") == job
    assert [rank.step is not None and len(rank.step.positions) for rank in job.ranks] == [3] * 4


@pytest.mark.parametrize(("wire", "number"), [(b"\x01", 1), (b"\xac\x02", 300), (b"\xff" * 9 + b"\x01", 2**64 - 1)])
def test_varints_are_those_of_the_specification(wire: bytes, number: int) -> None:
    assert protobuf.varints(wire) == [number]
    assert protobuf.fields(b"\x08" + wire) == {1: [number]}


def test_negative_numbers_are_twos_complement() -> None:
    assert protobuf.signed(2**64 - 1) == -1
    assert protobuf.signed(2**63 - 1) == 2**63 - 1
