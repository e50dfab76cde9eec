"""Made traces of torch.profiler: how a step passes on the GPU, graphs, numbers that match ranks, splits, Perfetto."""

from __future__ import annotations

import io
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.jobs import job_file, perfetto
from collbench.jobs.calls import matched, report
from collbench.jobs.exposed import Timeline, pieces
from collbench.jobs.job import GpuTime, Job, StepSource, Unknown, check_sent_again
from collbench.jobs.page import answers, as_json, exposed_text, headline, remarks
from collbench.jobs.traces.content import Trace
from collbench.jobs.traces.folding import job_of
from collbench.jobs.traces.formats import parse
from collbench.model.errors import UsageError
from tests.cli.program import Program
from tests.jobs.made import covered

GROUP = {"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1]}
ALLREDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def event(name: str, start: float, lasted: float, category: str = "kernel", thread: int = 7, **arguments: Any) -> Any:
    whole = {"ph": "X", "cat": category, "name": name, "pid": 0, "tid": thread, "ts": start, "dur": lasted}
    return whole | {"args": {name.replace("_", " "): value for name, value in arguments.items()}}


def call(
    number: int, start: float, kernel: float, lasted: float, *, seq: int | None = None, nelems: int = 256
) -> list[Any]:
    """Return the row of an all-reduce, and its kernel."""
    row = event("record_param_comms", start, 5.0, "cpu_op", 1)
    row["args"] = {"External id": number, "Collective name": "allreduce", "dtype": "Float", "In msg nelems": nelems}
    row["args"] |= {"Out msg nelems": nelems, "Group size": 2, "Process Group Name": "0"}
    row["args"] |= {} if seq is None else {"Seq": seq}
    own = event(ALLREDUCE, kernel, lasted)
    own["args"] = {"External id": number, "correlation": 900 + number, "device": 0}
    return [row, own]


def mark(step: int, start: float) -> Any:
    """Return the row of a step that the program marked by profile.step()."""
    return event(f"ProfilerStep#{step}", start, 100.0, "user_annotation", 1)


def trace_of(events: list[Any], rank: int = 0) -> Trace:
    fields = {"traceEvents": events, "distributedInfo": {"rank": rank, "world_size": 2, "pg_config": [GROUP]}}
    return parse(io.BytesIO(json.dumps(fields).encode()), f"{rank}.json")


def steps(waits: float = 0.0, first: int = 0, rank: int = 0) -> Trace:
    """Return six steps of 100 µs: compute until 60, communication from 50 to 80, copies from 75 to 85, then nothing."""
    events = []
    for step in range(first, 6):
        at = 1e6 + 100.0 * step
        events += [event("gemm", at, 60.0), event("Memcpy DtoD", at + 75, 10.0, "gpu_memcpy"), mark(step, at)]
        events += call(step + 1, at + 10, at + 50 - waits, 30.0 + waits, seq=40 + step)
    return trace_of(events, rank)


STEP = GpuTime(compute=60.0, overlapped=10.0, exposed=20.0, copies=5.0, idle=15.0)


def test_a_step_is_compute_exposed_communication_copies_and_idle() -> None:
    job = job_of([steps()])
    assert Unknown.OVERLAP not in job.unknown
    phase = job.ranks[0].step
    assert phase is not None
    assert {sample.gpu_time for sample in phase.samples[:-1]} == {STEP}
    assert STEP.total == 100.0
    assert {sample.exposed for sample in phase.samples} == {(20.0,)}
    whole = job.ranks[0].gpu_time
    assert whole == GpuTime(
        compute=360.0, overlapped=60.0, exposed=120.0, copies=30.0, idle=75.0
    )  # the last 15 are none
    assert job_file.loads(job_file.dumps(job), "job") == job


def test_a_step_without_its_first_kernel_is_as_long_as_the_others() -> None:
    """CUPTI dropped one: the time from the next kernel to that of the step after it is a step, too."""
    events = []
    for number in range(5):
        at = 1e6 + 100.0 * number
        first, other = call(2 * number, at, at + 10, 20.0), call(2 * number + 1, at + 1, at + 50, 20.0)
        events += [event("gemm", at + 40, 30.0), mark(number, at), *(first[:1] if number == 2 else first), *other]
    (rank,) = job_of([trace_of(events)]).ranks
    assert rank.step is not None
    assert [sample.gpu_time.total if sample.gpu_time else None for sample in rank.step.samples] == [100.0] * 4 + [None]
    assert [sample.step for sample in rank.step.samples] == [100.0] * 4 + [0.0]


def test_kernels_of_a_step_are_all_that_ran_in_it_so_that_what_is_exposed_is_part_of_them() -> None:
    """After each second step a loss, which is no call of it, and of whose 30 µs compute hides nothing."""
    events, at = [], 1e6
    for number in range(12):
        events += [event("gemm", at, 60.0), mark(number, at), *call(2 * number, at, at + 50, 20.0)]
        at += 100.0
        if number % 2:
            events += call(2 * number + 1, at - 20, at, 30.0, nelems=1)
            at += 40.0
    found = report(job_of([trace_of(events)]))
    assert found is not None
    (gpu,), (row,) = found.gpu, found.ranks
    assert row.kernels is not None
    assert gpu.exposed <= row.kernels <= gpu.step == row.step
    assert row.kernels == pytest.approx(gpu.exposed + gpu.overlapped)


def test_the_page_says_it_first_and_adds_up() -> None:
    own = report(job_of([steps()]))
    assert own is not None
    assert exposed_text(own) == (
        "a step of 0.1 ms: compute 0.06 ms, exposed communication 0.02 ms, copies 0.005 ms, idle 0.015 ms (GPU of rank "
        "0; 0.01 ms of the compute hides communication)"
    )
    assert answers(own) == [exposed_text(own), headline(own)]
    (gpu,) = as_json(own)["gpu"]
    parts = sum(gpu[f"{part}_seconds"] for part in ("compute", "exposed", "copies", "idle"))
    assert gpu["step_seconds"] == pytest.approx(parts) == pytest.approx(1e-4)
    (row,) = own.rows
    assert row.kernel == pytest.approx(30e-6)
    assert row.exposed == pytest.approx(20e-6)


def test_of_one_marked_step_the_page_says_that_its_time_is_unknown_and_how_to_trace_it() -> None:
    found = report(job_of([trace_of([event("gemm", 0.0, 60.0), mark(1, 0.0), *call(1, 10.0, 50.0, 30.0)])]))
    assert found is not None
    assert answers(found)[0] == (
        "no step is known: only one step is marked, and its end shows only where the next one begins; the traced "
        "0.08 ms: compute 0.06 ms, exposed communication 0.02 ms, idle 0 ms (GPU of rank 0; 0.01 ms of the compute "
        "hides communication)"
    )
    assert (
        "step      give torch.profiler a schedule, call its step() once a step and trace several, or name its length"
        in "\n".join(remarks(found))
    )


def test_exposed_communication_is_waiting_and_transfer() -> None:
    """Rank 0's kernel runs from 50 to 80, rank 1's from 70: 20 µs of waiting, of which compute hides the first 10."""
    traces = []
    for rank, begins in enumerate((50, 70)):
        events = []
        for step in range(6):
            at = 1e6 + 100.0 * step
            events += [event("gemm", at, 60.0), mark(step, at)]
            events += call(step + 1, at + 10, at + begins, 80.0 - begins, seq=40 + step)
        traces.append(trace_of(events, rank))
    job = job_of(traces)
    own, other = report(job, 0), report(job, 1)
    assert own is not None
    assert other is not None
    assert "exposed communication 0.02 ms (0.01 ms waiting, 0.01 ms transfer)" in exposed_text(own)
    assert "of a step, exposed or hidden; rank 0: 0.03 ms of 0.1 ms, 0.02 ms of it waiting" in headline(own)
    for found, exposed, waiting in ((own, 20e-6, 10e-6), (other, 10e-6, 0.0)):
        (row,) = found.rows
        assert row.exposed == pytest.approx(exposed)
        assert row.exposed_waiting == pytest.approx(waiting)


@pytest.mark.parametrize("number", [3, 4, 9])
def test_the_first_steps_wait_is_in_no_figure(number: int) -> None:
    """The header, the table of ranks and that of calls tell of the same steps, which are not the first one."""
    rng = np.random.default_rng(number)
    lasted = [2780.0, *rng.uniform(40, 60, number - 1)]
    traces = []
    for rank in (0, 1):
        events = []
        for step in range(number):
            at = 1e6 + 3000.0 * step
            own = lasted[step] if rank == 0 else 30.0
            events += [event("gemm", at, 60.0), mark(step, at), *call(step + 1, at + 10, at + 50, own, seq=40 + step)]
        traces.append(trace_of(events, rank))
    found = report(job_of(traces))
    assert found is not None
    usual = [(float(at), at + 60.0, at + 50.0, at + 50.0 + lasted[step]) for step, at in enumerate(range(number))]
    timed = usual[1:-1]  # the last one has no end
    kernels = float(np.median([covered([(start, end)]) for _, _, start, end in timed]))
    exposed = sorted(covered([(low, high), (start, end)]) - 60.0 for low, high, start, end in timed)
    (row,) = found.rows
    (gpu,) = (one for one in found.gpu if one.rank == 0)
    assert found.mine.kernels == pytest.approx(kernels * 1e-6, rel=1e-4)  # a trace has ns
    assert row.kernel == pytest.approx(kernels * 1e-6, rel=1e-4)
    assert row.transfer == pytest.approx(30e-6, rel=1e-4)
    assert found.mine.waiting == pytest.approx((kernels - 30) * 1e-6, rel=1e-4)
    assert exposed[0] * 1e-6 - 1e-9 <= gpu.exposed <= exposed[-1] * 1e-6 + 1e-9
    assert ("few       figures are medians over" in "\n".join(remarks(found))) == (len(timed) < 5)


@pytest.mark.parametrize("marked", [True, False])
def test_a_loss_after_every_fifth_step_is_between_steps(marked: bool) -> None:
    events, at, number = [], 1e6, 0
    for step in range(30):
        events += [mark(step, at)] if marked else []
        for lasted, nelems in ((100.0, 2**20), (50.0, 2**10), (5.0, 1) if step % 5 == 1 else (0.0, 0)):
            if nelems:
                number += 1
                events += [event("gemm", at, lasted), *call(number, at + 1, at + lasted, 20.0, nelems=nelems)]
                at += lasted + 21
        at += 40
    found = report(job_of([trace_of(events)]))
    assert found is not None
    assert (found.repeats, len(found.phase.positions)) == (True, 2)
    assert (found.job.steps.source is StepSource.MARKS) is marked
    assert 0.85 < found.job.steps.calls < 1, "the losses are in no step"


@pytest.mark.parametrize(("steps", "micro"), [(4, 2), (4, 4), (60, 1), (10, 2), (30, 2)])
def test_a_micro_batch_is_told_from_a_step_or_the_page_says_that_it_may_be_one(steps: int, micro: int) -> None:
    """Micro-batches of two all-reduces each, and after the last one of a step an optimizer that takes 50 µs."""
    events, at, number = [], 1e6, 0
    for _ in range(steps):
        for _ in range(micro):
            for lasted in (120.0, 60.0):
                number += 1
                events += [event("gemm", at, lasted), *call(number, at + lasted - 9, at + lasted, 20.0)]
                at += lasted + 21
        events.append(event("adam", at, 50.0))
        at += 51
    found = report(job_of([trace_of(events)]))
    assert found is not None
    text = "\n".join(remarks(found))
    said = f"a micro-batch may look the same in {steps * micro} repetitions" in " ".join(text.split())
    whole = found.repeats and len(found.phase.positions) == 2 * micro
    assert whole or not found.repeats or said
    assert not said or steps * micro < 20


def test_a_small_call_within_every_third_sequence_may_be_the_end_of_a_step() -> None:
    """Three micro-batches and a norm: the longest pause is within a micro-batch, so the norm is in a sequence, too."""
    events, at = [], 1e6
    for number in range(200):
        name, lasted = ("broadcast", 200.0) if number % 10 in (1, 4, 7) else ("allreduce", 100.0)
        row, kernel = call(number + 1, at + lasted - 9, at + lasted, 20.0, nelems=1 if number % 10 == 9 else 2**20)
        row["args"]["Collective name"] = name
        events += [event("gemm", at, lasted), row, kernel]
        at += lasted + 21
    assert job_of([trace_of(events)]).steps.source is None


def test_a_trace_from_which_compute_was_taken_says_nothing_of_a_gpu() -> None:
    events = [one for step in range(6) for one in call(step + 1, 100.0 * step + 10, 100.0 * step + 50, 30.0)]
    events += [mark(step, 100.0 * step) for step in range(6)]
    job = job_of([trace_of(events)])
    assert Unknown.OVERLAP in job.unknown
    own = report(job)
    assert own is not None
    assert (own.gpu, exposed_text(own)) == ((), "")
    assert headline(own).startswith(
        "communication runs for 30% (rank 0) of a step, exposed or hidden; rank 0: 0.03 ms of 0.1"
    )


_SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)), min_size=1, max_size=8)


