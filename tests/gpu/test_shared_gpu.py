"""Two ranks that share one GPU, as NCCL takes them for two hosts (NCCL_HOSTID): collectives, overlap and replay.

They run where there is one GPU. On two, test_world, test_overlap and test_replay show the same over a link.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from collbench.jobs.job import Call
from collbench.jobs.replay.measure import ReplayWorld
from collbench.jobs.replay.schedule import ReplayLoad, schedule_of
from collbench.model.operations import COLLECTIVES, Operation, Variant, Work
from collbench.model.run import Run
from collbench.overlaps.measure import OverlapWorld
from collbench.overlaps.results import Compute, ComputeKind, Load, Overlap, Priority
from collbench.runfile import run_file
from tests.gpu.machine import need_gpus
from tests.jobs.replay.made import data_parallel, job_of
from tests.ranks.processes import as_slurm, ends, free_port, started

pytest.importorskip("torch")
if len(need_gpus(1)) > 1:
    pytest.skip("needs one GPU alone", allow_module_level=True)

GEMM = Compute(ComputeKind.GEMM, 1024)
SHARED = [0, 0]
# NCCL refuses two ranks of one host on one GPU.
OWN_HOST = 'import os\nos.environ["NCCL_HOSTID"] = f"process{os.getpid()}"\n'


@pytest.fixture(scope="module", autouse=True)
def own_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Make NCCL take each process for a host of its own."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "sitecustomize.py").write_text(OWN_HOST, encoding="utf-8")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYTHONPATH", str(folder), prepend=":")
        yield


@pytest.fixture(scope="module")  # starting one takes ten seconds
def overlap_world(own_hosts: None) -> Iterator[OverlapWorld]:
    world = OverlapWorld("cuda", SHARED)
    try:
        world.join()
        yield world
    finally:
        world.close()


@pytest.fixture(scope="module")
def replay_world(own_hosts: None) -> Iterator[ReplayWorld]:
    world = ReplayWorld("cuda", SHARED)
    try:
        world.join()
        yield world
    finally:
        world.close()


@pytest.mark.parametrize("priority", list(Priority))
def test_a_collective_and_compute_are_timed_and_verified(overlap_world: OverlapWorld, priority: Priority) -> None:
    overlap_world.allocate(Overlap(Work(Operation.ALLREDUCE), (0, 1), 2**20, GEMM, priority))
    overlap_world.warm()
    for times in overlap_world.run(Load(collective_chunks=3, calls=2, compute_chunks=4, units=8, delay_s=0.01)):
        assert (len(times.collective), len(times.compute)) == (3, 4)
        for chunk_ends in (times.collective, times.compute):
            assert 0 < chunk_ends[0] < chunk_ends[-1] < 10
            assert list(chunk_ends) == sorted(chunk_ends)
        assert (times.wrong, times.wrong_compute) == (0, 0)


def test_a_call_begins_after_its_idle_time(overlap_world: OverlapWorld) -> None:
    overlap_world.allocate(Overlap(Work(Operation.ALLGATHER), (0, 1), 2**16, GEMM))
    overlap_world.warm()
    for times in overlap_world.run(Load(3, 1, 2, 1, 0.01, (0.005, 0.0, 0.002))):
        assert (len(times.begins), len(times.collective), len(times.compute)) == (3, 3, 6)
        assert all(end > begin for begin, end in zip(times.begins, times.collective, strict=True))


def test_a_step_is_replayed_and_verified(replay_world: ReplayWorld) -> None:
    replay_world.prepare(schedule_of(data_parallel(ranks=2), None))
    assert replay_world.verify() == 0
    for load in (ReplayLoad(3), ReplayLoad(2, pauses=False)):
        for times in replay_world.run(load, 1.0):
            assert min(times.units) > 0
    assert replay_world.verify() == 0


def test_each_operation_arrives_as_sent(replay_world: ReplayWorld) -> None:
    calls = [
        Call("allreduce", 4096, 0, "bfloat16", "sum"),
        Call("reduce", 64, 0, "float32", "prod", root=1),
        Call("broadcast", 100, 0, root=1),
        Call("allgather", 400, 0, "float32"),
        Call("reducescatter", 400, 0, "float32", "sum"),
        Call("alltoall", 64, 0),
    ]
    step = job_of([range(2)], [[(call, False) for call in calls]] * 2)
    replay_world.prepare(schedule_of(step, None))
    assert replay_world.verify() == 0
    for times in replay_world.run(ReplayLoad(3), 1.0):
        assert len(times.units) == len(calls)
    assert replay_world.verify() == 0


def by_slurm(tmp_path: Path, operation: Operation) -> Run:
    """Measure with two processes, each on a host of its own, and return the run."""
    file, port = tmp_path / "run.json", free_port()
    arguments = [operation.value, "--backend", "cuda", "--sizes", "8,64K,1M", "--in-place", "--quick"]
    shared = {"NCCL_SOCKET_IFNAME": "lo", "MASTER_ADDR": "127.0.0.1", "SLURM_LOCALID": 0, "CUDA_VISIBLE_DEVICES": 0}
    environments = [
        as_slurm(rank, 2, port, SLURM_NODEID=rank, SLURM_STEP_TASKS_PER_NODE="1(x2)", NCCL_HOSTID=f"h{rank}", **shared)
        for rank in range(2)
    ]
    with started(tmp_path, [*arguments, "--output", str(file)], environments, all_of_torch=True) as processes:
        (status, _, err), other_output = ends(processes)
    assert (status, other_output[0]) == (0, 0), err
    return run_file.load(file)


@pytest.fixture(scope="module")
def runs(own_hosts: None, tmp_path_factory: pytest.TempPathFactory) -> dict[Operation, Future[Run]]:
    """Return the run of each collective: several at a time, because starting them takes the time, not measuring."""
    folders = {operation: tmp_path_factory.mktemp(operation) for operation in COLLECTIVES}
    with ThreadPoolExecutor(max(2, len(os.sched_getaffinity(0)) // 4)) as threads:
        return {operation: threads.submit(by_slurm, folder, operation) for operation, folder in folders.items()}


@pytest.mark.parametrize("operation", COLLECTIVES)
def test_every_collective_is_exact_in_and_out_of_place(
    operation: Operation, runs: dict[Operation, Future[Run]]
) -> None:
    run = runs[operation].result()
    assert {measurement.point.variant for measurement in run.measurements} == {Variant.PLAIN, Variant.IN_PLACE}
    assert [measurement.failure for measurement in run.measurements if measurement.failure] == []
    assert all(state.others_memory is not None for state in (*run.health_before, *run.health_after))
    for measurement in run.measurements:
        assert measurement.wrong == (0 if measurement.point.work.verifiable else None)
        assert all(sample.plain and min(sample.seconds) > 0 for sample in measurement.samples)
