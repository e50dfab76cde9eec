"""Our JSON against what nccl-tests' writer puts there: keys and types from src/util.cu, figures from recorded text."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from collbench.model.errors import UsageError
from collbench.model.operations import Operation, Variant
from collbench.model.run import Run, StopReason
from collbench.report.nccl_tests import dumps
from tests.builders import gpus, in_words, measured
from tests.builders import run_of as built
from tests.report.recorded import RECORDINGS, read, run_of, without_in_place

MIB = 2**20
# The keys in the order in which src/util.cu writes them, but "env".
TOP = ["version", "start_time", "args", "nccl_version", "config", "results", "out_of_bounds", "average_bus_bandwidth"]
TOP += ["errors", "end_time"]
CONFIG = ["nthreads", "ngpus", "minimum_bytes", "maximum_bytes", "step_factor", "warmup_iters", "iterations"]
CONFIG += ["aggregated_iterations", "validation", "graph", "blocking_collectives", "per_iter_timing", "per_iter_skip"]
CONFIG += ["parallel_init", "devices"]
DEVICE = ["rank", "group", "pid", "hostname", "device", "device_hex", "device_info"]
RESULT = ["size", "count", "type", "redop", "root", "out_of_place", "in_place", "actual_iterations", "experiment_name"]
HALF = ["time", "alg_bw", "bus_bw", "nwrong"]


def document(run: Run) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(dumps(run))
    return loaded


def four_ranks() -> Run:
    return run_of(read(next(path for path in RECORDINGS if path.stem == "all_reduce_perf-4-ranks")))


def test_keys_and_nesting_are_theirs() -> None:
    json_document = document(four_ranks())
    assert list(json_document) == TOP
    assert list(json_document["config"]) == CONFIG
    assert [list(device) for device in json_document["config"]["devices"]] == [DEVICE] * 4
    assert [list(result) for result in json_document["results"]] == [RESULT] * 30
    assert list(json_document["results"][0]["out_of_place"]) == list(json_document["results"][0]["in_place"]) == HALF
    assert list(json_document["out_of_bounds"]) == ["count", "okay"]
    assert list(json_document["average_bus_bandwidth"]) == ["bandwidth", "okay"]


def test_values_are_of_their_types() -> None:
    json_document = document(four_ranks())
    assert (json_document["version"], json_document["nccl_version"]) == (
        3,
        22809,
    )  # as the recorded header says of NCCL 2.28.9
    assert (json_document["start_time"], json_document["end_time"]) == ("2026-01-02 03:04:05", "2026-01-02 03:05:06")
    assert json_document["args"] == ["collbench", "all_reduce_perf", "-w", "5", "-n", "20"]
    assert json_document["config"] | {"devices": []} == {
        "nthreads": 4,
        "ngpus": 1,
        "minimum_bytes": 8,
        "maximum_bytes": 4294967296,
        "step_factor": 2,
        "warmup_iters": 5,
        "iterations": 20,
        "aggregated_iterations": 1,
        "validation": 1,
        "graph": 0,
        "blocking_collectives": "false",
        "per_iter_timing": "false",
        "per_iter_skip": 0,
        "parallel_init": "false",
        "devices": [],
    }
    assert json_document["config"]["devices"][2] == {
        "rank": 2,
        "group": 0,
        "pid": 0,
        "hostname": "vm",
        "device": 2,
        "device_hex": "0000:00:08",
        "device_info": "NVIDIA H200",
    }
    assert json_document["out_of_bounds"] == {"count": 0, "okay": "true"}
    assert json_document["average_bus_bandwidth"] == {
        "bandwidth": pytest.approx(119.917, abs=0.005),
        "okay": "unchecked",
    }
    assert json_document["errors"] == []


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_figures_are_those_that_were_recorded(path: Path) -> None:
    recording = read(path)
    results = document(run_of(recording))["results"]
    rows = [row for row in recording.rows if row[0] != "0"]
    for result, row in zip(results, rows, strict=True):
        assert tuple(str(result[key]) for key in RESULT[:4]) == row[:4]
        assert result["root"] == f"{row[4]:>6}"
        for half, columns in ((result["out_of_place"], row[5:9]), (result["in_place"], row[9:13])):
            digits = [len(column.partition(".")[2]) for column in columns[:3]]
            assert tuple(f"{half[key]:.{n}f}" for key, n in zip(HALF, digits, strict=False)) == columns[:3]
            assert half["nwrong"] == (None if columns[3] == "N/A" else float(columns[3]))


def test_what_was_not_measured_is_null() -> None:
    assert [result["in_place"] for result in document(without_in_place(four_ranks()))["results"]] == [None] * 30


def test_a_run_on_a_list_of_sizes_steps_by_bytes() -> None:
    run = built(gpus(2), [measured(Operation.ALLREDUCE, (0, 1), 1.0, size) for size in (8, 16, 20)])
    assert document(run)["config"]["step_bytes"] == 0


def test_faults_are_errors_and_not_okay() -> None:
    good = measured(Operation.ALLREDUCE, (0, 1), 100.0, MIB)
    hung = replace(good, point=replace(good.point, variant=Variant.IN_PLACE), samples=[], stop=StopReason.FAILED)
    hung.failure = in_words("no answer within 2 s")
    json_document = document(built(gpus(2), [good, hung]))
    assert json_document["out_of_bounds"] == {"count": 0, "okay": "false"}
    assert json_document["errors"] == ["1048576 in place: no answer within 2 s"]
    assert json_document["results"][0]["in_place"] is None


def test_wrong_values_are_counted() -> None:
    wrong = replace(measured(Operation.ALLREDUCE, (0, 1), 100.0, MIB), wrong=7)
    json_document = document(built(gpus(2), [wrong]))
    assert json_document["out_of_bounds"] == {"count": 1, "okay": "false"}
    assert json_document["results"][0]["out_of_place"]["nwrong"] == 7.0


def test_rows_of_several_communicators_say_whose_they_are() -> None:
    json_document = document(
        built(gpus(3), [measured(Operation.ALLREDUCE, pair, 100.0, MIB) for pair in ((0, 1), (0, 2))])
    )
    assert [row["experiment_name"] for row in json_document["results"]] == [
        "all_reduce_perf GPU0 GPU1",
        "all_reduce_perf GPU0 GPU2",
    ]
    assert [(one["group"], one["rank"], one["device"]) for one in json_document["config"]["devices"]] == [
        (0, 0, 0),
        (0, 1, 1),
        (1, 0, 0),
        (1, 1, 2),
    ]


def test_the_environment_stays_the_users_own() -> None:
    run = four_ranks()
    run.settings = replace(run.settings, environment={"NCCL_ALGO": "Ring"})
    assert "env" not in document(run)
    assert "Ring" not in dumps(run)


@pytest.mark.parametrize(
    ("version", "code"),
    [("2.28.9", 22809), ("2.9.6", 20906), ("2.8.3", 2803), ("", 0), ("2.27.3+cuda12", 22703)],  # nccl.h
)
def test_the_librarys_version_is_its_own_number(version: str, code: int) -> None:
    run = four_ranks()
    run.machine = replace(run.machine, nccl=version)
    assert document(run)["nccl_version"] == code


def test_the_text_is_json_and_ends_its_line() -> None:
    assert "NaN" not in dumps(four_ranks())
    assert dumps(four_ranks()).endswith("}\n")


def test_a_run_without_collectives_is_refused() -> None:
    with pytest.raises(UsageError, match="this run holds none"):
        dumps(built(gpus(2), [measured(Operation.CE_WRITE, (0, 1), 300.0)]))