@given(_SPANS, _SPANS, _SPANS, st.tuples(st.integers(-3, 42), st.integers(-3, 42)))
def test_each_moment_counts_once(compute: Any, sends: Any, copies: Any, window: tuple[int, int]) -> None:
    """Against a second of each class in which something ran, or not."""
    pairs = [
        np.array([(start, start + lasted) for start, lasted in part], dtype=float) for part in (compute, sends, copies)
    ]
    timeline = Timeline(*pairs)
    first, last = timeline.ends
    running = [
        {at for start, lasted in part for at in range(start, start + lasted)} for part in (compute, sends, copies)
    ]
    inside = set(range(max(min(window), int(first)), min(max(window), int(last))))
    computing, sending, copying = (one & inside for one in running)
    expected = GpuTime(
        len(computing),
        len(computing & sending),
        len(sending - computing),
        len(copying - sending - computing),
        len(inside - computing - sending - copying),
    )
    assert timeline.between(min(window), max(window)) == expected
    each = timeline.exposed(pieces(pairs[1]))
    assert each.sum() == pytest.approx(len(running[1] - running[0]))
    assert (each >= 0).all()
    assert (each <= pairs[1][:, 1] - pairs[1][:, 0]).all()


def test_kernels_of_a_graph_are_calls_of_which_the_time_is_known() -> None:
    launch = event("cudaGraphLaunch", 10.0, 5.0, "cuda_runtime", 1, correlation=5)
    kernels = [event(ALLREDUCE, 100.0 * n, 30.0, correlation=5, External_id=0) for n in range(1, 4)]
    unclear = event("ncclDevKernel_SendRecv(x)", 500.0, 3.0, correlation=5)
    job = job_of([trace_of([launch, *kernels, unclear, event("gemm", 0.0, 50.0)])])
    assert [job.calls[one].operation for one in job.ranks[0].unfolded()] == ["allreduce"] * 3
    (captured,) = job.calls
    assert (captured.captured, captured.size_bytes, captured.dtype) == (True, 0, "")
    assert {Unknown.SIZES} <= set(job.unknown)
    assert Unknown.GRAPH_REPLAYS not in job.unknown  # each replay is there
    with pytest.raises(UsageError, match="do not say the bytes of all calls: run it without CUDA graphs"):
        check_sent_again(job)
    assert job.ranks[0].gpu_time == GpuTime(compute=50.0, overlapped=0.0, exposed=93.0, copies=0.0, idle=360.0)


