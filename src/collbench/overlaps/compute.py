"""What a GPU computes during a collective: the kinds of compute, their names, and a stream's priority."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from collbench.model.errors import UsageError
from collbench.model.ranges import Ordinal


class ComputeKind(StrEnum):
    """The compute that a collective overlaps. The row below defines one unit of it."""

    GEMM = "gemm"
    MEMORY = "memory"


class Priority(StrEnum):
    """The priority of the collective's stream; that of compute is always normal."""

    NORMAL = "normal"
    HIGH = "high"


# The unit's default size: of a matrix product its rows, of a sum the MiB of each operand.
DEFAULT_SIZES = {ComputeKind.GEMM: 8192, ComputeKind.MEMORY: 1024}
# Rows of a matrix, MiB: 65536² elements of bf16 are 8 GiB.
_LARGEST = 65536
_WORD = re.compile(r"([a-z-]+?)(?::(\d{1,6}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Compute:
    """One kind of compute. `size`: N of a product of two N × N matrices, or MiB of each operand of a sum."""

    kind: ComputeKind
    size: Ordinal

    def __str__(self) -> str:
        """Return what the option --compute calls it: "gemm:8192"."""
        return f"{self.kind}:{self.size}"


def parse_compute(text: str) -> Compute:
    """Return the compute that "gemm", "gemm:8192" or "memory:256" names. Raises UsageError."""
    match = _WORD.fullmatch(text.strip().lower())
    if match is None or match[1] not in list(ComputeKind):
        raise UsageError(f"compute '{text}' is unknown: choose from {', '.join(f'{one}:N' for one in ComputeKind)}")
    kind = ComputeKind(match[1])
    size = int(match[2]) if match[2] else DEFAULT_SIZES[kind]
    if not 1 <= size <= _LARGEST:
        raise UsageError(f"compute '{text}' has a size outside 1 to {_LARGEST}: write {kind}:{DEFAULT_SIZES[kind]}")
    return Compute(kind, size)
