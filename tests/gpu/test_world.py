"""One process per GPU under torchrun, on 2 and 4 GPUs: the same points as of one process, and no wrong element."""

from __future__ import annotations

import itertools
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from collbench.model.operations import COLLECTIVES, Operation, Registration, Variant
from collbench.model.run import Path as LinkPath
from collbench.model.run import Run
from collbench.runfile import run_file
from tests.distributed.processes import as_slurm, ends, free_port, started, torchrun, trials, wait_for, worker_of
from tests.gpu.machine import need_gpus, need_nccl

ORDINALS = need_gpus(2)
NCCL = need_nccl()
COUNTS = [count for count in (2, 4) if count <= len(ORDINALS)]
SIZES = "8,64K,1M"


def by_torchrun(tmp_path: Path, count: int, *words: str) -> Run:
    """Measure by so many processes, and return the run, which must be whole."""
    file = tmp_path / "world.json"
    done = torchrun(tmp_path, count, *words, "--backend", "cuda", "--output", str(file))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("saved     ") == 1, "one rank prints"
    run = run_file.load(file)
    assert run.complete
    assert (run.settings.processes, run.settings.launcher) == (count, "torchrun")
    assert not [found.failure for found in run.measurements if found.failure]
    return run


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("operation", COLLECTIVES)
def test_every_collective_is_exact_in_and_out_of_place(operation: Operation, count: int, tmp_path: Path) -> None:
    run = by_torchrun(tmp_path, count, operation.value, "--sizes", SIZES, "--in-place", "--quick")
    points = {(found.point.members, found.point.variant) for found in run.measurements}
    everyone = tuple(range(count))
    assert points == {(everyone, Variant.PLAIN), (everyone, Variant.IN_PLACE)}
    for found in run.measurements:
        assert found.wrong == (0 if found.point.work.verifiable else None)
    assert all(sample.seconds and min(sample.seconds) > 0 for found in run.measurements for sample in found.samples)
    assert all(sample.launch_seconds for found in run.measurements for sample in found.samples)


@pytest.mark.skipif(NCCL.version < 22700, reason="needs NCCL 2.27: windows")
@pytest.mark.parametrize("count", COUNTS)
def test_every_kind_of_memory_is_exact_under_torchrun(count: int, tmp_path: Path) -> None:
    words = ("allreduce", "--sizes", SIZES, "--in-place", "--quick", "--registration", "all")
    run = by_torchrun(tmp_path, count, *words)
    kinds = {(found.point.registration, found.point.variant) for found in run.measurements}
    assert kinds == set(itertools.product(Registration, (Variant.PLAIN, Variant.IN_PLACE)))
    assert {found.wrong for found in run.measurements} == {0}
    assert all(sample.launch_seconds for found in run.measurements for sample in found.samples)


@pytest.mark.parametrize("count", COUNTS)
def test_a_run_of_processes_has_the_points_and_devices_of_a_run_of_one(count: int, tmp_path: Path) -> None:
    words = ("pairs", "--operations", "allreduce,broadcast", "--sizes", SIZES, "--quick", "--seed", "1")
    many = by_torchrun(tmp_path, count, *words)
    alone = tmp_path / "alone.json"
    devices = ",".join(map(str, range(count)))
    with started(
        tmp_path, [*words, "--devices", devices, "--backend", "cuda", "--output", str(alone)], [{}], all_of_torch=True
    ) as one:
        ((status, _, err),) = ends(one)
    assert status == 0, err
    single = run_file.load(alone)
    assert [found.point for found in many.measurements] == [found.point for found in single.measurements]
    assert [device.uuid for device in many.devices] == [device.uuid for device in single.devices]
    assert [_by_nvml(path) for path in many.paths] == [_by_nvml(path) for path in single.paths]
    assert (many.machine.nccl, many.machine.driver) == (single.machine.nccl, single.machine.driver)
    assert len(many.health_before) == len(many.health_after) == count


def _by_nvml(path: LinkPath) -> LinkPath:
    """Return what NVML says of a path: ranks ask neither nvidia-smi nor CUDA about each other."""
    return replace(path, tool_label=None, tool_peer_access=(), cuda_peers=None)


@pytest.mark.skipif(len(ORDINALS) < 4, reason=f"needs 4 GPUs: this machine shows {len(ORDINALS)}")
def test_disjoint_sets_are_timed_at_once(tmp_path: Path) -> None:
    run = by_torchrun(tmp_path, 4, "allreduce", "--split", "2", "--sizes", SIZES, "--quick")
    assert {found.point.members for found in run.measurements} == {(0, 1), (2, 3)}
    assert {sample.concurrent for found in run.measurements for sample in found.samples} == {True}


def test_a_rank_that_sees_one_gpu_alone_takes_it(tmp_path: Path) -> None:
    """As under srun --gpus-per-task=1."""
    file, port = tmp_path / "run.json", free_port()
    words = ["allreduce", "--backend", "cuda", "--sizes", SIZES, "--quick", "--output", str(file)]
    places = [as_slurm(rank, 2, port, CUDA_VISIBLE_DEVICES=rank) for rank in range(2)]
    with started(tmp_path, words, places, all_of_torch=True) as processes:
        (status, _, err), other = ends(processes)
    assert status == 0, err
    assert other[0] == 0
    assert len({device.uuid for device in run_file.load(file).devices}) == 2


def test_a_killed_worker_costs_its_point_and_the_ranks_meet_again(tmp_path: Path) -> None:
    file, port = tmp_path / "run.json", free_port()
    journal = tmp_path / "run.json.journal"
    words = ["allreduce", "--backend", "cuda", "--precision", "0.0001%", "--budget", "10min"]
    places = [as_slurm(rank, 2, port) for rank in range(2)]
    with started(tmp_path, [*words, "--output", str(file)], places, all_of_torch=True) as processes:
        wait_for("the first trials", lambda: len(trials(journal)) > 4, processes)
        os.kill(worker_of(processes[1], "backends.worker"), signal.SIGKILL)
        wait_for("the failure", lambda: any(trial["failure"] for trial in trials(journal)), processes)
        wait_for("a trial after it", lambda: not trials(journal)[-1]["failure"], processes)
        processes[0].send_signal(signal.SIGINT)
        (status, _, err), other = ends(processes)
    assert status == 130, err
    assert other[0] == 0
    (failed,) = (found for found in run_file.load(file).measurements if found.failure)
    assert failed.failure is not None
    assert failed.failure.rank == 1
