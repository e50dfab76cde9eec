"""Measures every data point of a plan in random order until it is settled or the time is up; interference first."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import chain
from statistics import median
from typing import TypeVar

import numpy as np

from collbench.judge.physics import Check, marked
from collbench.judge.point_noise import note_noise
from collbench.judge.stats import MEDIAN_ERROR, half_width, tie_threshold, trial_noise, trial_seconds
from collbench.machine.labels import chained, is_pcie, rank_key
from collbench.measurement.backends.protocol import Backend, Step, Timing, time_step
from collbench.measurement.plan import Plan, StoppingRule, point_of, runs_alone
from collbench.model.errors import BackendError, Cause, DataCorruption, Failure, FailureKind, StepFailed
from collbench.model.operations import Work
from collbench.model.run import (
    NCCL_START,
    DataPoint,
    Device,
    Flag,
    InterferenceCheck,
    Latency,
    Measurement,
    Members,
    Path,
    RankLaunches,
    Run,
    Sample,
    SkipKind,
    Skipped,
    StopReason,
    device_sets,
)
from collbench.model.units import algbw, grouped

_MIB = 2**20
# ±1% for messages that keep a link busy, ±3% where launch jitter is part of the time.
_LARGE, _SMALL = 0.01, 0.03
# Noise has stabilized when two more trials change its estimate by less than a tenth: more will not narrow it soon.
_STABLE_CHANGE = 0.10
_STABLE_TRIALS = 8


def stop_reason(measurement: Measurement, precision: float | None = None) -> StopReason | None:
    """Return PRECISION or NOISE when the data point needs no further trial, None while it does.

    `precision` is the half interval over the median to reach; None takes ±1% or ±3%, by the size. Fewer than three
    trials have no interval. A narrow one counts only if the noise of its kind is known: one that rests on the data
    point's own trials may be narrow by chance, and to stop then would select such intervals (method/statistics.md 1).
    """
    precise = half_width(measurement) <= (precision or (_LARGE if measurement.point.size_bytes >= _MIB else _SMALL))
    if precise and measurement.noise:
        return StopReason.PRECISION
    if _noise_is_stable(trial_seconds(measurement)):
        return StopReason.PRECISION if precise else StopReason.NOISE
    return None


def _noise_is_stable(trials: Sequence[float]) -> bool:
    if len(trials) < _STABLE_TRIALS:
        return False
    before, now = (float(np.std(np.log(part), ddof=1)) for part in (trials[:-2], trials))
    return abs(now - before) <= _STABLE_CHANGE * before


# Whether the data points that decide were measured often enough to distinguish a slow pair from a noisy one
# (docs/method/statistics.md 3).

# The error of a data point's median, a ratio, at which a pair that is 8% slow is found 99 times of 100
# (benchmarks/ties.py).
_ERROR = 0.0075
# At σ = 2% twelve trials reach it and at 2.3% fifteen. Up to 4% fifteen still help; above, a first look cannot decide.
_MAX_NOISE = 0.04
_MAX_TRIALS = 15


def undecided(measurements: Sequence[Measurement], paths: Sequence[Path]) -> dict[DataPoint, int]:
    """Return how many more trials points of one work and size need to be compared, without those that need none.

    Noise is pooled within a label, as in the ranking of pairs.
    """
    if len(measurements) < 2:
        return {}  # there is nothing to compare it with
    labels = {frozenset(path.devices): path.label for path in paths}
    more: dict[DataPoint, int] = {}
    for pool in grouped((labels.get(frozenset(timed.point.members), "?"), timed) for timed in measurements).values():
        trials = trials_wanted([[*map(math.log, trial_seconds(m))] for m in pool])
        more |= {timed.point: trials - len(timed.samples) for timed in pool if len(timed.samples) < trials}
    return more


def trials_wanted(logs: Sequence[Sequence[float]]) -> int:
    """Return how many trials each point of a label should have, from the log times of those it has; 0 for no more."""
    noise = trial_noise(logs)
    if noise > _MAX_NOISE:
        return 0
    return min(_MAX_TRIALS, math.ceil((MEDIAN_ERROR * noise / _ERROR) ** 2))


# The trials of a sweep: which data points still need one, what each measured, and what a failed one costs.

# One stuck link costs its data point. If copies or collectives fail this often in a row, that kind is given up; an NCCL
# that does not start says nothing about copies.
_FAILURES_IN_A_ROW = 4
# A sweep around faults goes on after hangs: each costs its devices' data points, and a sound set may remain. After the
# first it may take this long; then it ends without an answer, because what was not measured may hang, too.
_HANGS_S = 300.0
# What noisy deciding data points may take beyond the budget, as a share of it: 0.25 s on GPUs.
_FOR_DECIDING = 0.1


@dataclass(frozen=True, slots=True)
class Watcher:
    """What the sweep calls. `progress(done, total)` counts steps of the present plan; `keep()` may save the run.

    `flags(members)` returns what is wrong with these devices right now, for the samples just taken. `clock` gives the
    seconds that budgets are about; a simulated machine has its own.
    """

    progress: Callable[[int, int], None]
    keep: Callable[[], None]
    flags: Callable[[tuple[int, ...]], tuple[Flag, ...]] = lambda _members: ()
    clock: Callable[[], float] = time.monotonic


_Result = TypeVar("_Result")


def wrong_data(error: DataCorruption) -> Skipped:
    """Return what a run reports as skipped because of wrong data."""
    if error.wrong is None:
        return Skipped(SkipKind.WRONG_DATA, detail=str(error))
    return Skipped(SkipKind.WRONG_DATA, members=error.wrong.members, wrong=error.wrong)


class Trials:
    """A sweep's state between steps. `wanted` points get more trials; `timed_seconds` is the time in timed regions.

    `plan` may be replaced by one with more isolated points before `make` is called.
    """

    def __init__(self, plan: Plan, run: Run, rule: StoppingRule, watcher: Watcher) -> None:
        """Begin with every data point of the plan, into a run that holds none."""
        self.plan = plan
        self._run, self._rule, self._watcher = run, rule, watcher
        self._check = Check(run)  # by the labels alone: what copies show is known at the end of a sweep
        self._results: dict[DataPoint, Measurement] = {}
        self._deciding = plan.deciding()
        # Trials that a point gets even after the deadline.
        self._required = {
            point: rule.deciding if point in self._deciding else rule.screening for point in plan.points()
        }
        self.wanted = set(self._required)
        self.timed_seconds = 0.0
        # By whether they are collectives: failures in a row, and whether the others are left unmeasured.
        self._failures = {True: 0, False: 0}
        self._given_up: set[bool] = set()
        self._hung_since: float | None = None  # by the clock: the first hang
        self._deciding_deadline: float | None = None  # by the clock: then deciding points get no more trials

    def make(self, backend: Backend, rng: random.Random, deadline: float) -> None:
        """Give every point its required trials, and unsettled ones more until the deadline (by the clock)."""
        first, done, total = True, 0, 0
        while self.wanted:
            steps = self._pass(rng)
            total = max(total, done + len(steps) * (self._rule.screening if first else 1))
            try:
                for step, outcome in backend.time_steps(self._affordable(steps, deadline)):
                    self._record_outcome(backend, step, outcome)
                    done += 1
                    self._watcher.progress(done, max(done, total))
            except DataCorruption as error:
                self.leave_out(error)
                continue
            first = False
            if any(self._required[point] <= 0 for point in self.wanted):  # else none may be settled yet
                note_noise(self._run)
            self._drop_settled(late=self._watcher.clock() > deadline)
            self._require_deciding(deadline)
        for measurement in self._results.values():
            measurement.stop = measurement.stop or stop_reason(measurement, self._rule.precision) or StopReason.BUDGET

    def _pass(self, rng: random.Random) -> list[Step]:
        """Return one pass; if deciding points are owed more trials than others, so many of these, spread over it.

        Some noise lasts, such as another job's. Trials in quick succession would agree on what is slow at that moment.
        """
        others, deciding = self.wanted - self._deciding, self.wanted & self._deciding
        passes, owed = (max((self._required[point] for point in some), default=0) for some in (others, deciding))
        if passes <= 0 or owed <= passes:
            return self.plan.passes(rng, self.wanted)
        turns, steps, spread = math.ceil(owed / passes), self.plan.passes(rng, others), list[Step]()
        for turn in range(turns):
            part = steps[len(steps) * turn // turns : len(steps) * (turn + 1) // turns]
            part += self.plan.passes(rng, deciding)
            rng.shuffle(part)
            spread += part
        return spread

    def around_faults(self, phase: Callable[[], _Result]) -> _Result:
        """Return the result of a phase before the trials, repeated without the devices that deliver wrong data."""
        while True:
            try:
                return phase()
            except DataCorruption as error:
                self.leave_out(error)

    def leave_out(self, error: DataCorruption) -> None:
        """Record wrong data, and measure no more on these devices. Raises the error if it is to end the sweep."""
        if not self._rule.around_faults or error.wrong is None:
            raise error
        before = self.plan.groups
        self._leave_out(error.wrong.members)
        if self.plan.groups == before:  # not a group of the plan: it would come again
            raise error
        self._run.skipped.append(wrong_data(error))

    def note_hang(self, backend: Backend, step: Step, error: StepFailed) -> None:
        """Record which groups of a warm-up's step hang; all others on the same devices are isolated from now on.

        Otherwise each trial on such a link would take a watchdog's time twice: among other groups, and by itself. Where
        many hang, the trials say so and give up.
        """
        kind = step.work.operation.is_collective
        many = sum(point.operation.is_collective is kind for point in self._results) >= _FAILURES_IN_A_ROW
        if error.kind is not FailureKind.HANG or self.plan.together or self._rule.around_faults or many:
            return
        if len(step.groups) > 1:
            for members in step.groups:
                alone = replace(step, groups=(members,))
                try:
                    time_step(backend, alone)
                except StepFailed as failed:
                    self.note_hang(backend, alone, failed)
            return
        ((members,), (point,)) = step.groups, points_of(step)
        self._mark_failed(point, error.failure)
        self.wanted.discard(point)
        alike = {(work, same) for work, some in self.plan.groups.items() for same in some if set(same) == set(members)}
        self.plan = replace(self.plan, isolated=self.plan.isolated | alike)

    def without_hung(self) -> Plan:
        """Return the plan without the devices' links on which something has failed."""
        hung = {frozenset(point.members) for point in self._results}
        groups = {
            work: tuple(members for members in some if frozenset(members) not in hung)
            for work, some in self.plan.groups.items()
        }
        return replace(self.plan, groups=groups)

    def _leave_out(self, devices: Members) -> None:
        groups = {
            work: tuple(members for members in some if set(members) != set(devices))
            for work, some in self.plan.groups.items()
        }
        self.plan = replace(self.plan, groups={work: some for work, some in groups.items() if some})
        self.wanted = {point for point in self.wanted if set(point.members) != set(devices)}

    def _affordable(self, steps: list[Step], deadline: float) -> Iterator[Step]:
        """Yield the steps that are required or that time allows; each is decided when it is drawn."""
        for step in steps:
            if step.work.operation.is_collective in self._given_up:
                continue
            if self._rule.around_faults:  # some may have been left out since the pass was planned
                left = zip(step.groups, points_of(step), strict=True)
                step = replace(step, groups=tuple(members for members, point in left if point in self.wanted))  # noqa: PLW2901
                if not step.groups:
                    continue
            if self._watcher.clock() <= deadline or any(self._required[point] > 0 for point in points_of(step)):
                yield step

    def _drop_settled(self, *, late: bool) -> None:
        """Keep only the data points that require trials, or that are unsettled while there is time."""

        def continues(point: DataPoint) -> bool:
            timed, required = self._results.get(point), self._required[point] > 0
            if timed is None:  # wrong data ended the pass
                return required
            if timed.failure or point.operation.is_collective in self._given_up:
                return False
            return required or not (late or stop_reason(timed, self._rule.precision))

        self.wanted = set(filter(continues, self.wanted))

    def _require_deciding(self, deadline: float) -> None:
        """Require more trials of deciding points if noise would hide a slow pair; not long after the deadline.

        As long as others are owed trials, all of them, spread over these; then one at a time.
        """
        now, spread = self._watcher.clock(), any(self._required[point] > 0 for point in self.wanted)
        if self._rule.deciding == self._rule.screening or (spread and now > deadline):
            return
        if not spread:
            more_s = _FOR_DECIDING * self._rule.budget_seconds
            self._deciding_deadline = self._deciding_deadline or max(deadline, now) + more_s
            if now >= self._deciding_deadline:
                return
        deciding = [measurement for point, measurement in self._results.items() if point in self._deciding]
        measurable = [m for m in deciding if not m.failure and m.point.operation.is_collective not in self._given_up]
        for point, trials in undecided(measurable, self._run.paths).items():
            self._required[point] = max(self._required[point], trials if spread else 1)
            self.wanted.add(point)

    def _record_outcome(self, backend: Backend, step: Step, outcome: Timing | StepFailed) -> None:
        """Record a step's result. If a step of several groups failed, each is timed isolated to find the cause."""
        if isinstance(outcome, Timing):
            self._failures[step.work.operation.is_collective] = 0
            self._record_samples(step, outcome, concurrent=len(step.groups) > 1 and not step.work.variant.at_once)
        elif len(step.groups) > 1 and not self.plan.together:
            for members in step.groups:
                alone = replace(step, groups=(members,))
                try:
                    self._record_outcome(backend, alone, time_step(backend, alone))
                except StepFailed as error:
                    self._record_outcome(backend, alone, error)
        else:
            self._record_failure(step, outcome)

    def _record_failure(self, step: Step, error: StepFailed) -> None:
        for point in points_of(step):
            self._mark_failed(point, error.failure)
        if self._rule.around_faults and error.kind is FailureKind.HANG:
            for members in step.groups:
                self._leave_out(members)
            now = self._watcher.clock()
            self._hung_since = now if self._hung_since is None else self._hung_since
            if now - self._hung_since > _HANGS_S:
                text = f"measuring stops {_HANGS_S:g} s after the first of many hangs; last error: {error}"
                raise BackendError(text, failure=error.failure)
            return
        kind = step.work.operation.is_collective
        self._failures[kind] += 1
        if self._failures[kind] >= _FAILURES_IN_A_ROW and kind not in self._given_up:
            self._give_up_kind(kind, error, device_sets(step.groups, self._run.devices))

    def _give_up_kind(self, kind: bool, last: StepFailed, where: str) -> None:
        """Measure no more collectives (True), or no more others. Raises BackendError if nothing else is wanted."""
        self._given_up.add(kind)
        many = Failure(last.kind, Cause.IN_A_ROW, count=_FAILURES_IN_A_ROW, because=last.failure)
        if all(point.operation.is_collective in self._given_up for point in self.wanted):
            text = f"measuring stops: {_FAILURES_IN_A_ROW} data points in a row failed; last error, {where}: {last}"
            raise BackendError(text, failure=many)
        for point in self.plan.points():
            if point.operation.is_collective is kind and self._required.get(point, 0) > 0:
                self._mark_failed(point, replace(many, kind=FailureKind.UNTRIED))

    def _mark_failed(self, point: DataPoint, failure: Failure) -> None:
        measurement = self._results.get(point) or Measurement(point)
        if not measurement.failure:
            measurement.stop, measurement.failure = StopReason.FAILED, failure
            self._enter(measurement)

    def _record_samples(self, step: Step, timing: Timing, *, concurrent: bool) -> None:
        """Add the trial's samples; a data point enters the run with its first one."""
        flags = self._watcher.flags(tuple(member for members in step.groups for member in members))
        self.timed_seconds += timing.region_seconds(step)
        for index, point in enumerate(points_of(step)):
            if timing.uncovered and (ended_first := timing.uncovered[index]) is not None:
                groups = (step.groups[index],)
                cause = Cause.NOT_COVERED, (ended_first,), None, step.work, step.size_bytes, groups
                self._mark_failed(point, Failure(FailureKind.ERROR, *cause))
                continue
            coverage = timing.coverage[index] if timing.coverage else None
            sample = Sample(
                seconds=tuple(map(_readable, timing.seconds[index])),
                iterations=step.iterations,
                concurrent=concurrent,
                launch_seconds=_readable(timing.launch_seconds[index]) if timing.launch_seconds else None,
                flags=flags,
                moved_bytes=coverage.moved if coverage else None,
                verified_bytes=coverage.verified if coverage else None,
                plain=bool(timing.plain) and timing.plain[index],
            )
            measurement = self._results.get(point) or Measurement(point)
            measurement.wrong = 0 if step.verify and step.work.verifiable else None
            measurement.samples.append(self._check.marked(point, sample))
            self._required[point] -= 1
            self._enter(measurement)

    def _enter(self, measurement: Measurement) -> None:
        """Put a measurement with samples or a failure into the run: one with neither, after Ctrl-C, would damage it."""
        if measurement.point not in self._results:
            self._results[measurement.point] = measurement
            self._run.measurements.append(measurement)
        self._watcher.keep()


