"""A file of another tool: its bytes, and the values in it. A value has the expected type, or it is dropped."""

from __future__ import annotations

import io
import json
import math
import pickle
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeGuard

from collbench.jobs.job import MOST_RANKS
from collbench.runfile.codec import json_fault

MOST_ELEMENTS = 2**50


class Unreadable(Exception):
    """Why a file is not a readable trace."""


@dataclass(frozen=True)
class Content:
    """A file's bytes, decompressed, and the rank that it is named by."""

    data: bytes
    rank: int | None = None

    @cached_property
    def fields(self) -> Any:
        """The one value that is written in JSON, or in a pickle of plain values; None of anything else."""
        try:
            return self._value()
        except Unreadable:
            return None

    def check(self) -> None:
        """Raise Unreadable, which says why there is no such value."""
        self._value()

    def _value(self) -> Any:
        try:
            if not (self.data[:1].isspace() or self.data[:1] in (b"{", b"[")):
                return _Plain(io.BytesIO(self.data)).load()
        except Exception as error:  # a damaged pickle raises nearly anything
            raise Unreadable(
                "it is neither JSON nor a dump of plain values, as torch's Flight Recorder writes it"
            ) from error
        try:
            return json.loads(self.data)
        except (ValueError, RecursionError) as error:
            raise Unreadable(json_fault(error)) from error


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
    return value if natural(value) and value < MOST_RANKS else None


def size(value: Any) -> int:
    """Return how many ranks there are; 0 if it is not said."""
    return rank(value) or 0


def naturals(value: Any) -> list[int]:
    """Return the numbers of a list, or of its text "[0, 1]"; none of what is cut short or no such list."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return []
    return items(value) if all(map(natural, items(value))) else []


def ranks(value: Any) -> tuple[int, ...]:
    """Return ranks of a list or its text; () of what is no list of different ranks."""
    numbers = naturals(value)
    return tuple(numbers) if len(set(numbers)) == len(numbers) and max(numbers, default=0) < MOST_RANKS else ()


def elements(value: Any) -> int:
    """Return a tensor's elements; −1 of what cannot be their number."""
    return value if natural(value) and value < MOST_ELEMENTS else -1


def shaped(shapes: Any) -> list[int]:
    """Return the elements of each tensor by its shape; −1 of what is none."""
    sizes = []
    for shape in map(items, items(shapes)):
        known = len(shape) < 64 and all(map(natural, shape))
        sizes.append(elements(math.prod(shape)) if known else -1)
    return sizes
