"""Variation from run to run: estimated as it was made, allowed for, and never hiding a real change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest

from collbench.judge.between_runs import Variation, VariationSource, estimates, from_history, points_by_key
from collbench.judge.compare import ChangeVerdict, Comparison, GroupKind, compare
from collbench.model.errors import UsageError
from collbench.model.operations import Operation
from collbench.model.run import Run
from collbench.report.comparison import conclusion, runs_vary
from tests.builders import gpus, measured, run_of
from tests.judge.runs import FAIL, recorded

WORKS = (Operation.ALLREDUCE, Operation.BROADCAST)
COPIES = (Operation.CE_WRITE, Operation.CE_READ, Operation.SM_WRITE, Operation.SM_READ)
TRIAL = 0.002


def run_with(
    rng: np.random.Generator,
    own: float,
    common: float = 0.0,
    factors: Mapping[tuple[int, int], float] | None = None,
    count: int = 4,
    point: float = 0.0,
    works: Sequence[Operation] | Mapping[Operation, float] = WORKS,
) -> Run:
    """Return works of all pairs, seven trials each; the run, its pairs and points are slower or faster at random.

    A pair has a true factor, and a work may have one, 1 by default.
    """
    whole, found = common * rng.standard_normal(), []
    factor_of = works if isinstance(works, Mapping) else dict.fromkeys(works, 1.0)
    for pair in combinations(range(count), 2):
        level = np.log(300 * (factors or {}).get(pair, 1.0)) + whole + own * rng.standard_normal()
        for work, factor in factor_of.items():
            its_level = level + np.log(factor) + point * rng.standard_normal()
            found.append(measured(work, pair, np.exp(its_level + TRIAL * rng.standard_normal(7)).tolist()))
    return run_of(gpus(count), found)


def changed(comparison: Comparison) -> bool:
    verdicts = {change.verdict for change in comparison.changes} | {group.verdict for group in comparison.groups}
    return bool(verdicts & {ChangeVerdict.WORSE, ChangeVerdict.BETTER})


def shown_by(runs: Sequence[Run]) -> Variation:
    """Return what runs show; all of their points vary alike."""
    points = [points_by_key(run) for run in runs]
    return next(iter(from_history(points[0], [estimates(some, runs[0].paths) for some in points]).values()))


@pytest.mark.parametrize(("own", "common"), [(0.01, 0.0), (0.0, 0.01)])
def test_history_shows_what_all_links_share_and_what_is_each_ones_own(own: float, common: float) -> None:
    rng = np.random.default_rng(1)
    found = [shown_by([run_with(rng, own, common) for _ in range(6)]) for _ in range(60)]
    assert np.mean([one.own**2 for one in found]) == pytest.approx(own**2, rel=0.2, abs=2e-6)
    assert np.mean([one.common**2 for one in found]) == pytest.approx(common**2, rel=0.35, abs=6e-6)
    assert {(one.common_freedom, one.own_freedom) for one in found} == {(5, 25)}


@pytest.mark.parametrize(("point", "of_works"), [(0.01, 0.0), (0.0, 0.01)])
def test_history_shows_what_is_each_points_own_or_that_of_each_work(point: float, of_works: float) -> None:
    rng = np.random.default_rng(20)
    found = [
        shown_by([run_with(rng, 0.0, point=point, works=works_at_random(rng, of_works)) for _ in range(6)])
        for _ in range(15)
    ]
    assert np.mean([one.point**2 for one in found]) == pytest.approx(point**2, rel=0.25, abs=2e-6)
    assert np.mean([one.work**2 for one in found]) == pytest.approx(of_works**2, rel=0.35, abs=6e-6)
    assert max(np.mean([getattr(one, name) ** 2 for one in found]) for name in ("common", "own")) < 2e-5
    assert {(one.point_freedom, one.work_freedom) for one in found} == {(25, 15)}


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("of_works", [0.0, 0.02])
def test_points_or_works_that_vary_have_not_changed_with_history(count: int, of_works: float) -> None:
    """With a default of other machines, and one effect for all works, 7 and 8 of 120 of two GPUs had changed."""
    rng = np.random.default_rng(21)
    point = 0.0 if of_works else 0.02
    runs = [
        [run_with(rng, 0.0, count=count, point=point, works=works_at_random(rng, of_works)) for _ in range(7)]
        for _ in range(15 if count == 2 else 6)
    ]
    assert not any(changed(compare(base, new, FAIL, None, earlier)) for base, new, *earlier in runs)


def test_copies_do_not_vary_as_collectives_do() -> None:
    """Earlier runs in which collectives alone vary hide no slow copy."""
    rng = np.random.default_rng(22)

    def run(copies: float = 1.0) -> Run:
        varied = works_at_random(rng, 0.02)
        return run_with(rng, 0.0, works={**dict.fromkeys(COPIES, copies), **{work: varied[work] for work in WORKS}})

    found = compare(run(), run(0.92), FAIL, None, [run() for _ in range(5)])
    groups = [group for group in found.groups if group.kind is GroupKind.WORK]
    worse = {group.work for group in groups if group.verdict is ChangeVerdict.WORSE}
    assert worse == {work.value for work in COPIES}


def test_of_one_link_a_run_and_the_link_vary_together() -> None:
    rng = np.random.default_rng(2)
    found = [shown_by([run_with(rng, 0.01, count=2) for _ in range(6)]) for _ in range(60)]
    assert np.mean([one.sigma**2 for one in found]) == pytest.approx(1e-4, rel=0.25)
    assert {one.common_freedom for one in found} == {5}


SEVERAL = (Operation.ALLREDUCE, Operation.BROADCAST, Operation.REDUCE, Operation.ALLGATHER, Operation.REDUCESCATTER)


@pytest.mark.parametrize(
    ("seed", "varies", "history"),
    [
        *((3, {"own": own}, history) for own, history in ((0.01, 0), (0.02, 0), (0.02, 2), (0.01, 5))),
        *((4, {"own": 0.0, "common": 0.015}, history) for history in (0, 5)),
        *((12, {"own": 0.0, "point": point, "works": SEVERAL}, 0) for point in (0.01, 0.02)),
    ],
)
def test_what_varies_from_run_to_run_has_not_changed(seed: int, varies: dict[str, Any], history: int) -> None:
    """Pairs, all links together, and points. By trials alone half of pairs, or nearly all, are worse or better."""
    rng = np.random.default_rng(seed)
    runs = [[run_with(rng, **varies) for _ in range(2 + history)] for _ in range(12)]
    assert sum(changed(compare(base, new, FAIL, None, earlier)) for base, new, *earlier in runs) <= 1


@pytest.mark.parametrize("own", [0.01, 0.015])
@pytest.mark.parametrize("count", [2, 3])
def test_too_few_links_to_show_variation_are_undecided_but_for_a_large_change(own: float, count: int) -> None:
    """With the default alone one pair had changed in 5, 21 and 38 of 120 of these, three in 15, 52 and 86."""
    rng = np.random.default_rng(9)
    runs = [[run_with(rng, own, count=count) for _ in range(2)] for _ in range(40)]
    assert sum(changed(compare(base, new, FAIL)) for base, new in runs) <= 2 * (count - 1)
    slow = dict.fromkeys(combinations(range(count), 2), 0.9)
    assert changed(compare(run_with(rng, 0.0, count=count), run_with(rng, 0.0, factors=slow, count=count), FAIL))


@pytest.mark.parametrize(
    ("left", "history", "verdict", "said"),
    [
        (0.95, 0, ChangeVerdict.UNDECIDED, "Undecided without --history: "),
        (0.95, 3, ChangeVerdict.WORSE, "Slower: "),
        (0.92, 0, ChangeVerdict.WORSE, "Regression: "),
    ],
)
def test_a_shift_of_all_links_is_a_claim_with_history_or_beyond_six_percent(
    left: float, history: int, verdict: ChangeVerdict, said: str
) -> None:
    rng = np.random.default_rng(11)
    earlier = [run_with(rng, 0.001) for _ in range(history)]
    every = dict.fromkeys(combinations(range(4), 2), left)
    found = compare(run_with(rng, 0.001), run_with(rng, 0.001, factors=every), FAIL, None, earlier)
    assert {group.verdict for group in found.groups if group.kind is GroupKind.WORK} == {verdict}
    assert conclusion(found).startswith(said)


@pytest.mark.parametrize(("left", "said"), [(0.95, "Undecided without --history: "), (0.995, "Nothing is signif")])
def test_few_links_that_are_slower_than_their_trials_explain_are_called_undecided(left: float, said: str) -> None:
    rng = np.random.default_rng(14)
    found = compare(run_with(rng, 0.001, count=2), run_with(rng, 0.001, factors={(0, 1): left}, count=2), FAIL)
    assert not changed(found)
    assert conclusion(found).startswith(said)


def test_points_that_vary_by_themselves_hide_no_slow_pair() -> None:
    """What the pair's works have in common is no variation of theirs."""
    rng = np.random.default_rng(13)
    found = []
    for _ in range(10):
        base, new = (run_with(rng, 0.0, factors=each, point=0.01, works=SEVERAL) for each in (None, {(1, 3): 0.9}))
        found.append(compare(base, new, FAIL))
    worse = [{group.members for group in one.groups if group.verdict is ChangeVerdict.WORSE} for one in found]
    assert sum(members == {(1, 3)} for members in worse) >= 9