def points_of(step: Step) -> list[DataPoint]:
    """Return the data points that a step measures, in the order of its groups."""
    return [point_of(step.work, members, step.size_bytes) for members in step.groups]


def _readable(seconds: float) -> float:
    """Return the time in seven digits: more than any clock resolves, and short in the file."""
    return float(f"{seconds:.7g}")


# Which pairs can be measured concurrently: some are compared isolated and concurrently.


def shared_uplinks(
    groups: Sequence[Members], paths: Mapping[frozenset[int], Path], rng: random.Random
) -> Iterator[list[Members]]:
    """Yield for each PCIe label disjoint pairs from one side of a shared link to the other, while any are left.

    Sides are the devices that better labels join: for SYS the sockets, for PHB the devices below one PCIe switch. A
    round has as many pairs as can cross the link between two sides, which the label does not guarantee to be exclusive.
    """
    for label in sorted({path.label for path in paths.values() if is_pcie(path.label)}):
        side = _sides(paths, label)
        alike = [pair for pair in groups if len(pair) == 2 and _label(paths, pair) == label]
        rng.shuffle(alike)
        alike.sort(key=lambda pair: (side[pair[0]], side[pair[1]]))
        together = _disjoint(alike)
        if len(together) > 1:
            yield together


def _sides(paths: Mapping[frozenset[int], Path], label: str) -> dict[int, int]:
    """Return for each device the lowest device that better PCIe labels join it to; NVLinks are separate links."""
    words = {pair: path.in_tree for pair, path in paths.items()}
    joined = (pair for pair, word in words.items() if is_pcie(word) and rank_key(word) < rank_key(label))
    alone = ({device} for pair in paths for device in pair)
    return {device: min(side) for side in chained([*joined, *alone]) for device in side}


