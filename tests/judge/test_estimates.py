"""When two links differ and when they tie, on estimates made by hand; quantiles are scipy's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from collbench.judge.stats import OwnNoise
from collbench.judge.tiers import (
    Estimate,
    differs,
    estimates_of,
    labels_of,
    margin,
    points_of,
    ties,
    tolerance,
)
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import Members, Path
from tests.builders import GIB, gpus, measured, run_of

MIB = 2**20


def link(
    trials: Sequence[float],
    error: float = 0.01,
    freedom: float = 8.0,
    label: str = "NV18",
    cautious_error: float | None = None,
) -> Estimate:
    """Return a link's estimate from the logs of its trials, ascending."""
    middle = trials[len(trials) // 2]
    return Estimate(label, tuple(trials), middle, error, error if cautious_error is None else cautious_error, freedom)


def around(middle: float, count: int = 5) -> list[float]:
    """Return odd trials that hardly vary."""
    return [middle + 1e-6 * (step - count // 2) for step in range(count)]


@pytest.mark.parametrize(("size", "delta"), [(8, 0.06), (MIB - 1, 0.06), (MIB, 0.02), (GIB, 0.02)])
def test_what_changes_nobodys_decision(size: int, delta: float) -> None:
    assert tolerance(size) == delta


@pytest.mark.parametrize(
    ("trials", "bounds"),
    [([1.0], (1, 1)), ([1.0, 2, 3, 4, 5, 6], (1, 6)), ([1.0, 2, 3, 4, 5, 6, 7], (2, 6)), ([*range(9)], (1, 7))],
)
def test_from_seven_trials_on_one_wild_one_on_either_side_is_passed_over(
    trials: list[float], bounds: tuple[float, float]
) -> None:
    assert link(trials).bounds == bounds


def test_points_are_those_of_the_work_at_the_size_on_two_devices_or_of_the_host_on_one() -> None:
    host = measured(Operation.H2D_CE, (1,), 50.0)
    host.point = replace(host.point, variant=Variant.HOST)
    wanted = measured(Operation.ALLREDUCE, (0, 1), 300.0)
    others = [
        measured(Operation.ALLREDUCE, (0, 1, 2), 300.0),
        measured(Operation.ALLREDUCE, (1, 2), 300.0, MIB),
        measured(Operation.BROADCAST, (0, 2), 300.0),
        measured(Operation.ALLREDUCE, (0, 2), [], GIB),
    ]
    run = run_of(gpus(3), [wanted, host, *others])
    assert points_of(run, Work(Operation.ALLREDUCE), GIB) == {(0, 1): wanted}
    assert points_of(run, Work(Operation.H2D_CE, Variant.HOST), GIB) == {(1,): host}


def test_a_link_has_its_paths_label_either_way() -> None:
    run = run_of(gpus(3), [], [Path((0, 1), "NV18")])
    found = labels_of(run, [(0, 1), (1, 0), (2,), (1, 2)])
    assert found == {(0, 1): "NV18", (1, 0): "NV18", (2,): "host", (1, 2): "?"}


# The median difference of two of n normals over σ √2 is 0.6745; the deviation of their median [Sarhan & Greenberg].
TWO_OF = math.sqrt(2) * 0.67449
MEDIANS = {3: 0.6698, 5: 0.5356}


def test_an_estimate_is_the_median_with_the_noise_of_all_links_of_its_label() -> None:
    """Of these differences, 1 to 4 hundredths in one link and twice that in the other, the median is 0.04."""
    logs: dict[Members, list[float]] = {
        (0, 1): [5.04, 5.0, 5.02, 5.01, 5.03],
        (0, 2): [4.0, 4.02, 4.04, 4.06, 4.08],
        (1, 2): [1.0, 1.5, 2.0],
    }
    found = estimates_of(logs, {members: "SYS" if members == (1, 2) else "NV18" for members in logs})
    differences = sorted([0.01] * 4 + [0.02] * 3 + [0.03] * 2 + [0.04] + [0.02] * 4 + [0.04] * 3 + [0.06] * 2 + [0.08])
    noise = (differences[9] + differences[10]) / 2 / TWO_OF
    first, second, other = (found[members] for members in logs)
    assert (first.trials, first.middle, second.middle) == ((5.0, 5.01, 5.02, 5.03, 5.04), 5.02, 4.04)
    assert [first.error, second.error] == pytest.approx([noise * MEDIANS[5]] * 2, rel=1e-3)
    assert [first.cautious_error, second.cautious_error] == [first.error, second.error]
    assert other.error == pytest.approx(0.5 / TWO_OF * MEDIANS[3], rel=1e-3)
    # σ̂ is as sure as a standard deviation of half as many: (4 + 4) / 2, and 2 / 2.
    assert [first.freedom, second.freedom, other.freedom] == [4.0, 4.0, 1.0]


@pytest.mark.parametrize(("factor", "own"), [(2.4, False), (2.5, False), (2.6, True)])
def test_a_link_much_noisier_than_its_kind_is_held_to_its_own_noise(factor: float, own: bool) -> None:
    calm = [1.0, 1.25, 1.5]  # multiples of powers of two, so that 2.5 times is exactly that
    logs: dict[Members, list[float]] = {(0, index): calm for index in range(1, 10)}
    logs[1, 2] = [1 + factor * (trial - 1) for trial in calm]
    found = estimates_of(logs, dict.fromkeys(logs, "NV18"))
    assert found[0, 1].cautious_error == found[0, 1].error == found[1, 2].error
    assert found[1, 2].cautious_error == pytest.approx(found[1, 2].error * (factor if own else 1))


@pytest.mark.parametrize(
    ("title", "a", "b", "count", "freedom", "level"),
    [
        ("of one label", link(around(1), 0.01, 8), link(around(1), 0.02, 8), 2, 8, 0.95),
        ("of many links", link(around(1), 0.01, 8), link(around(1), 0.02, 8), 6, 8, 0.95),
        ("few trials have to be surer", link(around(1), 0.01, 8), link(around(1, 3), 0.02, 8), 2, 8, 0.99),
        ("four are few", link(around(1), 0.01, 8), link([1.0] * 4, 0.02, 8), 2, 8, 0.99),
        ("whichever has few", link(around(1, 3), 0.01, 8), link(around(1), 0.02, 8), 6, 8, 0.99),
        # Welch and Satterthwaite: (1e-4 + 4e-4)² / (1e-8 / 8 + 16e-8 / 4) = 6.06; of 23.7, 23.
        ("of two labels", link(around(1), 0.01, 8), link(around(1), 0.02, 4, "SYS"), 2, 6.0, 0.95),
        # (1e-4 + 4e-4)² / (1e-8 / 90 + 16e-8 / 2) = 3.12
        ("one by its own noise", link(around(1), 0.01, 90), link(around(1), 0.02, 2), 2, 3.1, 0.95),
        ("the other way round", link(around(1), 0.02, 4), link(around(1), 0.01, 8, "SYS"), 2, 6.0, 0.95),
        ("of one label, whole", link(around(1), 0.01, 23.7), link(around(1), 0.01, 23.7), 2, 23, 0.95),
        ("two figures of it", link(around(1), 0.01, 467), link(around(1), 0.01, 467), 2, 460, 0.95),
        ("or a tenth", link(around(1), 0.01, 6.66), link(around(1), 0.01, 6.66), 2, 6.6, 0.95),
        ("however few they are", link(around(1), 0.01, 1.19), link(around(1), 0.01, 1.19), 2, 1.1, 0.95),
        ("one is enough", link(around(1), 0.01, 1), link(around(1), 0.01, 1), 2, 1, 0.95),
        ("less than one is next to nothing", link(around(1), 0.01, 0.9), link(around(1), 0.01, 0.9), 2, 0.5, 0.95),
        ("nothing too", link(around(1), 0.01, 0), link(around(1), 0.01, 0), 2, 0.5, 0.95),
        ("one that knows nothing", link(around(1), 0.01, 0), link(around(1), 0.02, 9, "SYS"), 2, 14, 0.95),
        ("two that know nothing", link(around(1), 0.01, 0), link(around(1), 0.02, 0, "SYS"), 2, 0.5, 0.95),
    ],
)
def test_how_far_apart_equals_may_look(
    title: str, a: Estimate, b: Estimate, count: int, freedom: float, level: float
) -> None:
    if count == 2:
        from scipy.stats import t  # late: it takes a second

        quantile = float(t.ppf((1 + level) / 2, freedom))
    else:
        from scipy.stats import studentized_range  # late: it takes a second

        quantile = float(studentized_range.ppf(level, count, freedom)) / math.sqrt(2)
    assert margin(a, b, count) == pytest.approx(quantile * math.hypot(a.error, b.error), rel=3e-3)


SURE = (0.001, 100.0)  # error and degrees of freedom: of two such links the margin is 0.0028
WILD = [-0.5, -0.4, -0.3, -0.1, 0.0, 0.0, 0.001]


@pytest.mark.parametrize(
    ("title", "top", "other", "is_slower"),
    [
        ("far apart", link(around(0), *SURE), link(around(-0.03), *SURE), True),
        ("beyond δ, within the margin", link(around(0), *SURE), link(around(-0.0227), *SURE), False),
        ("just beyond both", link(around(0), *SURE), link(around(-0.0229), *SURE), True),
        ("within δ", link(around(0), 0.0, 100.0), link(around(-0.0199), 0.0, 100.0), False),
        ("the faster one is not", link(around(-0.03), *SURE), link(around(0), *SURE), False),
        ("three trials screen", link(around(0, 3), *SURE), link(around(-0.03, 3), *SURE), True),
        ("two show no noise", link(around(0, 3), *SURE), link(around(-0.3, 2), *SURE), False),
        ("nor do two of the faster", link(around(0, 2), *SURE), link(around(-0.3, 3), *SURE), False),
        ("its own noise", link(around(0), *SURE), link(around(-0.03), 0.001, 100.0, cautious_error=0.02), False),
        (
            "not that of the faster",
            link(around(0), 0.001, 100.0, cautious_error=0.02),
            link(around(-0.03), *SURE),
            True,
        ),
        (
            "unless its trials show it",
            replace(link(around(0), *SURE), own_noise=OwnNoise(4.0, 4)),
            link(around(-0.03), *SURE),
            False,
        ),
        (
            "trials may resemble those before",
            link(around(0), *SURE),
            replace(link(around(-0.027), *SURE), doubt=10),
            False,
        ),
        ("the best one's, too", replace(link(around(0), *SURE), doubt=10), link(around(-0.027), *SURE), False),
        ("further apart than that", link(around(0), *SURE), replace(link(around(-0.029), *SURE), doubt=10), True),
        ("a trial as fast", link(around(0), *SURE), link([-0.1, -0.1, -0.1, -0.1, -0.01], *SURE), False),
        ("all trials slower", link(around(0), *SURE), link([-0.1, -0.1, -0.1, -0.1, -0.03], *SURE), True),
        ("a trial of the faster as slow", link([-0.09, 0, 0, 0, 0], *SURE), link(around(-0.1), *SURE), False),
        ("none of the faster as slow", link([-0.07, 0, 0, 0, 0], *SURE), link(around(-0.1), *SURE), True),
        ("a trial at δ", link([0.0] * 5, 0.0, 100.0), link([-0.1, -0.1, -0.1, -0.1, -0.02], 0.0, 100.0), False),
        ("of the faster at δ", link([-0.02, 0, 0, 0, 0], 0.0, 100.0), link([-0.04] * 5, 0.0, 100.0), False),
        ("two wild trials of seven", link(around(0, 7), *SURE), link(WILD, *SURE), False),
    ],
)
def test_when_a_link_is_slower_for_certain(title: str, top: Estimate, other: Estimate, is_slower: bool) -> None:
    assert differs(top, other, 2, 0.02) is is_slower


# Student's t for 95% and the 20 degrees of freedom of their label is 2.0860, so of two errors of 0.005 the interval is
# ±0.0148.
@pytest.mark.parametrize(
    ("title", "a", "b", "tied"),
    [
        ("near", link(around(0), 0.005, 20), link(around(-0.0052), 0.005, 20), True),
        ("near, the other way", link(around(-0.0052), 0.005, 20), link(around(0), 0.005, 20), True),
        ("its interval reaches beyond δ", link(around(0), 0.005, 20), link(around(-0.0053), 0.005, 20), False),
        ("equal but noisy", link(around(0), 0.01, 20), link(around(0), 0.01, 20), False),
        ("exactly δ apart", link([0.0] * 5, 0.0, 20), link([-0.02] * 5, 0.0, 20), True),
        ("whatever their rate", link(around(5), 0.0, 20), link(around(5.01), 0.0, 20), True),
        ("two trials", link(around(0), 0.0, 20), link(around(0, 2), 0.0, 20), False),
        ("two trials of the first", link(around(0, 2), 0.0, 20), link(around(0), 0.0, 20), False),
        ("three", link(around(0, 3), 0.0, 20), link(around(0, 3), 0.0, 20), True),
    ],
)
def test_when_two_links_are_equal(title: str, a: Estimate, b: Estimate, tied: bool) -> None:
    assert ties(a, b, 0.02) is tied


def test_a_link_ties_with_itself_whatever_its_noise() -> None:
    only = link([0.0], 1.0, 0.0)
    assert ties(only, only, 0.02)
