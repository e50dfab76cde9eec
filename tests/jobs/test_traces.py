"""Traces of torch as jobs: real ones of two H200 against `record`'s files of them, damaged and unclear ones."""

from __future__ import annotations

import gzip
import io
import json
import math
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.jobs import job_file
from collbench.jobs.calls import matched
from collbench.jobs.job import Job, JobRank, Source, Unknown
from collbench.jobs.traces.content import Trace, Unreadable
from collbench.jobs.traces.folding import job_of
from collbench.jobs.traces.formats import parse, read
from collbench.model.errors import CollbenchError, RunFileError, UsageError
from collbench.untrusted import Refused
from tests.jobs.traces import noted, observed

# Three steps under torch.profiler, the dump of the whole job, and its recording, all of one run (2026-11-23).
DATA = Path(__file__).parents[1] / "data" / "traces"


def imported(*names: str) -> Job:
    return job_of(read([DATA / name for name in names]))


def trace_of(data: bytes, name: str) -> Trace:
    """Return the one trace in a file's bytes."""
    return parse(io.BytesIO(data), name)


def sent(job: Job, rank: JobRank) -> list[tuple[str, int]]:
    """Return what a rank sent; the messages of one group to and from all as an all-to-all, which NCCL makes of it."""
    number, numbered = 0, []
    for position in rank.positions():
        number += not position.together
        numbered.append((number, job.calls[position.call]))
    messages = []
    for _, members in groupby(numbered, key=lambda pair: pair[0]):
        calls = [call for _, call in members]
        if {call.operation for call in calls} == {"send", "recv"}:
            messages.append(("alltoall", sum(call.size_bytes for call in calls if call.operation == "send")))
        else:
            messages += [(call.operation, call.size_bytes) for call in calls]
    return messages


@pytest.mark.parametrize("name", ["ddp", "fsdp2", "moe"])
def test_torchs_profiler_saw_the_calls_that_were_recorded(name: str) -> None:
    job = imported(f"{name}-0.kineto.json.gz", f"{name}-1.kineto.json.gz")
    recorded = job_file.load(DATA / f"{name}-job.json")
    assert (job.source, job.world_size, job.nccl) == (Source.KINETO, 2, recorded.nccl)
    assert [group.ranks for group in job.groups] == [(0, 1)]
    for imported_rank, recorded_rank in zip(job.ranks, recorded.ranks, strict=True):
        own = sent(job, imported_rank)
        assert own == sent(recorded, recorded_rank)[-len(own) :]  # the last three steps
        assert len(own) % 3 == 0
    assert not {Unknown.GPU_TIMES, Unknown.PAUSES, Unknown.GROUP_RANKS} & set(job.unknown)


def test_the_flight_recorder_saw_the_calls_that_were_recorded() -> None:
    job = imported("moe-1.fr", "moe-0.fr")
    recorded = job_file.load(DATA / "moe-job.json")
    assert (job.source, [rank.rank for rank in job.ranks]) == (Source.FLIGHT_RECORDER, [0, 1])
    for imported_rank, recorded_rank in zip(job.ranks, recorded.ranks, strict=True):
        assert sent(job, imported_rank) == sent(recorded, recorded_rank)
    assert Unknown.GPU_TIMES in job.unknown
    assert all(position.gpu is None for rank in job.ranks for phase in rank.phases for position in phase.positions)


def test_rings_that_forgot_different_calls_are_matched_by_torchs_numbers(tmp_path: Path) -> None:
    """One rank's ring begins three calls after the other's: the calls that both have are the same ones."""
    for rank, forgot in ((0, 10), (1, 13)):
        fields = pickle.loads((DATA / f"moe-{rank}.fr").read_bytes())  # noqa: S301  # a kept one
        fields["entries"] = fields["entries"][forgot:]
        (tmp_path / f"moe-{rank}.fr").write_bytes(pickle.dumps(fields))
    traces = read([tmp_path / f"moe-{rank}.fr" for rank in range(2)])
    job = job_of(traces)
    whole = imported("moe-0.fr", "moe-1.fr")
    assert [sent(job, rank) for rank in job.ranks] == [sent(whole, rank)[13:] for rank in whole.ranks]
    assert [trace.left_out.total() for trace in traces] == [3, 0]
    assert [trace.lost for trace in traces] == [10, 13]
    assert all(group.whole for group in matched(job))
    assert matched(job)