def _disjoint(pairs: Sequence[Members]) -> list[Members]:
    """Return the pairs in order, without those that share a device with an earlier one."""
    taken: set[int] = set()
    disjoint = []
    for pair in pairs:
        if not taken & set(pair):
            taken |= set(pair)
            disjoint.append(pair)
    return disjoint


_TRIALS = 3
_PAIRS_A_LABEL = 2
# A size at which a shared link shows; larger ones only take longer.
_LARGEST = 64 * 2**20


def check_interference(
    backend: Backend, plan: Plan, paths: Mapping[frozenset[int], Path], rng: random.Random, trials: int = _TRIALS
) -> tuple[list[InterferenceCheck], float]:
    """Return one comparison for up to two pairs of each label and operation, at a large size; and the seconds timed.

    Where labels show shared links, pairs that share one are chosen on purpose: in a random round they might not.
    """
    findings, timed = [], 0.0
    for work in plan.groups:
        seen: dict[str, int] = {}
        free = [] if runs_alone(work) else [m for m in plan.groups[work] if (work, m) not in plan.isolated]
        for together in (*shared_uplinks(free, paths, rng), *plan.rounds(work, rng)):
            if len(together) < 2 or plan.together or runs_alone(work):
                continue
            for members in together:
                label = _label(paths, members)
                if seen.get(label, 0) < _PAIRS_A_LABEL:
                    seen[label] = seen.get(label, 0) + 1
                    with suppress(StepFailed):  # the data point's own trial will record why
                        finding, seconds = _compare(backend, plan, work, together, members, label, trials)
                        findings.append(finding)
                        timed += seconds
    return findings, timed


