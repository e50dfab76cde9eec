"""Dataclasses ↔ JSON, and JSON files with a format and a version. Reading checks each field against its annotation."""

from __future__ import annotations

import dataclasses
import enum
import functools
import itertools
import json
import math
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from collbench import annexes, untrusted
from collbench.model.errors import RunFileError
from collbench.model.values import FINITE, Range, cleaned

_T = TypeVar("_T")

# Bytes of a file: the largest of some hundred runs has 1 MB, and Python's own objects take up to twenty times as much.
MAX_BYTES = 2**28

# Most values of a run file have these types, and stay as they are.
_PLAIN = {float, int, str, bool, types.NoneType}


def picked(thing: object, *names: str) -> dict[str, Any]:
    """Return these attributes in JSON's own types."""
    return {name: plain(getattr(thing, name)) for name in names}


def head(name: str, backend: str = "") -> dict[str, Any]:
    """Return the first keys of what a command prints with --json: format and version.

    `backend` is the next one: by it a script tells simulated figures. "" for what has no figures of one backend.
    """
    return {"format": f"collbench-{name}", "format_version": 1} | ({"backend": backend} if backend else {})


def document(name: str, body: Mapping[str, Any], backend: str = "") -> str:
    """Return what a command prints with --json: text that ends in a line break, first the keys of `head`."""
    return json.dumps({**head(name, backend), **body}, ensure_ascii=False, indent=1, allow_nan=False) + "\n"


def plain(value: Any) -> Any:
    """Return dataclasses, enums and tuples as JSON's own types."""
    kind: Any = type(value)
    if kind in _PLAIN:
        return value
    if isinstance(value, tuple | list):
        return list(value) if _PLAIN.issuperset(map(type, value)) else [plain(item) for item in value]
    if _fields(kind) is not None:
        return {name: plain(part) for name, part in attributes(value).items()}
    return value.value if isinstance(value, enum.Enum) else value


def attributes(value: Any) -> dict[str, Any]:
    """Return a dataclass's fields as they are."""
    names = _fields(value.__class__)
    if names is None:
        raise TypeError(f"{value!r} is not JSON's")
    return {name: getattr(value, name) for name in names}


