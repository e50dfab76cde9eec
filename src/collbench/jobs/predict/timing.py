"""The time of a collective on a set of devices, measured there or on the most similar set (docs/method.md 12)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import inf, log, sqrt
from statistics import median

from collbench.choose.bands import BANDED_BYTES, FEW_RANKS
from collbench.choose.choice import Band, Members
from collbench.jobs.predict.assumptions import BeyondSizes, LikeOperation, LikePair, LikeSet, OfTime
from collbench.judge.fits import Curve
from collbench.judge.registration import on_memory, ordinary
from collbench.judge.stats import summarize
from collbench.model.errors import UsageError
from collbench.model.operations import Operation, Registration, Variant
from collbench.model.run import DataPoint, Run
from collbench.overlaps.results import overlaps_of

# The evidence of several runs of one machine: the run that ranks its pairs, and all curves.

Key = tuple[Operation, Members]
# What training sends.
SENT = (Operation.ALLREDUCE, Operation.ALLGATHER, Operation.REDUCESCATTER)
# Container images set it; it is not the version of the loaded library.
_SAYS_NOTHING = "NCCL_VERSION"


class NoEvidence(UsageError):
    """Nothing that was measured says how long a collective takes on these devices."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The run whose pairs are judged, and the curves of all runs by operation and its positions, ascending.

    The curves are of one kind of memory; `name` is the run's file.
    """

    run: Run
    curves: Mapping[Key, Curve]
    name: str = "the run"
    registration: Registration = Registration.NONE

    @property
    def sets(self) -> tuple[Members, ...]:
        """The sets that any collective was measured on, in order."""
        return tuple(sorted({members for _, members in self.curves}))

    def tags(self, members: Sequence[int]) -> str:
        """Return "GPU0, GPU1"."""
        return ", ".join(self.run.devices[member].tag for member in members)


def gather(runs: Sequence[tuple[str, Run]], registration: Registration = Registration.NONE) -> Evidence:
    """Return the evidence of several runs, each with its file's name. Raises UsageError if they do not fit together.

    Devices are chosen from the run with the most devices, then the most pairs. With registered memory the curves are
    those on it, and so are the pairs if any were measured on it.
    """
    for name, run in runs:
        if overlaps_of(run) and not run.measurements:
            raise UsageError(f"{name} timed a collective overlapping compute, not alone: name it with --overlap")
    if registration is not Registration.NONE:
        return _on_registered(runs, registration)
    runs = [(name, ordinary(run)) for name, run in runs]
    name, base = _base(runs)
    curves = _curves(base, runs)
    if not curves:
        files = ", ".join(name for name, _ in runs)
        raise UsageError(
            f"{files}: no all-reduce, all-gather or reduce-scatter was measured: run 'collbench pairs' first"
        )
    return Evidence(base, curves, name)


def _on_registered(runs: Sequence[tuple[str, Run]], kind: Registration) -> Evidence:
    """Return the evidence on registered memory. If no pairs were timed on it, pairs on ordinary memory rank devices."""
    registered = [(name, on_memory(run, kind)) for name, run in runs]
    measured = [(name, run) for name, run in registered if next(_points(run), None)]
    if not measured:
        files = ", ".join(name for name, _ in runs)
        raise UsageError(
            f"{files}: no all-reduce, all-gather or reduce-scatter was measured on {kind} memory: measure with "
            f"--registration {kind}, or leave --registration out"
        )
    ranking = registered if any(_pairs(run) for _, run in measured) else [(name, ordinary(run)) for name, run in runs]
    name, base = _base(ranking)
    return Evidence(base, _curves(base, measured), name, kind)


def _base(runs: Sequence[tuple[str, Run]]) -> tuple[str, Run]:
    """Return the run that devices are chosen from. Raises UsageError if the runs do not belong together."""
    name, base = max(runs, key=lambda named: (len(named[1].devices), _pairs(named[1])))
    for other, run in runs:
        belongs(name, base, other, run)
    return name, base


def _curves(base: Run, runs: Sequence[tuple[str, Run]]) -> dict[Key, Curve]:
    points: dict[Key, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for _, run in runs:
        here = positions_in(base, run)
        for point, seconds in _points(run):
            members = tuple(sorted(here[member] for member in point.members))
            points[point.operation, members][point.size_bytes].append(seconds)
    return {key: Curve({size: median(trials) for size, trials in sizes.items()}) for key, sizes in points.items()}


def positions_in(base: Run, run: Run) -> tuple[int, ...]:
    """Return the position in `base`, which has all of them, of each of a run's devices."""
    position_of = {device.uuid: position for position, device in reversed([*enumerate(base.devices)])}
    return tuple(position_of[device.uuid] for device in run.devices)


def _pairs(run: Run) -> int:
    return len(
        {frozenset(measurement.point.members) for measurement in run.measured() if len(measurement.point.members) == 2}
    )


