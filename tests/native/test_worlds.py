"""One process per GPU: ranks that meet by an NCCL id, here threads with a session each, on simulated GPUs."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.native.fakes import Fakes

# Runs body(rank, session) in a thread for each rank and reports the results by rank.
_RANKS = """
import threading
def ranks(world, body):
    nccl = native.Nccl(os.environ["NCCL"])
    unique_id, results = nccl.unique_id(), [None] * world
    gpus = [native.Gpus([rank], PTX) for rank in range(world)]
    for one in gpus:
        one.allocate(65536)
    def run(rank):
        held = native.Collectives(gpus[rank], nccl, rank, world, unique_id)
        results[rank] = body(rank, held)
    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world)]
    [thread.start() for thread in threads], [thread.join() for thread in threads]
    report(results=results)
"""


def test_every_rank_times_its_own_share_of_every_operation(fakes: Fakes) -> None:
    script = """
def body(rank, held):
    for operation in OPERATIONS:
        for in_place in (False, True):
            times, launches = collective(held, [[2, 0, 1]], operation, count=300, in_place=in_place, root=2, batches=2,
                                         launch_iterations=3, launch_warmup=2)
            assert [len(batches) for batches in times] == [2] and launches[0] > 0
    return "done"
ranks(3, body)
"""
    done = fakes.script(_RANKS + script)

    assert done.reported["results"] == ["done"] * 3
    assert Counter(done.log)["ncclCommInitRank"] == 3
    # The group is in another order than the world, so it is split from it, by all at once; once more for launches.
    assert Counter(done.log)["split of 3 ranks"] == 2


def test_a_rank_works_only_for_its_own_group_and_takes_part_in_every_split(fakes: Fakes) -> None:
    script = """
def body(rank, held):
    held.prepare([[0, 1], [2, 3], [0, 2], [1, 3], [1, 2]])
    pairs = collective(held, [[0, 1], [2, 3]])[0]
    one = collective(held, [[1, 2]], launch_iterations=1)
    return [[len(batches) for batches in pairs], len(one[0][0]), one[1][0] > 0]
ranks(4, body)
"""
    done = fakes.script(_RANKS + script)

    # Rank 1 and 2 have a time for the third group; the others' is not a number.
    assert done.reported["results"] == [
        [[1, 0], 0, False],
        [[1, 0], 1, True],
        [[0, 1], 1, True],
        [[0, 1], 0, False],
    ]
    assert Counter(done.log)["split of 4 ranks"] == 3 + 1  # the second one of [1, 2], for its launches


def test_all_ranks_make_the_communicators_for_launches_in_one_order(fakes: Fakes) -> None:
    # A rank that split for another group than the others would join ranks that are not its own, or none.
    script = """
pairs, middle, everyone = [[0, 1], [2, 3]], [[1, 2]], [[0, 1, 2, 3]]
def body(rank, held):
    plan = dict(operation="broadcast", warmup=1, iterations=1, launch_warmup=1)
    def loops(groups, launches):
        return [one > 0 for one in collective(held, groups, launch_iterations=launches, **plan)[1]]
    results = [loops(*trial) for trial in ((pairs, 0), (middle, 2), (everyone, 2), (pairs, 2), (middle, 2))]
    held.close()
    return results
