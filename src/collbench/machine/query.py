"""One question to NVML at a time: an answer, or None where this GPU, driver or binding has none.

"Not supported" is an everyday answer (virtual machines, MIG, GeForce), so it never raises here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

# nvmlValueType_t → the member of the value union that holds it [nvml.h, r580]
_UNION_MEMBER = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}


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
        values = self.ask("nvmlDeviceGetFieldValues", handle, list(wanted)) if wanted else None
        return [None] * len(wanted) if values is None else [_integer(value) for value in values]


def _integer(value: Any) -> int | None:
    member = _UNION_MEMBER.get(value.valueType) if value.nvmlReturn == 0 else None
    return None if member is None else int(getattr(value.value, member))