def test_a_kernel_launched_before_the_trace_is_no_graph_and_is_counted() -> None:
    trace = trace_of([*call(1, 10.0, 50.0, 30.0), event(ALLREDUCE, 0.0, 9.0, correlation=3, External_id=3)])
    assert len(trace.calls) == 1
    assert trace.left_out == {"ncclDevKernel_AllReduce_Sum_f32_RING_LL without a call": 1}
    assert not trace.calls[0].captured


def test_rows_and_kernels_of_older_torch_are_matched_by_launches() -> None:
    """There a kernel is numbered by its launch, which may be the number of another row."""
    rows = []
    for n in range(3):
        at, launch = 100.0 * n, 1000 + n
        rows += [event("record_param_comms", at, 50.0, "cpu_op", 1, External_id=1002 - n)]
        rows += [
            event("nccl:all_reduce", at + 2, 40.0, "user_annotation", 1, Input_Dims=[[n + 1]], Input_type=["float"])
        ]
        rows += [event("cudaLaunchKernel", at + 9, 3.0, "cuda_runtime", 1, correlation=launch)]
        rows += [event(ALLREDUCE, at + 30, n + 1.0, correlation=launch, External_id=launch)]
    trace = trace_of(rows)
    assert [(one.size_bytes, one.gpu) for one in trace.calls] == [(4, 1.0), (8, 2.0), (12, 3.0)]


