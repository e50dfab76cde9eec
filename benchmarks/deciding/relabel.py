"""The same run with its GPUs in another order: tiers, verdicts and choices must name the same GPUs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from collbench.choose.select import choose
from collbench.judge import diagnose
from collbench.judge.tiers import rank_links
from collbench.model.run import Run
from tests.sim import random_fabrics

from .bench import LARGE, Options, Part, Row, drawn_seed, map_in_order, pairs_request, share, simulated_run, trial_rng

RUNS = 100
_PART = 7


@dataclass(frozen=True, slots=True)
class Trial:
    """One run and a permutation of its GPUs: whether tiers, verdicts and choices moved with them."""

    run: int
    fabric: str
    gpus: int
    tiers: bool
    verdicts: bool
    choices: bool


def run(options: Options) -> Part:
    """Return the share of runs whose answers are permuted with their GPUs."""
    all_trials = map_in_order(partial(trial, options.seed), range(options.runs or RUNS), options.jobs, chunk=4)
    rows = []
    for name, what in (("tiers", "tiers"), ("verdicts", "verdicts"), ("choices", "choices of every k")):
        same = sum(getattr(t, name) for t in all_trials)
        label = f"relabelled GPUs, {what}: the same GPUs"
        rows.append(Row(label, share(same, len(all_trials)), "always", same == len(all_trials)))
    return Part(rows, all_trials)


def trial(seed: int, number: int) -> Trial:
    """Return whether tiers, verdicts and choices of one machine follow a permutation of its GPUs."""
    rng = trial_rng(seed, _PART, number)
    fabric = random_fabrics.make(rng)
    gpus = len(fabric.gpus)
    run = simulated_run(fabric, pairs_request(), drawn_seed(rng))
    new_index = tuple(int(index) for index in rng.permutation(gpus))
    relabeled = permuted(run, new_index, rng)
    unchanged = tuple(range(gpus))
    return Trial(
        run=number,
        fabric=fabric.name,
        gpus=gpus,
        tiers=_moved_tiers(run, new_index) == _moved_tiers(relabeled, unchanged),
        verdicts=_moved_verdicts(run, new_index) == _moved_verdicts(relabeled, unchanged),
        choices=all(
            _moved(choose(run, k).members, new_index) == set(choose(relabeled, k).members) for k in range(1, gpus)
        ),
    )


def permuted(run: Run, new_index: tuple[int, ...], rng: np.random.Generator) -> Run:
    """Return the run with device i at new_index[i], and its measurements in random order."""
    old_indices = sorted(range(len(new_index)), key=lambda old: new_index[old])
    measurements = []
    for index in rng.permutation(len(run.measurements)):
        measurement = run.measurements[int(index)]
        members = tuple(new_index[member] for member in measurement.point.members)
        if measurement.point.operation.is_collective:
            members = tuple(sorted(members))
        measurements.append(replace(measurement, point=replace(measurement.point, members=members)))
    paths = [replace(path, devices=tuple(sorted(new_index[d] for d in path.devices))) for path in run.paths]  # type: ignore[arg-type]
    return replace(
        run,
        devices=tuple(run.devices[old] for old in old_indices),
        paths=tuple(sorted(paths, key=lambda path: path.devices)),
        measurements=measurements,
        interference_checks=[
            replace(check, members=tuple(new_index[m] for m in check.members)) for check in run.interference_checks
        ],
        health_before=tuple(run.health_before[old] for old in old_indices),
        health_after=tuple(run.health_after[old] for old in old_indices),
    )


def _moved(members: tuple[int, ...], new_index: tuple[int, ...]) -> set[int]:
    return {new_index[member] for member in members}


def _moved_tiers(run: Run, new_index: tuple[int, ...]) -> set[tuple[object, ...]]:
    works = {
        (measurement.point.work, measurement.point.size_bytes)
        for measurement in run.measurements
        if measurement.point.size_bytes == LARGE
    }
    moved: set[tuple[object, ...]] = set()
    for work, size in works:
        ranking = rank_links(run, work, size)
        for link in ranking.standings if ranking else ():
            members = tuple(new_index[member] for member in link.members)
            key = frozenset(members) if work.operation.is_collective else members
            moved.add((work, key, link.tier, link.relation))
    return moved


def _moved_verdicts(run: Run, new_index: tuple[int, ...]) -> set[tuple[object, ...]]:
    return {(v.kind, v.severity, frozenset(new_index[member] for member in v.members)) for v in diagnose.judge(run)}
