"""What a file holds, as formats ask for it: its bytes, or the one value that they are in JSON or in a pickle."""

from __future__ import annotations

import io
import json
import pickle
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from collbench.runfile.traces.trace import Unreadable


@dataclass(frozen=True)
class Content:
    """A file's bytes, decompressed; the rank that it is named by; and how many files are imported together."""

    data: bytes
    rank: int | None = None
    files: int = 1

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
            if self.data[:1].isspace() or self.data[:1] in (b"{", b"["):
                return json.loads(self.data)
            return _Plain(io.BytesIO(self.data)).load()
        except (ValueError, RecursionError) as error:
            raise Unreadable(f"it is not JSON: {error}") from error
        except Exception as error:  # a damaged pickle raises nearly anything
            raise Unreadable(
                "it is neither JSON nor a dump of plain values, as torch's Flight Recorder writes it"
            ) from error


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
