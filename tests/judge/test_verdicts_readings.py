"""The rate of each point that decides: which samples count, with which error, and what is taken for a link's best."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import NormalDist

import pytest

from collbench.judge.diagnose.readings import Reading, Readings, read
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import InterferenceCheck, Measurement, Run
from tests.builders import GIB, gpus, measured, paths, run_of

MIB = 2**20
WRITE, READ, SM = Work(Operation.CE_WRITE), Work(Operation.CE_READ), Work(Operation.SM_WRITE)
HOST = Work(Operation.H2D_CE, Variant.HOST)


def reading(
    work: Work = WRITE,
    members: tuple[int, ...] = (0, 1),
    gbs: float = 400.0,
    error: float = 0.01,
    size: int = GIB,
    trials: Sequence[float] = (),
) -> Reading:
    return Reading(work, members, size, "NV18", math.log(gbs), error, True, True, tuple(trials))


def point(
    rates: Sequence[float],
    members: tuple[int, ...] = (0, 1),
    operation: Operation = Operation.CE_WRITE,
    size: int = GIB,
    beside: int = 0,
) -> Measurement:
    """Return a data point with one trial for each rate in GB/s, the last ones beside others."""
    found = measured(operation, members, rates, size)
    alone = len(rates) - beside
    samples = [replace(sample, concurrent=index >= alone) for index, sample in enumerate(found.samples)]
    return replace(found, samples=samples)


def read_one(run: Run, members: tuple[int, ...] = (0, 1)) -> Reading:
    (only,) = (one for one in read(run).points if one.members == members)
    return only


def test_a_reading_needs_three_trials() -> None:
    run = run_of(gpus(3), [point([400.0] * 2), point([400.0] * 3, (1, 0)), point([], (1, 2))])
    assert [one.members for one in read(run).points] == [(1, 0)]


def test_each_work_is_read_at_the_size_that_most_have_of_equals_the_largest() -> None:
    points = [point([400.0] * 3, size=size) for size in (MIB, GIB)]
    points += [point([400.0] * 3, (1, 0), size=MIB), point([], (1, 0), size=GIB)]
    points += [point([400.0] * 3, operation=Operation.SM_READ, size=size) for size in (GIB, MIB)]
    found = read(run_of(gpus(2), points)).points
    assert {(str(one.work), one.members, one.size_bytes) for one in found} == {
        ("ce-write", (0, 1), MIB),
        ("ce-write", (1, 0), MIB),
        ("sm-read", (0, 1), GIB),
    }


def test_isolated_samples_count_alone_where_three_are_there() -> None:
    enough = read_one(run_of(gpus(2), [point([400.0, 400.0, 400.0, 200.0, 200.0, 200.0, 200.0], beside=4)]))
    assert (round(enough.gbs), enough.confirmed, enough.isolated, len(enough.trials)) == (400, True, True, 3)
    few = read_one(run_of(gpus(2), [point([400.0, 400.0, 200.0, 200.0, 200.0], beside=3)]))
    assert (round(few.gbs), few.confirmed, few.isolated, len(few.trials)) == (200, False, False, 5)


# Of five equal steps the median difference of two is two steps; σ̂ is that over √2 · 0.6745. Of the five trials' median
# the standard deviation is 0.5356 σ [Sarhan & Greenberg].
STEPS = [400 * math.exp(0.01 * step) for step in (2, 0, 4, 1, 3)]
NOISE = 0.02 / (math.sqrt(2) * 0.67449)


@pytest.mark.parametrize(
    ("title", "label", "beside", "middle", "error"),
    [
        ("alone", "SYS", 0, 0.02, NOISE * 0.5356),
        ("over NVLink, beside others: its wires are its own", "NV18", 5, 0.02, NOISE * 0.5356),
        ("over PCIe, beside others: partners only slow it down", "SYS", 5, 0.04, NOISE),
    ],
)
def test_what_a_points_trials_stand_for(title: str, label: str, beside: int, middle: float, error: float) -> None:
    found = read_one(run_of(gpus(2), [point(STEPS, beside=beside)], paths(2, label)))
    assert found.middle == pytest.approx(math.log(400) + middle)
    assert found.error == pytest.approx(error, rel=1e-3)
    assert found.label == label
    assert found.trials == pytest.approx([math.log(400) + 0.01 * step for step in range(5)])


def check(
    label: str, ratio: float, operation: Operation = Operation.CE_WRITE, *, trusted: bool = True
) -> InterferenceCheck:
    return InterferenceCheck(operation, (0, 1), label, 400.0, 400 * ratio, ratio, 0.02, trusted=trusted)


@pytest.mark.parametrize(
    ("title", "label", "checks", "alone"),
    [
        ("nobody looked", "PIX", [], False),
        ("an interference check found that it may", "PIX", [check("PIX", 1.0)], True),
        ("it found that it may not", "PIX", [check("PIX", 0.95, trusted=False)], False),
        ("another label's interference check", "PIX", [check("PHB", 1.0)], False),
        ("another work's", "PIX", [check("PIX", 1.0, Operation.CE_READ)], False),
        ("another work's saw sharing", "PIX", [check("PIX", 1.0), check("PIX", 0.89, Operation.CE_READ)], False),
        ("another work's saw nearly none", "PIX", [check("PIX", 1.0), check("PIX", 0.9, Operation.CE_READ)], True),
        ("another label's saw sharing", "PIX", [check("PIX", 1.0), check("PHB", 0.5)], True),
        ("NVLinks share nothing", "NV18", [check("NV18", 1.0), check("NV18", 0.5, Operation.CE_READ)], True),
    ],
)
def test_what_ran_beside_others_counts_where_an_interference_check_trusts_it(
    title: str, label: str, checks: list[InterferenceCheck], alone: bool
) -> None:
    run = replace(run_of(gpus(2), [point([400.0] * 3, beside=3)], paths(2, label)), interference_checks=checks)
    found = read_one(run)
    assert (found.confirmed, found.isolated) == (alone, False)


def test_a_collective_has_the_label_that_its_pairs_share() -> None:
    points = [measured(Operation.ALLREDUCE, some, 300.0) for some in ((0, 1, 2), (1, 2, 3))]
    host = measured(Operation.H2D_CE, (1,), 50.0)
    host.point = replace(host.point, variant=Variant.HOST)
    found = read(run_of(gpus(4), [*points, host], paths(4, but={(0, 1): "SYS"}))).points
    assert {one.members: one.label for one in found} == {(0, 1, 2): "mixed", (1, 2, 3): "NV18", (1,): ""}


@pytest.mark.parametrize("count", [1, 6, 12])
def test_all_bounds_of_a_run_hold_together(count: int) -> None:
    """One of two hundred runs has a bound on the wrong side, however many bounds it has."""
    links = [(a, b) for a in range(4) for b in range(4) if a != b][:count]
    found = read(run_of(gpus(4), [point([400.0] * 3, link) for link in links]))
    assert 2 * count * (1 - NormalDist().cdf(found.z)) == pytest.approx(0.005)


CALM = [400.0, 400.4, 399.6, 400.2, 399.8]


@pytest.mark.parametrize(
    ("title", "factor", "trials", "own"),
    [
        ("its like are as calm", 1.1, 5, False),
        ("its own noise", 6.0, 5, True),
        ("three trials, of three works", 6.0, 3, True),
    ],
)
def test_a_pair_noisier_than_its_like_has_its_own_noise(title: str, factor: float, trials: int, own: bool) -> None:
    """It is known from all its data points together, both ways, and with no more certainty than these give."""
    wild = [400 * math.exp(factor * math.log(rate / 400)) for rate in CALM][:trials]
    works = (Operation.CE_WRITE, Operation.CE_READ, Operation.SM_WRITE)
    links = [(a, b) for a in range(5) for b in range(5) if a != b]
    points = [
        point(wild if {*link} == {0, 1} else CALM[:trials], link, operation) for operation in works for link in links
    ]
    found = {reading.members: reading for reading in read(run_of(gpus(5), points)).points}
    assert found[2, 3].error < 0.001
    assert (found[0, 1].noisier > 1, found[1, 0].noisier > 1) == (own, own)
    assert (found[0, 1].error > 2 * found[2, 3].error) is own


@pytest.mark.parametrize(("trials", "wide"), [([5] * 5, True), ([5] * 5 + [4], True), ([5] * 6, False)])
def test_a_small_pool_takes_the_noise_of_all_copies_where_that_is_more(trials: list[int], wide: bool) -> None:
    """Fewer than thirty trials of a label are few. Collectives have noise of their own."""
    ours = [(a, b) for a in range(3) for b in range(3) if a != b]
    others = [(a, b) for a in range(6) for b in range(6) if a != b]
    points = [point([400.0] * count, link) for link, count in zip(ours, trials, strict=False)]
    points += [point(STEPS, link, Operation.SM_WRITE) for link in others]
    points += [point([400 * (1 + 0.2 * step) for step in range(5)], (0, 1), Operation.ALLREDUCE)]
    found = {(one.work, one.members): one for one in read(run_of(gpus(6), points)).points}
    assert found[WRITE, (0, 1)].error == pytest.approx(found[SM, (0, 1)].error if wide else 0.0)


def test_readings_of_a_work_are_those_of_large_messages() -> None:
    points = (reading(size=MIB), reading(members=(1, 0), size=MIB), reading(READ), reading(SM, size=MIB - 1))
    found = Readings(points, 3.0)
    assert list(found.of(WRITE)) == list(found.of(WRITE, 1)) == [(0, 1), (1, 0)]
    assert (list(found.of(WRITE, GIB)), list(found.of(READ, GIB))) == ([], [(0, 1)])
    assert (list(found.of(SM)), list(found.of(SM, 1))) == ([], [(0, 1)])


def test_host_copies_are_a_devices_own_of_16_mib() -> None:
    chase = Work(Operation.CHASE, Variant.HOST)
    points = (
        reading(HOST, (1,), size=16 * MIB),
        reading(HOST, (2,), size=16 * MIB),
        reading(replace(HOST, numa_node=1), (1,), size=16 * MIB - 1),
        reading(chase, (1,)),
        reading(WRITE, (1, 0)),
    )
    assert Readings(points, 3.0).host(1) == points[:1]


def test_works_are_plain_ones_in_order() -> None:
    kinds = (SM, Work(Operation.ALLREDUCE), WRITE, Work(Operation.CE_WRITE, Variant.STAGED), HOST, SM)
    found = Readings(tuple(reading(work) for work in kinds), 3.0)
    assert (found.works(collective=False), found.works(collective=True)) == ((SM, WRITE), (Work(Operation.ALLREDUCE),))


def test_the_best_of_a_link_is_by_copy_engine_where_one_timed_it() -> None:
    points = (reading(SM, gbs=500.0), reading(WRITE, gbs=300.0), reading(READ, gbs=350.0))
    found = Readings(points, 3.0)
    assert (found.best((0, 1)), found.best((1, 0))) == (points[2], None)
    assert Readings(points[:1], 3.0).best((0, 1)) == points[0]
    small = Readings((reading(size=16 * MIB - 1),), 3.0)
    assert small.best((0, 1)) is None
    assert small.best((0, 1), MIB) is not None


def test_bounds_and_differences_are_z_errors_wide() -> None:
    high, low = reading(gbs=400.0, error=0.03), reading(gbs=200.0, error=0.04)
    found = Readings((high, low), 2.0)
    assert found.interval(high) == pytest.approx((400 * math.exp(-0.06), 400, 400 * math.exp(0.06)))
    sure = math.log(2) - 0.1  # 2 · √(0.03² + 0.04²)
    assert found.exceeds(high, low, sure - 1e-6)
    assert not found.exceeds(high, low, sure + 1e-6)
    assert not found.exceeds(low, high, 0.0)
    assert found.exceeds(
        reading(gbs=400.0, error=0.0), reading(gbs=200.0, error=0.0), math.log(400) - math.log(200)
    ) is (False)
    middle = reading(gbs=300.0, error=0.02)
    span = found.span([high, low, middle])
    assert span == pytest.approx((200 * math.exp(-0.08), 300, 400 * math.exp(0.06)))
