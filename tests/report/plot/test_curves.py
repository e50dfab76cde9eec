"""Curves: lines whose points are the run's, bands, theory, and when many become few."""

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations, permutations
from pathlib import Path

import numpy as np
import pytest

from collbench.model.operations import Operation, Work
from collbench.model.run import Measurement, Run
from collbench.report.plot.figure import Picture
from collbench.runfile import run_file
from tests.builders import GIB, gpus, in_words, measured, paths, run_of
from tests.report.plot.pictures import curve_picture, drawn, ink_at_the_edges, named, svg_of

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
MIB = 2**20
SUM, WRITE = Work(Operation.ALLREDUCE), Work(Operation.CE_WRITE)


def sums(*sets: tuple[int, ...], gbs: float = 200.0, devices: int = 4, **changes: object) -> Run:
    points = [measured(Operation.ALLREDUCE, some, gbs * share, size) for some in sets for size, share in POINTS.items()]
    links = tuple(replace(path, theory_gbs=450.0) for path in paths(devices))
    return replace(run_of(gpus(devices), points, links), **changes)  # type: ignore[arg-type]


POINTS = {MIB: 0.25, 2**28: 0.75, GIB: 1.0}  # share of the highest rate
PAIRS = tuple(combinations(range(4), 2))


def test_each_of_a_few_pairs_is_a_line_with_the_runs_points() -> None:
    lines = drawn(curve_picture([(named(sums((0, 1), (2, 3))), SUM)]))
    assert lines == {
        name: {float(size): pytest.approx(200.0 * share) for size, share in POINTS.items()}
        for name in ("GPU0, GPU1 (NV18)", "GPU2, GPU3 (NV18)")
    }


def test_more_than_eight_links_become_a_line_for_each_tier() -> None:
    points = [
        measured(Operation.CE_WRITE, (a, b), 100.0 if a == 3 else 300.0 + 2 * b, size)
        for a, b in permutations(range(4), 2)
        for size in (MIB, GIB)
    ]
    picture = curve_picture([(named(run_of(gpus(4), points)), WRITE)])
    lines = drawn(picture)
    # 9 links at 300, 302, 304, 306 by their end: two at 300, two at 302, two at 304, three at 306.
    assert lines == {
        "tier 1, median of 9": {float(MIB): pytest.approx(304.0), float(GIB): pytest.approx(304.0)},
        "tier 2, median of 3": {float(MIB): pytest.approx(100.0), float(GIB): pytest.approx(100.0)},
    }
    assert "slowest to fastest" in picture.figure.axes[0].get_xlabel()
    band = picture.figure.axes[0].collections[0].get_paths()[0].vertices
    assert (np.asarray(band)[:, 1].min(), np.asarray(band)[:, 1].max()) == pytest.approx((300.0, 306.0))


def test_a_line_has_its_interval_as_a_band() -> None:
    wide = [150.0, 150.0, 190.0, 200.0, 210.0, 250.0, 250.0]
    points = [measured(Operation.ALLREDUCE, (0, 1), wide, size) for size in (MIB, GIB)]
    (axes,) = curve_picture([(named(run_of(gpus(2), points)), SUM)]).figure.axes
    heights = np.asarray(axes.collections[0].get_paths()[0].vertices)[:, 1]
    # Of 14 batches the 95% interval ends at the third from either side [Hahn & Meeker, table A.15a].
    assert (heights.min(), heights.max()) == pytest.approx((150.0, 250.0))
    assert "95% interval" in axes.get_xlabel()


def test_theory_is_a_line_of_its_own() -> None:
    picture = curve_picture([(named(sums(*PAIRS)), SUM)])
    assert "450 GB/s theory, NV18" in svg_of(picture).texts
    theory = [line for line in picture.figure.axes[0].get_lines() if str(line.get_gid()).startswith("theory")]
    assert [list(np.asarray(line.get_ydata())) for line in theory] == [[450.0, 450.0]]


