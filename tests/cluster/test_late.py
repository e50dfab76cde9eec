"""Which nodes come late to batches, from how long ranks waited in a barrier: made-up surveys of known lateness."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.cluster.nodes import LATE_SECONDS, late_nodes
from collbench.model.operations import Operation
from collbench.model.run import DataPoint, Measurement, Run, Sample
from tests.builders import gpus, run_of

_GPUS = 2  # of each node


def survey(late: list[float], *, rounds: int = 8, jitter: float = 30e-6, barrier: float = 20e-6, seed: int = 1) -> Run:
    """Return a survey of random pairs, in which node n comes late[n] seconds late, three trials a round."""
    chance = random.Random(seed)
    count = len(late)
    found: dict[tuple[int, ...], Measurement] = {}
    for _ in range(rounds):
        order = list(range(count))
        chance.shuffle(order)
        for a, b in zip(order[::2], order[1::2], strict=False):
            members = tuple(node * _GPUS + gpu for node in (a, b) for gpu in range(_GPUS))
            point = DataPoint(Operation.ALLREDUCE, members, 1 << 20)
            measured = found.setdefault(members, Measurement(point))
            for _ in range(3):
                came = [late[member // _GPUS] + abs(chance.gauss(0, jitter)) for member in members]
                waits = tuple(max(came) - one + barrier for one in came)
                measured.samples.append(Sample((1e-3, 1e-3), 5, True, waits=waits))
    return run_of(gpus(count * _GPUS), list(found.values()))


def nodes(count: int) -> list[tuple[int, ...]]:
    return [tuple(range(node * _GPUS, (node + 1) * _GPUS)) for node in range(count)]


@pytest.mark.parametrize(("count", "seconds"), [(2, 3e-4), (4, 5e-3), (64, 3e-4)])
def test_the_late_node_is_named_with_how_much_and_how_often(count: int, seconds: float) -> None:
    where = count // 2
    run = survey([seconds if node == where else 0.0 for node in range(count)])
    (late,) = late_nodes(run, nodes(count))
    assert late.node == where
    assert late.seconds == pytest.approx(seconds, rel=0.3)
    assert late.interval[0] <= late.seconds <= late.interval[1]
    assert late.later >= 0.9 * late.seen == 0.9 * 24


def test_nobody_is_called_late_by_chance() -> None:
    """50 surveys of 16 equal nodes, whose hosts vary by far more than the least lateness that is reported."""
    wrong = sum(
        bool(late_nodes(survey([0.0] * 16, jitter=20 * LATE_SECONDS, seed=seed), nodes(16))) for seed in range(50)
    )
    assert wrong <= 50 * 0.05


def test_of_less_than_what_hosts_differ_by_nothing_is_said() -> None:
    assert not late_nodes(survey([0.5 * LATE_SECONDS, 0, 0, 0], jitter=1e-6), nodes(4))
    # Ranks leave a slow barrier at times that differ by more.
    assert not late_nodes(survey([2e-3, 0, 0, 0], barrier=5e-3), nodes(4))
    assert late_nodes(survey([2e-3, 0, 0, 0]), nodes(4))


def test_a_survey_without_waits_says_nothing() -> None:
    run = survey([1e-2, 0, 0, 0])
    for found in run.measurements:
        found.samples[:] = [Sample(sample.seconds, sample.iterations, sample.concurrent) for sample in found.samples]
    assert late_nodes(run, nodes(4)) == ()


@given(st.lists(st.floats(0, 1e-2), min_size=2, max_size=8), st.integers(1, 9), st.integers(0, 99))
def test_what_is_said_is_of_the_latest_nodes_and_in_order(late: list[float], rounds: int, seed: int) -> None:
    found = late_nodes(survey(late, rounds=rounds, seed=seed), nodes(len(late)))
    assert [one.seconds for one in found] == sorted((one.seconds for one in found), reverse=True)
    for one in found:
        assert one.seconds > LATE_SECONDS
        assert one.later <= one.seen <= 3 * rounds
        assert late[one.node] > min(late), "the earliest node is late to nobody"