def _points(run: Run) -> Iterator[tuple[DataPoint, float]]:
    """Yield the sound data points of what training sends with their seconds: out of place, or else in place."""
    points = {m.point: m for variant in (Variant.IN_PLACE, Variant.PLAIN) for m in run.measured(variant)}
    plain = {(c.operation, c.members, c.size_bytes) for c in points if c.variant is Variant.PLAIN}
    for point, measurement in points.items():
        instead = point.variant is not Variant.PLAIN and (point.operation, point.members, point.size_bytes) in plain
        if point.operation in SENT and not (measurement.wrong or measurement.failure or instead):
            yield point, summarize(measurement).seconds


def belongs(name: str, base: Run, other: str, run: Run) -> None:
    """Raise UsageError where two runs are not of one machine under the same settings."""
    if (base.backend, base.machine.fabric) != (run.backend, run.machine.fabric):
        kinds = " and ".join(sorted({f"{one.backend} {one.machine.fabric}".strip() for one in (base, run)}))
        raise UsageError(f"{name} and {other} are of different machines ({kinds}): give runs of one machine")
    known = {device.uuid for device in base.devices}
    strange = [device for device in run.devices if device.uuid not in known]
    if strange:
        raise UsageError(
            f"{other} has {strange[0].tag} ({strange[0].uuid}), which {name} lacks: give runs of one machine, "
            "at least one of them with all its GPUs"
        )
    changed = sorted(_settings(base).items() ^ _settings(run).items())
    if changed:
        variable = changed[0][0]
        raise UsageError(
            f"{name} and {other} were measured with different settings ({variable}={_settings(base).get(variable, '')} "
            f"and {variable}={_settings(run).get(variable, '')}): predict from each separately"
        )


def _settings(run: Run) -> dict[str, str]:
    config = {name: str(value) for name, value in run.settings.nccl_config.items()}
    return {name: value for name, value in run.settings.environment.items() if name != _SAYS_NOTHING} | config


# The timing of each operation on each set.

# Seconds: the least, the middle and the most that a prediction allows; all equal if it was measured.
Span = tuple[float, float, float]
Bands = Callable[[Members], Band | None]
# What the narrowest port of a set sends at most, GB/s, ∞ if not known; and whether a switch joins the set.
Ports = Callable[[Members], tuple[float, bool]]

