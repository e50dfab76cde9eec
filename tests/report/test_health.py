"""The page's lines about the devices' health, from the states before and after and the trials' flags."""

from __future__ import annotations

from dataclasses import replace

import pytest

from collbench.model.operations import Operation
from collbench.model.run import Flag, Health, Measurement, Run
from collbench.report.text.frame import health_lines
from tests.builders import gpus, measured, run_of

WELL = Health(1980, 3201, 41, 90.5, (), 0, 5, nvlink_replays=7, nvlink_errors=0, ecc_errors=0, processes=0)


def run(
    before: tuple[Health, ...], after: tuple[Health, ...], flags: tuple[tuple[Flag, ...], ...] = ((), (), (), ())
) -> Run:
    """Return a run of two GPUs and one data point, a trial for each entry of `flags`."""
    point = measured(Operation.CE_WRITE, (0, 1), 100.0, trials=len(flags))
    samples = [replace(sample, flags=said) for sample, said in zip(point.samples, flags, strict=True)]
    made = run_of(gpus(2), [Measurement(point.point, samples, point.stop)])
    made.health_before, made.health_after = before, after
    return made


def test_cores_say_nothing() -> None:
    assert health_lines(run((), ())) == []


@pytest.mark.parametrize(
    ("title", "before", "after", "line"),
    [
        (
            "all is well",
            (WELL, WELL),
            (replace(WELL, temperature=46), WELL),
            "41–46 °C, no throttling, no new NVLink or ECC errors",
        ),
        (
            "one temperature",
            (WELL, WELL),
            (WELL, WELL),
            "41 °C, no throttling, no new NVLink or ECC errors",
        ),
        (
            "old errors are not this run's",
            (replace(WELL, ecc_errors=3), WELL),
            (replace(WELL, ecc_errors=3), WELL),
            "41 °C, no throttling, no new NVLink or ECC errors",
        ),
        (
            "no NVLink to count on",
            (replace(WELL, nvlink_errors=None), replace(WELL, nvlink_errors=None)),
            (replace(WELL, nvlink_errors=None), replace(WELL, nvlink_errors=None)),
            "41 °C, no throttling, no new ECC errors",
        ),
        (
            "NVML tells nothing",
            (Health(), Health()),
            (Health(), Health()),
            "NVML reports no health on this machine",
        ),
        (
            "clocks that somebody set are no throttling",
            (replace(WELL, throttle=("applications clocks setting",)), WELL),
            (WELL, WELL),
            "41 °C, no throttling, no new NVLink or ECC errors",
        ),
        (
            "warm: the rule of thumb is said",
            (WELL, WELL),
            (replace(WELL, temperature=78), WELL),
            "41–78 °C (under 75 °C is good, over 80 °C is hot, 84–90 °C throttles), no throttling, "
            "no new NVLink or ECC errors",
        ),
    ],
)
def test_one_line_when_nothing_is_wrong(
    title: str, before: tuple[Health, ...], after: tuple[Health, ...], line: str
) -> None:
    assert health_lines(run(before, after)) == [line], title


def test_without_a_last_reading_nothing_is_claimed_of_errors() -> None:
    assert health_lines(run((WELL, WELL), ())) == [
        "41 °C, no throttling",
        "unknown after the run: NVML did not answer, or the run was interrupted",
    ]