def distrusted(plan: Plan, findings: list[InterferenceCheck], paths: Mapping[frozenset[int], Path]) -> Plan:
    """Return the plan with every label that failed an interference check measured isolated.

    A check is a sample, and chance decides which pairs meet in it: a label whose links are shared for one collective is
    so for all, as NCCL takes the same paths, and for one copy for all. PCIe paths share links across labels: if one of
    them fails for one work, all are measured isolated, for all works.
    """
    failed = {(finding.operation.is_collective, finding.label) for finding in findings if not finding.trusted}
    sharing = any(is_pcie(label) for _, label in failed)

    def suspect(work: Work, label: str) -> bool:
        return (work.operation.is_collective, label) in failed or (sharing and is_pcie(label))

    isolated = {
        (work, members)
        for work, groups in plan.groups.items()
        for members in groups
        if suspect(work, _label(paths, members))
    }
    return replace(plan, isolated=plan.isolated | isolated)


def _label(paths: Mapping[frozenset[int], Path], members: Members) -> str:
    path = paths.get(frozenset(members))
    return path.label if path else "?"


def _compare(
    backend: Backend, plan: Plan, work: Work, together: list[Members], members: Members, label: str, trials: int
) -> tuple[InterferenceCheck, float]:
    size = max((s for s in plan.sizes[work] if s <= _LARGEST), default=plan.sizes[work][0])
    index = together.index(members)
    steps = plan.step(work, together, size), plan.step(work, [members], size)
    timings = [(time_step(backend, steps[0]), time_step(backend, steps[1])) for _ in range(trials)]  # in turn
    concurrent = [median(both.seconds[index]) for both, _ in timings]
    isolated = [median(alone.seconds[0]) for _, alone in timings]
    delta = tie_threshold(max(trial_noise([[*map(math.log, seconds)]]) for seconds in (isolated, concurrent)))
    ratio = median(isolated) / median(concurrent)
    timed = sum(timing.region_seconds(step) for both in timings for step, timing in zip(steps, both, strict=True))
    finding = InterferenceCheck(
        operation=work.operation,
        variant=work.variant,
        members=members,
        label=label,
        isolated_gbs=algbw(size, median(isolated)),
        concurrent_gbs=algbw(size, median(concurrent)),
        ratio=ratio,
        delta=delta,
        trusted=abs(1 - ratio) <= delta,
        size_bytes=size,
    )
    return finding, timed


