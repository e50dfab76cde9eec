from dataclasses import replace
from itertools import combinations, permutations

import pytest

from collbench.model.operations import Operation, Variant
from collbench.model.run import DataPoint, Measurement, Run, Sample, StopReason
from collbench.report.text.measured import page
from tests.builders import gpus, run_of
from tests.report.pages import text


def taking(
    operation: Operation, devices: tuple[int, ...], microseconds: float, variant: Variant = Variant.PLAIN
) -> Measurement:
    """Return a data point of 8 bytes that takes this long in five trials."""
    samples = [Sample((microseconds * 1e-6,) * 2, 20, concurrent=False)] * 5
    return Measurement(DataPoint(operation, devices, 8, variant), samples, StopReason.PRECISION)


def latencies(count: int) -> Run:
    links = list(permutations(range(count), 2))
    points = [taking(Operation.CHASE, link, 0.7425 + link[0] / 1000) for link in links]
    points += [taking(Operation.CHASE, (one,), 1.4, Variant.HOST) for one in range(count)]
    points += [taking(Operation.CE_WRITE, link, 2.25) for link in links]
    for pair in combinations(range(count), 2):
        measurement = taking(Operation.ALLREDUCE, pair, 5.5)
        measurement.samples = [replace(sample, launch_seconds=8.2e-6) for sample in measurement.samples]
        points.append(measurement)
    return run_of(gpus(count), points, command=("latency",))


def after_header(run: Run) -> str:
    return text(page(run)).split("\n\n", 1)[1]


@pytest.mark.parametrize("count", [2, 8, 16])
def test_all_lines_fit_80_columns_for_many_devices(count: int) -> None:
    assert [line for line in after_header(latencies(count)).split("\n") if len(line) > 80] == []


def test_the_least_latency_has_the_best_colour() -> None:
    shown = text(page(latencies(3)), terminal=True)
    chase = shown.partition("chase at 8 B")[2].partition("ce-write")[0]
    assert "48;5;227m  742.5" in chase
    assert "GPU0    1400.0 ±0.0%" in shown