ranks(4, body)
"""
    done = fakes.script(_RANKS + script)

    assert done.reported["results"] == [
        [[], [in_middle], [True], [rank < 2, rank >= 2], [in_middle]]
        for rank, in_middle in enumerate([False, True, True, False])
    ]
    # Of the pairs and of the middle one each; for the launches of all three.
    assert Counter(done.log)["split of 4 ranks"] == 2 + 3
    assert len(done.lines("+comm")) == len(done.lines("-comm")) == 4 + (4 + 2) + (2 + 4 + 4)
    assert done.lines("plain broadcast ") == []  # all loops; barriers before a batch are plain all-reduces
    # One that connects, two batches once, and the loop, twice for the middle ranks.
    broadcasts = Counter(line for line in done.lines("collective broadcast "))
    assert broadcasts == {
        "collective broadcast ranks 2 bytes 1024": 2 * (3 + 2 + 3) + (3 + 3) + (2 + 3),
        "collective broadcast ranks 4 bytes 1024": 3 + 3,
    }


def test_ranks_start_behind_a_tiny_all_reduce(fakes: Fakes) -> None:
    script = "ranks(2, lambda rank, held: collective(held, [[0, 1]], 'broadcast', warmup=1, batches=2)[0])"
    lines = fakes.script(_RANKS + script).lines("collective ")

    # Once to connect, then before each of three batches; not between the four broadcasts of a graph.
    assert lines == (["collective broadcast ranks 2 bytes 1024", "collective allreduce ranks 2 bytes 4"]) + (
        ["collective allreduce ranks 2 bytes 4", *["collective broadcast ranks 2 bytes 1024"] * 4] * 3
    )


def test_a_rank_reports_how_long_it_waited_before_each_batch(fakes: Fakes) -> None:
    """Only for its own group; in a world of one process no rank waits for another."""
    script = """
def body(rank, held):
    if rank == 1:
        import time
        time.sleep(0.2)  # the first batch's barrier waits for it, and those after it do not
    return collect(held, [[0, 1], [2, 3]], warmup=1, batches=3).waits
ranks(4, body)
"""
    reported = fakes.script(_RANKS + script).reported["results"]
    for rank, waits in enumerate(reported):
        own_waits, other_waits = waits[rank // 2], waits[1 - rank // 2]
        assert other_waits == []
        assert len(own_waits) == 1 + 3
        assert min(own_waits) >= 0
    one_process_script = """
gpus = native.Gpus([0, 1], PTX)
gpus.allocate(65536)
report(waits=collect(native.Collectives(gpus, native.Nccl(os.environ["NCCL"])), [[0, 1]], batches=2).waits)
"""
    assert fakes.script(one_process_script).reported["waits"] == []


@pytest.mark.parametrize(
    ("how", "call"), [("", 1), ("plain=[True], iterations=13", 5), ("plain=[True], iterations=13", 12)]
)
def test_a_wrong_element_is_reported_by_the_rank_that_holds_it(how: str, call: int, fakes: Fakes) -> None:
    script = f"ranks(2, lambda rank, held: failure(collective, held, [[1, 0]], {how}))"
    # After the two that connect, two that wake and the barrier's: a call of the graph or a plain launch, on rank 1 of
    # the group, which is the world's 0.
    reported = fakes.script(_RANKS + script, corrupt_collective=f"{5 + call}:9:1").reported["results"]

    assert [result["kind"] for result in reported] == ["DataError", "none"]
    assert (reported[0]["group"], reported[0]["rank"], reported[0]["offset"]) == (0, 1, 36)


@pytest.mark.parametrize("registration", ["none", "buffer", "window"])
def test_small_allreduces_of_ranks_are_verified_on_each_kind_of_memory(fakes: Fakes, registration: str) -> None:
    """As of `latency --collectives` under torchrun: bfloat16, in graphs, then launched one by one."""
    script = f"""
def body(rank, held):
    how = dict(dtype=9, registration="{registration}", count=64)
    graphs = collect(held, [[0, 1]], batches=2, warmup=1, **how)
    singles = collect(held, [[0, 1]], batches=1, single_launches=23, launch_warmup=2, **how)
    return [[*coverage(graphs), *coverage(singles)], [[one.rank, len(one.left)] for one in singles.singles]]
ranks(2, body)
"""
    results = fakes.script(_RANKS + script).reported["results"]
    sent = 128 * 4  # bytes of a batch's messages, which are all compared
    assert results == [[[[3 * sent, 3 * sent], [sent, sent]], [[rank, 23]]] for rank in range(2)]


@pytest.mark.parametrize("registration", ["none", "buffer", "window"])
def test_a_wrong_small_allreduce_of_ranks_is_found_on_each_kind_of_memory(fakes: Fakes, registration: str) -> None:
    script = f"""