@pytest.mark.parametrize("name", ["ddp", "fsdp2", "moe"])
def test_samples_say_when_each_kernel_of_a_trace_began(name: str) -> None:
    """A kernel begins after its call."""
    job = imported(f"{name}-0.kineto.json.gz", f"{name}-1.kineto.json.gz")
    compared = 0
    for rank in job.ranks:
        for phase in rank.phases:
            for sample in phase.samples:
                assert len(sample.gpu_starts) == len(sample.gpu) == len(phase.positions)
                assert all(
                    kernel_start > call_start
                    for kernel_start, call_start in zip(sample.gpu_starts, sample.starts, strict=True)
                )
                compared += 1
    assert compared


def test_times_are_the_rows_and_the_kernels() -> None:
    fields = json.loads(gzip.decompress((DATA / "ddp-0.kineto.json.gz").read_bytes()))
    rows = sorted(e["ts"] for e in fields["traceEvents"] if e["name"] == "record_param_comms")
    kernels = {e["args"]["External id"]: e["dur"] for e in fields["traceEvents"] if e["cat"] == "kernel"}
    (rank,) = imported("ddp-0.kineto.json.gz").ranks
    starts = [start for phase in rank.phases for sample in phase.samples for start in sample.starts]
    assert sorted(starts) == pytest.approx([row - rows[0] for row in rows], abs=1.0)
    kernel_times = sorted(time for phase in rank.phases for sample in phase.samples for time in sample.gpu)
    assert kernel_times == pytest.approx(sorted(kernels.values()), abs=1e-3)


def entry(name: str, inputs: Any, outputs: Any, dtype: str = "Float", **more: Any) -> dict[str, Any]:
    named = {"profiling_name": f"nccl:{name}", "process_group": ("0", "default_pg"), "record_id": 0}
    shapes = {"input_sizes": inputs, "output_sizes": outputs, "input_dtypes": [dtype], "output_dtypes": [dtype]}
    return {**named, **shapes, "time_created_ns": 10**18, **more}


def dump(*entries: dict[str, Any]) -> bytes:
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}
    return pickle.dumps({"version": "2.10", "pg_config": groups, "entries": list(entries)})


# Sizes as nccl-tests counts them, of 4 ranks and floats of 4 bytes.
@pytest.mark.parametrize(
    ("name", "inputs", "outputs", "operation", "size_bytes"),
    [
        ("all_reduce", [[10, 10]], [[10, 10]], "allreduce", 400),
        ("_all_gather_base", [[25]], [[100]], "allgather", 400),
        ("all_gather", [[25]], [[25]] * 4, "allgather", 400),
        ("_reduce_scatter_base", [[100]], [[25]], "reducescatter", 400),
        ("broadcast", [[7]], [[7]], "broadcast", 28),
        ("all_to_all", [[100]], [[100]], "alltoall", 400),
        ("scatter", [[25]], [[25]] * 4, "scatter", 400),
        ("send 1->2", [[5]], [[5]], "send", 20),
        ("recv 1<-2", [[5]], [[5]], "recv", 20),
    ],
)
def test_a_call_has_the_size_that_nccl_tests_would_give_it(
    name: str, inputs: Any, outputs: Any, operation: str, size_bytes: int
) -> None:
    job = job_of([trace_of(dump(entry(name, inputs, outputs)), "trace_1")])
    (call,) = job.calls
    assert (call.operation, call.size_bytes, call.dtype) == (operation, size_bytes, "float32")
    assert call.peer == (2 if operation in {"send", "recv"} else None)
    assert job.world_size == 4
    assert job.groups[0].ranks == (0, 1, 2, 3)


