"""One process per GPU under torchrun, on 2 and 4 GPUs: the same points as of one process, and no wrong element."""

from __future__ import annotations

import itertools
import os
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from collbench.judge.registration import small_allreduces
from collbench.model.operations import COLLECTIVES, Operation, Registration, Variant
from collbench.model.run import Path as LinkPath
from collbench.model.run import Run
from collbench.runfile import run_file
from tests.gpu.machine import need_gpus, need_nccl
from tests.ranks.processes import as_slurm, ends, free_port, started, torchrun

ORDINALS = need_gpus(2)
NCCL = need_nccl()
COUNTS = [count for count in (2, 4) if count <= len(ORDINALS)]
SIZES = "8,64K,1M"


def by_torchrun(tmp_path: Path, count: int, *arguments: str) -> Run:
    """Measure with `count` processes, and return the run, which must be complete."""
    file = tmp_path / "world.json"
    done = torchrun(tmp_path, count, *arguments, "--backend", "cuda", "--output", str(file))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("saved     ") == 1, "one rank prints"
    run = run_file.load(file)
    assert run.complete
    assert (run.settings.processes, run.settings.launcher) == (count, "torchrun")
    assert not [measurement.failure for measurement in run.measurements if measurement.failure]
    return run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[Operation, int], Future[Run]]:
    """Return the run of each collective: several at a time, because starting them takes the time, not measuring."""

    def run(operation: Operation, count: int) -> Run:
        folder = folders[operation, count]
        return by_torchrun(folder, count, operation.value, "--sizes", SIZES, "--in-place", "--quick")

    cases = list(itertools.product(COLLECTIVES, COUNTS))
    # Made here: pytest's first folder of a session is not made safely by several threads.
    folders = {case: tmp_path_factory.mktemp("-".join(map(str, case))) for case in cases}
    at_once = max(2, len(os.sched_getaffinity(0)) // 3)  # two ranks with a worker each want a core
    with ThreadPoolExecutor(at_once) as threads:
        return {case: threads.submit(run, *case) for case in cases}


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("operation", COLLECTIVES)
def test_every_collective_is_exact_in_and_out_of_place(
    operation: Operation, count: int, runs: dict[tuple[Operation, int], Future[Run]]
) -> None:
    run = runs[operation, count].result()
    points = {(measurement.point.members, measurement.point.variant) for measurement in run.measurements}
    everyone = tuple(range(count))
    assert points == {(everyone, Variant.PLAIN), (everyone, Variant.IN_PLACE)}
    for measurement in run.measurements:
        assert measurement.wrong == (0 if measurement.point.work.verifiable else None)
    assert all(
        sample.seconds and min(sample.seconds) > 0 for measurement in run.measurements for sample in measurement.samples
    )
    assert all(sample.launch_seconds for measurement in run.measurements for sample in measurement.samples)


@pytest.mark.parametrize("count", COUNTS)
def test_small_allreduces_of_ranks_are_verified_and_take_as_long_as_those_of_one_process(
    count: int, tmp_path: Path
) -> None:
    run = by_torchrun(tmp_path, count, "latency", "--collectives", "--quick")
    file, devices = tmp_path / "alone.json", ",".join(map(str, range(count)))
    alone = [*("latency", "--collectives", "--quick", "--devices", devices), "--backend", "cuda", "--output", str(file)]
    with started(tmp_path, alone, [{}], all_of_torch=True) as processes:
        ((status, _, err),) = ends(processes)
    assert status == 0, err
    single_run = run_file.load(file)
    kinds = {kind for kind in Registration if NCCL.version >= kind.oldest_nccl}
    points = [measurement.point for measurement in run.measurements]
    assert points == [measurement.point for measurement in single_run.measurements]
    ranks = sorted({*(2**n for n in range(1, count.bit_length())), count})
    assert len(points) == 14 * len(kinds) * len(ranks)  # 128 B to 1 MiB
    assert {measurement.wrong for measurement in run.measurements} == {0}
    samples = [sample for measurement in run.measurements for sample in measurement.samples]
    assert all(sample.verified_bytes == sample.moved_bytes > 0 for sample in samples)  # type: ignore[operator]
    assert [latency.point for latency in run.latencies] == points
    assert all(latency.common_clock for latency in run.latencies)
    assert sorted({len(latency.ranks) for latency in run.latencies}) == ranks
    assert {len(rank.left) for latency in run.latencies for rank in latency.ranks} == {400}
    ours, theirs = (
        [*itertools.chain.from_iterable(of.timed for of in small_allreduces(one))] for one in (run, single_run)
    )
    for one, other in zip(ours, theirs, strict=True):
        assert (one.size_bytes, one.kind) == (other.size_bytes, other.kind)
        print(one.kind, one.size_bytes, one.seconds, other.seconds, one.launch_at(50), other.launch_at(50))
        assert 0.5 < one.seconds / other.seconds < 2
        p50, p99 = one.launch_at(50), one.launch_at(99)
        assert p50 is not None
        assert p99 is not None
        assert 1e-6 < p50 <= p99


@pytest.mark.skipif(NCCL.version < 22700, reason="needs NCCL 2.27: windows")
@pytest.mark.parametrize("count", COUNTS)
def test_every_kind_of_memory_is_exact_under_torchrun(count: int, tmp_path: Path) -> None:
    arguments = ("allreduce", "--sizes", SIZES, "--in-place", "--quick", "--registration", "all")
    run = by_torchrun(tmp_path, count, *arguments)
    kinds = {(measurement.point.registration, measurement.point.variant) for measurement in run.measurements}
    assert kinds == set(itertools.product(Registration, (Variant.PLAIN, Variant.IN_PLACE)))
    assert {measurement.wrong for measurement in run.measurements} == {0}
    assert all(sample.launch_seconds for measurement in run.measurements for sample in measurement.samples)


@pytest.mark.parametrize("count", COUNTS)
def test_a_run_of_processes_has_the_points_and_devices_of_a_run_of_one(count: int, tmp_path: Path) -> None:
    arguments = ("pairs", "--operations", "allreduce,broadcast", "--sizes", SIZES, "--quick", "--seed", "1")
    torchrun_run = by_torchrun(tmp_path, count, *arguments)
    file = tmp_path / "alone.json"
    devices = ",".join(map(str, range(count)))
    with started(
        tmp_path,
        [*arguments, "--devices", devices, "--backend", "cuda", "--output", str(file)],
        [{}],
        all_of_torch=True,
    ) as processes:
        ((status, _, err),) = ends(processes)
    assert status == 0, err
    single_run = run_file.load(file)
    assert [measurement.point for measurement in torchrun_run.measurements] == [
        measurement.point for measurement in single_run.measurements
    ]
    assert [device.uuid for device in torchrun_run.devices] == [device.uuid for device in single_run.devices]
    assert [_by_nvml(path) for path in torchrun_run.paths] == [_by_nvml(path) for path in single_run.paths]
    assert (torchrun_run.machine.nccl, torchrun_run.machine.driver) == (
        single_run.machine.nccl,
        single_run.machine.driver,
    )
    assert len(torchrun_run.health_before) == len(torchrun_run.health_after) == count


def _by_nvml(path: LinkPath) -> LinkPath:
    """Return what NVML reports of a path: ranks query neither nvidia-smi nor CUDA about each other."""
    return replace(path, tool_label=None, tool_peer_access=(), cuda_peers=None)


@pytest.mark.skipif(len(ORDINALS) < 4, reason=f"needs 4 GPUs: this machine shows {len(ORDINALS)}")
def test_disjoint_sets_are_timed_at_once(tmp_path: Path) -> None:
    run = by_torchrun(tmp_path, 4, "allreduce", "--split", "2", "--sizes", SIZES, "--quick")
    assert {measurement.point.members for measurement in run.measurements} == {(0, 1), (2, 3)}
    assert {sample.concurrent for measurement in run.measurements for sample in measurement.samples} == {True}


def test_a_rank_that_sees_only_one_gpu_uses_it(tmp_path: Path) -> None:
    """As under srun --gpus-per-task=1 where no cgroup constrains devices."""
    file, port = tmp_path / "run.json", free_port()
    arguments = ["allreduce", "--backend", "cuda", "--sizes", SIZES, "--quick", "--output", str(file)]
    environments = [as_slurm(rank, 2, port, CUDA_VISIBLE_DEVICES=rank) for rank in range(2)]
    with started(tmp_path, arguments, environments, all_of_torch=True) as processes:
        (status, _, err), other_output = ends(processes)
    assert status == 0, err
    assert other_output[0] == 0
    assert len({device.uuid for device in run_file.load(file).devices}) == 2
