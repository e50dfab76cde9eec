"""prometheus_client's parser reads the metrics back: names, units, labels, values."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import permutations

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from collbench.model.errors import RunFileError
from collbench.model.operations import Operation
from collbench.model.run import DataPoint, Measurement, Run, StopReason
from collbench.report.rows import as_prometheus
from tests.builders import gpus, in_words, measured, run_of
from tests.report.hostile import NAME, hostile_run

TEXT = as_prometheus(hostile_run())
FAMILIES = {family.name: family for family in text_string_to_metric_families(TEXT)}


def families(run: Run) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(as_prometheus(run))}


def values(family: Metric, *labels: str) -> dict[tuple[str, ...], float]:
    return {tuple(sample.labels.get(label, "") for label in labels): sample.value for sample in family.samples}


SWEEP = [
    *(
        measured(Operation.CE_WRITE, link, rate * size / 99, size)
        for link, rate in (((0, 1), 300.0), ((1, 0), 100.0), ((1, 2), 250.0))
        for size in (8, 64, 99)
    ),
    measured(Operation.CE_WRITE, (0, 2), 1.0, 2**20),  # an interrupted sweep: no other link has this size
    *(
        measured(Operation.ALLREDUCE, some, 200.0, size, launch=1e-5)
        for some in ((0, 1), (0, 1, 2))
        for size in (8, 64)
    ),
]


def test_each_operation_has_its_slowest_median_and_fastest_link_at_its_largest_size() -> None:
    rates = families(run_of(gpus(3), SWEEP))["collbench_busbw_bytes_per_second"]
    assert values(rates, "operation", "world_size", "size_bytes", "statistic") == {
        **{
            ("ce-write", "", "99", statistic): gbs * 1e9
            for statistic, gbs in (("min", 100.0), ("median", 250.0), ("max", 300.0))
        },
        # busbw = algbw × 2(n−1)/n [nccl-tests, doc/PERFORMANCE.md]; four digits of 266.66…
        **{("allreduce", "2", "64", statistic): 200e9 for statistic in ("min", "median", "max")},
        **{("allreduce", "3", "64", statistic): 266.7e9 for statistic in ("min", "median", "max")},
    }


def test_series_are_few_whatever_was_measured() -> None:
    """Four copies on every link of 16 GPUs at two sizes are 1,920 data points."""
    copies = (Operation.CE_WRITE, Operation.CE_READ, Operation.SM_WRITE, Operation.SM_READ)
    measurements = [
        measured(operation, link, 300.0 - link[0] - link[1], 8 << step)
        for operation in copies
        for link in permutations(range(16), 2)
        for step in (0, 14)
    ]
    read = families(run_of(gpus(16), measurements))
    assert sum(len(family.samples) for family in read.values()) < 120
    assert sum(sample.value for sample in read["collbench_data_points"].samples) == len(measurements)


def test_no_number_has_more_than_four_significant_digits() -> None:
    run = run_of(gpus(2), [measured(Operation.CE_WRITE, (0, 1), [1000 / 3, 2000 / 7], size=2**20)])
    lines = [line for line in as_prometheus(run).splitlines() if re.match("collbench_(time|busbw)", line)]
    assert len(lines) == 6
    for line in lines:
        digits = line.rpartition(" ")[2].partition("e")[0].replace(".", "").strip("0")
        assert 1 <= len(digits) <= 4, line


def test_what_went_wrong_is_counted_for_each_operation() -> None:
    measurements = [
        measured(Operation.ALLREDUCE, some, 200.0, size) for some in ((0, 1), (0, 2)) for size in (8, 64, 4096)
    ]
    measurements[1].wrong, measurements[5].wrong = 2, 5
    measurements += [
        Measurement(
            DataPoint(Operation.CE_WRITE, (0, 1), 8 << step), [], StopReason.FAILED, failure=in_words(f"hang {step}")
        )
        for step in range(20)
    ]
    run = run_of(gpus(3), measurements)
    read = families(run)
    assert values(read["collbench_failed"], "operation") == {("allreduce",): 0, ("ce-write",): 20}
    assert values(read["collbench_wrong_elements"], "operation") == {("allreduce",): 7, ("ce-write",): 0}


def test_every_family_is_a_gauge_with_help_and_no_timestamp() -> None:
    assert len(FAMILIES) == 4 + 3 + 5  # the run, what was measured, what was counted
    for family in FAMILIES.values():
        assert (family.type, bool(family.documentation)) == ("gauge", True)
        assert all(sample.timestamp is None for sample in family.samples)


def test_names_are_of_base_units() -> None:
    assert all(re.fullmatch(r"collbench_[a-z_]+", name) for name in FAMILIES)
    assert not any(unit in TEXT for unit in ("_gbs", "_us{", "_ms{"))


def test_hostile_names_survive_as_label_values() -> None:
    (info,) = FAMILIES["collbench_run_info"].samples
    assert info.labels["hostname"] == NAME
    assert FAMILIES["collbench_device_info"].samples[0].labels["name"] == NAME


def test_disturbed_data_points_and_the_run_are_reported() -> None:
    disturbed = values(FAMILIES["collbench_disturbed"], "operation")
    assert {key for key, count in disturbed.items() if count} == {("reduce",)}
    assert FAMILIES["collbench_run_complete"].samples[0].value == 1
    assert FAMILIES["collbench_run_started_timestamp_seconds"].samples[0].value == 1767323045  # 2026-01-02T03:04:05Z


def test_a_date_without_a_zone_is_utc_as_all_run_files_are() -> None:
    text = as_prometheus(replace(hostile_run(), started="2026-01-02T03:04:05"))
    assert "\ncollbench_run_started_timestamp_seconds 1.767323045e+09\n" in text


def test_a_run_whose_beginning_is_no_date_is_refused() -> None:
    with pytest.raises(RunFileError, match="'yesterday' is not an ISO 8601 date; use --format csv"):
        as_prometheus(replace(hostile_run(), started="yesterday"))
