"""The published schema of the job file agrees with the model and with real files."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from collbench.jobs import job as model
from collbench.jobs import job_file
from collbench.jobs.recorded import merge
from collbench.model.errors import RunFileError
from collbench.model.operations import COLLECTIVES
from tests.native.recorded import Made, play, streams

SCHEMA: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "docs" / "job.schema.json").read_text(encoding="utf-8")
)
CLASSES = {name: getattr(model, name) for name in SCHEMA["$defs"]}


def test_a_recorded_job_follows_the_schema(tmp_path: Path) -> None:
    Draft202012Validator.check_schema(SCHEMA)
    step = Made("allreduce", 5).line() + Made("send", 3, root=1, captured=True).line()
    play(
        f"comm 0 7 0 2 world\nrepeat 300\n{step}end\n{Made('reduce', 1, root=1).line()}repeat 300\n{step}end\n",
        tmp_path,
        5,
    )
    job = merge(streams(tmp_path), ["train"]).job
    assert job.ranks[0].order
    fields = json.loads(job_file.dumps(job))
    Draft202012Validator(SCHEMA).validate(fields)
    del fields["ranks"][0]["phases"][0]["positions"][0]["call"]
    assert not Draft202012Validator(SCHEMA).is_valid(fields)


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_the_schema_has_the_models_fields(name: str) -> None:
    fields = dataclasses.fields(CLASSES[name])
    required = [f.name for f in fields if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING]
    assert list(SCHEMA["$defs"][name]["properties"]) == [field.name for field in fields]
    assert SCHEMA["$defs"][name]["required"] == required


def test_the_schema_has_every_value() -> None:
    operations = [operation.value for operation in COLLECTIVES] + [operation.value for operation in model.PointToPoint]
    assert SCHEMA["$defs"]["Call"]["properties"]["operation"]["enum"] == operations
    assert SCHEMA["properties"]["unknown"]["items"]["enum"] == [word.value for word in model.Unknown]
    assert SCHEMA["properties"]["source"]["enum"] == [word.value for word in model.Source]
    assert list(SCHEMA["properties"])[2:] == [field.name for field in dataclasses.fields(model.Job)]


def test_a_job_that_cannot_be_read_gives_a_short_reason(tmp_path: Path) -> None:
    with pytest.raises(RunFileError) as none:
        job_file.load(tmp_path / "none.json")
    assert str(none.value) == f"cannot read job file {tmp_path / 'none.json'}: No such file or directory"
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RunFileError) as binary:
        job_file.load(tmp_path / "binary.json")
    assert str(binary.value) == f"{tmp_path / 'binary.json'} is not a job file: it is not text"
