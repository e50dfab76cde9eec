"""What a ranking, a fit over sizes and a share of busy host links summarize."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.choose.fitness import broken_pairs
from collbench.judge.outcome import AbsenceKind, outcome
from collbench.judge.physics import Check
from collbench.judge.summary import LinkFit, RankedWork, fit_links, host_shares, rank_summary
from collbench.model.errors import Cause, Failure, FailureKind
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import DataPoint, Measurement, Run, Sample, StopReason
from collbench.report import sentences
from collbench.report.rows import rows
from tests.builders import GIB, gpus, in_words, measured, run_of

MIB = 2**20
SUM = Operation.ALLREDUCE


def sums(sizes: dict[int, int]) -> list[Measurement]:
    """Return all-reduces at each size on that many of the pairs, the first ones."""
    pairs = list(combinations(range(4), 2))
    return [measured(SUM, pair, 300.0, size) for size, some in sizes.items() for pair in pairs[:some]]


def only(run: Run, size: int | None = None) -> RankedWork:
    (ranked,) = rank_summary(run, SUM, size)
    return ranked


@pytest.mark.parametrize(
    ("title", "sizes", "asked", "ranked", "incomplete"),
    [
        ("the largest and the smallest", {8: 6, MIB: 6, GIB: 6}, None, [GIB, 8], ()),
        ("no small one: no latency", {MIB: 6, GIB: 6}, None, [GIB], ()),
        ("one size", {8: 6}, None, [8], ()),
        ("the size that was asked for", {8: 6, MIB: 6, GIB: 6}, MIB, [MIB], ()),
        ("a size that nobody measured", {8: 6}, MIB, [], ()),
        ("a largest size that only two pairs have", {8: 6, MIB: 6, GIB: 2}, None, [MIB, 8], ((GIB, 2),)),
        ("a smallest size that one pair has", {8: 1, 64: 6, GIB: 6}, None, [GIB, 64], ((8, 1),)),
        ("asked for although only two pairs have it", {8: 6, GIB: 2}, GIB, [GIB], ()),
    ],
)
def test_which_sizes_are_ranked(
    title: str, sizes: dict[int, int], asked: int | None, ranked: list[int], incomplete: tuple[tuple[int, int], ...]
) -> None:
    found = only(run_of(gpus(4), sums(sizes)), asked)
    assert [ranking.size_bytes for ranking in found.rankings] == ranked
    assert found.incomplete == incomplete


def test_what_lacks_is_named_with_its_reason() -> None:
    points = sums({GIB: 4})
    points.append(
        Measurement(DataPoint(SUM, (1, 3), GIB), stop=StopReason.FAILED, failure=in_words("hang: no answer within 5 s"))
    )
    run = run_of(gpus(4), points)
    assert [(lack.members, sentences.absence(lack.absence, run)) for lack in only(run).missing] == [
        ((1, 3), "hang: no answer within 5 s"),
        ((2, 3), "not measured"),
    ]
    run.complete = False
    assert only(run).missing[-1].absence.kind is AbsenceKind.NOT_REACHED


COPY = Work(Operation.CE_WRITE)
SIZES = (8, 4**5, 4**8, 4**10, 4**12, 4**15)


def curve(
    seconds: Callable[[int, int], float],
    sizes: Sequence[int] = SIZES,
    work: Work = COPY,
    trials: int = 5,
) -> list[Measurement]:
    """Return a data point of each size, whose trials take `seconds(size, trial)`."""
    return [
        Measurement(
            DataPoint(work.operation, (0, 1), size, work.variant),
            [Sample((seconds(size, trial),) * 2, 1, concurrent=False) for trial in range(trials)],
        )
        for size in sizes
    ]


def fitted(points: Sequence[Measurement], work: Work = COPY) -> LinkFit:
    (found,), unfitted = fit_links(run_of(gpus(4), points), work)
    assert not unfitted
    return found


@given(st.floats(0.5, 50), st.floats(5, 500))
def test_a_line_gives_back_what_made_it(latency_us: float, gbs: float) -> None:
    fit = fitted(curve(lambda size, _trial: latency_us * 1e-6 + size / gbs / 1e9))
    assert fit.latency_us == pytest.approx((latency_us,) * 3, rel=1e-4)
    assert fit.gbs == pytest.approx((gbs,) * 3, rel=1e-4)
    assert fit.half_bytes[1] == pytest.approx(latency_us * gbs * 1000, rel=1e-3)  # 1 µs at 1 GB/s are 1000 bytes
    assert fit.misfit < 1e-4


def test_the_intervals_hold_the_truth_under_noise() -> None:
    rng = np.random.default_rng(4)
    noise = {(size, trial): rng.lognormal(0, 0.01) for size in SIZES for trial in range(9)}
    fit = fitted(curve(lambda size, trial: (3e-6 + size / 250e9) * noise[size, trial], trials=9))
    for low, middle, high, truth in ((*fit.latency_us, 3.0), (*fit.gbs, 250.0), (*fit.half_bytes, 750_000)):
        assert low < middle < high
        assert low < truth < high
        assert (high - low) / truth < 0.05


def test_one_size_that_stands_out_moves_little_and_is_reported() -> None:
    """A step between two protocols: at 64 KiB twice the time."""
    fit = fitted(curve(lambda size, _trial: (2e-6 + size / 100e9) * (2 if size == 4**8 else 1)))
    assert fit.latency_us[1] == pytest.approx(2.0, rel=0.05)
    assert fit.gbs[1] == pytest.approx(100.0, rel=0.05)
    assert fit.misfit == pytest.approx(0.5, abs=0.03)


def test_a_wild_trial_moves_nothing() -> None:
    fit = fitted(curve(lambda size, trial: (2e-6 + size / 100e9) * (30 if trial == 2 else 1)))
    assert fit.gbs[1] == pytest.approx(100.0, rel=1e-4)


@pytest.mark.parametrize(
    ("points", "why"),
    [
        (curve(lambda s, _v: s * 1e-9, SIZES[:3]), "3 of the 4 sizes that a fit needs"),
        (curve(lambda s, _v: s * 1e-9, (1024, 2048, 4096, 8192)), "sizes span a factor of 8, a fit needs 16"),
        (curve(lambda s, _v: s * 1e-9, trials=1), "a size has one trial; an interval needs two"),
        (curve(lambda s, _v: 1 / s), "time does not grow with size, so there is no bandwidth"),
    ],
)
def test_what_shows_no_line_is_refused_with_the_reason(points: list[Measurement], why: str) -> None:
    assert fit_links(run_of(gpus(4), points), COPY) == ((), {(0, 1): why})


def test_bandwidth_is_busbw_of_a_pair_and_all_that_both_ways_carry() -> None:
    sums = Work(Operation.ALLREDUCE)
    assert fitted(curve(lambda s, _v: 1e-6 + s / 100e9, work=sums), sums).gbs[1] == pytest.approx(100, rel=1e-4)
    both = Work(Operation.CE_WRITE, Variant.BOTH_WAYS)
    assert fitted(curve(lambda s, _v: 1e-6 + s / 100e9, work=both), both).gbs[1] == pytest.approx(200, rel=1e-4)


IN, OUT = Operation.H2D_CE, Operation.D2H_CE


def host(
    operation: Operation,
    variant: Variant,
    members: tuple[int, ...],
    gbs: float,
    size: int = GIB,
    node: int | None = None,
) -> Measurement:
    found = measured(operation, members, gbs, size)
    found.point = replace(found.point, variant=variant, numa_node=node)
    return found


def test_all_devices_are_compared_with_their_isolated_copies_in_the_same_direction() -> None:
    points = [host(IN, Variant.HOST, (0,), 50), host(IN, Variant.HOST, (1,), 40), host(OUT, Variant.HOST, (0,), 25)]
    points += [host(IN, Variant.HOST_ALL, (0, 1), 25), host(IN, Variant.HOST_ALL, (1, 0), 30)]
    points += [host(OUT, Variant.HOST_ALL, (0, 1), 20), host(OUT, Variant.HOST_ALL, (1, 0), 20)]  # 1 never isolated
    points += [host(IN, Variant.HOST_BOTH_WAYS, (0,), 20)]  # of one device
    assert host_shares(run_of(gpus(2), points)) == {Work(IN, Variant.HOST_ALL): pytest.approx(55 / 90)}


def test_the_largest_size_is_compared_with_its_own() -> None:
    points = [host(IN, Variant.HOST, (0,), 50, size) for size in (MIB, GIB)]
    points += [host(IN, Variant.HOST_ALL, (0, 1), gbs, size) for size, gbs in ((MIB, 10), (GIB, 45))]
    assert host_shares(run_of(gpus(2), points)) == {Work(IN, Variant.HOST_ALL): pytest.approx(0.9)}


def test_each_node_has_its_own_and_none_is_each_devices_own() -> None:
    devices = tuple(replace(gpu, numa_node=node) for gpu, node in zip(gpus(2), (0, 1), strict=True))
    points = [host(IN, Variant.HOST, (gpu,), gbs, node=node)
              for gpu, node, gbs in ((0, 0, 50), (0, 1, 40), (1, 0, 20), (1, 1, 60))]  # fmt: skip
    points += [host(IN, Variant.HOST_ALL, members, 15, node=node) for members in ((0, 1), (1, 0)) for node in (None, 0)]
    assert host_shares(run_of(devices, points)) == {
        Work(IN, Variant.HOST_ALL): pytest.approx(30 / 110),
        Work(IN, Variant.HOST_ALL, 0): pytest.approx(30 / 70),
    }


@pytest.mark.parametrize(
    ("title", "operation", "variant", "members", "size", "limit"),
    [
        # PCIe of generation 5 carries 63 GB/s each way, whoever else copies; an H200's memory has 4,800.
        ("both ways", IN, Variant.HOST_BOTH_WAYS, (0,), GIB, 63.0),
        ("all at once", OUT, Variant.HOST_ALL, (1, 0), GIB, 63.0),
        ("all in both directions", OUT, Variant.HOST_ALL_BOTH_WAYS, (0, 1), GIB, 63.0),
        ("a local copy reads and writes", Operation.CE_WRITE, Variant.LOCAL, (0,), GIB, 2400.0),
        ("what a cache may hold has no limit", Operation.CE_WRITE, Variant.LOCAL, (0,), 64 * MIB, None),
    ],
)
def test_what_hardware_carries(
    title: str, operation: Operation, variant: Variant, members: tuple[int, ...], size: int, limit: float | None
) -> None:
    devices = tuple(
        replace(gpu, name="NVIDIA H200", pcie_generation=5, pcie_width=16, memory_bytes=141 * GIB) for gpu in gpus(2)
    )
    found = host(operation, variant, members, 10, size)
    capacity = Check(run_of(devices, [found])).limit(found.point, 10.0)
    assert (capacity.gbs if capacity else None) == limit, title


def test_a_failure_of_all_at_once_is_that_of_the_device_that_was_timed() -> None:
    failed = Failure(FailureKind.ERROR, Cause.REFUSED)
    points = [host(IN, Variant.HOST_ALL, members, 25) for members in ((0, 1), (1, 0))]
    points[1].samples, points[1].failure = [], failed
    run = run_of(gpus(2), points)
    assert outcome(run).device_sets == ((1,),)
    assert broken_pairs(run) == set()
    assert rows(run)[0]["label"] is None  # two devices, and no link