_ALONE = 1.0, 1.0, 1.0
# The operations that can replace one that was not measured, best first: gather and scatter move the same bytes.
INSTEAD = {
    Operation.ALLREDUCE: (Operation.ALLREDUCE, Operation.ALLGATHER, Operation.REDUCESCATTER),
    Operation.ALLGATHER: (Operation.ALLGATHER, Operation.REDUCESCATTER, Operation.ALLREDUCE),
    Operation.REDUCESCATTER: (Operation.REDUCESCATTER, Operation.ALLGATHER, Operation.ALLREDUCE),
}
# What a message takes at least and at most of its computed time beyond what the band allows, where the band does not
# speak of it: NCCL changes its protocol with the size, on other numbers of ranks at other sizes.
_UNLIKE_THE_BAND = 0.8, 1.0, 1.6
# What each further step of a ring adds, as a share of a pair's small all-reduce: 5.5 µs on 2 ranks with 2 steps, 7.7 on
# 4 ranks with 6 steps [H200x4, docs/method.md 4.2].
_STEP_SHARE = (7.7 / 5.5 - 1) / 4


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds by message size on one set, from a measured curve.

    A message takes as long as one of `ratio` times its bytes, the same bus bytes, on the curve. Its time beyond the
    curve's `latency` is multiplied by `stretch`, the ratio of two bandwidths, and the set's `start` is added. Unless it
    was measured, no byte takes less than `floor` seconds. `own`: the curve is of this set and operation; `ring`: it is
    made from the curve of a pair, of messages from `banded` bytes on within the set's band. `assumed` is None if it was
    measured.
    """

    curve: Curve
    ratio: float = 1.0
    latency: float = 0.0
    start: float = 0.0
    stretch: Span = _ALONE
    assumed: OfTime | None = None
    floor: float = 0.0
    own: bool = False
    ring: bool = False
    banded: float = 0.0

    def seconds(self, size_bytes: int) -> Span:
        """Return the least, middle and most seconds of a message."""
        moving = max(0.0, self.curve(size_bytes * self.ratio) - self.latency)
        least = 0.0 if self.own and self.covers(size_bytes) else size_bytes * self.floor
        doubt = _ALONE if size_bytes >= self.banded else _UNLIKE_THE_BAND
        low, middle, high = (
            max((self.start + moving * stretch) * more, least)
            for stretch, more in zip(self.stretch, doubt, strict=True)
        )
        return low, middle, high

    def covers(self, size_bytes: int) -> bool:
        """Return whether the curve was measured there."""
        return self.curve.covers(size_bytes * self.ratio)


class Timings:
    """The timing of each operation on each set that is asked for."""

    def __init__(
        self, evidence: Evidence, bands: Bands, delta: float, ports: Ports = lambda _members: (inf, False)
    ) -> None:
        """Take the evidence; `bands` predicts a set's busbw, `ports` bounds it, sets within `delta` are equal."""
        self._evidence, self._bands, self._delta, self._ports = evidence, bands, delta, ports
        self._known: dict[tuple[Operation, Members], Timing] = {}

    def of(self, operation: Operation, members: Members) -> Timing:
        """Return the timing. Raises UsageError if nothing similar was measured."""
        key = operation, tuple(sorted(members))
        if key not in self._known:
            self._known[key] = self._find(*key)
        return self._known[key]

    def _find(self, operation: Operation, members: Members) -> Timing:
        for method in (self._measured, self._alike, self._ring):
            timing = method(operation, members)
            if timing is not None:
                return replace(timing, floor=self._floor(operation, members, timing))
        names = self._evidence.tags(members)
        raise NoEvidence(
            f"cannot predict {operation.collective.title} on {names}: neither they nor all of their pairs have "
            "a time in any run; add a run of 'collbench pairs' in which no pair failed, or measure these with --devices"
        )

    def _floor(self, operation: Operation, members: Members, timing: Timing) -> float:
        """Return the least seconds that a byte takes: what each device has to send, over its port's rate.

        A switch may reduce on the way (NVLS): then an all-reduce sends its message once, less than a ring does. If only
        pairs of few ranks are known, these are taken for a ring, as in their band.
        """
        port, switched = self._ports(members)
        ring = operation.busbw_factor(len(members))
        by_switch = operation.collective.traffic.in_switch and not (timing.ring and len(members) <= FEW_RANKS)
        sent = 1.0 if switched and by_switch else ring
        return min(sent, ring) / port / 1e9

    def _measured(self, operation: Operation, members: Members) -> Timing | None:
        """Return the timing from measurements on these devices; of another operation by equal bus bytes."""
        curves = self._curves(members)
        for other in INSTEAD[operation]:
            if other in curves:
                ratio = operation.busbw_factor(len(members)) / other.busbw_factor(len(members))
                own = other is operation
                return Timing(curves[other], ratio, assumed=None if own else LikeOperation(other, ratio), own=own)
        return None

    def _alike(self, operation: Operation, members: Members) -> Timing | None:
        """Return the timing from measurements on another set of the same size with the same predicted bandwidth."""
        mine = self._bands(members)
        if mine is None:
            return None
        near: list[tuple[float, Members]] = []
        for other in self._evidence.sets:
            band = self._bands(other) if len(other) == len(members) else None
            if band is not None:
                apart = max(abs(log(band.lo / mine.lo)), abs(log(band.hi / mine.hi)))
                near += [(apart, other)] if apart <= self._delta else []
        for _, other in sorted(near):
            timing = self._measured(operation, other)
            if timing is not None:
                further = timing.assumed if isinstance(timing.assumed, LikeOperation) else None
                return Timing(timing.curve, timing.ratio, assumed=LikeSet(other, further))
        return None

    def _ring(self, operation: Operation, members: Members) -> Timing | None:
        """Return a ring's timing from the curve of the pair in the set whose bandwidth is nearest to the set's."""
        band = self._bands(members)
        slowest = min(self._pairs(operation, members, band), default=None) if band else None
        if band is None or slowest is None:
            return None
        _, gbs, pair, other = slowest
        curve, k = self._evidence.curves[other, pair], len(members)
        more = operation.collective.steps(k) - other.collective.steps(2)
        return Timing(
            curve=curve,
            ratio=operation.busbw_factor(k) / other.busbw_factor(2),
            latency=curve.latency,
            start=curve.latency * (1 + _STEP_SHARE * more),
            stretch=(gbs / band.hi, gbs / sqrt(band.lo * band.hi), gbs / band.lo),
            assumed=LikePair(band, other, pair),
            ring=True,
            banded=BANDED_BYTES if operation is Operation.ALLREDUCE else inf,
        )

    def _pairs(
        self, operation: Operation, members: Members, band: Band
    ) -> Iterator[tuple[float, float, Members, Operation]]:
        """Yield for each measured pair in a set: its distance from the set's GB/s in logs, its GB/s, and the operation.

        The set's is the middle of what pairs show. The two ends are equally far from it except for rounding. The slower
        pair then goes first, because a ring is as fast as its slowest link, and the order of the devices must not
        decide.
        """
        middle = sqrt(band.lo / band.of_pairs[0] * band.hi / band.of_pairs[1])
        for pair in combinations(members, 2):
            own, curves = self._bands(pair), self._curves(pair)
            other = next((some for some in INSTEAD[operation] if some in curves), None)
            if own is not None and other is not None:
                yield round(abs(log(own.lo / middle)), 9), own.lo, pair, other

    def _curves(self, members: Members) -> Mapping[Operation, Curve]:
        curves = self._evidence.curves
        return {operation: curves[operation, members] for operation in SENT if (operation, members) in curves}


def assumed_of(timing: Timing, sizes: Sequence[int]) -> Iterator[OfTime]:
    """Yield the assumptions about messages of these sizes in bytes; none if all were measured."""
    if timing.assumed is not None:
        yield timing.assumed
    if not all(map(timing.covers, sizes)):
        yield BeyondSizes(min(timing.curve.sizes), max(timing.curve.sizes))
