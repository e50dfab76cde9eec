"""A file of another tool, read as it is decompressed, and the Trace of one rank that is made of it.

Of a list as long as the file, one element is kept at a time. Each value in it has the expected type, or it is dropped.
"""

from __future__ import annotations

import codecs
import json
import math
import pickle
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import IO, Any, TypeGuard

from collbench.jobs.exposed import Timeline
from collbench.jobs.job import MAX_RANKS, Group, Library, Source

MAX_BYTES = 2**30  # of a rank's trace, decompressed
_LARGEST = 2**24  # characters of one value: Python needs 25 times their memory for a list of empty lists
_MAX_ELEMENTS = 2**23  # of a list: a real one has a hundred characters, and the file a GiB
_PIECE = 2**18
_NO_SPACE = re.compile(r"\S")
_NEAR = 32  # a number or literal that may go on in the next piece is no longer


def read_json(stream: IO[bytes], lists: Mapping[str, Callable[[Any], None]]) -> dict[str, Any]:
    """Return the fields of a JSON object. Raises Unreadable.

    Elements of its lists are handed to `lists` by field, or dropped; the field is then [].
    """
    json_text = _Json(stream)
    fields: dict[str, Any] = {}
    if not json_text.next_is("{"):
        raise Unreadable("it is not an object in JSON")
    more = not json_text.next_is("}")
    while more:
        key = json_text.value()
        json_text.expect(":")
        if not isinstance(key, str):
            raise Unreadable("it is not an object in JSON")
        if json_text.next_is("["):
            _read_list(json_text, lists.get(key, lambda _: None))
            fields[key] = []
        else:
            fields[key] = json_text.value()
        more = json_text.next_is(",")
        if not more:
            json_text.expect("}")
    if not json_text.next_is(""):
        raise Unreadable("something follows its object in JSON, as in a file of several objects")
    return fields


def _read_list(json_text: _Json, take: Callable[[Any], None]) -> None:
    """Hand over the elements of a list that has begun. Raises Unreadable."""
    count = 0
    while not json_text.next_is("]"):
        take(json_text.value())
        count += 1
        if count > _MAX_ELEMENTS:
            raise Unreadable(f"it lists more than {_MAX_ELEMENTS:,} elements, which no real trace has")
        if not json_text.next_is(","):
            json_text.expect("]")
            return


class _Json:
    """Text in JSON, value by value."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._text = codecs.getreader("utf-8-sig")(stream)
        self._decode = json.JSONDecoder().raw_decode
        self._buffer, self._at, self._before, self._ended = "", 0, 0, False

    def _more(self) -> None:
        """Read on: each time as much as is there, so that a long value is not scanned too often."""
        rest = self._buffer[self._at :]
        if len(rest) > _LARGEST:
            raise Unreadable(f"a value in it has more than {_LARGEST >> 20} MiB, which no real trace has")
        try:
            piece = self._text.read(max(_PIECE, len(rest)))
        except UnicodeDecodeError as error:
            raise Unreadable("it is not text") from error
        self._before += self._at
        self._buffer, self._at, self._ended = rest + piece, 0, not piece

    def _next(self) -> str:
        """Return the next character that is no space; "" at the end."""
        while True:
            if character := _NO_SPACE.search(self._buffer, self._at):
                self._at = character.start()
                return character[0]
            self._at = len(self._buffer)
            if self._ended:
                return ""
            self._more()

    def next_is(self, character: str) -> bool:
        """Skip a character if it is the next one, "" at the end."""
        found = self._next() == character
        self._at += found
        return found

    def expect(self, character: str) -> None:
        """Skip a character. Raises Unreadable if it is not the next one."""
        if not self.next_is(character):
            raise self._damaged()

    def value(self) -> Any:
        """Return the next value."""
        while True:
            self._next()
            try:
                value, end = self._decode(self._buffer, self._at)
            except json.JSONDecodeError as error:
                place, cut = error.pos, error.msg.startswith("Unterminated")
            except RecursionError as error:
                raise Unreadable("it is nested too deep") from error
            except ValueError as error:
                raise Unreadable(f"a number in it is none of JSON's ({error})") from error
            else:
                if self._ended or end < len(self._buffer) - _NEAR:
                    self._at = end
                    return value
                self._more()
                continue
            if self._ended or not (cut or place > len(self._buffer) - _NEAR):
                raise self._damaged(place)
            self._more()

    def _damaged(self, place: int | None = None) -> Unreadable:
        where = self._before + (self._at if place is None else place)
        return Unreadable(f"it is cut off or damaged after {where:,} characters")


def read_pickle(stream: IO[bytes]) -> Any:
    """Return the plain values of a pickle. Raises Unreadable for anything else."""
    try:
        return _Plain(stream).load()
    except Unreadable:
        raise
    except Exception as error:  # a damaged pickle raises nearly anything
        raise Unreadable(
            "it is neither JSON nor a dump of plain values, as torch's Flight Recorder writes it"
        ) from error


def _set_item(reader: Any) -> None:
    """Set an object's field as a pickle asks for, by a key that cannot be made to have the hash of others."""
    value, key = reader.stack.pop(), reader.stack.pop()
    if hashable(key) is None:
        raise pickle.UnpicklingError("a key that is no text or number")
    reader.stack[-1][key] = value