@functools.cache
def _fields(kind: Any) -> tuple[str, ...] | None:
    """Return the names of a dataclass's fields, None of another type."""
    return tuple(field.name for field in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else None


class _Wrong(Exception):
    """What is wrong with a value (`what`), and its path from where reading began."""

    def __init__(self, what: str, path: str = "") -> None:
        self.what, self.path = what, path

    def under(self, step: str) -> _Wrong:
        """Return it as seen from one step further out."""
        return _Wrong(self.what, step + self.path)


def build(kind: Any, data: Any, where: str, *, by_hand: bool = False) -> Any:
    """Return `data` as the annotated type `kind`. Raises ValueError that names the place.

    A key that no field has is passed over, but refused in what people write `by_hand`: a typo would mean a default.
    """
    try:
        return _reader(kind, by_hand)(data)
    except _Wrong as wrong:
        raise ValueError(f"{where}{wrong.path} {wrong.what}") from None
    except RecursionError:
        raise ValueError(f"{where} is nested too deep") from None


# A run file holds tens of thousands of values: what their types are is looked up once, and where a value stands is put
# together only for one that is wrong.
@functools.cache
def _reader(kind: Any, by_hand: bool) -> Callable[[Any], Any]:
    origin = typing.get_origin(kind)
    if origin is typing.Annotated:
        return _scalar_reader(kind)
    if dataclasses.is_dataclass(kind):
        return _dataclass_reader(typing.cast("type", kind), by_hand)
    if origin in (typing.Union, types.UnionType):
        inner = _reader(next(part for part in typing.get_args(kind) if part is not types.NoneType), by_hand)
        return lambda data: None if data is None else inner(data)
    if origin in (tuple, list):
        return _sequence_reader(kind, by_hand)
    if origin is dict:
        return _dict_reader(_reader(typing.get_args(kind)[1], by_hand))
    return _enum_reader(kind) if issubclass(kind, enum.Enum) else _scalar_reader(kind)


def _enum_reader(kind: type[enum.Enum]) -> Callable[[Any], Any]:
    members = {member.value: member for member in kind}

    def read(data: Any) -> Any:
        if _expect(data, str) not in members:
            raise _Wrong(f"is '{data}', not one of {', '.join(members)}")
        return members[data]

    return read


def _type_and_range(kind: Any) -> tuple[Any, Range | None]:
    """Return a scalar's type, and which numbers it may be; a float must be finite, which Python's json does not ask."""
    if typing.get_origin(kind) is typing.Annotated:
        number, allowed = typing.get_args(kind)
        return number, allowed
    return kind, FINITE if kind is float else None


def _scalar_reader(kind: Any) -> Callable[[Any], Any]:
    only, allowed = _type_and_range(kind)
    if allowed is None:
        return lambda data: data if type(data) is only else _expect(data, only)
    types = (int, float) if only is float else only
    least, most = allowed.least, allowed.most

    def read(data: Any) -> Any:
        number = data if type(data) is only else _expect(data, types)
        if not least <= number <= most:
            raise _Wrong(f"is {number}, not {allowed.words}")
        return only(number)

    return read


def _dataclass_reader(kind: type, by_hand: bool) -> Callable[[Any], Any]:
    fields = {field.name: field for field in dataclasses.fields(kind)}
    needed = {
        name: None
        for name, field in fields.items()
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }
    readers: list[tuple[str, Callable[[Any], Any], Any]] = []

    def read(data: Any) -> Any:
        if not readers:  # late: a type may contain itself
            hints = typing.get_type_hints(kind, include_extras=True)
            readers.extend((name, _reader(hints[name], by_hand), _written(field)) for name, field in fields.items())
        if type(data) is not dict:
            _expect(data, dict)
        if by_hand and (unknown := [key for key in data if key not in fields]):
            raise _Wrong(f"has '{unknown[0]}', which is not one of {', '.join(fields)}")
        if not needed.keys() <= data.keys():
            raise _Wrong(f"has no '{next(name for name in needed if name not in data)}'")
        known = {}
        try:
            for name, reader, default in readers:
                value = data.get(name, default)
                # Most fields have their default, which needs no check.
                if value is not default and (value != default or type(value) is not type(default)):
                    known[name] = reader(value)
        except _Wrong as wrong:
            raise wrong.under(f".{name}") from None
        return kind(**known)

    return read


def _written(field: dataclasses.Field[Any]) -> Any:
    """Return a field's default as it stands in JSON; what equals nothing in JSON if it has none."""
    return plain(field.default if field.default_factory is dataclasses.MISSING else field.default_factory())


def _dict_reader(reader: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def read(data: Any) -> Any:
        decoded = {}
        for key, value in _expect(data, dict).items():
            try:
                decoded[key] = reader(value)
            except _Wrong as wrong:
                raise wrong.under(f".{key}") from None
        return decoded

    return read


def _sequence_reader(kind: Any, by_hand: bool) -> Callable[[Any], Any]:
    """Return what reads list[X], tuple[X, ...], or a tuple with a type for each place."""
    arguments, origin = typing.get_args(kind), typing.get_origin(kind)
    many = origin is list or arguments[-1] is Ellipsis
    readers = [_reader(part, by_hand) for part in (arguments[:1] if many else arguments)]
    only, allowed = _type_and_range(arguments[0])
    # A rank has times for one group of 64, and a thousand ranks answer: the empty ones are taken as they are.
    sparse = many and typing.get_origin(arguments[0]) is tuple and typing.get_args(arguments[0])[-1] is Ellipsis

    def read(data: Any) -> Any:
        items = _expect(data, list)
        # Most are empty, or plain numbers of the right kind.
        if many and not items:
            return items if origin is list else ()
        if many and {*map(type, items)} == {only} and (allowed is None or _all_in(allowed, items)):
            return items if origin is list else tuple(items)
        if not many and len(items) != len(readers):
            raise _Wrong(f"has {len(items)} items instead of {len(readers)}")
        decoded: list[Any] = []
        try:
            if many and not sparse:
                decoded.extend(map(readers[0], items))  # up to one that is wrong
            else:
                for reader, item in zip(itertools.repeat(readers[0]) if many else readers, items, strict=False):
                    decoded.append(() if sparse and item == [] else reader(item))
        except _Wrong as wrong:
            raise wrong.under(f"[{len(decoded)}]") from None
        return decoded if origin is list else tuple(decoded)

    return read


def _all_in(allowed: Range, numbers: list[Any]) -> bool:
    """Return whether all numbers, one or more of one type, lie in the range."""
    inside = allowed.least <= min(numbers) and max(numbers) <= allowed.most
    return inside and not (type(numbers[0]) is float and any(map(math.isnan, numbers)))  # which min and max pass over


def json_fault(error: ValueError | RecursionError, *, by_hand: bool = False) -> str:
    """Return what is wrong with text that json.loads refused: damage, or a mistake of who wrote it `by_hand`."""
    if isinstance(error, RecursionError):
        return "it is nested too deep"
    if isinstance(error, UnicodeDecodeError):
        return "it is not text"
    if not isinstance(error, json.JSONDecodeError):
        return f"a number in it is none of JSON's ({error})"
    if not error.doc.strip():
        return "it is empty"
    if not error.doc[: error.pos].strip():
        return "it is not JSON"
    where = f"line {error.lineno}, column {error.colno}"
    return f"{error.msg} at {where}" if by_hand else f"it is cut off or damaged at {where}"


def _expect(data: Any, kind: Any) -> Any:
    # bool is an int to Python, but not to a reader of the file.
    if not isinstance(data, kind) or (isinstance(data, bool) and kind is not bool):
        raise _Wrong(f"is {type(data).__name__}, not {getattr(kind, '__name__', 'a number')}")
    return data


# What `collbench show` prints: a command that reads another kind of file names it.
_SHOWN = ("collbench-run", *annexes.FILES)


@dataclass(frozen=True, slots=True)
class FileFormat:
    """A kind of JSON file: its "format", the version that is written, its noun in messages, and how to get it again.

    `elsewhere` says where there may be others if there is no file of a name. A file that people write `by_hand` has
    mistakes, any other is damaged.
    A file may be a stranger's: what a terminal would obey in its texts is made readable here, where it comes in.
    """

    format: str
    version: int
    noun: str
    again: str
    most_bytes: int = MAX_BYTES
    elsewhere: str = ""
    by_hand: bool = False

    @property
    def head(self) -> dict[str, Any]:
        """What such a file begins with."""
        return {"format": self.format, "format_version": self.version}

    def read(self, path: Path) -> str:
        """Return a file's text. Raises RunFileError."""
        try:
            return untrusted.read_text(path, self.most_bytes)
        except OSError as error:
            raise self.unread(path, error) from error
        except UnicodeDecodeError as error:
            raise RunFileError(f"{path} is not {self._what}: it is not text") from error

    def unread(self, path: Path, error: OSError) -> RunFileError:
        """Return the error for a file that could not be read."""
        why = untrusted.unread(path, error)
        none_near = isinstance(error, FileNotFoundError) and why == error.strerror
        return RunFileError(f"cannot read {self.noun} file {path}: {why}", self.elsewhere if none_near else "")

    def loads(self, text: str, name: str, build: Callable[[dict[str, Any]], _T]) -> _T:
        """Return what `build` makes of the fields in JSON text; `name` is the file's, for errors. Raises RunFileError.

        Of what `build` raises, TypeError, ValueError and KeyError say what is wrong in the file.
        """
        try:
            data = cleaned(json.loads(text), text)
        except (ValueError, RecursionError) as error:
            raise RunFileError(f"{name} is not {self._what}: {json_fault(error, by_hand=self.by_hand)}") from error
        if not isinstance(data, dict) or data.get("format") != self.format:
            found = data.get("format") if isinstance(data, dict) else None
            ours = isinstance(found, str) and re.fullmatch("collbench-[a-z-]+", found)
            fault = f'its format is "{found}"' if ours else f'it has no "format": "{self.format}"'
            if found in _SHOWN:  # of a file alone: by its format, for which a pipe would be read twice
                is_pipe = Path(name).is_fifo()
                fault += (
                    f"; 'collbench show {'FILE' if is_pipe else name}' prints it{' from a file' if is_pipe else ''}"
                )
            raise RunFileError(f"{name} is JSON but not a collbench {self.noun}: {fault}")
        number = data.get("format_version")
        if number is None and self.by_hand:
            raise RunFileError(f'{name} has no version: write "format_version": {self.version}')
        if type(number) is not int or number != self.version:
            stated = f"no {self.noun}-file version" if number is None else f"{self.noun}-file version {number}"
            raise RunFileError(
                f"{name} has {stated}, this collbench reads version "
                f"{self.version}: use the collbench that wrote it, or {self.again}"
            )
        fields = {key: value for key, value in data.items() if key not in self.head}
        try:
            return build(fields)
        except (TypeError, ValueError, KeyError) as error:
            what = f"mistake in {self.noun} file {name}" if self.by_hand else f"{name} is a damaged {self.noun} file"
            raise RunFileError(f"{what}: {error}") from error

    @property
    def _what(self) -> str:
        return f"{'an' if self.noun[0] in 'aeiou' else 'a'} {self.noun} file"
