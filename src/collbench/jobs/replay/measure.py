"""Replay a recorded step: what the options ask for, arms that take turns, and the run that they make."""

from __future__ import annotations

import itertools
import math
import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from collbench.ablations import ablation
from collbench.ablations.ablation import ArmChange
from collbench.api import SILENT, Notices, keywords
from collbench.api.measuring import resolved_backend
from collbench.jobs.job import Job, checked
from collbench.jobs.replay.results import NAME, Replay, ReplayTrial
from collbench.jobs.replay.schedule import ReplayLoad, ReplayTimes, Schedule, operation_of, schedule_of
from collbench.measurement.backends.protocol import Step
from collbench.measurement.backends.sim import SimBackend
from collbench.model.errors import BackendError, DataCorruption, MachineError, UsageError, WrongData, failure_of
from collbench.model.operations import Work, whole_blocks
from collbench.model.run import Capabilities, Device, Run, capabilities
from collbench.model.units import amount
from collbench.overlaps.workers import (
    OpenWorkers,
    TorchWorld,
    WorkerSession,
    WorkersRequest,
    open_worlds,
)
from collbench.sim.fabrics import Fabric

if TYPE_CHECKING:
    from collbench.api.runs import MeasuredRun

# Steps of a load: one long step says enough, and a thousand short ones say no more than twenty.
_MAX_STEPS = 20
# A trace stores every launch, and kernel times vary little.
_TRACED_STEPS = 5
# Seconds that the host needs to queue a call with its events, and how many of these a GPU waits for before the start: a
# stream has 1,024 entries, and an event or a sleep takes one.
_CALL_S, _MIN_DELAY_S, _MAX_AHEAD = 1e-4, 2e-3, 200
# The slowest first step to expect, in B/s and s: gloo on one shared core.
_SLOWEST_RATE = 20e6


