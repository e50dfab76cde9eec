"""Relabeling GPUs permutes every answer, the order of points and trials changes none, units and sizes scale them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.judge.compare import compare
from collbench.judge.diagnose import judge
from collbench.judge.physics import impossible
from collbench.judge.tiers import Ranking, rank_links
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import Run
from collbench.report.rows import rows
from tests.invariants.machines import (
    COPIES,
    IN_TIME,
    PAIRS,
    SIZE,
    Made,
    machines,
    relabelled,
    scaled,
    shuffled,
    tried,
    without_points,
    without_trials,
)

WORKS = (*PAIRS, Work(Operation.CE_WRITE, Variant.ONE_TO_ALL))


def ranking_of(run: Run, work: Work, size: int = SIZE) -> Ranking | None:
    return rank_links(run, work, size)


def standing(
    run: Run, work: Work, names: Sequence[int], size: int = SIZE
) -> dict[frozenset[int] | tuple[int, ...], object]:
    """Return each link's tier and relation to the best, by the devices' own names; the best is a tie with itself.

    Each link with the best's rate and interval is a tie, too: only numbering decides which of these is called the best.
    """
    found = ranking_of(run, work, size)
    if found is None:
        return {}
    best = found.standings[0]
    named = {
        tuple(names[m] for m in s.members): (
            s.tier,
            best.relation if (s.gbs, s.interval) == (best.gbs, best.interval) else s.relation,
            round(s.gbs, 6),
        )
        for s in found.standings
    }
    return {frozenset(k) if work.operation.is_collective else k: v for k, v in named.items()}


def reported(run: Run, names: Sequence[int]) -> set[tuple[str, frozenset[int]]]:
    """Return the kinds and places of all verdicts."""
    return {(v.kind.value, frozenset(names[m] for m in v.members)) for v in judge(run)}


def beaten(run: Run, names: Sequence[int]) -> set[tuple[Work, frozenset[int], float]]:
    return {
        (one.point.work, frozenset(names[m] for m in one.point.members), round(one.capacity.gbs, 6))
        for one in impossible(run)
    }


def partial(made: Made) -> Run:
    """Return a run with data points missing and others cut short, as the machine's own seed decides."""
    return without_trials(without_points(made.run(WORKS), made.rng), made.rng)


@tried()
@given(made=machines(), data=st.data())
def test_relabelling_the_devices_permutes_the_answer(made: Made, data: st.DataObject) -> None:
    run = partial(made)
    order = data.draw(st.permutations(range(len(run.devices))))
    other, own = relabelled(run, order), list(range(len(run.devices)))
    for work in PAIRS:
        assert standing(other, work, order) == standing(run, work, own)
    assert reported(other, order) == reported(run, own)
    assert beaten(other, order) == beaten(run, own)


@tried()
@given(made=machines())
def test_the_order_of_points_and_trials_changes_no_answer(made: Made) -> None:
    run = partial(made)
    mixed, own = shuffled(run, made.rng), list(range(len(run.devices)))
    for work in PAIRS:
        assert standing(mixed, work, own) == standing(run, work, own)
    assert reported(mixed, own) == reported(run, own)
    assert beaten(mixed, own) == beaten(run, own)
    assert sorted(map(str, rows(mixed))) == sorted(map(str, rows(run)))


@tried(0.5)
@given(made=machines(), factor=st.sampled_from((2, 3, 8)))
def test_a_longer_message_that_takes_as_much_longer_is_judged_alike(made: Made, factor: int) -> None:
    run = made.run(COPIES)
    larger, own = scaled(run, factor, factor), list(range(len(run.devices)))
    work = COPIES[0]
    assert standing(larger, work, own, SIZE * factor) == standing(run, work, own)
    assert reported(larger, own) == reported(run, own)
    assert beaten(larger, own) == beaten(run, own)
    for one, other in zip(rows(run), rows(larger), strict=True):
        assert other["busbw_gbs"] == pytest.approx(one["busbw_gbs"])
        assert other["limit_gbs"] == one["limit_gbs"]


@tried(0.5)
@given(made=IN_TIME, share=st.floats(0.3, 1.0))
def test_tiers_are_of_ratios_so_a_slower_machine_has_the_same(made: Made, share: float) -> None:
    """Of a machine whose clock is right: a slower one beats no limit any more."""
    run = made.run()
    slower, own = scaled(run, 1 / share), list(range(len(run.devices)))
    for work in PAIRS:
        was, now = standing(run, work, own), standing(slower, work, own)
        assert {k: v[:2] for k, v in now.items()} == {k: v[:2] for k, v in was.items()}  # type: ignore[index]


@tried(0.5)
@given(made=machines(), data=st.data())
def test_a_comparison_does_not_depend_on_the_devices_order(made: Made, data: st.DataObject) -> None:
    base, new = made.run(), replace(made, seed=made.seed + 1).run()
    if base.devices != new.devices:
        return
    order = data.draw(st.permutations(range(len(base.devices))))
    straight, other = compare(base, new, 0.05), compare(base, relabelled(new, order), 0.05)
    assert [(c.key, c.verdict, c.regressed) for c in straight.changes] == [
        (c.key, c.verdict, c.regressed) for c in other.changes
    ]
    assert [(g.members, g.work, g.verdict) for g in straight.groups] == [
        (g.members, g.work, g.verdict) for g in other.groups
    ]
