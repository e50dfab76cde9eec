"""NCCL Inspector's lines as jobs: sizes, ranks, members, order, missing lines and missing facts."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence

import pytest

from collbench.jobs import job_file
from collbench.jobs.job import Job, Source, Unknown
from collbench.jobs.replay.schedule import schedule_of
from collbench.jobs.traces.folding import job_of
from collbench.jobs.traces.formats import parse
from collbench.jobs.traces.trace import Trace
from collbench.model.errors import UsageError
from tests.jobs.traces import inspected


def ranked(*files: bytes) -> list[Trace]:
    """Return the traces in these files, named as the plugin names them."""
    return [trace for number, data in enumerate(files) for trace in parse(io.BytesIO(data), f"node-pid{number}.log")]


def sequences_of(job: Job) -> list[list[tuple[str, int]]]:
    return [[(job.calls[call].operation, job.calls[call].size_bytes) for call in rank.unfolded()] for rank in job.ranks]


def test_the_example_of_its_manual_is_read() -> None:
    """The second example in NCCL's plugins/profiler/inspector/README.md, on one line."""
    header = {"id": "0xe62dedaa97644a", "rank": 4, "n_ranks": 8, "nnodes": 1}
    metadata = {
        "inspector_output_format_version": "v4.0",
        "git_rev": "9019a1912-dirty",
        "rec_mechanism": "nccl_profiler_interface",
        "dump_timestamp_us": 1752867229276385,
        "hostname": "example-hostname",
        "pid": 438776,
    }
    call = {
        "coll": "ReduceScatter",
        "coll_sn": 1231,
        "coll_msg_size_bytes": 2147483648,
        "coll_exec_time_us": 41057,
        "coll_timing_source": "kernel_gpu",
        "coll_algobw_gbs": 418.439467,
        "coll_busbw_gbs": 366.134533,
        "event_trace_ts": {"coll_start_ts": 1752867229235059, "coll_stop_ts": 1752867229235064},
    }
    line = json.dumps({"header": header, "metadata": metadata, "coll_perf": call}).encode()
    job = job_of(ranked(line))
    (collective,) = job.calls
    # 2 GiB of each of 8 ranks in 41,057 µs are the 418.4 GB/s that the line gives as algbw.
    assert (collective.operation, collective.size_bytes) == ("reducescatter", 8 * 2147483648)
    assert collective.size_bytes / 41057e-6 / 1e9 == pytest.approx(418.439467, rel=1e-6)
    (rank,) = job.ranks
    assert (job.source, job.world_size, rank.rank, rank.host) == (Source.INSPECTOR, 8, 4, "example-hostname")
    assert rank.dropped == 1231  # its number counts from 0
    assert rank.phases[0].positions[0].gpu is not None
    assert rank.phases[0].positions[0].gpu.median == 41057
    assert job.started == "2025-07-18T19:33:49+00:00"
    assert {Unknown.REDUCTION, Unknown.GROUP_RANKS} <= set(job.unknown)
    assert not {Unknown.PAUSES, Unknown.GPU_TIMES, Unknown.ORDER} & set(job.unknown)


@pytest.mark.parametrize(
    ("function", "bytes_of_a_rank", "operation", "size_bytes"),
    [
        ("AllReduce", 400, "allreduce", 400),
        ("Broadcast", 400, "broadcast", 400),
        ("Reduce", 400, "reduce", 400),
        ("AllGather", 100, "allgather", 400),
        ("ReduceScatter", 100, "reducescatter", 400),
    ],
)
def test_a_call_has_the_size_that_nccl_tests_would_give_it(
    function: str, bytes_of_a_rank: int, operation: str, size_bytes: int
) -> None:
    job = job_of(ranked(inspected(function, 0, bytes_of_a_rank, ranks=4)))
    assert [(call.operation, call.size_bytes, call.dtype) for call in job.calls] == [(operation, size_bytes, "")]


def test_ranks_are_those_of_the_communicator_of_all_and_groups_are_put_together() -> None:
    files = [
        inspected("AllReduce", 0, 64, rank=3 - number, ranks=4, communicator="0xa", pid=number)
        + inspected("AllGather", 0, 32, rank=number % 2, communicator=f"0xb{number // 2}", name="pair", pid=number)
        for number in range(4)
    ]
    job = job_of(ranked(*files))
    assert (job.world_size, [rank.rank for rank in job.ranks]) == (4, [0, 1, 2, 3])
    named = {group.ranks: group.name for group in job.groups}
    assert named == {(0, 1, 2, 3): "", (1, 0): "pair", (3, 2): "pair"}  # in the order of the group's own ranks
    assert Unknown.GROUP_RANKS not in job.unknown
    partial = job_of(ranked(*files[:3]))
    assert [group.ranks for group in partial.groups if group.size == 2 and not group.ranks] == [()]
    assert Unknown.GROUP_RANKS in partial.unknown


