"""Times of collectives from saved runs: measured ones, other operations' instead, and what is refused."""

from dataclasses import replace
from itertools import combinations

import pytest

from collbench.jobs.predict.links import NoEvidence
from collbench.model.errors import UsageError
from collbench.model.operations import Operation, Variant
from collbench.model.run import Run
from collbench.sim import fabrics
from tests.builders import gpus, in_words, measured, run_of
from tests.jobs.predict.made import MIB, curve, links_of, pairs, simulated
from tests.sim.made import allreduce_busbw

AR, AG, RS = Operation.ALLREDUCE, Operation.ALLGATHER, Operation.REDUCESCATTER


# What was measured.


def test_what_was_measured_is_taken_as_it_is() -> None:
    price = links_of(run_of(gpus(2), curve(AR, (0, 1), 100.0))).price(AR, MIB, (1, 0))
    assert price.seconds == pytest.approx(5e-6 + MIB / 100e9)
    assert price.assumed == ""


def test_curves_of_several_runs_meet_by_identity_not_by_position() -> None:
    """The second run saw GPU3 and GPU1 alone, in this order: its positions are others."""
    every = pairs({}, 4)
    found = links_of(run_of([gpus(4)[3], gpus(4)[1]], curve(AG, (0, 1), 50.0)), every)
    assert found.run is every
    assert found.price(AG, MIB, (1, 3)).seconds == pytest.approx(5e-6 + MIB / 50e9)
    assert found.price(AG, MIB, (1, 3)).assumed == ""


def test_a_size_measured_twice_is_their_median() -> None:
    one, other = (run_of(gpus(2), [measured(AR, (0, 1), gbs, MIB)]) for gbs in (100.0, 50.0))
    seconds = links_of(one, other).price(AR, MIB, (0, 1)).seconds
    assert seconds == pytest.approx((MIB / 100e9 + MIB / 50e9) / 2)


def test_in_place_counts_only_where_out_of_place_is_missing() -> None:
    plain, small = measured(AR, (0, 1), 100.0, MIB), measured(AR, (0, 1), 1.0, 1024)
    twice, alone = (replace(point.point, variant=Variant.IN_PLACE) for point in (plain, small))
    slower = replace(measured(AR, (0, 1), 10.0, MIB), point=twice)
    found = links_of(run_of(gpus(2), [plain, slower, replace(small, point=alone)]))
    seconds = [found.price(AR, size, (0, 1)).seconds for size in (1024, MIB)]
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
    assert price.seconds == pytest.approx(5e-6 + ratio * 16 * MIB / 100e9, rel=0.02)
    assert price.assumed == f"as {known.collective.title} of as many bus bytes"


def test_the_nearest_operation_stands_in_first() -> None:
    points = [*curve(AR, (0, 1), 1.0), *curve(AG, (0, 1), 100.0)]
    price = links_of(run_of(gpus(2), points)).price(RS, MIB, (0, 1))
    assert price.seconds == pytest.approx(5e-6 + MIB / 100e9)


def test_a_size_beyond_the_measured_ones_is_said_and_one_far_beyond_refused() -> None:
    """An 8 B run once said that a step of 7B parameters communicates for 177 s."""
    found = links_of(run_of(gpus(2), curve(AR, (0, 1), 100.0, sizes=(2**16, 2**18, MIB))))
    price = found.price(AR, 4 * MIB, (0, 1))
    assert price.assumed == "sizes outside 64K to 1M: by latency and bandwidth"
    assert price.seconds == pytest.approx(5e-6 + 4 * MIB / 100e9, rel=0.05)
    for size, needed in ((16 * MIB, "64K:16M"), (2**10, "1K:1M"), (24, "24:1M")):
        said = f"is too far from the measured sizes, 64K to 1M: measure with --sizes {needed}$"
        with pytest.raises(NoEvidence, match=said):
            found.price(AR, size, (0, 1))


def test_no_other_set_stands_in() -> None:
    """All pairs carry the same, and three GPUs were measured together: neither says what others take."""
    found = links_of(pairs({}, 4), run_of(gpus(4), curve(AR, (0, 1, 2), 60.0)))
    for members in ((1, 2, 3), (0, 1, 2, 3)):
        with pytest.raises(NoEvidence, match=f"no run has the time of all-reduce on GPU{members[0]}, GPU"):
            found.price(AR, MIB, members)


# The fastest and the slowest set of k.


def test_on_a_dgx_1v_the_sets_are_the_fabrics_own() -> None:
    """The simulated machine knows each pair's true bandwidth."""
    fastest, *_, slowest = links_of(simulated("dgx-1v")).sets(2)
    fabric = fabrics.load("dgx-1v")
    true: dict[tuple[int, ...], float] = {some: allreduce_busbw(fabric, some) for some in combinations(range(8), 2)}
    assert true[slowest] <= min(true.values()) * 1.02
    assert true[fastest] >= max(true.values()) * 0.98


def test_the_sets_that_were_measured_are_compared() -> None:
    run = run_of(gpus(4), [*curve(AR, (0, 1, 2), 100.0), *curve(AR, (1, 2, 3), 50.0), *curve(AR, (0, 1, 2, 3), 70.0)])
    found = links_of(run)
    assert found.counts() == (3, 4)
    assert found.sets(3) == [(0, 1, 2), (1, 2, 3)]
    assert found.sets(4) == [(0, 1, 2, 3)]


def test_sets_with_a_faulty_device_are_left_out_and_it_is_named() -> None:
    """Every pair of GPU2 moved wrong data."""
    run = pairs({}, 4)
    for found in run.measurements:
        if 2 in found.point.members:
            found.wrong = 1
    together = run_of(gpus(4), curve(AR, (0, 1, 2, 3), 50.0))
    made = links_of(run, together)
    assert {member for members in made.sets(2) for member in members} == {0, 1, 3}
    with pytest.raises(NoEvidence, match=r"cannot predict for 4 devices without GPU2 .faulty.: no run has"):
        made.sets(4)


@pytest.mark.parametrize("k", [3, 9])
def test_a_number_of_devices_that_was_not_measured_is_refused(k: int) -> None:
    with pytest.raises(UsageError, match=f"cannot predict for {k} devices: no run has a collective on so many"):
        links_of(run_of(gpus(4), [measured(AR, (0, 1, 2, 3), 100.0)])).sets(k)


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
            "CPU cores",
            run_of(gpus(2), curve(AR, (0, 1), 1.0), backend="host"),
            run_of(gpus(2), curve(AG, (0, 1), 1.0), backend="host"),
            "0.json was measured on CPU cores: name a run of GPUs",
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
