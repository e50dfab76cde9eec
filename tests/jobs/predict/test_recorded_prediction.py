"""A recorded step on other links: made-up steps of known answers, what must hold of any, and the kept comparisons."""

from __future__ import annotations

import importlib.util
import json
import math
import re
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.jobs.job import Job, Sample
from collbench.jobs.predict import network, recorded
from collbench.jobs.predict.recorded import PlacedJob, Sent, change, predict_job
from collbench.model.errors import UsageError
from collbench.model.operations import Operation
from tests.builders import gpus, run_of
from tests.jobs.made import jobs, made_job, stepped, without_gpu_times
from tests.jobs.predict.made import curve, links_of

MIB = 2**20
BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
_TIMES = st.floats(1e-6, 10.0)


def sent(pause: float, before: float, after: float, size: int = 0, group: int = 0) -> Sent:
    """Return a call; sizes differ, as those of gradients do, unless one is given."""
    return Sent(pause, group, size or int(1e6 * (pause + before + after)) + 1, before, after)


@pytest.mark.parametrize(
    ("what", "calls", "expected"),
    [
        ("the same links", [sent(1.0, 0.4, 0.4), sent(2.0, 0.5, 0.5)], (0, 0, 0)),
        ("hidden or not: 0.6 s more", [sent(1.0, 0.4, 1.0), sent(2.0, 0.5, 0.5)], (0, 0, 0.6)),
        # The last transfer goes on 1.5 s after the host's last call, where it went on 0.5 s.
        ("at the end of the step", [sent(1.0, 0.4, 0.4), sent(2.0, 0.5, 1.5)], (0, 1, 1)),
        ("transfers that outlast all pauses", [sent(1.0, 0.5, 9.0)], (8, 8.5, 8.5)),
        ("faster links", [sent(1.0, 0.5, 0.1)], (-0.4, -0.4, 0)),
        ("two groups at once", [sent(1.0, 1.0, 2.0), sent(0.0, 1.0, 2.0, group=1)], (1, 1, 2)),
        # Compute waits for most activations, which all have one size, wherever they are in the step.
        ("activations", [sent(1.0, 0.1, 0.3, 8), sent(2.0, 0.1, 0.3, 8)], (0, 0.3, 0.4)),
        ("and a loss", [sent(1.0, 0.1, 0.3, 800), sent(2.0, 0.1, 0.3, 800), sent(0.0, 0.0, 0.0, 4)], (0, 0.3, 0.4)),
        (
            "activations of one group, gradients of another",
            [sent(1.0, 0.1, 0.3, 8), sent(1.0, 0.1, 0.3, 8), sent(0.5, 0.2, 0.9, group=1)],
            (0, 1.0, 1.1),
        ),
        # Only the host's last call counts, as it does for all gradients.
        ("gradients of equal buckets", [sent(3.0, 0.1, 0.3, 8), sent(1.0, 0.1, 0.3, 8)], (0, 0.2, 0.4)),
        ("one message is no kind", [sent(2.0, 0.5, 1.0, 8)], (0, 0.5, 0.5)),
    ],
)
def test_steps_of_known_answers(what: str, calls: list[Sent], expected: tuple[float, float, float]) -> None:
    assert change(calls) == pytest.approx(expected), what


steps = st.lists(
    st.builds(
        Sent,
        pause=_TIMES,
        group=st.integers(0, 2),
        size_bytes=st.integers(1, 3),
        before=_TIMES,
        after=_TIMES,
    ),
    min_size=1,
    max_size=6,
)


@given(steps, st.booleans())
def test_bands_are_in_order_and_the_same_links_change_nothing(calls: list[Sent], limits: bool) -> None:
    least, middle, most = change(calls, gpu_limits=limits)
    assert least <= middle <= most
    assert least >= -sum(call.pause for call in calls)
    unchanged = [replace(call, after=call.before) for call in calls]
    assert change(unchanged, gpu_limits=limits) == pytest.approx((0, 0, 0), abs=1e-9)


@given(steps, st.floats(0, 1), st.booleans())
def test_slower_links_never_shorten_a_step_nor_faster_ones_lengthen_it(
    calls: list[Sent], factor: float, limits: bool
) -> None:
    slower = [replace(call, after=call.before * (1 + factor)) for call in calls]
    faster = [replace(call, after=call.before * (1 - factor)) for call in calls]
    assert min(change(slower, gpu_limits=limits)) >= 0
    assert max(change(faster, gpu_limits=limits)) <= 1e-9


def links(gbs: float) -> PlacedJob:
    """Return links of two devices whose all-reduce moves so many GB/s of algbw."""
    return PlacedJob(links_of(run_of(gpus(2), curve(Operation.ALLREDUCE, (0, 1), gbs, latency=0.0))), {0: 0, 1: 1})


def test_each_call_changes_by_the_difference_of_the_measured_ones() -> None:
    """Whatever the job's own kernels took, or if it does not say."""
    job = made_job([("allreduce", MIB)] * 4, gpu=[200.0] * 4)
    found, unknown = (predict_job(one, links(50.0), links(100.0)) for one in (job, without_gpu_times(job)))
    assert found.change[2] == pytest.approx(4 * MIB / 100e9, rel=0.01)
    assert found.change[1] == pytest.approx(recorded.WAITED * found.change[2])
    assert found.step == pytest.approx(4e-3)
    assert unknown.change == found.change


