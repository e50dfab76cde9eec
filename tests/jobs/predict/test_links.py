"""Times of collectives from saved runs: measured ones, others against the fabric's own and recorded H200s, refusals."""

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from collbench.choose.select import choose
from collbench.jobs.predict.links import NoEvidence
from collbench.judge.stats import summarize
from collbench.model.errors import UsageError
from collbench.model.operations import Operation, Variant
from collbench.model.run import Run
from collbench.report import choice_text
from collbench.runfile import run_file
from collbench.sim import fabrics
from tests.builders import gpus, in_words, measured, run_of
from tests.jobs.predict.made import MIB, curve, links_of, pairs, simulated
from tests.sim.made import allreduce_busbw

AR, AG, RS = Operation.ALLREDUCE, Operation.ALLGATHER, Operation.REDUCESCATTER
H200 = Path(__file__).parents[3] / "benchmarks" / "results" / "2026-11-21-4xh200"


# What was measured.


def test_what_was_measured_is_taken_as_it_is() -> None:
    price = links_of(run_of(gpus(2), curve(AR, (0, 1), 100.0))).price(AR, MIB, (1, 0))
    assert price.seconds == pytest.approx((5e-6 + MIB / 100e9,) * 3)
    assert price.assumed == ""


def test_curves_of_several_runs_meet_by_identity_not_by_position() -> None:
    """The second run saw GPU3 and GPU1 alone, in this order: its positions are others."""
    every = pairs({}, 4)
    found = links_of(run_of([gpus(4)[3], gpus(4)[1]], curve(AG, (0, 1), 50.0)), every)
    assert found.run is every
    assert found.price(AG, MIB, (1, 3)).seconds[1] == pytest.approx(5e-6 + MIB / 50e9)
    assert found.price(AG, MIB, (1, 3)).assumed == ""


def test_a_size_measured_twice_is_their_median() -> None:
    one, other = (run_of(gpus(2), [measured(AR, (0, 1), gbs, MIB)]) for gbs in (100.0, 50.0))
    seconds = links_of(one, other).price(AR, MIB, (0, 1)).seconds[1]
    assert seconds == pytest.approx((MIB / 100e9 + MIB / 50e9) / 2)


def test_in_place_counts_only_where_out_of_place_is_missing() -> None:
    plain, small = measured(AR, (0, 1), 100.0, MIB), measured(AR, (0, 1), 1.0, 1024)
    twice, alone = (replace(point.point, variant=Variant.IN_PLACE) for point in (plain, small))
    slower = replace(measured(AR, (0, 1), 10.0, MIB), point=twice)
    found = links_of(run_of(gpus(2), [plain, slower, replace(small, point=alone)]))
    seconds = [found.price(AR, size, (0, 1)).seconds[1] for size in (1024, MIB)]
    assert seconds == pytest.approx([1024e-9, MIB / 100e9])


def test_wrong_and_failed_points_say_nothing() -> None:
    wrong = replace(measured(AR, (0, 1), 1.0), wrong=3)
    failed = replace(measured(AR, (0, 2), 1.0), failure=in_words("hang"))
    found = links_of(run_of(gpus(3), [wrong, failed, measured(AR, (1, 2), 1.0)]))
    assert found.price(AR, 2**30, (1, 2)).assumed == ""
    for members in ((0, 1), (0, 2)):
        with pytest.raises(NoEvidence):
            found.price(AR, 2**30, members)


# What was not measured, from what was.


@pytest.mark.parametrize(("known", "asked", "ratio"), [(AR, AG, 0.5), (AR, RS, 0.5), (AG, RS, 1), (AG, AR, 2)])
def test_another_operation_stands_in_by_its_bus_bytes(known: Operation, asked: Operation, ratio: float) -> None:
    price = links_of(run_of(gpus(3), curve(known, (0, 1, 2), 100.0))).price(asked, 16 * MIB, (0, 1, 2))
    assert price.seconds[1] == pytest.approx(5e-6 + ratio * 16 * MIB / 100e9, rel=0.02)
    assert price.assumed == f"as {known.collective.title} of as many bus bytes"


