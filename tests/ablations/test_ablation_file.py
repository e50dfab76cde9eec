"""The ablation file: it is read as it was saved, follows its published schema, and errors name what is wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from collbench.ablations import ablation as ablations
from collbench.ablations.ablation import Ablation, Measure, judge, stop_of
from collbench.model.errors import RunFileError
from tests.ablations.made import ablation, run

ROOT = Path(__file__).parents[2]
SCHEMA: dict[str, Any] = json.loads((ROOT / "docs" / "ablation.schema.json").read_text(encoding="utf-8"))
RECORDED = ROOT / "tests" / "data" / "ablation" / "h200x2-gpt2-ddp.json"


def unfinished() -> Ablation:
    ablated = ablation([0.0224, 0.0225], [0.0321, 0.0323])
    ablated.arms[1].runs[1:] = [run(1, 3, status=1)]
    ablated.result = None
    return ablated


def timed_as_processes() -> Ablation:
    ablated = ablation([1.0, 1.0], [2.0, 2.0], names=("on GPU0, GPU1", "on GPU2, GPU3"))
    for arm in ablated.arms:
        arm.allreduce = ()
        arm.runs = [run(training_run.repeat, training_run.order, runtime=3.0) for training_run in arm.runs]
    ablated.measure, ablated.skip, ablated.step_pattern = Measure.TRAIN_RUNTIME, 3, r"(?P<ms>\d+)"
    return ablated


def with_the_gpus_time() -> Ablation:
    ablated = ablation([0.0224, 0.0225, 0.0229], [0.0321, 0.0323, 0.0311])
    for arm in ablated.arms:
        arm.runs = [
            replace(training_run, gpu_seconds=(0.018,) * len(training_run.step_seconds)) for training_run in arm.runs
        ]
    ablated.budget_seconds, ablated.result = 180.0, judge(ablated)
    ablated.stop = stop_of(ablated, 60.0)
    return ablated


CASES = {
    "with the GPU's time": with_the_gpus_time(),
    "finished": ablation([0.0224, 0.0225], [0.0321, 0.0323]),
    "unfinished": unfinished(),
    "processes": timed_as_processes(),
}


@pytest.mark.parametrize("text", [RECORDED.read_text(encoding="utf-8"), ablations.dumps(CASES["with the GPU's time"])])
def test_files_follow_the_schema_and_have_no_other_fields(text: str) -> None:
    data = json.loads(text)
    Draft202012Validator(SCHEMA).validate(data)
    definitions = SCHEMA["$defs"]
    assert set(data) <= set(SCHEMA["properties"])
    assert set(data["arms"][0]) == set(definitions["arm"]["properties"])
    assert set(data["arms"][0]["runs"][0]) <= set(definitions["run"]["properties"])
    assert set(data["result"]) <= set(definitions["result"]["properties"])
    written = ablations.dumps(ablations.loads(text, "again"))
    Draft202012Validator(SCHEMA).validate(json.loads(written))
    assert set(json.loads(written)) == set(SCHEMA["properties"])
    assert ablations.loads(written, "again") == ablations.loads(text, "again")


def changed(**changes: object) -> str:
    return json.dumps(json.loads(ablations.dumps(CASES["finished"])) | changes)


def with_a_run(**changes: object) -> str:
    data = json.loads(ablations.dumps(CASES["finished"]))
    data["arms"][0]["runs"][0] |= changes
    return json.dumps(data)


SPREAD = json.loads(ablations.dumps(CASES["finished"]))["result"] | {"spread": {"between": -0.1, "within": None}}


@pytest.mark.parametrize(
    ("case", "text", "reported"),
    [
        ("cut off", '{"format": "collbench-ablation", ', "cut off or damaged at"),
        ("a run file", '{"format": "collbench-run"}', "not a collbench ablation"),
        ("a later version", changed(format_version=2), "has ablation-file version 2"),
        ("a field that is missing", '{"format": "collbench-ablation", "format_version": 1}', "has no 'collbench'"),
        ("one arm", changed(arms=[]), "damaged ablation file"),
        ("an unknown measure", changed(measure="epoch"), "not one of step, train_runtime, process"),
        ("a time of zero", with_a_run(wall_seconds=0.0), "not positive and finite"),
        ("a spread below zero", changed(result=SPREAD), "spread.between is -0.1, not 0 or more"),
        ("nested a thousand deep", "[" * 100_000, "nested too deep"),
    ],
)
def test_another_file_is_one_line(case: str, text: str, reported: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(RunFileError, match=reported) as error:
        ablations.load(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)
