"""Pairs of nodes on a backend whose times each test sets: four hosts with two GPUs each unless stated."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

import collbench.cluster.measure
from collbench.cluster.measure import NodePairs, by_node, iterations, rejoined, survey_nodes
from collbench.cluster.nodes import State, choose_nodes
from collbench.cluster.page import lost
from collbench.judge.outcome import outcome
from collbench.measurement.backends.protocol import Step, Timing
from collbench.model.errors import BackendError, DataCorruption, ExitStatus, FailureKind, StepFailed, UsageError
from collbench.model.operations import Operation
from collbench.model.run import Device, Run
from tests.builders import gpus, run_of
from tests.measurement.fakes import FakeBackend
from tests.measurement.interrupted import saved_after_ctrl_c

MIB = 2**20


def hosts(*counts: int) -> tuple[Device, ...]:
    names = [f"n{index}" for index, count in enumerate(counts) for _ in range(count)]
    return tuple(replace(device, host=name) for device, name in zip(gpus(len(names)), names, strict=True))


class Hosts(FakeBackend):
    """Every message takes 1 ms; `spoil(step)` may raise."""

    def __init__(self, *counts: int, spoil: Callable[[Step], None] = lambda _step: None) -> None:
        super().__init__(sum(counts))
        self._devices, self._spoil = hosts(*counts), spoil

    seconds = 0.001

    def time(self, step: Step) -> Timing:
        self.steps.append(step)
        self._spoil(step)
        return Timing(tuple((self.seconds,) * step.batches for _ in step.groups))


def node_pairs_and_run(backend: Hosts, size: int = MIB) -> tuple[NodePairs, Run]:
    run = run_of(backend.devices(), [])
    return NodePairs(backend, run, size), run


def test_a_round_is_one_communicator_for_each_pair_all_at_once() -> None:
    """1 MiB in 1 ms is 1.048576 GB/s; of an all-reduce on four ranks busbw is 1.5 times that."""
    backend = Hosts(2, 2, 2, 2)
    pairs, run = node_pairs_and_run(backend)
    assert pairs.measure([(2, 0), (1, 3)]) == pytest.approx([1.572864] * 2)
    assert {step.groups for step in backend.steps} == {((0, 1, 4, 5), (2, 3, 6, 7))}
    assert {step.work.operation for step in backend.steps} == {Operation.ALLREDUCE}
    assert [measurement.point.members for measurement in run.measurements] == [(0, 1, 4, 5), (2, 3, 6, 7)]
    assert {len(measurement.samples) for measurement in run.measurements} == {3}
    assert backend.reserved == [MIB]


def test_each_sample_says_whether_its_launches_were_plain() -> None:
    class Plain(Hosts):
        def time(self, step: Step) -> Timing:
            return replace(super().time(step), plain=(True, False)[: len(step.groups)])

    pairs, run = node_pairs_and_run(Plain(2, 2, 2, 2))
    pairs.measure([(0, 1), (2, 3)])
    assert [{sample.plain for sample in measurement.samples} for measurement in run.measurements] == [{True}, {False}]


def test_after_a_failed_round_each_pair_is_tried_by_itself() -> None:
    def spoil(step: Step) -> None:
        if any(7 in group for group in step.groups):
            raise StepFailed("it hangs", FailureKind.HANG)

    backend = Hosts(2, 2, 2, 2, spoil=spoil)
    pairs, run = node_pairs_and_run(backend)
    assert pairs.measure([(0, 1), (2, 3)]) == [pytest.approx(1.572864), None]
    assert lost(run) == ("n2 and n3: it hangs",)
    reported = {
        measurement.point.members: (measurement.failure and measurement.failure.kind, len(measurement.samples) > 0)
        for measurement in run.measurements
    }
    assert reported == {(0, 1, 2, 3): (None, True), (4, 5, 6, 7): (FailureKind.HANG, False)}
    assert outcome(run).status is ExitStatus.UNTRUSTED


def test_wrong_data_ends_the_survey() -> None:
    def spoil(_step: Step) -> None:
        raise DataCorruption("wrong")

    pairs, _ = node_pairs_and_run(Hosts(1, 1, spoil=spoil))
    with pytest.raises(DataCorruption):
        pairs.measure([(0, 1)])


def test_hosts_keep_the_order_of_the_ranks() -> None:
    shuffled = tuple(hosts(2, 2)[rank] for rank in (2, 0, 3, 1))
    assert by_node(shuffled) == {"n1": (0, 2), "n0": (1, 3)}


def test_one_host_is_refused() -> None:
    with pytest.raises(UsageError, match=r"all ranks are on one host.*collbench pairs"):
        node_pairs_and_run(Hosts(4))


def test_a_message_too_large_is_refused() -> None:
    backend = Hosts(1, 1)
    backend.capacity = MIB
    with pytest.raises(UsageError, match="--size 2M does not fit: the fullest device has room for 1M"):
        node_pairs_and_run(backend, 2 * MIB)


@pytest.mark.parametrize(("seconds", "expected"), [(1e-6, 20), (0.001, 20), (0.02, 5), (0.099, 1), (0.1, 1), (30.0, 1)])
def test_a_batch_ends_after_a_tenth_of_a_second_or_one_call(seconds: float, expected: int) -> None:
    """A survey of 512M over 10 GbE takes a minute or so, not an hour; on fast networks nothing changes."""
    backend = Hosts(1, 1)
    backend.seconds = seconds
    pairs, run = node_pairs_and_run(backend)
    assert iterations(MIB) == 20
    pairs.measure([(0, 1)])
    pairs.measure([(0, 1)])
    tried, *trials = backend.steps
    assert (tried.iterations, tried.batches) == (1, 1)
    assert {step.iterations for step in trials} == {expected}
    assert len(trials) == 6, "it is tried once"
    assert {sample.iterations for measurement in run.measurements for sample in measurement.samples} == {expected}


@pytest.mark.parametrize("seed", range(3))
def test_a_host_that_is_lost_in_a_round_costs_that_pair_only(seed: int) -> None:
    """From the first step on or from a later one, and whichever rank of it is lost."""
    rng = random.Random(seed)
    victim, dies_at = rng.randrange(12), rng.randrange(20)
    lost_ranks: set[int] = set()

    def spoil(step: Step) -> None:
        if len(backend.steps) > dies_at and victim not in lost_ranks:
            lost_ranks.add(victim)
            raise StepFailed("rank is gone", FailureKind.CRASH)
        assert not lost_ranks & {rank for group in step.groups for rank in group}, "a lost rank runs no further step"

    backend = Hosts(*(2,) * 6, spoil=spoil)
    kept: list[int] = []
    run = run_of(backend.devices(), [])
    pairs = NodePairs(backend, run, MIB, lambda: lost_ranks, lambda: kept.append(1))
    done = survey_nodes(6, (), pairs.measure, lambda rounds: rounds < 12, seed, pairs.lost)
    assert pairs.lost() == {victim // 2}
    failed = [measurement for measurement in run.measurements if measurement.failure]
    assert len(failed) <= 1, "the pair in which it was lost, unless it rested"
    assert all(victim in measurement.point.members for measurement in failed)
    states = [node.state for node in done.judgement.nodes]
    assert states == [State.UNDECIDED if node == victim // 2 else State.HEALTHY for node in range(6)]
    assert len(done.rounds) == 8, "no further round would tell more"
    assert victim // 2 not in choose_nodes(done.judgement, 5).members
    samples = sum(len(measurement.samples) for measurement in run.measurements)
    assert len(kept) == samples + len(failed), "each trial and each failure may be saved at once"
    assert len(done.seen) * 3 == samples


def test_partners_of_lost_nodes_meet_each_other() -> None:
    pairs = ((0, 1), (2, 3), (4, 5), (6, 7))
    assert rejoined(pairs, ()) == pairs
    assert rejoined(pairs, (1, 4)) == ((2, 3), (6, 7), (0, 5))
    assert rejoined(pairs, (2, 3)) == ((0, 1), (4, 5), (6, 7))
    assert rejoined(pairs, (7,)) == ((0, 1), (2, 3), (4, 5)), "and one without a partner rests"


def test_losing_all_nodes_is_an_error() -> None:
    def measure(pairs: Sequence[tuple[int, int]]) -> list[float | None]:
        return [1.0 for _ in pairs]

    with pytest.raises(BackendError, match="no pair of nodes could be measured"):
        survey_nodes(3, (), measure, lambda _made: False, 1, lambda: (0, 1))


def test_ctrl_c_at_any_line_leaves_a_run_that_can_be_read() -> None:
    """One pair fails in a round."""

    def fail_pair(step: Step) -> None:
        if any({0, 2} <= set(group) for group in step.groups):
            raise StepFailed("gone")

    def begin() -> tuple[Run, Callable[[], object]]:
        pairs, run = node_pairs_and_run(Hosts(2, 2, 2, 2, spoil=fail_pair))

        def measure() -> None:
            for round_of_pairs in ([(0, 1), (2, 3)], [(0, 2), (1, 3)]):
                pairs.measure(round_of_pairs)

        return run, measure

    runs = list(saved_after_ctrl_c(collbench.cluster.measure, begin))
    assert len(runs) > 100
    assert all(measurement.samples or measurement.failure for run in runs for measurement in run.measurements)
    assert {len(run.measurements) for run in runs[-5:]} == {4}, "late interrupts leave everything"