def _set_items(reader: Any) -> None:
    """Set an object's fields likewise."""
    items = reader.pop_mark()
    for key, value in zip(items[::2], items[1::2], strict=True):
        reader.stack += [key, value]
        _set_item(reader)


class _Plain(pickle._Unpickler):
    """Reads plain containers alone: a pickle could otherwise run any program.

    Python's own reader, not C's, which makes room for as many objects as a damaged number says: 64 GiB.
    """

    _CODES = (
        *(pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MARK, pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE),
        *(pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.LONG1, pickle.LONG4, pickle.BINFLOAT),
        *(pickle.BINUNICODE, pickle.SHORT_BINUNICODE, pickle.BINUNICODE8, pickle.MEMOIZE),
        *(pickle.BINPUT, pickle.LONG_BINPUT, pickle.BINGET, pickle.LONG_BINGET),
        *(pickle.EMPTY_DICT, pickle.SETITEM, pickle.SETITEMS, pickle.EMPTY_LIST, pickle.APPEND, pickle.APPENDS),
        *(pickle.EMPTY_TUPLE, pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3),
    )
    dispatch = {code[0]: pickle._Unpickler.dispatch[code[0]] for code in _CODES}  # noqa: RUF012  # as its base has it

    dispatch |= {pickle.SETITEM[0]: _set_item, pickle.SETITEMS[0]: _set_items}


# Values, each of the expected type or dropped.

_MAX_IN_TENSOR = 2**50  # elements


class Unreadable(Exception):
    """Why a file is not a readable trace."""


def fields(value: Any) -> dict[Any, Any]:
    """Return an object's fields; {} of what is none."""
    return value if isinstance(value, dict) else {}


def items(value: Any) -> list[Any]:
    """Return a list's items; [] of what is none."""
    return list(value) if isinstance(value, list | tuple) else []


def text(value: Any) -> str:
    """Return a text; "" of what is none."""
    return value if isinstance(value, str) else ""


def natural(value: Any) -> TypeGuard[int]:
    """True for a whole number from 0 on, of less than 63 bits."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62


def number(value: Any) -> float:
    """Return a number from 0 on, as large as moments in UTC at most; NaN of what is none."""
    real = float(value) if isinstance(value, int | float) and abs(value) < 2**53 else math.nan
    return real if real >= 0 and math.isfinite(real) else math.nan


def hashable(value: Any) -> int | str | None:
    """Return a number or text that can be a dictionary key; None for anything else.

    Whole numbers of more bits can be made to have one hash, and each then takes as long as all before it.
    """
    return value if natural(value) or isinstance(value, str) else None


def rank(value: Any) -> int | None:
    """Return a rank; None of what cannot be one."""
    return value if natural(value) and value < MAX_RANKS else None


def size(value: Any) -> int:
    """Return how many ranks there are; 0 if it is not said."""
    return rank(value) or 0


def ranks(value: Any) -> tuple[int, ...]:
    """Return ranks of a list, or of its text "[0, 1]"; () of what is cut short or no list of different ranks."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return ()
    numbers = tuple(items(value))
    known = all(rank(number) is not None for number in numbers)
    return numbers if known and len(set(numbers)) == len(numbers) else ()


