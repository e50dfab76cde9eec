"""Ranks on simulated GPUs: each finds its own, and what does not fit is refused before anything is timed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.distributed.processes import as_mpirun, ends, free_port, started
from tests.native.fakes import Fakes

# Simulated GPUs cannot reach another process's, so nothing is timed here: tests/gpu/test_world.py does that.


@pytest.mark.parametrize(
    ("title", "gpus", "visible", "message"),
    [
        (
            "both ranks were given the same GPU",
            4,
            ("2", "2"),
            "ranks 0 and 1 on .* all have the same GPU, GPU-fa4e0200-.*: start one process for each GPU",
        ),
        (
            "more ranks than GPUs",
            2,
            (None, None, None),
            "Open MPI started 3 processes for 2 GPUs",
        ),
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
