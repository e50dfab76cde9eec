"""The maps of overlaps in the HTML page: for each operation one of sizes × conditions (compute, priority, CTAs)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from collbench.model.run import Run
from collbench.overlaps.factors import Condition, Figure, OverlapSummary, by_condition, summarize
from collbench.overlaps.page import condition_name
from collbench.overlaps.results import Overlap, overlaps_of
from collbench.report import sentences
from collbench.report.html.series import NOTHING, Bounds, Series, bounds, figure

_TIMES = "× as long"  # not "×", the unit of ratios between runs, which have other shades


def series(run: Run) -> list[dict[str, Any]]:
    """Return a series for each operation of a run of `collbench overlap`, as JSON's own types."""
    conditions = by_condition(overlaps_of(run))
    operations = dict.fromkeys(condition.operation for condition in conditions)
    return [
        _overlaps(run, {key: overlaps for key, overlaps in conditions.items() if key.operation is operation})
        for operation in operations
        if any(one.trials for key, overlaps in conditions.items() if key.operation is operation for one in overlaps)
    ]


def _overlaps(run: Run, conditions: Mapping[Condition, Sequence[Overlap]]) -> dict[str, Any]:
    points = {(one.size_bytes, key): one for key, overlaps in conditions.items() for one in overlaps}
    sizes, keys = sorted({size for size, _ in points}), list(conditions)
    operation = keys[0].operation
    summaries = {at: summarize(one) for at, one in points.items() if one.trials}

    def of_all(pick: Callable[[OverlapSummary], Figure], scale: float = 1.0) -> list[list[Bounds]]:
        picked = {at: pick(summary) for at, summary in summaries.items()}
        known = {at: bounds(value.value, value.interval, scale) for at, value in picked.items()}
        return [[known.get((size, key), NOTHING) for key in keys] for size in sizes]

    rows = [[points.get((size, key)) for key in keys] for size in sizes]
    return Series(
        name=f"{operation} overlapping compute",
        kind="group",
        about="each compute and setting",
        collective=True,
        sizes=sizes,
        sets=[overlaps[0].members for overlaps in conditions.values()],
        names=[condition_name(key) for key in keys],
        figures=[
            figure("slowdown of the collective", _TIMES, of_all(lambda one: one.collective_factor), least=True),
            figure("slowdown of compute", _TIMES, of_all(lambda one: one.compute_factor), least=True),
            figure("both together / the longer time alone", _TIMES, of_all(lambda one: one.of_max), least=True),
            figure("both together / the sum of the times alone", _TIMES, of_all(lambda one: one.of_sum), least=True),
            figure("time alone", "µs", of_all(lambda one: one.collective_alone, 1e6), least=True),
            figure("time overlapping compute", "µs", of_all(lambda one: one.collective_beside, 1e6), least=True),
        ],
        notes=[
            [f"failed: {sentences.failure(one.failure, run.devices)}" if one and one.failure else "" for one in row]
            for row in rows
        ],
        failed=[[at for at, one in enumerate(row) if one and one.failure and not one.trials] for row in rows],
    ).as_json()
