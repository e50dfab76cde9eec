"""Wrong data and hangs, in the words that the backends leave in a run."""

from dataclasses import replace

import pytest

from collbench.judge.diagnose import Diagnosis, Kind
from collbench.model.errors import FailureKind
from collbench.model.operations import Operation, Variant
from collbench.model.run import Run, SkipKind, Skipped
from collbench.report import verdicts
from tests.builders import in_words
from tests.judge.checked import failed, faults, h200, pcie, the, what

HUNG = "hang: no answer within 5.13 s, so the worker process was killed"
WRONG = (
    "wrong data: ce-write of 64M, link GPU3 → GPU1: 1048576 wrong, the first at byte 2097152: expected 17, found 0. "
    "Do not use this link for training; IOMMU or ACS settings are the usual cause"
)


def ended(run: Run, reason: str, members: tuple[int, ...] = ()) -> Run:
    left = Skipped(SkipKind.WRONG_DATA, members=members, detail=reason)
    return replace(run, complete=False, skipped=[left])


@pytest.mark.parametrize(
    ("case", "reason", "members"),
    [
        ("a link", WRONG, (3, 1)),
        ("a collective", "wrong data: allreduce of 1M, GPU2 among GPU0, GPU2: 1 wrong, the first at byte 0: …", (2, 0)),
        ("one GPU and the host", "wrong data: h2d-ce host of 1M, link between GPU2 and host memory: 1 wrong", (2,)),
        ("a place that nobody named", "wrong data", ()),
    ],
)
def test_wrong_data_is_hard_and_names_its_place(case: str, reason: str, members: tuple[int, ...]) -> None:
    run = ended(h200(), reason, members)
    verdict = the(run, Kind.DATA_CORRUPT)
    assert (verdict.severity, verdict.members) == ("hard", members), case
    assert reason.rstrip(".") in verdicts.what(verdict, run)
    assert "dmesg | grep -i -e iommu -e dmar -e Xid" in verdict.fix


def test_cores_of_the_host_backend() -> None:
    run = replace(h200(), backend="host")
    cores = tuple(replace(d, uuid=f"CPU-{d.index}", index=d.index * 2) for d in run.devices)
    text = "cpu-write of 64 B from CPU2 to CPU6: byte 3 is 0x00, not 0x11: do not trust this memory"
    verdict = the(replace(ended(run, text, (1, 3)), devices=cores), Kind.DATA_CORRUPT)
    assert verdict.members == (1, 3)
    assert verdict.cause.name == "faulty_cores"


@pytest.mark.parametrize(
    "reason",
    [
        HUNG,
        "ce-write of 2G on GPU0-GPU1 failed: GPU 0 did not finish its work in 30 s",
        "allreduce of 2G failed: the work behind a gate took more than 4 s to queue: the driver waits for the device",
        "sim: ce-write of 2G on GPU0 → GPU1 failed: no answer for 5 s: the step was given up",
    ],
)
def test_a_watchdog_that_fired_is_a_hang(reason: str) -> None:
    verdict = the(failed(h200(), Operation.CE_WRITE, (0, 1), reason), Kind.HANG)
    assert (verdict.severity, verdict.members) == ("hard", (0, 1))
    assert "the work never ended (ce-write)" in what(verdict)


def test_a_link_that_hangs_in_copies_and_collectives_is_one_verdict() -> None:
    run = pcie({}, lambda _w, _m: 22.0)
    for operation, members in (
        (Operation.CE_WRITE, (0, 1)),
        (Operation.SM_READ, (1, 0)),
        (Operation.ALLREDUCE, (0, 1)),
    ):
        run = failed(run, operation, members, HUNG)
    verdict = the(run, Kind.HANG)
    assert verdict.members == (0, 1)
    assert "(allreduce, ce-write, sm-read)" in what(verdict)
    assert verdict.cause.name == "acs_stalls"


