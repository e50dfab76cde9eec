"""Which pairs a run judges, why it does not judge the others, and which checks it leaves open."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import permutations

import pytest

from collbench.judge.diagnose import Diagnosis
from collbench.judge.outcome import AbsenceKind
from collbench.model.errors import FailureKind
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import Health, Measurement, Run, SkipKind, Skipped
from collbench.report import sentences
from tests.builders import GIB, gpus, in_words, measured, paths, run_of
from tests.judge.checked import h200, pcie, undone

MIB = 2**20
WRITE, ALLREDUCE = Operation.CE_WRITE, Operation.ALLREDUCE


def two(*found: Measurement, operations: Iterable[Operation] = ()) -> Run:
    """Return a run of two devices that was asked for these operations, or for what it has."""
    run = run_of(gpus(2), found)
    return replace(run, settings=replace(run.settings, operations=tuple(operations) or run.settings.operations))


def variant(found: Measurement, variant: Variant) -> Measurement:
    return replace(found, point=replace(found.point, variant=variant))


def both(size: int = GIB, trials: int = 3) -> list[Measurement]:
    return [measured(WRITE, link, 400.0, size, trials) for link in ((0, 1), (1, 0))]


@pytest.mark.parametrize(
    ("title", "run"),
    [
        ("copies both ways", two(*both())),
        ("of 16 MiB", two(*both(16 * MIB))),
        ("a collective", two(measured(ALLREDUCE, (0, 1), 300.0, trials=3))),
        ("of 64 MiB, whatever its order", two(measured(ALLREDUCE, (1, 0), 300.0, 64 * MIB, trials=3))),
        ("different copies each way", two(both()[0], measured(Operation.SM_READ, (1, 0), 400.0))),
    ],
)
def test_what_judges_a_pair(title: str, run: Run) -> None:
    found = Diagnosis(run).coverage
    assert (found.judged, found.missed, found.pairs, found.lacking) == (((0, 1),), {}, 1, {})


STAGED = [variant(one, Variant.STAGED) for one in both()]


@pytest.mark.parametrize(
    ("title", "run", "kind", "reason"),
    [
        ("one way", two(both()[0]), AbsenceKind.ONE_WAY, "measured one way only"),
        ("the other way", two(both()[1]), AbsenceKind.ONE_WAY, "measured one way only"),
        ("two trials", two(*both(trials=2)), AbsenceKind.FEW_TRIALS, "2 of the 3 trials needed to estimate noise"),
        (
            "two of 16 MiB",
            two(*both(16 * MIB, 2)),
            AbsenceKind.FEW_TRIALS,
            "2 of the 3 trials needed to estimate noise",
        ),
        ("small copies", two(*both(16 * MIB - 1)), AbsenceKind.SMALL, "small messages only"),
        (
            "a small collective",
            two(measured(ALLREDUCE, (0, 1), 300.0, 64 * MIB - 1)),
            AbsenceKind.SMALL,
            "small messages only",
        ),
        ("other variants", two(*STAGED), AbsenceKind.NOT_MEASURED, "not measured"),
        ("nothing", two(), AbsenceKind.NOT_MEASURED, "not measured"),
        ("interrupted", replace(two(), complete=False), AbsenceKind.NOT_REACHED, "not measured: the run was interrupt"),
    ],
)
def test_what_does_not_and_why(title: str, run: Run, kind: AbsenceKind, reason: str) -> None:
    found = Diagnosis(run).coverage
    assert (found.judged, found.pairs, found.lacking) == ((), 1, found.missed)
    assert found.missed[0, 1].kind == kind
    assert sentences.absence(found.missed[0, 1], run).startswith(reason)


def test_what_wrong_data_ended_is_not_called_interrupted() -> None:
    wrong = [Skipped(SkipKind.WRONG_DATA, members=(0, 1))]
    run = replace(run_of(gpus(3), []), complete=False, skipped=wrong)
    assert (
        sentences.absence(Diagnosis(run).coverage.missed[1, 2], run) == "not measured: the run was ended by wrong data"
    )


def given_up(found: Measurement, kind: FailureKind) -> Measurement:
    return replace(found, failure=in_words("no answer", kind), samples=[])


def test_a_pair_on_which_something_failed_is_not_judged_whatever_else_was_measured() -> None:
    bad = given_up(measured(Operation.SM_READ, (1, 0), 300.0), FailureKind.HANG)
    (absence,) = Diagnosis(two(*both(), bad)).coverage.missed.values()
    assert absence.kind is AbsenceKind.FAILED
    untried = given_up(measured(Operation.SM_READ, (1, 0), 300.0), FailureKind.UNTRIED)
    assert Diagnosis(two(*both(), untried)).coverage.judged == ()
    (absence,) = Diagnosis(two(both()[0], untried)).coverage.missed.values()
    assert (absence.kind, absence.failure) == (AbsenceKind.FAILED, untried.failure)


def refused(*works: Work) -> list[Skipped]:
    return [Skipped(SkipKind.NO_PEERS, work, link) for work in works for link in ((0, 1), (1, 0))]


@pytest.mark.parametrize(
    ("title", "skipped", "operations", "by_design"),
    [
        ("all that was asked for", [Work(Operation.SM_WRITE)], [Operation.SM_WRITE], True),
        ("some of it", [Work(Operation.SM_WRITE)], [Operation.SM_WRITE, WRITE], False),
        ("what is named in the skipped alone", [Work(Operation.SM_WRITE)], [Operation.CHASE], True),
        ("some of it, asked for later", [Work(Operation.SM_WRITE)], [WRITE, Operation.SM_WRITE], False),
        ("what judges nothing alone", [Work(Operation.SM_WRITE, Variant.BOTH_WAYS)], [Operation.CHASE], False),
        ("what judges nothing", [Work(Operation.SM_WRITE, Variant.BOTH_WAYS)], [WRITE], False),
    ],
)
def test_no_peer_access_excuses_a_pair_where_it_is_all_that_is_lacking(
    title: str, skipped: list[Work], operations: list[Operation], by_design: bool
) -> None:
    found = Diagnosis(replace(two(operations=operations), skipped=refused(*skipped))).coverage
    (absence,) = found.missed.values()
    assert (absence.by_design, len(found.lacking)) == (by_design, 0 if by_design else 1)
    plain = skipped[0].variant is Variant.PLAIN
    assert absence.kind is (AbsenceKind.SKIPPED if plain else AbsenceKind.NOT_MEASURED)
    cut = replace(two(operations=operations), skipped=refused(*skipped), complete=False)
    (absence,) = Diagnosis(cut).coverage.missed.values()
    assert absence.kind is (AbsenceKind.SKIPPED if by_design else AbsenceKind.NOT_REACHED)


def less(run: Run, *left_out: tuple[Work, tuple[int, ...]]) -> Run:
    return replace(run, measurements=[m for m in run.measurements if (m.point.work, m.point.members) not in left_out])


def only(run: Run, *works: Work) -> Run:
    return replace(run, measurements=[found for found in run.measurements if found.point.work in works])


CE = Work(WRITE)
ALL = [(CE, link) for link in permutations(range(4), 2)]


@pytest.mark.parametrize(
    ("title", "run", "lines"),
    [
        ("a link", less(h200(), ALL[0]), ["ce-write at 1G on GPU0 → GPU1: not measured"]),
        (
            "four links",
            less(h200(), *ALL[:4]),
            ["ce-write at 1G on GPU0 → GPU1, GPU0 → GPU2, GPU0 → GPU3, GPU1 → GPU0: not measured"],
        ),
        (
            "six",
            less(h200(), *ALL[:6]),
            ["ce-write at 1G on GPU0 → GPU1, GPU0 → GPU2, GPU0 → GPU3, GPU1 → GPU0 and 2 more: not measured"],
        ),
        (
            "no staged copies",
            only(h200(), CE, Work(ALLREDUCE)),
            ["peer access against staging: no staged copies (collbench copies --patterns one-way,staged)"],
        ),
        (
            "no all-reduce on pairs",
            replace(
                h200(),
                measurements=[
                    *(m for m in h200().measurements if m.point.operation is not ALLREDUCE),
                    measured(ALLREDUCE, (0, 1, 2, 3), 236.3),
                    measured(Operation.BROADCAST, (0, 1), 326.0),
                ],
            ),
            ["NCCL on each pair: no all-reduce was measured on pairs"],
        ),
        (
            "PCIe that nobody read",
            replace(pcie({}, lambda _w, _m: 22.0), health_after=()),
            ["PCIe under load: its generation and width were not read"],
        ),
        (
            "PCIe of which half was read",
            replace(pcie({}, lambda _w, _m: 22.0), health_after=(Health(pcie_generation=4), Health(pcie_width=16))),
            [],
        ),
        ("all that there is to judge", pcie({}, lambda _w, _m: 22.0), []),
        ("cores have neither NCCL nor labels", replace(h200(), backend="host", measurements=[]), []),
    ],
)
def test_what_a_run_leaves_open(title: str, run: Run, lines: list[str]) -> None:
    assert undone(run) == lines


def test_links_whose_limit_nobody_reported_are_named_once_a_label() -> None:
    devices = gpus(3)
    run = run_of(devices, [measured(WRITE, link, 22.0) for link in permutations(range(3), 2)], paths(3, "PHB"))
    lines = undone(run)
    assert "PHB links against their limits: their PCIe slots or NVLinks are unknown" in lines
    assert "NCCL against the links: no collective of 64M or more was measured" in lines
    reported = replace(run, paths=tuple(replace(path, theory_gbs=31.5) for path in run.paths))
    assert not any("against a limit" in line for line in undone(reported))


def test_the_smallest_messages_that_are_judged() -> None:
    def run(copy: int, collective: int) -> Run:
        points = [measured(WRITE, link, 400.0, copy) for link in ((0, 1), (1, 0))]
        return run_of(gpus(2), [*points, measured(ALLREDUCE, (0, 1), 300.0, collective)])

    assert not any("no copy" in line or "no collective" in line for line in undone(run(16 * MIB, 64 * MIB)))
    lines = undone(run(16 * MIB - 4, 64 * MIB - 4))
    assert any("no copy of 16M or more" in line for line in lines)
    assert any("no collective of 64M or more" in line for line in lines)
