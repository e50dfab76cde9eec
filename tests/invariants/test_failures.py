"""A failure is the first thing seen: its place in the first line, an exit status, and no agreement over it."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from collbench.choose.fitness import left_out
from collbench.choose.select import choose
from collbench.judge.compare import compare
from collbench.judge.diagnose import Diagnosis
from collbench.judge.outcome import TroubleKind, outcome
from collbench.judge.references import ReferenceVerdict, load
from collbench.judge.references import judge as against
from collbench.judge.summary import rank_summary
from collbench.judge.tiers import Relation, verdict_of
from collbench.model.errors import ExitStatus, FailureKind, UsageError
from collbench.model.operations import Work
from collbench.model.run import Health, Measurement, Run, StopReason
from collbench.report import verdicts
from collbench.report.frame import headline
from collbench.report.frame import run_page as page
from tests.builders import in_words
from tests.invariants.machines import COPIES, PAIRS, Made, machines, shuffled, tried, without_points
from tests.report.pages import text

SOUND = machines(("none", "slow-gpu", "nv-degraded", "intra-label-outlier", "contention"))
WORKS = (*COPIES, PAIRS[1])
FIGURES = load()


def failing(run: Run, place: int, kind: FailureKind | None, trials: int) -> Run:
    """Return the run with one data point given up after some trials."""
    found = run.measurements[place]
    failed = replace(found, samples=found.samples[:trials], stop=StopReason.FAILED, failure=in_words("it broke", kind))
    return replace(run, measurements=[failed if m is found else m for m in run.measurements])


def first_line(run: Run) -> str:
    return text(page(Diagnosis(run))).strip().splitlines()[0]


def tags(run: Run, found: Measurement) -> set[str]:
    return {run.devices[member].tag for member in found.point.members}


@tried()
@given(made=SOUND, works=st.sampled_from((PAIRS, WORKS)), kind=st.sampled_from(list(FailureKind)), data=st.data())
def test_any_failed_point_comes_first_and_decides_the_status(
    made: Made, works: tuple[Work, ...], kind: FailureKind, data: st.DataObject
) -> None:
    run = made.run(works)
    place = data.draw(st.integers(0, len(run.measurements) - 1))
    broken = failing(run, place, kind, data.draw(st.integers(0, 2)))
    mixed = shuffled(broken, made.rng)
    assert outcome(mixed).status is not ExitStatus.DONE
    line = first_line(mixed)
    assert line == headline(mixed)
    assert line.startswith("FAILED")
    assert all(tag in line for tag in tags(run, run.measurements[place]))


@tried()
@given(made=SOUND, kind=st.sampled_from([*FailureKind, None]), data=st.data())
def test_nothing_ties_agrees_or_is_normal_over_a_failure(
    made: Made, kind: FailureKind | None, data: st.DataObject
) -> None:
    run = broken = made.run(PAIRS)
    for place in data.draw(st.sets(st.integers(0, len(run.measurements) - 1), min_size=1, max_size=4)):
        broken = failing(broken, place, kind, data.draw(st.integers(0, 2)))
    failed = {place for place in outcome(broken).device_sets if len(place) == 2}
    for ranking in (ranking for ranked in rank_summary(broken) for ranking in ranked.rankings):
        if failed & {(min(place), max(place)) for place in (*ranking.failed, *ranking.lacking)}:
            assert not ranking.all_tied
            assert " tie " not in f" {verdict_of(ranking)} "
        relations = {standing.relation for standing in ranking.standings if tuple(sorted(standing.members)) in failed}
        assert relations <= {Relation.FAILED, Relation.IMPOSSIBLE}
    assert "All pairs tie" not in text(page(Diagnosis(broken)))
    diagnosis = Diagnosis(broken)
    assert not failed & set(diagnosis.coverage.judged)
    assert diagnosis.status != 0
    count = len(run.devices) * (len(run.devices) - 1) // 2
    assert f"agree {count} of {count}" not in " ".join(text(verdicts.page(diagnosis)).split())
    assert verdicts.conclusion(diagnosis) != "Labels, tools and measurement agree."
    assert all(
        not one.failed or one.standing is not ReferenceVerdict.NORMAL for one in against(broken, FIGURES).answers
    )
    assert compare(run, broken, 0.05).status is not ExitStatus.DONE


@tried()
@given(made=SOUND, slow=st.booleans(), data=st.data())
def test_no_set_with_a_failure_is_chosen_while_there_is_one_without(
    made: Made, slow: bool, data: st.DataObject
) -> None:
    """Throttled devices are no reason to prefer a link that failed."""
    run = made.run(PAIRS)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(run.measurements) - 1))
        run = failing(run, place, data.draw(st.sampled_from(list(FailureKind))), 0)
    if slow:
        hot = data.draw(st.integers(0, len(run.devices) - 1))
        states = tuple(Health(throttle=("HW slowdown",) if n == hot else ()) for n in range(len(run.devices)))
        run = replace(run, health_before=states)
    broken = outcome(run)
    able = {*range(len(run.devices))} - {one.member for one in left_out(run, allow_throttled=True)}
    for k in range(2, len(able) + 1):
        try:
            chosen = choose(run, k)
        except UsageError:
            continue
        if chosen.failed:
            assert all(broken.within(some) for some in combinations(sorted(able), k)), chosen
        assert chosen.failed == broken.within(chosen.members)
        assert ("includes failed" in chosen.why(run.devices)) is bool(chosen.failed)


@tried(0.5)
@given(made=SOUND, data=st.data())
def test_fewer_points_hide_no_failure(made: Made, data: st.DataObject) -> None:
    run = made.run(PAIRS)
    place = data.draw(st.integers(0, len(run.measurements) - 1))
    broken = failing(run, place, FailureKind.CRASH, 0)
    few = without_points(broken, made.rng)
    failed = [found for found in few.measurements if found.failure]
    assert (outcome(few).status is ExitStatus.DONE) is not bool(failed)


@tried()
@given(made=machines(("impossible",)))
def test_an_impossible_figure_comes_first_and_is_status_3(made: Made) -> None:
    run = made.run(COPIES)
    troubles = outcome(run).troubles
    if troubles:  # of a clock that is wrong by little, or a pair that has no such fault
        assert {trouble.kind for trouble in troubles} == {TroubleKind.IMPOSSIBLE}
        assert outcome(run).status is ExitStatus.CONTRADICTION
        assert first_line(run).startswith("IMPOSSIBLE")


@tried(0.5)
@given(made=machines(("hang", "data-corrupt")))
def test_a_fault_that_breaks_the_data_or_the_work_is_status_4(made: Made) -> None:
    run = made.run(PAIRS)
    broken = bool(run.skipped) or any(found.failure for found in run.measurements)
    assert (outcome(run).status is ExitStatus.UNTRUSTED) is broken
