"""What the gloo parent and its workers say to each other, and what gloo can reduce. Free of torch."""

from __future__ import annotations

from typing import TypeAlias, TypedDict

# Bytes per element of what gloo carries [torch 2.13 ProcessGroupGloo.cpp, GENERATE_ALL_TYPES]; not int16, not float8.
DTYPE_BYTES = {
    "float32": 4,
    "float64": 8,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "int64": 8,
    "int8": 1,
    "uint8": 1,
}

# Ours → torch.distributed.ReduceOp. No avg: gloo has none, torch divides a sum afterwards on the caller's thread.
REDOPS = {"sum": "SUM", "prod": "PRODUCT", "min": "MIN", "max": "MAX"}


# The first wrong element: its byte offset in the message, the expected and the found value.
Wrong: TypeAlias = tuple[int, float, float]


class Task(TypedDict):
    """One step. `groups` hold ranks; `root` is a position within its group; `count` is the size in elements."""

    operation: str
    groups: tuple[tuple[int, ...], ...]
    count: int
    iterations: int
    blocks: int
    warmup: int
    dtype: str
    redop: str
    root: int
    in_place: bool
    verify: bool


class Reply(TypedDict):
    """One rank's seconds per iteration of each block (none for a bystander), and its first wrong element, if any."""

    seconds: list[float]
    wrong: Wrong | None