@pytest.mark.parametrize(("late_us", "limits"), [(10.0, False), (390.0, False), (410.0, True), (3000.0, True)])
def test_a_host_that_runs_ahead_shows_that_the_gpu_limits_the_step(late_us: float, limits: bool) -> None:
    """Of 4 ms: one call's kernel began at once, one's beginning is unknown, the other two came so much later."""

    def begun(sample: Sample) -> Sample:
        first, second, third, _ = sample.starts
        return replace(sample, gpu_starts=(first + 1.0, second + late_us, third + late_us, 0.0))

    made = made_job([("allreduce", MIB), ("allreduce", 2 * MIB)] * 2)
    (phase,) = made.ranks[0].phases
    with_starts = replace(phase, samples=tuple(map(begun, phase.samples)))
    job = stepped(replace(made, ranks=(replace(made.ranks[0], phases=(with_starts,)), *made.ranks[1:])))
    found = predict_job(replace(job, ranks=job.ranks[:1]), links(50.0), links(100.0))
    assert found.gpu_limits is limits
    assert found.change[2] == pytest.approx(6 * MIB / 100e9, rel=0.01)
    assert (found.change[1] == pytest.approx(network.SHARE * found.change[2])) is limits


def test_calls_that_no_run_covers_stay_as_recorded() -> None:
    found = predict_job(made_job([("alltoall", MIB // 16), ("allreduce", MIB)]), links(50.0), links(100.0))
    assert [len(found.kept), len(found.prices)] == [1, 1]
    assert found.percent == 94
    assert found.change[2] == pytest.approx(MIB / 100e9, rel=0.01)


@pytest.mark.parametrize(
    ("job", "line"),
    [
        (made_job([("allreduce", MIB)], repetitions=1, kept=1), "no step"),
        (made_job([("alltoall", MIB)]), "the runs cover 0% of the bytes"),
        (made_job([("alltoall", MIB), *[("allreduce", MIB)] * 8]), "the runs cover 88% of the bytes"),
    ],
)
def test_what_says_nothing_is_refused(job: Job, line: str) -> None:
    with pytest.raises(UsageError, match=line):
        predict_job(job, links(50.0), links(100.0))


@settings(max_examples=30, deadline=None)
@given(jobs())
def test_any_job_is_predicted_in_order_or_refused(job: Job) -> None:
    """Whatever it lacks, and whatever its times are: a band in order, or one line."""
    try:
        found = predict_job(job, links(50.0), links(100.0))
    except UsageError:
        return
    least, middle, most = found.change
    assert 0 <= least <= middle <= most < math.inf


def test_the_kept_comparisons_are_what_the_method_is_said_to_err_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """34 steps on H200s and H100s without P2P, of which no step was known to the prediction, and one is refused."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    spec = importlib.util.spec_from_file_location("extra_time", BENCHMARKS / "extra_time.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "extra_time", module)
    spec.loader.exec_module(module)
    rows = list(module.kept_rows())
    folder = module.RESULTS / "2026-11-29-extra-time"
    kept = json.loads((folder / "extra-time.json").read_text(encoding="utf-8"))
    for row, known in zip(rows, kept["rows"], strict=True):
        answer = asdict(row.answer) if row.answer is not None else None
        assert answer == (known["answer"] and pytest.approx(known["answer"], rel=1e-6))
        for name, value in (asdict(row) | {"answer": known["answer"]}).items():
            assert known[name] == (pytest.approx(value, rel=1e-6) if isinstance(value, float) else value)
    # What the program printed of the recorded jobs.
    lines = (folder / "printed.txt").read_text(encoding="utf-8").splitlines()
    for row, job, line in zip(rows[-14:], lines[::2], lines[1::2], strict=True):
        assert job.split()[:2] == [f"{row.set}:", row.job]
        if row.answer is None:
            assert line == f"collbench: {row.refused}"
        else:
            span = re.search(r"a step takes (\S+) ms longer on these links \((\S+) to (\S+) ms\)", line)
            assert span is not None
            said = [row.answer.predicted_ms, row.answer.least_ms, row.answer.most_ms]
            assert [*map(float, span.groups())] == pytest.approx(said, rel=0.005, abs=0.005)
    errors = module.mean_errors(rows)
    bound, every, own = errors["size known, GPU-bound"], errors["size known"], errors["recorded"]
    assert errors["H200"]["now"] <= errors["H200"]["before"] == pytest.approx(3.71, abs=0.01)
    assert bound["now"] <= bound["before"] == pytest.approx(1.15, abs=0.01)
    printed = (network.MEAN_ERROR_MS, network.STEPS, recorded.MEAN_ERROR_MS, recorded.JOBS)
    assert printed == (
        (round(bound["each left out"], 1), round(every["now"], 1)),
        (bound["count"], every["count"]),
        round(own["now"], 1),
        own["count"],
    )
    page = (BENCHMARKS / "README.md").read_text(encoding="utf-8")
    assert "\n".join(module.table(rows)) in page
