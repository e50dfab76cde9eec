from dataclasses import replace

import pytest

from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import InterferenceCheck, Measurement, Run
from collbench.report.text.frame import device_names, notes
from tests.builders import gpus, measured, run_of

MIB = 2**20


def run_with(*measurements: Measurement) -> Run:
    return run_of(gpus(3), measurements)


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


def test_the_start_of_nccl_is_distinguished_from_the_sweep() -> None:
    run = run_with()
    run.seconds, run.phases = 2.0, {"NCCL start": 0.64, "trials": 1.9, "timed": 1.2}
    assert notes(run) == ["time      1.2 s of 2.0 s in timed regions (trials 1.9 s), after 0.6 s for NCCL to start"]
    run.phases["NCCL start"] = 0.002  # nobody waited
    assert notes(run) == ["time      1.2 s of 2.0 s in timed regions (trials 1.9 s)"]


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