def test_without_a_communicator_of_all_ranks_are_counted_in_the_order_of_the_files() -> None:
    job = job_of(ranked(*(inspected("AllReduce", 0, 8, communicator=f"0x{n}", rank=1, pid=n) for n in range(2))))
    assert [rank.rank for rank in job.ranks] == [0, 1]
    assert all(not group.ranks for group in job.groups)


def test_one_file_may_hold_all_ranks_of_one_process() -> None:
    """As nccl-tests with -g 4 writes it."""
    lines = b"".join(inspected("AllReduce", n, 64, rank=rank, ranks=4) for n in range(3) for rank in range(4))
    job = job_of(ranked(lines))
    assert sequences_of(job) == [[("allreduce", 64)] * 3] * 4
    with pytest.raises(Exception, match="cannot be matched"):
        ranked(lines + inspected("AllReduce", 0, 64, communicator="0xb"))


def test_files_of_one_rank_twice_are_refused() -> None:
    with pytest.raises(UsageError, match="same rank"):
        job_of(ranked(inspected("AllReduce", 0, 8), inspected("AllReduce", 0, 8)))


def lines(*starts: int | None) -> bytes:
    """Return calls on two communicators in turn, numbered in the order of the file."""
    return b"".join(
        inspected("AllReduce", n // 2, 8 * (n + 1), communicator=f"0x{n % 2}", start=start)
        for n, start in enumerate(starts)
    )


def test_starts_give_the_order_and_without_them_it_is_unknown() -> None:
    began = 1748030377000000
    job = job_of(ranked(lines(began + 30, began + 10, began + 40, began + 20)))
    assert sequences_of(job) == [[("allreduce", size) for size in (16, 32, 8, 24)]]
    assert Unknown.ORDER not in job.unknown
    assert Unknown.ORDER in job_of(ranked(lines(began, began + 10, None))).unknown
    silent = job_of(ranked(lines(None, None)))
    assert {Unknown.ORDER, Unknown.PAUSES} <= set(silent.unknown)
    with pytest.raises(UsageError, match="followed one another"):
        schedule_of(silent)
    assert Unknown.ORDER not in job_of(ranked(inspected("AllReduce", 0, 8) + inspected("Reduce", 0, 8))).unknown


def test_messages_have_peers_and_no_order() -> None:
    job = job_of(ranked(inspected("Send", 1, 512, peer=1, start=5) + inspected("Recv", 2, 256, peer=1, start=6)))
    assert [(call.operation, call.size_bytes, call.peer) for call in job.calls] == [("send", 512, 1), ("recv", 256, 1)]
    assert Unknown.ORDER in job.unknown  # which of them were one group
    assert Unknown.PEER not in job.unknown
    assert job.ranks[0].dropped == 0


def test_a_time_that_the_gpu_did_not_take_is_no_time_of_the_kernel() -> None:
    for source in ("kernel_cpu", "collective_cpu", ""):
        assert Unknown.GPU_TIMES in job_of(ranked(inspected("AllReduce", 0, 8, source=source))).unknown
    assert Unknown.GPU_TIMES in job_of(ranked(inspected("AllReduce", 0, 8, lasted=0))).unknown


@pytest.mark.parametrize(
    ("numbers", "missing"), [([0, 1, 2], 0), ([2, 3], 2), ([0, 3, 9], 7), ([0, 0, 1], 0), ([5, 3, 4], 3)]
)
def test_calls_without_a_line_are_counted(numbers: Sequence[int], missing: int) -> None:
    (trace,) = ranked(b"".join(inspected("AllReduce", number, 8192) for number in numbers))
    assert trace.lost == missing


def test_lines_that_cannot_be_read_are_counted_and_not_guessed() -> None:
    good = inspected("AllReduce", 0, 64)
    bad = [
        good[:-20] + b"\n",
        b'{"header": {}}\n',
        inspected("AllGatherV", 0, 64),
        inspected("AllReduce", -1, 64),
        inspected("AllReduce", 1, 2**60),
        inspected("AllReduce", 1, 64, rank=2),
        inspected("AllReduce", 1, 64, ranks=3),
    ]
    assert ranked(bad[0] + good)[0].calls
    (trace,) = ranked(good + b"\n".join(bad))
    assert ([call.size_bytes for call in trace.calls], trace.left_out.total()) == ([64], len(bad))


def test_a_job_of_it_survives_its_file() -> None:
    steps = b"".join(
        inspected("AllReduce", n, (1 + n % 3) * 8192, start=10**15 + 50 * n + 400 * (n // 3)) for n in range(60)
    )
    job = job_of(ranked(steps))
    assert job_file.loads(job_file.dumps(job), "job") == job
    assert job.ranks[0].step is not None
    assert len(job.ranks[0].step.positions) == 3