# Single launches, after the trials: the spread of their times, and which rank is late.


def time_singles(backend: Backend, plan: Plan, run: Run, rng: random.Random, watcher: Watcher) -> None:
    """Time `plan.asked.latency` launches of each collective's data point, into the run.

    Groups run alone, unless the user wants them together. A step that fails is its data points' failure, and the last
    one: each of the others may take a watchdog's time.
    """
    failed = {measurement.point for measurement in run.measurements if measurement.failure}
    steps = list(_single_steps(plan, failed))
    rng.shuffle(steps)
    for number, (step, outcome) in enumerate(backend.time_steps(steps), 1):
        points = points_of(step)
        if isinstance(outcome, StepFailed):
            for measurement in (timed for timed in run.measurements if timed.point in points):
                measurement.stop, measurement.failure = StopReason.FAILED, outcome.failure
            watcher.keep()
            return
        flags = watcher.flags(tuple(member for members in step.groups for member in members))
        for point, ranks in zip(points, outcome.singles, strict=True):
            latency = latency_of(point, ranks, run.devices, concurrent=len(points) > 1, flags=flags)
            run.latencies.append(latency)
        watcher.keep()
        watcher.progress(number, len(steps))


def latency_of(
    point: DataPoint,
    ranks: Sequence[RankLaunches],
    devices: Sequence[Device],
    *,
    concurrent: bool = False,
    flags: tuple[Flag, ...] = (),
) -> Latency:
    """Return the record of ranks whose times are on their hosts' clocks, relative to each launch's first arrival."""
    common = len({devices[member].host for member in point.members}) == 1
    arrived = np.array([rank.arrived for rank in ranks])
    begin = arrived.min(axis=0, keepdims=True) if common else arrived
    since = np.broadcast_to(begin, arrived.shape)
    launches = tuple(
        replace(
            rank,
            arrived=tuple((np.array(rank.arrived) - origin).tolist()),
            left=tuple((np.array(rank.left) - origin).tolist()),
        )
        for rank, origin in zip(ranks, since, strict=True)
    )
    return Latency(point, launches, common, concurrent, flags)