@pytest.mark.parametrize("name", ["wait", "barrier", "coalesced", "ALLGATHER_coalesced", "init", ""])
def test_other_events_are_left_out_silently(name: str) -> None:
    trace = trace_of(dump(entry(name, [[4]], [[4]]), entry("all_reduce", [[4]], [[4]])), "trace_0")
    assert ([call.operation for call in trace.calls], trace.left_out.total()) == (["allreduce"], 0)


@pytest.mark.parametrize(
    "unclear",
    [
        entry("all_smile", [[4]], [[4]]),
        entry("all_reduce", [[4]], [[4]], dtype="ComplexFloat"),
        entry("all_reduce", [[-4]], [[4]]),
        entry("all_reduce", [["x"]], [[4]]),
        entry("all_reduce", [[2**40, 2**40]], [[4]]),
    ],
)
def test_what_cannot_be_read_is_counted_and_not_guessed(unclear: dict[str, Any]) -> None:
    trace = trace_of(dump(unclear, entry("broadcast", [[4]], [[4]])), "trace_0")
    assert ([call.operation for call in trace.calls], trace.left_out.total()) == (["broadcast"], 1)


def test_calls_that_the_ring_forgot_are_counted() -> None:
    trace = trace_of(dump(entry("all_reduce", [[4]], [[4]], record_id=1000)), "trace_0")
    assert job_of([trace]).ranks[0].dropped == 1000


def test_a_pickle_that_wants_more_than_values_is_refused(tmp_path: Path) -> None:
    (tmp_path / "trace_0").write_bytes(pickle.dumps({"entries": [Path("/")]}))
    with pytest.raises(RunFileError, match="plain values"):
        read([tmp_path / "trace_0"])


@pytest.mark.parametrize(
    "greedy",
    [
        b"\x80\x02]r\xff\xff\xff\x7f.",  # a memo of 2^31 objects, of which C's reader would make room for each
        b"\x80\x05\x96\x00\x00\x00\x00\x08\x00\x00\x00.",  # a bytearray of 32 GiB
        b"cos\nsystem\n(S'true'\ntR.",
    ],
)
def test_a_pickle_gets_no_memory_that_its_bytes_do_not_fill(greedy: bytes) -> None:
    """And runs nothing. In a process of little memory, which an answer must reach."""
    limited = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31))\n"
        "from collbench.jobs.traces import content, formats\n"
        "try: formats.parse(sys.stdin.buffer, 'trace_0')\n"
        "except content.Unreadable as error: print(error)\n"
    )
    one_thread = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # numpy's threads would have address space each
    done = subprocess.run(
        [sys.executable, "-c", limited], input=greedy, capture_output=True, check=False, env=one_thread
    )
    assert (done.returncode, done.stdout.startswith((b"it is neither", b"it is not a trace"))) == (0, True), done.stderr


def test_unclear_ranks_are_refused() -> None:
    first = trace_of(dump(entry("all_reduce", [[4]], [[4]])), "trace_0")
    with pytest.raises(UsageError, match="name the files"):
        job_of([first, first])
    with pytest.raises(UsageError, match="several kinds"):
        job_of([first, *read([DATA / "ddp-1.kineto.json.gz"])])
    with pytest.raises(UsageError, match="no trace has a collective"):
        job_of([trace_of(dump(), "trace_0")])


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60))
def test_importing_folds_and_loses_nothing(kinds: list[int]) -> None:
    entries = [
        entry("all_reduce", [[kind + 1]], [[kind + 1]], time_created_ns=10**18 + n) for n, kind in enumerate(kinds)
    ]
    job = job_of([trace_of(dump(*entries), "trace_0")])
    assert [job.calls[call].size_bytes // 4 - 1 for call in job.ranks[0].unfolded()] == kinds
    assert job_file.loads(job_file.dumps(job), "job") == job


def test_a_long_trace_is_folded_piece_by_piece_and_loses_nothing() -> None:
    sizes = [number % 7 + 1 for number in range(34_000)]
    trace = trace_of(dump(entry("all_reduce", [[1]], [[1]])), "trace_0")
    (only_call,) = trace.calls
    trace.calls = [replace(only_call, size_bytes=size, start=float(number)) for number, size in enumerate(sizes)]
    job = job_of([trace])
    assert [job.calls[call].size_bytes for call in job.ranks[0].unfolded()] == sizes
    assert len(job.ranks[0].phases) < 10


_PAIRS = [{"pg_name": "0", "pg_desc": "default_pg", "ranks": [], "group_size": 2}]
_SMALL = {
    "et-0.json": observed([noted("allreduce", 4, 4), noted("broadcast", 4, 4), noted("send", 4, 4, rank=1)], _PAIRS),
}
_PARTS = st.sampled_from([*_SMALL, *sorted(path.name for path in DATA.glob("*-0.*"))])
_VALUES: Any = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=4), st.just([]), st.just({})
)


