"""A data point's error: whose noise it shares, and how far the truth may lie; quantiles are scipy's."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from collbench.judge.between_runs import estimates, points_by_key
from collbench.judge.stats import Variance, reach
from collbench.judge.tiers import Estimate
from collbench.model.operations import Operation
from tests.builders import GIB, gpus, measured, paths, run_of

MIB = 2**20


@pytest.mark.parametrize(
    ("title", "parts", "alpha", "freedom"),
    [
        ("one", [Variance(4e-4, 8, "a")], 0.05, 8),
        ("one, and surer", [Variance(4e-4, 8, "a")], 0.01, 8),
        ("two of one pool share its error", [Variance(1e-4, 8, "a"), Variance(3e-4, 8, "a")], 0.05, 8),
        # Welch and Satterthwaite: 16e-8 / (1e-8 / 8 + 9e-8 / 4) = 6.7368.
        ("two of two pools", [Variance(1e-4, 8, "a"), Variance(3e-4, 4, "b")], 0.05, 16 / (1 / 8 + 9 / 4)),
        ("two of a name and other noise", [Variance(2e-4, 8, "a"), Variance(2e-4, 4, "a")], 0.05, 16 / (4 / 8 + 4 / 4)),
        ("two alike of two pools", [Variance(2e-4, 8, "a"), Variance(2e-4, 8, "b")], 0.05, 16),
        ("one that is known", [Variance(2e-4, 8, "a"), Variance(2e-4, 0, "b")], 0.05, 32),
        ("next to nothing known", [Variance(4e-4, 0.3, "a")], 0.05, 0.5),
        ("nothing known", [Variance(4e-4, 0, "a")], 0.05, 0.5),
    ],
)
def test_how_far_the_truth_may_lie(title: str, parts: Sequence[Variance], alpha: float, freedom: float) -> None:
    from scipy.stats import t  # late: it takes a second

    assert reach(parts, alpha) == pytest.approx(float(t.ppf(1 - alpha / 2, freedom)) * 0.02)


def test_without_variance_there_is_no_doubt_and_with_too_much_a_factor_of_a_million() -> None:
    assert reach([Variance(0.0, 0, "a"), Variance(0.0, 3, "b")], 0.01) == 0.0
    assert reach([Variance(1.0, 0.5, "a")], 1e-6) == pytest.approx(math.log(1e6))


def found(
    *given: tuple[tuple[int, ...], int, int], label_of: dict[tuple[int, int], str] | None = None
) -> list[Estimate]:
    """Return the estimates of copies on these members, of this size, with so many trials that vary."""
    measurements = [
        measured(Operation.CE_WRITE, members, [400 * (1 + 0.001 * (trial % 3)) for trial in range(trials)], size)
        for members, size, trials in given
    ]
    run = run_of(gpus(4), measurements, paths(4, but=label_of))
    return [*estimates(points_by_key(run), run.paths).values()]


def pooled(*given: tuple[tuple[int, ...], int, int], label_of: dict[tuple[int, int], str] | None = None) -> bool:
    """Return whether two data points share their noise."""
    one, other = found(*given, label_of=label_of)
    assert (one.freedom == other.freedom == 0.5 * sum(trials - 1 for _, _, trials in given)) is (
        one.label == other.label
    )
    return one.label == other.label


@pytest.mark.parametrize(
    ("title", "sizes", "trials", "together"),
    [
        ("links of a label at a size", (GIB, GIB), 3, True),
        ("with few trials like sizes too", (GIB, 2**24), 12, True),
        ("not with enough", (GIB, 2**24), 13, False),
        ("from 16 MiB on", (GIB, 2**24 - 4), 3, False),
        ("from 1 MiB to that", (MIB, 2**24 - 4), 3, True),
        ("below 1 MiB", (MIB - 4, MIB), 3, False),
        ("from 64 KiB to that", (2**16, MIB - 4), 3, True),
        ("below 64 KiB", (2**16 - 4, 2**16), 3, False),
        ("down to a word", (8, 2**16 - 4), 3, True),
    ],
)
def test_who_shares_noise(title: str, sizes: tuple[int, int], trials: int, together: bool) -> None:
    assert pooled(((0, 1), sizes[0], trials), ((2, 3), sizes[1], trials)) is together


def test_other_labels_works_and_numbers_of_devices_share_none() -> None:
    assert not pooled(((0, 1), GIB, 3), ((2, 3), GIB, 3), label_of={(2, 3): "SYS"})
    run = run_of(
        gpus(4),
        [
            measured(operation, members, [300.0, 301.0, 302.0])
            for operation in (Operation.ALLREDUCE, Operation.BROADCAST)
            for members in ((0, 1), (0, 1, 2), (0, 1, 2, 3))
        ],
    )
    assert len({one.label for one in estimates(points_by_key(run), run.paths).values()}) == 6
