"""No rate above what a machine carries without IMPOSSIBLE, in what is judged and in what is exported."""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from collbench.judge.diagnose import Diagnosis, Kind, judge
from collbench.judge.physics import hardware, impossible
from collbench.judge.stats import rate_gbs
from collbench.model.operations import Work
from collbench.model.run import Run
from collbench.report.rows import as_json, rows
from tests.invariants.machines import (
    COLLECTIVES,
    COPIES,
    HEALTHY,
    HIDING,
    IN_TIME,
    PAIRS,
    Made,
    narrowest,
    shuffled,
    tried,
)

# What copies show of NVLinks behind a PCIe label is HIDDEN_NVLINK: a contradiction, too.
BEYOND = {Kind.IMPOSSIBLE, Kind.HIDDEN_NVLINK, Kind.LINKCOUNT_MISMATCH}


def hurried(run: Run, place: int, gbs: float) -> Run:
    """Return the run with one data point at another rate in GB/s, in all batches."""
    found = run.measurements[place]
    seconds = rate_gbs(found.point, 1.0) / gbs
    samples = [replace(s, seconds=(seconds, seconds)) for s in found.samples]
    changed = list(run.measurements)
    changed[place] = replace(found, samples=samples)
    return replace(run, measurements=changed)


@tried()
@given(made=IN_TIME, works=st.sampled_from((COPIES, COLLECTIVES)))
def test_a_machine_whose_clock_is_right_beats_no_limit(made: Made, works: tuple[Work, ...]) -> None:
    run = made.run(works, trials=1)
    assert impossible(run) == []
    assert all(not row["impossible"] for row in rows(run))


@tried()
@given(made=HIDING, works=st.sampled_from((COPIES, COLLECTIVES)))
def test_hidden_nvlinks_beat_what_the_label_allows_by_five_percent_at_most(made: Made, works: tuple[Work, ...]) -> None:
    run = made.run(works, trials=1)
    assert all(one.rate_gbs <= 1.05 * one.capacity.gbs for one in impossible(run))


@tried()
@given(made=HEALTHY, works=st.sampled_from((COPIES, COLLECTIVES)))
def test_no_limit_is_wider_than_the_machine(made: Made, works: tuple[Work, ...]) -> None:
    run = made.run(works, trials=1)
    capacities = hardware(run)
    for found in run.measurements:
        limit = capacities.of(found.point)
        assert limit is not None
        assert limit.gbs <= narrowest(made.fabric, found.point) * 1.001, found.point


@tried()
@given(made=HEALTHY, works=st.sampled_from((PAIRS, COPIES)), data=st.data())
def test_what_beats_the_machine_is_a_contradiction_wherever_it_is_reported(
    made: Made, works: tuple[Work, ...], data: st.DataObject
) -> None:
    run = made.run(works)
    place = data.draw(st.integers(0, len(run.measurements) - 1))
    point = run.measurements[place].point
    most = narrowest(made.fabric, point)
    faster = hurried(run, place, most * data.draw(st.floats(1.03, 8.0)))
    found = judge(shuffled(faster, made.rng))
    assert BEYOND & {verdict.kind for verdict in found}
    assert Diagnosis(faster).status == 3
    if Kind.HIDDEN_NVLINK not in {verdict.kind for verdict in found}:
        assert [one.point for one in impossible(faster)] == [point]
        exported = json.loads(as_json(rows(faster)))
        assert [row["impossible"] for row in exported if row["impossible"]] == [6]
        assert all(row["busbw_gbs"] <= 1.02 * row["limit_gbs"] for row in exported if not row["impossible"])


@tried(0.5)
@given(made=HEALTHY, data=st.data())
def test_one_batch_of_one_trial_is_enough(made: Made, data: st.DataObject) -> None:
    run = made.run(COPIES)
    place = data.draw(st.integers(0, len(run.measurements) - 1))
    found = run.measurements[place]
    fast = found.point.moved_bytes / (1.1 * narrowest(made.fabric, found.point)) / 1e9
    slow = found.samples[1]
    changed = list(run.measurements)
    samples = [found.samples[0], replace(slow, seconds=(slow.seconds[0], fast)), found.samples[2]]
    changed[place] = replace(found, samples=samples)
    (one,) = impossible(replace(run, measurements=changed))
    assert (one.point, one.batches, one.of) == (found.point, 1, 6)
