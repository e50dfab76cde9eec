"""What overlap costs, from raw seconds: factors of the slowest rank, paired by trial; what is a headline."""

from __future__ import annotations

from dataclasses import replace

import pytest

from collbench.choose.freshness import restricted
from collbench.model.errors import UsageError
from collbench.model.operations import Operation, Work
from collbench.model.run import Flag, FlagKind
from collbench.overlaps import view
from collbench.overlaps.results import Compute, ComputeKind, Overlap, OverlapTrial, overlaps_of, parse_compute
from collbench.overlaps.view import answer, spread, strongest, summarize
from tests.builders import gpus, run_of

GEMM, COPY = Compute(ComputeKind.GEMM, 8192), Compute(ComputeKind.MEMORY, 512)


def trial(collective: float, compute: float, drift: float = 1.0) -> OverlapTrial:
    """Return a trial with these factors; the machine is `drift` times as slow as in the others, all of it."""
    return OverlapTrial(
        collective_alone=(0.9e-3 * drift, 1e-3 * drift),
        compute_alone=(2e-3 * drift, 1.5e-3 * drift),
        collective_beside=(collective * 1e-3 * drift, 0.5e-3 * drift),
        compute_beside=(1.9e-3 * drift, compute * 2e-3 * drift),
        beside_calls=(1e-3, 2e-3, 3e-3),
        collective_amount=(0.01 * drift, 0.02 * drift),
        compute_amount=(0.04 * drift, 0.03 * drift),
        together=(0.05 * drift, 0.048 * drift),
        calls=20,
        units=20,
        covered_units=15,
    )


def point(size: int, collective: float, compute: float = 1.2, beside: Compute = GEMM, trials: int = 3) -> Overlap:
    made = [trial(collective, compute, drift) for drift in (1.0, 1.5, 0.7)[:trials]]
    return Overlap(Work(Operation.ALLREDUCE), (0, 1), size, beside, trials=made, wrong=0, wrong_compute=0)


def test_factors_are_the_slowest_ranks_and_paired_by_trial() -> None:
    found = summarize(point(2**20, 4.5, 1.2))
    assert found.collective_factor.value == pytest.approx(4.5)
    assert found.compute_factor.value == pytest.approx(1.2)
    assert found.collective_alone.value == pytest.approx(1e-3)
    assert found.compute_beside.value == pytest.approx(2.4e-3)
    assert found.of_sum.value == pytest.approx(0.05 / 0.06)
    assert found.of_max.value == pytest.approx(0.05 / 0.04)


def test_what_slows_a_whole_trial_widens_its_times_and_not_its_factors() -> None:
    found = summarize(point(2**20, 4.5))
    assert found.collective_factor.half < 1e-6
    assert found.collective_alone.half > 0.1


def noisy(size: int, *factors: float, compute: float = 1.2) -> Overlap:
    """Return a data point whose trials have these factors of the collective."""
    trials = [trial(factor, compute * drift) for factor, drift in zip(factors, (1.0, 0.9, 1.1), strict=False)]
    return replace(point(size, 1.0), trials=trials)


@pytest.mark.parametrize(
    ("title", "points", "headline", "short"),
    [
        (
            "the one that loses most",
            [point(2**20, 4.5), point(2**24, 2.0)],
            "all-reduce of 1M takes 4.5x as long when overlapping gemm:8192; the gemm takes 1.20x",
            "4.5 × as long",
        ),
        (
            "a larger factor whose interval holds 1 is passed over",
            [noisy(2**20, 0.5, 9.0, 30.0), point(2**24, 2.0)],
            "all-reduce of 16M takes 2.0x as long when overlapping gemm:8192; the gemm takes 1.20x",
            "2 × as long",
        ),
        (
            "compute that may lose nothing",
            [noisy(2**20, 4.0, 4.1, 4.2, compute=1.0)],
            "all-reduce of 1M takes 4.1x as long when overlapping gemm:8192; the gemm shows no slowdown",
            "4.1 × as long",
        ),
        (
            "two trials have no interval",
            [point(2**20, 4.5, trials=2)],
            "no slowdown is shown: of each collective's factor, the 95% interval holds 1 or is unknown",
            "no slowdown shown",
        ),
    ],
)
def test_no_factor_is_a_headline_whose_interval_holds_1(
    title: str, points: list[Overlap], headline: str, short: str
) -> None:
    run = run_of(gpus(2), [])
    run.sections["overlaps"] = points
    shown = view.html(run)
    assert (answer(run), shown.short, shown.lines[0]) == (headline, short, headline)


def test_the_strongest_is_the_one_that_loses_most() -> None:
    points = [point(2**24, 1.0, beside=COPY), point(2**24, 1.0), point(2**20, 4.0, beside=COPY)]
    assert strongest(points) is points[2]
    assert strongest([point(1, 1.0, trials=0)]) is None
    assert spread(points[0]) == pytest.approx((1e-3, 3e-3))


@pytest.mark.parametrize(
    ("text", "compute"),
    [
        ("gemm", GEMM),
        ("gemm:8192", GEMM),
        (" GEMM:4096 ", Compute(ComputeKind.GEMM, 4096)),
        ("memory:512", COPY),
    ],
)
def test_words_of_compute_are_read(text: str, compute: Compute) -> None:
    assert parse_compute(text) == compute
    assert parse_compute(str(compute)) == compute


@pytest.mark.parametrize("text", ["", "gem", "gemm:", "gemm:0", "gemm:65537", "gemm:-1", "gemm:8192:1", "gemm:٨"])
def test_other_words_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="compute"):
        parse_compute(text)


def test_a_restricted_run_keeps_overlaps_inside_and_renumbers_them() -> None:
    run = run_of(gpus(4), [])
    inside, across = point(2**20, 2.0), point(2**20, 3.0)
    inside.members, across.members = (3, 2), (0, 2)
    inside.trials[0] = replace(inside.trials[0], flags=(Flag(FlagKind.HOT, (3,), 90),))
    run.sections["overlaps"] = [inside, across]
    (kept,) = overlaps_of(restricted(run, (2, 3)))
    assert kept.members == (1, 0)
    assert kept.trials[0].flags == (Flag(FlagKind.HOT, (1,), 90),)
    assert kept.trials[1:] == inside.trials[1:]
    assert inside.members == (3, 2)
