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

import collbench
from collbench.choose.select import evidence
from collbench.judge.diagnose import Diagnosis
from collbench.judge.registration import published, small_allreduces
from collbench.judge.stats import summarize
from collbench.model.operations import Registration
from collbench.report.collectives import small_allreduces_json as as_json
from collbench.report.frame import run_page as page
from tests.golden import made
from tests.report.pages import text

ROOT = Path(__file__).parents[2]
H100 = "NVIDIA H100 80GB HBM3"


# What the test makes: microseconds of 16K with two ranks on symmetric and ordinary memory; by how much more ranks take
# longer (tests.golden.made).
SYMMETRIC, ORDINARY = 4.69e-6 * 1.002, 6.91e-6 * 1.002
LONGER = {2: 1, 4: 1.5, 8: 2.5}
OF_EIGHT = made.MADE_RUNS["small-allreduces-of-eight.json"]


@pytest.mark.parametrize("layers", [1, 32])
def test_a_token_costs_two_allreduces_of_each_layer(layers: int) -> None:
    (found,) = small_allreduces(made.small_allreduces(layers=layers))
    assert found.token_seconds[Registration.WINDOW] == pytest.approx(layers * 2 * SYMMETRIC)


def test_each_number_of_ranks_has_its_own_times_winners_and_published_times() -> None:
    every = small_allreduces(OF_EIGHT())
    assert [len(found.members) for found in every] == [*LONGER]
    for found, (ranks, longer) in zip(every, LONGER.items(), strict=True):
        assert found.token_seconds[Registration.NONE] == pytest.approx(160 * ORDINARY * longer)
        for call in found.timed:
            assert (call.launch_at(50), call.launch_at(99)) == pytest.approx((ranks * 4e-6, 90e-6))
        assert found.custom is not None
        assert found.custom.ranks == ranks
        at_1m = next(winner for winner in found.winners if winner.size_bytes == 2**20)
        assert (at_1m.fastest == (Registration.WINDOW,)) is (ranks == 8)


def test_a_short_page_says_which_gpu_is_late_once(tmp_path: Path) -> None:
    late = {"kind": "late-gpu", "devices": [3], "us": 50}
    fabric = tmp_path / "late.json"
    head = {"format": "collbench-fabric", "format_version": 2, "name": "late", "base": "hgx-h200"}
    fabric.write_text(json.dumps(head | {"faults": [late]}), encoding="utf-8")
    run = collbench.measure("latency", layers=1, backend="sim", fabric=str(fabric), seed=1)
    shown = text(page(Diagnosis(run)), verbose=False)
    lines = [line for line in shown.splitlines() if line.startswith("late ")]
    (line,) = map(str.split, lines)
    assert line[1:7] == ["of", "8", "ranks,", "GPU3", "arrives", "50.00"]


def test_json_says_the_same_and_follows_its_schema() -> None:
    schema = json.loads((ROOT / "docs" / "answer.schema.json").read_text(encoding="utf-8"))
    answers = json.loads(json.dumps(as_json(OF_EIGHT())))
    jsonschema.validate(answers, schema["properties"]["small_allreduces"], jsonschema.Draft202012Validator)
    assert [answer["ranks"] for answer in answers] == [*LONGER]
    assert answers[1]["devices"] == ["GPU0", "GPU1", "GPU2", "GPU3"]
    for answer in answers:
        assert answer["fastest"][0]["registrations"] == ["window"]
        assert answer["token"]["seconds"]["none"] == pytest.approx(160 * ORDINARY * LONGER[answer["ranks"]])
        assert answer["custom_all_reduce"]["ranks"] == answer["ranks"]
    assert {"size_bytes": 2**14, "seconds": pytest.approx(4.44e-6)} in answers[0]["custom_all_reduce"]["times"]
    (unknown,) = as_json(made.small_allreduces(name="NVIDIA A100-SXM4-80GB"))
    assert unknown["custom_all_reduce"] is None


def test_the_first_powers_of_two_of_the_devices_and_all_are_measured() -> None:
    run = collbench.measure("latency", layers=1, backend="sim", fabric="hgx-h200", devices="0,3,5,6,7,1", seed=1)
    assert run.settings.sets == tuple(tuple(range(count)) for count in (2, 4, 6))
    assert {latency.point.members for latency in run.latencies} == {*run.settings.sets}
    for found in small_allreduces(run):  # as long as an all-reduce over these devices alone
        some = ",".join(str(run.devices[member].index) for member in found.members)
        alone = collbench.measure("allreduce", sizes="16K", backend="sim", fabric="hgx-h200", devices=some, seed=2)
        (only,) = alone.measurements
        assert found.at(2**14)[Registration.NONE].seconds == pytest.approx(summarize(only).seconds, rel=0.02)


def test_no_devices_are_chosen_by_the_only_pair_of_many() -> None:
    run = collbench.measure("latency", layers=1, backend="sim", fabric="nvlink-pairs-2x2", seed=1)
    assert evidence(run) is None


# Published times.


@pytest.mark.parametrize(
    ("name", "count", "machine"),
    [
        (H100, 4, "H100"),
        ("NVIDIA B200", 2, "B200"),
        ("NVIDIA B300 SXM6 AC", 8, "B300"),
        (H100, 3, None),  # no such number of ranks was published
        ("NVIDIA H100 NVL", 2, None),
        ("NVIDIA A100-SXM4-80GB", 2, None),  # one version
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 2, None),  # versions disagree
    ],
)
def test_times_are_shown_for_the_machine_and_number_of_ranks_they_are_of(
    name: str, count: int, machine: str | None
) -> None:
    (found,) = small_allreduces(made.small_allreduces(name=name, count=count))
    custom = found.custom
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
