"""Element types and reductions: collbench's names (torch's), the aliases people type, and widths in bytes."""

from __future__ import annotations

from collbench.errors import UsageError

DTYPE_BYTES = {
    "int8": 1,
    "uint8": 1,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "uint64": 8,
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "bfloat16": 2,
}
REDOPS = ("sum", "prod", "max", "min", "avg")

# nccl-tests' -d names, and what people call the halves.
_ALIASES = {"float": "float32", "half": "float16", "double": "float64", "bf16": "bfloat16", "fp16": "float16"}


def parse_dtype(text: str) -> str:
    """Return the dtype that `text` names. Raises UsageError."""
    name = _ALIASES.get(text.lower(), text.lower())
    if name not in DTYPE_BYTES:
        raise UsageError(f"dtype '{text}' is unknown: choose from {', '.join(DTYPE_BYTES)}")
    return name


def whole_elements(size_bytes: int, dtype: str) -> int:
    """Return the largest size ≤ size_bytes that holds whole elements, as nccl-tests rounds; 0 if not even one fits."""
    return size_bytes // DTYPE_BYTES[dtype] * DTYPE_BYTES[dtype]
