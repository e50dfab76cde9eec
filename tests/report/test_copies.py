from dataclasses import replace
from itertools import combinations, permutations

import pytest

from collbench.model.operations import Operation, Variant
from collbench.model.run import Measurement, Run
from collbench.report.text.measured import page
from tests.builders import gpus, measured, run_of
from tests.report.pages import text

MIB = 2**20
LARGE = 512 * MIB


def how(variant: Variant, measurement: Measurement) -> Measurement:
    measurement.point = replace(measurement.point, variant=variant)
    return measurement


def patterns(count: int) -> Run:
    """Return what `collbench copies` measures, rates by operation and pattern; `gbs` is that of one message."""
    one, each = range(count), [Operation.CE_WRITE, Operation.SM_READ]
    points = [measured(op, link, 390.0 + link[0], size) for op in each for link in permutations(one, 2)
             for size in (MIB, LARGE)]  # fmt: skip
    points += [how(Variant.BOTH_WAYS, measured(op, pair, 380.0, LARGE)) for op in each for pair in combinations(one, 2)]
    for variant in (Variant.ONE_TO_ALL, Variant.ALL_TO_ONE):
        sets = [(a, *(b for b in one if b != a)) for a in one]
        points += [how(variant, measured(Operation.CE_WRITE, devices, 130.0, LARGE)) for devices in sets]
    points += [how(Variant.HOST, measured(op, (a,), 55.0, LARGE)) for op in (Operation.H2D_CE, Operation.D2H_CE)
              for a in one]  # fmt: skip
    points += [how(Variant.STAGED, measured(Operation.CE_WRITE, link, 38.0, LARGE)) for link in permutations(one, 2)]
    return run_of(gpus(count), points, command=("copies",))


def after_header(run: Run) -> str:
    return text(page(run)).split("\n\n", 1)[1]


@pytest.mark.parametrize("count", [2, 8, 16])
def test_all_lines_fit_80_columns_for_many_devices(count: int) -> None:
    assert [line for line in after_header(patterns(count)).split("\n") if len(line) > 80] == []
