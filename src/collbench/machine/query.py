"""One question to NVML at a time: an answer, or None where this GPU, driver or binding has none.

"Not supported" is an everyday answer (virtual machines, MIG, GeForce), so it never raises here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, cast

# nvmlValueType_t → the member of the value union that holds it [nvml.h, r580]
_UNION_MEMBER = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}

# Entries behind those that are asked for. Of NVLink's error counters r580's library writes behind the last one: seen on
# 4 × H200 (580.159.04) with blocks of memory that end at a guard page; without, one run in some hundreds ended with
# "free(): invalid next size" [benchmarks/README.md].
_ROOM = 128


class Query:
    """Asks an NVML binding (the module pynvml, or a double of it). Untyped outside, typed from here on."""

    def __init__(self, lib: Any) -> None:
        self.lib = lib

    def ask(self, function: str, *args: object) -> Any | None:
        """Return what the named function answers, None where it is missing or not supported."""
        call = getattr(self.lib, function, None)
        if call is None:
            return None
        try:
            return call(*args)
        except (self.lib.NVMLError, self.lib.NVMLLibraryMismatchError):
            return None

    def integer(self, function: str, *args: object) -> int | None:
        """Return an integer answer, None where there is none."""
        return cast("int | None", self.ask(function, *args))

    def text(self, function: str, *args: object) -> str:
        """Return a text answer, "" where there is none. Old bindings answer in bytes."""
        answer = self.ask(function, *args)
        return answer.decode() if isinstance(answer, bytes) else str(answer or "")

    def field(self, handle: object, field_id: int, scope: int = 0) -> int | None:
        """Return the integer value of one NVML field (scope: the NVLink number), None where not supported."""
        return self.fields(handle, [(field_id, scope)])[0]

    def fields(self, handle: object, wanted: Sequence[tuple[int, int]]) -> list[int | None]:
        """Return the values of several (field, scope), by one call: each takes 0.7 ms on an H200."""
        values = self._field_values(handle, wanted) if wanted else None
        return [None] * len(wanted) if values is None else [_integer(value) for value in values]

    def _field_values(self, handle: object, wanted: Sequence[tuple[int, int]]) -> Sequence[Any] | None:
        """Return the binding's structures; the library is called by hand, as the binding would leave it no room."""
        library = getattr(self.lib, "nvmlLib", None)
        if library is None:  # not the module pynvml
            return self.ask("nvmlDeviceGetFieldValues", handle, list(wanted))
        values = (self.lib.c_nvmlFieldValue_t * (len(wanted) + _ROOM))()
        for value, (field_id, scope) in zip(values, wanted, strict=False):
            value.fieldId, value.scopeId = field_id, scope
        try:
            refused = library.nvmlDeviceGetFieldValues(handle, ctypes.c_int(len(wanted)), values)
        except AttributeError:  # a library older than the call
            return None
        return None if refused else values[: len(wanted)]


def _integer(value: Any) -> int | None:
    member = _UNION_MEMBER.get(value.valueType) if value.nvmlReturn == 0 else None
    return None if member is None else int(getattr(value.value, member))
