"""Dataclasses ↔ JSON's own types. Reading checks every field against its annotation."""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
import typing
from typing import Any


def plain(value: Any) -> Any:
    """Return dataclasses, enums and tuples as JSON's own types."""
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, enum.Enum):
        return value.value
    return value


def build(kind: Any, data: Any, where: str) -> Any:
    """Return `data` as the annotated type `kind`. Raises ValueError that names the place."""
    origin = typing.get_origin(kind)
    if dataclasses.is_dataclass(kind):
        return _build_dataclass(kind, data, where)
    if origin in (typing.Union, types.UnionType):
        inner = next(part for part in typing.get_args(kind) if part is not types.NoneType)
        return None if data is None else build(inner, data, where)
    if origin in (tuple, list):
        return _build_sequence(kind, data, where)
    if origin is dict:
        inner = typing.get_args(kind)[1]
        return {key: build(inner, value, f"{where}.{key}") for key, value in _expect(data, dict, where).items()}
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
    known = {name: build(hints[name], data[name], f"{where}.{name}") for name in fields if name in data}
    return kind(**known)


def _build_sequence(kind: Any, data: Any, where: str) -> Any:
    arguments = typing.get_args(kind)
    items = _expect(data, list, where)
    if typing.get_origin(kind) is list or arguments[-1] is Ellipsis:
        made = (build(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(items))
        return list(made) if typing.get_origin(kind) is list else tuple(made)
    if len(items) != len(arguments):
        raise ValueError(f"{where} has {len(items)} items instead of {len(arguments)}")
    return tuple(
        build(part, item, f"{where}[{i}]") for i, (part, item) in enumerate(zip(arguments, items, strict=True))
    )


def _expect(data: Any, kind: Any, where: str) -> Any:
    # bool is an int to Python, but not to a reader of the file.
    if not isinstance(data, kind) or (isinstance(data, bool) and kind is not bool):
        raise ValueError(f"{where} is {type(data).__name__}, not {getattr(kind, '__name__', 'a number')}")
    return data
