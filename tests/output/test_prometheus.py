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
from collbench.output.prometheus import as_prometheus
from collbench.output.rows import rows
from tests.builders import gpus, measured, run_of
from tests.output.hostile import NAME, hostile_run

TEXT = as_prometheus(hostile_run())
FAMILIES = {family.name: family for family in text_string_to_metric_families(TEXT)}
LABELS = ("backend", "operation", "variant", "numa_node", "source", "destination", "members", "size_bytes")
# metric, the column that it is of, its factor to the base unit
TIMES = [("time_seconds", "seconds", 1.0), ("launch_time_seconds", "launch_seconds", 1.0)]
RATES = [
    ("busbw_bytes_per_second", "busbw_gbs", 1e9),
    ("busbw_low_bytes_per_second", "busbw_low_gbs", 1e9),
    ("busbw_high_bytes_per_second", "busbw_high_gbs", 1e9),
]


def families(run: Run) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(as_prometheus(run))}


@pytest.mark.parametrize(("name", "column", "factor"), TIMES + RATES)
def test_each_cell_at_its_end_is_a_sample_with_its_value(name: str, column: str, factor: float) -> None:
    """Times of the smallest size, rates of the largest; and of each work alone, whatever sizes others have."""
    ends = {"ce-write": (8, 99), "allreduce": (8, 4096)}
    cells = [
        measured(Operation.CE_WRITE, link, 300.0 + size, size) for link in ((0, 1), (1, 0)) for size in (8, 64, 99)
    ]
    cells += [
        measured(Operation.ALLREDUCE, some, 200.0, size, launch=1e-5)
        for some in ((0, 1), (0, 1, 2))
        for size in (8, 4096)
    ]
    cells += [measured(Operation.CE_WRITE, (0, 2), 1.0, 2**20)]  # an interrupted sweep: no other place has this size
    cells += [found for found in hostile_run().measurements if str(found.cell.operation) not in ends]
    run = run_of(gpus(3), cells)
    read = {tuple(sorted(sample.labels.items())): sample.value for sample in families(run)[f"collbench_{name}"].samples}
    for row in rows(run):
        size = ends.get(str(row["operation"]), (row["size_bytes"],) * 2)[column.startswith("busbw")]
        labels = {label: str(row[label]) for label in LABELS if row[label] is not None}
        if row["size_bytes"] == size and row[column] is not None:
            assert read.pop(tuple(sorted(labels.items()))) == float(row[column]) * factor  # type: ignore[arg-type]
    assert read == {}


def test_wrong_elements_are_summed_over_the_sizes_of_an_operation() -> None:
    found = [measured(Operation.ALLREDUCE, some, 200.0, size) for some in ((0, 1), (0, 1, 2)) for size in (8, 64, 4096)]
    found[1].wrong, found[5].wrong = 2, 5
    (sample,) = families(run_of(gpus(3), found))["collbench_wrong_elements"].samples
    assert (sample.labels, sample.value) == ({"backend": "cuda", "operation": "allreduce", "variant": "plain"}, 7)


@pytest.mark.parametrize("devices", [8, 24])
def test_there_is_a_bound_whatever_was_measured_and_nothing_is_dropped_in_silence(devices: int) -> None:
    """A run of eight GPUs at 14 sizes was 22,747 samples, each a series that a server keeps."""
    copies = (Operation.CE_WRITE, Operation.CE_READ, Operation.SM_WRITE, Operation.SM_READ)
    found = [
        measured(operation, link, 300.0 - link[0] - link[1], 8 << step)
        for operation in copies
        for link in permutations(range(devices), 2)
        for step in range(0, 28, 2 if devices == 8 else 14)
    ]
    read = families(run_of(gpus(devices), found))
    samples = sum(len(family.samples) for family in read.values())
    assert samples < 5000
    (left,) = read["collbench_cells_left_out"].samples
    told = {
        tuple(s.labels.items())
        for name in ("time_seconds", "busbw_bytes_per_second")
        for s in read[f"collbench_{name}"].samples
    }
    assert left.value == len(found) - len(told)
    slowest = {(devices - 2, devices - 1), (devices - 1, devices - 2)}  # who watches for a slow link finds it
    rates = read["collbench_busbw_bytes_per_second"].samples
    assert {(f"GPU{a}", f"GPU{b}") for a, b in slowest} <= {
        (s.labels["source"], s.labels["destination"]) for s in rates
    }


def test_of_places_that_failed_at_many_sizes_the_sizes_are_counted() -> None:
    lost = [
        Measurement(DataPoint(Operation.CE_WRITE, (0, 1), 8 << step), [], StopReason.FAILED, failure=f"hang {step}")
        for step in range(20)
    ]
    (failed,) = families(run_of(gpus(2), lost))["collbench_failed"].samples
    assert failed.value == 20
    assert (failed.labels["source"], failed.labels["destination"], failed.labels["reason"]) == (
        "GPU0",
        "GPU1",
        "hang 0",
    )


def test_every_family_is_a_gauge_with_help_and_no_timestamp() -> None:
    assert len(FAMILIES) == len(TIMES) + len(RATES) + 8
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
    assert FAMILIES["collbench_failed"].samples[0].labels["reason"] == 'no answer for 30 s, "x" | y'


def test_a_disturbed_cell_and_the_run_are_told() -> None:
    (disturbed,) = FAMILIES["collbench_disturbed"].samples
    assert disturbed.labels["operation"] == "reduce"
    assert FAMILIES["collbench_run_complete"].samples[0].value == 1
    assert FAMILIES["collbench_run_started_timestamp_seconds"].samples[0].value == 1767323045  # 2026-01-02T03:04:05Z


def test_a_date_without_a_zone_is_utc_as_all_run_files_are() -> None:
    text = as_prometheus(replace(hostile_run(), started="2026-01-02T03:04:05"))
    assert "\ncollbench_run_started_timestamp_seconds 1767323045.0\n" in text


def test_a_run_whose_beginning_is_no_date_is_refused() -> None:
    with pytest.raises(RunFileError, match="its file says 'yesterday', which is no ISO 8601 date; use --format csv"):
        as_prometheus(replace(hostile_run(), started="yesterday"))
