"""Runs for the tests of predictions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations

from collbench.jobs.predict.links import Links
from collbench.model.operations import Operation, Work
from collbench.model.run import Measurement, Run
from collbench.sim import fabrics
from tests.builders import ALL, gpus, measured, run_of
from tests.sim.made import simulate

MIB = 2**20
SIZES = (8, 2**10, 2**16, MIB, 2 * MIB, 16 * MIB, 256 * MIB, 2**30)


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


def links_of(*runs: Run) -> Links:
    """Return what runs say of links."""
    return Links([(f"{number}.json", run) for number, run in enumerate(runs)])


@cache
def simulated(fabric: str, *operations: Operation) -> Run:
    """Return a simulated run of collectives on every pair; all-reduce where none is named."""
    works = tuple(Work(operation) for operation in operations or (Operation.ALLREDUCE,))
    request = replace(ALL, backend="sim", sizes=SIZES, copies=(), collectives=works, pairs=True, seed=7, fabric=fabric)
    run = simulate(fabrics.load(fabric), request, 7)
    run.complete = True
    run.started = "2026-01-02T03:04:05Z"
    return run
