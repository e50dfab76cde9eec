"""What a GPU computes during a collective, by name: "gemm:8192"."""

from __future__ import annotations

import re

from collbench.model.errors import UsageError
from collbench.model.run import Compute, ComputeKind

# The unit's default size: of a matrix product its rows, of a copy its MiB, of attention its tokens.
DEFAULT_SIZES = {ComputeKind.GEMM: 8192, ComputeKind.MEMORY: 1024, ComputeKind.ATTENTION: 4096}
# Rows of a matrix, MiB, tokens: 65536² elements of bf16 are 8 GiB.
_LARGEST = 65536
_WORD = re.compile(r"([a-z-]+?)(?::(\d{1,6}))?", re.ASCII)


def parse_compute(text: str) -> Compute:
    """Return the compute that "gemm", "gemm:8192", "memory:256" or "attention-like" names. Raises UsageError."""
    match = _WORD.fullmatch(text.strip().lower())
    if match is None or match[1] not in list(ComputeKind):
        raise UsageError(f"compute '{text}' is unknown: choose from {', '.join(f'{one}:N' for one in ComputeKind)}")
    kind = ComputeKind(match[1])
    size = int(match[2]) if match[2] else DEFAULT_SIZES[kind]
    if not 1 <= size <= _LARGEST:
        raise UsageError(f"compute '{text}' has a size outside 1 to {_LARGEST}: write {kind}:{DEFAULT_SIZES[kind]}")
    return Compute(kind, size)
