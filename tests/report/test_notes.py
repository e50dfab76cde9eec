from dataclasses import replace

import pytest

from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import DataPoint, Health, InterferenceCheck, Measurement, Run, SkipKind, Skipped, StopReason
from collbench.report.text.frame import device_names, notes
from tests.builders import gpus, in_words, left_out, measured, run_of, throttled

MIB = 2**20


def run_with(*measurements: Measurement) -> Run:
    return run_of(gpus(3), measurements)


def stopped(reason: StopReason, count: int) -> list[Measurement]:
    measurements = [measured(Operation.CE_WRITE, (0, 1), 300.0, MIB + i) for i in range(count)]
    for one in measurements:
        one.stop = reason
    return measurements


def failed(devices: tuple[int, ...], size: int, reason: str = "crash: signal 11") -> Measurement:
    return Measurement(DataPoint(Operation.CE_WRITE, devices, size), [], StopReason.FAILED, failure=in_words(reason))


def test_the_reasons_to_stop_are_counted_in_one_line() -> None:
    measurements = [*stopped(StopReason.BUDGET, 1), *stopped(StopReason.PRECISION, 25), *stopped(StopReason.NOISE, 2)]
    assert notes(run_with(*measurements)) == [
        "points    28 data points: 25 converged, 2 noise floor reached, 1 time budget reached"
    ]


def verified(operation: Operation, size: int, *counts: tuple[int | None, int | None]) -> Measurement:
    measurement = measured(operation, (0, 1), 300.0, size)
    measurement.samples = [
        replace(measurement.samples[0], verified_bytes=part, moved_bytes=whole) for part, whole in counts
    ]
    return measurement


@pytest.mark.parametrize(
    ("counts", "line"),
    [
        ([[(8 * MIB, 8 * MIB)] * 2], ["verified  all of the bytes moved"]),
        ([[(0, MIB)]], ["verified  none of the bytes moved"]),
        ([[(MIB, 4 * MIB), (MIB, MIB)]], ["verified  40.0% of the bytes moved"]),
        ([[(1999, 2000)]], ["verified  99.9% of the bytes moved"]),
        ([[(1, 2000)]], ["verified  less than 0.1% of the bytes moved"]),
        (
            [[(8 * MIB, 8 * MIB)], [(MIB, 8 * MIB)]],
            ["verified  56.2% of the bytes moved; of ce-write at 2M 12.5%"],
        ),
        ([[(None, None)]], []),  # an old file, or a machine that does not exist
        ([[(MIB, MIB), (None, None)]], ["verified  all of the bytes moved"]),
    ],
)
def test_the_share_of_the_bytes_that_was_verified_is_said(
    counts: list[list[tuple[int | None, int | None]]], line: list[str]
) -> None:
    measurements = [verified(Operation.CE_WRITE, MIB * (1 + i), *each) for i, each in enumerate(counts)]
    assert [said for said in notes(run_with(*measurements)) if said.startswith("verified")] == line


def test_where_the_time_went() -> None:
    run = run_with()
    run.seconds, run.phases = 2.64, {"warm-up": 0.32, "interference check": 0.41, "trials": 1.9, "timed": 1.38}
    assert notes(run) == [
        "time      1.4 s of 2.6 s in timed regions (warm-up 0.3 s, interference check 0.4 s, trials 1.9 s)",
    ]


def test_the_start_of_nccl_is_distinguished_from_the_sweep() -> None:
    run = run_with()
    run.seconds, run.phases = 2.0, {"NCCL start": 0.64, "trials": 1.9, "timed": 1.2}
    assert notes(run) == ["time      1.2 s of 2.0 s in timed regions (trials 1.9 s), after 0.6 s for NCCL to start"]
    run.phases["NCCL start"] = 0.002  # nobody waited
    assert notes(run) == ["time      1.2 s of 2.0 s in timed regions (trials 1.9 s)"]


def test_a_place_that_fails_at_many_sizes_is_one_line() -> None:
    assert notes(run_with(failed((0, 1), 8), failed((0, 1), MIB), failed((1, 0), 8))) == [
        "points    3 data points: 3 failed",
        "failed    GPU0-GPU1: 3 data points (ce-write; 8 B to 1M), the first: crash: signal 11",
    ]