def test_the_nearest_operation_stands_in_first() -> None:
    points = [*curve(AR, (0, 1), 1.0), *curve(AG, (0, 1), 100.0)]
    price = links_of(run_of(gpus(2), points)).price(RS, MIB, (0, 1))
    assert price.seconds[1] == pytest.approx(5e-6 + MIB / 100e9)


def test_a_set_that_is_predicted_alike_lends_its_curve() -> None:
    """All pairs carry the same; three GPUs were measured together."""
    price = links_of(pairs({}, 4), run_of(gpus(4), curve(AR, (0, 1, 2), 60.0))).price(AR, MIB, (1, 2, 3))
    assert price.seconds[1] == pytest.approx(5e-6 + MIB / 60e9)
    assert price.assumed == "as on GPU0, GPU1, GPU2"


@pytest.mark.parametrize("operation", [AR, AG, RS])
@pytest.mark.parametrize("fabric", ["nvlink-pairs-2x2", "pcie-4-two-bridges"])
def test_a_ring_by_pairs_brackets_what_the_simulated_machine_takes_together(fabric: str, operation: Operation) -> None:
    """Pairs' all-reduces alone, against the operation on all four GPUs: inside the band, of large messages."""
    known = links_of(simulated(fabric))
    for found in simulated(fabric, operation, together=True).measurements:
        if found.point.size_bytes >= 16 * MIB:
            price = known.price(operation, found.point.size_bytes, (0, 1, 2, 3))
            assert price.assumed.startswith("a ring at ")
            assert price.seconds[0] * 0.93 <= summarize(found).seconds <= price.seconds[2] * 1.07


def test_a_ring_of_four_by_the_pairs_of_recorded_h200s() -> None:
    """Four H200 in one communicator were recorded beside their pairs."""
    recorded = run_file.load(H200 / "allreduce.json")
    four = {m.point.size_bytes: summarize(m).seconds for m in recorded.measured() if len(m.point.members) == 4}
    known = links_of(run_file.load(H200 / "pairs.json"))
    prices = {size: known.price(AR, size, (0, 1, 2, 3)).seconds for size in four if size >= 16 * MIB}
    assert prices
    for size, (least, middle, most) in prices.items():
        assert middle == pytest.approx(four[size], rel=0.25)
        assert least < four[size] < most, size
    assert prices[2**30][1] == pytest.approx(four[2**30], rel=0.12)


def test_a_slower_pair_never_makes_a_ring_faster() -> None:
    before, after = (
        links_of(pairs({(0, 1): gbs}, 4)).price(AR, 64 * MIB, (0, 1, 2, 3)).seconds for gbs in (100.0, 40.0)
    )
    assert all(a <= b * (1 + 1e-9) for a, b in zip(before, after, strict=True))


def test_a_size_beyond_the_measured_ones_is_said_and_one_far_beyond_refused() -> None:
    """An 8 B run once said that a step of 7B parameters communicates for 177 s."""
    found = links_of(run_of(gpus(2), curve(AR, (0, 1), 100.0, sizes=(2**16, 2**18, MIB))))
    price = found.price(AR, 4 * MIB, (0, 1))
    assert price.assumed == "sizes beyond 64K to 1M: by latency and bandwidth"
    assert price.seconds[1] == pytest.approx(5e-6 + 4 * MIB / 100e9, rel=0.05)
    for size in (16 * MIB, 2**10):
        with pytest.raises(NoEvidence, match="is too far from the measured sizes, 64K to 1M"):
            found.price(AR, size, (0, 1))


def test_a_set_with_a_pair_that_nobody_measured_is_not_known() -> None:
    points = [point for pair in combinations(range(4), 2) if pair != (2, 3) for point in curve(AR, pair, 300.0)]
    known = links_of(run_of(gpus(4), points))
    with pytest.raises(NoEvidence, match="cannot predict all-reduce on GPU0, GPU1, GPU2, GPU3: neither they nor all"):
        known.price(AR, MIB, (0, 1, 2, 3))


# The best and the worst set of k.


