"""What the page says of a run: its figures, its answers, its comparisons."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

from collbench.model.operations import Operation, Variant
from collbench.model.run import Health, Measurement, Run, Sample, StopReason
from collbench.report.html.content import content
from collbench.report.text.layout import Found
from tests.builders import GIB, gpus, in_words, measured, noisy, pair_run, run_of, shared
from tests.report.html.runs import (
    MIB,
    by_hand,
    figures,
    printed,
    recorded_content,
    recorded_gbs,
    series,
)

BANDWIDTH, BUSBW, TIME = "bandwidth", "bus bandwidth (busbw)", "time"


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


@pytest.mark.parametrize(
    ("what", "name", "title", "low", "value", "high"),
    [
        ("a copy's bandwidth", "ce-write", BANDWIDTH, 360, 360, 360),
        ("its time: 2^30 B / 360e9 B/s", "ce-write", TIME, 2982.6, 2982.6, 2982.6),
        ("its share of the link's 450 GB/s", "ce-write", "share of theory", 80, 80, 80),
        ("a pair's bus bandwidth", "allreduce", BUSBW, 300, 300, 300),
    ],
)
def test_figures_by_hand(what: str, name: str, title: str, low: float, value: float, high: float) -> None:
    assert figures(series(reported(by_hand(slow=360.0)), name), GIB, [0, 1], title) == (low, value, high), what


def test_theory_is_that_of_show_for_both_ways_and_for_host_copies() -> None:
    both = measured(Operation.CE_WRITE, (0, 1), 360.0)  # each way, so 720 together
    both = replace(both, point=replace(both.point, variant=Variant.BOTH_WAYS))
    host = measured(Operation.H2D_CE, (0,), 48.0)
    host = replace(host, point=replace(host.point, variant=Variant.HOST))
    run = run_of(gpus(2), [both, host], by_hand().paths[:1])
    slots = tuple(replace(one, pcie_generation=5, pcie_width=16) for one in run.devices)
    reported_ = reported(replace(run, devices=slots))
    twice, slot = series(reported_, "ce-write both-ways"), series(reported_, "h2d-ce host")
    assert (twice["theory"], twice["ways"]) == ([900], "both ways together")  # 450 GB/s each way
    assert figures(twice, GIB, [0, 1], "share of theory")[1] == 80
    # PCIe 5.0 ×16: 32 GT/s × 16 lanes × 128/130 / 8 = 63.0 GB/s [PCIe base specification 5.0]
    assert (slot["theory"], slot["ways"]) == ([pytest.approx(63.0, abs=0.05)], "one way")


def test_too_few_trials_have_no_interval() -> None:
    run = run_of(gpus(2), [measured(Operation.CE_WRITE, (0, 1), 100.0, trials=2)])
    assert figures(series(reported(run), "ce-write"), GIB, [0, 1], BANDWIDTH) == (None, 100, None)


def test_latency_and_bandwidth_are_fitted_over_sizes() -> None:
    # 10 µs and 100 GB/s: time = 10e-6 + size / 100e9, so a message of 1e6 B takes as long as it waits
    sizes = [8, 2**10, 2**16, 2**20, 2**26]
    points = [measured(Operation.CE_WRITE, (0, 1), s / (10e-6 + s / 100e9) / 1e9, s) for s in sizes]
    (rows, *_) = printed(reported(run_of(gpus(2), points))["runs"][0], "fits")
    latency, bandwidth, half = (cell.partition(" ")[0] for cell in rows[0][2:5])
    assert (latency, bandwidth, half) == ("10.0", "100.0", "976.6")  # KiB, which are 1e6 B


def test_what_is_wrong_with_a_point_is_said_with_it() -> None:
    flagged = Sample((0.01,) * 6, 1, concurrent=True, flags=(shared(0),))
    points = [measured(Operation.CE_WRITE, (0, 1), 100.0), measured(Operation.CE_WRITE, (1, 0), 100.0)]
    points[0].samples.append(flagged)
    points[0].stop = StopReason.BUDGET
    points.append(replace(measured(Operation.CE_WRITE, (0, 2), 1.0), samples=[], failure=in_words("it hung"), wrong=3))
    writes = series(reported(run_of(gpus(3), points)), "ce-write")
    notes = {
        tuple(devices): writes["words"][at] for devices, at in zip(writes["sets"], writes["notes"][0], strict=True)
    }
    assert notes == {
        (0, 1): "time budget reached before it converged; measured concurrently with others; "
        "shared: 1 other process on GPU0",
        (1, 0): "",
        (0, 2): "failed: it hung; 3 wrong elements",
    }
    assert figures(writes, GIB, [0, 2], BANDWIDTH) == (None, None, None)


@pytest.mark.parametrize(
    ("what", "run", "name", "kind", "sets"),
    [
        ("links", run_of(gpus(2), [measured(Operation.SM_READ, (1, 0), 1.0)]), "sm-read", "link", [[1, 0]]),
        (
            "a larger communicator",
            run_of(gpus(4), [measured(Operation.ALLTOALL, range(4), 1.0)]),
            "alltoall over 4 ranks",
            "group",
            [[0, 1, 2, 3]],
        ),
        (
            "host copies",
            run_of(
                gpus(2),
                [
                    Measurement(replace(m.point, variant=Variant.HOST, members=(1,)), m.samples)
                    for m in [measured(Operation.H2D_CE, (0, 1), 1.0)]
                ],
            ),
            "h2d-ce host",
            "device",
            [[1]],
        ),
    ],
)
def test_every_kind_of_place_has_its_map(what: str, run: Run, name: str, kind: str, sets: list[list[int]]) -> None:
    shown = series(reported(run), name)
    assert (shown["kind"], shown["sets"]) == (kind, sets), what


@pytest.mark.parametrize(
    ("share", "letter"), [(1.0, "Y"), (0.98, "X"), (0.95, "U"), (0.75, "M"), (0.5, "I"), (0.25, "E"), (0.001, "A")]
)
def test_shades_grow_with_the_share_of_the_best(share: float, letter: str) -> None:
    run = pair_run(3, lambda a, b: 100.0 if (a, b) == (0, 1) else 100.0 * share)
    assert series(reported(run), "allreduce")["figures"][0]["shades"] == [f"Y{letter}{letter}"]


def short_answers(run: Run) -> dict[str, tuple[str, str]]:
    page = reported(run)["runs"][0]
    return {one.question: (one.short, one.state) for one in page["answers"]}


@pytest.mark.parametrize(
    ("what", "run", "which", "fast", "wrong"),
    [
        ("all alike", by_hand(), "any of them", "300.0 GB/s busbw", ("nothing found", "ok")),
        (
            "one slow GPU",
            pair_run(4, lambda a, b: 100.0 if 3 in (a, b) else 300.0),
            "GPU0, GPU1",
            "100.0 to 300.0 GB/s busbw",
            ("1 contradiction", "warn"),
        ),
        ("nothing", run_of(gpus(2), []), "nothing to choose", "nothing measured", ("not judged", "warn")),
        (
            "one communicator of all",
            run_of(gpus(4), [measured(Operation.ALLREDUCE, range(4), 200.0)]),
            "nothing to choose",
            "300.0 GB/s busbw",  # × 2(4−1)/4
            ("not judged", "warn"),
        ),
    ],
)
def test_the_first_screen_answers_three_questions(
    what: str, run: Run, which: str, fast: str, wrong: tuple[str, str]
) -> None:
    answers = short_answers(run)
    assert (answers["Which devices"][0], answers["How fast"][0], answers["Is anything wrong"]) == (
        which,
        fast,
        wrong,
    ), what


def test_where_no_fit_devices_share_a_pair_nothing_is_chosen() -> None:
    busy = Health(processes=2)
    run = replace(pair_run(3, lambda _a, _b: 1.0), health_before=(Health(), busy, busy), health_after=(Health(),) * 3)
    assert short_answers(run)["Which devices"] == ("nothing to choose", "warn")


def test_an_interrupted_run_says_so() -> None:
    assert short_answers(replace(by_hand(), complete=False))["Is anything wrong"] == ("nothing found", "warn")


def test_a_throttled_gpu_is_left_out_by_name_and_its_state_is_shown() -> None:
    hot = Health(temperature=88, throttle=("HW thermal slowdown",), nvlink_errors=0)
    well = Health(temperature=40, nvlink_errors=0)
    run = replace(by_hand(), health_before=(well,) * 4, health_after=(well, well, hot, replace(well, nvlink_errors=5)))
    page = reported(run)["runs"][0]
    assert short_answers(run)["Is anything wrong"] == ("GPU2, GPU3 not fit", "warn")
    left = [line for line in page["answers"][0].lines if line.startswith("left out")]
    assert left == ["left out GPU2: throttled: HW thermal slowdown", "left out GPU3: faulty: 5 new NVLink errors"]
    states = next(part for part in printed(page, "health") if isinstance(part, list) and isinstance(part[0], tuple))
    assert [row[:2] for row in states] == [("GPU0", "40"), ("GPU1", "40"), ("GPU2", "40 → 88"), ("GPU3", "40")]
    assert [row[5] for row in states] == ["none", "none", "none → HW thermal slowdown", "none"]
    assert states[3][6] == "0 → 5"  # NVLink errors


def test_verdicts_have_their_cause_and_command() -> None:
    run = run_of(gpus(4), by_hand(slow=100.0).measurements, by_hand().paths)
    found = [part for part in printed(reported(run)["runs"][0], "verdicts") if isinstance(part, Found)]
    assert [(one.kind, one.where) for one in found if one.kind.startswith("NV_")] == [
        ("NV_DEGRADED", "GPU0, GPU1 (NV18)")
    ]
    assert ("theory", "450 GB/s: 18 × 25 GB/s") in found[0].fields
    assert "nvidia-smi nvlink" in found[0].check


@pytest.mark.parametrize(
    ("gbs", "ratio", "shade"),
    [(360.0, 0.9, "b"), (200.0, 0.5, "a"), (396.0, 0.99, "e"), (412.0, 1.03, "f"), (500.0, 1.25, "i")],
)
def test_a_second_run_is_compared_point_by_point(gbs: float, ratio: float, shade: str) -> None:
    comparisons = reported(by_hand(), by_hand(slow=gbs))["comparisons"]
    assert len(comparisons) == 1
    copies = next(one for one in comparisons[0]["data"]["series"] if one["name"] == "ce-write")
    at = copies["sets"].index([0, 1])
    assert copies["figures"][0]["value"][1][at] == ratio
    assert copies["figures"][0]["shades"][1][at] == shade
    assert set(copies["figures"][0]["shades"][0]) == {"e"}
    said = {"e": "the same", "a": "significantly slower", "b": "significantly slower"}.get(
        shade, "significantly faster"
    )
    assert copies["words"][copies["notes"][1][at]] == said


def test_overlapping_intervals_are_no_difference() -> None:
    wide = [noisy(rate, 0.1, seed, trials=7) for rate, seed in ((400.0, 1), (380.0, 2))]
    runs = [run_of(gpus(2), [measured(Operation.CE_WRITE, (0, 1), rates, trials=7)]) for rates in wide]
    ratios = reported(*runs)["comparisons"][0]["data"]["series"][0]
    low, high = ratios["figures"][0]["low"][0][0], ratios["figures"][0]["high"][0][0]
    assert low < 1 < high
    assert ratios["figures"][0]["shades"] == ["e"]


def test_devices_are_matched_by_uuid_wherever_they_stand() -> None:
    base = by_hand(slow=100.0)
    turned = replace(base, devices=tuple(reversed(base.devices)))  # position 3 is now the base's 0
    comparison = reported(base, turned)["comparisons"][0]
    copies = next(one for one in comparison["data"]["series"] if one["name"] == "ce-write")
    value = dict(zip(map(tuple, copies["sets"]), copies["figures"][0]["value"][1], strict=True))
    assert value[0, 1] == 4.0  # other's 3 → 2 over base's 0 → 1
    assert value[3, 2] == 0.25
    assert comparison["how"] == "matched by UUID"


def test_other_devices_are_matched_by_their_order_and_the_page_says_so() -> None:
    base = by_hand()
    other = replace(base, devices=tuple(replace(one, uuid=f"GPU-other-{one.index}") for one in base.devices))
    assert reported(base, other)["comparisons"][0]["how"] == "other devices, matched by their order"


def test_runs_of_different_backends_are_not_compared() -> None:
    comparison = reported(by_hand(), replace(by_hand(), backend="host"))["comparisons"][0]
    assert comparison["how"] == "not compared: cuda and host backend"
    assert (comparison["sections"], comparison["data"]["series"]) == ([], [])


def test_what_else_differs_stands_beside_the_ratios_and_what_is_slower_as_a_whole() -> None:
    base = by_hand()
    newer = replace(base.machine, driver="590.1", nccl="2.30.0")
    slower = [measured(m.point.operation, m.point.members, 150.0, m.point.size_bytes) for m in base.measurements[-6:]]
    other = replace(base, machine=newer, measurements=[*base.measurements[:-6], *slower])
    comparison = reported(base, other)["comparisons"][0]
    head, _, whole, *_ = printed(comparison, "compare")
    differences = [line[10:] for line in str(head).split("\n") if line.startswith("differs   ")]
    assert [line.partition(":")[0] for line in differences] == ["driver", "NCCL"]
    assert differences[1] == f"NCCL: {base.machine.nccl or 'none'} → 2.30.0"
    assert ("allreduce at 1G: everywhere", "6", "0.500×", "0.497-0.503") in whole


def test_latencies_are_compared_as_speeds() -> None:
    # an access of 500 ns against one of 1000 ns is twice as fast
    runs = [run_of(gpus(2), [measured(Operation.CHASE, (0, 1), 8 / ns, size=8)]) for ns in (1000.0, 500.0)]
    ratios = reported(*runs)["comparisons"][0]["data"]["series"][0]
    assert [ratios["figures"][0][end] for end in ("low", "value", "high")] == [[[2.0]]] * 3


def test_runs_with_nothing_in_common_are_distinguished() -> None:
    other = run_of(gpus(3), [measured(Operation.ALLREDUCE, pair, 1.0, size=8) for pair in combinations(range(3), 2)])
    comparison = reported(by_hand(), other)["comparisons"][0]
    assert comparison["data"]["series"] == []
