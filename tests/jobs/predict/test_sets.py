"""The best and the worst set of k, against looking at every set."""

from itertools import combinations

import pytest

from collbench.choose.select import choose
from collbench.jobs.predict.page import compared
from collbench.jobs.predict.predict import Machine
from collbench.jobs.predict.timing import gather
from collbench.model.errors import UsageError
from collbench.model.operations import Operation
from collbench.model.run import Run
from collbench.report import choice_text
from collbench.sim import fabrics
from tests.builders import gpus, measured, run_of
from tests.jobs.predict.made import curve, pairs, simulated
from tests.sim.made import allreduce_busbw

AR = Operation.ALLREDUCE


def machine(*runs: Run) -> Machine:
    return Machine(gather([("a.json", run) for run in runs]))


def nothing(_members: tuple[int, ...]) -> float:
    raise AssertionError("pairs tell")


@pytest.mark.parametrize("k", [2, 3, 4, 5, 6, 7])
def test_on_a_dgx_1v_the_best_is_selects_and_the_worst_is_the_fabrics_own(k: int) -> None:
    """The simulated machine knows each set's true bandwidth; no set may be clearly worse than the one called worst."""
    found = machine(simulated("dgx-1v")).sets(k, nothing)
    assert found.best == choose(simulated("dgx-1v"), k).members
    fabric = fabrics.load("dgx-1v")
    true = {some: allreduce_busbw(fabric, some) for some in combinations(range(8), k)}
    if k == 7:  # all eight sets have four rings
        assert found.worst is None or true[found.worst] == pytest.approx(min(true.values()))
    else:
        assert found.worst is not None
        assert true[found.worst] <= min(true.values()) * 1.02
        assert true[found.best] >= max(true.values()) * 0.98


def test_on_nvlink_pairs_the_worst_two_cross_the_bridges() -> None:
    found = machine(simulated("nvlink-pairs-2x2")).sets(2, nothing)
    assert found.best in ((0, 1), (2, 3))
    assert found.worst in ((0, 2), (0, 3), (1, 2), (1, 3))


def test_behind_nvswitches_there_is_no_worst_set() -> None:
    found = machine(simulated("hgx-h200")).sets(4, nothing)
    assert found.worst is None
    assert "the choice does not affect bandwidth" in compared(found)


def test_all_devices_are_the_one_set() -> None:
    found = machine(simulated("nvlink-pairs-2x2")).sets(4, nothing)
    assert (found.best, found.worst, compared(found)) == (
        (0, 1, 2, 3),
        None,
        "there is one set of 4, so there is nothing to choose",
    )


def test_above_16_devices_a_slow_one_is_in_the_worst_set() -> None:
    run = pairs({(a, b): 10.0 for a, b in combinations(range(20), 2) if 7 in (a, b)}, 20)
    found = machine(run).sets(3, nothing)
    assert found.worst is not None
    assert 7 in found.worst
    assert 7 not in found.best
    assert "heuristic" in compared(found)


def test_without_pairs_the_sets_that_were_measured_are_compared() -> None:
    run = run_of(gpus(4), [*curve(AR, (0, 1, 2), 100.0), *curve(AR, (1, 2, 3), 50.0), *curve(AR, (0, 1, 2, 3), 70.0)])
    found = machine(run).sets(3, lambda members: float(sum(members)))
    assert (found.best, found.worst, compared(found)) == ((0, 1, 2), (1, 2, 3), "of the sets that were measured")


def test_faulty_devices_are_left_out_and_named() -> None:
    """Every pair of GPU2 moved wrong data."""
    run = pairs({}, 4)
    for found in run.measurements:
        if 2 in found.point.members:
            found.wrong = 1
    made = machine(run)
    assert [left.member for left in made.left_out] == [2]
    assert 2 not in made.sets(2, nothing).best
    with pytest.raises(UsageError) as refused:
        made.sets(4, nothing)
    assert choice_text.refusal(refused.value).startswith("cannot predict for 4 of 3 devices without GPU2 (faulty")


@pytest.mark.parametrize(
    ("title", "run", "k", "line"),
    [
        ("more than there are", pairs({}, 3), 4, "cannot predict for 4 of 3 devices: choose 2 to 3"),
        (
            "no pairs, and no run of as many",
            run_of(gpus(4), [measured(AR, (0, 1, 2, 3), 100.0)]),
            3,
            "cannot predict for 3 devices: neither pairs nor a collective on 3 of them was measured",
        ),
    ],
)
def test_what_cannot_be_is_refused(title: str, run: Run, k: int, line: str) -> None:
    with pytest.raises(UsageError) as refused:
        machine(run).sets(k, nothing)
    assert line in choice_text.refusal(refused.value)
