"""A collective that overlaps compute: what is covered, how much to run, the trials (docs/method/collectives.md 8)."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import fmean
from typing import Any, TypeAlias

import numpy as np

from collbench.measurement.backends.protocol import Step
from collbench.measurement.backends.sim import SimBackend
from collbench.model.errors import (
    BackendError,
    Cause,
    DataCorruption,
    Failure,
    FailureKind,
    MachineError,
    UsageError,
    WrongData,
    failure_of,
)
from collbench.model.operations import Operation, Work, whole_blocks
from collbench.model.run import Run
from collbench.model.units import whole_elements
from collbench.overlaps.results import (
    DTYPE,
    NAME,
    QUEUE_ENTRIES,
    Compute,
    ComputeKind,
    Load,
    Overlap,
    OverlapTrial,
    Priority,
    RankTimes,
)
from collbench.overlaps.workers import OpenWorkers, TorchWorld, WorkersRequest, open_worlds
from collbench.sim.fabrics import Fabric

# A chunk lasts about as long, or is one call or unit, so that the event at its end (0.5 µs) is about a thousandth of
# it.
_CHUNK_S = 4e-4
# Calls or units in a row. With an event after each, 320 calls fit a stream's queue, 520 do not
# (method/collectives.md 8).
_MAX_IN_A_ROW = 240
# So many chunks of each stream must be covered: fewer say nothing of how a chunk varies.
_MIN_COVERED = 3
_MIN_UNITS = 6
# One call, which can be compared whatever the number of ranks; then some to learn how long each takes.
_VERIFYING = Load(collective_chunks=1, calls=1, compute_chunks=4, units=1, delay_s=0.01)
_ESTIMATING = Load(collective_chunks=8, calls=1, compute_chunks=4, units=1, delay_s=0.01)
# Products draw more power than an H200 may for long: its clock falls from 1,980 to some 1,500 MHz. 10 ms after them an
# all-reduce of 64 MiB takes 6% longer than in `collbench allreduce`, 0.1 s after them 0.5%, 0.2 s after them 0.3%.
_REST_S = 0.2
# Seconds that the host is given to queue a call of torch.distributed, which takes some 30 µs, and a unit of compute,
# which takes less.
_CALL_S, _UNIT_S, _MIN_DELAY_S, _LONGEST_DELAY_S = 6e-5, 1e-4, 2e-3, 1.0
# Calls during compute in a trial, if a call is much shorter than a unit; longer ones vary less, so fewer are enough.
_CALLS_IN_ROUNDS, _MIN_CALLS_IN_ROUNDS = 30, 12
# That is for a unit like a product of 8192³ on an H200. With shorter ones more rounds fit the same time.
_LONG_UNIT_S, _MAX_TIMES_AS_MANY = 1.4e-3, 4.0
# Isolated calls in a trial, as in a batch of the ordinary command: after 40 calls of 64 MiB, 10 ms, an H200 takes
# 0.5% longer for each than at first.
_ISOLATED_CALLS = 20
# How long compute runs before the first of these calls, over the isolated time of its first chunk: it may be slower.
_RUN_UP = 1.3
# The share of calls that must be covered; where fewer are, compute lasts for calls longer by this factor.
_MIN_SHARE, _CALL_STEP = 0.8, 1.6
# How often a load is repeated after a longer delay, and how often in a row one that was not covered is lengthened: on
# busy cores now and then a call waits for a time slice, however long compute runs.
_DELAYS, _LENGTHENINGS = 6, 8


OverlapBackend: TypeAlias = "OverlapWorld | SimOverlap"
OverlapOpened = OpenWorkers["OverlapBackend"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlapRequest(WorkersRequest):
    """What to measure: each size with each compute, each priority and each number of thread blocks (None: NCCL's).

    `sizes` are bytes, `trials` how often each data point is measured.
    """

    operation: Operation
    sizes: tuple[int, ...]
    computes: tuple[Compute, ...]
    priorities: tuple[Priority, ...]
    ctas: tuple[int | None, ...]
    requested_sizes: tuple[int, ...] | None = None

    def points(self, ranks: int) -> list[Overlap]:
        """Return the data points, not yet measured: a communicator serves all of its own before the next is made."""
        shares = self.operation.shares
        whole = (whole_blocks(size, ranks) if shares else whole_elements(size, DTYPE) for size in self.sizes)
        sizes = dict.fromkeys(filter(None, whole))
        return [
            Overlap(Work(self.operation), tuple(range(ranks)), size, compute, priority, ctas)
            for priority in self.priorities
            for ctas in self.ctas
            for compute in self.computes
            for size in sizes
        ]

    @property
    def title(self) -> str:
        """What the progress bar says."""
        return f"measuring {self.operation} overlapping compute"

    def open(self) -> OverlapOpened:
        """Start the workers. Raises UsageError, MachineError, BackendError."""
        return open_worlds(self, "overlap", [OverlapWorld], SimOverlap, _SPANS_S)

    def begun_run(self, opened: OpenWorkers[Any]) -> Run:
        """Return the run that it begins, with nothing measured. Raises UsageError where no size suits the devices."""
        sizes = {point.size_bytes for point in self.points(len(opened.devices))}
        if not sizes:
            raise UsageError(f"no size holds 16 B for each of {len(opened.devices)} ranks: name larger --sizes")
        return self.begun(
            opened,
            "overlap",
            operations=(self.operation,),
            sizes=tuple(sorted(sizes)),
            dtype=DTYPE,
            requested_sizes=self.requested_sizes,
        )

    def measure(
        self,
        opened: OverlapOpened,
        run: Run,
        saved: Callable[[], None],
        progress: Callable[[int, int], None],
    ) -> None:
        """Measure all data points into `run`; `saved` is called after each, and whatever ends it.

        What does not fit, or cannot be covered, costs its data point alone. Raises BackendError, DataCorruption.
        """
        begin = opened.clock()
        members = tuple(range(len(opened.devices)))
        points, order = self.points(len(members)), random.Random(self.seed)  # noqa: S311  # no secret
        total, overlaps = len(points) * self.trials, run.sections.setdefault(NAME, [])
        for number, overlap in enumerate(points):
            overlaps.append(overlap)
            try:
                for trial in measure_point(opened.worlds[0], overlap, self.trials, opened.span_seconds, order):
                    overlap.trials.append(replace(trial, flags=opened.flags(members)))
                    progress(number * self.trials + len(overlap.trials), total)
            except MachineError as error:
                overlap.failure = failure_of(error)
            except _Unmeasured as error:
                overlap.failure = Failure(FailureKind.ERROR, Cause.REPORTED, work=overlap.work, detail=str(error))
            except BackendError as error:  # the workers have exited
                overlap.failure = error.failure
                raise
            finally:
                if not overlap.trials and overlap.failure is None and not overlap.wrong and not overlap.wrong_compute:
                    overlaps.remove(overlap)  # interrupted before its first trial
                run.seconds = opened.clock() - begin
                saved()
        run.complete = True


# What was covered: pure, from the ranks' times. Events of both streams are on the same device, so their times compare.


def covered_calls(ranks: Sequence[RankTimes]) -> list[int]:
    """Return the calls that lay between the first chunk of compute in their round and the last."""
    rounds = len(ranks[0].begins)
    each = len(ranks[0].compute) // rounds
    return [
        number
        for number in range(rounds)
        if all(
            times.begins[number] >= times.compute[number * each]
            and times.collective[number] <= times.compute[(number + 1) * each - 1]
            for times in ranks
        )
    ]


def covered_units(ranks: Sequence[RankTimes]) -> range:
    """Return the chunks of compute that ran while the collective did, on every rank.

    Each stream's first chunk is its run-up: both have run for one before anything counts.
    """
    covered = []
    for times in ranks:
        begin, end = max(times.collective[0], times.compute[0]), times.collective[-1]
        ends = times.compute
        inside = [chunk for chunk in range(1, len(ends)) if ends[chunk - 1] >= begin and ends[chunk] <= end]
        covered.append(range(inside[0], inside[-1] + 1) if inside else range(0))
    return range(max(chunks.start for chunks in covered), min(chunks.stop for chunks in covered))


def _seconds_of_one(ends: Sequence[float], times: int, chunks: range | None = None) -> float:
    """Return the seconds of one call or unit of a stream whose chunks have `times` of them and end at `ends`.

    They are those of the given chunks, or of all but the first one, which is the run-up.
    """
    chunks = range(1, len(ends)) if chunks is None else chunks
    return (ends[chunks.stop - 1] - ends[chunks.start - 1]) / (len(chunks) * times)


def trial_of(
    load: Load,
    *,
    collective: Sequence[RankTimes],
    compute: Sequence[RankTimes],
    rounds: Sequence[RankTimes],
    both: Sequence[RankTimes],
) -> OverlapTrial | None:
    """Return the trial that four loads make, where `load` is the fixed amount; None if too little was covered.

    They are by rank: each isolated, calls in rounds during compute, an amount of both.
    """
    numbers, chunks = covered_calls(rounds), covered_units(both)
    if len(numbers) < max(1, len(rounds[0].begins) * _MIN_SHARE) or len(chunks) < _MIN_COVERED:
        return None
    covered = [[times.collective[number] - times.begins[number] for number in numbers] for times in rounds]
    calls = isolated_collective(load).calls
    isolated = [_seconds_of_one(times.collective, calls) for times in collective]
    # The fixed amount has more calls than ran isolated: each of the others would take as long as those did.
    others = load.collective_chunks * load.calls - len(collective[0].collective) * calls
    return OverlapTrial(
        collective_alone=tuple(isolated),
        compute_alone=tuple(_seconds_of_one(times.compute, load.units) for times in compute),
        collective_beside=tuple(fmean(calls) for calls in covered),
        compute_beside=tuple(_seconds_of_one(times.compute, load.units, chunks) for times in both),
        beside_calls=tuple(map(max, zip(*covered, strict=True))),
        collective_amount=tuple(
            times.collective[-1] + others * call for times, call in zip(collective, isolated, strict=True)
        ),
        compute_amount=tuple(times.compute[-1] for times in compute),
        together=tuple(max(times.collective[-1], times.compute[-1]) for times in both),
        calls=load.collective_chunks * load.calls,
        units=load.compute_chunks * load.units,
        covered_units=len(chunks) * load.units,
    )


# How much to run. It is decided here for every rank: amounts that each rank chose for itself would differ, and hang.


def planned(call_seconds: float, unit_seconds: float, span_seconds: float) -> Load:
    """Return a load whose two streams take about as long as each other isolated: `span_seconds`, if queues allow it."""
    calls = max(_MIN_COVERED + 1, min(_MAX_IN_A_ROW, round(span_seconds / call_seconds)))
    units = max(_MIN_UNITS, round(min(span_seconds, calls * call_seconds) / unit_seconds))
    # A few products may outlast that many calls of a small message: then there are more calls.
    calls = max(calls, min(_MAX_IN_A_ROW, round(units * unit_seconds / call_seconds)))
    units = min(units, _MAX_IN_A_ROW)
    # A short call may wait for a unit to end. The first chunk, which does not count, then lasts a quarter of compute.
    waiting = int(units / 4 * unit_seconds / (unit_seconds + call_seconds))
    calls_each, units_each = (
        max(1, min(int(_CHUNK_S / seconds), count // (_MIN_COVERED + 1)))
        for count, seconds in ((calls, call_seconds), (units, unit_seconds))
    )
    calls_each = max(1, min(calls_each, waiting))
    return _delayed(Load(calls // calls_each, calls_each, units // units_each, units_each, 0.0))


def isolated_collective(load: Load) -> Load:
    """Return the load without compute: a batch of the ordinary command, in as few chunks as can be judged."""
    chunks = _MIN_COVERED + 1
    calls = min(_ISOLATED_CALLS, load.collective_chunks * load.calls) // chunks
    return _delayed(replace(load, collective_chunks=chunks, calls=calls, compute_chunks=0))


def moments(call_seconds: float, unit_seconds: float, trials: int, order: random.Random) -> list[list[float]]:
    """Return when the calls of each trial begin, in random order, as shares of a unit from 0 to 1.

    A trial has one in each of its equal parts of a unit, and all trials one in each part of such a part: a call that
    just misses the end of a product is longer by a whole one, so a trial's mean would depend on a single draw there.
    """
    share = unit_seconds / (unit_seconds + call_seconds)
    more = min(_MAX_TIMES_AS_MANY, max(1.0, _LONG_UNIT_S / unit_seconds))
    calls = max(_MIN_CALLS_IN_ROUNDS, math.ceil(_CALLS_IN_ROUNDS * share * more))
    parts = [order.sample(range(trials), trials) for _ in range(calls)]
    made = [
        [(number + (part[trial] + order.random()) / trials) / calls for number, part in enumerate(parts)]
        for trial in range(trials)
    ]
    for begins in made:
        order.shuffle(begins)
    return made


def in_rounds(load: Load, call_seconds: float, unit_seconds: float, begins: Sequence[float]) -> Load:
    """Return the load that calls the collective during compute at these `moments`; a call may take `call_seconds`.

    A collective may wait for a unit to end, so its time depends on the moment. All lie behind compute's run-up
    (docs/method/collectives.md 8).
    """
    run_up = _RUN_UP * unit_seconds * load.units
    rests = tuple(run_up + begin * unit_seconds for begin in begins)
    needs = run_up + 2 * unit_seconds + call_seconds
    chunks = max(_MIN_COVERED, math.ceil(needs / (unit_seconds * load.units)))
    return _delayed(Load(len(rests), 1, chunks, load.units, 0.0, rests))


def _delayed(load: Load) -> Load:
    calls = load.collective_chunks * load.calls
    if load.idle_s:  # each call has another before it, which brings the ranks together
        calls *= 2
    needs = _MIN_DELAY_S + calls * _CALL_S + load.compute_launches * _UNIT_S
    return replace(load, delay_s=min(_LONGEST_DELAY_S, needs))


def _usual_longest(ranks: Sequence[RankTimes]) -> float:
    """Return the seconds that nine of ten calls stay below: on a busy host ten times those of an isolated call."""
    calls = sorted(
        max(times.collective[number] - times.begins[number] for times in ranks)
        for number in range(len(ranks[0].begins))
    )
    return calls[len(calls) * 9 // 10]


def _lengthened(load: Load, ran: Sequence[RankTimes]) -> Load:
    """Return the load with twice as much of what ended first."""
    if any(times.compute[-1] < times.collective[-1] for times in ran):
        return _delayed(replace(load, compute_chunks=2 * load.compute_chunks))
    return _delayed(replace(load, collective_chunks=2 * load.collective_chunks))


def _fits_queue(load: Load) -> bool:
    """Return whether a stream takes all of the load ahead, its rounds in parts; two entries are room for a call."""
    calls = 0 if load.idle_s else load.collective_chunks * (2 * load.calls + 1)
    return max(calls, 2 * load.compute_chunks) <= QUEUE_ENTRIES


# The trials of one data point.


class _Unmeasured(Exception):
    """A data point whose times would mean nothing; the text says why."""


_UNCOVERED = "the collective and the compute never overlapped: use a larger size or smaller compute"
_UNQUEUED = "the host was too slow to queue the work before the GPUs started it: free some CPU cores"


def _run(backend: OverlapBackend, load: Load) -> tuple[RankTimes, ...]:
    """Run a load, as many rounds at once as can be queued. Raises _Unmeasured, BackendError."""
    several = len(parts := [*load.parts()]) > 1
    times = [_run_queued(backend, _delayed(part) if several else part) for part in parts]
    return tuple(_joined(own) for own in zip(*times, strict=True))


def _joined(parts: Sequence[RankTimes]) -> RankTimes:
    """Return one rank's times of all rounds: each round counts from the start of its own part."""
    return RankTimes(
        tuple(chain.from_iterable(part.collective for part in parts)),
        tuple(chain.from_iterable(part.compute for part in parts)),
        tuple(chain.from_iterable(part.begins for part in parts)),
        all(part.queued for part in parts),
        _total(part.wrong for part in parts),
        _total(part.wrong_compute for part in parts),
    )


def _total(counts: Iterable[int | None]) -> int | None:
    """Return the sum of what was compared; None if nothing was."""
    compared = [count for count in counts if count is not None]
    return sum(compared) if compared else None


def _run_queued(backend: OverlapBackend, load: Load) -> tuple[RankTimes, ...]:
    """Run a load after a delay that is long enough. Raises _Unmeasured, BackendError."""
    fits = _fits_queue(load)
    for _ in range(_DELAYS if fits else 1):  # if it does not fit, only cores, which queue nothing, can run it
        ran = backend.run(load)
        if all(times.queued for times in ran):
            return ran
        load = replace(load, delay_s=min(_LONGEST_DELAY_S, 2 * load.delay_s))
    raise _Unmeasured(_UNQUEUED if fits else _UNCOVERED)


def measure_point(
    backend: OverlapBackend,
    overlap: Overlap,
    trials: int,
    span_seconds: float,
    order: random.Random,
) -> Iterator[OverlapTrial]:
    """Measure one data point; yield each trial. Wrong elements are counted in `overlap`.

    Raises MachineError if it does not fit, _Unmeasured if nothing was covered, BackendError, DataCorruption.
    """
    backend.allocate(overlap)
    backend.warm()
    _verified(overlap, _run(backend, _VERIFYING))
    call = max(_seconds_of_one(times.collective, 1) for times in _run(backend, replace(_ESTIMATING, compute_chunks=0)))
    unit = max(_seconds_of_one(times.compute, 1) for times in _run(backend, replace(_ESTIMATING, collective_chunks=0)))
    load = planned(call, unit, span_seconds)
    begins = moments(call, unit, trials, order)
    isolated = _isolated(backend, load, trials)
    made = lengthened = 0
    while made < trials:
        # Always in this order: what ran before decides the clock (docs/method/collectives.md 8).
        rounds = _run(backend, in_rounds(load, call, unit, begins[made]))
        both = _run(backend, load)
        compute = _run(backend, replace(load, collective_chunks=0))
        for ranks in (isolated[made], compute, rounds, both):
            _verified(overlap, ranks)
        trial = trial_of(load, collective=isolated[made], compute=compute, rounds=rounds, both=both)
        if trial is not None:
            made, lengthened = made + 1, 0
            yield trial
            continue
        if lengthened == _LENGTHENINGS:
            raise _Unmeasured(_UNCOVERED)
        lengthened += 1
        call = max(_CALL_STEP * call, _usual_longest(rounds))
        if len(covered_units(both)) < _MIN_COVERED:
            load = _lengthened(load, both)
            isolated = _isolated(backend, load, trials)


def _isolated(backend: OverlapBackend, load: Load, trials: int) -> list[tuple[RankTimes, ...]]:
    """Return the collective's own load, once for each trial, before any of them: on GPUs that compute does not heat."""
    own = isolated_collective(load)
    rested = replace(own, delay_s=max(own.delay_s, _REST_S))
    return [_run(backend, own if number else rested) for number in range(trials)]


def _verified(overlap: Overlap, ranks: Sequence[RankTimes]) -> None:
    """Count what was wrong. Raises DataCorruption."""
    for rank, times in enumerate(ranks):
        if times.wrong is not None:
            overlap.wrong = (overlap.wrong or 0) + times.wrong
        if times.wrong_compute is not None:
            overlap.wrong_compute = (overlap.wrong_compute or 0) + times.wrong_compute
        if times.wrong or times.wrong_compute:
            what = f"{times.wrong} elements of {overlap.work}" if times.wrong else "the result of the compute"
            by_rank = (rank, *(other for other in range(len(ranks)) if other != rank))
            raise DataCorruption(
                f"{what} of {overlap.size_bytes} B overlapping {overlap.compute} on rank {rank}: wrong data; do not "
                "trust this machine, run 'collbench check'",
                WrongData(overlap.work, overlap.size_bytes, by_rank, times.wrong or times.wrong_compute),
            )


# What measures it: torch's workers, one process for each GPU or CPU core, or a simulated machine.

# Operands are made and a communicator starts; NCCL takes 1 s, longer where it first looks for networks.
_WARM_S = 120.0
# How long a load may take: it lasts tens of milliseconds, and on a slow core seconds.
_LOAD_S = 60.0


class OverlapWorld(TorchWorld):
    """All ranks of overlap."""

    module = "overlaps.worker"
    load_s = _LOAD_S

    def allocate(self, point: Overlap) -> None:
        """Make room for a data point. Raises MachineError if it does not fit, BackendError."""
        self.ask(_WARM_S, "allocate", point)

    def warm(self) -> None:
        """Run both once, untimed. Raises BackendError."""
        self.ask(_WARM_S, "warm")

    def run(self, load: Load) -> tuple[RankTimes, ...]:
        """Run a load on every rank. Raises BackendError for a worker that died or hangs."""
        return tuple(self.ask(self.load_s, "run", load))


# How long each of the two runs alone in a trial, in seconds: some 17 products of 8192³ on an H200, and as many
# all-reduces of 256 MiB. On a core a product of 512³ takes some 5 ms.
_SPANS_S = 0.025, 0.05


# Of any simulated machine: how many times as long a collective and compute take beside each other, at the stream's
# normal priority; and how fast a GPU computes in bf16, and copies within its memory, both directions together.
_COLLECTIVE_BESIDE, _COMPUTE_BESIDE = 2.0, 1.1
_TFLOPS, _MEMORY_GBS = 700.0, 4000.0
# The part of the slowdown by compute that remains for a collective of high priority.
_LEFT_BY_PRIORITY = 0.5


def unit_seconds(compute: Compute) -> float:
    """Return the seconds of one unit of compute, isolated, on a simulated GPU."""
    size = float(compute.size)
    match compute.kind:
        case ComputeKind.GEMM:
            return 2 * size**3 / (_TFLOPS * 1e12)
        case ComputeKind.MEMORY:
            return 3 * size * 2**20 / (_MEMORY_GBS * 1e9)


class SimOverlap:
    """All ranks of a simulated machine, with a simulated clock: a seed gives the same times everywhere."""

    def __init__(self, fabric: Fabric, backend: SimBackend, seed: int) -> None:
        self._fabric, self._backend = fabric, backend
        self._rng = np.random.default_rng([seed, 1])
        self._point: Overlap | None = None
        self._ranks = len(backend.devices())
        self._seconds = 0.0

    def allocate(self, point: Overlap) -> None:
        """Store the data point: any size fits."""
        self._point = point

    def warm(self) -> None:
        """Do nothing: the simulation needs no warm-up."""

    def run(self, load: Load) -> tuple[RankTimes, ...]:
        """Return a load's times: both are slowed down until one ends, then the other runs at its isolated rate."""
        assert self._point is not None  # noqa: S101  # as the protocol has it
        point = self._point
        # Seconds of a chunk that runs isolated.
        collective_s = load.calls * self._call_seconds(point)
        noise = float(np.exp(self._rng.normal(0, self._fabric.noise.trial)))
        compute_s = load.units * (unit_seconds(point.compute) * noise)
        left = _LEFT_BY_PRIORITY if point.priority is Priority.HIGH else 1.0
        slowdowns = 1 + (_COLLECTIVE_BESIDE - 1) * left, _COMPUTE_BESIDE
        begins: tuple[float, ...] = ()
        if load.idle_s:  # each round begins when the compute of the one before has ended, and compute covers its call
            round_s = load.compute_chunks * compute_s * slowdowns[1]
            starts = list(itertools.accumulate([round_s] * (len(load.idle_s) - 1), initial=0.0))
            begins = tuple(start + idle for start, idle in zip(starts, load.idle_s, strict=True))
            chunks = range(1, load.compute_chunks + 1)
            collective = tuple(begin + collective_s * slowdowns[0] for begin in begins)
            compute = tuple(start + number * compute_s * slowdowns[1] for start in starts for number in chunks)
        else:
            works = (load.collective_chunks, collective_s), (load.compute_chunks, compute_s)
            collective, compute = overlapped(works, slowdowns)
        self._seconds += max(ends[-1] if ends else 0.0 for ends in (collective, compute))
        wrong, wrong_compute = (0 if ends else None for ends in (collective, compute))
        times = RankTimes(collective, compute, begins, wrong=wrong, wrong_compute=wrong_compute)
        return (times,) * self._ranks

    def clock(self) -> float:
        """Return the seconds that all loads so far would have taken."""
        return self._seconds

    def _call_seconds(self, point: Overlap) -> float:
        members = tuple(range(self._ranks))
        timing = self._backend.time(Step(point.work, (members,), point.size_bytes, 1, 1, dtype=DTYPE))
        limited = 1.0 if point.ctas is None else (point.ctas + 1) / point.ctas  # N blocks reach N/(N+1) of the rate
        return timing.seconds[0][0] * limited


def overlapped(
    works: Sequence[tuple[int, float]], slowdowns: Sequence[float]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the end of each chunk of two overlapping works of (chunks, isolated seconds per chunk) and slowdowns."""
    isolated = [chunks * seconds for chunks, seconds in works]
    slowed = [seconds * slowdown for seconds, slowdown in zip(isolated, slowdowns, strict=True)]
    shared = min(slowed) if all(isolated) else 0.0  # how long both run
    ends = []
    for (chunks, seconds), slowdown in zip(works, slowdowns, strict=True):
        done = shared / slowdown  # isolated seconds of its work done when the other ends
        work_before = [number * seconds for number in range(1, chunks + 1)]
        ends.append(tuple(work * slowdown if work <= done else shared + work - done for work in work_before))
    return ends[0], ends[1]
