import json
import statistics
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations, permutations
from pathlib import Path

import pytest

from collbench.judge.summary import rank_summary
from collbench.model.operations import Operation
from collbench.model.run import Run
from collbench.report.text.ranking import as_json, page
from collbench.runfile import run_file
from tests.builders import GIB, gpus, measured, run_of
from tests.report.pages import text

RECORDED = Path(__file__).parents[2] / "benchmarks" / "results" / "2026-11-21-4xh200-peers" / "pairs.json"
MIB = 2**20
SIZES = (8, 2**16, MIB, GIB)


def line_run(count: int, gbs: Callable[[int, int], float], sizes: tuple[int, ...] = SIZES) -> Run:
    """Return all-reduces of pairs that take 2 µs and the size over `gbs`; no noise."""
    points = []
    for pair in combinations(range(count), 2):
        points += [measured(Operation.ALLREDUCE, pair, s / (2e-6 + s / gbs(*pair) / 1e9) / 1e9, s) for s in sizes]
    return run_of(gpus(count), points)


def shown(run: Run) -> str:
    return text(page(run, rank_summary(run)))


@pytest.mark.parametrize(
    ("operation", "size", "unit"),
    [
        (Operation.CE_WRITE, GIB, "GB/s"),
        (Operation.ALLREDUCE, 64 * MIB, "GB/s"),
        (Operation.BROADCAST, 8, "µs"),
    ],
)
def test_every_point_of_a_map_is_the_run_files(operation: Operation, size: int, unit: str) -> None:
    run = run_file.load(RECORDED)
    drawn = text(page(run, rank_summary(run, operation, size)))
    assert f", {unit}\n" in drawn
    lines = drawn[drawn.index("\n       GPU0   GPU1") :].split("\n")[2:6]
    table = {cells[0]: cells[1:] for cells in map(str.split, lines)}
    for src, dst in permutations(range(4), 2):
        devices = sorted((src, dst)) if operation.is_collective else [src, dst]
        seconds = raw_seconds(operation.value, devices, size)
        wanted = seconds * 1e6 if unit == "µs" else size / seconds / 1e9  # a pair's busbw is its algbw
        assert float(table[f"GPU{src}"][dst]) == pytest.approx(wanted, abs=0.051)


def raw_seconds(operation: str, devices: list[int], size: int) -> float:
    """Return a data point's time as docs/run-file.md says to read it: the median of the trials' medians."""
    for measurement in json.loads(RECORDED.read_text(encoding="utf-8"))["measurements"]:
        point = measurement["point"]
        if (point["operation"], point["members"], point["size_bytes"]) == (operation, devices, size):
            return float(statistics.median(statistics.median(sample["seconds"]) for sample in measurement["samples"]))
    raise AssertionError(f"{operation} {devices} {size} is not in the file")


def test_a_simulated_figure_never_comes_without_the_word() -> None:
    run = line_run(4, lambda a, b: 300.0)
    run.backend, run.machine = "sim", replace(run.machine, fabric="dgx-1v")
    titles = [line for line in shown(run).split("\n") if "(by pair)" in line]
    assert len(titles) == 3
    assert all(title.startswith("sim allreduce") for title in titles)
    reported = as_json(run, rank_summary(run))
    assert (reported["backend"], reported["fabric"]) == ("sim", "dgx-1v")


def test_the_json_holds_every_standing_and_fit_in_jsons_own_types() -> None:
    run = line_run(3, lambda a, b: 200.0 if (a, b) == (0, 2) else 300.0)
    answer = json.loads(json.dumps(as_json(run, rank_summary(run)), allow_nan=False))
    (work,) = answer["works"]
    assert (work["operation"], work["variant"], work["kind"]) == ("allreduce", "plain", "pair")
    large, small = work["rankings"]
    assert (large["size_bytes"], small["size_bytes"]) == (GIB, 8)
    assert [(one["members"], one["tier"], one["relation"]) for one in large["standings"]] == [
        ([0, 1], 1, "tied"),
        ([1, 2], 1, "tied"),
        ([0, 2], 2, "different"),
    ]
    assert large["verdict"] == "2 tiers: the worst pair is 33% slower than the best"
    assert [fit["members"] for fit in work["fits"]] == [[0, 1], [0, 2], [1, 2]]
    assert work["fits"][1]["gbs"] == pytest.approx([200.0] * 3, rel=1e-4)
    assert (work["unfitted"], work["missing"], work["incomplete"]) == ([], [], [])
