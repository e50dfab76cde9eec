import errno
import json
import os
import pathlib
import types
import typing
from collections.abc import Callable
from dataclasses import fields, replace
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.model.errors import Failure, RunFileError
from collbench.model.operations import Operation, Registration
from collbench.model.run import BACKENDS, CommandKind, DataPoint, Device, Run, Sample
from collbench.runfile import run_file
from tests.builders import pair_run, shared

# What a file keeps of a number is seven digits, so those are what survives the round trip exactly.
NUMBERS = st.floats(1e-9, 1e9).map(lambda value: float(f"{value:.7g}"))
# What a terminal obeys is made readable on the way in (test_values.py).
TEXTS = st.text(st.characters(exclude_categories=("Cc", "Cf", "Cs", "Zl", "Zp")), max_size=12)
PLACES = st.sampled_from(((), (0,), (1, 0)))  # positions of a run's first two devices
PAIRS = st.sampled_from(((0, 1), (1, 0)))
SIMPLE: dict[Any, st.SearchStrategy[Any]] = {
    tuple[int, ...]: PLACES,
    tuple[int, int]: PAIRS,
    str: TEXTS,
    bool: st.booleans(),
    int: st.integers(0, 7),
    float: NUMBERS,
}


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Return what a file may hold where the model has this type, and of its fields what `LIMITED` says."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in SIMPLE:
        return SIMPLE[hint]
    if hasattr(hint, "__metadata__"):  # a number with its range
        return NUMBERS if arguments[0] is float else st.integers(max(hint.__metadata__[0].least, 0), 2**50)
    if origin in (typing.Union, types.UnionType):
        return st.none() | values(arguments[0])
    if origin in (tuple, list):
        fewest = 2 if arguments[0] is Device else int(hasattr(arguments[0], "__metadata__"))
        return st.lists(values(arguments[0]), min_size=fewest, max_size=3).map(origin)
    if issubclass(hint, Enum):
        return st.sampled_from(hint)
    hints = typing.get_type_hints(hint, include_extras=True)
    names = [field.name for field in fields(hint)]
    limited = {name: LIMITED[key] for name in names for key in (name, f"{hint.__name__}.{name}") if key in LIMITED}
    return st.builds(hint, **{name: limited[name] if name in limited else values(hints[name]) for name in names})


# What other fields of a run limit.
LIMITED: dict[str, st.SearchStrategy[Any]] = {
    "backend": st.sampled_from(sorted(BACKENDS)),
    "because": st.none() | st.deferred(lambda: values(Failure)),
    "counters": st.dictionaries(TEXTS, st.integers(0, 2**50), max_size=2),
    "dtype": st.sampled_from(["float32", "int8"]),
    "environment": st.dictionaries(TEXTS.map("NCCL_{}".format), TEXTS, max_size=2),
    "latencies": st.just([]),
    "members": PAIRS,
    "phases": st.dictionaries(TEXTS, NUMBERS, max_size=2),
    "point": st.builds(DataPoint, st.sampled_from(Operation), PAIRS, st.integers(1, 2**40)),
    "redop": st.just("sum"),
    "registration": st.just(Registration.NONE),
    "root": st.integers(0, 1),
    "samples": st.deferred(lambda: st.lists(values(Sample), min_size=1, max_size=2)),
    "sections": st.just({}),
    "sets": st.just(()),
    "Settings.kind": st.sampled_from(CommandKind),
    "skew": st.none(),
    "started": st.just("2026-01-02T03:04:05Z"),
}


