"""One sweep: warm up, audit, then visit every cell in random order until it is settled or the time is up."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from collbench.backends.protocol import Backend, Step, Timing, time_step
from collbench.measure.audit import audit, distrusted
from collbench.measure.plan import Plan
from collbench.measure.stopping import stop_reason
from collbench.model import Cell, Measurement, Run, Sample, StopReason

# METHOD.md §2.1: warm until recent blocks drift by less than 1 %; 8 tries bound a machine too noisy to settle.
_DRIFT, _WARM_TRIES = 0.01, 8
_WARM_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure: visits for every cell, more for those that decide, and seconds for all of it.

    A cell that is unsettled after its visits gets more until the time is up; `screening` visits are always made.
    `block_bytes` is how much one timed block of copies moves.
    """

    screening: int
    deciding: int
    budget_seconds: float
    block_bytes: int


# METHOD.md §4: three visits screen, at least five publish a tier; with seven the medians of six pairs on
# 4 × H200 stay within the 2 % of a tie. Blocks: on GPUs 256 MiB takes 0.7 ms at 400 GB/s, long against
# the event clock's 0.5 µs; cores are fifty times slower.
EFFORTS = {
    "cuda": Effort(screening=3, deciding=7, budget_seconds=5.0, block_bytes=256 * 2**20),
    "host": Effort(screening=3, deciding=7, budget_seconds=8.0, block_bytes=4 * 2**20),
}


@dataclass(frozen=True, slots=True)
class Watcher:
    """Whom to tell. `progress(done, total)` counts steps of the present plan; `finished_round` may save the run."""

    progress: Callable[[int, int], None]
    finished_round: Callable[[], None]


def sweep(backend: Backend, plan: Plan, run: Run, effort: Effort, rng: random.Random, watcher: Watcher) -> None:
    """Measure the plan into `run`, which holds all finished visits at any moment, also when this is interrupted."""
    begin = time.monotonic()
    paths = {frozenset(path.devices): path for path in run.paths}
    try:
        warm_up(backend, plan, rng)
        run.audits.extend(audit(backend, plan, paths, rng))
        plan = distrusted(plan, run.audits, paths)
        _visit(backend, plan, run, effort, rng, watcher, deadline=begin + effort.budget_seconds)
        run.complete = True
    finally:
        place = {cell: number for number, cell in enumerate(plan.cells())}
        run.measurements.sort(key=lambda found: place[found.cell])
        for found in run.measurements:
            found.stop = found.stop or stop_reason(found) or StopReason.INTERRUPTED
        run.seconds = round(time.monotonic() - begin, 3)


def warm_up(backend: Backend, plan: Plan, rng: random.Random) -> None:
    """Repeat each operation in each of its rounds until three visits in a row agree within 1 %."""
    for operation in plan.groups:
        size = max((s for s in plan.sizes[operation] if s <= _WARM_BYTES), default=plan.sizes[operation][0])
        for together in plan.rounds(operation, rng):
            recent: list[float] = []
            for _ in range(_WARM_TRIES):
                recent = [
                    *recent[-2:],
                    float(np.median(time_step(backend, plan.step(operation, together, size)).seconds)),
                ]
                if len(recent) == 3 and max(recent) / min(recent) - 1 < _DRIFT:
                    break


def _visit(
    backend: Backend, plan: Plan, run: Run, effort: Effort, rng: random.Random, watcher: Watcher, deadline: float
) -> None:
    """Give every cell the visits that it is owed, and until the deadline the unsettled ones more."""
    results: dict[Cell, Measurement] = {}
    owed = {cell: effort.deciding if plan.decides(cell) else effort.screening for cell in plan.cells()}
    wanted, done, total = set(owed), 0, 0
    while wanted:
        steps = plan.passes(rng, wanted, first=not results)
        total = max(total, done + len(steps) * (1 if results else effort.screening))
        for step in steps:
            cells = [Cell(step.operation, members, step.size_bytes) for members in step.groups]
            if time.monotonic() > deadline and not any(owed[cell] > 0 for cell in cells):
                continue
            _record(results, run, step, time_step(backend, step))
            done += 1
            for cell in cells:
                owed[cell] -= 1
            watcher.progress(done, max(done, total))
            watcher.finished_round()
        late = time.monotonic() > deadline
        wanted = {cell for cell in wanted if owed[cell] > 0 or not (late or stop_reason(results[cell]))}
    for found in results.values():
        found.stop = stop_reason(found) or StopReason.BUDGET


def _record(results: dict[Cell, Measurement], run: Run, step: Step, timing: Timing) -> None:
    """Add the visit's samples; a cell enters the run with its first one."""
    for place, members in enumerate(step.groups):
        cell = Cell(step.operation, members, step.size_bytes)
        if cell not in results:
            results[cell] = Measurement(cell)
            run.measurements.append(results[cell])
        sample = Sample(
            seconds=tuple(map(_readable, timing.seconds[place])),
            iterations=step.iterations,
            concurrent=len(step.groups) > 1,
            launch_seconds=_readable(timing.launch_seconds[place]) if timing.launch_seconds else None,
        )
        results[cell].samples.append(sample)


def _readable(seconds: float) -> float:
    """Return the time in seven digits: more than any of the clocks has, and short in the file."""
    return float(f"{seconds:.7g}")
