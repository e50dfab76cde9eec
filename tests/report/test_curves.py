"""Lines over message size: who is in which, what theory they have."""

from dataclasses import replace
from itertools import combinations, permutations

import pytest

from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import DataPoint, Measurement, Path, Run, Sample
from collbench.report.text.curves import abridged_device_names, curves_of, limits_of, lines_of, sizes_of, works_of
from tests.builders import GIB, gpus, measured, run_of

MIB = 2**20
SUM, WRITE = Work(Operation.ALLREDUCE), Work(Operation.CE_WRITE)


def pairs(count: int, gbs: dict[tuple[int, int], float], sizes: tuple[int, ...] = (MIB, GIB)) -> Run:
    """Return all-reduces of pairs at 300 GB/s, but for some; at 1 MiB half of it."""
    points = [
        measured(Operation.ALLREDUCE, pair, gbs.get(pair, 300.0) * (1 if size == GIB else 0.5), size)
        for pair in combinations(range(count), 2)
        for size in sizes
    ]
    return run_of(gpus(count), points)


def test_pairs_that_tie_are_one_line_with_their_lowest_median_and_highest() -> None:
    run = pairs(3, {(0, 1): 301.0, (1, 2): 299.0})
    (line,) = lines_of(run, SUM, curves_of(run, SUM))
    assert (line.name, line.sets) == ("all pairs", 3)
    top = line.points[GIB]
    assert (top.low, top.middle, top.high) == pytest.approx((299.0, 300.0, 301.0))
    assert line.points[MIB].middle == pytest.approx(150.0)
    assert top.seconds == pytest.approx(GIB / 300e9)


def test_each_tier_is_a_line() -> None:
    run = pairs(4, {(0, 1): 100.0, (2, 3): 100.0})
    lines = lines_of(run, SUM, curves_of(run, SUM))
    assert [(line.name, line.sets) for line in lines] == [("tier 1", 4), ("tier 2", 2)]
    assert [line.points[GIB].middle for line in lines] == pytest.approx([300.0, 100.0])


def test_of_many_tiers_the_best_three_and_the_worst_are_kept() -> None:
    rates = dict(zip(combinations(range(4), 2), (600.0, 500.0, 400.0, 300.0, 200.0, 100.0), strict=True))
    run = pairs(4, rates)
    assert [line.name for line in lines_of(run, SUM, curves_of(run, SUM))] == ["tier 1", "tier 2", "tier 3", "tier 6"]


def test_larger_communicators_are_lines_by_their_ranks() -> None:
    points = [measured(Operation.ALLREDUCE, some, 200.0) for some in [(0, 1, 2), (1, 2, 3), (0, 1, 2, 3), (0, 1)]]
    run = run_of(gpus(4), points)
    lines = lines_of(run, SUM, curves_of(run, SUM))
    assert [(line.name, line.sets) for line in lines] == [("all pairs", 1), ("3 ranks", 2), ("4 ranks", 1)]
    # busbw = algbw × 2(n−1)/n [nccl-tests, doc/PERFORMANCE.md]: 200 on 2 ranks, 300 on 4.
    assert [line.points[GIB].middle for line in lines] == pytest.approx([200.0, 800 / 3, 300.0])


def test_sizes_that_only_some_places_have_are_passed_over() -> None:
    run = pairs(3, {})
    run.measurements.append(measured(Operation.ALLREDUCE, (0, 1), 1.0, 4 * GIB))
    run.measurements.append(measured(Operation.ALLREDUCE, (0, 1, 2), 1.0))
    assert sizes_of(SUM, curves_of(run, SUM)) == [MIB, GIB]


def test_without_pairs_the_sizes_are_those_of_larger_sets() -> None:
    run = run_of(gpus(4), [measured(Operation.ALLREDUCE, range(4), 1.0, size) for size in (8, MIB)])
    assert sizes_of(SUM, curves_of(run, SUM)) == [8, MIB]


def copies(variant: Variant, sets: tuple[tuple[int, ...], ...]) -> Run:
    sample = Sample((0.01, 0.01), 1, concurrent=False)
    measurements = [Measurement(DataPoint(Operation.CE_WRITE, some, GIB, variant), [sample]) for some in sets]
    links = [Path((0, 1), "NV18", theory_gbs=450.0), Path((0, 2), "NV4", theory_gbs=100.0), Path((1, 2), "SYS")]
    return run_of(gpus(3), measurements, links)


LINKS = tuple(permutations(range(3), 2))


@pytest.mark.parametrize(
    ("title", "run", "limits"),
    [
        (
            "a link has its path's, both ways round",
            copies(Variant.PLAIN, LINKS),
            {(0, 1): 450.0, (1, 0): 450.0, (0, 2): 100.0, (2, 0): 100.0},
        ),
        ("both ways at once carry twice as much", copies(Variant.BOTH_WAYS, ((0, 1),)), {(0, 1): 900.0}),
        ("through host memory the path is another", copies(Variant.STAGED, LINKS), {}),
        ("one to all shares its links", copies(Variant.ONE_TO_ALL, ((0, 1, 2),)), {}),
    ],
)
def test_theory(title: str, run: Run, limits: dict[tuple[int, int], float]) -> None:
    (work,) = works_of(run)
    assert limits_of(run, work, curves_of(run, work)) == limits


def test_host_memory_is_behind_the_devices_slot() -> None:
    sample = Sample((0.01, 0.01), 1, concurrent=False)
    measurement = Measurement(DataPoint(Operation.H2D_CE, (0,), GIB, Variant.HOST), [sample])
    devices = (replace(gpus(1)[0], pcie_generation=5, pcie_width=16), gpus(2)[1])
    run = run_of(devices, [measurement])
    (work,) = works_of(run)
    assert limits_of(run, work, [(0,), (1,)]) == {(0,): 63.0}  # 32 GT/s × 16 × 128/130 / 8 [docs/method/verdicts.md 2]


def test_works_are_named_once_in_the_models_order() -> None:
    points = [measured(op, (0, 1), 1.0) for op in (Operation.BROADCAST, Operation.CE_READ, Operation.BROADCAST)]
    assert [*map(str, works_of(run_of(gpus(2), points)))] == ["ce-read", "broadcast"]


@pytest.mark.parametrize(
    ("devices", "name"),
    [
        ((0, 1), "GPU0, GPU1"),
        (tuple(range(6)), "GPU0, GPU1, GPU2, GPU3, GPU4, GPU5"),
        (tuple(range(16)), "GPU0, GPU1, GPU2, … GPU15 (16 ranks)"),
    ],
)
def test_many_ranks_have_a_short_name(devices: tuple[int, ...], name: str) -> None:
    assert abridged_device_names(run_of(gpus(16), []), SUM, devices) == name


def test_a_link_is_named_by_its_direction() -> None:
    assert abridged_device_names(run_of(gpus(2), []), WRITE, (1, 0)) == "GPU1 → GPU0"
