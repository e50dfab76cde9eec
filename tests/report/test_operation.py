"""The page of one operation: every figure is the run file's, in 80 columns, with and without colour."""

import json
import statistics
from dataclasses import replace
from itertools import combinations, permutations
from pathlib import Path

import pytest

from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import DataPoint, Measurement, Run, Sample, StopReason
from collbench.report.text.curves import page
from collbench.runfile import run_file
from tests.builders import GIB, gpus, in_words, measured, pair_run, run_of
from tests.report.pages import text

RECORDED = Path(__file__).parents[2] / "benchmarks" / "results" / "2026-11-21-4xh200-peers" / "pairs.json"
MIB = 2**20


def shown(run: Run, work: Work, size: int | None = None, *, terminal: bool = False, no_color: bool = False) -> str:
    return text(page(run, [work], size), terminal=terminal, no_color=no_color)


def rows(shown: str, title: str) -> list[list[str]]:
    """Return the words of the lines below the first that begins so."""
    lines = shown.split("\n")
    start = next(index for index, line in enumerate(lines) if line.startswith(title))
    return [line.replace(" B ", "B ").split() for line in lines[start + 1 :]]


def raw_seconds(operation: str, devices: list[int], size: int) -> float:
    """Return a data point's time as docs/run-file.md says to read it: the median of the trials' medians."""
    for measurement in json.loads(RECORDED.read_text(encoding="utf-8"))["measurements"]:
        point = measurement["point"]
        if (point["operation"], point["members"], point["size_bytes"]) == (operation, devices, size):
            return float(statistics.median(statistics.median(sample["seconds"]) for sample in measurement["samples"]))
    raise AssertionError(f"{operation} {devices} {size} is not in the file")


@pytest.mark.parametrize(
    ("operation", "size", "unit"),
    [
        (Operation.CE_WRITE, GIB, "GB/s"),
        (Operation.SM_READ, 64 * MIB, "GB/s"),
        (Operation.ALLREDUCE, 64 * MIB, "GB/s"),
        (Operation.BROADCAST, 8, "µs"),
    ],
)
def test_every_point_of_the_map_is_the_run_files(operation: Operation, size: int, unit: str) -> None:
    drawn = shown(run_file.load(RECORDED), Work(operation), size)
    assert f", {unit}\n" in drawn
    table = {cells[0]: cells[1:] for cells in rows(drawn, "       GPU0   GPU1")[:4]}
    for src, dst in permutations(range(4), 2):
        devices = sorted((src, dst)) if operation.is_collective else [src, dst]
        seconds = raw_seconds(operation.value, devices, size)
        wanted = seconds * 1e6 if unit == "µs" else size / seconds / 1e9  # a pair's busbw is its algbw
        assert float(table[f"GPU{src}"][dst]) == pytest.approx(wanted, abs=0.051)


def test_the_figures_of_the_curve_are_the_run_files() -> None:
    drawn = shown(run_file.load(RECORDED), Work(Operation.CE_WRITE))
    figures = {cells[0]: cells[1:] for cells in rows(drawn, " size ")[:14]}
    links = [list(link) for link in permutations(range(4), 2)]
    for name, size in (("8B", 8), ("64K", 2**16), ("64M", 64 * MIB), ("1G", GIB)):
        rates = [size / raw_seconds("ce-write", link, size) / 1e9 for link in links]
        time, middle, low, high, share = figures[name]
        seconds = statistics.median(raw_seconds("ce-write", link, size) for link in links)
        assert float(time) == pytest.approx(seconds * 1e6, abs=0.051)
        reported = [float(middle), float(low), float(high)]
        assert reported == pytest.approx([statistics.median(rates), min(rates), max(rates)], rel=0.05, abs=0.051)
        assert float(share.rstrip("%")) == pytest.approx(statistics.median(rates) / 450 * 100, abs=0.06)
    assert "theory: 450 GB/s NV18" in drawn


def test_without_a_size_the_largest_and_the_smallest_are_mapped() -> None:
    drawn = shown(run_file.load(RECORDED), Work(Operation.ALLREDUCE))
    titles = [line for line in drawn.split("\n") if line.startswith("allreduce")]
    assert titles == [
        "allreduce (by pair) at 1G, GB/s",
        "allreduce (by pair) at 8 B, µs",
        "allreduce: busbw over message size",
    ]


def sixteen() -> Run:
    """Return 16 GPUs in four boxes of four, with all-reduces at five sizes; large ones across boxes are slow."""
    points = []
    for a, b in combinations(range(16), 2):
        limit = 395.2e9 if a // 4 == b // 4 else 24.8e9
        for size in (8, 2**14, MIB, 2**28, GIB):
            seconds = 9e-6 + size / limit
            points.append(measured(Operation.ALLREDUCE, (a, b), size / seconds / 1e9, size))
    return run_of(gpus(16), [*points, measured(Operation.ALLREDUCE, range(16), 180.0)])


@pytest.mark.parametrize(("size", "maps"), [(None, 3), (GIB, 2), (8, 1)])
def test_sixteen_gpus_fit_80_columns(size: int | None, maps: int) -> None:
    lines = shown(sixteen(), Work(Operation.ALLREDUCE), size).split("\n")
    assert max(map(len, lines)) <= 80
    assert len([line for line in lines if line.startswith("GPU15 ")]) == maps


