"""The first line of each short page: the answer, or what is wrong and where."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, permutations

import pytest

from collbench.judge.compare import compare
from collbench.model.operations import Operation, Variant
from collbench.model.run import Device, Measurement, Run
from collbench.report.text import comparison, measured
from tests.builders import gpus, pair_run, run_of
from tests.builders import measured as point
from tests.report.pages import text

ALL = tuple(range(8))
MIB = 2**20


def first(page: object) -> str:
    return text(page, verbose=False).splitlines()[0]  # type: ignore[arg-type]


def collective(*points: Measurement, devices: tuple[Device, ...] = gpus(8)) -> Run:
    return run_of(devices, points, command=("allreduce",))


CORES = tuple(replace(one, uuid=f"CPU-{one.index}", name="AMD EPYC") for one in gpus(4))


# busbw of an all-reduce is algbw × 2(n-1)/n: 7/4 of eight ranks, 3/2 of four, 1 of two.
@pytest.mark.parametrize(
    ("run", "line"),
    [
        (
            collective(point(Operation.ALLREDUCE, ALL, 200.0), point(Operation.ALLREDUCE, ALL, 90.0, 64 * MIB)),
            "allreduce, 8 GPUs: 350.0 GB/s busbw at 1G",
        ),
        (collective(point(Operation.ALLREDUCE, ALL, 8e-6, 8)), "allreduce, 8 GPUs: 1000.0 µs at 8 B"),
        (
            collective(*(point(Operation.ALLREDUCE, four, 236.0 + four[0]) for four in (ALL[:4], ALL[4:]))),
            "allreduce, 2 sets of 4 GPUs: 354.0 to 360.0 GB/s busbw at 1G, slowest on GPU0, GPU1, GPU2, GPU3",
        ),
        (
            collective(*(point(Operation.ALLREDUCE, pair, 326.0) for pair in combinations(range(4), 2))),
            "allreduce, 6 pairs: 326.0 GB/s busbw at 1G",
        ),
        (
            collective(point(Operation.BROADCAST, (0, 1), 10.0), devices=CORES),
            "broadcast, 2 cores: 10.0 GB/s busbw at 1G",
        ),
    ],
)
def test_a_collective_begins_with_its_rate(run: Run, line: str) -> None:
    assert first(measured.page(run)) == line


def test_copies_begin_with_the_range_of_the_first_and_the_slowest_link() -> None:
    points = [point(Operation.CE_WRITE, link, 396.0 - (link == (1, 0))) for link in permutations(range(2), 2)]
    run = run_of(gpus(2), points, command=("copies",))
    assert first(measured.page(run)) == "ce-write, 2 links: 395.0 to 396.0 GB/s at 1G, slowest on GPU1 → GPU0"


def test_the_rate_is_that_of_ordinary_memory_out_of_place() -> None:
    in_place = point(Operation.ALLREDUCE, ALL, 400.0)
    in_place.point = replace(in_place.point, variant=Variant.IN_PLACE)
    run = collective(in_place, point(Operation.ALLREDUCE, ALL, 200.0))
    assert first(measured.page(run)) == "allreduce, 8 GPUs: 350.0 GB/s busbw at 1G"


def test_a_comparison_begins_with_what_lost_most() -> None:
    base = pair_run(4, lambda _a, _b: 326.0)
    new = pair_run(4, lambda a, b: 163.0 if (a, b) == (0, 3) else 326.0)
    line = first(comparison.page(compare(base, new, 0.05), ("a", "b")))
    where = "allreduce at 1G on GPU0-GPU3: 50.0% slower"
    assert line == f"Regression: {where}, significantly more than 5% (--fail-below); 1 of 6 data points regressed."
    line = first(comparison.page(compare(base, new, 0.6), ("a", "b")))
    assert line == f"Slower: {where}; nothing significantly by more than 60% (--fail-below)."
    assert first(comparison.page(compare(base, base, 0.05), ("a", "b"))) == "Nothing is significantly slower."


def test_no_reference_figure_judges_a_simulated_machine() -> None:
    run = pair_run(4, lambda _a, _b: 200.0)
    assert "\nrates     allreduce at 1G on 2 GPUs: below, " in text(measured.page(run), verbose=False)
    simulated = replace(run, backend="sim", machine=replace(run.machine, fabric="hgx-h200"))
    assert "\nrates " not in text(measured.page(simulated), verbose=False)
