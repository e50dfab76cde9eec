"""How a run went: what failed, where, why a figure is missing, the exit status, and what disturbed trials."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from math import comb
from typing import Any

from collbench.model.errors import ExitStatus, Failure
from collbench.model.operations import Endpoints, Operation, Work
from collbench.model.run import (
    FlagKind,
    Health,
    Latency,
    Measurement,
    Members,
    Run,
    Sample,
    SkipKind,
    Skipped,
    at_the_ends,
    ordinary,
)
from collbench.model.units import grouped

# Why a run has no figure for a set of devices: one answer for every page and command.


# Kernels address the other GPU's memory; the copy engine and NCCL have other ways.
_BY_KERNEL = (Operation.SM_WRITE, Operation.SM_READ, Operation.CHASE)


class AbsenceKind(StrEnum):
    """Why there is no figure, or too little for one."""

    FAILED = "failed"
    SKIPPED = "skipped"
    FEW_TRIALS = "few trials"
    ONE_WAY = "one way"
    SMALL = "small messages"
    NOT_REACHED = "not reached"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class Absence:
    """Why there is no figure. `by_design`: nothing is amiss, there never is one here.

    `failure` or `skipped` say why if more than the kind is known. Of too few trials, `trials` were made, and `needed`
    are needed; None: more than these.
    """

    kind: AbsenceKind
    by_design: bool = False
    failure: Failure | None = None
    skipped: Skipped | None = None
    trials: int = 0
    needed: int | None = None


class Absences:
    """The reasons of one run, by work, members and size."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._measured: dict[tuple[Work, Members, int], Measurement] = {}
        self._failed: dict[tuple[Work, Members], Measurement] = {}
        for measurement in run.measurements:
            work = measurement.point.work
            key = work, unordered(work, measurement.point.members)
            self._measured[*key, measurement.point.size_bytes] = measurement
            if measurement.failure:
                self._failed.setdefault(key, measurement)
        self._skipped = {
            (left.work, unordered(left.work, left.members)): left for left in run.skipped if left.work is not None
        }
        self._paths = {frozenset(path.devices): path for path in run.paths}

    def of(self, work: Work, members: Members, size_bytes: int | None = None) -> Absence:
        """Return why a work has no figure, or too few trials for one, on its members; at any size for None."""
        key = work, unordered(work, members)
        measurement = self._failed.get(key) if size_bytes is None else self._measured.get((*key, size_bytes))
        if measurement is not None and measurement.failure:
            return Absence(AbsenceKind.FAILED, failure=measurement.failure)
        left = self._skipped.get(key)
        if left is None and self._refused(work, members):  # `skipped` may name no devices
            left = Skipped(SkipKind.NO_PEERS, work, members)
        if left is not None:
            return Absence(AbsenceKind.SKIPPED, left.kind.by_design, skipped=left)
        if measurement is not None and measurement.samples:
            return Absence(AbsenceKind.FEW_TRIALS, trials=len(measurement.samples))
        return Absence(AbsenceKind.NOT_MEASURED if self._run.complete else AbsenceKind.NOT_REACHED)

    def _refused(self, work: Work, members: Members) -> bool:
        """Return whether a kernel's copy lacks peer access, as NVML or CUDA say of the path."""
        path = self._paths.get(frozenset(members))
        if path is None or work.operation not in _BY_KERNEL or work.variant.host_memory:
            return False
        return path.peers_denied if path.cuda_peers is None else not path.cuda_peers


def unordered(work: Work, members: Members) -> Members:
    """Return members so that those of one data point are equal, whatever order they were listed in."""
    if work.operation.is_collective or work.variant.endpoints is Endpoints.PAIR:
        return tuple(sorted(members))
    if work.variant.endpoints is Endpoints.DEVICE_AND_OTHERS:  # one device faces all the others, which have no order
        return (*members[:1], *sorted(members[1:]))  # a run may skip all of a work, without members
    return members


# How a run ended: what failed, where, and the exit status. It is decided only here; pages print it.


class TroubleKind(StrEnum):
    """What is wrong with data points, the worst first. FAILED: an older version saved no kind of failure."""

    WRONG_DATA = "wrong data"
    HANG = "hang"
    IMPOSSIBLE = "impossible"
    CRASH = "crash"
    REFUSED = "P2P refused by the driver"
    ERROR = "error"
    FAILED = "failed"
    BUSY = "busy host"
    UNTRIED = "not tried"


# Nothing is known to be wrong with such data points.
UNANSWERED = (TroubleKind.BUSY, TroubleKind.UNTRIED)


