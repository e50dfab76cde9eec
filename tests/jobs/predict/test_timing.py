"""Times of collectives that were not measured, from what was: against the fabric's own, and recorded H200s."""

from itertools import combinations
from pathlib import Path as File

import pytest

from collbench.jobs.predict.assumptions import BeyondSizes, LikeOperation, LikePair, LikeSet
from collbench.jobs.predict.page import of_times
from collbench.jobs.predict.predict import Machine
from collbench.jobs.predict.timing import Timings, assumed_of, gather
from collbench.judge.stats import summarize
from collbench.model.errors import UsageError
from collbench.model.operations import Operation
from collbench.model.run import Measurement, Path, Run
from collbench.runfile import run_file
from tests.builders import gpus, run_of
from tests.jobs.predict.made import MIB, curve, pairs, simulated

AR, AG, RS = Operation.ALLREDUCE, Operation.ALLGATHER, Operation.REDUCESCATTER
H200 = File(__file__).parents[3] / "benchmarks" / "results" / "2026-11-21-4xh200"


def timings(*runs: Run) -> Timings:
    evidence = gather([("a.json", run) for run in runs])
    machine = Machine(evidence)
    return Timings(evidence, machine.band, machine.delta, machine.port)


def test_what_was_measured_is_taken_as_it_is() -> None:
    timing = timings(run_of(gpus(2), curve(AR, (0, 1), 100.0))).of(AR, (1, 0))
    assert timing.seconds(MIB) == pytest.approx((5e-6 + MIB / 100e9,) * 3)
    assert timing.assumed is None


@pytest.mark.parametrize(
    ("measured", "asked", "ratio", "assumed"),
    [
        (AR, AG, 0.5, "all-reduce of half the bytes"),
        (AR, RS, 0.5, "all-reduce of half the bytes"),
        (AG, RS, 1, "all-gather of the same bytes"),
        (AG, AR, 2, "all-gather of twice the bytes"),
    ],
)
def test_another_operation_stands_in_by_its_bus_bytes(
    measured: Operation, asked: Operation, ratio: float, assumed: str
) -> None:
    timing = timings(run_of(gpus(3), curve(measured, (0, 1, 2), 100.0))).of(asked, (0, 1, 2))
    assert timing.seconds(16 * MIB)[1] == pytest.approx(5e-6 + ratio * 16 * MIB / 100e9, rel=0.02)
    assert timing.assumed == LikeOperation(measured, ratio)
    assert of_times([timing.assumed], gpus(3)) == f"as long as the measured {assumed}"


def test_the_nearest_operation_stands_in_first() -> None:
    points = [*curve(AR, (0, 1), 1.0), *curve(AG, (0, 1), 100.0)]
    assert timings(run_of(gpus(2), points)).of(RS, (0, 1)).seconds(MIB)[1] == pytest.approx(5e-6 + MIB / 100e9)


def test_a_set_that_is_predicted_alike_lends_its_curve() -> None:
    """All pairs carry the same; three GPUs were measured together."""
    timing = timings(pairs({}, 4), run_of(gpus(4), curve(AR, (0, 1, 2), 60.0))).of(AR, (1, 2, 3))
    assert timing.assumed == LikeSet((0, 1, 2))
    assert timing.seconds(MIB)[1] == pytest.approx(5e-6 + MIB / 60e9)


@pytest.mark.parametrize("operation", [AR, AG, RS])
@pytest.mark.parametrize("fabric", ["nvlink-pairs-2x2", "pcie-4-two-bridges"])
def test_a_ring_by_pairs_brackets_what_the_simulated_machine_takes_together(fabric: str, operation: Operation) -> None:
    """Pairs' all-reduces alone, against the operation on all four GPUs: inside the band, of large messages."""
    together = simulated(fabric, operation, together=True)
    timing = timings(simulated(fabric)).of(operation, (0, 1, 2, 3))
    assert isinstance(timing.assumed, LikePair)
    for found in together.measurements:
        if found.point.size_bytes >= 16 * MIB:
            low, _, high = timing.seconds(found.point.size_bytes)
            assert low * 0.93 <= summarize(found).seconds <= high * 1.07


