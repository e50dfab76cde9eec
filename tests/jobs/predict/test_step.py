"""Two lanes by hand, and what holds of any schedule."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.jobs.predict.step import Group, Transfer, compute_of, step_seconds
from collbench.model.operations import Operation


def at(ready: float, needed: float = 1.0) -> Transfer:
    return Transfer(Operation.ALLREDUCE, 1, Group.ALL, ready, needed)


# Ten seconds of compute.
@pytest.mark.parametrize(
    ("title", "transfers", "seconds", "step"),
    [
        ("nothing is sent", [], [], 10),
        ("hidden behind compute", [at(0.5)], [5], 10),
        ("what does not fit behind it is exposed", [at(0.5)], [7], 12),
        ("after compute all is exposed", [at(1.0)], [3], 13),
        ("the lane is busy: the second starts late", [at(0.2), at(0.3)], [5, 5], 12),
        ("the lane is free again: the second waits for compute", [at(0.2), at(0.9)], [1, 2], 11),
        ("compute waits in the middle", [at(0.0, 0.0)], [4], 14),
        ("a gather runs beside the unit before", [at(0.0, 0.4)], [3], 10),
        ("and holds the next where it is longer", [at(0.0, 0.4)], [6], 12),
        ("what starts where compute waits does not wait with it", [at(0.5, 0.5), at(0.5, 0.6)], [2, 3], 14),
        ("a wait delays what starts later", [at(0.0, 0.5), at(0.6, 1.0)], [8, 4], 13),
    ],
)
def test_a_schedule_by_hand(title: str, transfers: list[Transfer], seconds: list[float], step: float) -> None:
    assert step_seconds(transfers, seconds, 10) == pytest.approx(step)


@st.composite
def schedules(draw: st.DrawFn) -> tuple[list[Transfer], list[float], float]:
    ready = sorted(draw(st.lists(st.floats(0, 1), max_size=12)))
    transfers = [at(place, draw(st.floats(place, 1))) for place in ready]
    seconds = draw(st.lists(st.floats(0, 10), min_size=len(ready), max_size=len(ready)))
    return transfers, seconds, draw(st.floats(0, 20))


@given(schedules())
def test_exposed_time_is_at_most_all_and_at_least_what_compute_cannot_cover(
    schedule: tuple[list[Transfer], list[float], float],
) -> None:
    transfers, seconds, compute = schedule
    step = step_seconds(transfers, seconds, compute)
    assert max(compute, sum(seconds)) <= step + 1e-9
    assert step <= compute + sum(seconds) + 1e-9


@given(schedules(), st.floats(1, 3), st.integers(0, 11))
def test_a_slower_transfer_never_makes_a_step_shorter(
    schedule: tuple[list[Transfer], list[float], float], slower: float, place: int
) -> None:
    transfers, seconds, compute = schedule
    after = [long * (slower if number == place else 1) for number, long in enumerate(seconds)]
    assert step_seconds(transfers, after, compute) >= step_seconds(transfers, seconds, compute) - 1e-9


@given(schedules(), st.floats(0, 5))
def test_more_compute_never_makes_a_step_shorter(
    schedule: tuple[list[Transfer], list[float], float], more: float
) -> None:
    transfers, seconds, compute = schedule
    assert step_seconds(transfers, seconds, compute + more) >= step_seconds(transfers, seconds, compute) - 1e-9


@given(schedules())
def test_the_compute_of_a_measured_step_gives_that_step_again(
    schedule: tuple[list[Transfer], list[float], float],
) -> None:
    transfers, seconds, compute = schedule
    step = step_seconds(transfers, seconds, compute)
    found = compute_of(step, transfers, seconds)
    assert found is not None
    assert step_seconds(transfers, seconds, found) == pytest.approx(step, abs=1e-9)


def test_a_step_shorter_than_its_communication_cannot_be() -> None:
    assert compute_of(3.0, [at(1.0)], [4.0]) is None