def test_ranks_whose_records_begin_at_different_calls_are_matched_by_their_numbers() -> None:
    whole = job_of([steps(), steps(7.0, rank=1)])
    late = job_of([steps(), steps(7.0, first=2, rank=1)])
    assert [group.whole for group in matched(whole)] == [group.whole for group in matched(late)] == [True]
    assert [rank.calls for rank in late.ranks] == [4, 4]
    (group,) = matched(late)
    assert np.median(group.moving, axis=0).tolist() == pytest.approx([30e-6])
    assert np.median(group.times, axis=1)[:, 0].tolist() == pytest.approx([30e-6, 37e-6])


@pytest.mark.parametrize(
    ("sizes", "operation", "unknown"),
    [
        ("[]", "alltoall", False),
        ("[64, 64]", "alltoall", False),
        ("[64, 32]", "alltoallv", False),
        ("[" + "64, " * 30 + "...]", "alltoall", True),
        ("[32, " + "64, " * 29 + "..., ...]", "alltoallv", False),
        (None, "alltoall", True),
    ],
)
def test_splits_beyond_those_that_torch_prints_are_unknown(sizes: str | None, operation: str, unknown: bool) -> None:
    row, kernel = call(1, 0.0, 50.0, 30.0, nelems=1920)
    row["args"] |= {"Collective name": "all_to_allv", "In split size": sizes, "Out split size": sizes}
    job = job_of([trace_of([row, kernel])])
    assert ([one.operation for one in job.calls], Unknown.SPLITS in job.unknown) == ([operation], unknown)


