"""Less evidence never gives more: what is predicted and chosen of a few machines without some of their pairs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from itertools import combinations, permutations

import pytest

from collbench.choose.bands import predict
from collbench.choose.choice import Band, How
from collbench.choose.select import choose, evidence, from_run
from collbench.model.operations import Operation
from collbench.model.run import Members, Path, Run
from tests.builders import gpus, measured, paths, run_of


def band(run: Run, members: Members) -> Band:
    """Return what a set is predicted to reach by a run."""
    among = range(len(run.devices))
    ranking = evidence(run, among)
    assert ranking is not None
    case = from_run(run, among, ranking)
    return predict(case.wired.of(sorted(case.order.index(member) for member in members)))


def without(run: Run, gone: Collection[int]) -> Run:
    """Return the run without the measurements at these places."""
    return replace(run, measurements=[m for index, m in enumerate(run.measurements) if index not in gone])


def h200(gone: Collection[Members], count: int = 8) -> Run:
    """Return an HGX of H200s whose pairs carry 360 GB/s, without some of them."""
    links = tuple(Path(pair, "NV18", "NODE", 18, 450.0) for pair in combinations(range(count), 2))
    points = [measured(Operation.ALLREDUCE, path.devices, 360.0) for path in links if path.devices not in gone]
    return run_of(gpus(count), points, links)


@pytest.mark.parametrize("k", [3, 4, 8])
def test_one_missing_pair_leaves_the_nvswitch_what_it_is(k: int) -> None:
    chosen = choose(h200([(2, 3)]), k)
    assert chosen.band is not None
    assert chosen.band.hi >= 360
    assert chosen.band.lo == pytest.approx(0.95 * 360 if k < 8 else 0)
    assert chosen.band.unmeasured == (k == 8)
    assert not {2, 3} <= set(chosen.members) or k == 8
    assert not chosen.tied


def test_a_missing_pair_may_be_as_fast_as_the_fastest_like_it() -> None:
    run = h200([(0, 1), (2, 3)], count=4)
    run.measurements[0] = measured(Operation.ALLREDUCE, run.measurements[0].point.members, 200.0)
    found = band(run, (0, 1))
    assert (found.lo, found.hi) == pytest.approx((0, 360))


def test_an_unmeasured_pair_does_not_hide_the_set_that_may_be_best() -> None:
    """Two pairs of fifteen are fast, and one of the two was not measured: the finalists must show it."""
    links = tuple(Path(pair, "NV18", "NODE", 18, 450.0) for pair in combinations(range(6), 2))
    fast = {(0, 1), (4, 5)}
    points = [
        measured(Operation.ALLREDUCE, path.devices, 360.0 if path.devices in fast else 290.0)
        for path in links
        if path.devices != (4, 5)
    ]
    run = run_of(gpus(6), points, links)
    chosen = choose(run, 2)
    assert chosen.members == (0, 1)
    assert (4, 5) in {some.members for some in chosen.finalists}
    assert "unmeasured" not in chosen.reason
    assert "if 1 unmeasured pair is as fast as any of the same label" in next(
        str(some.band.basis) for some in chosen.finalists if some.members == (4, 5)
    )


def test_a_switch_that_labels_hide_stays_one_though_one_pair_is_slow_or_gone() -> None:
    links = paths(4, "PHB")
    rates = {(0, 1): 20.0}
    slow = run_of(
        gpus(4), [measured(Operation.ALLREDUCE, p.devices, rates.get(p.devices, 396.0)) for p in links], links
    )
    for run in (slow, without(slow, {0})):
        found = band(run, (0, 1, 2, 3))
        assert found.how is How.NVSWITCH
        assert found.hi >= 396


def test_one_way_of_a_copy_alone_is_not_the_pair() -> None:
    both = [measured(Operation.CE_WRITE, pair, 380.0) for pair in permutations(range(3), 2)]
    run = run_of(gpus(3), [found for found in both if found.point.members != (1, 0)], paths(3))
    found = band(run, (0, 1))
    assert (found.lo, found.unmeasured) == (0, 1)