def test_all_devices_in_one_collective() -> None:
    assert the(failed(h200(), Operation.ALLREDUCE, (0, 1, 2, 3), HUNG), Kind.HANG).members == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("case", "kind", "kinds"),
    [
        ("an error that CUDA reported", FailureKind.ERROR, [Kind.FAILED]),
        ("a worker that died", FailureKind.CRASH, [Kind.FAILED]),
        ("an older version's, which saved no kind", None, [Kind.FAILED]),
        ("not tried", FailureKind.UNTRIED, []),
        ("a worker that could hardly run", FailureKind.BUSY, []),
    ],
)
def test_other_failures_are_no_hang_whatever_their_words(
    case: str, kind: FailureKind | None, kinds: list[Kind]
) -> None:
    found = faults(failed(h200(), Operation.CE_WRITE, (0, 1), HUNG, kind))
    assert [verdict.kind for verdict in found] == kinds, case


@pytest.mark.parametrize("kind", list(FailureKind))
def test_a_pair_with_what_failed_or_was_not_tried_is_not_among_those_that_agree(kind: FailureKind) -> None:
    """Its other copies and its all-reduce would be enough to judge it."""
    covered = Diagnosis(failed(h200(), Operation.CE_WRITE, (2, 1), HUNG, kind)).coverage
    assert [*covered.lacking] == [(1, 2)]
    assert len(covered.judged) == 5


def test_wrong_elements_without_words_are_counted() -> None:
    run = h200()
    run.measurements[0].wrong = 3
    assert "3 wrong elements of ce-write" in what(the(run, Kind.DATA_CORRUPT))
    run.measurements[0].failure = in_words("wrong data: the link lies")
    assert (
        verdicts.what(the(run, Kind.DATA_CORRUPT), run) == "GPU0 → GPU1: wrong data arrived. wrong data: the link lies."
    )


@pytest.mark.parametrize(
    ("title", "operation", "variant", "where"),
    [
        ("a copy", Operation.CE_WRITE, Variant.PLAIN, "GPU1 → GPU0: "),
        ("both ways at once", Operation.CE_WRITE, Variant.BOTH_WAYS, "GPU0-GPU1: "),
        ("a collective", Operation.ALLREDUCE, Variant.PLAIN, "GPU0-GPU1: "),
    ],
)
def test_a_failure_is_of_the_ways_that_its_work_uses(
    title: str, operation: Operation, variant: Variant, where: str
) -> None:
    run = failed(h200(), operation, (1, 0), HUNG)
    bad = run.measurements[-1]
    bad.point = replace(bad.point, variant=variant)
    assert what(the(run, Kind.HANG)).startswith(where)


def test_sets_that_failed_are_distinguished_with_the_first_words_of_each() -> None:
    run = h200()
    for operation, members, reason in (
        (Operation.ALLREDUCE, (0, 1, 2), "one"),
        (Operation.BROADCAST, (0, 1, 2), "two"),
        (Operation.REDUCE, (1, 2, 3), "three"),
    ):
        run = failed(run, operation, members, reason, FailureKind.ERROR)
    assert [(verdict.members, verdicts.what(verdict, run)) for verdict in faults(run)] == [
        ((0, 1, 2), "GPU0, GPU1, GPU2: the work failed (allreduce, broadcast). one."),
        ((1, 2, 3), "GPU1, GPU2, GPU3: the work failed (reduce). three."),
    ]


@pytest.mark.parametrize(("members", "nvlink"), [((3, 1), True), ((), False), ((2,), False)])
def test_over_nvlink_its_own_wires_are_the_likely_cause(members: tuple[int, ...], nvlink: bool) -> None:
    verdict = the(ended(h200(), WRONG, members), Kind.DATA_CORRUPT)
    assert verdict.cause.name == ("faulty_nvlinks" if nvlink else "acs_corrupts")
    assert ("fabricmanager" in verdict.fix) is nvlink