def test_what_is_skipped_for_one_reason_is_one_line() -> None:
    run = replace(run_with(), devices=gpus(8))
    run.skipped = [Skipped(SkipKind.NO_PEERS, Work(Operation.SM_READ), (0, peer)) for peer in range(1, 8)]
    run.skipped.append(left_out("sizes 2G: no room"))
    assert notes(run) == [
        "skipped   sm-read GPU0 → GPU1, sm-read GPU0 → GPU2, sm-read GPU0 → GPU3, sm-read GPU0 → GPU4 and 3 more: "
        "no peer access, so a kernel cannot address the other GPU's memory",
        "skipped   sizes 2G: no room",
    ]


def test_of_very_many_failures_the_first_are_reported() -> None:
    lines = notes(run_of(gpus(16), [failed((0, other), 8, "hang") for other in range(1, 16)]))
    assert len(lines) == 1 + 8 + 1
    assert lines[-1] == "failed    and 7 more: the run file lists them"


def test_what_was_skipped_or_measured_alone_is_said_once() -> None:
    run = run_with()
    run.skipped = [left_out("sizes 2G: the fullest device has room for 1 GiB")] * 2
    alone = InterferenceCheck(Operation.CE_WRITE, (0, 1), "SYS", 10.0, 5.5, 0.55, 0.02, trusted=False)
    run.interference_checks = [alone, replace(alone, label="NV2", ratio=0.988, trusted=True)]
    both = replace(alone, variant=Variant.BOTH_WAYS, size_bytes=64 * MIB)
    run.interference_checks += [
        both,
        replace(both, members=(2, 3), ratio=0.38, delta=0.023),
        replace(both, delta=0.023),
    ]
    assert notes(run) == [
        "checked   interference: NV2 pairs timed concurrently and isolated agree within 1.2% (1 comparison)",
        "isolated  ce-write on SYS pairs: concurrently they reach 0.55 of their isolated rate (±2.0% was allowed)",
        "isolated  ce-write both-ways on SYS pairs at 64M: concurrently they reach 0.38 to 0.55 of their isolated rate "
        "(±2.3% was allowed)",
        "isolated  all pairs on PCIe: their paths share links",
        "skipped   sizes 2G: the fullest device has room for 1 GiB",
    ]


def test_what_agrees_does_not_name_pairs_that_do_not() -> None:
    run = run_with()
    apart = InterferenceCheck(Operation.CE_WRITE, (0, 1), "PHB", 10.0, 5.0, 0.5, 0.02, trusted=False)
    agree = replace(apart, ratio=0.99, trusted=True)
    run.interference_checks = [apart, replace(agree, label="PIX"), replace(agree, operation=Operation.SM_WRITE)]
    assert notes(run)[0] == (
        "checked   interference: PIX pairs and sm-write on some PHB pairs timed concurrently and isolated agree within "
        "1.0% (2 comparisons)"
    )
    run.interference_checks = [replace(agree, label=label) for label in ("PIX", "PHB")]
    assert notes(run)[0].startswith("checked   interference: pairs timed concurrently and isolated agree within 1.0% ")


def test_flags_of_trials_are_reported() -> None:
    measurement = measured(Operation.CE_WRITE, (0, 1), 300.0, MIB)
    measurement.samples[0] = replace(measurement.samples[0], flags=(throttled(1, "SW thermal slowdown"),))
    run = run_with(measurement)
    run.health_before = (Health(),) * 3
    assert any("throttled: SW thermal slowdown on GPU1" in line for line in notes(run))


@pytest.mark.parametrize(
    ("work", "devices", "name"),
    [
        (Work(Operation.CE_READ), (1, 0), "GPU1 → GPU0"),
        (Work(Operation.CE_READ, Variant.STAGED), (1, 0), "GPU1 → GPU0"),
        (Work(Operation.SM_READ, Variant.BOTH_WAYS), (0, 2), "GPU0 ↔ GPU2"),
        (Work(Operation.SM_READ, Variant.ONE_TO_ALL), (1, 0, 2), "GPU1 → all others"),
        (Work(Operation.SM_READ, Variant.ALL_TO_ONE), (1, 0, 2), "all others → GPU1"),
        (Work(Operation.H2D_CE, Variant.HOST), (2,), "GPU2"),
        (Work(Operation.GATHER), (0, 1, 2), "GPU0, GPU1, GPU2"),
    ],
)
def test_places_are_named_as_the_work_uses_them(work: Work, devices: tuple[int, ...], name: str) -> None:
    assert device_names(gpus(3), work, devices) == name
