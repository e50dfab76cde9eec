"""Ranks on simulated GPUs: each finds its own, and what does not fit is refused before anything is timed."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from collbench.machine.launchers import LaunchEnvironment
from collbench.machine.nvml import Nvml
from collbench.ranks import rank_worker
from tests.machine import machines
from tests.native.fakes import Fakes
from tests.ranks.processes import as_mpirun, ends, free_port, started

# Simulated GPUs cannot reach another process's, so nothing is timed here: tests/gpu/test_world.py does that.


@pytest.mark.parametrize(
    ("title", "gpus", "visible", "message"),
    [
        ("more ranks than GPUs", 2, (None, None, None), "Open MPI started 3 processes for 2 GPUs"),
    ],
)
def test_each_rank_needs_a_gpu_of_its_own(
    title: str, gpus: int, visible: tuple[str | None, ...], message: str, fakes: Fakes, tmp_path: Path
) -> None:
    arguments = ["allreduce", "--backend", "cuda", "--sizes", "8"]
    port = free_port()
    simulated: dict[str, object] = {**fakes.environment(gpus=gpus), "COLLBENCH_NCCL": fakes.nccl}
    environments = [
        simulated | as_mpirun(rank, len(visible), port) | ({} if shown is None else {"CUDA_VISIBLE_DEVICES": shown})
        for rank, shown in enumerate(visible)
    ]
    with started(tmp_path, arguments, environments) as processes:
        (status, out, err), *other_outputs = ends(processes)
    assert (status, out) == (2, ""), err
    assert err.count("\n") == 1
    assert re.search(message, err), err
    assert other_outputs == [(0, "", "")] * len(other_outputs)


class IdleWorker:
    """The GPU worker of a rank, which shows two GPUs and does nothing on them."""

    process_ids = (77,)

    def start(self) -> None:
        pass

    def reap(self) -> None:
        pass

    def list_gpus(self) -> tuple[str, ...]:
        return tuple(gpu.uuid for gpu in machines.h200x4().gpus)


def test_a_rank_knows_what_was_on_its_gpu_before_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Else a process that has only opened a GPU would count as a busy one, in runs of several processes alone."""
    machine = machines.h200x4()
    monkeypatch.setattr(rank_worker, "Nvml", lambda: Nvml(machine, tmp_path))
    monkeypatch.setattr(rank_worker, "IsolatedBackend", IdleWorker)
    launch = LaunchEnvironment(1, 2, 1, 2, "127.0.0.1", 29500, "torchrun")
    worker = rank_worker.CudaRankWorker(launch, None, None)  # type: ignore[arg-type]  # no store: it opens no world
    assert (worker.health(), worker.flags()) == ((), ()), "nothing is known before it has found its GPU"
    used = 600 * 2**20
    monkeypatch.setattr(
        machine,
        "nvmlDeviceGetMemoryInfo",
        lambda gpu, _version=None: SimpleNamespace(total=gpu.memory_bytes, used=used),
    )
    assert worker.introduce().device.uuid == machine.gpus[1].uuid
    used = 20 * 2**30
    (state,) = worker.health()
    assert (state.others_memory, state.memory_used) == (600 * 2**20, 20 * 2**30)
