"""The visits of a sweep: who is still owed one, what each brought, and what a failed one costs."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from collbench.backends.protocol import Backend, Step, Timing, sound, time_step
from collbench.errors import BackendError, FailureKind, StepFailed
from collbench.machine.impossible import Check
from collbench.measure.deciding import undecided
from collbench.measure.effort import Effort
from collbench.measure.plan import Plan, cell_of
from collbench.measure.stopping import stop_reason
from collbench.model import Cell, Flag, Measurement, Run, Sample, StopReason

_SETTLED = (StopReason.PRECISION, StopReason.NOISE, StopReason.BUDGET)
# One stuck link costs its cell. When all copies that are tried fail, or all collectives, trying on is no use for them;
# an NCCL that does not start says nothing of copies.
_FAILURES_IN_A_ROW = 4
# What noisy deciding cells may take beyond the budget, as a share of it: 0.25 s on GPUs.
_FOR_DECIDING = 0.1


@dataclass(frozen=True, slots=True)
class Watcher:
    """Whom to tell. `progress(done, total)` counts steps of the present plan; `finished(measurement)` may journal it.

    `flags(members)` returns what is wrong with these devices right now, for the samples just taken. `clock` tells the
    seconds that budgets are about; a simulated machine has its own.
    """

    progress: Callable[[int, int], None]
    finished: Callable[[Measurement], None]
    flags: Callable[[tuple[int, ...]], tuple[Flag, ...]] = lambda _members: ()
    clock: Callable[[], float] = time.monotonic


class Visits:
    """The state of a sweep between steps. `wanted` are the cells that need more; `timed_seconds` lay in timed regions.

    `plan` may be replaced by one that isolates more before `make` is called.
    """

    def __init__(self, plan: Plan, run: Run, effort: Effort, watcher: Watcher) -> None:
        """Take up where `run` stands: settled cells are left alone, failed and interrupted ones get another chance."""
        self.plan = plan
        self._run, self._effort, self._watcher = run, effort, watcher
        self._check = Check(run)  # by the labels: what copies show beside them is known at the end of a sweep
        self._results = {found.cell: found for found in run.measurements}
        self._owed: dict[Cell, int] = {}
        for cell in plan.cells():
            found = self._results.get(cell)
            if found is None or found.stop not in _SETTLED:
                visits = effort.deciding if plan.decides(cell) else effort.screening
                self._owed[cell] = max(0, visits - (len(found.samples) if found else 0))
        for found in run.measurements:
            if found.stop not in _SETTLED:
                found.stop, found.failure, found.failure_kind = None, "", None
        self.wanted = set(self._owed)
        self.timed_seconds = 0.0
        self._failures = {True: 0, False: 0}  # in a row, by whether they are collectives
        self._hopeless: set[bool] = set()
        self._last: float | None = None  # by the clock: when the deciding cells get no more visits than they are owed

    def make(self, backend: Backend, rng: random.Random, deadline: float) -> None:
        """Give every cell the visits that it is owed, and until the deadline (by the clock) the unsettled ones more."""
        first, done, total = True, 0, 0
        while self.wanted:
            steps = self.plan.passes(rng, self.wanted)
            total = max(total, done + len(steps) * (self._effort.screening if first else 1))
            for step, outcome in backend.time_steps(self._due(steps, deadline)):
                self._take(backend, step, outcome)
                done += 1
                self._watcher.progress(done, max(done, total))
            first = False
            self._dismiss(late=self._watcher.clock() > deadline)
            self._owe_deciding(deadline)
        for found in self._results.values():
            found.stop = found.stop or stop_reason(found, self._effort.precision) or StopReason.BUDGET

    def _due(self, steps: list[Step], deadline: float) -> Iterator[Step]:
        """Yield the steps that are owed or that time allows; asked for shortly before each is sent."""
        for step in steps:
            if step.operation.is_collective in self._hopeless:
                continue
            if self._watcher.clock() <= deadline or any(self._owed[cell] > 0 for cell in cells_of(step)):
                yield step

    def _dismiss(self, *, late: bool) -> None:
        """Keep only the cells that are owed visits, or unsettled while there is time."""
        self.wanted = {
            cell
            for cell in self.wanted
            if not (self._results[cell].failure or cell.operation.is_collective in self._hopeless)
            and (self._owed[cell] > 0 or not (late or stop_reason(self._results[cell], self._effort.precision)))
        }

    def _owe_deciding(self, deadline: float) -> None:
        """Owe the cells that decide one more visit where noise would hide a slow pair; soon after the deadline none."""
        if self._effort.deciding == self._effort.screening or any(self._owed[cell] > 0 for cell in self.wanted):
            return
        now = self._watcher.clock()
        self._last = self._last or max(deadline, now) + _FOR_DECIDING * self._effort.budget_seconds
        deciding = [self._results[cell] for cell in self._owed if self.plan.decides(cell) and cell in self._results]
        hopeful = [m for m in deciding if not m.failure and m.cell.operation.is_collective not in self._hopeless]
        for cell in undecided(hopeful, self._run.paths) if now < self._last else ():
            self._owed[cell] = 1
            self.wanted.add(cell)

    def _take(self, backend: Backend, step: Step, outcome: Timing | StepFailed) -> None:
        """Record what a step brought. A failed step of several groups is tried again, each alone, to find the cause."""
        outcome = sound(outcome)
        if isinstance(outcome, Timing):
            self._failures[step.operation.is_collective] = 0
            self._record(step, outcome, concurrent=len(step.groups) > 1)
        elif len(step.groups) > 1 and not self.plan.together:
            for members in step.groups:
                alone = replace(step, groups=(members,))
                try:
                    self._take(backend, alone, time_step(backend, alone))
                except StepFailed as error:
                    self._take(backend, alone, error)
        else:
            self._give_up(step, outcome)

    def _give_up(self, step: Step, error: StepFailed) -> None:
        for cell in cells_of(step):
            self._fail(cell, str(error), error.kind)
        kind = step.operation.is_collective
        self._failures[kind] += 1
        if self._failures[kind] >= _FAILURES_IN_A_ROW and kind not in self._hopeless:
            self._give_up_all(kind, f"{_FAILURES_IN_A_ROW} cells in a row failed; the last: {error}", error.kind)

    def _give_up_all(self, kind: bool, reason: str, how: FailureKind) -> None:
        """Leave collectives (True), or all others, as they are. Raises BackendError where nothing else is wanted."""
        self._hopeless.add(kind)
        if all(cell.operation.is_collective in self._hopeless for cell in self.wanted):
            raise BackendError(f"measuring stops, as {reason}", how)
        for cell in self.plan.cells():
            if cell.operation.is_collective is kind and self._owed.get(cell, 0) > 0:
                self._fail(cell, f"not tried, as {reason}", FailureKind.UNTRIED)

    def _fail(self, cell: Cell, reason: str, kind: FailureKind) -> None:
        found = self._found(cell)
        if not found.failure:
            found.stop, found.failure, found.failure_kind = StopReason.FAILED, reason, kind
            self._watcher.finished(found)

    def _record(self, step: Step, timing: Timing, *, concurrent: bool) -> None:
        """Add the visit's samples; a cell enters the run with its first one."""
        flags = self._watcher.flags(tuple(member for members in step.groups for member in members))
        self.timed_seconds += timing.region_seconds(step)
        for place, cell in enumerate(cells_of(step)):
            found = self._found(cell)
            coverage = timing.coverage[place] if timing.coverage else None
            found.wrong = 0 if step.verify and step.work.verifiable else None
            sample = Sample(
                seconds=tuple(map(_readable, timing.seconds[place])),
                iterations=step.iterations,
                concurrent=concurrent,
                launch_seconds=_readable(timing.launch_seconds[place]) if timing.launch_seconds else None,
                flags=flags,
                moved_bytes=coverage.moved if coverage else None,
                verified_bytes=coverage.verified if coverage else None,
            )
            found.samples.append(self._check.marked(cell, sample))
            self._owed[cell] -= 1
            self._watcher.finished(found)

    def _found(self, cell: Cell) -> Measurement:
        if cell not in self._results:
            self._results[cell] = Measurement(cell)
            self._run.measurements.append(self._results[cell])
        return self._results[cell]


def cells_of(step: Step) -> list[Cell]:
    """Return the cells that a step visits, in the order of its groups."""
    return [cell_of(step.work, members, step.size_bytes) for members in step.groups]


def _readable(seconds: float) -> float:
    """Return the time in seven digits: more than any of the clocks has, and short in the file."""
    return float(f"{seconds:.7g}")
