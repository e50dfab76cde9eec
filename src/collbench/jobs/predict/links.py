"""The time of a collective on a set of devices, from saved runs: measured there, or on the most similar set."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from math import inf, log, sqrt
from statistics import median

from collbench.choose.bands import BANDED_BYTES, by_pairs, predict
from collbench.choose.choice import Band, LeftOut, Members, TooFewLeft
from collbench.choose.problem import SelectionProblem, evidence, from_run, left_out
from collbench.choose.rings import MOST_MEMBERS
from collbench.choose.search import search
from collbench.choose.select import choose
from collbench.judge.fits import Curve
from collbench.judge.registration import ordinary
from collbench.judge.stats import summarize
from collbench.model.errors import UsageError
from collbench.model.operations import Operation, Variant
from collbench.model.run import Run, tags
from collbench.model.units import format_size, size_span
from collbench.report import choice_text

# Seconds: the least, the middle and the most; all equal if they were measured.
Span = tuple[float, float, float]

# What training sends, and the operations whose curve replaces one that was not measured, best first: they take as long
# for as many bus bytes.
_SENT = Operation.ALLGATHER, Operation.REDUCESCATTER, Operation.ALLREDUCE
INSTEAD = {operation: tuple(dict.fromkeys((operation, *_SENT))) for operation in _SENT}
# A message may be so many times smaller or larger than any that was measured: a line of latency and bandwidth says its
# time. Further away nothing does.
_BEYOND = 8
# What a message takes of its computed time where the band, which is of large all-reduces, does not speak of it.
_UNLIKE_THE_BAND = 0.8, 1.0, 1.6
# What each further step of a ring adds, as a share of a pair's small all-reduce: 5.5 µs on 2 ranks with 2 steps, 7.7 on
# 4 ranks with 6 steps [H200x4, docs/method/collectives.md 2].
_STEP_SHARE = (7.7 / 5.5 - 1) / 4
# Without measured pairs, sets are ordered by their all-reduce of this size, DDP's bucket.
_RANKED_BYTES = 25 * 2**20
# Sets whose bound is judged exactly, slowest first: bounds rarely leave more open.
_MOST_JUDGED = 300
# Container images set it; it is not the version of the loaded library.
_SAYS_NOTHING = "NCCL_VERSION"


class NoEvidence(UsageError):
    """Nothing that was measured says how long a collective takes on these devices."""


@dataclass(frozen=True, slots=True)
class Price:
    """The isolated seconds of one call; `assumed` is "" if they were measured on these devices."""

    seconds: Span
    assumed: str = ""


@dataclass(frozen=True, slots=True)
class _Timing:
    """Seconds by message size on one set, from a measured curve.

    A message takes as long as one of `ratio` times its bytes on the curve. Of a ring, whose pair has the curve, the
    time beyond the pair's latency is multiplied by `stretch`, and `start` replaces that latency.
    """

    curve: Curve
    ratio: float = 1.0
    assumed: str = ""
    stretch: Span | None = None
    start: float = 0.0
    banded: float = inf  # bytes from which the band says how long a message takes

    def price(self, size_bytes: int) -> Price:
        """Return the price of a message. Raises NoEvidence for a size that is too far from the measured ones."""
        size, least, most = size_bytes * self.ratio, self.curve.sizes[0], self.curve.sizes[-1]
        if not least / _BEYOND <= size <= most * _BEYOND:
            raise NoEvidence(
                f"a message of {format_size(size_bytes)} is too far from the measured sizes, "
                f"{size_span((least, most))}: measure with --sizes up to {format_size(size_bytes)}"
            )
        beyond = "" if least <= size <= most else f"sizes beyond {size_span((least, most))}: by latency and bandwidth"
        assumed = "; ".join(filter(None, (self.assumed, beyond)))
        seconds = self.curve(size)
        if self.stretch is None:
            return Price((seconds, seconds, seconds), assumed)
        moving = max(0.0, seconds - self.curve.latency)
        doubt = (1.0, 1.0, 1.0) if size_bytes >= self.banded else _UNLIKE_THE_BAND
        low, middle, high = ((self.start + moving * a) * b for a, b in zip(self.stretch, doubt, strict=True))
        return Price((low, middle, high), assumed)


@dataclass(frozen=True, slots=True)
class Sets:
    """The best set of k devices, and the worst; None, and a `note` why, if no set is known to be worse."""

    best: Members
    worst: Members | None = None
    note: str = ""


class Links:
    """What saved runs of one machine say about the time of collectives.

    `run` is the run that devices are chosen from: the one with the most devices, then the most pairs.
    """

    def __init__(self, runs: Sequence[tuple[str, Run]]) -> None:
        """Take runs, each with its file's name. Raises UsageError if they do not fit together, or lack collectives."""
        runs = [(name, ordinary(run)) for name, run in runs]
        name, self.run = max(runs, key=lambda named: (len(named[1].devices), _pairs(named[1])))
        points: dict[tuple[Operation, Members], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
        position_of = {device.uuid: position for position, device in reversed([*enumerate(self.run.devices)])}
        for other, run in runs:
            _check(name, self.run, other, run)
            for operation, members, size, seconds in _points(run):
                here = tuple(sorted(position_of[run.devices[member].uuid] for member in members))
                points[operation, here][size].append(seconds)
        if not any(operation in INSTEAD for operation, _ in points):
            files = ", ".join(name for name, _ in runs)
            raise UsageError(
                f"{files}: no all-reduce, all-gather or reduce-scatter was measured: run 'collbench pairs' first"
            )
        self._curves = {key: Curve({size: median(own) for size, own in sizes.items()}) for key, sizes in points.items()}
        self._known: dict[tuple[Operation, Members], _Timing] = {}

    @cached_property
    def left_out(self) -> tuple[LeftOut, ...]:
        """The devices that are faulty."""
        return left_out(self.run, allow_busy=True)

    @cached_property
    def _problem(self) -> SelectionProblem | None:
        gone = {left.member for left in self.left_out}
        fit = [position for position in range(len(self.run.devices)) if position not in gone]
        ranking = evidence(self.run, fit)
        return None if ranking is None else from_run(self.run, fit, ranking)

    def price(self, operation: Operation, size_bytes: int, members: Members) -> Price:
        """Return the price of a call on devices, by position. Raises NoEvidence."""
        key = operation, tuple(sorted(members))
        if key not in self._known:
            self._known[key] = self._timing(*key)
        return self._known[key].price(size_bytes)

    def _timing(self, operation: Operation, members: Members) -> _Timing:
        timing = self._measured(operation, members) or self._alike(operation, members) or self._ring(operation, members)
        if timing is None:
            raise NoEvidence(
                f"cannot predict {operation.collective.title} on {tags(members, self.run.devices)}: neither they nor "
                "all of their pairs have a time in any run; add a run of 'collbench pairs' in which no pair failed, or "
                "measure these with --devices"
            )
        return timing

    def _measured(self, operation: Operation, members: Members) -> _Timing | None:
        """Return the timing from measurements on these devices; of another operation by equal bus bytes."""
        for other in INSTEAD.get(operation, (operation,)):
            if (other, members) in self._curves:
                ratio = operation.busbw_factor(len(members)) / other.busbw_factor(len(members))
                assumed = "" if other is operation else f"as {other.collective.title} of as many bus bytes"
                return _Timing(self._curves[other, members], ratio, assumed)
        return None

    def _alike(self, operation: Operation, members: Members) -> _Timing | None:
        """Return the timing measured on the set of as many devices whose predicted bandwidth is equal."""
        mine = self._band(members)
        if mine is None or self._problem is None or operation not in INSTEAD:
            return None
        for other in sorted({own for _, own in self._curves if len(own) == len(members)}):
            band, timing = self._band(other), self._measured(operation, other)
            apart = inf if band is None else max(abs(log(band.lo / mine.lo)), abs(log(band.hi / mine.hi)))
            if timing is not None and apart <= self._problem.delta:
                assumed = "; ".join(filter(None, (f"as on {tags(other, self.run.devices)}", timing.assumed)))
                return _Timing(timing.curve, timing.ratio, assumed)
        return None

    def _ring(self, operation: Operation, members: Members) -> _Timing | None:
        """Return a ring's timing from the curve of the pair in the set whose bandwidth is nearest to the set's."""
        band, k = self._band(members), len(members)
        if band is None or operation not in INSTEAD:
            return None
        middle = sqrt(band.lo / band.of_pairs[0] * band.hi / band.of_pairs[1])
        near: list[tuple[float, float, Members, Operation]] = []
        for pair in map(tuple, combinations(members, 2)):
            own = self._band(pair)
            other = next((some for some in INSTEAD[operation] if (some, pair) in self._curves), None)
            if own is not None and other is not None:
                # Equally far except for rounding: the slower one, because a ring is as fast as its slowest link.
                near.append((round(abs(log(own.lo / middle)), 9), own.lo, pair, other))
        if not near:
            return None
        _, gbs, pair, other = min(near)
        curve = self._curves[other, pair]
        further_steps = operation.collective.steps(k) - other.collective.steps(2)
        return _Timing(
            curve,
            operation.busbw_factor(k) / other.busbw_factor(2),
            f"a ring at {choice_text.band(band)} from the {other.collective.title} of {tags(pair, self.run.devices)}",
            (gbs / band.hi, gbs / sqrt(band.lo * band.hi), gbs / band.lo),
            curve.latency * (1 + _STEP_SHARE * further_steps),
            BANDED_BYTES if operation is Operation.ALLREDUCE else inf,
        )

    def _band(self, members: Members) -> Band | None:
        """Return the all-reduce busbw that a set is predicted to reach, GB/s; None if pairs do not show it."""
        problem = self._problem
        if problem is None or not set(members) <= set(problem.order):
            return None
        band = predict(problem.wired.of(sorted(problem.order.index(member) for member in members)))
        return band if band.lo > 0 else None

    def counts(self) -> tuple[int, ...]:
        """Return 2, 4, 8, … and all devices; without pairs the numbers that a collective was measured on."""
        measured, devices = {len(members) for _, members in self._curves}, len(self.run.devices)
        doubled = {2**power for power in range(1, devices.bit_length())} | {devices}
        return tuple(sorted(doubled if 2 in measured else measured))

    def sets(self, k: int) -> Sets:
        """Return the k devices that `select` chooses, and the worst k. Raises UsageError for an impossible k."""
        fit = len(self.run.devices) - len(self.left_out)
        if not 2 <= k <= fit:
            raise TooFewLeft(k, self.run.devices, self.left_out, predicting=True)
        problem = self._problem
        if problem is None or len(problem.order) < k:
            measured = sorted(
                {own for operation, own in self._curves if operation in INSTEAD and len(own) == k},
                key=lambda own: self.price(Operation.ALLREDUCE, _RANKED_BYTES, own).seconds[1],
            )
            if not measured:
                raise NoEvidence(
                    f"cannot predict for {k} devices: neither pairs nor a collective on {k} of them was measured; add "
                    "the run file of 'collbench pairs'"
                )
            one = len(measured) == 1
            return Sets(measured[0], None if one else measured[-1], "the one set that was measured" if one else "")
        best = choose(self.run, k, allow_busy=True).members
        if k == len(problem.order):
            return Sets(best, note="there is one set")
        if problem.tied:
            return Sets(best, note=choice_text.grounds(problem.grounds))
        if len(problem.order) > MOST_MEMBERS:
            return Sets(best, note=f"too many sets to find the worst: more than {MOST_MEMBERS} devices")
        worst = _worst(problem, k)
        slower = worst is not None and worst != best
        return Sets(best, worst if slower else None, "" if slower else "no set is predicted to be slower")


def _worst(problem: SelectionProblem, k: int) -> Members | None:
    """Return the set with the lowest predicted bandwidth; None if no set's is known."""
    candidates = search(problem.wired, k, problem.delta)
    order = candidates.lo.argsort(kind="stable")[:_MOST_JUDGED]
    # Of meshes that cannot be best, `lo` is a bound: the rate over PCIe or of a single ring.
    rates = {tuple(candidates.sets[at].tolist()): by_pairs(problem.wired.of(candidates.sets[at])).lo for at in order}
    known = [members for members, rate in rates.items() if rate > 0]
    slowest = min(known, key=lambda members: rates[members], default=None)
    return None if slowest is None else tuple(sorted(problem.order[index] for index in slowest))


def _points(run: Run) -> Iterator[tuple[Operation, Members, int, float]]:
    """Yield the seconds of each sound data point of a collective, by operation, members and size.

    Out of place, or else in place. Collectives with block sizes of their own are left out: a job has only their sum.
    """
    points = {m.point: m for variant in (Variant.IN_PLACE, Variant.PLAIN) for m in run.measured(variant)}
    plain = {(c.operation, c.members, c.size_bytes) for c in points if c.variant is Variant.PLAIN}
    for point, measured in points.items():
        operation, members, size = point.operation, point.members, point.size_bytes
        sound = operation.is_collective and not (operation.collective.irregular or measured.wrong or measured.failure)
        if sound and (point.variant is Variant.PLAIN or (operation, members, size) not in plain):
            yield operation, members, size, summarize(measured).seconds


def _pairs(run: Run) -> int:
    return len({frozenset(m.point.members) for m in run.measured() if len(m.point.members) == 2})


def _check(name: str, base: Run, other: str, run: Run) -> None:
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
