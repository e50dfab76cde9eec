"""A saved run holds the health of its day: a choice reads the health again."""

from __future__ import annotations

from dataclasses import replace

from collbench.api.by_run import as_now
from collbench.model.run import Health, Run
from tests.builders import pair_run, shared, throttled


def a_run() -> Run:
    run = pair_run(2, lambda *_: 300.0)
    run.health_before = (Health(processes=1, nvlink_errors=5), Health(processes=0, nvlink_errors=0))
    run.health_after = (Health(processes=1, nvlink_errors=5), Health(processes=0, nvlink_errors=0))
    return run


# GPU0 is free again; GPU1 has an occupant, and three NVLink errors since it was measured.
_STATES = (Health(processes=0, nvlink_errors=5), Health(processes=2, nvlink_errors=3))
NOW = {device.uuid: state for device, state in zip(a_run().devices, _STATES, strict=True)}


def test_occupants_are_those_of_now_and_errors_count_from_the_day_of_the_run() -> None:
    suitable = as_now(a_run(), NOW)
    assert [state.processes for state in (*suitable.health_before, *suitable.health_after)] == [0, 2, 0, 2]
    assert [state.nvlink_errors for state in (*suitable.health_before, *suitable.health_after)] == [5, 0, 5, 3]


def test_cores_have_no_health() -> None:
    run = a_run()
    run.backend = "host"
    assert as_now(run, NOW) is run


def test_a_run_that_saw_no_health_takes_that_of_now() -> None:
    run = a_run()
    run.health_before = run.health_after = ()
    suitable = as_now(run, NOW)
    assert [state.processes for state in suitable.health_before] == [0, 2]


def test_what_trials_saw_of_other_processes_is_forgotten_and_throttling_is_not() -> None:
    run = a_run()
    run.measurements[0].samples[:] = [
        replace(sample, flags=(throttled(0), shared(1))) for sample in run.measurements[0].samples
    ]
    suitable = as_now(run, {})
    assert {sample.flags for sample in suitable.measurements[0].samples} == {(throttled(0),)}
