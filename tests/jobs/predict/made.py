"""Runs and questions for the tests of predictions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations
from typing import Any

from collbench.jobs.predict import contention
from collbench.jobs.predict.networks import Network, Unit
from collbench.jobs.predict.predict import Prediction, Predictor, Question
from collbench.jobs.predict.timing import gather
from collbench.model.operations import Operation, Work
from collbench.model.run import Compute, ComputeKind, Measurement, Overlap, OverlapTrial, Run
from collbench.sim import fabrics
from tests.builders import ALL, gpus, measured, run_of
from tests.sim.made import simulate

MIB = 2**20
GEMM = Compute(ComputeKind.GEMM, 8192)
SIZES = (8, 2**10, 2**16, MIB, 2 * MIB, 16 * MIB, 256 * MIB, 2**30)
# Four blocks of 4 MiB in fp32, a root of 2 MiB: small enough for sums by hand.
SMALL = Network("small", Unit((2**19,), 0), (Unit((2**18, 2**18, 2**19), 2**20),) * 4, Unit((), 0), "made for tests")


def curve(
    operation: Operation, members: Sequence[int], gbs: float, latency: float = 5e-6, sizes: Iterable[int] = SIZES
) -> list[Measurement]:
    """Return data points of an operation that takes `latency` seconds and then runs at an algbw of `gbs`."""
    return [measured(operation, members, size / (latency + size / gbs / 1e9) / 1e9, size, trials=3) for size in sizes]


def pairs(rates: Mapping[tuple[int, int], float], count: int, other: float = 100.0) -> Run:
    """Return a run of all-reduce curves of every pair, at `other` GB/s where `rates` says nothing."""
    points = [
        point
        for pair in combinations(range(count), 2)
        for point in curve(Operation.ALLREDUCE, pair, rates.get(pair, other))
    ]
    return run_of(gpus(count), points)


@cache
def simulated(fabric: str, *operations: Operation, together: bool = False, seed: int = 7) -> Run:
    """Return a simulated run of collectives on every pair, or on all GPUs together; all-reduce where none is named."""
    works = tuple(Work(operation) for operation in operations or (Operation.ALLREDUCE,))
    request = replace(
        ALL, backend="sim", sizes=SIZES, copies=(), collectives=works, pairs=not together, seed=seed, fabric=fabric
    )
    run = simulate(fabrics.load(fabric), request, seed)
    run.complete = True
    run.started = "2026-01-02T03:04:05Z"
    return run


def overlapping(
    factors: Mapping[int, tuple[float, float]],
    operation: Operation = Operation.ALLREDUCE,
    members: Sequence[int] = (0, 1),
    count: int = 4,
    compute: Compute = GEMM,
    trials: int = 3,
    spread: float = 0.0,
) -> Run:
    """Return a run of overlap: by size, how many times as long the collective takes, and compute.

    Trials differ by `spread`, the middle one has the factor itself.
    """
    run = run_of(gpus(count), [])
    for size, (collective, beside) in factors.items():
        found = Overlap(Work(operation), tuple(members), size, compute, wrong=0, wrong_compute=0)
        for number in range(trials):
            drift = 1 + spread * (number - trials // 2)
            found.trials.append(_overlap_trial(collective * drift, beside * drift, len(members)))
        run.overlaps.append(found)
    return run


def _overlap_trial(collective: float, compute: float, ranks: int) -> OverlapTrial:
    every = (1e-3,) * ranks
    slower, computes = (collective * 1e-3,) * ranks, (compute * 1e-3,) * ranks
    return OverlapTrial(every, every, slower, computes, (1e-3,), every, every, every, 20, 20, 15)


def question(network: Network = SMALL, strategy: str = "ddp", gpus: int = 2, **changes: Any) -> Question:
    """Return a question about one strategy on so many GPUs, in fp32 where nothing else is said."""
    asked = Question(network, (strategy,), (gpus,), parameter_bytes=4, gradient_bytes=4)
    return replace(asked, **changes)


def answer(asked: Question, *runs: Run, overlaps: Sequence[Run] = ()) -> Prediction:
    """Return the prediction from runs, and from runs of overlap."""
    evidence = gather([(f"{number}.json", run) for number, run in enumerate(runs)])
    curves = contention.gather(evidence, [(f"overlap{number}.json", run) for number, run in enumerate(overlaps)])
    return Predictor(evidence, curves).predict(asked)