# The exit status by kind of trouble; all others are failures.
_STATUS = {
    TroubleKind.WRONG_DATA: ExitStatus.UNTRUSTED,
    TroubleKind.HANG: ExitStatus.UNTRUSTED,
    TroubleKind.IMPOSSIBLE: ExitStatus.CONTRADICTION,
}


def _kind_of(failure: Failure) -> TroubleKind:
    """Return the kind of trouble that a failure is, which has the name of the failure's."""
    return TroubleKind.FAILED if failure.kind is None else TroubleKind[failure.kind.name]


@dataclass(frozen=True, slots=True)
class Trouble:
    """What is wrong on a set of devices (positions, ascending; () if unknown), with the number of data points.

    Of impossible data points they are those whose link, port or slot these beat, `measured` are the sets that the data
    points describe, and `figure` is the highest rate in GB/s. `link` has the source and the destination if all copies
    among the data points went one way, () otherwise.
    """

    kind: TroubleKind
    devices: tuple[int, ...]
    count: int
    figure: float | None = None
    link: tuple[int, ...] = ()
    measured: frozenset[tuple[int, ...]] = frozenset()


@dataclass(frozen=True, slots=True)
class Outcome:
    """All that is wrong with a run's data points, the worst kind and the smallest sets of devices first."""

    troubles: tuple[Trouble, ...]

    @property
    def status(self) -> ExitStatus:
        """The exit status of the command that measured the run, or judges it."""
        return max((_STATUS.get(trouble.kind, ExitStatus.FAILED) for trouble in self.troubles), default=ExitStatus.DONE)

    @property
    def device_sets(self) -> tuple[tuple[int, ...], ...]:
        """The sets of devices where something went wrong, each once."""
        return tuple(dict.fromkeys(trouble.devices for trouble in self.troubles if trouble.kind not in UNANSWERED))

    def failed(self, members: Collection[int]) -> bool:
        """Return whether something went wrong on this very set of devices."""
        return tuple(sorted(members)) in self.device_sets

    def impossible(self, members: Collection[int]) -> bool:
        """Return whether a rate above a limit is all that is wrong on this very set."""
        kinds = {trouble.kind for trouble in self.troubles if trouble.devices == tuple(sorted(members))}
        return kinds == {TroubleKind.IMPOSSIBLE}

    def kinds(self, members: Collection[int]) -> set[TroubleKind]:
        """Return what is wrong with the data points of this very set."""
        own = tuple(sorted(members))
        kinds = {trouble.kind for trouble in self.troubles if own in (trouble.measured or {trouble.devices})}
        return kinds.difference(UNANSWERED)

    def within(self, members: Collection[int]) -> tuple[tuple[int, ...], ...]:
        """Return the smallest sets of devices among these positions where something went wrong."""
        inside = [some for some in self.device_sets if set(some) <= set(members)]
        return tuple(some for some in inside if not any(set(other) < set(some) for other in inside))


def timed_points(run: Run) -> tuple[int, int]:
    """Return how many data points a run has, and how many of them have a trial."""
    timed = [
        *(bool(measurement.samples) for measurement in run.measurements),
        *(bool(result.trials) for result in run.results),
    ]
    return len(timed), sum(timed)


def timed_pairs(run: Run) -> tuple[int, int]:
    """Return how many pairs of devices there are, and how many of them have a trial of their own."""
    timed = {
        tuple(sorted(timed.point.members))
        for timed in run.measurements
        if timed.samples and len(timed.point.members) == 2
    }
    return comb(len(run.devices), 2), len(timed)


def corruptions(run: Run) -> Iterator[tuple[Work | None, Members, Skipped | Measurement]]:
    """Yield what showed wrong data, with its work and members: work left out because of it, then data points."""
    for left in run.skipped:
        if left.kind is SkipKind.WRONG_DATA:
            yield left.wrong.work if left.wrong else left.work, left.members, left
    for measurement in run.measurements:
        if measurement.wrong:
            yield measurement.point.work, measurement.point.members, measurement


def outcome(run: Run) -> Outcome:
    """Return what is wrong with the run's data points."""
    counts: Counter[tuple[TroubleKind, Members]] = Counter()
    links: defaultdict[tuple[TroubleKind, Members], set[Members]] = defaultdict(set)
    for kind, work, members, count in _wrong_or_failed(run):
        what = kind, work.place(members) if work else tuple(sorted(members))
        counts[what] += count
        if work and work.operation.is_copy and work.variant.endpoints is Endpoints.LINK:
            links[what].add(members)
    troubles = [
        Trouble(*what, count, link=next(iter(links[what])) if len(links[what]) == 1 else ())
        for what, count in counts.items()
    ]
    kinds = list(TroubleKind)
    troubles = sorted(
        [*troubles, *_impossible(run)],
        key=lambda trouble: (kinds.index(trouble.kind), len(trouble.devices), -trouble.count, trouble.devices),
    )
    return Outcome(tuple(troubles))