@pytest.mark.parametrize("k", [2, 3, 4, 5, 6, 7])
def test_on_a_dgx_1v_the_best_is_selects_and_the_worst_is_the_fabrics_own(k: int) -> None:
    """The simulated machine knows each set's true bandwidth; no set may be clearly worse than the one called worst."""
    found = links_of(simulated("dgx-1v")).sets(k)
    assert found.best == choose(simulated("dgx-1v"), k).members
    fabric = fabrics.load("dgx-1v")
    true = {some: allreduce_busbw(fabric, some) for some in combinations(range(8), k)}
    if k == 7:  # all eight sets have four rings
        assert found.worst is None or true[found.worst] == pytest.approx(min(true.values()))
    else:
        assert found.worst is not None
        assert true[found.worst] <= min(true.values()) * 1.02
        assert true[found.best] >= max(true.values()) * 0.98


@pytest.mark.parametrize(
    ("title", "run", "k", "note"),
    [
        ("behind NVSwitches", simulated("hgx-h200"), 4, "the choice does not affect bandwidth"),
        ("all devices", simulated("nvlink-pairs-2x2"), 4, "there is one set"),
        ("twenty devices", pairs({(0, 1): 10.0}, 20), 3, "too many sets to find the worst: more than 16 devices"),
        ("one measured set", run_of(gpus(4), curve(AR, (0, 1, 2), 100.0)), 3, "the one set that was measured"),
    ],
)
def test_where_no_set_is_known_to_be_worse_the_reason_is_said(title: str, run: Run, k: int, note: str) -> None:
    found = links_of(run).sets(k)
    assert found.worst is None
    assert note in found.note


def test_without_pairs_the_sets_that_were_measured_are_compared() -> None:
    run = run_of(gpus(4), [*curve(AR, (0, 1, 2), 100.0), *curve(AR, (1, 2, 3), 50.0), *curve(AR, (0, 1, 2, 3), 70.0)])
    found = links_of(run).sets(3)
    assert (found.best, found.worst) == ((0, 1, 2), (1, 2, 3))


def test_faulty_devices_are_left_out_and_named() -> None:
    """Every pair of GPU2 moved wrong data."""
    run = pairs({}, 4)
    for found in run.measurements:
        if 2 in found.point.members:
            found.wrong = 1
    made = links_of(run)
    assert 2 not in made.sets(2).best
    with pytest.raises(UsageError) as refused:
        made.sets(4)
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
        links_of(run).sets(k)
    assert line in choice_text.refusal(refused.value)


# Runs that do not belong together.


def with_settings(run: Run, **environment: str) -> Run:
    return replace(run, settings=replace(run.settings, environment=environment))


@pytest.mark.parametrize(
    ("title", "first", "second", "line"),
    [
        (
            "copies alone",
            run_of(gpus(2), [measured(Operation.CE_WRITE, (0, 1), 300.0)]),
            run_of(gpus(2), []),
            "0.json, 1.json: no all-reduce, all-gather or reduce-scatter was measured: run 'collbench pairs'",
        ),
        (
            "simulated and real",
            pairs({}, 3),
            replace(pairs({}, 2), backend="sim"),
            "0.json and 1.json are of different machines (cuda and sim)",
        ),
        (
            "another machine",
            pairs({}, 3),
            replace(pairs({}, 2), devices=tuple(replace(gpu, uuid=f"GPU-x{gpu.index}") for gpu in gpus(2))),
            "1.json has GPU0 (GPU-x0), which 0.json lacks: give runs of one machine",
        ),
        (
            "one without P2P",
            with_settings(pairs({}, 3), NCCL_VERSION="2.28"),
            with_settings(pairs({}, 2), NCCL_P2P_DISABLE="1"),
            "different settings (NCCL_P2P_DISABLE= and NCCL_P2P_DISABLE=1): predict from each separately",
        ),
    ],
)
def test_runs_that_do_not_belong_together_are_refused(title: str, first: Run, second: Run, line: str) -> None:
    with pytest.raises(UsageError) as refused:
        links_of(first, second)
    assert line in str(refused.value)
