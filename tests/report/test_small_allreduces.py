"""`latency --collectives`: which memory wins from which size, what a token costs, and what vLLM publishes."""

from __future__ import annotations

import csv
import gzip
import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from collbench.judge.diagnose import Diagnosis
from collbench.judge.registration import published, small_allreduces
from collbench.model.operations import Registration
from collbench.report.text.collectives import small_allreduces_json as as_json
from collbench.report.text.frame import run_page as page
from tests.golden import made
from tests.report.pages import text

ROOT = Path(__file__).parents[2]
H100 = "NVIDIA H100 80GB HBM3"


@pytest.mark.parametrize("layers", [1, 32])
def test_a_token_costs_two_allreduces_of_each_layer(layers: int) -> None:
    seconds = small_allreduces(made.small_allreduces(layers=layers)).token_seconds
    assert seconds[Registration.WINDOW] == pytest.approx(layers * 2 * 4.69e-6 * 1.002)


def test_json_says_the_same_and_follows_its_schema() -> None:
    schema = json.loads((ROOT / "docs" / "answer.schema.json").read_text(encoding="utf-8"))
    answer = json.loads(json.dumps(as_json(made.small_allreduces())))
    jsonschema.validate(answer, schema["properties"]["small_allreduces"], jsonschema.Draft202012Validator)
    assert [one["registrations"] for one in answer["fastest"]][:1] == [["window"]]
    assert answer["token"]["seconds"]["none"] == pytest.approx(160 * 6.91e-6 * 1.002)
    assert {"size_bytes": 2**14, "seconds": pytest.approx(4.44e-6)} in answer["custom_all_reduce"]["times"]
    assert as_json(made.small_allreduces(name="NVIDIA A100-SXM4-80GB"))["custom_all_reduce"] is None


# Published times.


@pytest.mark.parametrize(
    ("name", "count", "machine"),
    [
        (H100, 4, "H100"),
        ("NVIDIA H200", 8, "H200"),
        ("NVIDIA B200", 2, "B200"),
        ("NVIDIA GB200", 4, "GB200"),
        ("NVIDIA B300 SXM6 AC", 8, "B300"),
        ("NVIDIA GB300", 2, "GB300"),
        (H100, 3, None),  # no such number of ranks was published
        ("NVIDIA H100 NVL", 2, None),
        ("NVIDIA H100 PCIe", 2, None),
        ("NVIDIA A100-SXM4-80GB", 2, None),  # one version
        ("NVIDIA L40S", 2, None),  # one version
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 2, None),  # versions disagree
    ],
)
def test_times_are_shown_for_the_machine_and_number_of_ranks_they_are_of(
    name: str, count: int, machine: str | None
) -> None:
    custom = small_allreduces(made.small_allreduces(name=name, count=count)).custom
    assert (custom.machine if custom else None) == machine
    shown = text(page(Diagnosis(made.small_allreduces(name=name, count=count))), verbose=False)
    assert (f"reference no published times of vLLM's custom all-reduce on {count} × {name}" in shown) == (not machine)


def test_each_published_time_is_a_row_of_the_source_and_agrees_with_an_older_version() -> None:
    with gzip.open(ROOT / "tests/data/published/aiconfigurator_custom_all_reduce.csv.gz", "rt", newline="") as file:
        rows = [*csv.DictReader(file)]
    seen = 0
    for figure in published().figures:
        prefix = figure.machine.lower() + ("" if figure.machine.startswith("G") else "_sxm") + "_comm_"
        ours = [row for row in rows if row["file"].startswith(prefix) and int(row["num_gpus"]) == figure.ranks]
        for size, microseconds in zip(published().sizes, figure.microseconds, strict=True):
            at_size = [row for row in ours if int(row["message_size"]) == size]
            newest = [float(row["milliseconds"]) * 1e3 for row in at_size if row["version"] == figure.vllm]
            older = [float(row["milliseconds"]) * 1e3 for row in at_size if row["version"] != figure.vllm]
            assert min(newest) - 0.006 <= microseconds <= max(newest) + 0.006
            assert any(1 / 1.21 < microseconds / other < 1.21 for other in older)
            seen += 1
    assert seen == 14 * (4 * 3 + 2 * 2)  # sizes, ranks of H100, H200, B200 and B300, and of two trays of four


def test_the_shipped_times_are_those_that_the_script_makes() -> None:
    script = ROOT / "benchmarks" / "published_latencies.py"
    assert subprocess.run([sys.executable, str(script), "--check"], check=False).returncode == 0