def _single_steps(plan: Plan, failed: set[DataPoint]) -> Iterator[Step]:
    for work, groups in plan.groups.items():
        if not work.operation.is_collective:
            continue
        for together in [groups] if plan.together else [(members,) for members in groups]:
            for size in plan.sizes[work]:
                if any(point_of(work, members, size) not in failed for members in together):
                    step = plan.step(work, together, size)
                    yield replace(step, batches=1, warmup=0, singles=plan.asked.latency)


# method/measuring.md 14: warm until recent batches drift by less than 1%; 8 tries bound a machine too noisy to settle.
_DRIFT, _WARM_TRIES = 0.01, 8
# Copies that share a host link do not settle to 1%; one pass loads their code and wakes what they use.
_COVERED_TRIES = 1
_WARM_BYTES = 16 * 2**20


def sweep(backend: Backend, plan: Plan, run: Run, rule: StoppingRule, rng: random.Random, watcher: Watcher) -> None:
    """Measure the plan into `run`, which always holds all finished trials, also after an interruption.

    Raises BackendError if no step works any more.
    """
    clock = watcher.clock
    with _phase(run, NCCL_START, clock):
        backend.ready()
    begin = clock()
    paths = {frozenset(path.devices): path for path in run.paths}
    trials = Trials(plan, run, rule, watcher)
    try:
        with _phase(run, "warm-up", clock):
            trials.around_faults(lambda: warm_up(backend, trials.plan, rng, trials, rule.warm_seconds, clock))
        with _phase(run, "interference check", clock):
            run.interference_checks[:], trials.timed_seconds = trials.around_faults(
                lambda: check_interference(backend, trials.plan, paths, rng)
            )
        trials.plan = distrusted(trials.plan, run.interference_checks, paths)
        with _phase(run, "trials", clock):
            trials.make(backend, rng, deadline=begin + rule.budget_seconds)
        if plan.asked.latency:
            with _phase(run, "single launches", clock):
                time_singles(backend, plan, run, rng, watcher)
        run.complete = True
    finally:
        index = {point: number for number, point in enumerate(plan.points())}
        run.measurements.sort(key=lambda entry: index.get(entry.point, len(index)))
        run.latencies.sort(key=lambda entry: index.get(entry.point, len(index)))
        note_noise(run)
        for measurement in run.measurements:
            measurement.stop = measurement.stop or stop_reason(measurement, rule.precision) or StopReason.INTERRUPTED
        marked(run)
        run.phases["timed"] = round(trials.timed_seconds, 6)
        run.seconds = round(clock() - begin, 3)


