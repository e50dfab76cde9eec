"""The host's lane by hand, and what holds of any host: it can only hide what is sent, and one that keeps up is none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.jobs.predict import networks
from collbench.jobs.predict.networks import Network, Unit
from collbench.jobs.predict.step import (
    AS_THE_GPU,
    Group,
    Host,
    Knot,
    Phases,
    Transfer,
    compute_of,
    pace,
    parse_phases,
    step_seconds,
)
from collbench.model.errors import UsageError
from collbench.model.operations import Operation
from tests.jobs.predict.test_step import at, schedules

EVEN = ((0.0, 0.0), (1.0, 1.0))
# The last fifth of the host's time launches the optimizer.
WITH_OPTIMIZER = ((0.0, 0.0), (1.0, 0.8))
# Forward takes the host twice as long as backward.
SLOW_FORWARD = ((0.0, 0.0), (1 / 3, 2 / 3), (1.0, 1.0))
GATHERED_LAST = Transfer(Operation.ALLGATHER, 1, Group.ALL, 1.0, 1.0, after_optimizer=True)


# A step of ten seconds, of which the GPU itself needs four, or as many as said.
@pytest.mark.parametrize(
    ("title", "knots", "gpu", "transfers", "seconds", "step"),
    [
        ("nothing is sent", EVEN, 4, [], [], 10),
        ("the GPU waits for a transfer, and catches up: 8 and half of 4", EVEN, 4, [at(0.5, 0.5)], [3], 10),
        ("it cannot catch up with all: 9 and half of 4", EVEN, 4, [at(0.5, 0.5)], [4], 11),
        ("a GPU that never waits for its host has nothing to catch up with", EVEN, 10, [at(0.5, 0.5)], [3], 13),
        ("a wait at the begin: 4 and all of 4, the host's 10 are later", EVEN, 4, [at(0.0, 0.0)], [4], 10),
        ("a longer one: 7 and all of 4", EVEN, 4, [at(0.0, 0.0)], [7], 11),
        ("behind the host's last launch all is exposed", EVEN, 4, [at(1.0)], [3], 13),
        ("what is ready at 5 cannot be sent earlier because the GPU is fast", EVEN, 4, [at(0.5)], [7], 12),
        ("behind backward, at 8, while the host launches the optimizer", WITH_OPTIMIZER, 4, [at(1.0)], [1.5], 10),
        ("what that does not hide", WITH_OPTIMIZER, 4, [at(1.0)], [3], 11),
        ("behind the optimizer nothing hides", WITH_OPTIMIZER, 4, [GATHERED_LAST], [3], 13),
        # The host takes 9, 6 of them for forward; the GPU's backward of 4 ends at 10. Half of it is at 8.
        ("behind a slow forward backward is the GPU's", SLOW_FORWARD, 6, [at(2 / 3)], [5], 13),
        # A GPU of 1 follows the host, now of 10: half of backward at 10 · 5/6.
        ("behind a slow forward backward is short", SLOW_FORWARD, 1, [at(2 / 3)], [5], 10 * 5 / 6 + 5),
    ],
)
def test_a_schedule_by_hand(
    title: str, knots: tuple[Knot, ...], gpu: float, transfers: list[Transfer], seconds: list[float], step: float
) -> None:
    assert step_seconds(transfers, seconds, 10, Host(gpu, knots)) == pytest.approx(step)


# --- any host ---


@st.composite
def paces(draw: st.DrawFn) -> tuple[Knot, ...]:
    places = sorted(draw(st.sets(st.integers(1, 99), max_size=6)))
    shares = sorted(draw(st.lists(st.floats(0, 1), min_size=len(places) + 1, max_size=len(places) + 1)))
    return tuple(zip([0.0, *(place / 100 for place in places), 1.0], [0.0, *shares], strict=True))


gpus = st.floats(0, 20)
Schedule = tuple[list[Transfer], list[float], float]


@given(schedules(), paces())
def test_a_host_that_keeps_up_changes_nothing(schedule: Schedule, knots: tuple[Knot, ...]) -> None:
    transfers, seconds, compute = schedule
    reported = step_seconds(transfers, seconds, compute, Host(compute, knots))
    assert reported == pytest.approx(step_seconds(transfers, seconds, compute), abs=1e-9)


@given(gpus, st.floats(0, 20), paces())
def test_without_transfers_a_step_takes_what_was_said(gpu: float, more: float, knots: tuple[Knot, ...]) -> None:
    assert step_seconds([], [], gpu + more, Host(gpu, knots)) == pytest.approx(gpu + more, abs=1e-9)


@given(schedules(), gpus, st.floats(0, 10), st.floats(0, 10), paces())
def test_a_slower_host_never_exposes_more(
    schedule: Schedule, gpu: float, slow: float, slower: float, knots: tuple[Knot, ...]
) -> None:
    transfers, seconds, _ = schedule
    host = Host(gpu, knots)
    before, after = (step_seconds(transfers, seconds, step, host) - step for step in (gpu + slow, gpu + slow + slower))
    assert after <= before + 1e-9


@given(schedules(), gpus, st.floats(0, 20), paces())
def test_exposed_time_lies_in_its_band(schedule: Schedule, gpu: float, more: float, knots: tuple[Knot, ...]) -> None:
    transfers, seconds, _ = schedule
    step, compute = step_seconds(transfers, seconds, gpu + more, Host(gpu, knots)), gpu + more
    assert max(compute, sum(seconds)) - 1e-9 <= step <= compute + sum(seconds) + 1e-9


@given(schedules(), gpus, st.floats(0, 20), paces())
def test_the_compute_of_a_measured_step_gives_that_step_again(
    schedule: Schedule, gpu: float, more: float, knots: tuple[Knot, ...]
) -> None:
    transfers, seconds, _ = schedule
    host = Host(gpu, knots)
    step = step_seconds(transfers, seconds, gpu + more, host)
    found = compute_of(step, transfers, seconds, host)
    assert found is not None
    assert found >= gpu
    assert step_seconds(transfers, seconds, found, host) == pytest.approx(step, abs=1e-9)


def test_a_step_shorter_than_the_gpus_own_time_cannot_be() -> None:
    assert compute_of(9.0, [at(1.0)], [1.0], Host(8.5, EVEN)) is None
    assert compute_of(9.0, [at(1.0)], [1.0], Host(8.0, EVEN)) == pytest.approx(8.0)


# --- where a network's layers lie in the host's time ---

# Two blocks of six kernels' tensors around one of twelve whose work is as much as theirs together; a head of none.
UNEVEN = Network("uneven", Unit((5,), 0), (Unit((1,) * 6, 1), Unit((1,) * 12, 2), Unit((1,) * 6, 1)), Unit((), 0), "")


@pytest.mark.parametrize(
    ("title", "micro_batches", "phases", "knots"),
    [
        (
            "work and tensors alike: as the GPU, backward two thirds",
            1,
            AS_THE_GPU,
            [(0, 0), (1 / 12, 1 / 12), (1 / 4, 1 / 4), (1 / 3, 1 / 3), (1 / 2, 1 / 2), (5 / 6, 5 / 6), (1, 1)],
        ),
        (
            "as long for forward as for backward, and a fifth for the optimizer",
            1,
            Phases(2, 2, 1),
            [(0, 0), (1 / 12, 0.1), (1 / 4, 0.3), (1 / 3, 0.4), (1 / 2, 0.5), (5 / 6, 0.7), (1, 0.8)],
        ),
        (
            "two micro-batches and one optimizer",
            2,
            Phases(2, 2, 1),
            [
                *((0, 0), (1 / 24, 0.05), (1 / 8, 0.15), (1 / 6, 0.2), (1 / 4, 0.25), (5 / 12, 0.35), (1 / 2, 0.4)),
                *((13 / 24, 0.45), (5 / 8, 0.55), (2 / 3, 0.6), (3 / 4, 0.65), (11 / 12, 0.75), (1, 0.8)),
            ],
        ),
    ],
)
def test_the_hosts_pace_by_hand(title: str, micro_batches: int, phases: Phases, knots: list[Knot]) -> None:
    assert pace(UNEVEN, micro_batches, phases) == tuple(pytest.approx(knot) for knot in knots)


def test_a_large_head_is_few_kernels() -> None:
    """GPT-2's head is 31% of the multiply-adds (38.6M beside 12 blocks of 7.1M) and 2 of 146 tensors."""
    knots = pace(networks.find("gpt2"), 1, Phases(1, 1, 0))
    blocks_end, _ = knots[12], knots[13]
    assert blocks_end == pytest.approx(((1 - 38.6 / (38.6 + 84.9)) / 3, 144 / 146 / 2), rel=1e-3)


@pytest.mark.parametrize("name", networks.NAMES)
def test_every_network_has_a_pace_that_ends_with_backward(name: str) -> None:
    knots = pace(networks.find(name), 3, Phases(3, 4, 1))
    assert [*knots[0], *knots[-1]] == pytest.approx([0, 0, 1, 7 / 8])
    places, shares = zip(*knots, strict=True)
    assert sorted(set(places)) == list(places)
    assert sorted(shares) == list(shares)


@pytest.mark.parametrize(
    ("text", "shares"),
    [("1,2,0", (1 / 3, 2 / 3, 0)), ("12.5, 25,12.5", (0.25, 0.5, 0.25)), ("1e3,1e3,2e3", (0.25, 0.25, 0.5))],
)
def test_phases_as_people_type_them(text: str, shares: tuple[float, float, float]) -> None:
    assert parse_phases(text).shares == pytest.approx(shares)


@pytest.mark.parametrize(
    "text", ["", "1,2", "1,2,3,4", "a,b,c", "0,1,1", "1,0,1", "1,2,-1", "1,2,nan", "1,inf,1", "12ms,1,1"]
)
def test_phases_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="write 12,14,9, in ms or any unit"):
        parse_phases(text)
