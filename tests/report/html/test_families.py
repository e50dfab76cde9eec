"""Families of data points: their sizes, the theory they have, and the order of works."""

from itertools import permutations

import pytest

from collbench.judge.physics import Check
from collbench.model.operations import Operation, Variant
from collbench.model.run import DataPoint, Measurement, Path, Run, Sample
from collbench.report.html.content import families, limits_of
from tests.builders import GIB, gpus, run_of


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
        (
            "one to all is as fast as twice its slowest link",
            copies(Variant.ONE_TO_ALL, ((0, 1, 2),)),
            {(0, 1, 2): 200.0},
        ),
    ],
)
def test_theory(title: str, run: Run, limits: dict[tuple[int, int], float]) -> None:
    (family,) = families(run)
    assert limits_of(family, Check(run)) == limits
