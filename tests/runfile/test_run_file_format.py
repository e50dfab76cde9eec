"""The published description of the run file: schema and page agree with the code and with real files."""

import contextlib
import dataclasses
import functools
import json
import math
import os
import pathlib
import re
import typing
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator, ValidationError

from collbench import annexes
from collbench.api import Notices
from collbench.api.measuring import measure
from collbench.jobs.replay.results import Replay, ReplayedCall, ReplayTrial
from collbench.model.errors import Cause, Failure, FailureKind, RunFileError, WrongData, died
from collbench.model.operations import Operation, Variant, Work
from collbench.model.run import (
    CommandKind,
    DataPoint,
    Health,
    InterferenceCheck,
    Latency,
    Layout,
    Measurement,
    NetworkPort,
    RankLaunches,
    Run,
    SkipKind,
    Skipped,
    StopReason,
)
from collbench.model.units import DTYPE_BYTES, REDOPS
from collbench.overlaps.results import Compute, ComputeKind, Overlap, OverlapTrial
from collbench.report import sentences
from collbench.runfile import run_file
from collbench.runfile.run_file import SECTIONS
from tests.builders import ALL, gpus, measured, pair_run, run_of, shared

DOCS = pathlib.Path(__file__).parents[2] / "docs"
SCHEMA: dict[str, Any] = json.loads((DOCS / "run-file.schema.json").read_text(encoding="utf-8"))
PAGE = (DOCS / "run-file.md").read_text(encoding="utf-8")


def flagged(measurement: Measurement, variant: Variant) -> Measurement:
    """Return the same of another variant, with a flag on each sample and nothing verified."""
    samples = [dataclasses.replace(sample, flags=(shared(0),)) for sample in measurement.samples]
    return Measurement(dataclasses.replace(measurement.point, variant=variant), samples, measurement.stop, wrong=None)


def as_json(run: Run) -> Any:
    return json.loads(run_file.dumps(run))


EARLIER = Failure(
    FailureKind.ERROR, Cause.REFUSED, (2,), 1, Work(Operation.SM_READ), 8, ((2, 3),), detail="CUDA error 719"
)
FAILURE = dataclasses.replace(died(-9, "Killed", (2,)), seconds=1.5, count=2, because=EARLIER)
LINK = WrongData(Work(Operation.CE_WRITE), 2**20, (0, 1), 3, 17, 1.0, 2.0)


def rich_run() -> Run:
    """Return a run with something in every list."""
    run = pair_run(4, lambda a, b: 300.0 + a)
    run.measurements.append(measured(Operation.ALLREDUCE, (0, 1, 2, 3), 200.0, launch=1e-5))
    run.measurements.append(flagged(measured(Operation.CE_WRITE, (0, 1, 2, 3), 90.0), Variant.ONE_TO_ALL))
    run.measurements.append(flagged(measured(Operation.H2D_CE, (3,), 50.0), Variant.HOST))
    hang = Measurement(DataPoint(Operation.SM_READ, (2, 3), 8), [], StopReason.FAILED, failure=FAILURE)
    run.measurements.append(hang)
    launches = RankLaunches((0, 3), (9000, 9100), 1500, 900, 32)
    point, flags = DataPoint(Operation.ALLREDUCE, (0, 1), 8), (shared(0),)
    run.latencies.append(Latency(point, (launches, launches), concurrent=True, flags=flags))
    run.phases.update({"warm-up": 0.5, "trials": 2.0, "timed": 1.5})
    run.machine = dataclasses.replace(run.machine, multicast=True)
    run.skipped.append(Skipped(SkipKind.ROOM, sizes=(2**33,), limit_bytes=2**32, free_bytes=(2**34,) * 4))
    run.skipped.append(Skipped(SkipKind.WRONG_DATA, members=(0, 1), wrong=LINK))
    run.interference_checks.append(
        InterferenceCheck(Operation.ALLREDUCE, (0, 1), "NV18", 300.0, 299.0, 0.9967, 0.02, trusted=True)
    )
    times = (1e-3, 2e-3)
    overlap = OverlapTrial(times, times, times, times, times, times, times, times, 9, 9, 3, (shared(0),))
    compute = Compute(ComputeKind.GEMM, 8192)
    run.sections["overlaps"] = [
        Overlap(Work(Operation.ALLREDUCE), (0, 1), 2**20, compute, ctas=4, trials=[overlap], wrong=0)
    ]
    replayed = ReplayTrial(times, times, times, (1e-4,), 5, flags=(shared(0),))
    call = ReplayedCall("allreduce", 2**20, 2, 3, 1e-4)
    run.sections["replays"] = [Replay("job.json", (0, 1), (call,), recorded_seconds=1.0, trials=[replayed])]
    run.ports_before = (NetworkPort("mlx5_0", 1, rate_gbits=400.0, counters={"symbol_error": 1}),)
    run.health_before = run.health_after = (Health(1980, 3201, 38, 90.5, ("SW power cap",), 0, 5, 0, 0, 0, 1),) * 4
    return run


