"""Element types and reductions: collbench's names (torch's), the aliases people type, and widths in bytes."""

from __future__ import annotations

from collbench.model.errors import UsageError

# In the order of ncclDataType_t and ncclRedOp_t [nccl.h]: streams of the recorder have their numbers.
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
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}
REDOPS = ("sum", "prod", "max", "min", "avg")

# nccl-tests' -d names, and what people call the halves.
_ALIASES = {
    "float": "float32",
    "half": "float16",
    "double": "float64",
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
    "f8e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
}
# nccl-tests cuts each rank's block to whole units of 16 bytes, so that NCCL's widest loads fit [src/all_gather.cu:10].
_BLOCK_UNIT = 16


def parse_dtype(text: str) -> str:
    """Return the dtype that `text` names. Raises UsageError."""
    name = _ALIASES.get(text.lower(), text.lower())
    if name not in DTYPE_BYTES:
        raise UsageError(f"dtype '{text}' is unknown: choose from {', '.join(DTYPE_BYTES)}")
    return name


def whole_elements(size_bytes: int, dtype: str) -> int:
    """Return the largest size ≤ size_bytes that holds whole elements, as nccl-tests rounds; 0 if not even one fits."""
    return size_bytes // DTYPE_BYTES[dtype] * DTYPE_BYTES[dtype]


def whole_blocks(size_bytes: int, world_size: int) -> int:
    """Return the largest size ≤ size_bytes that `world_size` ranks share in equal blocks of whole 16-byte units.

    Source: nccl-tests' all_gather.cu, GetCollByteCount. 0 if the message is too small for that.
    """
    unit = world_size * _BLOCK_UNIT
    return size_bytes // unit * unit
