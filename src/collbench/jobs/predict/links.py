"""The time of a collective on a set of devices, from saved runs that measured it there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from collbench.choose.fitness import left_out
from collbench.judge.stats import summarize
from collbench.model.errors import UsageError
from collbench.model.operations import Operation, Variant
from collbench.model.run import Members, Run, capabilities, ordinary, tags
from collbench.model.units import amount, format_message_size, format_size, size_span

# What training sends, and the operations whose curve replaces one that was not measured, best first: they take equally
# long for equal bus bytes.
_SENT = Operation.ALLGATHER, Operation.REDUCESCATTER, Operation.ALLREDUCE
INSTEAD = {operation: tuple(dict.fromkeys((operation, *_SENT))) for operation in _SENT}
# How many times smaller or larger than every measured size a message may be.
_BEYOND = 8
# Sets are ordered by their all-reduce of this size, DDP's bucket.
_RANKED_BYTES = 25 * 2**20
# Container images set it; it is not the version of the loaded library.
_SAYS_NOTHING = "NCCL_VERSION"


class NoEvidence(UsageError):
    """Nothing that was measured says how long a collective takes on these devices."""


@dataclass(frozen=True, slots=True)
class Price:
    """The isolated seconds of one call; `assumed` is "" if this operation was measured around this size."""

    seconds: float
    assumed: str = ""


def unmeasured(devices: str) -> NoEvidence:
    """Return the error of so many devices that no run has a collective on; `devices` counts them: "2 devices"."""
    advice = "measure it with 'collbench allreduce --devices LIST'"
    return NoEvidence(f"cannot predict for {devices}: no run has a collective on so many; {advice}")


class Links:
    """What saved runs of one machine say about the time of collectives; `run` is the one with the most devices."""

    def __init__(self, runs: Sequence[tuple[str, Run]]) -> None:
        """Take runs, each with its file's name. Raises UsageError if they do not fit together, or lack collectives."""
        runs = [(name, ordinary(run)) for name, run in runs]
        name, self.run = max(runs, key=lambda named: len(named[1].devices))
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

    def price(self, operation: Operation, size_bytes: int, members: Members) -> Price:
        """Return the price of a call on devices, by position. Raises NoEvidence."""
        key = tuple(sorted(members))
        other = next((alike for alike in INSTEAD.get(operation, (operation,)) if (alike, key) in self._curves), None)
        if other is None:
            indices = ",".join(str(self.run.devices[position].index) for position in key)
            raise NoEvidence(
                f"no run has the time of {operation.collective.title} on {tags(key, self.run.devices)}: measure it "
                f"with 'collbench {operation} --devices {indices}'"
            )
        curve = self._curves[other, key]
        size = size_bytes * operation.busbw_factor(len(key)) / other.busbw_factor(len(key))
        least, most = curve.sizes[0], curve.sizes[-1]
        if not least / _BEYOND <= size <= most * _BEYOND:
            ends = min(size_bytes, least), max(size_bytes, most)
            needed = ":".join(format_size(end).removesuffix(" B") for end in ends)
            raise NoEvidence(
                f"a message of {format_message_size(size_bytes)} is too far from the measured sizes, "
                f"{size_span((least, most))}: measure with --sizes {needed}"
            )
        instead = "" if other is operation else f"as {other.collective.title} of as many bus bytes"
        beyond = "" if least <= size <= most else f"sizes outside {size_span((least, most))}: by latency and bandwidth"
        return Price(curve(size), "; ".join(filter(None, (instead, beyond))))

    def counts(self) -> tuple[int, ...]:
        """Return the numbers of devices that a collective was measured on."""
        return tuple(sorted({len(members) for operation, members in self._curves if operation in INSTEAD}))

    def sets(self, k: int) -> list[Members]:
        """Return the measured sets of k devices that have no fault, the fastest first. Raises NoEvidence.

        One that was measured only far from the size that orders them is left out, as in an interrupted run.
        """
        faulty = {device.member for device in left_out(self.run, allow_busy=True)}
        curves = {
            members: curve
            for (operation, members), curve in self._curves.items()
            if operation in INSTEAD and len(members) == k and faulty.isdisjoint(members)
        }
        if not curves:
            fit = f" without {tags(tuple(sorted(faulty)), self.run.devices)} (faulty)" if faulty else ""
            raise unmeasured(f"{amount(k, 'device')}{fit}")
        size = min(
            max(_RANKED_BYTES, *(curve.sizes[0] for curve in curves.values())),
            max(curve.sizes[-1] for curve in curves.values()),
        )
        seconds: dict[Members, float] = {}
        unpriced: list[NoEvidence] = []
        for members in curves:
            try:
                seconds[members] = self.price(Operation.ALLREDUCE, size, members).seconds
            except NoEvidence as error:
                unpriced.append(error)
        if not seconds:
            raise unpriced[0]
        return sorted(seconds, key=lambda members: (seconds[members], members))


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


def _check(name: str, base: Run, other: str, run: Run) -> None:
    """Raise UsageError for a run that is not of GPUs, or not of the base's machine and settings."""
    if capabilities(run.backend).cores:
        raise UsageError(f"{other} was measured on CPU cores: name a run of GPUs")
    if (base.backend, base.machine.fabric) != (run.backend, run.machine.fabric):
        kinds = " and ".join(sorted({f"{side.backend} {side.machine.fabric}".strip() for side in (base, run)}))
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
    return {name: value for name, value in run.settings.environment.items() if name != _SAYS_NOTHING}


# Times over message sizes, from a few measured ones (docs/method/predicting.md 1).


class Curve:
    """Seconds of one operation on one set of devices, by message size in bytes: never less for more bytes.

    A straight line between measured sizes, as latency and bandwidth have it. Below them the line of the two smallest
    goes on, but no message is faster per byte than the smallest; above them a larger message takes longer than the
    largest by what the bytes between smallest and largest took.
    """

    def __init__(self, points: Mapping[int, float]) -> None:
        """Take seconds by size in bytes, at least one of them, all positive."""
        self.sizes = tuple(sorted(points))
        self._seconds = np.maximum.accumulate([points[size] for size in self.sizes])
        first, last = self.sizes[0], self.sizes[-1]
        rise = self._seconds[-1] - self._seconds[0]
        self._per_byte = rise / (last - first) if rise else self._seconds[-1] / last
        slopes = np.diff(self._seconds[:2]) / np.diff(self.sizes[:2])
        self._per_byte_below = min([*slopes, self._seconds[0] / first])

    def __call__(self, size_bytes: float) -> float:
        """Return the seconds of a message; 0 of nothing."""
        if size_bytes <= 0:
            return 0.0
        below = max(0.0, self.sizes[0] - size_bytes) * self._per_byte_below
        beyond = max(0.0, size_bytes - self.sizes[-1]) * self._per_byte
        return float(np.interp(size_bytes, self.sizes, self._seconds) - below + beyond)
