"""Less evidence never gives more confidence: without points, trials or devices no contradiction becomes an agreement.

Where trials go, the scatter of those that stay is kept: what an unlucky choice of trials shows is another machine.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from collbench.cluster.nodes import State
from collbench.cluster.nodes import judge as judge_nodes
from collbench.judge.compare import ChangeVerdict, Comparison, compare
from collbench.judge.diagnose import Diagnosis, Severity, judge
from collbench.judge.physics import impossible
from collbench.judge.summary import rank_summary
from collbench.judge.tiers import Relation, rank_links
from collbench.model.operations import Operation, Work
from collbench.model.run import Measurement, Run
from tests.cluster.made import leaves, seen, slow
from tests.invariants.machines import COPIES, HEALTHY, PAIRS, SIZE, Made, machines, tried, without_points

# Logs over σ whose subsets of the first 3, 4, … scatter alike: no trial is wilder than those before it.
_SCATTER = (0.0, 1.0, -1.0) * 4


def steady(run: Run, trials: int, sigma: float) -> Run:
    """Return the run with the first trial of each point repeated, scattered by a pattern that repeats every three."""
    found = [
        replace(m, samples=[
            replace(m.samples[0], seconds=tuple(s * math.exp(sigma * z) for s in m.samples[0].seconds))
            for z in _SCATTER[:trials]
        ]) if m.samples else m
        for m in run.measurements
    ]  # fmt: skip
    return replace(run, measurements=found)


def cut(run: Run, trials: int, which: set[int]) -> Run:
    """Return the run with some data points cut to their first trials."""
    found = [replace(m, samples=m.samples[:trials]) if n in which else m for n, m in enumerate(run.measurements)]
    return replace(run, measurements=found)


def relations(run: Run, work: Work) -> dict[tuple[int, ...], Relation]:
    ranking = rank_links(run, work, SIZE)
    return {standing.members: standing.relation for standing in ranking.standings} if ranking else {}


def best(run: Run, work: Work) -> tuple[int, ...]:
    ranking = rank_links(run, work, SIZE)
    return ranking.standings[0].members if ranking else ()


def of_work(run: Run, work: Work) -> list[Measurement]:
    return [found for found in run.measurements if found.point.work == work]


def contradicted(run: Run) -> bool:
    return any(verdict.severity is not Severity.INFO for verdict in judge(run))


def subsets(run: Run) -> st.SearchStrategy[set[int]]:
    return st.sets(st.integers(0, len(run.measurements) - 1), max_size=len(run.measurements))


@tried()
@given(made=machines(), sigma=st.sampled_from((0.001, 0.005, 0.01, 0.03)), data=st.data())
def test_fewer_trials_make_no_link_tied_to_the_same_best(made: Made, sigma: float, data: st.DataObject) -> None:
    many = steady(made.run(trials=1), 12, sigma)
    few = cut(many, data.draw(st.sampled_from((1, 2, 3, 6, 9))), data.draw(subsets(many)))
    for work in PAIRS:
        if best(many, work) == best(few, work):
            before, after = relations(many, work), relations(few, work)
            assert not {m for m in after if after[m] is Relation.TIED and before[m] is not Relation.TIED}


@tried()
@given(made=machines(), sigma=st.sampled_from((0.001, 0.005, 0.01, 0.03)))
def test_fewer_points_make_no_link_tied_to_the_same_best(made: Made, sigma: float) -> None:
    """Unless it failed in a data point that is missing: scattered rates may beat a limit."""
    many = steady(made.run(trials=1), 9, sigma)
    few = without_points(many, made.rng)
    for work in PAIRS:
        if best(many, work) == best(few, work):
            before, after = relations(many, work), relations(few, work)
            assert not {
                m for m in after if after[m] is Relation.TIED and before[m] not in (Relation.TIED, Relation.FAILED)
            }


@tried()
@given(made=HEALTHY, share=st.sampled_from((0.05, 0.3, 0.7)))
def test_fewer_points_make_no_more_pairs_judged_and_no_more_excused(made: Made, share: float) -> None:
    whole = made.run(PAIRS)
    less = without_points(whole, made.rng, share)
    of_whole, of_less = (Diagnosis(run).coverage for run in (whole, less))
    assert set(of_less.judged) <= set(of_whole.judged)
    excused, fewer = ({pair for pair, why in one.missed.items() if why.by_design} for one in (of_whole, of_less))
    assert fewer <= excused
    assert not any(ranking.all_tied and ranking.lacking for ranked in rank_summary(less) for ranking in ranked.rankings)


@tried()
@given(made=machines())
def test_without_a_point_a_contradiction_remains_or_something_is_said_to_be_missing(made: Made) -> None:
    run = steady(made.run(COPIES + PAIRS[1:], trials=1), 6, 0.003)
    few = without_points(run, made.rng)
    if contradicted(run) and not contradicted(few):
        assert Diagnosis(few).not_judged


@tried()
@given(made=machines(), data=st.data())
def test_with_fewer_trials_a_contradiction_remains_or_something_is_said_to_be_missing(
    made: Made, data: st.DataObject
) -> None:
    run = steady(made.run(COPIES + PAIRS[1:], trials=1), 9, 0.003)
    few = cut(run, data.draw(st.sampled_from((1, 2, 3))), data.draw(subsets(run)))
    if contradicted(run) and not contradicted(few):
        assert Diagnosis(few).not_judged


@tried(0.5)
@given(made=machines(("impossible",)))
def test_an_impossible_batch_is_so_whatever_else_is_missing(made: Made) -> None:
    """Unless what is missing are the copies that show that a pair has no hidden NVLinks."""
    run = made.run(COPIES, trials=2)
    copies = of_work(run, Work(Operation.CE_WRITE)) + of_work(run, Work(Operation.SM_READ))
    rest = [found for found in run.measurements if found not in copies]
    few = without_points(replace(run, measurements=rest), made.rng)
    few = replace(few, measurements=[*copies, *few.measurements])
    left = {found.point for found in few.measurements}
    assert {one.point for one in impossible(few)} == {one.point for one in impossible(run) if one.point in left}


def pairs_of_runs(made: Made, sigma: float) -> Iterator[Run]:
    for number in range(2):
        yield steady(replace(made, seed=made.seed + number).run(trials=1), 12, sigma)


@tried()
@given(made=machines(), sigma=st.sampled_from((0.001, 0.01, 0.03)), slower=st.floats(0.85, 1.1), data=st.data())
def test_fewer_trials_make_no_point_the_same_and_no_regression_go_unseen(
    made: Made, sigma: float, slower: float, data: st.DataObject
) -> None:
    base, new = pairs_of_runs(made, sigma)
    which = data.draw(subsets(new))
    new = replace(new, measurements=[
        replace(m, samples=[replace(s, seconds=tuple(t / slower for t in s.seconds)) for s in m.samples])
        if n in which else m
        for n, m in enumerate(new.measurements)
    ])  # fmt: skip
    full = compare(base, new, 0.05)
    few = compare(base, cut(new, data.draw(st.sampled_from((1, 2, 3, 6))), data.draw(subsets(new))), 0.05)
    assert not certain(few, ChangeVerdict.SAME) - certain(full, ChangeVerdict.SAME)
    for verdict in (ChangeVerdict.WORSE, ChangeVerdict.BETTER):
        assert not certain(few, ChangeVerdict.SAME) & certain(full, verdict)


@tried()
@given(
    nodes=st.sampled_from((4, 6, 8, 12)),
    ratio=st.sampled_from((0.5, 0.8, 0.9)),
    sigma=st.sampled_from((0.0, 0.005, 0.01)),
    seed=st.integers(0, 10**6),
)
def test_fewer_rounds_make_no_slow_node_healthy(nodes: int, ratio: float, sigma: float, seed: int) -> None:
    rng = random.Random(seed)
    sick, reported = rng.randrange(nodes), leaves(nodes, 4) if nodes in (8, 12) and rng.random() < 0.5 else ()
    every = seen(nodes, slow(sick, ratio=ratio), 4, sigma, seed)
    few = [one for one in every if rng.random() < 0.5] or every[:1]
    assert judge_nodes(every, nodes, reported).nodes[sick].state is State.SLOW
    assert judge_nodes(few, nodes, reported).nodes[sick].state is not State.HEALTHY


def certain(found: Comparison, verdict: ChangeVerdict) -> set[object]:
    return {change.key for change in found.changes if change.verdict is verdict}
