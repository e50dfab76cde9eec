"""Fabric files (docs/fabric-file.md): the named ones that are shipped, and a user's own. JSON ↔ Fabric."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from collbench.errors import UsageError
from collbench.fabric.checks import check
from collbench.fabric.model import Fabric
from collbench.plain import build, plain
from collbench.printable import cleaned

FORMAT = "collbench-fabric"
VERSION = 1
_SUFFIX = ".json"
_MOST_BYTES = 2**20  # sixteen GPUs take 4 KB; more than this is another file
_HEAD = ("format", "format_version")


def names() -> tuple[str, ...]:
    """Return the names of the shipped fabrics, in alphabetical order."""
    return tuple(sorted(file.name.removesuffix(_SUFFIX) for file in _shipped().iterdir() if _is_fabric(file)))


def load(name_or_path: str) -> Fabric:
    """Return the shipped fabric of this name, else the one in the file. Raises UsageError: what is wrong, where."""
    if name_or_path in names():
        return loads((_shipped() / f"{name_or_path}{_SUFFIX}").read_text(encoding="utf-8"), name_or_path)
    return loads(_text(name_or_path), name_or_path)


def loads(text: str, name: str) -> Fabric:
    """Return the fabric in JSON text; `name` is the file's, for errors. Raises UsageError."""
    try:
        data = cleaned(json.loads(text, parse_constant=_no_number), text)
    except (ValueError, RecursionError) as error:  # the latter for brackets nested a thousand deep
        raise UsageError(f"{name} is not a fabric file: not JSON, or cut off ({error})") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise UsageError(f'{name} is JSON but not a fabric: it has no "format": "{FORMAT}"; see docs/fabric-file.md')
    if data.get("format_version") != VERSION:
        raise UsageError(f"{name} has fabric version {data.get('format_version')}, this collbench reads {VERSION}")
    try:
        body = {key: data[key] for key in data if key not in _HEAD}
        _refuse_unknown(Fabric, body, "fabric")
        fabric: Fabric = build(Fabric, body, "fabric")
        check(fabric)
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        raise UsageError(f"{name} is a wrong fabric file: {error}; see docs/fabric-file.md") from error
    return fabric


def dumps(fabric: Fabric) -> str:
    """Return the fabric as JSON text, a line for each item of a list."""
    head = json.dumps({"format": FORMAT, "format_version": VERSION})[:-1]
    lines = [f"{json.dumps(key)}: {_lines(value)}" for key, value in plain(fabric).items()]
    return f"{head},\n" + ",\n".join(lines) + "\n}\n"


def _shipped() -> Traversable:
    return resources.files("collbench.fabric") / "machines"


def _is_fabric(file: Traversable) -> bool:
    return file.name.endswith(_SUFFIX)


def _text(path: str) -> str:
    shipped = f"name a file, or one of {', '.join(names())}"
    try:
        with Path(path).open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:  # the latter for a zero byte in the name
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"cannot read fabric '{path}': {why}; {shipped}") from error
    if len(content) > _MOST_BYTES:
        raise UsageError(f"{path} is not a fabric file: it is larger than 1 MiB; {shipped}")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not a fabric file: it is not text; {shipped}") from error


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is no number of JSON's")


@cache
def _fields(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _refuse_unknown(kind: Any, data: Any, where: str) -> None:
    """Raise ValueError for a key that no field has: a typing error would else be a default."""
    if isinstance(data, list):
        inner = typing.get_args(kind)[:1]
        for number, item in enumerate(data):
            _refuse_unknown(inner[0] if inner else kind, item, f"{where}[{number}]")
    elif isinstance(data, dict):
        parts = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
        for part in filter(dataclasses.is_dataclass, parts):
            known = _fields(typing.cast("type", part))
            for key, value in data.items():
                if key not in known:
                    raise ValueError(f"{where} has '{key}', which is none of {', '.join(known)}")
                _refuse_unknown(known[key], value, f"{where}.{key}")


def _lines(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n" + ",\n".join(json.dumps(item, ensure_ascii=False) for item in value) + "\n]"
    return json.dumps(value, ensure_ascii=False)
