"""The figures of a run for the page's maps and curves, with intervals and shades."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from collbench.judge.outcome import Outcome, outcome, without_idle
from collbench.judge.physics import Check, Impossible, by_point
from collbench.judge.stats import summarize, time_interval
from collbench.judge.tiers import Members, kind_of, labels_of, rank_links, verdict_of, work_order
from collbench.model.operations import Endpoints, Operation, Variant, Work
from collbench.model.run import DataPoint, Measurement, Run, StopReason
from collbench.model.units import format_size
from collbench.report import sentences
from collbench.report.text.frame import device_names

# Families: the data points of a run by operation and kind of device set.


@dataclass(frozen=True, slots=True)
class Family:
    """The data points of one operation on device sets of one kind: link, pair, device or group (3 ranks or more)."""

    run: Run
    work: Work
    kind: str
    points: dict[tuple[int, Members], Measurement]

    @property
    def sizes(self) -> list[int]:
        """The sizes in bytes, ascending."""
        return sorted({size for size, _ in self.points})

    @property
    def sets(self) -> list[Members]:
        """The devices of each link, pair or set, ascending."""
        return sorted({devices for _, devices in self.points})

    @property
    def grid(self) -> list[list[Measurement | None]]:
        """The data point of each size and each set, None where there is none."""
        return [[self.points.get((size, devices)) for devices in self.sets] for size in self.sizes]


def families(run: Run) -> list[Family]:
    """Return the run's families in the model's order of operations, larger sets last."""
    groups: dict[tuple[Work, int], dict[tuple[int, Members], Measurement]] = defaultdict(dict)
    for measurement in run.measurements:
        work = measurement.point.work
        many = len(measurement.point.members) if work.operation.is_collective else 0
        groups[work, many][measurement.point.size_bytes, measurement.point.members] = measurement
    every_family = []
    for (work, many), points in sorted(groups.items(), key=lambda item: (work_order(item[0][0]), item[0][1])):
        kind = "device" if work.variant.endpoints is Endpoints.DEVICE_AND_OTHERS else kind_of(work)
        every_family.append(Family(run, work, "group" if many > 2 else kind, points))
    return every_family


def limits_of(family: Family, check: Check) -> dict[Members, float]:
    """Return the hardware's limit of each set of devices at its largest size in GB/s, where it is known.

    An access has no rate, and what more than two ranks reach depends on the algorithm.
    """
    if family.work.operation is Operation.CHASE or family.kind == "group":
        return {}
    largest = {members: family.points[size, members].point for size, members in sorted(family.points)}
    limits = {members: check.limit(point, 0.0) for members, point in largest.items()}
    return {members: limit.gbs for members, limit in limits.items() if limit is not None}


# The figures of a family.

Bounds = tuple[float | None, float | None, float | None]  # the low end of the 95% interval, the median, the high end

NOTHING: Bounds = (None, None, None)


def _name(family: Family) -> str:
    """Return a family's name in the choosers: "ce-write", "allreduce over 4 ranks"."""
    return f"{family.work} over {len(family.sets[0])} ranks" if family.kind == "group" else str(family.work)


def _rows(family: Family, bounds: Callable[[Measurement], Bounds]) -> list[list[Bounds]]:
    """Return the bounds of each data point, by size and device set; NOTHING where nothing was measured."""
    return [[bounds(one) if one is not None and one.samples else NOTHING for one in row] for row in family.grid]


def _short(value: float | None) -> float | None:
    """Return a figure with five digits: measurements have no more, and the page stays small enough for a mail."""
    if value is None:
        return None
    rounded = float(f"{value:.5g}")
    return int(rounded) if rounded == int(rounded) else rounded


# Figures: each quantity with its 95% interval and shade, which the page's script only looks up.

# The brightness of each share of the best: steeper at the top, where a slow link shows, and without steps, so that
# similar figures look similar.
_BRIGHT = ((0.0, 0.25, 0.50, 0.75, 0.90, 0.95, 0.98, 1.0), (0.0, 4.0, 8.0, 12.0, 16.0, 20.0, 23.0, 24.0))


def figures(family: Family) -> list[dict[str, Any]]:
    """Return the work's bandwidth and time."""
    if family.work.operation is Operation.CHASE:
        return [
            _figure("time", "ns an access", _rows(family, lambda measurement: _times(measurement, 1e9)), least=True)
        ]
    quantity = "bus bandwidth (busbw)" if family.work.operation.is_collective else "bandwidth"
    return [
        _figure(quantity, "GB/s", _rows(family, _rates)),
        _figure("time", "µs", _rows(family, lambda measurement: _times(measurement, 1e6)), least=True),
    ]


def _figure(title: str, unit: str, rows: Sequence[Sequence[Bounds]], *, least: bool = False) -> dict[str, Any]:
    """Return a figure with the ends of its interval; `least`: the smallest is the best."""
    low, value, high = ([[_short(three[end]) for three in row] for row in rows] for end in range(3))
    shades = [_shades(row, least=least) for row in value]
    shape = {"title": title, "unit": unit, "least": least, "shades": shades}
    return {**shape, "value": value, "low": low, "high": high}


