"""prometheus_client's parser reads the metrics back: names, units, labels, values."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from collbench.errors import RunFileError
from collbench.exchange.prometheus import as_prometheus
from collbench.exchange.rows import rows
from tests.exchange.hostile import NAME, hostile_run

TEXT = as_prometheus(hostile_run())
FAMILIES = {family.name: family for family in text_string_to_metric_families(TEXT)}
LABELS = ("backend", "operation", "variant", "numa_node", "source", "destination", "members", "size_bytes")
# metric, the column that it is of, its factor to the base unit
METRICS = [
    ("time_seconds", "seconds", 1),
    ("launch_time_seconds", "launch_seconds", 1),
    ("algbw_bytes_per_second", "algbw_gbs", 1e9),
    ("busbw_bytes_per_second", "busbw_gbs", 1e9),
    ("busbw_low_bytes_per_second", "busbw_low_gbs", 1e9),
    ("busbw_high_bytes_per_second", "busbw_high_gbs", 1e9),
    ("visits", "visits", 1),
    ("wrong_elements", "wrong", 1),
]


@pytest.mark.parametrize(("name", "column", "factor"), METRICS)
def test_each_cell_is_a_sample_with_its_value(name: str, column: str, factor: float) -> None:
    family = FAMILIES[f"collbench_{name}"]
    read = {tuple(sorted(sample.labels.items())): sample.value for sample in family.samples}
    for row in rows(hostile_run()):
        labels = {label: str(row[label]) for label in LABELS if row[label] is not None}
        value = row[column]
        assert read.pop(tuple(sorted(labels.items())), None) == (None if value is None else float(value) * factor)
    assert read == {}


def test_every_family_is_a_gauge_with_help_and_no_timestamp() -> None:
    assert len(FAMILIES) == len(METRICS) + 6
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