ReplayBackend: TypeAlias = "ReplayWorld | SimReplay"
ReplayOpened = OpenWorkers["ReplayBackend"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRequest(WorkersRequest):
    """What to replay: a schedule, once for each arm.

    `job` is the name of the job's file.
    """

    job: str
    schedule: Schedule
    arms: tuple[ArmChange, ...]

    def begun_run(self, opened: OpenWorkers[Any]) -> Run:
        """Return the run that it begins, with nothing measured."""
        kinds = self.schedule.kinds
        return self.begun(
            opened,
            "replay",
            operations=tuple(dict.fromkeys(operation_of(kind.operation) for kind in kinds)),
            sizes=tuple(sorted({kind.size_bytes for kind in kinds})),
            dtype="uint8",
        )

    @property
    def title(self) -> str:
        """What the progress bar says."""
        return f"replaying {self.job}"

    def open(self) -> ReplayOpened:
        """Open a world for each arm, or a simulated one. Raises UsageError, MachineError, BackendError."""
        starters = [partial(ReplayWorld, settings=arm.environment) for arm in self.arms]
        worlds = open_worlds(self, "replay", starters, SimReplay, _SPANS_S, self.chosen)
        return replace(worlds, traces=capabilities(self.backend).nvml)

    def chosen(self, devices: tuple[Device, ...]) -> tuple[Device, ...]:
        """Return a device for each rank: those that were named, else the first ones. Raises UsageError."""
        ranks = len(self.schedule.ranks)
        if len(devices) == ranks or (self.devices is None and len(devices) > ranks):
            return devices[:ranks]
        raise UsageError(
            f"the job has {amount(ranks, 'rank')} and {amount(len(devices), 'device')}: name one of --devices per rank"
        )

    def measure(
        self,
        opened: ReplayOpened,
        run: Run,
        saved: Callable[[], None],
        progress: Callable[[int, int], None],
    ) -> None:
        """Measure all arms into `run`, trial by trial in turn; `saved` is called after each trial, and at any end.

        Raises MachineError if an arm does not fit, BackendError, DataCorruption.
        """
        begin = opened.clock()
        order = random.Random(self.seed)  # noqa: S311  # no secret
        arms = [
            Replay(
                job=self.job,
                members=tuple(range(len(opened.devices))),
                calls=self.schedule.kinds,
                without=arm.without,
                recorded_seconds=self.schedule.recorded_seconds,
                recorded_step_seconds=self.schedule.recorded_step_seconds,
            )
            for arm in self.arms
        ]
        replays = run.sections.setdefault(NAME, [])
        replays += arms
        loads: list[tuple[ReplayLoad, float]] = []
        try:
            for arm, backend in zip(arms, opened.worlds, strict=True):
                with _failing(arm):
                    loads.append(_ready(self, arm, backend, opened.span_seconds))
            for number in range(self.trials):
                for index in order.sample(range(len(arms)), len(arms)):
                    arm = arms[index]
                    with _failing(arm):
                        trial = _trial(self.schedule, opened.worlds[index], *loads[index], order, traces=opened.traces)
                    arm.trials.append(replace(trial, flags=opened.flags(arm.members)))
                    run.seconds = opened.clock() - begin
                saved()
                progress(number + 1, self.trials)
            for arm, backend in zip(arms, opened.worlds, strict=True):
                with _failing(arm):  # again: an arm that keeps delivering earlier results differs only now
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
    once = backend.run(ReplayLoad(1, delay_s=_MIN_DELAY_S), schedule.pause_seconds + sent / _SLOWEST_RATE)
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
    steps = max(1, min(_MAX_STEPS, math.ceil(span_s / max(step_s, 1e-6))))
    units = max(len(own) for own in schedule.ranks) * steps
    delay = _MIN_DELAY_S + min(units, _MAX_AHEAD) * _CALL_S
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


# What replays a step: a process of torch for each GPU or core and arm, or a simulated machine.

# How long a load runs at least, in seconds, in whole steps.
_SPANS_S = 0.05, 0.1
# NCCL takes 1 s for a communicator, longer where it first looks for networks; each of a job's groups has its own.
_PREPARE_S = 120.0
# Data is made and compared by the same slow cores that send it.
_VERIFY_S = 120.0
# A load that takes so many times what it should, and this much more, hangs.
_MULTIPLE, _LOAD_S = 20.0, 60.0
_MIN_BYTES = 16  # of a simulated call, a rank


class ReplayWorld(TorchWorld):
    """All ranks of one arm, whose variables are its settings."""

    module = "jobs.replay.worker"

    def prepare(self, schedule: Schedule) -> None:
        """Make groups and buffers. Raises MachineError if they do not fit, BackendError."""
        self.ask(_PREPARE_S, "prepare", schedule)

    def verify(self) -> int | None:
        """Run a step, and return how many elements were wrong on all ranks. Raises BackendError."""
        known = [wrong for wrong in self.ask(_VERIFY_S, "verify") if wrong is not None]
        return sum(known) if known else None

    def run(self, load: ReplayLoad, expected_s: float) -> tuple[ReplayTimes, ...]:
        """Run a load on every rank. Raises BackendError for a worker that died or hangs."""
        return tuple(self.ask(_LOAD_S + _MULTIPLE * expected_s, "run", load))


class SimReplay:
    """All ranks of a simulated step, with a simulated clock: a seed gives the same times everywhere."""

    def __init__(self, fabric: Fabric, backend: SimBackend, seed: int) -> None:
        self._fabric, self._backend = fabric, backend
        self._rng = np.random.default_rng([seed, 2])
        self._schedule: Schedule | None = None
        self._seconds = 0.0

    def prepare(self, schedule: Schedule) -> None:
        """Store the step: any size fits."""
        self._schedule = schedule

    def verify(self) -> int | None:
        """Return no wrong element: nothing was sent."""
        return 0

    def run(self, load: ReplayLoad, expected_s: float) -> tuple[ReplayTimes, ...]:
        """Return a load's times: each call begins when all of its ranks have reached it."""
        del expected_s
        schedule = self._schedule
        assert schedule is not None  # noqa: S101  # as the protocol has it
        noise = float(np.exp(self._rng.normal(0, self._fabric.noise.trial))) if load.pauses else 0.0
        # When each rank's host, or main stream, reaches each unit, and at last the end of the step.
        reached = [
            list(itertools.accumulate([*(unit.pause * noise for unit in units), rest * noise]))
            for units, rest in zip(schedule.ranks, schedule.rests, strict=True)
        ]
        ends = [moments[-1] for moments in reached]
        if not load.calls:
            self._seconds += load.steps * max(ends)
            return tuple(ReplayTimes(end) for end in ends)
        took, last = self._timeline(schedule, reached)
        # A late rank keeps the others waiting in the next step.
        step = max(*ends, *last)
        self._seconds += load.steps * step
        return tuple(ReplayTimes(step, tuple(own)) for own in took)

    def clock(self) -> float:
        """Return the seconds that all loads so far would have taken."""
        return self._seconds

    def _timeline(self, schedule: Schedule, reached: list[list[float]]) -> tuple[list[list[float]], list[float]]:
        """Return how long each unit of each rank took, its wait included, and when each rank's last call ended."""
        took = [[0.0] * len(units) for units in schedule.ranks]
        meetings: dict[int, list[tuple[int, int]]] = {}
        for rank, units in enumerate(schedule.ranks):
            for number, unit in enumerate(units):
                meetings.setdefault(unit.meeting, []).append((rank, number))
        free: dict[tuple[int, int], float] = {}  # when a rank's stream of a group is free
        last = [0.0] * len(schedule.ranks)
        for meeting in sorted(meetings):  # of each group in order
            units_met = meetings[meeting]
            group = schedule.ranks[units_met[0][0]][units_met[0][1]].group
            starts = {rank: max(reached[rank][n], free.get((rank, group), 0.0)) for rank, n in units_met}
            end = max(starts.values()) + self._call_seconds(schedule, meeting, sorted(starts))
            for rank, number in units_met:
                took[rank][number] += end - starts[rank]
                free[rank, group] = end
                last[rank] = max(last[rank], end)
        return took, last

    def _call_seconds(self, schedule: Schedule, meeting: int, members: Sequence[int]) -> float:
        kind = schedule.kinds[schedule.meetings[meeting]]
        ranks, operation = len(members), operation_of(kind.operation)
        if ranks < 2:
            return 0.0
        size = max(_MIN_BYTES * ranks, whole_blocks(kind.size_bytes, ranks) if operation.shares else kind.size_bytes)
        timing = self._backend.time(Step(Work(operation), (tuple(members),), size, 1, 1, dtype="uint8"))
        return timing.seconds[0][0]


# From options and a job to a request, and to a run.

# About as many as for a data point that overlaps compute (method/collectives.md 8): a median of eight has a 95%
# interval.
_GPU_TRIALS, _CORE_TRIALS = 8, 6


def parse_without(text: str) -> ArmChange:
    """Return what NCCL goes without in an arm: "p2p,shm". Raises UsageError."""
    change = ablation.parse_change((text,))
    if change.given:
        raise UsageError(
            f"--without {change.given[0]} needs a script: a recorded job is replayed without "
            f"{', '.join(ablation.SWITCHES)}"
        )
    return change


def request_of(
    job: Job,
    name: str,
    values: Mapping[str, Any],
    command: Sequence[str],
    notices: Notices = SILENT,
) -> ReplayRequest:
    """Return what the options of `collbench replay`, by name, ask for of a job, whose file is called `name`.

    The command line is `command`. Raises UsageError, for a job that cannot be replayed too.
    """
    backend = resolved_backend(values["backend"], values["fabric"], notices)
    devices, change = values.get("devices"), values.get("without") or ArmChange()
    schedule = schedule_of(job)
    backend_capabilities = capabilities(backend)
    _check_backend(backend_capabilities, change, schedule)
    for doubt in filter(None, (job.steps.reservation, job.steps.why)):
        notices.say(doubt)
    for assumption in schedule.assumed:
        notices.say(f"replaying {assumption}")
    if "nvlink" in change.switches:
        notices.say(ablation.NVLINK_NOTE)
    return ReplayRequest(
        backend=backend,
        job=name,
        schedule=schedule,
        arms=(ArmChange(), change) if change.switches else (change,),
        trials=values.get("trials") or (_CORE_TRIALS if backend_capabilities.cores else _GPU_TRIALS),
        command=tuple(command),
        devices=devices,
        fabric=values["fabric"],
        seed=values["seed"],
        force=values.get("force", False),
    )


def _check_backend(backend: Capabilities, change: ArmChange, schedule: Schedule) -> None:
    """Raise UsageError for what this backend cannot replay."""
    if change.switches and not backend.nvml:
        lacking = ", ".join(change.switches)
        raise UsageError(f"the {backend.name} backend has no {lacking} to deny NCCL: leave out --without")
    for name in change.environment:
        if os.environ.get(name):
            raise UsageError(f"{name} is already set, so both arms would use it: unset it, or leave out --without")
    posts = {post for units in schedule.ranks for unit in units for post in unit.posts}
    for post in posts if backend.cores else ():
        if post.reduction == "avg" or post.dtype.startswith("float8"):
            what = "by avg" if post.reduction == "avg" else post.dtype
            raise UsageError(f"gloo cannot reduce {what} as the job does: replay it on GPUs")


# The Python call.


@keywords.in_keywords
def replay(  # noqa: PLR0913 - keywords, each an option of the command line
    job: Job,
    *,
    devices: Iterable[int | str] | None = None,
    without: str | None = None,
    trials: int | None = None,
    backend: str = "auto",
    fabric: str | os.PathLike[str] | None = None,
    seed: int | None = None,
    output: str | os.PathLike[str] | None = None,
    save: bool = True,
) -> MeasuredRun:
    """Replay a recorded job's step, as `collbench replay` does, and return the run: its results are in `replays`.

    The keywords are its options. Worker processes use the GPUs and torch; this process does not
    start CUDA. The run is saved as `output`, or as a new file that `runs` lists, unless `save` is False. Raises Error.
    """
    given = dict(locals())
    from collbench.cli.calls import called, measured_run  # late: the command needs no other command

    keywords.check_only_process("replay")
    checked(job)
    context, words = called("replay", given, ["job"], besides=("job", "output", "save"))
    request = request_of(job, "job", context.params, words)
    return measured_run("replay", request.backend, partial(WorkerSession, request), output, save=save)
