"""The heat map: a cell for each link with the run's figure, and words that stay words."""

from dataclasses import replace
from itertools import pairwise, permutations

import numpy as np
import pytest

from collbench.judge.tiers import rank_links
from collbench.model.operations import Operation, Work
from collbench.model.run import DataPoint, Measurement, Run, Sample
from collbench.report.plot import figure, heatmap
from collbench.report.plot.figure import Picture
from tests.builders import GIB, gpus, in_words, measured, pair_run, run_of
from tests.report.plot.pictures import SVG, ink_at_the_edges, named, svg_of

HOSTILE = '<script>alert("x")</script> $x^{2$ & \x00\x1b]0;\u202e\udcff'


def drawn(run: Run, work: Work, size: int = GIB) -> Picture:
    ranking = rank_links(run, work, size)
    assert ranking is not None
    with figure.drawing():
        return heatmap.draw(named(run), ranking)


def links(count: int) -> Run:
    """Return copies on every link, each at a rate that its ends tell."""
    points = [measured(Operation.CE_WRITE, (a, b), 100.0 + 10 * a + b) for a, b in permutations(range(count), 2)]
    return run_of(gpus(count), points)


@pytest.mark.parametrize("count", [2, 4, 9])
def test_every_link_is_a_cell_with_its_figure(count: int) -> None:
    svg = svg_of(drawn(links(count), Work(Operation.CE_WRITE)))
    cells = {name for name in svg.ids if name.startswith("square-")}
    assert cells == {f"square-{a}-{b}" for a, b in permutations(range(count), 2)}
    for a, b in permutations(range(count), 2):
        assert f"{100.0 + 10 * a + b:.1f}" in svg.texts
        assert svg.tips[f"square-{a}-{b}"].startswith(f"GPU{a}→GPU{b}: {100.0 + 10 * a + b:.2f} GB/s (95%: ")


def test_row_sends_to_column() -> None:
    from matplotlib import colormaps
    from matplotlib.colors import to_rgb

    axes = drawn(links(3), Work(Operation.CE_WRITE)).figure.axes[0]
    figures = {(text.get_position()[1], text.get_position()[0]): text.get_text().split("\n")[0] for text in axes.texts}
    assert figures == {(a, b): f"{100.0 + 10 * a + b:.1f}" for a, b in permutations(range(3), 2)}
    # A rectangle is placed by its corner, half a cell from its middle.
    cells = {patch.get_gid(): (patch.get_y() + 0.5, patch.get_x() + 0.5) for patch in axes.patches}  # type: ignore[attr-defined]
    assert cells == {f"square-{a}-{b}": (a, b) for a, b in permutations(range(3), 2)}
    colours = {patch.get_gid(): to_rgb(patch.get_facecolor()) for patch in axes.patches}
    viridis = {f"square-{a}-{b}": to_rgb(colormaps["viridis"]((100 + 10 * a + b) / 121)) for a, b in figures}
    assert colours == viridis
    assert (axes.get_ylabel(), axes.get_xlabel()) == ("from", "to")
    assert axes.get_ylim()[0] > axes.get_ylim()[1]  # the first row on top


def test_sixteen_gpus_have_240_cells_of_whole_numbers() -> None:
    svg = svg_of(drawn(pair_run(16, lambda a, b: 395.2), Work(Operation.ALLREDUCE)))
    assert len([name for name in svg.ids if name.startswith("square-")]) == 240
    assert svg.texts.count("395") == 240


def test_a_pair_has_its_figure_on_both_sides() -> None:
    tips = svg_of(drawn(pair_run(3, lambda a, b: 100.0 * a + b), Work(Operation.ALLREDUCE))).tips
    assert tips["square-1-2"] == tips["square-2-1"]
    assert tips["square-1-2"].startswith("GPU1-GPU2: 102.00 GB/s")


def test_tiers_are_written_where_there_are_several() -> None:
    slow = pair_run(3, lambda a, b: 100.0 if (a, b) == (0, 2) else 300.0)
    assert svg_of(drawn(slow, Work(Operation.ALLREDUCE))).texts.count("tier 2") == 2
    same = svg_of(drawn(pair_run(3, lambda a, b: 300.0), Work(Operation.ALLREDUCE)))
    assert [text for text in same.texts if "tier" in text] == []


def test_what_was_not_measured_is_a_dash() -> None:
    run = links(3)
    del run.measurements[0]
    svg = svg_of(drawn(run, Work(Operation.CE_WRITE)))
    assert svg.texts.count("–") == 1
    assert "square-0-1" not in svg.tips


def test_links_that_tie_look_alike_and_the_scale_begins_at_nothing() -> None:
    from matplotlib.colors import to_rgb

    picture = drawn(pair_run(3, lambda a, b: 300.0 - a - b), Work(Operation.ALLREDUCE))
    cells, scale = picture.figure.axes
    colours = np.array([to_rgb(patch.get_facecolor()) for patch in cells.patches])
    assert np.ptp(colours, axis=0).max() < 0.05
    assert scale.get_ylim() == (0.0, 299.0)


