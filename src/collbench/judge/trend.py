"""Many runs over time: the worst and the median rate of each work at its largest size, against the first run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from collbench.judge.compare import (
    STARTED,
    Comparison,
    Difference,
    Verdict,
    compare,
    differences,
    match_devices,
)
from collbench.judge.data_points import Key, points_by_key
from collbench.judge.stats import summarize
from collbench.model.operations import Operation
from collbench.model.run import Measurement, Run


@dataclass(frozen=True, slots=True)
class Point:
    """One run's figures of a work at a size, GB/s. `worst` are positions of the first run; `change` is of the median.

    `worse` counts the data points of this work and size that are significantly worse than in the first run, `compared`
    all of them.
    """

    run: int
    worst: tuple[int, ...]
    worst_gbs: float
    median_gbs: float
    change: float
    worse: int
    compared: int


@dataclass(frozen=True, slots=True)
class Line:
    """One work at the largest size that all runs have of it, with a point for each run, by date."""

    work: str
    size_bytes: int
    device_sets: int
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Trend:
    """Runs by date, their lines, and the last one data point by data point against the first.

    `steps` has for each run what else differs from the run before it: NCCL, driver, host, ….
    """

    runs: tuple[Run, ...]
    steps: tuple[tuple[Difference, ...], ...]
    lines: tuple[Line, ...]
    last: Comparison


def by_date(runs: Sequence[Run]) -> list[int]:
    """Return the runs' positions, oldest first; those of one second as given."""
    return sorted(range(len(runs)), key=lambda position: runs[position].started)


def trend(
    runs: Sequence[Run], fail_below: float, operation: Operation | None = None, history: Sequence[Run] = ()
) -> Trend:
    """Return what became of the first run; `runs` are sorted by date, two at least; `history` is that of `compare`."""
    first, *later = runs
    all_points = [points_by_key(first), *(points_by_key(run, match_devices(first, run).positions) for run in later)]
    compared = [compare(first, run, fail_below, operation, history) for run in later]
    common = set.intersection(*(set(points) for points in all_points))
    works = {key.work for key in common if operation in (None, all_points[0][key].point.operation)}
    lines = []
    for work in sorted(works):
        size = max(key.size_bytes for key in common if key.work == work)
        keys = sorted(key for key in common if key.work == work and key.size_bytes == size)
        lines.append(_line(work, keys, all_points, compared))
    steps: list[tuple[Difference, ...]] = [()]
    for before, run in pairwise(runs):
        changed = differences(before, run, match_devices(before, run).positions)
        # The page shows each run with its date.
        steps.append(tuple(one for one in changed if one.what != STARTED))
    return Trend(tuple(runs), tuple(steps), tuple(lines), compared[-1])


def _line(work: str, keys: list[Key], runs: list[dict[Key, Measurement]], compared: list[Comparison]) -> Line:
    wanted = set(keys)
    worse_keys = [{change.key for change in one.changes if change.verdict is Verdict.WORSE} for one in compared]
    worse = [0, *(len(slower & wanted) for slower in worse_keys)]
    points: list[Point] = []
    for index, point_of in enumerate(runs):
        rates = {key: summarize(point_of[key]).busbw for key in keys}
        slowest = min(keys, key=lambda key: (rates[key], key))
        middle = median(rates.values())
        start = points[0].median_gbs if points else middle
        points.append(
            Point(index, slowest.members, rates[slowest], middle, middle / start - 1, worse[index], len(keys))
        )
    return Line(work, keys[0].size_bytes, len(keys), tuple(points))
