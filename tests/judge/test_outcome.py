"""Whatever failed decides the exit status, is named first, and is never called tied, normal, agreeing or best."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.choose.problem import left_out
from collbench.choose.select import choose
from collbench.judge.compare import compare
from collbench.judge.diagnose import coverage, judge
from collbench.judge.outcome import Trouble, TroubleKind, outcome
from collbench.judge.references import ReferenceVerdict
from collbench.judge.references import judge as against_figures
from collbench.judge.references import load as figures
from collbench.judge.summary import rank_summary
from collbench.judge.tier_words import verdict_of
from collbench.judge.tiers import Relation
from collbench.model.errors import ExitStatus, UsageError
from collbench.model.failures import FailureKind
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import DataPoint, Measurement, Run, SkipKind, Skipped, StopReason
from collbench.report.text import verdicts
from collbench.report.text.frame import headline
from collbench.report.text.pairs import pairs_page
from collbench.sim.fabrics import Fault, FaultKind
from tests.builders import ALL, gpus, in_words, measured, run_of
from tests.sim import random_fabrics
from tests.sim.made import simulate

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
MIB = 2**20
SIZES = (64 * MIB,)
REQUEST = replace(ALL, backend="sim", sizes=SIZES, copies=(Variant.PLAIN,), command=("pairs",))
Pair = tuple[int, int]


def bad(kind: FailureKind | None, members: tuple[int, ...] = (0, 1), wrong: int = 0) -> Measurement:
    """Return a data point that failed; `kind` None as an older version saved it."""
    return Measurement(
        DataPoint(Operation.CE_WRITE, members, MIB), [], StopReason.FAILED, wrong, in_words("words", kind)
    )


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
        ("a hang", with_(bad(FailureKind.HANG)), 4, (TroubleKind.HANG, (0, 1), 1)),
        ("both ways", with_(bad(FailureKind.HANG), bad(FailureKind.HANG, (1, 0))), 4, (TroubleKind.HANG, (0, 1), 2)),
        ("a crash", with_(bad(FailureKind.CRASH)), 1, (TroubleKind.CRASH, (0, 1), 1)),
        ("an error", with_(bad(FailureKind.ERROR, (2,))), 1, (TroubleKind.ERROR, (2,), 1)),
        ("an older version's failure", with_(bad(None)), 1, (TroubleKind.FAILED, (0, 1), 1)),
        ("not tried", with_(bad(FailureKind.UNTRIED)), 1, (TroubleKind.UNTRIED, (0, 1), 1)),
        ("wrong elements", with_(bad(FailureKind.ERROR, wrong=3)), 4, (TroubleKind.WRONG_DATA, (0, 1), 1)),
        ("wrong data ended it", with_(skipped=(WRONG,)), 4, (TroubleKind.WRONG_DATA, (1, 3), 1)),
        (
            "the worst of many comes first",
            with_(bad(FailureKind.ERROR), bad(FailureKind.ERROR), bad(FailureKind.HANG, (2, 3))),
            4,
            (TroubleKind.HANG, (2, 3), 1),
        ),
        (
            "the most precise place comes first",
            with_(bad(FailureKind.HANG, (0, 1, 2, 3)), bad(FailureKind.HANG, (0, 2))),
            4,
            (TroubleKind.HANG, (0, 2), 1),
        ),
    ],
)
def test_what_failed_decides_the_status_and_comes_first(
    what: str, run: Run, status: int, first: tuple[TroubleKind, tuple[int, ...], int] | None
) -> None:
    found = outcome(run)
    assert found.status == status, what
    assert found.troubles[:1] == (() if first is None else (Trouble(*first),)), what
    assert bool(headline(run)) is (first is not None), what


def test_the_table_of_statuses_is_the_readmes() -> None:
    reported = " ".join(README.split())
    assert [f"{one.value} {one.sentence}" for one in ExitStatus if f"{one.value} {one.sentence}" not in reported] == []
    assert sorted(ExitStatus) == [0, 1, 2, 3, 4, 129, 130, 131, 143]


@cache
def healthy(seed: int) -> Run:
    """Return a run of a random machine with 4 to 8 GPUs and nothing failed."""
    while len((fabric := random_fabrics.make(np.random.default_rng(seed))).gpus) > 8:
        seed += 1000
    return simulate(replace(fabric, faults=()), REQUEST, seed)


@cache
def hanging(seed: int) -> tuple[Run, Pair]:
    """Return a run of a random machine on which one pair hangs, and the pair."""
    while len((fabric := random_fabrics.make(np.random.default_rng(seed))).gpus) > 8:
        seed += 1000
    a, b = sorted(random.Random(seed).sample(range(len(fabric.gpus)), 2))
    return simulate(replace(fabric, faults=(Fault(FaultKind.HANGING_LINK, (a, b)),)), REQUEST, seed), (a, b)


def broken(run: Run, places: list[int], kind: FailureKind | None) -> Run:
    """Return the run with these data points failed, some before and some after their first sample."""
    found = list(run.measurements)
    for number in places:
        one = found[number % len(found)]
        kept = one.samples[: number % 2]
        found[number % len(found)] = replace(one, samples=kept, stop=StopReason.FAILED, failure=in_words("words", kind))
    return replace(run, measurements=found)


def check_never_trusted(run: Run) -> None:
    """Fail the test where anything good is said of a place that failed."""
    found = outcome(run)
    failed = {place for place in found.device_sets if len(place) == 2}
    assert found.status in (ExitStatus.FAILED, ExitStatus.UNTRUSTED)
    tags = ["-".join(run.devices[member].tag for member in place) for place in failed]
    first = headline(run)
    assert first.startswith("FAILED: ")
    assert any(tag in first for tag in tags) or not tags
    printed = "\n".join(str(block) for block in pairs_page(run))
    assert "All pairs tie" not in printed
    for ranked in rank_summary(run):
        for ranking in ranked.rankings:
            touched = [p for p in failed if any(set(p) == set(one) for one in (*ranking.failed, *ranking.lacking))]
            assert not (touched and ranking.all_tied)
            assert " tie " not in f" {verdict_of(ranking)} " or not touched
            relations = {one.relation for one in ranking.standings if tuple(sorted(one.members)) in failed}
            assert relations <= {Relation.FAILED, Relation.IMPOSSIBLE}
    assert not failed & set(coverage(run).judged)
    judged = judge(run)
    assert verdicts.status(run, judged) != 0
    assert verdicts.conclusion(run, coverage(run), judged) != "Labels, tools and measurement agree."
    for answer in against_figures(run, figures()).answers:
        assert not answer.failed or answer.standing in (
            ReferenceVerdict.FAILED,
            ReferenceVerdict.BELOW,
            ReferenceVerdict.UNDECIDED,
        )
    fit = len(run.devices) - len(left_out(run))
    for k in range(2, fit + 1):
        try:
            chosen = choose(run, k)
        except UsageError:
            continue  # nothing is left to choose from
        inside = [place for place in failed if set(place) <= set(chosen.members)]
        assert bool(inside) is bool(chosen.failed)
        assert ("includes failed" in chosen.why(run.devices)) is bool(inside)
        if len(failed) == 1 and k < fit:
            assert not inside, "there is a set without it"


@settings(deadline=None, max_examples=4, derandomize=True)
@given(st.integers(0, 7))
def test_a_pair_that_hangs_on_a_random_machine_is_never_trusted(seed: int) -> None:
    run, pair = hanging(seed)
    assert outcome(run).status is ExitStatus.UNTRUSTED
    assert "-".join(run.devices[member].tag for member in pair) in headline(run)
    check_never_trusted(run)


@settings(deadline=None, max_examples=5, derandomize=True)
@given(
    st.integers(0, 3),
    st.lists(st.integers(0, 10**6), min_size=1, max_size=4),
    st.sampled_from([FailureKind.HANG, FailureKind.CRASH, FailureKind.ERROR, None]),
)
def test_random_failed_data_points_are_never_trusted(seed: int, places: list[int], kind: FailureKind | None) -> None:
    run = broken(healthy(seed), places, kind)
    assert outcome(run).status == (4 if kind is FailureKind.HANG else 1)
    check_never_trusted(run)
    assert compare(healthy(seed), run, 0.05).status != 0


@settings(deadline=None, max_examples=12, derandomize=True)
@given(st.integers(0, 3), st.integers(0, 10**6), st.sampled_from([0.0, 0.3, 0.7, 0.95]))
def test_less_evidence_never_makes_more_pairs_judged_or_tied(seed: int, order: int, share: float) -> None:
    whole, chance = healthy(seed), random.Random(order)
    less = replace(whole, measurements=[found for found in whole.measurements if chance.random() < share])
    assert set(coverage(less).judged) <= set(coverage(whole).judged)
    excused, fewer = ({pair for pair, why in coverage(run).missed.items() if why.by_design} for run in (whole, less))
    assert fewer <= excused
    for ranked in rank_summary(less):
        assert not any(ranking.all_tied and ranking.lacking for ranking in ranked.rankings)