how = dict(dtype=9, registration="{registration}", count=64)
ranks(2, lambda rank, held: failure(collect, held, [[0, 1]], **how))
"""
    # After what connects and wakes the ranks, and the barrier: the first of the graph, on the world's rank 1.
    done = fakes.script(_RANKS + script, corrupt_collective="6:9:1")
    assert [result["kind"] for result in done.reported["results"]] == ["none", "DataError"]


@pytest.mark.parametrize(
    ("title", "arguments", "text"),
    [
        ("a rank beyond the world", "one, nccl, 2, 2, nccl.unique_id()", "rank 2 of a world of 2"),
        ("no id", "one, nccl, 0, 2", "an NCCL id has 128 bytes, not 0: pass what Nccl.unique_id() gave to one rank"),
        ("a piece of an id", "one, nccl, 0, 2, nccl.unique_id()[:100]", "an NCCL id has 128 bytes, not 100"),
        ("two GPUs", "two, nccl, 0, 2, nccl.unique_id()", "a rank of a world of processes has one GPU, not 2"),
    ],
)
def test_invalid_worlds_are_refused(fakes: Fakes, title: str, arguments: str, text: str) -> None:
    script = f"""
        one, two, nccl = open_gpus(1), open_gpus(2), native.Nccl(os.environ["NCCL"])
        report(**failure(native.Collectives, {arguments}))
    """
    reported = fakes.script(script).reported

    assert text in reported["text"], title


# GPU 1 waits for what GPU 0 does behind its blocking kernel; `queried_gpu` is the GPU that the host queries meanwhile.
_QUERY_SCRIPT = """
import ctypes
cuda, pointer = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p
streams, modules, kernels = (pointer * 2)(), (pointer * 2)(), (pointer * 2)()
context, latch, event = pointer(), pointer(), pointer()
def call(name, *arguments):
    assert getattr(cuda, name)(*arguments) == 0, name
def place(array, gpu):
    return ctypes.byref(array, gpu * ctypes.sizeof(pointer))
for gpu in range(2):
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), gpu)
    call("cuCtxSetCurrent", context)
    call("cuModuleLoadData", place(modules, gpu), PTX.encode())
    call("cuModuleGetFunction", place(kernels, gpu), pointer(modules[gpu]), b"block_stream")
    call("cuStreamCreate", place(streams, gpu), 1)
    if gpu == 0:
        call("cuEventCreate", ctypes.byref(event), 2)
        call("cuMemHostAlloc", ctypes.byref(latch), 8, 3)
        ctypes.memset(latch, 0, 8)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
call("cuCtxSetCurrent", context)
expired, ticket, timeout = pointer(latch.value + 4), ctypes.c_uint32(1), ctypes.c_uint64(4 * 10**9)
each = (pointer * 4)(*(ctypes.addressof(one) for one in (latch, ticket, timeout, expired)))
call("cuLaunchKernel", pointer(kernels[0]), 1, 1, 1, 1, 1, 1, 0, pointer(streams[0]), each, None)
call("cuEventRecord", event, pointer(streams[0]))
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 1)
call("cuCtxSetCurrent", context)
call("cuStreamWaitEvent", pointer(streams[1]), event, 0)
answers = {cuda.cuStreamQuery(pointer(streams[queried_gpu])) for _ in range(20000)}
report(answers=sorted(answers))
"""


def test_a_rank_may_wait_for_another_that_is_blocked_for_long(fakes: Fakes) -> None:
    """Otherwise this suite would fail by chance, when a rank's thread is descheduled before it unblocks its stream."""
    assert fakes.script("queried_gpu = 1" + _QUERY_SCRIPT).reported["answers"] == [600]  # CUDA_ERROR_NOT_READY


def test_a_host_that_waits_behind_its_own_blocking_kernel_is_a_deadlock(fakes: Fakes) -> None:
    with pytest.raises(AssertionError, match="GPU 0 is waited for behind a blocking kernel"):
        fakes.script("queried_gpu = 0" + _QUERY_SCRIPT)


