"""Less evidence never gives more: what is predicted and chosen as points, trials and devices go, on random machines."""

from __future__ import annotations

import functools
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.choose.bands import predict
from collbench.choose.choice import Band, How, Members
from collbench.choose.problem import from_run
from collbench.choose.select import choose, evidence
from collbench.measurement.plan import Request
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import Measurement, Path, Run
from collbench.sim import fabrics
from collbench.sim.fabrics import Fabric
from tests.builders import ALL, gpus, in_words, measured, paths, run_of
from tests.sim import random_fabrics
from tests.sim.made import simulate

PAIRS = replace(ALL, backend="sim", sizes=(2**26,), copies=(), collectives=(Work(Operation.ALLREDUCE),), quick=True)
COPIES = replace(PAIRS, copies=(Variant.PLAIN,), collectives=())
# GB/s one way of one NVLink by NVML's line rate in MB/s, and of a ×16 slot by generation, as their makers publish them.
LINK = {14062: 14.0625, 20000: 20.0, 25000: 25.0, 25781: 25.0, 26562: 25.0, 53125: 50.0}
SLOT = {3: 15.75, 4: 31.5, 5: 63.0}
# Links within 4% of a whole number of the usual one are taken for equal, so the usual one may move by what is noise.
NOISE = 0.04
# Up to 10 GPUs: all sets of 16 take a second.
SEEDS = [seed for seed in range(150) if len(random_fabrics.make(np.random.default_rng(seed)).gpus) <= 10]
SHIPPED = [name for name in fabrics.names() if len(fabrics.load(name).gpus) <= 8]
# Whether it shipped, and its name or seed.
Which = tuple[bool, str | int]
MACHINES: list[Which] = [*((True, name) for name in SHIPPED), *((False, seed) for seed in SEEDS)]


def fabric_of(machine: Which) -> Fabric:
    shipped, which = machine
    return fabrics.load(str(which)) if shipped else random_fabrics.make(np.random.default_rng(int(which)))


@functools.cache
def full_run(machine: Which, request: Request = PAIRS) -> Run:
    return simulate(fabric_of(machine), request, 7)


def ceiling(fabric: Fabric, members: Collection[int]) -> float:
    """Return what the narrowest port of a set can send in one direction, GB/s: its NVLinks to the others, or its slot.

    By the structure of the machine alone: nothing that was measured, and none of the labels. A switch may reduce for
    five and more, each of which then sends its message once.
    """
    whole = any(set(members) <= set(switch.gpus) for switch in fabric.switches) and len(members) > 4
    reduced = 2 * (len(members) - 1) / len(members) if whole else 1.0

    def port(gpu: int) -> float:
        one = fabric.gpus[gpu]
        each = LINK[one.nvlink_line_mbps] if one.nvlink_line_mbps else 0.0
        switched = [switch.links * each for switch in fabric.switches if set(members) <= set(switch.gpus)]
        direct = sum(b.links * each for b in fabric.bundles if gpu in b.gpus and set(b.gpus) <= set(members))
        return max([*(reduced * gbs for gbs in switched), direct, SLOT[one.pcie_generation] * one.pcie_width / 16])

    return min(port(gpu) for gpu in members)


def band(run: Run, members: Members, fit: Collection[int] | None = None) -> Band | None:
    """Return what a set is predicted to reach by a run, None where that is not known."""
    among = range(len(run.devices)) if fit is None else fit
    ranking = evidence(run, among)
    if ranking is None:
        return None
    case = from_run(run, among, ranking)
    return predict(case.wired.of(sorted(case.order.index(member) for member in members)))


def without(run: Run, gone: Collection[int]) -> Run:
    """Return the run without the measurements at these places."""
    return replace(run, measurements=[m for index, m in enumerate(run.measurements) if index not in gone])


def hung(run: Run, places: Collection[int]) -> Run:
    """Return the run in which the data points at these places hung before a sample was done."""
    points = [
        Measurement(m.point, [], None, 0, in_words("hangs")) if index in places else m
        for index, m in enumerate(run.measurements)
    ]
    return replace(run, measurements=points)