def test_a_root_is_the_rank_that_a_broadcasts_row_names() -> None:
    events = call(1, 0.0, 50.0, 30.0) + call(2, 100.0, 150.0, 30.0)
    for name, row in zip(("broadcast", "allreduce"), (events[0], events[2]), strict=True):
        row["args"] |= {"Collective name": name, "Rank": 1}
    assert [(one.operation, one.root) for one in trace_of(events).calls] == [("broadcast", 1), ("allreduce", None)]


def test_titles_one_right_after_the_other_are_two_calls() -> None:
    """Older torch wrote whole µs: a row may begin at the moment at which the one before ends."""
    rows = [
        event("nccl:all_reduce", 10.0 * n, 10.0, "user_annotation", 1, Input_Dims=[[n + 1]], Input_type=["float"])
        for n in range(3)
    ]
    assert [one.size_bytes for one in trace_of(rows).calls] == [4, 8, 12]


def nested(events: list[Any]) -> list[tuple[Any, list[Any]]]:
    """Return each slice of a thread and its parts, as Perfetto nests them. Raises AssertionError if slices cross."""
    found: list[tuple[Any, list[Any]]] = []
    for one in sorted(events, key=lambda one: (one["ts"], -one["dur"])):
        if found and one["ts"] < found[-1][0]["ts"] + found[-1][0]["dur"]:
            whole, parts = found[-1]
            assert one["ts"] + one["dur"] <= whole["ts"] + whole["dur"] + 1e-9
            assert not parts or one["ts"] >= parts[-1]["ts"] + parts[-1]["dur"] - 1e-9
            parts.append(one)
        else:
            found.append((one, []))
    return found