@settings(max_examples=75)
@given(_PARTS, st.data())
def test_damaged_bytes_are_one_error_or_a_job_that_can_be_kept(name: str, data: st.DataObject) -> None:
    whole = _SMALL[name] if name in _SMALL else (DATA / name).read_bytes()
    damaged = bytearray(gzip.decompress(whole) if name.endswith(".gz") else whole)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    judged(bytes(damaged[: data.draw(st.integers(0, len(damaged)))]))


@settings(max_examples=120)
@given(st.sampled_from([*_SMALL]), st.data())
def test_bytes_put_in_or_left_out_are_one_error_or_a_job_that_can_be_kept(name: str, data: st.DataObject) -> None:
    whole = _SMALL[name]
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, min(len(whole), start + 12)))
    judged(whole[:start] + data.draw(st.binary(max_size=12)) + whole[end:])


@settings(max_examples=60)
@given(st.data())
def test_wrong_values_are_one_error_or_a_job_that_can_be_kept(data: st.DataObject) -> None:
    """Any one value of a small trace or dump is another: wrong types, huge numbers, NaN, nothing."""
    fields: Any = pickle.loads(dump(entry("all_reduce", [[4]], [[4]]), entry("send 0->1", [[4]], [[4]])))  # noqa: S301  # its own
    if data.draw(st.booleans()):
        fields = json.loads(gzip.decompress((DATA / "ddp-0.kineto.json.gz").read_bytes()))
        fields["traceEvents"] = fields["traceEvents"][:4]
    elif data.draw(st.booleans()):
        fields = json.loads(_SMALL["et-0.json"])
    for _ in range(data.draw(st.integers(1, 3))):
        spot = fields
        while True:
            keys = list(spot) if isinstance(spot, dict) else range(len(spot))
            key = data.draw(st.sampled_from(keys)) if len(keys) else None
            if key is None:
                break
            if not isinstance(spot[key], dict | list) or data.draw(st.integers(0, 5)) == 0:
                spot[key] = data.draw(_VALUES)
                break
            spot = spot[key]
        if not isinstance(fields, dict):
            break
    judged(pickle.dumps(fields))
    judged(json.dumps(fields).encode())


def judged(data: bytes) -> None:
    """Read a damaged trace: one line says what is wrong, or what was read makes a job without invented figures."""
    message = ""
    try:
        job = job_of([parse(io.BytesIO(data), "trace_0")])
    except (CollbenchError, Unreadable, Refused) as error:  # of what only begins as a gzipped file does
        message = str(error)
    assert "\n" not in message
    if message:
        return
    assert job_file.loads(job_file.dumps(job), "job") == job
    assert all(0 <= call.size_bytes < 2**53 and call.group < len(job.groups) for call in job.calls)
    assert all(end is None or end < job.groups[call.group].size for call in job.calls for end in (call.root, call.peer))
    for rank in job.ranks:
        for phase in rank.phases:
            times = [time or 0.0 for position in phase.positions for time in (position.pause, position.gpu)]
            assert all(math.isfinite(time) and time >= 0 for time in times)