def test_between_more_than_two_gpus_no_theory_is_drawn() -> None:
    picture = svg_of(curve_picture([(named(sums((0, 1, 2, 3))), SUM)]))
    assert [text for text in picture.texts if "theory" in text] == []


def test_several_runs_are_overlaid_by_name() -> None:
    old, new = sums((0, 1), gbs=100.0), sums((0, 1), gbs=200.0)
    picture = curve_picture([(named(old, "old"), SUM), (named(new, "new"), SUM)])
    assert {name: points[GIB] for name, points in drawn(picture).items()} == pytest.approx(
        {"old: GPU0, GPU1 (NV18)": 100.0, "new: GPU0, GPU1 (NV18)": 200.0}
    )
    assert [text for text in svg_of(picture).texts if text.startswith(("old: box", "new: box"))] != []


def test_several_operations_are_overlaid_by_name() -> None:
    cast = measured(Operation.BROADCAST, (0, 1), 99.0)
    run = sums((0, 1))
    run.measurements.append(cast)
    lines = drawn(curve_picture([(named(run), SUM), (named(run), cast.point.work)]))
    assert [*lines] == ["allreduce: GPU0, GPU1 (NV18)", "broadcast: GPU0, GPU1 (NV18)"]


def test_a_simulated_line_beside_a_measured_one_is_called_so() -> None:
    run = sums((0, 1))
    simulated = replace(run, backend="sim", machine=replace(run.machine, fabric="dgx-1v"))
    picture = curve_picture([(named(run, "real"), SUM), (named(simulated, "made"), SUM)])
    assert [*drawn(picture)] == ["real: GPU0, GPU1 (NV18)", "sim made: GPU0, GPU1 (NV18)"]
    assert picture.title == "allreduce (some sim) over message size"


def test_the_recorded_run_draws_its_own_figures() -> None:
    run = run_file.load(RESULTS / "2026-11-21-4xh200-peers" / "pairs.json")
    (points,) = drawn(curve_picture([(named(run), WRITE)])).values()
    # The page of that run [benchmarks/results/2026-11-21-4xh200-peers/pairs.txt] has 396.0 to 396.3 at 1G.
    assert points[GIB] == pytest.approx(396.2, abs=0.06)
    assert len(points) == 14


def test_a_point_that_failed_is_not_drawn() -> None:
    run = sums((0, 1))
    run.measurements[0] = Measurement(run.measurements[0].point, [], failure=in_words("it hung"))
    (points,) = drawn(curve_picture([(named(run), SUM)])).values()
    assert sorted(points) == [2**28, GIB]


DISTANT = sums((0, 1), (2, 3), (0, 1, 2, 3))
DISTANT = replace(DISTANT, machine=replace(DISTANT.machine, hostname="rack-17-node-003.cluster.example.com"))
FLAT = run_of(gpus(4), [measured(Operation.ALLREDUCE, (0, 1), 300.0, size) for size in (2**28, GIB)], paths(4))


@pytest.mark.parametrize(
    ("title", "picture"),
    [
        ("two machines with long names", lambda: curve_picture([(named(DISTANT, one), SUM) for one in "ab"])),
        ("curves of many pairs", lambda: curve_picture([(named(sums(*PAIRS)), SUM)])),
        ("curves without a slope", lambda: curve_picture([(named(FLAT), SUM)])),
    ],
)
def test_points_lie_inside_the_axes_and_words_inside_the_picture(title: str, picture: Callable[[], Picture]) -> None:
    made = picture()
    assert ink_at_the_edges(made) == 0
    (axes,) = made.figure.axes
    points = [
        point
        for line in axes.get_lines()
        if str(line.get_gid()).startswith("line")
        for point in line.get_transform().transform(line.get_xydata())
    ]
    assert points != []
    frame = axes.get_window_extent()
    assert [point for point in points if not frame.padded(-1.0).contains(*point)] == []
    assert axes.get_ylim()[0] == 0