def exported(job: Job) -> dict[tuple[int, int], list[tuple[Any, list[Any]]]]:
    threads: dict[tuple[int, int], list[Any]] = defaultdict(list)
    fields = json.loads(perfetto.as_json(job))
    for one in fields["traceEvents"]:
        if one["ph"] == "X":
            threads[one["pid"], one["tid"]].append(one)
    named = [one for one in fields["traceEvents"] if one["name"] == "thread_name"]
    assert {(one["pid"], one["tid"]) for one in named} == set(threads)
    assert {one["args"]["name"] for one in named} == {"GPU: default_pg"}
    return {thread: nested(own) for thread, own in threads.items()}


def test_perfetto_gets_each_kernel_and_its_waiting_and_transfer() -> None:
    tracks = exported(job_of([steps(), steps(7.0, rank=1)]))
    assert [pid for pid, _ in tracks] == [0, 1]
    for (rank, _), slices in tracks.items():
        assert [whole["name"] for whole, _ in slices] == ["allreduce 1K"] * 6
        assert [whole["ts"] for whole, _ in slices] == pytest.approx(
            [40.0 - 7 * rank + 100 * step for step in range(6)]
        )
        for whole, parts in slices:
            lengths = {part["name"]: part["dur"] for part in parts}
            assert lengths == pytest.approx({"transfer": 30.0} if rank == 0 else {"waiting": 7.0, "transfer": 30.0})
            assert sum(lengths.values()) == pytest.approx(whole["dur"])


def test_kernels_that_begin_before_their_calls_begin_the_trace() -> None:
    """The GPU's clock may be behind the host's. A moment before 0 is none in a trace, and one at 0 unknown in a job."""
    events = [one for step in range(4) for one in call(step + 1, 300.0 + 100 * step, 100.0 + 100 * step, 40.0)]
    marks = [mark(step, 299.0 + 100 * step) for step in range(5)]
    job = job_of([trace_of([event("gemm", 0.0, 9.0), *events, *marks])])
    ((_, slices),) = exported(job).items()
    assert [whole["ts"] for whole, _ in slices] == [1.0, 101.0, 201.0, 301.0]
    assert job.ranks[0].step is not None
    assert [sample.step for sample in job.ranks[0].step.samples] == [100.0, 100.0, 100.0, 0.0]


def test_kernels_that_overlap_get_threads_of_their_own() -> None:
    """The third of each three begins as the first one ends: on its thread."""
    events = [one for n in range(6) for one in call(n + 1, 10.0 * n, 100.0 + 20 * n, 40.0)]
    tracks = exported(job_of([trace_of([*events, event("gemm", 0.0, 9.0)])]))
    assert sorted(len(slices) for slices in tracks.values()) == [3, 3]
    assert all(not parts for slices in tracks.values() for _, parts in slices)  # one rank alone says no waiting


@pytest.mark.usefixtures("loaded_program")
def test_export_writes_a_job_for_perfetto_and_nothing_else(program: Program, tmp_path: Path) -> None:
    job_file.save(job_of([steps()]), tmp_path / "job.json")
    result = program("export", "job.json", "--format", "perfetto", "-o", "trace.json")
    assert (result.status, json.loads((tmp_path / "trace.json").read_text())["displayTimeUnit"]) == (0, "ms")
    result = program("export", "job.json", "--format", "csv")
    assert (result.status, result.line) == (
        2,
        "job.json is a recorded job: export it with --format perfetto",
    )


def test_a_job_without_kernel_times_has_nothing_for_perfetto() -> None:
    row, _ = call(1, 0.0, 50.0, 30.0)
    with pytest.raises(UsageError, match="has no kernel times: record it with --gpu-times"):
        perfetto.as_json(job_of([trace_of([row])]))
