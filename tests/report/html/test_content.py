"""What the page says of a run: its figures, its answers, its comparisons, the families of its data points."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest

from collbench.model.operations import Operation, Variant
from collbench.model.run import DataPoint, Measurement, Path, Run, Sample
from collbench.report.html import content, render
from tests.builders import GIB, gpus, measured, pair_run, run_of
from tests.golden.made import late
from tests.report.html.runs import MIB, by_hand, figures, printed, recorded_content, recorded_gbs, series

BANDWIDTH, BUSBW = "bandwidth", "bus bandwidth (busbw)"


def reported(*runs: Run) -> dict[str, Any]:
    return content([(f"{'abc'[at]}.json", run) for at, run in enumerate(runs)], "0.1.0")


@pytest.mark.parametrize(
    ("operation", "devices", "size", "title"),
    [
        ("ce-write", [0, 1], GIB, BANDWIDTH),
        ("ce-write", [3, 0], 64, BANDWIDTH),
        ("sm-read", [2, 1], 64 * MIB, BANDWIDTH),
        ("allreduce", [1, 3], GIB, BUSBW),  # of two ranks busbw is algbw × 2(2−1)/2
        ("broadcast", [0, 2], MIB, BUSBW),
    ],
)
def test_a_recorded_runs_figures_are_those_of_its_file(
    operation: str, devices: list[int], size: int, title: str
) -> None:
    value = figures(series(recorded_content(), operation), size, devices, title)[1]
    assert value == pytest.approx(recorded_gbs(operation, devices, size), rel=1e-4)


def test_a_recorded_runs_rate_and_tier_are_those_that_its_page_printed() -> None:
    # benchmarks/results/2026-11-21-4xh200-peers/pairs.txt: "1 GPU0-GPU1 NV18 … 327.2 … 325.4-328.8 tied"; that interval
    # rested on batches, not on trials.
    allreduce = series(recorded_content(), "allreduce")
    low, value, high = figures(allreduce, GIB, [0, 1], BUSBW)
    assert (round(low, 1), round(value, 1), round(high, 1)) == (322.1, 327.2, 328.7)
    at = allreduce["sets"].index([0, 1])
    assert allreduce["tiers"][-1][at] == [1, "t"]
    assert allreduce["labels"][at] == "NV18"
    assert allreduce["theory"][at] == 450
    assert allreduce["verdicts"][-1] == "all pairs tie within 0.6%: the choice does not affect bandwidth"


def test_theory_is_that_of_show_for_both_ways_and_for_host_copies() -> None:
    both = measured(Operation.CE_WRITE, (0, 1), 360.0)  # each way, so 720 together
    both = replace(both, point=replace(both.point, variant=Variant.BOTH_WAYS))
    host = measured(Operation.H2D_CE, (0,), 48.0)
    host = replace(host, point=replace(host.point, variant=Variant.HOST))
    run = run_of(gpus(2), [both, host], by_hand().paths[:1])
    slots = tuple(replace(device, pcie_generation=5, pcie_width=16) for device in run.devices)
    reported_ = reported(replace(run, devices=slots))
    twice, slot = series(reported_, "ce-write both-ways"), series(reported_, "h2d-ce host")
    assert (twice["theory"], twice["ways"]) == ([900], "both ways together")  # 450 GB/s each way
    # PCIe 5.0 ×16: 32 GT/s × 16 lanes × 128/130 / 8 = 63.0 GB/s [PCIe base specification 5.0]
    assert (slot["theory"], slot["ways"]) == ([pytest.approx(63.0, abs=0.05)], "one way")


def test_too_few_trials_have_no_interval() -> None:
    run = run_of(gpus(2), [measured(Operation.CE_WRITE, (0, 1), 100.0, trials=2)])
    assert figures(series(reported(run), "ce-write"), GIB, [0, 1], BANDWIDTH) == (None, 100, None)


@pytest.mark.parametrize(
    ("share", "letter"), [(1.0, "Y"), (0.98, "X"), (0.95, "U"), (0.75, "M"), (0.5, "I"), (0.25, "E"), (0.001, "A")]
)
def test_shades_grow_with_the_share_of_the_best(share: float, letter: str) -> None:
    run = pair_run(3, lambda a, b: 100.0 if (a, b) == (0, 1) else 100.0 * share)
    assert series(reported(run), "allreduce")["figures"][0]["shades"] == [f"Y{letter}{letter}"]


def test_a_second_run_is_compared_by_uuid_wherever_its_devices_stand() -> None:
    base = by_hand(slow=100.0)
    turned = replace(base, devices=tuple(reversed(base.devices)))  # position 3 is now the base's 0
    (comparison,) = reported(base, turned)["comparisons"]
    assert comparison["how"] == "matched by UUID"
    tables = [part for part in printed(comparison, "compare") if isinstance(part, list)]
    rows = {row[0]: row for table in tables for row in table}
    assert rows["ce-write GPU0→GPU1"][-2] == "4.000×"  # other's 3 → 2 over base's 0 → 1
    assert rows["ce-write GPU3→GPU2"][-2] == "0.250×"


def test_an_interrupted_run_says_how_much_of_it_was_measured() -> None:
    run = pair_run(4, lambda a, b: 100.0)
    shown = str(reported(replace(run, measurements=run.measurements[:4], complete=False)))
    assert "INTERRUPTED: 4 of 6 pairs, 4 data points measured" in shown
    assert "INTERRUPTED" not in str(reported(run))


def test_single_launches_have_each_size_and_who_is_late() -> None:
    drawn = render(reported(late()))
    assert '<th scope="row">1G</th><td class="number">8.00</td>' in drawn
    assert "GPU1 arrives 50.00 µs later than the others" in drawn


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
    (one,) = reported(run)["runs"][0]["data"]["series"]
    known = zip(map(tuple, one["sets"]), one["theory"], strict=True)
    assert {members: gbs for members, gbs in known if gbs is not None} == limits
