"""One sweep: warm up, audit, then visit every cell in random order until it is settled or the time is up."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import numpy as np

from collbench.backends.protocol import Backend, time_step
from collbench.errors import StepFailed
from collbench.machine.impossible import marked
from collbench.measure.audit import audit, distrusted
from collbench.measure.effort import Effort
from collbench.measure.plan import Members, Plan
from collbench.measure.stopping import stop_reason
from collbench.measure.visits import Visits, Watcher
from collbench.model import NCCL_START, Run, StopReason
from collbench.operations import Work

# METHOD.md §2.1: warm until recent blocks drift by less than 1 %; 8 tries bound a machine too noisy to settle.
_DRIFT, _WARM_TRIES = 0.01, 8
_WARM_BYTES = 16 * 2**20


def sweep(backend: Backend, plan: Plan, run: Run, effort: Effort, rng: random.Random, watcher: Watcher) -> None:
    """Measure the plan into `run`, which holds all finished visits at any moment, also when this is interrupted.

    Cells that `run` has settled already are not measured again. Raises BackendError once nothing works any more.
    """
    clock, before = watcher.clock, run.seconds
    with _phase(run, NCCL_START, clock):
        backend.ready()
    begin = clock()
    paths = {frozenset(path.devices): path for path in run.paths}
    visits = Visits(plan, run, effort, watcher)
    try:
        if visits.wanted:
            with _phase(run, "warm-up", clock):
                warm_up(backend, plan, rng)
            with _phase(run, "audit", clock):
                run.audits[:], visits.timed_seconds = audit(backend, plan, paths, rng)
            visits.plan = distrusted(plan, run.audits, paths)
            with _phase(run, "visits", clock):
                visits.make(backend, rng, deadline=begin + effort.budget_seconds)
        run.complete = True
    finally:
        place = {cell: number for number, cell in enumerate(plan.cells())}
        run.measurements.sort(key=lambda found: place.get(found.cell, len(place)))
        for found in run.measurements:
            found.stop = found.stop or stop_reason(found, effort.precision) or StopReason.INTERRUPTED
        marked(run)
        run.phases["timed"] = round(run.phases.get("timed", 0.0) + visits.timed_seconds, 6)
        run.seconds = round(before + clock() - begin, 3)


def warm_up(backend: Backend, plan: Plan, rng: random.Random) -> None:
    """Repeat each operation in each of its rounds until three visits in a row agree within 1 %.

    A step that fails ends its work's warm-up, for each may take a watchdog's time; the cell's own visit records why.
    """
    for work in plan.groups:
        size = max((s for s in plan.sizes[work] if s <= _WARM_BYTES), default=plan.sizes[work][0])
        with suppress(StepFailed):
            for together in plan.rounds(work, rng):
                _warm_up(backend, plan, work, together, size)


def _warm_up(backend: Backend, plan: Plan, work: Work, together: list[Members], size: int) -> None:
    recent: list[float] = []
    for _ in range(_WARM_TRIES):
        timing = time_step(backend, plan.step(work, together, size))
        recent = [*recent[-2:], float(np.median(timing.seconds))]
        if len(recent) == 3 and max(recent) / min(recent) - 1 < _DRIFT:
            return


@contextmanager
def _phase(run: Run, name: str, clock: Callable[[], float]) -> Iterator[None]:
    """Add the seconds inside to the run's phase `name`."""
    begin = clock()
    try:
        yield
    finally:
        run.phases[name] = round(run.phases.get(name, 0.0) + clock() - begin, 3)
