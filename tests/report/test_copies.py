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


def test_too_few_trials_say_so() -> None:
    run = run_of(gpus(2), [measured(Operation.CE_WRITE, (0, 1), 390.0, MIB, trials=2)], command=("copies",))
    assert "\n390.0 to 390.0, median 390.0; too few trials for intervals\n" in after_header(run)


def test_small_rates_keep_their_digits() -> None:
    run = run_of(gpus(2), [measured(Operation.CE_WRITE, (0, 1), 0.25, 2**20)], command=("copies",))
    assert "\n0.25 to 0.25, median 0.25; each ±0.0% at most\n" in after_header(run)


def test_a_device_without_a_figure_shows_a_dash() -> None:
    measurement = how(Variant.HOST, measured(Operation.H2D_CE, (1,), 55.0, MIB, trials=2))
    shown = after_header(run_of(gpus(2), [measurement], command=("copies",)))
    assert "device  h2d-ce\nGPU0         -\nGPU1      55.0\n" in shown


def test_cpu_cores_say_which_patterns_they_lack() -> None:
    run = run_of(gpus(2), [measured(Operation.CPU_WRITE, (0, 1), 1.5, MIB)], backend="host", command=("copies",))
    assert (
        "\nskipped   copies both ways, one to all, all to one, staged, to devices: not on CPU cores\n"
        in after_header(run)
    )


@pytest.mark.parametrize("count", [2, 8, 16])
def test_all_lines_fit_80_columns_for_many_devices(count: int) -> None:
    assert [line for line in after_header(patterns(count)).split("\n") if len(line) > 80] == []


def by_node(nodes: list[int], count: int = 2, trials: int = 5) -> Run:
    """Return host copies with the memory of each node: 55 GB/s where device and node are both even or odd, else 38."""
    points = []
    for op in (Operation.H2D_CE, Operation.D2H_CE):
        for a in range(count):
            for node in nodes:
                points.append(how(Variant.HOST, measured(op, (a,), 55.0 if a % 2 == node % 2 else 38.0, MIB, trials)))
                points[-1].point = replace(points[-1].point, numa_node=node)
    return run_of(gpus(count), points, command=("copies",))


def test_host_copies_have_a_column_for_each_numa_node() -> None:
    assert (
        "host at 1M by NUMA node of the pinned memory, GB/s (h2d: from it, d2h: to it)\n"
        "device  copy        node 0      node 1\n"
        "GPU0    h2d-ce  55.0 ±0.0%  38.0 ±0.0%\n"
        "GPU0    d2h-ce  55.0 ±0.0%  38.0 ±0.0%\n"
        "GPU1    h2d-ce  38.0 ±0.0%  55.0 ±0.0%\n"
        "GPU1    d2h-ce  38.0 ±0.0%  55.0 ±0.0%\n"
    ) in after_header(by_node([0, 1]))


def test_a_node_that_was_not_reached_shows_a_dash() -> None:
    run = by_node([0, 1], trials=2)
    del run.measurements[1]
    assert "GPU0    h2d-ce    55.0       -\nGPU0    d2h-ce    55.0    38.0\n" in after_header(run)


def test_many_nodes_fit_a_line_without_their_intervals() -> None:
    shown = after_header(by_node(list(range(8))))
    assert "GPU1    h2d-ce    38.0    55.0    38.0    55.0    38.0    55.0    38.0    55.0\n" in shown


def test_host_copies_concurrent_with_others_stand_beside_isolated_ones() -> None:
    points = [how(Variant.HOST, measured(Operation.H2D_CE, (a,), gbs, LARGE)) for a, gbs in ((0, 50.0), (1, 40.0))]
    points += [how(Variant.HOST, measured(Operation.D2H_CE, (a,), 50.0, LARGE)) for a in (0, 1)]
    points += [how(Variant.HOST_BOTH_WAYS, measured(Operation.H2D_CE, (0,), 45.0, LARGE))]
    for operation, gbs in ((Operation.H2D_CE, 30.0), (Operation.D2H_CE, 25.0)):
        points += [how(Variant.HOST_ALL, measured(operation, devices, gbs, LARGE)) for devices in ((0, 1), (1, 0))]
    whole = text(page(run_of(gpus(2), points, command=("copies",))))
    assert (
        "host at 512M, concurrently: GB/s one way, % of isolated\n"
        "device  copy    isolated  both ways  all at once\n"
        "GPU0    h2d-ce      50.0  45.0  90%    30.0  60%\n"
        "GPU1    h2d-ce      40.0          -    30.0  75%\n"
        "GPU0    d2h-ce      50.0          -    25.0  50%\n"
        "GPU1    d2h-ce      50.0          -    25.0  50%\n"
        "host      all 2 at once: h2d 67%, d2h 50% of isolated\n"
    ) in whole
