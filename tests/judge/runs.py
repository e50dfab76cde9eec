"""Runs to compare: what was measured before, and the same with changes."""

from __future__ import annotations

import gzip
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import permutations
from pathlib import Path as File

import numpy as np
from numpy.typing import NDArray

from collbench.judge.compare import Change, Comparison, compare
from collbench.judge.point_noise import note_noise
from collbench.model.operations import Operation
from collbench.model.run import Measurement, Path, Run, Sample
from collbench.runfile import run_file
from tests.builders import gpus, measured, noisy, run_of

RESULTS = File(__file__).parents[2] / "benchmarks" / "results"
FAIL = 0.05
SIZES = (2**22, 2**26, 2**30)


def copies(factor: Callable[[int, int], float] = lambda a, b: 1.0, seed: int = 0, noise: float = 0.003) -> Run:
    """Return a run of copies between four GPUs at three sizes, 400 GB/s times a factor of each link."""
    found = [
        measured(Operation.CE_WRITE, (a, b), noisy(400 * factor(a, b), noise, size + 64 * a + 16 * b + seed), size=size)
        for size in SIZES
        for a, b in permutations(range(4), 2)
    ]
    return run_of(gpus(4), found)


def change_of(
    base: float | Sequence[float],
    new: float | Sequence[float],
    size: int = 2**30,
    work: Operation = Operation.CE_WRITE,
    **more: object,
) -> Change:
    """Return what became of one data point by its rates of each trial, GB/s, among four that stayed as they were."""
    others = [measured(work, (a, 3), noisy(400, 0.002, a + 7, 7), size=size) for a in range(3)]
    runs = [run_of(gpus(4), [*others, measured(work, (0, 1), rates, size=size)]) for rates in (base, new)]
    found = compare(replace(runs[0], **more), replace(runs[1], **more), FAIL)  # type: ignore[arg-type]
    return next(change for change in found.changes if change.key.members == (0, 1))


COPIES = (Operation.CE_WRITE, Operation.CE_READ, Operation.SM_WRITE, Operation.SM_READ)


def drawn(logs: NDArray[np.float64], count: int, links: Sequence[Path], size: int = 2**30) -> Run:
    """Return copies between so many GPUs, at 300 GB/s times these logs: shape (kinds of copies, links, trials)."""
    found = [
        measured(operation, link, (300 * np.exp(logs[at, number])).tolist(), size)
        for at, operation in enumerate(COPIES[: len(logs)])
        for number, link in enumerate(permutations(range(count), 2))
    ]
    run = run_of(gpus(count), found, links)
    note_noise(run)
    return run


def scaled(run: Run, factor: float) -> Run:
    """Return the run with every time multiplied."""
    return replace(run, measurements=[_scaled(found, factor) for found in run.measurements])


def _scaled(found: Measurement, factor: float) -> Measurement:
    samples = [
        Sample(tuple(s * factor for s in sample.seconds), sample.iterations, sample.concurrent, sample.launch_seconds)
        for sample in found.samples
    ]
    return Measurement(found.point, samples, found.stop)


def recorded(name: str) -> Run:
    """Return a committed run: a path below benchmarks/results, gzipped, or "archive.tar.gz:member"."""
    return run_file.loads(recorded_text(name), name)


@cache
def recorded_text(name: str) -> str:
    """Return the text of such a run."""
    path, _, member = name.partition(":")
    if member:
        with tarfile.open(RESULTS / path) as archive:
            inside = archive.extractfile(next(one for one in archive.getnames() if one.endswith(member)))
            assert inside is not None
            return inside.read().decode()
    data = (RESULTS / path).read_bytes()
    return (gzip.decompress(data) if path.endswith(".gz") else data).decode()


def reported(comparison: Comparison) -> set[tuple[str, str]]:
    """Return which works became better or worse, as (work, verdict)."""
    points = {(change.key.work, change.verdict.value) for change in comparison.changes}
    return {(work, verdict) for work, verdict in points if verdict in ("better", "worse")}
