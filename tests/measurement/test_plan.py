import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.measurement.plan import Plan, directed_links, unordered_pairs
from collbench.measurement.sweep import points_of
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import DataPoint
from tests.measurement.fakes import ASKED

MIB = 2**20
SIZES = (8, MIB, 64 * MIB)
COPY, SUM = Work(Operation.CE_WRITE), Work(Operation.ALLREDUCE)
PAIR, FOUR = (0, 1), (0, 1, 2, 3)


def plan_for(n: int, *, all_devices: bool = False) -> Plan:
    return Plan(
        devices=n,
        groups={COPY: directed_links(n), SUM: (tuple(range(n)),) if all_devices else unordered_pairs(n)},
        sizes={COPY: SIZES, SUM: SIZES[1:]},
        batch_bytes=128 * MIB,
        asked=ASKED,
    )


def points_of_a_pass(plan: Plan, seed: int, points: set[DataPoint] | None = None) -> Counter[DataPoint]:
    steps = plan.passes(random.Random(seed), set(plan.points()) if points is None else points)
    return Counter(point for step in steps for point in points_of(step))


@given(st.integers(2, 9), st.integers(), st.booleans())
def test_a_pass_has_every_point_exactly_once(n: int, seed: int, all_devices: bool) -> None:
    plan = plan_for(n, all_devices=all_devices)
    assert points_of_a_pass(plan, seed) == Counter(plan.points())


@given(st.integers(2, 7), st.integers(), st.data())
def test_a_pass_has_only_the_points_that_it_is_given(n: int, seed: int, data: st.DataObject) -> None:
    plan = plan_for(n)
    points = list(plan.points())
    chosen = data.draw(st.sets(st.sampled_from(points), max_size=len(points)))
    assert points_of_a_pass(plan, seed, chosen) == Counter(chosen)


@given(st.integers(2, 9), st.integers())
def test_groups_of_a_step_are_disjoint_and_copies_go_both_ways(n: int, seed: int) -> None:
    plan = plan_for(n)
    for step in plan.passes(random.Random(seed), set(plan.points())):
        members = [member for group in step.groups for member in group]
        assert len(members) == len(set(members))
    assert {point.members for point in plan.points() if point.operation is Operation.CE_WRITE} == {
        (a, b) for a in range(n) for b in range(n) if a != b
    }


@given(st.integers(4, 9), st.integers(), st.data())
def test_only_isolated_points_run_by_themselves(n: int, seed: int, data: st.DataObject) -> None:
    links = data.draw(st.sets(st.sampled_from(directed_links(n)), max_size=6))
    isolated = frozenset((COPY, link) for link in links)
    plan = replace(plan_for(n), isolated=isolated)
    steps = plan.passes(random.Random(seed), set(plan.points()))
    assert points_of_a_pass(plan, seed) == Counter(plan.points())
    for step in steps:
        assert len(step.groups) == 1 or not any((step.work, group) in isolated for group in step.groups)
    # Nothing else is serialized: a round that loses k links to isolation becomes at most k + 1 steps.
    rounds = len(plan_for(n).rounds(COPY, random.Random(seed)))
    assert len(plan.rounds(COPY, random.Random(seed))) <= rounds + len(links)


def test_steps_come_in_random_order_over_the_whole_plan() -> None:
    plan = plan_for(6)
    points = set(plan.points())
    steps, same_seed, other_seed = (plan.passes(random.Random(seed), points) for seed in (1, 1, 2))
    assert steps == same_seed
    assert steps != other_seed
    in_plan_order = sorted(steps, key=lambda step: (step.work.operation, step.size_bytes))
    assert [s.size_bytes for s in steps] != [s.size_bytes for s in in_plan_order]


@pytest.mark.parametrize(
    ("title", "work", "members", "size", "iterations", "warmup"),
    [
        ("small messages fill the queue, not the batch", COPY, PAIR, 8, 16, 1),
        ("collectives, whose launch is in a graph, a few more", SUM, PAIR, 8, 20, 1),
        ("a copy's batch has block_bytes", COPY, PAIR, 32 * MIB, 4, 0),
        ("rounded up to whole messages", COPY, PAIR, 50 * MIB, 3, 0),
        ("short messages are preceded by an untimed batch", COPY, PAIR, 15 * MIB, 9, 1),
        ("long ones warm up by themselves", COPY, PAIR, 16 * MIB, 8, 0),
        ("a chain of collectives moves twice a batch", SUM, PAIR, 64 * MIB, 4, 0),
        ("and holds two at least: its end is late", SUM, PAIR, 256 * MIB, 2, 0),
        ("but for the largest messages of a pair", SUM, PAIR, 512 * MIB, 1, 0),
        ("and of more ranks, whose pipeline drains longer", SUM, FOUR, 4096 * MIB, 4, 0),
    ],
)
def test_a_trials_work(
    title: str, work: Work, members: tuple[int, ...], size: int, iterations: int, warmup: int
) -> None:
    step = plan_for(4).step(work, [members], size)
    assert (step.iterations, step.warmup) == (iterations, warmup)


def test_only_collectives_have_a_launch_loop() -> None:
    plan = replace(plan_for(3), launches=20)
    steps = plan.passes(random.Random(0), set(plan.points()))
    assert {(step.work.operation.is_collective, step.launches) for step in steps} == {(False, 0), (True, 20)}


def test_iterations_and_warmup_can_be_given() -> None:
    step = replace(plan_for(2), asked=replace(ASKED, iterations=30, warmup=3)).step(SUM, [PAIR], MIB)
    assert (step.iterations, step.warmup) == (30, 3)


def test_more_iterations_than_a_chain_holds_are_left_to_the_launch_loop() -> None:
    plan = replace(plan_for(2), asked=replace(ASKED, iterations=100), launches=100)
    steps = [step for step in plan.passes(random.Random(0), set(plan.points())) if step.work == SUM]
    assert {(step.iterations, step.launches) for step in steps} == {(32, 100)}  # 32: csrc/collective_layout.cpp


@pytest.mark.parametrize("variant", [Variant.ONE_TO_ALL, Variant.ALL_TO_ONE, Variant.HOST, Variant.STAGED])
def test_groups_that_share_a_device_or_the_host_run_in_turn(variant: Variant) -> None:
    work = Work(Operation.CE_WRITE, variant)
    groups = ((0,), (1,)) if variant is Variant.HOST else ((0, 1), (1, 0))
    plan = replace(plan_for(2), groups={work: groups}, sizes={work: (MIB,)})
    assert [step.groups for step in plan.passes(random.Random(1), set(plan.points()))].count(groups) == 0
    assert points_of_a_pass(plan, 1) == Counter(plan.points())


def test_disjoint_sets_run_at_once_where_requested() -> None:
    halves = ((0, 1), (2, 3))
    plan = replace(plan_for(4), groups={SUM: halves}, sizes={SUM: (MIB,)}, asked=replace(ASKED, split=2))
    one_point = {next(iter(plan.points()))}
    for points in (set(plan.points()), one_point):
        assert [step.groups for step in plan.passes(random.Random(1), points)] == [halves]
