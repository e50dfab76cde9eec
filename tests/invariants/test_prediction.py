"""What is predicted and chosen: never more than ports carry, never more by less evidence, whatever devices' order."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.choose.bands import predict
from collbench.choose.choice import Band, How
from collbench.choose.select import choose, evidence, from_run
from collbench.model.operations import Work
from collbench.model.run import Members, Run
from collbench.sim.fabrics import Fabric
from tests.builders import in_words
from tests.invariants.machines import HEALTHY, LINK_GBS, PAIRS, SLOT_GBS, Made, relabelled, shuffled, tried

# Links within 4% of a whole number of the usual one are taken for equal, so the usual one may move by what is noise.
NOISE = 0.04
WORKS = st.sampled_from([(work,) for work in PAIRS])
ALL_REDUCES = (PAIRS[1],)
Works = tuple[Work, ...]
SETS = HEALTHY.filter(lambda made: len(made.fabric.gpus) > 1)


def ceiling(fabric: Fabric, members: Collection[int]) -> float:
    """Return what the narrowest port of a set can send in one direction, GB/s: its NVLinks to the others, or its slot.

    By the structure of the machine alone: nothing that was measured, and none of the labels. A switch may reduce for
    five and more, each of which then sends its message once.
    """
    whole = any(set(members) <= set(switch.gpus) for switch in fabric.switches) and len(members) > 4
    reduced = 2 * (len(members) - 1) / len(members) if whole else 1.0

    def port(gpu: int) -> float:
        one = fabric.gpus[gpu]
        each = LINK_GBS[one.nvlink_line_mbps] if one.nvlink_line_mbps else 0.0
        switched = [switch.links * each for switch in fabric.switches if set(members) <= set(switch.gpus)]
        direct = sum(b.links * each for b in fabric.bundles if gpu in b.gpus and set(b.gpus) <= set(members))
        slot = SLOT_GBS[one.pcie_generation] * one.pcie_width / 16
        return max([*(reduced * gbs for gbs in switched), direct, slot])

    return min(port(gpu) for gpu in members)


def band(run: Run, members: Members, fit: Collection[int] | None = None) -> Band | None:
    """Return what a set is predicted to reach by a run, None where that is not known."""
    among = range(len(run.devices)) if fit is None else fit
    ranking = evidence(run, among)
    if ranking is None:
        return None
    case = from_run(run, among, ranking)
    return predict(case.wired.of(sorted(case.order.index(member) for member in members)))


def damaged(made: Made, run: Run, data: st.DataObject) -> Run:
    """Return what is left of a run: some data points are gone, some hung before a sample was done."""
    places = st.integers(0, len(run.measurements) - 1)
    most = data.draw(st.sampled_from([1, 3, len(run.measurements) // 2]))
    gone = data.draw(st.frozensets(places, max_size=most), label="gone")
    hung = data.draw(st.frozensets(places, max_size=2), label="hung")
    left = [
        replace(m, samples=[], stop=None, failure=in_words("hangs")) if place in hung else m
        for place, m in enumerate(run.measurements)
        if place not in gone
    ]
    return shuffled(replace(run, measurements=left), made.rng)


def drawn_set(data: st.DataObject, run: Run) -> Members:
    n = len(run.devices)
    return tuple(sorted(data.draw(st.sets(st.integers(0, n - 1), min_size=2, max_size=n), label="set")))


@tried()
@given(made=SETS, works=WORKS, data=st.data())
def test_no_prediction_exceeds_the_narrowest_port_of_its_set(made: Made, works: Works, data: st.DataObject) -> None:
    full = made.run(works)
    members = drawn_set(data, full)
    for found in filter(None, (band(full, members), band(damaged(made, full, data), members))):
        assert 0 <= found.lo <= found.hi <= ceiling(made.fabric, members) * (1 + 1e-9)


@tried()
@given(made=SETS, works=WORKS, data=st.data())
def test_what_is_not_measured_guarantees_nothing_and_changes_no_kind_of_machine(
    made: Made, works: Works, data: st.DataObject
) -> None:
    full = made.run(works)
    left, members = damaged(made, full, data), drawn_set(data, full)
    before, after = band(full, members), band(left, members)
    if before is not None and after is not None:
        assert after.lo <= before.lo * (1 + NOISE)
        if How.BROKEN not in (before.how, after.how):
            assert (after.how is How.NVSWITCH) is (before.how is How.NVSWITCH)
        lacking = {frozenset(m.point.members) for m in full.measured()} - {
            frozenset(m.point.members) for m in left.measured()
        }
        inside = {pair for pair in lacking if len(pair) == 2 and pair <= set(members)}
        if after.how is How.NVSWITCH and inside:
            assert after.lo == 0


@tried()
@given(made=SETS, data=st.data())
def test_leaving_devices_out_raises_no_prediction(made: Made, data: st.DataObject) -> None:
    full = made.run(ALL_REDUCES)
    members = drawn_set(data, full)
    others = data.draw(st.sets(st.integers(0, len(full.devices) - 1)), label="others")
    before, after = band(full, members), band(full, members, set(members) | others)
    assert before is not None
    assert after is not None
    assert (after.lo, after.hi) == pytest.approx((before.lo, before.hi))


@tried()
@given(made=SETS, data=st.data())
def test_no_choice_among_fewer_points_is_a_tie_that_was_none(made: Made, data: st.DataObject) -> None:
    full = made.run(ALL_REDUCES)
    k = data.draw(st.integers(2, max(2, min(4, len(full.devices) - 1))), label="k")
    pairs = [place for place, m in enumerate(full.measurements) if len(m.point.members) == 2]
    gone = data.draw(st.sets(st.sampled_from(pairs), min_size=1), label="gone")
    left = replace(full, measurements=[m for place, m in enumerate(full.measurements) if place not in gone])
    if evidence(left) is not None:
        assert not choose(left, k, allow_busy=True).tied


@tried()
@given(made=SETS, works=WORKS, data=st.data())
def test_relabelling_the_gpus_permutes_the_prediction(made: Made, works: Works, data: st.DataObject) -> None:
    left = damaged(made, made.run(works), data)
    order = data.draw(st.permutations(range(len(left.devices))), label="old position of each")
    members = drawn_set(data, left)
    before = band(left, members)
    after = band(relabelled(left, order), tuple(sorted(order.index(member) for member in members)))
    assert (before is None) == (after is None)
    if before is not None and after is not None:
        assert (after.lo, after.hi, after.hops) == pytest.approx((before.lo, before.hi, before.hops))
        assert (after.unmeasured, after.how, after.rings) == (before.unmeasured, before.how, before.rings)
