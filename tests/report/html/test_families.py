"""Families of data points: their sizes, the theory they have, and the order of works."""

from dataclasses import replace
from itertools import combinations, permutations

import pytest

from collbench.model.operations import Operation, Variant
from collbench.model.run import DataPoint, Measurement, Path, Run, Sample
from collbench.report.html.series import families, limits_of
from tests.builders import GIB, gpus, measured, run_of

MIB = 2**20


def test_pairs_and_larger_communicators_are_families() -> None:
    pairs = [(*pair, size) for pair in combinations(range(3), 2) for size in (MIB, GIB)]
    points = [measured(Operation.ALLREDUCE, (a, b), 300.0, size) for a, b, size in [*pairs, (0, 1, 4 * GIB)]]
    run = run_of(gpus(4), [*points, measured(Operation.ALLREDUCE, range(4), 1.0, MIB)])
    found = [(one.kind, one.ranked, len(one.sets)) for one in families(run)]
    assert found == [("pair", True, 3), ("group", False, 1)]


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
    (family,) = families(run)
    assert limits_of(run, family.work, family.sets) == limits


def test_host_memory_is_behind_the_devices_slot() -> None:
    sample = Sample((0.01, 0.01), 1, concurrent=False)
    measurement = Measurement(DataPoint(Operation.H2D_CE, (0,), GIB, Variant.HOST), [sample])
    devices = (replace(gpus(1)[0], pcie_generation=5, pcie_width=16), gpus(2)[1])
    run = run_of(devices, [measurement])
    (family,) = families(run)
    # 32 GT/s × 16 × 128/130 / 8 [docs/method/verdicts.md 2]
    assert limits_of(run, family.work, [(0,), (1,)]) == {(0,): 63.0}


def test_families_are_in_the_models_order_each_work_once() -> None:
    points = [measured(op, (0, 1), 1.0) for op in (Operation.BROADCAST, Operation.CE_READ, Operation.BROADCAST)]
    assert [str(family.work) for family in families(run_of(gpus(2), points))] == ["ce-read", "broadcast"]
