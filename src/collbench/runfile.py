"""Run ↔ versioned JSON, written whole or not at all. The format is described in docs/run-file.md."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import json
import math
import os
import tempfile
import types
import typing
from pathlib import Path
from typing import Any

from collbench.dtypes import DTYPE_BYTES
from collbench.errors import RunFileError
from collbench.model import Run

FORMAT = "collbench-run"
VERSION = 1


def save(run: Run, path: Path) -> None:
    """Write the run to `path` so that a reader, or a crash, meets either the old file or the new one.

    Raises RunFileError for a folder that cannot be written and for a full disk; the old file is then untouched.
    """
    text = dumps(run)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # A name from the system that is not UTF-8 holds lone surrogates: as \udcxx they are valid JSON.
        with temporary.open("w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise _cannot_save(path, error) from error
    finally:
        with contextlib.suppress(OSError):  # gone already, unless something failed or was interrupted
            temporary.unlink()


def _cannot_save(path: Path, error: OSError) -> RunFileError:
    blocked = isinstance(error, FileExistsError | NotADirectoryError)
    why = "a part of that path is a file, not a folder" if blocked else error.strerror
    return RunFileError(f"cannot save the run as {path}: {why}; choose another place with -o FILE")


def check_writable(path: Path) -> None:
    """Raise RunFileError if a run could not be saved at `path`; an existing file there is left alone."""
    try:
        if path.is_dir():
            raise RunFileError(f"cannot save the run as {path}: it is a folder; choose another place with -o FILE")
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise _cannot_save(path, error) from error


def load(path: Path) -> Run:
    """Read a run file. Raises RunFileError that says what is wrong and where."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise RunFileError(f"cannot read run file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RunFileError(f"{path} is not a run file: it is not text") from error
    return loads(text, str(path))


def dumps(run: Run) -> str:
    """Return the run as JSON text: what it is and its backend in the first line, then a line for each list item."""
    first = json.dumps({"format": FORMAT, "format_version": VERSION, "backend": run.backend})[:-1]
    rest = {key: value for key, value in _plain(run).items() if key != "backend"}
    return f"{first},\n" + ",\n".join(f"{json.dumps(key)}: {_lines(value)}" for key, value in rest.items()) + "\n}\n"


def loads(text: str, name: str) -> Run:
    """Return the run in JSON text; `name` is the file's, for errors. Raises RunFileError."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:  # the latter for brackets nested a thousand deep
        raise RunFileError(f"{name} is not a run file: not JSON, or cut off ({error})") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise RunFileError(f'{name} is JSON but not a collbench run: it has no "format": "{FORMAT}"')
    if data.get("format_version") != VERSION:
        raise RunFileError(
            f"{name} has run-file version {data.get('format_version')}, this collbench reads version {VERSION}: "
            "use the collbench that wrote it, or measure again"
        )
    try:
        run: Run = _build(Run, {key: data[key] for key in data if key not in ("format", "format_version")}, "run")
        _check_meaning(run)
    except (TypeError, ValueError, KeyError) as error:
        raise RunFileError(f"{name} is a damaged run file: {error}") from error
    return run


def _check_meaning(run: Run) -> None:
    """Raise ValueError where fields of the right kind mean nothing: whoever judges the run would stumble over them."""
    positions = range(len(run.devices))
    if run.settings.dtype not in DTYPE_BYTES:
        raise ValueError(f"run.settings.dtype is '{run.settings.dtype}', not one of {', '.join(DTYPE_BYTES)}")
    for number, path in enumerate(run.paths):
        _check_members(path.devices, positions, f"run.paths[{number}].devices")
    for number, found in enumerate(run.measurements):
        where = f"run.measurements[{number}]"
        _check_members(found.cell.members, positions, f"{where}.cell.members")
        if found.cell.size_bytes < 1:
            raise ValueError(f"{where}.cell.size_bytes is {found.cell.size_bytes}, not 1 or more")
        if found.cell.operation.is_copy and len(found.cell.members) != 2:
            raise ValueError(
                f"{where}.cell.members are {len(found.cell.members)}, but a copy has a source and a destination"
            )
        if not found.samples or not all(sample.seconds for sample in found.samples):
            raise ValueError(f"{where} has no block times")
        if not all(0 < seconds < math.inf for sample in found.samples for seconds in sample.seconds):
            raise ValueError(f"{where} has a time that is not positive and finite")


def _check_members(members: tuple[int, ...], positions: range, where: str) -> None:
    if len(members) < 2 or len(set(members)) < len(members) or not set(members) <= set(positions):
        raise ValueError(f"{where} is {list(members)}, not two or more distinct places in a list of {len(positions)}")


def _plain(value: Any) -> Any:
    """Return dataclasses, enums and tuples as JSON's own types."""
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, enum.Enum):
        return value.value
    return value


def _lines(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n" + ",\n".join(json.dumps(item, ensure_ascii=False) for item in value) + "\n]"
    return json.dumps(value, ensure_ascii=False)


def _build(kind: Any, data: Any, where: str) -> Any:
    """Return `data` as the annotated type `kind`. Raises ValueError that names the place."""
    origin = typing.get_origin(kind)
    if dataclasses.is_dataclass(kind):
        return _build_dataclass(kind, data, where)
    if origin in (typing.Union, types.UnionType):
        inner = next(part for part in typing.get_args(kind) if part is not types.NoneType)
        return None if data is None else _build(inner, data, where)
    if origin in (tuple, list):
        return _build_sequence(kind, data, where)
    if origin is dict:
        inner = typing.get_args(kind)[1]
        return {key: _build(inner, value, f"{where}.{key}") for key, value in _expect(data, dict, where).items()}
    return _build_scalar(kind, data, where)


def _build_scalar(kind: Any, data: Any, where: str) -> Any:
    if issubclass(kind, enum.Enum):
        names = [member.value for member in kind]
        if _expect(data, str, where) not in names:
            raise ValueError(f"{where} is '{data}', not one of {', '.join(names)}")
        return kind(data)
    if kind is float:
        return float(_expect(data, (int, float), where))
    return _expect(data, kind, where)


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    """Return a dataclass's annotations as types; evaluating them for each of thousands of samples takes a second."""
    return typing.get_type_hints(kind)


def _build_dataclass(kind: Any, data: Any, where: str) -> Any:
    hints = _hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    _expect(data, dict, where)
    missing = [
        name
        for name, field in fields.items()
        if name not in data and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ValueError(f"{where} has no '{missing[0]}'")
    known = {name: _build(hints[name], data[name], f"{where}.{name}") for name in fields if name in data}
    return kind(**known)


def _build_sequence(kind: Any, data: Any, where: str) -> Any:
    arguments = typing.get_args(kind)
    items = _expect(data, list, where)
    if typing.get_origin(kind) is list or arguments[-1] is Ellipsis:
        made = (_build(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(items))
        return list(made) if typing.get_origin(kind) is list else tuple(made)
    if len(items) != len(arguments):
        raise ValueError(f"{where} has {len(items)} items instead of {len(arguments)}")
    return tuple(
        _build(part, item, f"{where}[{i}]") for i, (part, item) in enumerate(zip(arguments, items, strict=True))
    )


def _expect(data: Any, kind: Any, where: str) -> Any:
    # bool is an int to Python, but not to a reader of the file.
    if not isinstance(data, kind) or (isinstance(data, bool) and kind is not bool):
        raise ValueError(f"{where} is {type(data).__name__}, not {getattr(kind, '__name__', 'a number')}")
    return data