def _shades(row: Sequence[float | None], *, least: bool) -> str:
    """Return a letter for each figure, from Y for the best shade to A for the worst; "-" where there is no figure."""
    known = [value for value in row if value]
    best = min(known, default=0.0) if least else max(known, default=0.0)
    shares = ((best / value if least else value / best) if value else None for value in row)
    return "".join(
        "-" if share is None else chr(ord("A") + round(float(np.interp(share, *_BRIGHT)))) for share in shares
    )


def _rates(measurement: Measurement) -> Bounds:
    summary = summarize(measurement)
    low, high = summary.interval or (None, None)
    return low, summary.busbw, high


def _times(measurement: Measurement, scale: float) -> Bounds:
    low, high = (None if end is None else end * scale for end in time_interval(measurement) or (None, None))
    return low, summarize(measurement).seconds * scale, high


# Series: for each family a table of sizes × device sets for each quantity, and a note for each data point.

_DIRECTED = {
    "link": "row sends to column",
    "pair": "one figure for both directions",
    "device": "each device",
    "group": "each set of devices",
}
_STOPS = {
    StopReason.BUDGET: "time budget reached before it converged",
    StopReason.INTERRUPTED: "interrupted",
    StopReason.FAILED: "stopped after a failure",
}


# What the page's script reads: each figure is a table of sizes × sets of devices. `tiers` has of each set its number
# and the first letter of its relation to the best; `notes` the index in `words` of a text on each data point.
Series = dict[str, Any]


def series(run: Run) -> list[Series]:
    """Return the run's series as JSON's own types."""
    run = without_idle(run)
    check, run_outcome, impossible_points = Check(run), outcome(run), by_point(run)
    return [
        _of_family(family, limits_of(family, check), run_outcome, impossible_points)
        for family in families(run)
        if any(measurement.samples for measurement in family.points.values())
    ]


def _of_family(
    family: Family,
    limits: Mapping[Members, float],
    run_outcome: Outcome,
    impossible_points: Mapping[DataPoint, Impossible],
) -> Series:
    run, work, sizes, sets = family.run, family.work, family.sizes, family.sets
    labels = labels_of(run, sets) if family.kind in ("link", "pair") else {}
    rankings = [None if family.kind == "group" else rank_links(run, work, size, run_outcome) for size in sizes]
    tiers = list[list[Any]]()
    for ranking in rankings:
        of_sets = {one.members: [one.tier, one.relation.value[0]] for one in (ranking.standings if ranking else ())}
        tiers.append([of_sets.get(devices, []) for devices in sets] if ranking else [])
    rows = family.grid
    return {
        "name": _name(family),
        "kind": family.kind,
        "about": _DIRECTED[family.kind],
        "collective": work.operation.is_collective,
        "sizes": sizes,
        "sets": [list(devices) for devices in sets],
        "names": [device_names(run.devices, work, devices) for devices in sets],
        "figures": figures(family),
        **_noted([[_note(run, impossible_points, one) for one in row] for row in rows]),
        "ways": "both ways together" if work.variant is Variant.BOTH_WAYS else "one way",
        "labels": [labels.get(devices, "") for devices in sets],
        "theory": [_short(limits.get(devices)) for devices in sets],
        "tiers": tiers,
        "verdicts": ["" if ranking is None else verdict_of(ranking) for ranking in rankings],
        "failed": [[at for at, one in enumerate(row) if one and one.failure and not one.samples] for row in rows],
        "size_names": [*map(format_size, sizes)],
    }


def _noted(notes: Sequence[Sequence[str]]) -> Series:
    """Return notes as indices in the list of their texts: many data points share one."""
    texts = list(dict.fromkeys(["", *(note for row in notes for note in row)]))
    return {"notes": [[texts.index(note) for note in row] for row in notes], "words": texts}


def _note(run: Run, impossible_points: Mapping[DataPoint, Impossible], measurement: Measurement | None) -> str:
    """Return what a reader must know of one data point."""
    if measurement is None:
        return ""
    notes = []
    if impossible := impossible_points.get(measurement.point):
        limit = impossible.capacity.gbs
        notes.append(f"impossible: {impossible.rate_gbs:.1f} GB/s, the limit is {limit:.1f} GB/s")
    if measurement.failure:
        notes.append(f"failed: {sentences.failure(measurement.failure, run.devices)}")
    if measurement.wrong:
        notes.append(f"{measurement.wrong} wrong elements")
    if measurement.stop in _STOPS:
        notes.append(_STOPS[measurement.stop])
    if any(sample.concurrent for sample in measurement.samples):
        notes.append("measured concurrently with others")
    notes += sorted({sentences.flag(flag, run.devices) for sample in measurement.samples for flag in sample.flags})
    return "; ".join(dict.fromkeys(notes))