def works_at_random(rng: np.random.Generator, sigma: float, collectives: float = 1.0) -> dict[Operation, float]:
    """Return a factor of each work that all links share in a run; collectives have a true one beside."""
    drawn = {work: float(np.exp(sigma * rng.standard_normal())) for work in (*COPIES, *WORKS)}
    return {work: factor * (collectives if work in WORKS else 1.0) for work, factor in drawn.items()}


@pytest.mark.parametrize("count", [4, 8])
def test_works_that_vary_on_all_links_together_have_not_changed(count: int) -> None:
    rng = np.random.default_rng(17)
    many = 80 // count**2 * 4
    runs = [[run_with(rng, 0.0, count=count, works=works_at_random(rng, 0.02)) for _ in range(2)] for _ in range(many)]
    found = [compare(base, new, FAIL) for base, new in runs]
    assert sum(map(changed, found)) <= 1
    assert sum("as these two runs show" in runs_vary(one) for one in found) >= 0.75 * many


@pytest.mark.parametrize(("sigma", "least"), [(0.0, 10), (0.005, 8)])
def test_collectives_that_became_slower_are_no_variation_of_works(sigma: float, least: int) -> None:
    """Another NCCL slows the collectives of all links, and no copy."""
    rng, both = np.random.default_rng(18), 0
    for _ in range(10):
        base, new = (run_with(rng, 0.0, works=works_at_random(rng, sigma, factor)) for factor in (1.0, 0.88))
        groups = [group for group in compare(base, new, FAIL).groups if group.kind is GroupKind.WORK]
        worse = {group.work for group in groups if group.verdict is ChangeVerdict.WORSE}
        assert worse <= {work.value for work in WORKS}
        both += len(worse) == len(WORKS)
    assert both >= least