@pytest.fixture(scope="module")
def host_run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the JSON of a file that a real measurement on this machine's cores has saved."""
    path = tmp_path_factory.mktemp("host") / "run.json"
    request = dataclasses.replace(ALL, backend="host", sizes=(4096, 65536), collectives=(), command=("pairs",))
    measure(request, path, Notices(say=pytest.fail), "measuring")
    return json.loads(path.read_text(encoding="utf-8"))


def validate(data: Any) -> None:
    Draft202012Validator(SCHEMA).validate(data)


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(SCHEMA)


def test_a_made_up_run_follows_the_schema() -> None:
    validate(as_json(rich_run()))


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_measured_run_follows_the_schema(host_run: Any) -> None:
    validate(host_run)
    assert host_run["complete"] is True
    assert len(host_run["measurements"]) >= 8  # two cores or more, two directions, two copies, two sizes


def put(*keys: str | int, value: object) -> Callable[[Any], None]:
    return lambda data: functools.reduce(lambda place, key: place[key], keys[:-1], data).__setitem__(keys[-1], value)


@pytest.mark.parametrize(
    ("title", "damage"),
    [
        ("another format", put("format", value="other")),
        ("no devices", lambda data: data.pop("devices")),
        ("a device without identity", lambda data: data["devices"][0].pop("uuid")),
        ("an unknown command", put("settings", "kind", value="rm")),
        ("no sizes", put("settings", "requested_sizes", value=[])),
        ("an unknown operation", put("measurements", 0, "point", "operation", value="teleport")),
        ("a pair with itself", put("measurements", 0, "point", "members", value=[1, 1])),
        ("a trial without batches", put("measurements", 0, "samples", 0, "seconds", value=[])),
        ("a data point without trials", put("measurements", 0, "samples", value=[])),
        ("no trials, and no word why", lambda data: data["measurements"][0].pop("samples")),
        ("one device between devices", put("measurements", 0, "point", "members", value=[1])),
        ("a flag that is no flag", put("measurements", 0, "samples", 0, "flags", value=[1])),
        ("a flag of no kind", put("measurements", 0, "samples", 0, "flags", value=[{"kind": "sad", "devices": [0]}])),
        ("a variable that is not NCCL's", put("settings", "environment", value={"HOME": "/root"})),
        ("a path with three ends", put("paths", 0, "devices", value=[0, 1, 2])),
    ],
)
def test_a_damaged_run_does_not(title: str, damage: Callable[[Any], None]) -> None:
    data = as_json(rich_run())
    damage(data)
    with pytest.raises(ValidationError):
        validate(data)


