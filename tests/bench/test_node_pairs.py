"""Pairs of nodes on a backend that times steps as a test says: four hosts with two GPUs each unless said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from collbench.analysis.outcome import outcome
from collbench.backends.protocol import Step, Timing
from collbench.bench.nodes import NodePairs, by_node
from collbench.model.errors import DataCorruption, ExitStatus, StepFailed, UsageError
from collbench.model.failures import FailureKind
from collbench.model.operations import Operation
from collbench.model.run import Device, Run
from collbench.output.text.nodes import lost
from tests.bench.fakes import FakeBackend
from tests.builders import gpus, run_of

MIB = 2**20


def hosts(*counts: int) -> tuple[Device, ...]:
    names = [f"n{index}" for index, count in enumerate(counts) for _ in range(count)]
    return tuple(replace(device, host=name) for device, name in zip(gpus(len(names)), names, strict=True))


class Hosts(FakeBackend):
    """Every message takes 1 ms; `spoil(step)` may raise."""

    def __init__(self, *counts: int, spoil: Callable[[Step], None] = lambda _step: None) -> None:
        super().__init__(sum(counts))
        self._devices, self._spoil = hosts(*counts), spoil

    def time_collective(self, step: Step) -> Timing:
        self.steps.append(step)
        self._spoil(step)
        return Timing(tuple((0.001,) * step.batches for _ in step.groups))


def opened(backend: Hosts, size: int = MIB) -> tuple[NodePairs, Run]:
    run = run_of(backend.devices(), [])
    return NodePairs(backend, run, size), run


@pytest.mark.parametrize(
    ("one_way", "operation", "gbs"),
    # 1 MiB in 1 ms is 1.048576 GB/s; of an all-reduce on four ranks busbw is 1.5 times that.
    [(False, Operation.ALLREDUCE, 1.572864), (True, Operation.BROADCAST, 1.048576)],
)
def test_a_round_is_one_communicator_for_each_pair_all_at_once(one_way: bool, operation: Operation, gbs: float) -> None:
    backend = Hosts(2, 2, 2, 2)
    pairs, run = opened(backend)
    assert pairs.measure([(2, 0), (1, 3)], one_way) == pytest.approx([gbs, gbs])
    assert {step.groups for step in backend.steps} == {((4, 5, 0, 1), (2, 3, 6, 7))}
    assert {step.operation for step in backend.steps} == {operation}
    assert [found.point.members for found in run.measurements] == [(4, 5, 0, 1), (2, 3, 6, 7)]
    assert {len(found.samples) for found in run.measurements} == {3}
    assert backend.reserved == [MIB]


def test_of_a_round_that_fails_each_pair_is_tried_alone() -> None:
    def spoil(step: Step) -> None:
        if any(7 in group for group in step.groups):
            raise StepFailed("it hangs", FailureKind.HANG)

    backend = Hosts(2, 2, 2, 2, spoil=spoil)
    pairs, run = opened(backend)
    assert pairs.measure([(0, 1), (2, 3)], False) == [pytest.approx(1.572864), None]
    assert lost(run) == ("n2 and n3: it hangs",)
    reported = {
        found.point.members: (found.failure and found.failure.kind, len(found.samples) > 0)
        for found in run.measurements
    }
    assert reported == {(0, 1, 2, 3): (None, True), (4, 5, 6, 7): (FailureKind.HANG, False)}
    assert outcome(run).status is ExitStatus.UNTRUSTED


def test_wrong_data_ends_it() -> None:
    def spoil(_step: Step) -> None:
        raise DataCorruption("wrong")

    pairs, _ = opened(Hosts(1, 1, spoil=spoil))
    with pytest.raises(DataCorruption):
        pairs.measure([(0, 1)], False)


def test_inside_the_nodes_every_pair_is_measured_all_nodes_at_once() -> None:
    backend = Hosts(4, 2, 1)
    pairs, run = opened(backend)
    pairs.measure_inside()
    found = {frozenset(one.point.members) for one in run.measurements}
    assert found == {frozenset({a, b}) for a in range(4) for b in range(a)} | {frozenset({4, 5})}
    assert max(len(step.groups) for step in backend.steps) == 3  # two pairs of the first node, one of the second


def test_hosts_keep_the_order_of_the_ranks() -> None:
    shuffled = tuple(hosts(2, 2)[place] for place in (2, 0, 3, 1))
    assert by_node(shuffled) == {"n1": (0, 2), "n0": (1, 3)}


def test_one_host_is_refused() -> None:
    with pytest.raises(UsageError, match=r"all ranks are on one host.*collbench pairs"):
        opened(Hosts(4))


def test_a_message_too_large_is_refused() -> None:
    backend = Hosts(1, 1)
    backend.capacity = MIB
    with pytest.raises(UsageError, match="--size 2M does not fit: the fullest device has room for 1M"):
        opened(backend, 2 * MIB)