def test_works_that_vary_hide_no_slow_pair() -> None:
    rng, alone = np.random.default_rng(19), 0
    for _ in range(10):
        base, new = (
            run_with(rng, 0.0, factors=factors, works=works_at_random(rng, 0.01)) for factors in (None, {(1, 3): 0.92})
        )
        groups = [group for group in compare(base, new, FAIL).groups if group.kind is GroupKind.DEVICES]
        alone += {group.members for group in groups if group.verdict is ChangeVerdict.WORSE} == {(1, 3)}
    assert alone >= 9


def one_link(rng: np.random.Generator, point: float, one_way: float = 1.0, both: float = 1.0) -> Run:
    """Return all works of two GPUs, whose data points vary from run to run; copies from GPU0 have a true factor."""
    works = [(work, pair) for work in COPIES for pair in ((0, 1), (1, 0))] + [(work, (0, 1)) for work in WORKS]
    found = []
    for work, pair in works:
        level = (
            np.log(300 * both * (one_way if work in COPIES and pair == (0, 1) else 1.0)) + point * rng.standard_normal()
        )
        found.append(measured(work, pair, np.exp(level + TRIAL * rng.standard_normal(7)).tolist()))
    return run_of(gpus(2), found)


@pytest.mark.parametrize("point", [0.01, 0.02])
def test_points_of_one_link_that_vary_by_themselves_have_not_changed(point: float) -> None:
    rng = np.random.default_rng(14)
    found = [compare(one_link(rng, point), one_link(rng, point), FAIL) for _ in range(20)]
    assert sum(map(changed, found)) <= 1
    assert np.median([one.changes[0].between.point for one in found]) == pytest.approx(point, rel=0.25)
    assert sum("as these two runs show" in runs_vary(one) for one in found) >= 15


def test_a_slower_direction_is_no_variation_of_its_points() -> None:
    rng = np.random.default_rng(15)
    for _ in range(20):
        found = compare(one_link(rng, 0.0), one_link(rng, 0.0, one_way=0.9), FAIL)
        worse = {(one.key.work, one.key.members) for one in found.changes if one.verdict is ChangeVerdict.WORSE}
        assert worse == {(work.value, (0, 1)) for work in COPIES}


@pytest.mark.parametrize("point", [0.0, 0.01])
def test_a_slower_link_is_found_by_all_its_works(point: float) -> None:
    rng = np.random.default_rng(16)
    found = [compare(one_link(rng, point), one_link(rng, point, both=0.9), FAIL) for _ in range(20)]
    worse = [(group.kind, group.verdict) for one in found for group in one.groups]
    assert worse.count((GroupKind.DEVICES, ChangeVerdict.WORSE)) >= 19


@pytest.mark.parametrize("count", [4, 8])
def test_links_that_truly_became_slower_are_no_variation(count: int) -> None:
    """Half of the pairs of four GPUs, or a quarter of those of eight, are those of one slow GPU."""
    rng = np.random.default_rng(5)
    slow = {pair: 0.92 for pair in combinations(range(count), 2) if 0 in pair}
    found = compare(run_with(rng, 0.0, count=count), run_with(rng, 0.0, factors=slow, count=count), FAIL)
    worse = {
        group.members
        for group in found.groups
        if (group.kind, group.verdict) == (GroupKind.DEVICES, ChangeVerdict.WORSE)
    }
    assert worse == set(slow)


