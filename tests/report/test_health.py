"""The page's lines about the devices' health, from the states before and after and the trials' flags."""

from __future__ import annotations

from dataclasses import replace

import pytest

from collbench.model.operations import Operation
from collbench.model.run import Flag, Health, Measurement, Run
from collbench.report.text.frame import health_lines
from tests.builders import gpus, hot, measured, run_of, shared, throttled

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


def test_flags_are_counted_over_the_trials() -> None:
    slowed = throttled(1, "SW thermal slowdown")
    flags = ((), (slowed, hot(1, 84)), (slowed, hot(1, 86)), (shared(0),))
    assert health_lines(run((WELL, WELL), (WELL, WELL), flags)) == [
        "41 °C, no new NVLink or ECC errors",
        "hot: GPU1 at 86 °C in 2 of 4 trials",
        "shared: 1 other process on GPU0 in 1 of 4 trials",
        "throttled: SW thermal slowdown on GPU1 in 2 of 4 trials",
    ]


@pytest.mark.parametrize(
    ("title", "first", "last", "flag", "lines"),
    [
        (
            "throttled before and not while measuring",
            replace(WELL, throttle=("SW power cap",)),
            WELL,
            (),
            ["41 °C, no new NVLink or ECC errors", "throttled: SW power cap on GPU1 before measuring"],
        ),
        (
            "throttled at the end, as the trials said",
            WELL,
            replace(WELL, throttle=("SW power cap",)),
            (throttled(1),),
            [
                "41 °C, no new NVLink or ECC errors",
                "throttled: SW power cap on GPU1 in 1 of 1 trials",
            ],
        ),
        (
            "NVLink and ECC errors grew",
            replace(WELL, nvlink_errors=1, ecc_errors=0),
            replace(WELL, nvlink_errors=5, ecc_errors=2),
            (),
            [
                "41 °C, no throttling",
                "4 new NVLink errors on GPU1 (1 → 5 since the driver was loaded)",
                "2 new ECC errors on GPU1 (0 → 2 since the driver was loaded)",
            ],
        ),
        (
            "replays are no errors, but reported",
            WELL,
            replace(WELL, nvlink_replays=9),
            (),
            [
                "41 °C, no throttling, no new NVLink or ECC errors",
                "2 new NVLink replays on GPU1 (7 → 9 since the driver was loaded)",
            ],
        ),
        (
            "somebody else at either end",
            replace(WELL, processes=1),
            replace(WELL, processes=2),
            (),
            [
                "41 °C, no throttling, no new NVLink or ECC errors",
                "shared: 1 other process on GPU1 before measuring",
                "shared: 2 other processes on GPU1 after measuring",
            ],
        ),
        (
            "somebody else all the time",
            replace(WELL, processes=1),
            replace(WELL, processes=1),
            (shared(1),),
            [
                "41 °C, no throttling, no new NVLink or ECC errors",
                "shared: 1 other process on GPU1 in 1 of 1 trials",
            ],
        ),
    ],
)
def test_what_is_wrong_has_a_line_of_its_own(
    title: str, first: Health, last: Health, flag: tuple[Flag, ...], lines: list[str]
) -> None:
    assert health_lines(run((WELL, first), (WELL, last), (flag,))) == lines, title


def test_without_a_last_reading_nothing_is_claimed_of_errors() -> None:
    assert health_lines(run((WELL, WELL), ())) == [
        "41 °C, no throttling",
        "unknown after the run: NVML did not answer, or the run was interrupted",
    ]