def names_in(folder: pathlib.Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@given(values(Run))
def test_a_run_survives_the_round_trip(run: Run) -> None:
    assert run_file.loads(run_file.dumps(run), "run.json") == run


def test_a_file_survives_the_round_trip_in_a_folder_made_for_it(tmp_path: pathlib.Path) -> None:
    run = pair_run(3, lambda a, b: 300.0)
    path = tmp_path / "new" / "folder" / "run.json"
    run_file.save(run, path)
    assert run_file.dumps(run_file.load(path)) == run_file.dumps(run)
    assert names_in(path.parent) == ["run.json"]


def test_each_list_item_has_its_line() -> None:
    lines = run_file.dumps(pair_run(3, lambda a, b: 300.0)).splitlines()
    assert lines[0] == '{"format": "collbench-run", "format_version": 3, "backend": "cuda",'
    assert sum(line.startswith('{"point"') for line in lines) == 3


def test_a_name_that_is_not_utf8_is_kept(tmp_path: pathlib.Path) -> None:
    run = pair_run(2, lambda a, b: 300.0)
    undecodable = os.fsdecode(b"caf\xe9 \xe2\x82\xac")  # Latin-1 é, then a proper €
    run.settings = replace(run.settings, command=("pairs", undecodable))
    run_file.save(run, tmp_path / "run.json")
    assert run_file.load(tmp_path / "run.json").settings.command == ("pairs", undecodable)
    assert "€" in (tmp_path / "run.json").read_text(encoding="utf-8")


def test_unknown_fields_are_ignored_and_absent_ones_with_a_default_take_it() -> None:
    data = json.loads(run_file.dumps(pair_run(2, lambda a, b: 300.0)))
    data["colour"] = "blue"
    data["machine"]["altitude_m"] = 400
    del data["health_after"], data["machine"]["nccl"]
    run = run_file.loads(json.dumps(data), "x")
    assert (run.health_after, run.machine.nccl) == ((), "")


GOOD = run_file.dumps(pair_run(2, lambda a, b: 300.0))


def edited(change: Callable[[dict[str, object]], object]) -> str:
    data = json.loads(GOOD)
    change(data)
    return json.dumps(data)


def at(*keys: str | int, value: object) -> Callable[[dict[str, object]], None]:
    """Return an edit that puts `value` at a place in the file."""

    def change(data: dict[str, object]) -> None:
        target = data
        for key in keys[:-1]:
            target = target[key]  # type: ignore[index, assignment]  # any nesting of dicts and lists
        target[keys[-1]] = value  # type: ignore[index]

    return change


@pytest.mark.parametrize(
    ("title", "text", "message"),
    [
        ("empty", "", "run.json is not a run file: it is empty"),
        ("not JSON", "size,time\n8,1", "run.json is not a run file: it is not JSON"),
        ("nested without end", "[" * 100_000, "it is nested too deep"),
        ("a list", "[]", 'has no "format": "collbench-run"'),
        ("another program's JSON", '{"version": 3}', 'has no "format": "collbench-run"'),
        ("a newer version", edited(at("format_version", value=4)), "version 4, this collbench reads version 3: use"),
        ("an older version", edited(at("format_version", value=2)), "version 2, this collbench reads version 3: use"),
        ("a flag in words", edited(at("measurements", 0, "samples", 0, "flags", value=["hot"])), "is str, not dict"),
        ("no version", edited(lambda d: d.pop("format_version")), "has no run-file version, this"),
        ("a missing field", edited(lambda d: d.pop("backend")), "run has no 'backend'"),
        ("a missing field in a list", edited(at("devices", 1, value={})), "run.devices[1] has no 'index'"),
        ("text for a number", edited(at("devices", 0, "index", value="0")), "run.devices[0].index is str, not int"),
        ("a bool for an int", edited(at("settings", "seed", value=True)), "run.settings.seed is bool, not int"),
        ("a float for an int", edited(at("settings", "trials", value=5.0)), "run.settings.trials is float, not int"),
        ("an int for a bool", edited(at("complete", value=1)), "run.complete is int, not bool"),
        ("an object for a list", edited(at("paths", value={})), "run.paths is dict, not list"),
        ("three ends", edited(at("paths", 0, "devices", value=[0, 1, 2])), "paths[0].devices has 3 items instead of 2"),
        ("an unknown operation", edited(at("settings", "operations", 0, value="x")), "operations[0] is 'x', not one"),
        (
            "a variable's number",
            edited(at("settings", "environment", value={"NCCL_X": 1})),
            "environment.NCCL_X is int",
        ),
        ("an unknown backend", edited(at("backend", value="tpu")), "run.backend is 'tpu', not one of cuda, host, sim"),
        ("an unknown dtype", edited(at("settings", "dtype", value="float8")), "run.settings.dtype is 'float8'"),
        ("no sizes", edited(at("settings", "requested_sizes", value=[])), "run.settings.requested_sizes is []"),
        ("sets of one", edited(at("settings", "sets", value=[[0, 0]])), "run.settings.sets is [0, 0]"),
        (
            "an unknown command",
            edited(at("settings", "kind", value="rm")),
            "run.settings.kind is 'rm', which",
        ),
        ("a device too many", edited(at("measurements", 0, "point", "members", 1, value=2)), "members is [0, 2], not"),
        ("a negative position", edited(at("measurements", 0, "point", "members", 0, value=-1)), "members is [-1, 1]"),
        ("a pair of one", edited(at("paths", 0, "devices", value=[1, 1])), "run.paths[0].devices is [1, 1]"),
        ("no samples", edited(at("measurements", 0, "samples", value=[])), "run.measurements[0] has no batch times"),
        ("no batches", edited(at("measurements", 0, "samples", 0, "seconds", value=[])), "has no batch times"),
        ("not a time", edited(at("measurements", 0, "samples", 0, "seconds", 1, value=float("nan"))), "not positive"),
    ],
)
def test_a_bad_file_gets_one_clear_line(title: str, text: str, message: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(RunFileError) as caught:
        run_file.load(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_copy_among_three_is_damaged() -> None:
    data = json.loads(run_file.dumps(pair_run(3, lambda a, b: 300.0, operation=Operation.CE_WRITE)))
    data["measurements"][0]["point"]["members"] = [0, 1, 2]
    with pytest.raises(RunFileError, match="members are 3, but a copy has a source and a destination"):
        run_file.loads(json.dumps(data), "x")


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_never_taken_for_a_shorter_run(share: float) -> None:
    with pytest.raises(RunFileError, match="cut off" if share else "it is empty"):
        run_file.loads(GOOD[: int(len(GOOD) * share)], "x")


def test_files_that_cannot_be_read_say_why(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "binary").write_bytes(b"\x89PNG\r\n\x1a\n\xff")
    for name, message in [("absent", "No such file"), (".", "Is a directory"), ("binary", "it is not text")]:
        with pytest.raises(RunFileError, match=message):
            run_file.load(tmp_path / name)

    def refuse(*_: object, **__: object) -> str:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "open", refuse)  # root may read everything, so permissions cannot tell
    with pytest.raises(RunFileError, match="Permission denied"):
        run_file.load(tmp_path / "secret")


@pytest.mark.parametrize(
    ("title", "target", "message"),
    [
        ("a folder", ".", "it is a folder"),
        ("below a file", "file/run.json", "a part of that path is a file"),
        ("in no folder", "/proc/none/run.json", "folder /proc/none does not exist"),
        ("a name that is too long", "x" * 300, "File name too long"),
    ],
)
def test_a_place_that_cannot_be_written_is_refused_before_measuring(
    title: str, target: str, message: str, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(RunFileError, match=message) as caught:
        run_file.check_writable(tmp_path / target)
    assert "choose another place with --output FILE" in str(caught.value)
    assert names_in(tmp_path) == ["file"]


def test_checking_leaves_an_existing_file_alone(tmp_path: pathlib.Path) -> None:
    (tmp_path / "run.json").write_text("old", encoding="utf-8")
    run_file.check_writable(tmp_path / "run.json", replace=True)
    assert (tmp_path / "run.json").read_text(encoding="utf-8") == "old"
    assert names_in(tmp_path) == ["run.json"]


@pytest.mark.parametrize(
    ("failure", "becomes", "message"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), RunFileError, "No space left on device"),
        (KeyboardInterrupt("Ctrl-C"), KeyboardInterrupt, "Ctrl-C"),
    ],
)
def test_a_save_that_fails_leaves_the_old_file_and_nothing_else(
    failure: BaseException,
    becomes: type[BaseException],
    message: str,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "run.json"
    run_file.save(pair_run(2, lambda a, b: 300.0), path)
    old = path.read_bytes()

    def fail(_: int) -> None:
        raise failure

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(becomes, match=message):
        run_file.save(pair_run(3, lambda a, b: 100.0), path, replace=True)
    assert path.read_bytes() == old
    assert names_in(tmp_path) == ["run.json"]


def test_a_flag_about_a_device_that_the_run_lacks_is_refused() -> None:
    run = pair_run(2, lambda a, b: 300.0)
    run.measurements[0].samples[0] = replace(run.measurements[0].samples[0], flags=(shared(2),))
    with pytest.raises(RunFileError, match="a flag's devices is \\[2\\]"):
        run_file.loads(run_file.dumps(run), "a.json")


@pytest.mark.parametrize(
    "failure",
    [
        {"kind": "hang", "cause": "no answer", "devices": [7]},
        {"kind": "hang", "cause": "no answer", "groups": [[0, 7]]},
        {"kind": "hang", "cause": "no worker process"},
        "hang",
    ],
)
def test_a_meaningless_failure_is_refused(failure: object) -> None:
    data = json.loads(run_file.dumps(pair_run(2, lambda a, b: 300.0)))
    data["measurements"][0]["failure"] = failure
    with pytest.raises(RunFileError, match=r"run\.measurements\[0\]\.failure"):
        run_file.loads(json.dumps(data), "damaged.json")


def test_failures_that_led_to_each_other_a_thousand_times_are_refused() -> None:
    text = run_file.dumps(pair_run(2, lambda a, b: 300.0))
    chain = '{"kind": "hang", "cause": "no answer", "because": ' * 900 + "null" + "}" * 900
    with pytest.raises(RunFileError, match="damaged"):
        run_file.loads(text.replace('"failure": null', f'"failure": {chain}', 1), "damaged.json")