def test_plain_batches_launch_every_call_and_capture_none(fakes: Fakes) -> None:
    """As between hosts. Calls beyond ten are queued while the first ones run, and all are verified."""
    script = """
def body(rank, held):
    plan = dict(iterations=13, warmup=1, batches=2)
    rounds = [collective(held, [[0, 1]], plain=[True], **plan)[0] for _ in range(2)]
    return [[len(found[0]), min(found[0]) > 0] for found in rounds]
ranks(2, body)
"""
    done = fakes.script(_RANKS + script)
    assert done.reported["results"] == [[[2, True]] * 2] * 2
    counts = Counter(done.log)
    assert counts["collective allreduce ranks 2 bytes 1024"] == 1 + 2 * 3 * 13  # one connects
    assert counts["launch verify_elements gpu 0 grid 1 13 threads 512"] == 2 * 3
    assert counts["cuStreamBeginCapture_v2"] == counts["cuGraphLaunch"] == 0
    assert done.lines("plain allreduce ") == []


def test_groups_between_hosts_and_within_one_are_timed_in_one_round(fakes: Fakes) -> None:
    script = """
def body(rank, held):
    return [len(found) for found in collective(held, [[0, 1], [2, 3]], plain=[True, False], batches=2)[0]]
ranks(4, body)
"""
    done = fakes.script(_RANKS + script)
    assert done.reported["results"] == [[2, 0], [2, 0], [0, 2], [0, 2]]
    assert Counter(done.log)["cuStreamBeginCapture_v2"] == 2


def test_ranks_agree_on_their_data_also_after_rounds_without_them(fakes: Fakes) -> None:
    script = """
def body(rank, held):
    held.prepare([[0, 1], [1, 2], [2, 0]])
    for groups in ([[0, 1]], [[2, 0]], [[1, 2]], [[2, 0, 1]]):
        for in_place in (False, True):
            collect(held, groups, in_place=in_place, iterations=9, count=4096, batches=3)  # four slots
    return "done"
ranks(3, body)
"""
    assert fakes.script(_RANKS + script).reported["results"] == ["done"] * 3


@pytest.mark.parametrize("how", ["", "plain=[True]", "in_place=True"])
def test_earlier_results_are_found_by_every_rank(fakes: Fakes, how: str) -> None:
    script = f"ranks(2, lambda rank, held: failure(collect, held, [[0, 1]], {how}))"
    reported = fakes.script(_RANKS + script, stale="first").reported["results"]
    assert [result["kind"] for result in reported] == ["DataError"] * 2


def test_a_world_without_lost_ranks_names_gpus_by_their_positions(fakes: Fakes) -> None:
    script = """
import threading
from collbench.measurement.backends.cuda import CudaBackend, list_gpus
from collbench.measurement.backends.protocol import NcclWorld, Open, Step
from collbench.model.errors import StepFailed
from collbench.model.operations import Operation, Work
from collbench.model.run import Device
devices = [Device(at, uuid, "GPU") for at, uuid in enumerate(list_gpus())]
nccl, positions, results = native.Nccl(os.environ["NCCL"]), (0, 2, 3), {}
unique_id = nccl.unique_id()
def run(rank):
    world = NcclWorld(positions, rank, unique_id)
    backend = CudaBackend(Open(tuple(devices), None, collectives=True, world=world), lambda: nccl)
    backend.reserve(1024)
    backend.prepare(((3, 0),))
    results[positions[rank]] = []
    for groups in (((0, 2, 3),), ((3, 0), (2,)), ((3, 0),)):
        seconds = backend.time(Step(Work(Operation.ALLREDUCE), groups, 1024, 1, 2)).seconds
        results[positions[rank]].append([len(batches) for batches in seconds])
threads = [threading.Thread(target=run, args=(rank,)) for rank in range(3)]
[thread.start() for thread in threads], [thread.join() for thread in threads]
report(results=results)
"""
    done = fakes.script(script, gpus=4)

    assert done.reported["results"] == {"0": [[2], [2, 0], [2]], "2": [[2], [0, 2], [0]], "3": [[2], [2, 0], [2]]}
    assert Counter(done.log)["ncclCommInitRank"] == 3
