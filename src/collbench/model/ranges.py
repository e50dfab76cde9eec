"""The numbers that a field of a file may have. `runfile/codec.py` refuses others, so nobody else has to check them."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Annotated


@dataclass(frozen=True, slots=True)
class Range:
    """From `least` to `most`; `words` say it in an error: "is -1, not 0 or more"."""

    least: float
    most: float
    words: str

    def __contains__(self, number: float) -> bool:
        """True if the number lies in the range; NaN does not."""
        return self.least <= number <= self.most


# Sums and products of a few numbers must stay in 64 bits, and in a float: 2^60 B are an EiB, 10^15 s 30 million years.
# No clock resolves 10^-15 s.
_MAX_INT, _MAX_FLOAT, _MIN_FLOAT = 2**60, 1e15, 1e-15

FINITE = Range(-sys.float_info.max, sys.float_info.max, "a finite number")  # of a float without a range
Whole = Annotated[int, Range(-_MAX_INT, _MAX_INT, "within 2^60 of 0")]
Seed = Annotated[int, Range(0, math.inf, "0 or more")]
Count = Annotated[int, Range(0, _MAX_INT, "0 or more (at most 2^60)")]
Ordinal = Annotated[int, Range(1, _MAX_INT, "1 or more (at most 2^60)")]
Several = Annotated[int, Range(2, _MAX_INT, "2 or more (at most 2^60)")]
# A moment in UTC has 2^51 µs, and other tools' traces may be off.
Micros = Annotated[float, Range(-(2.0**62), 2.0**62, "within 2^62 µs of 0")]
Amount = Annotated[float, Range(0, _MAX_FLOAT, "0 or more and finite (at most 1e15)")]
Positive = Annotated[float, Range(_MIN_FLOAT, _MAX_FLOAT, "positive and finite (1e-15 to 1e15)")]