@dataclass(frozen=True)
class Damage:
    """A machine, what was measured of all its pairs, and what is left of that: data points that are gone, or hung."""

    machine: Which
    copies: bool
    gone: frozenset[int]
    hung: frozenset[int]
    order: int

    @property
    def fabric(self) -> Fabric:
        return fabric_of(self.machine)

    @property
    def full(self) -> Run:
        return full_run(self.machine, COPIES if self.copies else PAIRS)

    @property
    def left(self) -> Run:
        kept = without(hung(self.full, self.hung), self.gone)
        shuffled = list(kept.measurements)
        random.Random(self.order).shuffle(shuffled)
        return replace(kept, measurements=shuffled)


@st.composite
def damaged(draw: st.DrawFn) -> Damage:
    machine, copies = draw(st.sampled_from(MACHINES)), draw(st.booleans())
    points = len(full_run(machine, COPIES if copies else PAIRS).measurements)
    places = st.integers(0, points - 1)
    gone = draw(st.frozensets(places, max_size=draw(st.sampled_from([1, 3, points // 2]))))
    return Damage(machine, copies, gone, draw(st.frozensets(places, max_size=2)), draw(st.integers(0, 99)))


def drawn_set(data: st.DataObject, run: Run) -> Members:
    n = len(run.devices)
    return tuple(sorted(data.draw(st.sets(st.integers(0, n - 1), min_size=2, max_size=n), label="set")))


@settings(max_examples=12, deadline=None)
@given(damaged(), st.data())
def test_no_prediction_exceeds_the_narrowest_port_of_its_set(made: Damage, data: st.DataObject) -> None:
    members = drawn_set(data, made.full)
    for found in filter(None, (band(made.full, members), band(made.left, members))):
        assert 0 <= found.lo <= found.hi <= ceiling(made.fabric, members) * (1 + 1e-9)


@settings(max_examples=12, deadline=None)
@given(damaged(), st.data())
def test_what_is_not_measured_guarantees_nothing_and_changes_no_kind_of_machine(
    made: Damage, data: st.DataObject
) -> None:
    full, left = made.full, made.left
    members = drawn_set(data, full)
    before, after = band(full, members), band(left, members)
    if before is not None and after is not None:
        assert after.lo <= before.lo * (1 + NOISE)
        if How.BROKEN not in (before.how, after.how):
            assert (after.how is How.NVSWITCH) is (before.how is How.NVSWITCH)
        lacking = {frozenset(m.point.members) for m in full.measured()} - {
            frozenset(m.point.members) for m in left.measured()
        }
        inside = {pair for pair in lacking if pair <= set(members)}
        if after.how is How.NVSWITCH and inside:
            assert after.lo == 0


@settings(max_examples=12, deadline=None)
@given(st.sampled_from(MACHINES), st.data())
def test_leaving_devices_out_raises_no_prediction(machine: Which, data: st.DataObject) -> None:
    full = full_run(machine)
    members = drawn_set(data, full)
    others = data.draw(st.sets(st.integers(0, len(full.devices) - 1)), label="others")
    before, after = band(full, members), band(full, members, set(members) | others)
    assert before is not None
    assert after is not None
    assert (after.lo, after.hi) == pytest.approx((before.lo, before.hi))


@settings(max_examples=12, deadline=None)
@given(st.sampled_from(MACHINES), st.data())
def test_no_choice_among_fewer_points_is_a_tie_that_was_none(machine: Which, data: st.DataObject) -> None:
    full = full_run(machine)
    k = data.draw(st.integers(2, max(2, min(4, len(full.devices) - 1))), label="k")
    gone = data.draw(st.sets(st.integers(0, len(full.measurements) - 1), min_size=1), label="gone")
    left = without(full, gone)
    if evidence(left) is not None:
        assert not choose(left, k, allow_busy=True).tied


@settings(max_examples=12, deadline=None)
@given(damaged(), st.data())
def test_relabelling_the_gpus_permutes_the_prediction(made: Damage, data: st.DataObject) -> None:
    left = made.left
    n = len(left.devices)
    names = data.draw(st.permutations(range(n)), label="new position of each")
    members = drawn_set(data, left)
    moved = relabelled(left, names)
    before, after = band(left, members), band(moved, tuple(sorted(names[member] for member in members)))
    assert (before is None) == (after is None)
    if before is not None and after is not None:
        assert (after.lo, after.hi, after.hops) == pytest.approx((before.lo, before.hi, before.hops))
        assert (after.unmeasured, after.how, after.rings) == (before.unmeasured, before.how, before.rings)


def relabelled(run: Run, names: Sequence[int]) -> Run:
    """Return the run with its devices in another order: the one at place p goes to names[p]; they keep their slots."""
    order = sorted(range(len(names)), key=lambda place: names[place])

    def moved(members: Sequence[int]) -> Members:
        return tuple(names[member] for member in members)

    def path(one: Path) -> Path:
        low, high = sorted(moved(one.devices))
        return replace(one, devices=(low, high))

    def point(one: Measurement) -> Measurement:
        members = moved(one.point.members)
        ordered = tuple(sorted(members)) if one.point.operation.is_collective else members
        return replace(one, point=replace(one.point, members=ordered))

    return replace(
        run,
        devices=tuple(run.devices[place] for place in order),
        paths=tuple(map(path, run.paths)),
        measurements=list(map(point, run.measurements)),
        health_before=(),
        health_after=(),
    )


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


def test_a_pair_that_hung_leaves_it_too() -> None:
    run = h200([])
    run.measurements[13] = Measurement(run.measurements[13].point, [], None, 0, in_words("hangs"))
    pair = run.measurements[13].point.members
    chosen = choose(run, 4)
    assert chosen.band is not None
    assert (chosen.band.lo, chosen.band.hi) == pytest.approx((0.95 * 360, 450))
    assert not set(pair) <= set(chosen.members)


def test_a_missing_pair_is_no_faster_than_the_slowest_like_it() -> None:
    run = h200([(0, 1), (2, 3)], count=4)
    run.measurements[0] = measured(Operation.ALLREDUCE, run.measurements[0].point.members, 200.0)
    found = band(run, (0, 1))
    assert found is not None
    assert (found.lo, found.hi) == pytest.approx((0, 200))


def test_a_rate_above_what_the_links_carry_is_no_prediction() -> None:
    links = tuple(Path(pair, "NV18", "NODE", 18, 450.0) for pair in combinations(range(4), 2))
    run = run_of(gpus(4), [measured(Operation.ALLREDUCE, path.devices, 900.0) for path in links], links)
    for members in ((0, 1), (0, 1, 2, 3)):
        found = band(run, members)
        assert found is not None
        assert found.hi <= 450


def test_a_switch_that_labels_hide_stays_one_though_one_pair_is_slow_or_gone() -> None:
    links = paths(4, "PHB")
    rates = {(0, 1): 20.0}
    slow = run_of(
        gpus(4), [measured(Operation.ALLREDUCE, p.devices, rates.get(p.devices, 396.0)) for p in links], links
    )
    for run in (slow, without(slow, {0})):
        found = band(run, (0, 1, 2, 3))
        assert found is not None
        assert found.how is How.NVSWITCH
        assert found.hi >= 396


def test_one_way_of_a_copy_alone_is_not_the_pair() -> None:
    both = [measured(Operation.CE_WRITE, pair, 380.0) for pair in permutations(range(3), 2)]
    run = run_of(gpus(3), [found for found in both if found.point.members != (1, 0)], paths(3))
    found = band(run, (0, 1))
    assert found is not None
    assert (found.lo, found.unmeasured) == (0, 1)


def test_a_largest_size_that_a_few_pairs_lack_still_decides() -> None:
    """At 1 MiB all look alike; what is left of 256 MiB shows a slow pair."""
    small = [measured(Operation.ALLREDUCE, pair, 100.0, 2**20) for pair in combinations(range(4), 2)]
    large = [
        measured(Operation.ALLREDUCE, pair, 150.0 if pair == (0, 1) else 300.0, 2**28)
        for pair in combinations(range(4), 2)
        if pair != (2, 3)
    ]
    chosen = choose(run_of(gpus(4), [*small, *large]), 2)
    assert not chosen.tied
    assert chosen.band is not None
    assert chosen.band.lo == pytest.approx(300)


def test_a_tie_at_a_size_that_is_not_the_largest_is_none() -> None:
    """Of an interrupted run 1 GiB has one pair of six: that the others tie at 1 MiB says nothing of large messages."""
    points = [measured(Operation.ALLREDUCE, pair, 100.0, 2**20) for pair in combinations(range(4), 2)]
    chosen = choose(run_of(gpus(4), [*points, measured(Operation.ALLREDUCE, (0, 1), 150.0)]), 2)
    assert not chosen.tied
