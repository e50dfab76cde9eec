"""Many runs over time: by date, each work at its largest size, the change from the first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from collbench.judge.compare import Difference
from collbench.judge.trend import by_date, trend
from tests.builders import pair_run
from tests.judge.runs import FAIL, copies, scaled

DAYS = ("2026-03-01T00:00:00Z", "2026-03-02T00:00:00Z", "2026-03-03T00:00:00Z")


def test_each_run_has_its_median_its_worst_place_and_the_change_from_the_first() -> None:
    rates: list[dict[tuple[int, int], float]] = [{}, {(0, 2): 150.0}, {(0, 2): 150.0, (1, 2): 270.0}]
    runs = [
        replace(pair_run(3, lambda a, b, slow=slow: slow.get((a, b), 300.0)), started=day)  # type: ignore[misc]
        for slow, day in zip(rates, DAYS, strict=True)
    ]
    found = trend(runs, FAIL)
    (line,) = found.lines
    assert (line.work, line.size_bytes, line.device_sets) == ("allreduce", 2**30, 3)
    assert [(point.worst, point.worse) for point in line.points[1:]] == [((0, 2), 1), ((0, 2), 2)]
    assert [point.worst_gbs for point in line.points[1:]] == pytest.approx([150.0, 150.0])
    assert [point.median_gbs for point in line.points] == pytest.approx([300.0, 300.0, 270.0])
    assert [point.change for point in line.points] == pytest.approx([0.0, 0.0, -0.1])
    assert {change.key.members for change in found.last.regressions if hasattr(change, "key")} == {(0, 2), (1, 2)}


def test_two_runs_are_a_trend_and_each_change_is_from_the_first() -> None:
    runs = [
        replace(pair_run(2, lambda a, b, gbs=gbs: gbs), started=day)  # type: ignore[misc]
        for gbs, day in zip((300.0, 150.0, 270.0), DAYS, strict=True)
    ]
    assert [point.change for point in trend(runs, FAIL).lines[0].points] == pytest.approx([0.0, -0.5, -0.1])
    two = trend(runs[:2], FAIL)
    assert two.last.new is runs[1]
    assert [point.change for point in two.lines[0].points] == pytest.approx([0.0, -0.5])


def test_a_dip_that_is_over_is_no_regression() -> None:
    runs = [copies(), scaled(copies(seed=1), 1.25), copies(seed=2)]
    found = trend([replace(run, started=day) for run, day in zip(runs, DAYS, strict=True)], FAIL)
    assert found.last.regressions == ()
    assert [point.worse for point in found.lines[0].points] == [0, 12, 0]


def test_runs_are_sorted_by_date() -> None:
    runs = [replace(copies(), started=DAYS[place]) for place in (2, 0, 1)]
    assert by_date(runs) == [1, 2, 0]


def test_what_else_changed_is_said_of_the_run_in_which_it_changed() -> None:
    runs = [replace(copies(seed=index), started=day) for index, day in enumerate(DAYS)]
    for run in runs[1:]:
        run.machine = replace(run.machine, nccl="2.30.1")
    runs[2].machine = replace(runs[2].machine, driver="590.1", hostname="other")
    assert trend(runs, FAIL).steps == (
        (),
        (Difference("NCCL", "2.28.9", "2.30.1"),),
        (
            Difference("hostname", runs[0].machine.hostname, "other"),
            Difference("driver", "580.159.04", "590.1"),
        ),
    )
