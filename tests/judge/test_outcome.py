"""What failed decides the exit status and is named first; test_failures.py of the invariants has the rest."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from collbench.judge.outcome import Trouble, TroubleKind, outcome
from collbench.model.errors import ExitStatus, FailureKind, WrongData
from collbench.model.operations import Operation, Work
from collbench.model.run import DataPoint, Measurement, Run, SkipKind, Skipped, StopReason
from collbench.report.frame import headline
from tests.builders import gpus, in_words, measured, run_of

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
MIB = 2**20


def bad(
    kind: FailureKind | None,
    members: tuple[int, ...] = (0, 1),
    wrong: int = 0,
    operation: Operation = Operation.CE_WRITE,
) -> Measurement:
    """Return a data point that failed; `kind` None as an older version saved it."""
    return Measurement(DataPoint(operation, members, MIB), [], StopReason.FAILED, wrong, in_words("words", kind))


def with_(*found: Measurement, skipped: tuple[Skipped, ...] = ()) -> Run:
    sound = [measured(Operation.ALLREDUCE, pair, 300.0) for pair in combinations(range(4), 2)]
    run = run_of(gpus(4), [*sound, *found])
    run.skipped = list(skipped)
    return run


WRONG = Skipped(SkipKind.WRONG_DATA, members=(3, 1), detail="words")
NO_PEERS = Skipped(SkipKind.NO_PEERS, Work(Operation.SM_WRITE), (0, 1))


@pytest.mark.parametrize(
    ("what", "run", "status", "first"),
    [
        ("nothing failed", with_(), 0, None),
        ("skipped by design", with_(skipped=(NO_PEERS,)), 0, None),
        ("a hang", with_(bad(FailureKind.HANG)), 4, (TroubleKind.HANG, (0, 1), 1, None, (0, 1))),
        ("of the other way", with_(bad(FailureKind.HANG, (1, 0))), 4, (TroubleKind.HANG, (0, 1), 1, None, (1, 0))),
        ("both ways", with_(bad(FailureKind.HANG), bad(FailureKind.HANG, (1, 0))), 4, (TroubleKind.HANG, (0, 1), 2)),
        ("a crash", with_(bad(FailureKind.CRASH)), 1, (TroubleKind.CRASH, (0, 1), 1, None, (0, 1))),
        ("an error", with_(bad(FailureKind.ERROR, (2,))), 1, (TroubleKind.ERROR, (2,), 1, None, (2,))),
        ("an older version's failure", with_(bad(None)), 1, (TroubleKind.FAILED, (0, 1), 1, None, (0, 1))),
        ("not tried", with_(bad(FailureKind.UNTRIED)), 1, (TroubleKind.UNTRIED, (0, 1), 1, None, (0, 1))),
        (
            "wrong elements",
            with_(bad(FailureKind.ERROR, wrong=3)),
            4,
            (TroubleKind.WRONG_DATA, (0, 1), 1, None, (0, 1)),
        ),
        ("wrong data ended it", with_(skipped=(WRONG,)), 4, (TroubleKind.WRONG_DATA, (1, 3), 1)),
        (
            "the worst of many comes first",
            with_(bad(FailureKind.ERROR), bad(FailureKind.ERROR), bad(FailureKind.HANG, (2, 3))),
            4,
            (TroubleKind.HANG, (2, 3), 1, None, (2, 3)),
        ),
        (
            "the most precise place comes first",
            with_(bad(FailureKind.HANG, (0, 1, 2, 3)), bad(FailureKind.HANG, (0, 2))),
            4,
            (TroubleKind.HANG, (0, 2), 1, None, (0, 2)),
        ),
    ],
)
def test_what_failed_decides_the_status_and_comes_first(
    what: str, run: Run, status: int, first: tuple[Any, ...] | None
) -> None:
    found = outcome(run)
    assert found.status == status, what
    assert found.troubles[:1] == (() if first is None else (Trouble(*first),)), what
    assert bool(headline(run)) is (first is not None), what


ONE_WAY = (bad(FailureKind.HANG, (2, 0)), bad(FailureKind.HANG, (2, 0)))
READS = WrongData(Work(Operation.SM_READ), MIB, (3, 1), 1, 0)
SUM = WrongData(Work(Operation.ALLREDUCE), MIB, (3, 1), 1, 0)


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (with_(*ONE_WAY), "FAILED: GPU2→GPU0: 2 data points, hang"),
        (with_(*ONE_WAY, bad(FailureKind.HANG, (0, 2))), "FAILED: GPU0-GPU2: 3 data points, hang"),
        (with_(bad(FailureKind.HANG, operation=Operation.ALLREDUCE)), "FAILED: GPU0-GPU1: 1 data point, hang"),
        (
            with_(*ONE_WAY, bad(FailureKind.HANG, (0, 2), operation=Operation.ALLREDUCE)),
            "FAILED: GPU2→GPU0: 3 data points, hang",
        ),
        (
            with_(skipped=(Skipped(SkipKind.WRONG_DATA, members=(3, 1), wrong=READS),)),
            "FAILED: GPU3→GPU1: 1 data point, wrong data",
        ),
        (
            with_(skipped=(Skipped(SkipKind.WRONG_DATA, members=(3, 1), wrong=SUM),)),
            "FAILED: GPU1-GPU3: 1 data point, wrong data",
        ),
    ],
)
def test_the_first_line_has_the_direction_where_copies_failed_one_way_alone(run: Run, said: str) -> None:
    assert headline(run) == said


def test_the_table_of_statuses_is_the_readmes() -> None:
    reported = " ".join(README.split())
    assert [f"{one.value} {one.sentence}" for one in ExitStatus if f"{one.value} {one.sentence}" not in reported] == []
    assert sorted(ExitStatus) == [0, 1, 2, 3, 4, 129, 130, 131, 143]
