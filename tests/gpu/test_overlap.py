"""A collective concurrent with compute, on real GPUs with torch's NCCL: verified, covered, and its processes end."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from collbench.judge import stats
from collbench.model.operations import Operation, Variant
from collbench.model.run import Run
from collbench.overlaps.command import request_of
from collbench.overlaps.measure import OverlapOpened
from collbench.overlaps.results import OPERATIONS, Compute, ComputeKind, Overlap, Priority, overlaps_of
from collbench.overlaps.view import summarize
from collbench.runfile import run_file
from tests.cli.program import collbench
from tests.gpu.machine import need_gpus

torch = pytest.importorskip("torch")
need_gpus(2)
if not torch.version.cuda:
    pytest.skip("needs a torch with CUDA", allow_module_level=True)
SEED = ("--seed", "1", "--devices", "0,1", "--backend", "cuda")
REQUEST = {
    "operation": Operation.ALLREDUCE,
    "devices": "0,1",
    "backend": "cuda",
    "fabric": None,
    "computes": None,
    "priority": "normal",
    "ctas": None,
    "trials": None,
    "seed": 1,
    "force": False,
}


def measured_run(folder: Path, *arguments: str) -> Run:
    file = folder / "run.json"
    command = collbench(*arguments, *SEED, "-o", str(file), "--force")
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    return run_file.load(file)


@pytest.fixture(scope="module")
def workers() -> Iterator[OverlapOpened]:
    """Start workers for the tests that ask nothing of their start: it takes longer than what one of them measures."""
    opened = request_of({**REQUEST, "sizes": None}, ("overlap",)).open()
    try:
        yield opened
    finally:
        opened.close()


def measured(workers: OverlapOpened, **options: object) -> list[Overlap]:
    request = request_of({**REQUEST, **options}, ("overlap",))
    run = request.begun_run(workers)
    request.measure(workers, run, saved=lambda: None, progress=lambda *_: None)
    assert run.complete
    return overlaps_of(run)


def test_the_defaults_are_verified_and_covered(tmp_path: Path) -> None:
    run = measured_run(tmp_path, "overlap")
    assert run.complete
    assert len(overlaps_of(run)) == 4
    assert run.machine.nccl
    for overlap in overlaps_of(run):
        assert (overlap.wrong, overlap.wrong_compute, overlap.failure) == (0, 0, None)
        assert len(overlap.trials) == run.settings.trials
        assert all(len(trial.beside_calls) >= 6 for trial in overlap.trials)
        summary = summarize(overlap)
        assert summary.collective_factor.value > 0.95
        assert summary.compute_factor.value > 0.9
        assert summary.of_max.value > 0.95
        assert summary.of_sum.value < 1.2


def test_isolated_it_takes_as_long_as_the_allreduce_command_measures(tmp_path: Path) -> None:
    sizes = ("--sizes", "64M,256M")
    overlap_summaries = {
        overlap.size_bytes: summarize(overlap) for overlap in overlaps_of(measured_run(tmp_path, "overlap", *sizes))
    }
    collective_run = measured_run(tmp_path, "allreduce", *sizes, "--dtype", "bfloat16", "--in-place")
    for measurement in collective_run.measured(Variant.IN_PLACE):
        # torch launches each call, as the ordinary command's launch loop does; replays of a graph are faster.
        loop = stats.summarize(measurement).launch_seconds
        assert loop is not None
        assert overlap_summaries[measurement.point.size_bytes].collective_alone.value == pytest.approx(loop, rel=0.02)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_collective_with_every_compute(workers: OverlapOpened, operation: Operation) -> None:
    computes = (Compute(ComputeKind.GEMM, 4096), Compute(ComputeKind.MEMORY, 256))
    overlaps = measured(workers, operation=operation, sizes=(2**20, 2**26), computes=computes, trials=3)
    assert len(overlaps) == 4
    for overlap in overlaps:
        assert (overlap.failure, overlap.wrong, overlap.wrong_compute, len(overlap.trials)) == (None, 0, 0, 3)


def test_ctas_and_priority_have_their_effect(workers: OverlapOpened) -> None:
    isolated_seconds = {
        (overlap.priority, overlap.ctas): summarize(overlap).collective_alone.value
        for overlap in measured(workers, sizes=(2**26,), priority="both", ctas=(1, 16))
    }
    assert isolated_seconds[Priority.NORMAL, 1] > 1.5 * isolated_seconds[Priority.NORMAL, 16]
    assert isolated_seconds[Priority.HIGH, 16] == pytest.approx(isolated_seconds[Priority.NORMAL, 16], rel=0.05)


def test_a_long_collective_is_measured_with_many_short_products(workers: OverlapOpened) -> None:
    """Hundreds of products of 2048³ in each of twenty rounds: more launches than a stream takes ahead."""
    (overlap,) = measured(workers, sizes=(2**30,), computes=(Compute(ComputeKind.GEMM, 2048),), trials=2)
    assert (overlap.failure, overlap.wrong, overlap.wrong_compute) == (None, 0, 0)
    assert len(overlap.trials) == 2