def numbers(part: Any, data: Any, place: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield each number of a run's JSON with its place and its schema."""
    while "$ref" in part:
        part = SCHEMA["$defs"][part["$ref"].rsplit("/", 1)[-1]]
    part = next((one for one in part.get("anyOf", []) if one != {"type": "null"}), part)
    if isinstance(data, dict):
        for key, value in data.items():
            if key != "format_version":
                inner = part.get("properties", {}).get(key) or part.get("additionalProperties")
                yield from numbers(inner or {}, value, (*place, key))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from numbers(part.get("items", {}), value, (*place, index))
    elif isinstance(data, int | float) and not isinstance(data, bool):
        yield place, part


def impossible(name: str | int, part: Any) -> list[Any]:
    """Return what a number of this name and schema cannot be."""
    values: list[Any] = [math.nan, math.inf, -math.inf]
    values += [part["minimum"] - 1] if "minimum" in part else []
    values += [0, -1e-9, 1e-320] if "exclusiveMinimum" in part else []
    return values if name == "seed" else [*values, 10**400]


def accepted(text: str) -> bool:
    try:
        run_file.loads(text, "x")
    except RunFileError:
        return False
    return True


def test_every_number_outside_the_schema_or_beyond_all_measure_is_damage() -> None:
    kinds = {
        tuple("" if isinstance(step, int) else step for step in place): (place, part)
        for place, part in numbers(SCHEMA, as_json(rich_run()))
    }
    wrongly, text = [], run_file.dumps(rich_run())
    for place, part in kinds.values():
        for value in impossible(place[-1], part):
            damaged = json.loads(text)
            put(*place, value=value)(damaged)
            if accepted(json.dumps(damaged)):
                wrongly.append((place, value))
    assert wrongly == []
    assert len(kinds) > 80


@pytest.mark.parametrize(
    ("title", "damage", "says"),
    [
        ("no such rank", put("settings", "root", value=4), "run.settings.root is 4, but 4 ranks count from 0"),
        ("a rank's time is missing", put("overlaps", 0, "trials", 0, "together", value=[1.0]), "has 1 times, but"),
        ("no call", put("overlaps", 0, "trials", 0, "beside_calls", value=[]), "trials[0] has no calls"),
        ("a rank of no device", put("overlaps", 0, "members", value=[0, 4]), "run.overlaps[0].members is [0, 4]"),
        ("a step of no rank", put("replays", 0, "trials", 0, "step", value=[]), "step has 0 times, but there are 2"),
        (
            "a call too many",
            put("replays", 0, "trials", 0, "call_seconds", value=[1, 2]),
            "has 2 times, but there are 1",
        ),
        (
            "a flag elsewhere",
            put("replays", 0, "trials", 0, "flags", 0, "devices", value=[9]),
            "a flag's devices is [9]",
        ),
    ],
)
def test_ranks_and_their_times_agree(title: str, damage: Callable[[Any], None], says: str) -> None:
    data = as_json(rich_run())
    damage(data)
    with pytest.raises(RunFileError, match=re.escape(says)):
        run_file.loads(json.dumps(data), "x")


def test_a_section_is_not_taken_from_its_own_name() -> None:
    data = as_json(rich_run())
    data["sections"] = {"overlaps": data.pop("overlaps")}
    assert [*run_file.loads(json.dumps(data), "x").sections] == ["replays"]


def test_a_value_that_json_lacks_is_no_value() -> None:
    found = WrongData(Work(Operation.ALLREDUCE), 8, (0, 1), 1, 0, 1.0, math.nan)
    run = rich_run()
    run.skipped = [Skipped(SkipKind.WRONG_DATA, wrong=found)]
    text = run_file.dumps(run)
    assert "NaN" not in text
    assert run_file.loads(text, "x") == run
    assert "expected 1, found no finite number" in sentences.wrong_data(found, run.devices, run.paths)


@pytest.mark.parametrize("damaged", [False, True])
def test_schema_and_reader_agree_on_which_points_may_have_no_trials(damaged: bool) -> None:
    data = as_json(rich_run())
    (hang,) = [measurement for measurement in data["measurements"] if measurement["failure"]]
    hang["failure"] = None if damaged else hang["failure"]
    for accept, refusal in ((validate, ValidationError), (lambda d: run_file.loads(json.dumps(d), "x"), RunFileError)):
        with pytest.raises(refusal) if damaged else contextlib.nullcontext():
            accept(data)


@pytest.mark.parametrize(
    ("schema", "values"),
    [
        (SCHEMA["$defs"]["operation"], list(Operation)),
        (SCHEMA["$defs"]["variant"], list(Variant)),
        (SCHEMA["$defs"]["measurement"]["properties"]["stop"], [*StopReason, None]),
        (SCHEMA["$defs"]["settings"]["properties"]["dtype"], list(DTYPE_BYTES)),
        (SCHEMA["$defs"]["settings"]["properties"]["redop"], list(REDOPS)),
        (SCHEMA["$defs"]["settings"]["properties"]["kind"], [*CommandKind, *annexes.RUNS]),
        (SCHEMA["$defs"]["settings"]["properties"]["layout"], list(Layout)),
        (SCHEMA["$defs"]["failure"]["properties"]["kind"], [*FailureKind, None]),
        (SCHEMA["$defs"]["failure"]["properties"]["cause"], list(Cause)),
        (SCHEMA["properties"]["skipped"]["items"]["properties"]["kind"], list(SkipKind)),
    ],
    ids=["operation", "variant", "stop", "dtype", "redop", "kind", "layout", "failure", "cause", "skip"],
)
def test_the_schema_has_every_value(schema: Any, values: list[str | None]) -> None:
    assert schema["enum"] == values


def fields(kind: Any) -> Iterator[tuple[str, dict[str, bool]]]:
    """Yield each dataclass that a Run holds, with its fields and whether they are required."""
    required = {
        field.name: field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        for field in dataclasses.fields(kind)
    }
    yield kind.__name__, required
    for hint in typing.get_type_hints(kind).values():
        for part in (hint, *typing.get_args(hint)):
            if dataclasses.is_dataclass(part) and part is not kind:  # a failure may have an earlier one
                yield from fields(part)


def described() -> dict[str, dict[str, bool]]:
    """Return the same from the schema, by the dataclasses' names."""
    parts = {
        "".join(map(str.capitalize, name.split("_"))): part
        for name, part in SCHEMA["$defs"].items()
        if "properties" in part
    }
    parts["Run"] = SCHEMA
    parts["PeerReadWrite"] = parts["Path"]["properties"]["peer_access"]
    parts["DataPoint"] = parts["Measurement"]["properties"]["point"]
    parts["Skipped"] = SCHEMA["properties"]["skipped"]["items"]
    own = {"format", "format_version"}
    return {
        name: {field: field in part["required"] for field in part["properties"] if field not in own}
        for name, part in parts.items()
    }


def test_the_schema_has_the_models_fields_and_requires_the_same() -> None:
    modelled = dict(fields(Run))
    del modelled["Run"]["sections"]
    for name, package in SECTIONS.items():
        modelled["Run"][name] = False
        modelled |= fields(annexes.load(f"{package}.results").RESULT)
    assert described() == modelled


def test_the_pages_example_gives_the_matrix(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    links = [(a, b) for a in range(3) for b in range(3) if a != b]
    copies = [measured(Operation.CE_WRITE, (a, b), 100.0 * a + b + 1, size) for a, b in links for size in (8, 2**30)]
    run_file.save(run_of(gpus(3), copies), tmp_path / "run.json")
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {}
    exec(example, names)  # noqa: S102  # the page is ours
    expected = [[np.nan, 2, 3], [101, np.nan, 103], [201, 202, np.nan]]
    np.testing.assert_allclose(names["matrix"], expected, rtol=1e-6)
    assert capsys.readouterr().out.startswith("ce-write 1073741824 bytes, GB/s\n")