def test_sixteen_pointer_chases_fit_80_columns() -> None:
    sample = Sample((1.1e-6,), 1000, concurrent=False)
    links = [Measurement(DataPoint(Operation.CHASE, link, 8), [sample] * 3) for link in permutations(range(16), 2)]
    lines = shown(run_of(gpus(16), links), Work(Operation.CHASE)).split("\n")
    assert "chase (row sends to column) at 8 B, µs" in lines
    assert max(map(len, lines)) <= 80
    assert [line.split()[2] for line in lines if line.startswith("GPU0 ")] == ["1.1"]


def test_tiers_show_without_colour() -> None:
    drawn = shown(sixteen(), Work(Operation.ALLREDUCE), GIB)
    tiers = rows(drawn, "tier of each, 1 is the best")[1:17]
    for row in range(16):
        boxes = ["-" if row == column else "1" if row // 4 == column // 4 else "2" for column in range(16)]
        assert tiers[row] == [f"GPU{row}", *boxes]


def test_one_tier_needs_no_map_of_tiers() -> None:
    assert "tier of each" not in shown(pair_run(4, lambda a, b: 300.0), Work(Operation.ALLREDUCE))


def test_a_larger_communicator_has_its_row() -> None:
    drawn = shown(sixteen(), Work(Operation.ALLREDUCE), GIB)
    (row,) = [line for line in drawn.split("\n") if "(16 ranks)" in line]
    # busbw = algbw × 2 · 15/16 [nccl-tests, doc/PERFORMANCE.md]
    assert row.split()[-4:] == ["337.5", "337.5", "to", "337.5"]


@pytest.mark.parametrize("work", [Work(Operation.ALLREDUCE), Work(Operation.CE_READ)])
def test_colour_is_the_terminals_choice_and_says_nothing_more(work: Work) -> None:
    run = run_file.load(RECORDED)
    plain = shown(run, work)
    assert "\x1b" not in plain
    assert "48;5;" in shown(run, work, terminal=True)
    assert "48;5;" not in shown(run, work, terminal=True, no_color=True)


def test_a_simulated_figure_never_stands_without_the_word() -> None:
    run = pair_run(3, lambda a, b: 300.0)
    simulated = replace(run, backend="sim", machine=replace(run.machine, fabric="hgx-h200"))
    simulated.measurements.append(measured(Operation.ALLREDUCE, (0, 1), 150.0, MIB))
    simulated.measurements.append(measured(Operation.ALLREDUCE, (0, 1, 2), 150.0))
    drawn = shown(simulated, Work(Operation.ALLREDUCE))
    assert "SIMULATED machine 'hgx-h200'" in drawn
    assert [line for line in drawn.split("\n") if "allreduce" in line and not line.startswith("sim ")] == []


def host_copies() -> Run:
    sample = Sample((0.02, 0.02), 1, concurrent=False)
    points = [DataPoint(Operation.H2D_CE, (gpu,), GIB, Variant.HOST) for gpu in range(2)]
    return run_of(gpus(2), [Measurement(point, [sample] * 3, StopReason.PRECISION) for point in points])


def test_host_copies_are_a_table_of_devices() -> None:
    drawn = shown(host_copies(), Work(Operation.H2D_CE, Variant.HOST))
    rates = {cells[0]: cells[1:3] for cells in rows(drawn, "devices")[:2]}
    assert rates == {name: ["20000.0", "53.7"] for name in ("GPU0", "GPU1")}  # 2^30 B in 20 ms


def test_one_to_all_is_a_table_of_its_sources() -> None:
    sample = Sample((0.02, 0.02), 1, concurrent=False)
    point = DataPoint(Operation.CE_WRITE, (0, 1, 2), GIB, Variant.ONE_TO_ALL)
    run = run_of(gpus(3), [Measurement(point, [sample], StopReason.PRECISION)])
    drawn = shown(run, Work(Operation.CE_WRITE, Variant.ONE_TO_ALL))
    assert "\nce-write one-to-all at 1G\n" in drawn
    assert ["GPU0", "→", "all", "others", "20000.0", "107.4", "-"] in [line.split() for line in drawn.split("\n")]


def test_a_pointer_chase_is_in_ns_and_has_no_curve() -> None:
    sample = Sample((1.1e-6,), 1000, concurrent=False)
    links = [Measurement(DataPoint(Operation.CHASE, link, 8), [sample] * 3) for link in permutations(range(2), 2)]
    drawn = shown(run_of(gpus(2), links), Work(Operation.CHASE))
    assert "chase (row sends to column) at 8 B, ns\n" in drawn
    assert ["GPU0", "-", "1100.0"] in [line.split() for line in drawn.split("\n")]
    assert "over message size" not in drawn


def test_a_failed_point_is_a_dash_and_its_reason() -> None:
    run = pair_run(3, lambda a, b: 300.0)
    run.measurements[0] = replace(
        run.measurements[0], samples=[], stop=StopReason.FAILED, failure=in_words("it hung for 9 s")
    )
    drawn = shown(run, Work(Operation.ALLREDUCE))
    assert rows(drawn, "       GPU0")[0] == ["GPU0", "-", "-", "300.0"]
    assert "failed    allreduce at 1G on GPU0, GPU1: it hung for 9 s\n" in drawn