def _wrong_or_failed(run: Run) -> Iterator[tuple[TroubleKind, Work | None, Members, int]]:
    """Yield the data points that went wrong: how, their work, their members and how many."""
    for work, members, _ in corruptions(run):
        yield TroubleKind.WRONG_DATA, work, members, 1
    for left in run.skipped:
        if left.kind is SkipKind.PEERS_REFUSED and left.work:
            yield TroubleKind.REFUSED, left.work, left.members, len(left.sizes)
    for measurement in run.measurements:
        if measurement.failure is not None and not measurement.wrong:
            yield _kind_of(measurement.failure), measurement.point.work, measurement.point.members, 1
    for result in run.results:
        if result.wrong_data:
            yield TroubleKind.WRONG_DATA, None, result.members, 1
        elif result.failure is not None:
            yield _kind_of(result.failure), None, result.members, 1


def _impossible(run: Run) -> Iterator[Trouble]:
    """Yield the devices whose link, port or slot some data points beat."""
    from collbench.judge.physics import impossible  # late: numpy, which --help does not need

    beaten = grouped((tuple(sorted(excess.capacity.devices)), excess) for excess in impossible(run))
    for devices, those in beaten.items():
        measured = frozenset(excess.point.work.place(excess.point.members) for excess in those)
        yield Trouble(
            TroubleKind.IMPOSSIBLE, devices, len(those), max(excess.rate_gbs for excess in those), measured=measured
        )


# What disturbed the trials: throttling, heat, other processes that work.


def flagged_trials(run: Run) -> Counter[tuple[FlagKind, int, str]]:
    """Return how many trials have a flag, by its kind, the device's position and the reason."""
    samples = (sample for measurement in run.measurements for sample in measurement.samples)
    return Counter(
        (flag.kind, position, flag.reason)
        for sample in samples
        for flag in set(sample.flags)
        for position in flag.devices
    )


# A single flagged trial may be a spike of power; a tenth of them is a state.
FLAGGED_SHARE = 0.1


def flagged_shares(run: Run) -> dict[tuple[FlagKind, int], float]:
    """Return the share of each device's trials that have a flag about it, by its kind and the device's position."""
    trials, flagged = Counter[int](), Counter[tuple[FlagKind, int]]()
    for measurement in run.measurements:
        for position in measurement.point.members:
            trials[position] += len(measurement.samples)
        for sample in measurement.samples:
            if not sample.flags:  # of nearly all trials
                continue
            about = {(flag.kind, position) for flag in sample.flags for position in flag.devices}
            flagged.update((kind, position) for kind, position in about if position in measurement.point.members)
    return {(kind, position): count / trials[position] for (kind, position), count in flagged.items()}


def without_idle(run: Run) -> Run:
    """Return the run without what its trials and ends say of others' processes that did nothing on their GPU.

    Pages and comparisons count only those that a verdict blames.
    """
    trials: list[Sample | Latency] = [
        *(sample for timed in run.measurements for sample in timed.samples),
        *run.latencies,
    ]
    flags = (flag for trial in trials for flag in trial.flags if flag.kind is FlagKind.SHARED)
    flagged = {position for flag in flags for position in flag.devices}
    seen = flagged | {position for _, position, state in at_the_ends(run) if state.processes}
    if not seen:
        return run
    from collbench.judge.diagnose.blame import idle_among  # late: hardly a run needs the judge of links for this
    from collbench.judge.diagnose.readings import Facts

    idle = idle_among(Facts(ordinary(run)), seen)
    if not idle:
        return run

    def kept(trial: Sample | Latency) -> Any:
        flags = tuple(
            flag for flag in trial.flags if flag.kind is not FlagKind.SHARED or not idle.issuperset(flag.devices)
        )
        return replace(trial, flags=flags)

    def ended(states: tuple[Health, ...]) -> tuple[Health, ...]:
        return tuple(replace(state, processes=0) if at in idle else state for at, state in enumerate(states))

    return replace(
        run,
        measurements=[replace(timed, samples=[kept(sample) for sample in timed.samples]) for timed in run.measurements],
        latencies=[kept(latency) for latency in run.latencies],
        health_before=ended(run.health_before),
        health_after=ended(run.health_after),
    )