@pytest.mark.parametrize("history", [0, 3])
def test_little_variation_hides_no_slow_pair(history: int) -> None:
    """Runs that vary by 0.1%: a pair 8% slower is found."""
    rng = np.random.default_rng(6)
    slow = {(1, 3): 0.92}
    earlier = [run_with(rng, 0.001) for _ in range(history)]
    base = run_with(rng, 0.001)
    one = compare(base, run_with(rng, 0.001, factors=slow), FAIL, None, earlier)
    assert {change.key.members for change in one.changes if change.verdict is ChangeVerdict.WORSE} == {(1, 3)}
    assert one.regressions


def test_one_link_that_varies_more_than_the_others_counts_for_itself() -> None:
    rng = np.random.default_rng(7)
    wild = [run_with(rng, 0.0, factors={(0, 1): 1 + 0.03 * (-1) ** number}) for number in range(6)]
    points = [points_by_key(run) for run in wild]
    shown = from_history(points[0], [estimates(some, wild[0].paths) for some in points])
    quiet, noisy = ({key: one for key, one in shown.items() if (key.members == (0, 1)) is of} for of in (False, True))
    assert min(one.sigma for one in noisy.values()) > 0.02
    assert max(one.sigma for one in quiet.values()) < 0.015


def test_the_default_covers_eight_runs_on_two_h100() -> None:
    """With trials alone some interval excludes 1 in most of these comparisons."""
    runs = [recorded(f"2026-11-24-between-runs/2xh100.tar.gz:p{number}.json") for number in range(1, 9)]
    found = [compare(base, new, FAIL) for base, new in pairwise(runs)]
    intervals = [change.interval for every in found for change in every.changes if change.interval]
    assert sum(not low <= 1 <= high for low, high in intervals) <= 0.01 * len(intervals)
    assert not any(map(changed, found))


def test_history_is_of_the_same_gpus() -> None:
    rng = np.random.default_rng(8)
    with pytest.raises(UsageError, match="lacks GPUs of the base"):
        compare(run_with(rng, 0.0), run_with(rng, 0.0), FAIL, None, [run_with(rng, 0.0, count=3)])


@pytest.mark.parametrize(("count", "origin"), [(3, VariationSource.FEW_LINKS), (4, VariationSource.DEFAULT)])
def test_it_is_said_that_few_links_count_as_varying_more(count: int, origin: VariationSource) -> None:
    rng = np.random.default_rng(2)
    found = compare(run_with(rng, 0.0, count=count), run_with(rng, 0.0, count=count), FAIL)
    assert {change.between.origin for change in found.changes} == {origin}
    assert ("fewer than 6 links" in runs_vary(found)) is (count < 4)


@pytest.mark.parametrize(
    ("factor", "said"),
    [
        (0.5, "Regression: "),
        (0.88, "; 2 of 6 pairs are more than 5% slower: earlier runs tell whether pairs vary so (--history FILE)."),
    ],
)
def test_a_slow_gpu_is_no_variation_but_where_runs_may_vary_by_as_much(factor: float, said: str) -> None:
    """One of four GPUs slows half of the pairs, each by another factor: two runs may vary by some percent."""
    rng = np.random.default_rng(5)
    slower = {(0, 2): factor + 0.1, (1, 2): factor + 0.05, (2, 3): factor}
    works = (Operation.ALLREDUCE, Operation.BROADCAST, Operation.REDUCE)
    runs = [run_with(rng, 0.0, factors=factors, works=works) for factors in ({}, slower)]
    assert said in conclusion(compare(runs[0], runs[1], FAIL))
    more = [run_with(rng, 0.0, works=works) for _ in range(3)]
    assert conclusion(compare(runs[0], runs[1], FAIL, None, tuple(more))).startswith("Regression: ")


def test_a_pair_that_is_known_to_be_slower_is_in_no_doubt_where_others_are() -> None:
    """Most data points are undecided, and one pair lost 87%: no earlier run tells whether it varies so."""
    rng = np.random.default_rng(3)
    base, new = (run_with(rng, 0.0, factors=factors, count=5) for factors in ({}, {(0, 1): 0.13}))
    found = compare(base, new, FAIL)
    unsure = replace(
        found,
        changes=tuple(
            change if change.key.members == (0, 1) else replace(change, verdict=ChangeVerdict.UNDECIDED)
            for change in found.changes
        ),
    )
    assert conclusion(unsure).endswith("; 18 of 20 data points are undecided; 1 of 10 pairs is more than 5% slower.")
