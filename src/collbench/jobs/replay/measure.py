"""Replay a recorded step: verification, the number of steps per trial, and arms that take turns."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import fmean

from collbench.jobs.replay.protocol import (
    ReplayArm,
    ReplayBackend,
    ReplayLoad,
    ReplayOpened,
    ReplayTimes,
    operation_of,
)
from collbench.jobs.replay.results import NAME, Replay, ReplayTrial
from collbench.jobs.replay.schedule import Schedule
from collbench.measurement.session import WorkersRequest
from collbench.model.errors import BackendError, DataCorruption, MachineError, WrongData, failure_of
from collbench.model.operations import Work
from collbench.model.run import CommandKind, Run

# Steps of a load: one that is long says enough, and a thousand short ones no more than twenty.
_MOST_STEPS = 20
# A trace stores every launch, and kernel times vary little.
_TRACED_STEPS = 5
# What the host needs to queue a call with its events, and for how many of them a GPU waits before the start: a stream
# has 1,024 entries, and an event or a sleep takes one.
_CALL_S, _LEAST_DELAY_S, _MOST_AHEAD = 1e-4, 2e-3, 200
# The slowest first step to expect, in B/s and s: gloo on one shared core.
_SLOWEST_RATE = 20e6


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRequest(WorkersRequest):
    """What to replay: a schedule, once for each arm.

    `job` is the name of the job's file, which has `recorded_ranks`.
    """

    job: str
    recorded_ranks: int
    schedule: Schedule
    arms: tuple[ReplayArm, ...]


def begun_run(request: ReplayRequest, opened: ReplayOpened) -> Run:
    """Return the run that a request begins, with nothing measured."""
    kinds = request.schedule.kinds
    return request.begun(
        opened,
        CommandKind.REPLAY,
        operations=tuple(dict.fromkeys(operation_of(kind.operation) for kind in kinds)),
        sizes=tuple(sorted({kind.size_bytes for kind in kinds})),
        dtype="uint8",
    )


def measure(
    request: ReplayRequest,
    opened: ReplayOpened,
    run: Run,
    saved: Callable[[], None],
    progress: Callable[[int, int], None],
) -> None:
    """Measure all arms into `run`, trial by trial in turn; `saved` is called after each trial, and at any end.

    Raises MachineError if an arm does not fit, BackendError, DataCorruption.
    """
    begin = opened.clock()
    order = random.Random(request.seed)  # noqa: S311  # no secret
    arms = [
        Replay(
            job=request.job,
            members=tuple(range(len(opened.devices))),
            recorded_ranks=request.recorded_ranks,
            calls=request.schedule.kinds,
            without=arm.without,
            recorded_seconds=request.schedule.recorded_seconds,
        )
        for arm in request.arms
    ]
    replays = run.sections.setdefault(NAME, [])
    replays += arms
    loads: list[tuple[ReplayLoad, float]] = []
    try:
        for arm, backend in zip(arms, opened.worlds, strict=True):
            with _failing(arm):
                loads.append(_ready(request, arm, backend, opened.span_seconds))
        for number in range(request.trials):
            for index in order.sample(range(len(arms)), len(arms)):
                arm = arms[index]
                with _failing(arm):
                    trial = _trial(request.schedule, opened.worlds[index], *loads[index], order, traces=opened.traces)
                arm.trials.append(replace(trial, flags=opened.flags(arm.members)))
                run.seconds = opened.clock() - begin
            saved()
            progress(number + 1, request.trials)
        for arm, backend in zip(arms, opened.worlds, strict=True):
            with _failing(arm):  # again: where earlier results are delivered, this is the first that differs
                _verified(arm, backend.verify())
        run.complete = True
    finally:
        for arm in arms:
            if not arm.trials and arm.failure is None and not arm.wrong:
                replays.remove(arm)  # interrupted before its first trial
        run.seconds = opened.clock() - begin
        saved()


def _ready(request: ReplayRequest, arm: Replay, backend: ReplayBackend, span_s: float) -> tuple[ReplayLoad, float]:
    """Prepare and verify an arm, and return what `_load` returns."""
    backend.prepare(request.schedule)
    _verified(arm, backend.verify())
    schedule = request.schedule
    sent = sum(unit.size_bytes * len(schedule.groups[unit.group]) for unit in schedule.ranks[0])
    once = backend.run(ReplayLoad(1, delay_s=_LEAST_DELAY_S), schedule.pause_seconds + sent / _SLOWEST_RATE)
    return _load(schedule, max(times.step for times in once), span_s)


@contextmanager
def _failing(arm: Replay) -> Iterator[None]:
    """Record why an arm fails, which ends the run."""
    try:
        yield
    except (BackendError, MachineError) as error:
        arm.failure = failure_of(error)
        raise


def _verified(replay: Replay, wrong: int | None) -> None:
    """Record the number of wrong elements. Raises DataCorruption."""
    replay.wrong = wrong
    if wrong:
        work = Work(operation_of(replay.calls[0].operation))
        raise DataCorruption(
            f"{wrong} elements of the replayed step are not what was sent: wrong data; do not trust this machine, run "
            "'collbench check'",
            WrongData(work, replay.calls[0].size_bytes, replay.members, wrong),
        )


def _load(schedule: Schedule, step_s: float, span_s: float) -> tuple[ReplayLoad, float]:
    """Return the number of steps in a trial, and their expected time in seconds."""
    steps = max(1, min(_MOST_STEPS, math.ceil(span_s / max(step_s, 1e-6))))
    units = max(len(own) for own in schedule.ranks) * steps
    delay = _LEAST_DELAY_S + min(units, _MOST_AHEAD) * _CALL_S
    return ReplayLoad(steps, delay_s=delay), steps * step_s + delay


def _trial(
    schedule: Schedule,
    backend: ReplayBackend,
    load: ReplayLoad,
    expected_s: float,
    order: random.Random,
    *,
    traces: bool,
) -> ReplayTrial:
    """Run the step and its pauses alone, in random order; also some traced steps if possible."""
    loads = {"step": load}
    if schedule.pause_seconds > 0:
        loads["pauses"] = replace(load, calls=False)
    if traces:
        loads["traced"] = replace(load, steps=min(load.steps, _TRACED_STEPS), traced=True)
    times = {name: backend.run(loads[name], expected_s) for name in order.sample(sorted(loads), len(loads))}
    return trial_of(schedule, times["step"], times.get("pauses"), load.steps, times.get("traced", ()))


def trial_of(
    schedule: Schedule,
    step: Sequence[ReplayTimes],
    pauses: Sequence[ReplayTimes] | None,
    steps: int,
    traced: Sequence[ReplayTimes] = (),
) -> ReplayTrial:
    """Return the trial that the loads make. Calls are as long as those `traced`, where all ranks have theirs."""
    least = [math.inf] * len(schedule.meetings)
    whole = all(len(times.units) == len(units) for units, times in zip(schedule.ranks, traced, strict=False))
    kernels = bool(traced) and whole
    for units, times in zip(schedule.ranks, traced if kernels else step, strict=True):
        for unit, seconds in zip(units, times.units, strict=True):
            least[unit.meeting] = min(least[unit.meeting], seconds)
    by_kind: list[list[float]] = [[] for _ in schedule.kinds]
    for kind, seconds in zip(schedule.meetings, least, strict=True):
        by_kind[kind].append(seconds)
    return ReplayTrial(
        step=tuple(times.step for times in step),
        pauses=tuple(times.step for times in pauses) if pauses else (0.0,) * len(step),
        communication=tuple(sum(least[unit.meeting] for unit in units) for units in schedule.ranks),
        call_seconds=tuple(map(fmean, by_kind)),
        steps=steps,
        queued=all(times.queued for times in step),
        kernels=kernels,
    )
