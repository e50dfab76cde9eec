"""Several runs put together, and runs that do not belong together."""

from dataclasses import replace

import pytest

from collbench.jobs.predict.timing import gather
from collbench.model.errors import UsageError
from collbench.model.operations import Operation, Variant
from collbench.model.run import Run
from tests.builders import gpus, in_words, measured, run_of
from tests.jobs.predict.made import MIB, curve, pairs

AR, AG = Operation.ALLREDUCE, Operation.ALLGATHER


def with_settings(run: Run, **environment: str) -> Run:
    return replace(run, settings=replace(run.settings, environment=environment))


def test_curves_of_several_runs_meet_by_identity_not_by_position() -> None:
    """The second run saw GPU3 and GPU1 alone, in this order: its positions are others."""
    every = pairs({}, 4)
    two = run_of([gpus(4)[3], gpus(4)[1]], curve(AG, (0, 1), 50.0))
    found = gather([("two.json", two), ("pairs.json", every)])
    assert found.run is every
    assert (AG, (1, 3)) in found.curves
    assert found.tags((1, 3)) == "GPU1, GPU3"
    assert len(found.sets) == 6


def test_a_size_measured_twice_is_their_median() -> None:
    one, other = (run_of(gpus(2), [measured(AR, (0, 1), gbs, MIB)]) for gbs in (100.0, 50.0))
    seconds = gather([("a", one), ("b", other)]).curves[AR, (0, 1)](MIB)
    assert seconds == pytest.approx((MIB / 100e9 + MIB / 50e9) / 2)


def test_in_place_counts_only_where_out_of_place_is_missing() -> None:
    plain, small = measured(AR, (0, 1), 100.0, MIB), measured(AR, (0, 1), 1.0, 1024)
    twice, alone = (replace(point.point, variant=Variant.IN_PLACE) for point in (plain, small))
    slower = replace(measured(AR, (0, 1), 10.0, MIB), point=twice)
    found = gather([("a", run_of(gpus(2), [plain, slower, replace(small, point=alone)]))])
    line = found.curves[AR, (0, 1)]
    assert [line(1024), line(MIB)] == pytest.approx([1024e-9, MIB / 100e9])


def test_wrong_and_failed_points_say_nothing() -> None:
    wrong = replace(measured(AR, (0, 1), 1.0), wrong=3)
    failed = replace(measured(AR, (0, 2), 1.0), failure=in_words("hang"))
    found = gather([("a", run_of(gpus(3), [wrong, failed, measured(AR, (1, 2), 1.0)]))])
    assert found.sets == ((1, 2),)


@pytest.mark.parametrize(
    ("title", "first", "second", "line"),
    [
        (
            "copies alone",
            run_of(gpus(2), [measured(Operation.CE_WRITE, (0, 1), 300.0)]),
            run_of(gpus(2), []),
            "first.json, second.json: no all-reduce, all-gather or reduce-scatter was measured: run 'collbench pairs'",
        ),
        (
            "simulated and real",
            pairs({}, 3),
            replace(pairs({}, 2), backend="sim"),
            "first.json and second.json are of different machines (cuda and sim)",
        ),
        (
            "another machine",
            pairs({}, 3),
            replace(pairs({}, 2), devices=tuple(replace(gpu, uuid=f"GPU-x{gpu.index}") for gpu in gpus(2))),
            "second.json has GPU0 (GPU-x0), which first.json lacks: give runs of one machine",
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
        gather([("first.json", first), ("second.json", second)])
    assert line in str(refused.value)
