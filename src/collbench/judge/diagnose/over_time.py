"""GPUs that were slower for part of a run: the passes of a run against each other (docs/method/verdicts.md 5)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from statistics import NormalDist, median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collbench.judge.diagnose.blame import UnhealthyDevices
from collbench.judge.diagnose.readings import RELATIVE_BYTES, Facts
from collbench.judge.diagnose.verdict import Cause, Finding, Kind, Verdict
from collbench.judge.diagnose.words import on
from collbench.judge.stats import FEWEST_TRIALS, trial_seconds
from collbench.model.run import tags

# In at most so many runs chance alone names a device.
_CHANCE_OF_ANY = 0.001
# docs/method/verdicts.md 5: 5%, as a difference of log times, against data points of other devices; without these 10%,
# because a machine that warms up slows down everywhere.
_LEAST, _LEAST_ALONE = -math.log(0.95), -math.log(0.9)
_ENOUGH_POINTS = 8
_CHANGED = Cause(
    "changed", "clocks, heat or a power limit changed during the run, or another job was there for a part of it"
)

_Array = NDArray[np.float64]


class _Trials(NamedTuple):
    """Log times of large messages, shape (data points, passes), NaN where there is none; σ, ∞ if unknown.

    `touches`: which data points each device has a part in.
    """

    logs: _Array
    sigma: _Array
    touches: NDArray[np.bool_]  # shape (devices, data points)

    def without(self, devices: Sequence[int]) -> _Trials:
        """Return the data points that touch none of these devices."""
        left = ~self.touches[list(devices)].any(axis=0)
        return _Trials(self.logs[left], self.sigma[left], self.touches[:, left])


class _Slow(NamedTuple):
    """Devices that were slower, as a difference of log times, from one pass (from 0) to before another."""

    devices: tuple[int, ...]
    by: float
    begin: int
    end: int


def unsteady(facts: Facts, unhealthy: UnhealthyDevices) -> Iterator[Finding]:
    """Yield the devices whose data points are slower in some passes than in others, while those of others are not.

    Of CPU cores none: other programs disturb them all the time.
    """
    trials = None if facts.on_cores else _trials(facts)
    while trials is not None and len(trials.logs):
        slow = _slowest(trials)
        if slow is None:
            return
        first, last, passes = slow.begin + 1, slow.end, trials.logs.shape[1]
        part = f"pass {first}" if first == last else f"passes {first} to {last}"
        gpus = on(facts.run, slow.devices)
        verdict = Verdict(
            Kind.UNSTEADY,
            slow.devices,
            place=tags(slow.devices, facts.run.devices),
            text=f"{1 - math.exp(-slow.by):.0%} slower in {part} of {passes} than in the others",
            cause=unhealthy.cause(slow.devices) or _CHANGED,
            fix=(
                f"nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER{gpus}; "
                f"nvidia-smi{gpus} --query-compute-apps=pid,name,used_memory --format=csv"
            ),
        )
        yield Finding(verdict, frozenset())
        trials = trials.without(slow.devices)


def _trials(facts: Facts) -> _Trials | None:
    """Return the passes' trials of large messages; those that confirm something were made in no pass."""
    points = []
    for one in facts.run.measurements:
        passes = [sample for sample in one.samples if not sample.confirms]
        if one.point.size_bytes >= RELATIVE_BYTES and len(passes) >= FEWEST_TRIALS:
            points.append((one, np.log(trial_seconds(replace(one, samples=passes)))))
    if not points:
        return None
    logs = np.full((len(points), max(len(times) for _, times in points)), np.nan)
    for row, (_, times) in zip(logs, points, strict=True):
        row[: len(times)] = times
    return _Trials(
        logs,
        np.array([one.noise.sigma * one.noise.widening if one.noise else math.inf for one, _ in points]),
        np.array([[device in one.point.members for one, _ in points] for device in range(len(facts.run.devices))]),
    )


def _slowest(trials: _Trials) -> _Slow | None:
    """Return the devices that were slowed down the most for some passes in a row; None if noise may be all."""
    windows = [*combinations(range(trials.logs.shape[1] + 1), 2)]
    z = NormalDist().inv_cdf(1 - _CHANCE_OF_ANY / len(windows) / len(trials.touches))
    found: list[_Slow] = []
    for begin, end in windows:
        inside = np.zeros(trials.logs.shape[1], dtype=bool)
        inside[begin:end] = True
        here, there = trials.logs[:, inside], trials.logs[:, ~inside]
        counts = [(~np.isnan(part)).sum(axis=1) for part in (here, there)]
        both = (counts[0] > 0) & (counts[1] > 0)
        if not both.any():
            continue
        slower = np.nanmean(here[both], axis=1) - np.nanmean(there[both], axis=1)
        error = trials.sigma[both] * np.sqrt(1 / counts[0][both] + 1 / counts[1][both])
        for device, touched in enumerate(trials.touches[:, both]):
            if _is_slower(slower, error, touched, z):
                found.append(_Slow((device,), float(slower[touched].mean()), begin, end))
    if not found:
        return None
    worst = max(found, key=lambda one: one.by)
    touched = trials.touches[worst.devices[0]]
    alike = [device for device, others in enumerate(trials.touches) if np.array_equal(others, touched)]
    return worst._replace(devices=tuple(alike))


def _is_slower(slower: _Array, error: _Array, touched: NDArray[np.bool_], z: float) -> bool:
    """Return whether the data points of a device were slower, and more so than those of others if there are enough."""
    others = ~touched
    if not touched.any():
        return False
    by, typical = float(slower[touched].mean()), median(slower[touched].tolist())
    errors, least = [_error(slower[touched], error[touched])], _LEAST_ALONE
    if others.sum() >= _ENOUGH_POINTS:
        by, typical, least = by - float(slower[others].mean()), typical - median(slower[others].tolist()), _LEAST
        errors.append(_error(slower[others], error[others]))
    # A few wild trials move the mean: a device that was slower moves most of its data points.
    return typical > least and by > max(least, z * math.hypot(*errors))


def _error(slower: _Array, error: _Array) -> float:
    """Return the standard error of the mean of some data points; many show it themselves.

    What σ says of them is too much: if their device had two rates, so had they.
    """
    if len(slower) >= _ENOUGH_POINTS:
        return float(slower.std(ddof=1)) / math.sqrt(len(slower))
    return math.sqrt(float((error**2).sum())) / len(slower)
