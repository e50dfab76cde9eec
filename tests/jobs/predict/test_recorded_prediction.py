"""A recorded step on other links: made-up steps of known answers, and what must hold of any."""

from __future__ import annotations

import io
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from collbench.jobs.job import Job
from collbench.jobs.predict.job_page import as_json, page
from collbench.jobs.predict.recorded import Links, Sent, bounds, predict_job
from collbench.jobs.predict.responses import responses
from collbench.jobs.predict.timing import gather
from collbench.model.errors import UsageError
from collbench.model.operations import Operation
from tests.builders import gpus, run_of
from tests.jobs.made import jobs, made_job, without_gpu_times
from tests.jobs.predict.made import curve
from tests.jobs.predict.test_responses import TENSOR_PARALLEL, alike, lanes_of, play, recorded

MIB = 2**20
_TIMES = st.floats(1e-6, 10.0)


def sent(pause: float, before: float, after: float, lane: int = 0, **more: float) -> Sent:
    return Sent(pause, lane, before, (after, after, after), **more)


@pytest.mark.parametrize(
    ("what", "calls", "expected"),
    [
        ("no communication: the pauses", [sent(1.0, 0, 0), sent(2.0, 0, 0)], (3.0, 3.0, 3.0)),
        ("the same links", [sent(1.0, 0.4, 0.4), sent(2.0, 0.5, 0.5)], (3.0, 3.0, 3.0)),
        ("hidden or not: 0.6 s more", [sent(1.0, 0.4, 1.0), sent(2.0, 0.5, 0.5)], (3.0, 3.0, 3.6)),
        # The last transfer goes on 1.5 s after the host's last call, where it went on 0.5 s.
        ("at the end of the step", [sent(1.0, 0.4, 0.4), sent(2.0, 0.5, 1.5)], (3.0, 4.0, 4.0)),
        ("transfers that outlast all pauses", [sent(1.0, 0.5, 9.0)], (9.0, 9.5, 9.5)),
        ("faster links", [sent(1.0, 0.5, 0.1)], (0.6, 0.6, 1.0)),
        ("kernels of two groups at once", [sent(1.0, 1.0, 2.0, 0), sent(0.0, 1.0, 2.0, 1)], (2.0, 2.0, 2.0)),
        ("a GPU that waits for its host has time to lose", [sent(2.0, 0.5, 1.0, compute=1.2)], (2.0, 2.5, 2.5)),
        ("compute slows down beside them", [sent(2.0, 0.5, 1.0, compute=3.0)], (2.0, 2.5, 3.0)),
    ],
)
def test_steps_of_known_answers(what: str, calls: list[Sent], expected: tuple[float, float, float]) -> None:
    assert bounds(calls).step == pytest.approx(expected), what


steps = st.lists(
    st.builds(
        Sent,
        pause=_TIMES,
        lane=st.integers(0, 2),
        before=_TIMES,
        after=st.tuples(_TIMES, _TIMES, _TIMES).map(lambda span: tuple(sorted(span))),
        concurrent=st.floats(1, 3),
        compute=st.floats(1, 3),
    ),
    min_size=1,
    max_size=6,
)


@given(steps, st.floats(0, 1))
def test_faster_links_never_give_a_longer_step(calls: list[Sent], factor: float) -> None:
    faster = [
        replace(one, after=(one.after[0] * factor, one.after[1] * factor, one.after[2] * factor)) for one in calls
    ]
    for quick, slow in zip(bounds(faster).step, bounds(calls).step, strict=True):
        assert quick <= slow * (1 + 1e-9)


@given(steps)
def test_bounds_are_in_order_and_the_same_links_give_the_recorded_step(calls: list[Sent]) -> None:
    least, middle, most = bounds(calls).step
    assert 0 <= least <= middle * (1 + 1e-9)
    assert middle <= most * (1 + 1e-9)
    same = [replace(one, after=(one.before,) * 3) for one in calls]
    assert bounds(same).step == pytest.approx((bounds(calls).recorded,) * 3)


def links(gbs: float) -> Links:
    """Return links of two devices whose all-reduce moves so many GB/s of algbw."""
    run = run_of(gpus(2), curve(Operation.ALLREDUCE, (0, 1), gbs, latency=0.0))
    return Links(gather([("run", run)]), {0: 0, 1: 1})


def test_transfers_scale_by_the_ratio_of_measured_ones() -> None:
    job = made_job([("allreduce", MIB)] * 4, gpu=[200.0] * 4)
    found = predict_job(job, links(50.0), links(100.0))
    assert found.bounds.before == pytest.approx(800e-6)
    assert found.bounds.after == pytest.approx(1600e-6, rel=0.02)
    assert found.bounds.step[2] == pytest.approx(4e-3 + 800e-6, rel=0.01)
    assert found.calibrated


def test_without_gpu_times_the_links_that_recorded_it_say_them() -> None:
    job = without_gpu_times(made_job([("allreduce", MIB)]))
    assert predict_job(job, links(50.0), links(100.0)).bounds.before == pytest.approx(MIB / 100e9, rel=0.02)
    with pytest.raises(UsageError, match="--recorded"):
        predict_job(job, links(50.0))


def test_calls_that_nothing_measured_speaks_for_stay_as_recorded() -> None:
    found = predict_job(made_job([("alltoall", MIB), ("allreduce", MIB)]), links(50.0))
    assert [found.bounds.recorded, len(found.kept)] == [pytest.approx(2e-3), 1]


@settings(max_examples=60, deadline=None)
@given(jobs())
def test_any_job_is_predicted_in_order_or_refused(job: Job) -> None:
    """Whatever it lacks, and whatever its times are: bounds in order, shares of 0 to 1, or one line."""
    try:
        found = predict_job(job, links(50.0))
    except UsageError:
        return
    least, middle, most = found.bounds.step
    assert 0 <= least <= middle * (1 + 1e-9)
    assert middle <= most * (1 + 1e-9)
    assert math.isfinite(most)
    for share in found.waited.values():
        assert 0 <= share.low <= share.share <= share.high <= 1
    for seen in responses(job).values():
        assert 0 <= seen.step([0.0] * len(seen.kernels)) < math.inf


def test_a_job_without_a_step_is_refused() -> None:
    with pytest.raises(UsageError, match="no step"):
        predict_job(made_job([("allreduce", MIB)], repetitions=1, kept=1), links(50.0))


def test_the_page_says_how_much_of_each_call_is_waited_for_and_what_is_assumed_of_the_rest() -> None:
    """A played tensor-parallel job, whose ranks differ; and one whose ranks always come together."""
    run = run_of(gpus(2), curve(Operation.ALLREDUCE, (0, 1), 1.0, latency=0.0))
    texts = []
    for jitter in (0.02, 0.0):
        transfers = alike(TENSOR_PARALLEL, 0.2e-3)
        played = play(TENSOR_PARALLEL, transfers, jitter=jitter)
        job = recorded(played, lanes_of(TENSOR_PARALLEL))
        found = predict_job(job, links(1.0), links(2.0))
        stream = io.StringIO()
        console = Console(file=stream, width=80)
        for part in page(job, run, found):
            console.print(part.drawn)
        texts.append(stream.getvalue())
        assert as_json(job, run, found)["calls"][0]["waited"] == pytest.approx(
            [found.waited[0].low, found.waited[0].share, found.waited[0].high]
        )
    assert "100% (" in texts[0]
    assert "half is assumed" not in texts[0]
    assert "?" in texts[1]
    assert "'?' is unknown: half is assumed" in " ".join(texts[1].split())
