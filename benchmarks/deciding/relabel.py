"""The same run with its GPUs in another order: tiers, verdicts and choices must be the same GPUs'."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from collbench.analysis import diagnose
from collbench.analysis.select import choose
from collbench.analysis.tiers import rank_links
from collbench.model.run import Run
from tests.sim import random_fabrics

from .bench import LARGE, Asked, Part, Row, drawn_seed, measured, rng_of, share, spread, survey

RUNS = 100
_PART = 7


@dataclass(frozen=True, slots=True)
class Trial:
    """One run and a permutation of its GPUs: whether each kind of answer moved with them."""

    run: int
    fabric: str
    gpus: int
    tiers: bool
    verdicts: bool
    choices: bool


def run(asked: Asked) -> Part:
    """Return the share of runs whose answers are permuted with their GPUs."""
    every = spread(partial(trial, asked.seed), range(asked.runs or RUNS), asked.jobs, chunk=4)
    rows = []
    for name, what in (("tiers", "tiers"), ("verdicts", "verdicts"), ("choices", "choices of every k")):
        same = sum(getattr(t, name) for t in every)
        words = f"relabelled GPUs, {what}: the same GPUs"
        rows.append(Row(words, share(same, len(every)), "always", same == len(every)))
    return Part(rows, every)


def trial(seed: int, number: int) -> Trial:
    """Return whether tiers, verdicts and choices of one machine follow a permutation of its GPUs."""
    rng = rng_of(seed, _PART, number)
    fabric = random_fabrics.make(rng)
    n = len(fabric.gpus)
    one = measured(fabric, survey(), drawn_seed(rng))
    to = tuple(int(index) for index in rng.permutation(n))
    other = permuted(one, to, rng)
    stay = tuple(range(n))
    return Trial(
        run=number,
        fabric=fabric.name,
        gpus=n,
        tiers=_moved_tiers(one, to) == _moved_tiers(other, stay),
        verdicts=_moved_verdicts(one, to) == _moved_verdicts(other, stay),
        choices=all(_moved(choose(one, k).members, to) == set(choose(other, k).members) for k in range(1, n)),
    )


def permuted(run: Run, to: tuple[int, ...], rng: np.random.Generator) -> Run:
    """Return the run with each position p at to[p], and its measurements in another order."""
    places = sorted(range(len(to)), key=lambda old: to[old])
    measurements = []
    for index in rng.permutation(len(run.measurements)):
        found = run.measurements[int(index)]
        members = tuple(to[member] for member in found.point.members)
        if found.point.operation.is_collective:
            members = tuple(sorted(members))
        measurements.append(replace(found, point=replace(found.point, members=members)))
    paths = [replace(path, devices=tuple(sorted(to[d] for d in path.devices))) for path in run.paths]  # type: ignore[arg-type]
    return replace(
        run,
        devices=tuple(run.devices[old] for old in places),
        paths=tuple(sorted(paths, key=lambda path: path.devices)),
        measurements=measurements,
        interference_checks=[
            replace(check, members=tuple(to[m] for m in check.members)) for check in run.interference_checks
        ],
        health_before=tuple(run.health_before[old] for old in places),
        health_after=tuple(run.health_after[old] for old in places),
    )


def _moved(members: tuple[int, ...], to: tuple[int, ...]) -> set[int]:
    return {to[member] for member in members}


def _moved_tiers(run: Run, to: tuple[int, ...]) -> set[tuple[object, ...]]:
    works = {
        (found.point.work, found.point.size_bytes) for found in run.measurements if found.point.size_bytes == LARGE
    }
    found: set[tuple[object, ...]] = set()
    for work, size in works:
        ranking = rank_links(run, work, size)
        for standing in ranking.standings if ranking else ():
            members = tuple(to[member] for member in standing.members)
            key = frozenset(members) if work.operation.is_collective else members
            found.add((work, key, standing.tier, standing.relation))
    return found


def _moved_verdicts(run: Run, to: tuple[int, ...]) -> set[tuple[object, ...]]:
    return {(v.kind, v.severity, frozenset(to[member] for member in v.members)) for v in diagnose.judge(run)}