def test_a_ring_of_four_by_the_pairs_of_recorded_h200s() -> None:
    """Four H200 in one communicator were recorded beside their pairs: large messages within a tenth."""
    recorded = run_file.load(H200 / "allreduce.json")
    four = {m.point.size_bytes: summarize(m).seconds for m in recorded.measured() if len(m.point.members) == 4}
    timing = timings(run_file.load(H200 / "pairs.json")).of(AR, (0, 1, 2, 3))
    large = [size for size in four if size >= 16 * MIB]
    assert large
    assert all(timing.seconds(size)[1] == pytest.approx(four[size], rel=0.25) for size in large)
    assert timing.seconds(2**30)[1] == pytest.approx(four[2**30], rel=0.12)
    for size in large:
        least, _, most = timing.seconds(size)
        assert least < four[size] < most, size


def test_a_slower_pair_never_makes_a_ring_faster() -> None:
    before, after = (timings(pairs({(0, 1): gbs}, 4)).of(AR, (0, 1, 2, 3)).seconds(64 * MIB) for gbs in (100.0, 40.0))
    assert all(a <= b * (1 + 1e-9) for a, b in zip(before, after, strict=True))


def test_what_is_beyond_the_measured_sizes_is_said() -> None:
    timing = timings(run_of(gpus(2), curve(AR, (0, 1), 100.0))).of(AR, (0, 1))
    assert [*assumed_of(timing, [MIB, 8])] == []
    (assumed,) = assumed_of(timing, [MIB, 2**31])
    assert assumed == BeyondSizes(8, 2**30)
    assert of_times([assumed], ()) == "sizes beyond the measured 8 B to 1G by extrapolation of latency and bandwidth"


def through_a_switch(points: list[Measurement], count: int = 4) -> Run:
    """Return a run of H200s, whose ports carry 450 GB/s one way."""
    links = [Path(pair, "NV18", "NODE", 18, 450.0) for pair in combinations(range(count), 2)]
    return run_of(gpus(count), points, links)


@pytest.mark.parametrize("operation", [AR, AG, RS])
@pytest.mark.parametrize(
    ("title", "members"), [("by its pairs", None), ("itself, at small sizes", (0, 1, 2, 3)), ("a pair", (0, 1))]
)
def test_no_time_beats_the_port(title: str, members: tuple[int, ...] | None, operation: Operation) -> None:
    """Small messages that grow by 1 µs a MiB make a line of 1049 GB/s, which no port carries."""
    sets = list(combinations(range(4), 2)) if members is None else [members]
    points = [point for some in sets for point in curve(AR, some, 1049.0, sizes=(2**16, 2**18, MIB))]
    asked = members or (0, 1, 2, 3)
    found = timings(through_a_switch(points)).of(operation, asked).seconds(2**30)
    # A switch may reduce on the way: then each sends an all-reduce's message once, and never less.
    sent = min(1.0, operation.busbw_factor(len(asked)))
    assert min(found) >= sent * 2**30 / 450e9 * (1 - 1e-9)


def test_what_was_measured_stands_though_it_beats_the_port_of_a_ring() -> None:
    """Eight H200s with NVLS reach 480 GB/s busbw: 274 GB/s through each port."""
    everybody = tuple(range(8))
    timing = timings(through_a_switch(curve(AR, everybody, 274.0), 8)).of(AR, everybody)
    assert timing.seconds(2**30) == pytest.approx((5e-6 + 2**30 / 274e9,) * 3)


def test_a_set_with_a_pair_that_nobody_measured_is_not_known() -> None:
    points = [point for pair in combinations(range(4), 2) if pair != (2, 3) for point in curve(AR, pair, 300.0)]
    known = timings(through_a_switch(points))
    assert known.of(AR, (0, 1, 2)).seconds(2**30)[0] >= 4 / 3 * 2**30 / 450e9
    with pytest.raises(UsageError, match="cannot predict all-reduce on GPU0, GPU1, GPU2, GPU3"):
        known.of(AR, (0, 1, 2, 3))


def test_where_nothing_comes_near_it_is_said() -> None:
    run = run_of(gpus(4), curve(AR, (0, 1, 2, 3), 100.0))
    with pytest.raises(
        UsageError, match="cannot predict all-gather on GPU0, GPU1: neither they nor all of their pairs"
    ):
        timings(run).of(AG, (0, 1))
