"""The sentences on failures, skips, wrong data and what could not be judged: one for each kind, from its values."""

from __future__ import annotations

from dataclasses import replace

import pytest

from collbench.judge.outcome import Absence, AbsenceKind
from collbench.model.errors import Cause, Failure, FailureKind, WrongData, died
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import Path, SkipKind, Skipped
from collbench.report import sentences
from tests.builders import gpus, run_of

SUM = Work(Operation.ALLREDUCE)
RUN = run_of(gpus(4), [])
REFUSED = Failure(
    FailureKind.ERROR, Cause.REFUSED, (1,), work=SUM, size_bytes=2**20, groups=((0, 1), (2, 3)), detail="CUDA error 719"
)


def test_each_cause_has_a_sentence_whatever_is_known_of_it() -> None:
    assert all(sentences.failure(Failure(None, cause, detail="{words}"), gpus(2)) for cause in Cause)


@pytest.mark.parametrize(
    ("failure", "sentence"),
    [
        (REFUSED, "allreduce of 1M on GPU0-GPU1, GPU2-GPU3 failed on GPU1: CUDA error 719"),
        (
            replace(REFUSED, devices=(), rank=2, detail="CUDA"),
            "rank 2: allreduce of 1M on GPU0-GPU1, GPU2-GPU3 failed: CUDA",
        ),
        (
            Failure(FailureKind.HANG, Cause.NO_ANSWER, seconds=5.125),
            "hang: no answer within 5.12 s, so the worker process was killed",
        ),
        (died(-9, "Killed"), "crash: the worker process died (signal 9, SIGKILL): Killed"),
        (died(-40, ""), "crash: the worker process died (signal 40): it wrote nothing to stderr"),
        (died(3, "", (1,)), "crash: the worker process died on GPU1 (exit status 3): it wrote nothing to stderr"),
        (
            Failure(FailureKind.UNTRIED, Cause.IN_A_ROW, count=4, because=died(1, "no")),
            "not tried, as 4 data points in a row failed; last error: crash: the worker process died (exit status 1): "
            "no",
        ),
        (Failure(FailureKind.UNTRIED, Cause.REPORTED, detail="not tried, as it is"), "not tried, as it is"),
    ],
)
def test_what_is_known_of_a_failure_is_in_its_sentence(failure: Failure, sentence: str) -> None:
    assert sentences.failure(failure, gpus(4)) == sentence


def test_each_kind_of_skip_has_a_reason() -> None:
    skips = (Skipped(kind, SUM, (0, 1), (8,), 2**20, (), 2, None, "words") for kind in SkipKind)
    assert all(sentences.skipped(skip, RUN) for skip in skips)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (
            WrongData(SUM, 2**20, (2, 0), 3, 17, 1.0, 2.5),
            "wrong data: allreduce of 1M, GPU2 among GPU0, GPU2: 3 wrong elements, the first at byte 17: "
            "expected 1, found 2.5.",
        ),
        (WrongData(Work(Operation.CE_WRITE), 64, (3, 1), 1, 0), "ce-write of 64 B, link GPU3 → GPU1: 1 wrong byte, "),
        (
            WrongData(Work(Operation.H2D_CE, Variant.HOST), 8, (2,), None, 4),
            "wrong data: h2d-ce host of 8 B, link between GPU2 and host memory: the first at byte 4. ",
        ),
    ],
)
def test_wrong_data_names_its_place_and_its_first_element(wrong: WrongData, sentence: str) -> None:
    assert sentence in sentences.skipped(Skipped(SkipKind.WRONG_DATA, members=wrong.members, wrong=wrong), RUN)


@pytest.mark.parametrize(
    ("work", "members", "advice"),
    [
        (Work(Operation.CE_WRITE), (0, 1), "Do not use this link for training"),
        (SUM, (0, 1), "Do not use this link for training"),
        (SUM, (0, 1, 2), "IOMMU or ACS settings are the usual cause"),
        (Work(Operation.CE_WRITE), (1, 2), "IOMMU or ACS settings are the usual cause"),
        (Work(Operation.H2D_CE, Variant.HOST), (2,), "IOMMU or ACS settings are the usual cause"),
        (Work(Operation.SM_READ, Variant.LOCAL), (2,), "Do not train on this GPU"),
    ],
)
def test_only_paths_over_pcie_are_blamed_on_an_iommu(work: Work, members: tuple[int, ...], advice: str) -> None:
    labels = {(0, 1): "NV18", (0, 2): "PHB", (1, 2): "PHB"}
    paths = [Path(pair, label) for pair, label in labels.items()]
    assert sentences.wrong_data(WrongData(work, 64, members), RUN.devices, paths).endswith(advice)


def test_each_absence_has_a_clause() -> None:
    assert all(sentences.absence(Absence(kind, trials=1), RUN) for kind in AbsenceKind)