def test_of_times_the_least_is_the_brightest() -> None:
    from matplotlib.colors import to_rgb

    points = [measured(Operation.CE_WRITE, link, 0.001 * (1 + sum(link)), size=8) for link in permutations(range(3), 2)]
    picture = drawn(run_of(gpus(3), points), Work(Operation.CE_WRITE), 8)
    patches = picture.figure.axes[0].patches
    light = {patch.get_gid(): sum(to_rgb(patch.get_facecolor())) for patch in patches}
    assert light["square-1-2"] > light["square-0-2"] > light["square-0-1"]  # 2, 2.7 and 4 µs
    assert "2.00" in svg_of(picture).texts
    assert picture.title == "ce-write at 8 B, µs"


def test_a_pointer_chase_is_in_ns() -> None:
    sample = Sample((0.61e-6,), 1000, concurrent=False)
    measurements = [
        Measurement(DataPoint(Operation.CHASE, link, 8), [sample] * 3) for link in permutations(range(2), 2)
    ]
    picture = drawn(run_of(gpus(2), measurements), Work(Operation.CHASE), 8)
    assert picture.title == "chase at 8 B, ns"
    assert svg_of(picture).texts.count("610.0") == 2


def test_what_came_from_the_machine_stays_text() -> None:
    run = pair_run(3, lambda a, b: 300.0)
    hostile = replace(
        run,
        devices=tuple(replace(device, name=HOSTILE) for device in run.devices),
        machine=replace(run.machine, hostname=HOSTILE),
        paths=tuple(replace(path, label=HOSTILE) for path in run.paths),
    )
    svg = svg_of(drawn(hostile, Work(Operation.ALLREDUCE)))
    assert f"{SVG}script" not in svg.elements
    assert '<script>alert("x")</script> $x^{2$ & \ufffd' in svg.tips["square-0-1"]
    assert "<script>" in svg.description
    assert any("<script>" in text for text in svg.texts)


@pytest.mark.parametrize("suffix", ["png", "pdf"])
def test_a_hostile_name_breaks_no_other_format(suffix: str) -> None:
    run = pair_run(2, lambda a, b: 300.0)
    hostile = replace(run, devices=tuple(replace(device, name=f"{HOSTILE} 卡") for device in run.devices))
    picture = drawn(hostile, Work(Operation.ALLREDUCE))
    with figure.drawing():
        data = figure.encode(picture, suffix)
    assert data.startswith({"png": b"\x89PNG\r\n\x1a\n", "pdf": b"%PDF-"}[suffix])


def test_the_origin_stands_below() -> None:
    reported = " ".join(svg_of(drawn(links(2), Work(Operation.CE_WRITE))).texts)
    for text in ("box", "2 × NVIDIA H200", "driver 580.159.04", "NCCL 2.28.9", "collbench 0.1.0", "2026-01-02"):
        assert text in reported


def test_a_simulated_machine_is_named_so_in_title_text_and_tips() -> None:
    run = pair_run(2, lambda a, b: 300.0)
    svg = svg_of(
        drawn(replace(run, backend="sim", machine=replace(run.machine, fabric="hgx-h200")), Work(Operation.ALLREDUCE))
    )
    assert svg.title == "sim allreduce at 1G, busbw, GB/s"
    assert svg.title in svg.texts
    assert any(text.startswith("SIMULATED machine 'hgx-h200'") for text in svg.texts)
    assert svg.tips["square-0-1"].startswith("sim GPU0-GPU1")


LONG = "rack-17-node-003-of-the-first-cluster-"


@pytest.mark.parametrize(
    ("count", "hosts"), [(2, ""), (5, "n1"), (2, LONG), (12, LONG)], ids=["2", "5, hosts", "2, long", "12, long"]
)
def test_no_word_is_cut_off_or_covers_another(count: int, hosts: str) -> None:
    run = links(count)
    devices = tuple(replace(device, host=f"{hosts}{device.index % 2}" if hosts else "") for device in run.devices)
    picture = drawn(replace(run, devices=devices), Work(Operation.CE_WRITE))
    assert ink_at_the_edges(picture) == 0
    axes = picture.figure.axes[0]
    for labels in (axes.get_xticklabels(), axes.get_yticklabels()):
        assert [label.get_text()[-len(device.tag) :][-5:] for label, device in zip(labels, devices, strict=True)] == [
            device.tag[-5:] for device in devices
        ]
        boxes = [label.get_window_extent() for label in labels]
        assert [pair for pair in pairwise(boxes) if pair[0].overlaps(pair[1])] == []
    squares = axes.get_window_extent()
    assert [box for box in boxes if box.x1 > squares.x0] == []
    assert squares.width / count > 0.5 * picture.figure.dpi  # half an inch: long names take no room from the squares


def test_failed_not_measured_and_diagonal_differ() -> None:
    run = links(3)
    run.measurements[0] = replace(run.measurements[0], samples=[], failure=in_words("it hung"))  # 0 → 1
    del run.measurements[1]  # 0 → 2
    picture = drawn(run, Work(Operation.CE_WRITE))
    (axes, _) = picture.figure.axes
    texts = {(int(text.get_position()[1]), int(text.get_position()[0])): text.get_text() for text in axes.texts}
    looks = {patch.get_gid(): (patch.get_facecolor(), patch.get_hatch()) for patch in axes.patches}
    assert (texts[0, 1], texts[0, 2], texts.get((0, 0))) == ("failed", "–", None)
    assert len({looks["square-0-1"], looks["square-0-2"], looks.get("square-0-0")}) == 3