def elements(value: Any) -> int:
    """Return a tensor's elements; −1 of what cannot be their number."""
    return value if natural(value) and value < _MAX_IN_TENSOR else -1


def shaped(shapes: Any) -> list[int]:
    """Return the elements of each tensor by its shape; −1 of what is none."""
    sizes = []
    for shape in map(items, items(shapes)):
        known = len(shape) < 64 and all(map(natural, shape))
        sizes.append(elements(math.prod(shape)) if known else -1)
    return sizes


# What any format has of one rank: its groups and its calls.

_MAX_MEMBERS = 2**22  # of all groups together: ten groups of each rank, of four hundred thousand ranks
_MAX_MESSAGE_BYTES = 2**53  # numbers of a job file are exact in every reader of JSON


@dataclass(slots=True)
class TracedCall:
    """One call as a trace has it. Times are NaN where unknown."""

    operation: str
    size_bytes: int | None  # None if unknown
    group: str  # the trace's own name of it
    dtype: str
    root: int | None = None  # a rank of the group, None if unknown
    peer: int | None = None  # a rank of the group, None if unknown
    start: float = math.nan  # when the host made it, µs from the trace's origin
    gpu: float = math.nan  # how long its kernel ran, µs
    gpu_start: float = math.nan  # when that began, µs from the trace's origin
    exposed: float = math.nan  # how long it ran while nothing was computed, µs
    alone_from: float = math.nan  # when no kernel of communication ran any more that began earlier, µs from the origin
    captured: bool = False  # inside a CUDA graph
    library: Library = Library.NCCL
    even: bool | None = True  # its blocks are of one size; None if unknown
    number: int | None = None  # of the collectives of its group, on all ranks alike


@dataclass(slots=True)
class Trace:
    """One rank's trace. Groups have the trace's own names as keys."""

    source: Source
    rank: int | None
    calls: list[TracedCall] = field(default_factory=list)
    groups: dict[str, Group] = field(default_factory=dict)
    marks: list[float] = field(default_factory=list)  # where a step begins, and the last one ends, µs from the origin
    world_size: int = 0
    nccl: str = ""
    host: str = ""
    file: str = ""
    origin: float = 0.0  # UTC, µs: a float of the whole moment would be exact to a quarter of one
    gpu: Timeline | None = None  # µs from the origin
    rows: int = 0  # of the file, of any kind
    known_members: int = 0  # of all its groups
    lost: int = 0  # calls that the job made, and the trace has not kept
    left_out: Counter[str] = field(default_factory=Counter)  # rows that could not be read, by what they are

    def add_group(self, key: str, description: str, listed: Any, size: int = 0) -> None:
        """Note a group's ranks, `listed` or () and its size where these are unknown. Raises Unreadable for too many."""
        members = ranks(listed)
        self.known_members += len(members)
        if self.known_members > _MAX_MEMBERS:
            raise Unreadable(f"its groups have more than {_MAX_MEMBERS:,} members together, which no job has")
        name = description if description not in {"", "undefined"} else key
        self.groups[key] = Group(members, len(members) or size, name)

    def any_group(self) -> str:
        """Return the group of a call that names none: its ranks are known if all groups have the same."""
        if "" not in self.groups:
            known = {group.ranks for group in self.groups.values()}
            self.add_group("", "", known.pop() if len(known) == 1 else ())
        return ""

    def add(self, call: TracedCall | None) -> None:
        """Add a call, if it is one; only count an impossible one."""
        if call is not None and call.size_bytes is not None and not 0 <= call.size_bytes < _MAX_MESSAGE_BYTES:
            self.left_out[f"{call.operation} of an impossible size"] += 1
        elif call is not None:
            self.calls.append(call)