def warm_up(
    backend: Backend,
    plan: Plan,
    rng: random.Random,
    trials: Trials | None = None,
    seconds: float = math.inf,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Repeat each operation in each of its rounds until three trials in a row agree within 1%.

    An operation's ends with the step in which it has taken `seconds` by the clock. A step that fails ends its work's
    warm-up, because each may take a watchdog's time. `trials` record a hang; any other failure is recorded by the data
    point's own trial.
    """
    for work in plan.groups:
        size = max((s for s in plan.sizes[work] if s <= _WARM_BYTES), default=plan.sizes[work][0])
        sound = trials.without_hung() if trials else plan
        end = clock() + seconds
        for together in sound.rounds(work, rng) if sound.groups[work] else ():
            step = plan.step(work, together, size)
            # No more bytes than in messages of 16 MiB: batches of large host copies would take longer than trials.
            step = replace(step, iterations=max(1, step.iterations * _WARM_BYTES // max(size, _WARM_BYTES)))
            try:
                _warm_up(backend, step, end, clock)
            except StepFailed as error:
                if trials:
                    trials.note_hang(backend, step, error)
                break
            if clock() >= end:
                break


def _warm_up(backend: Backend, step: Step, end: float, clock: Callable[[], float]) -> None:
    recent: list[float] = []
    for _ in range(_COVERED_TRIES if step.work.variant.covered else _WARM_TRIES):
        timing = time_step(backend, step)
        recent = [*recent[-2:], median(chain.from_iterable(timing.seconds))]
        if clock() >= end or (len(recent) == 3 and max(recent) / min(recent) - 1 < _DRIFT):
            return


@contextmanager
def _phase(run: Run, name: str, clock: Callable[[], float]) -> Iterator[None]:
    """Record the seconds inside as the run's phase `name`."""
    begin = clock()
    try:
        yield
    finally:
        run.phases[name] = round(clock() - begin, 3)
