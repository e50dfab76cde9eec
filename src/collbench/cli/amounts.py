"""Precisions and durations as people type them."""

from __future__ import annotations

import re

from collbench.errors import UsageError

# Nine digits on each side of the point: no larger number is meant, and float() stays exact enough.
_PRECISION = re.compile(r"(\d{1,9}(?:\.\d{0,9})?|\.\d{1,9})(%?)", re.ASCII)
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{0,9})?|\.\d{1,9})(ms|s|min)", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1.0, "min": 60.0}
# Half an interval as wide as the median itself says nothing.
_COARSEST = 1.0


def parse_precision(text: str) -> float:
    """Return the ratio that `text` names: "1%", "0.5%" or "0.01". Raises UsageError."""
    match = _PRECISION.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"--precision '{text}' is not a share of the median: write 1%, 0.5% or 0.01")
    ratio = float(match[1]) / (100 if match[2] else 1)
    if not 0 < ratio < _COARSEST:
        raise UsageError(f"--precision {text} lies outside 0 to 100 %: write 1%, 0.5% or 0.01")
    return ratio


def parse_budget(text: str) -> float:
    """Return the seconds that `text` names: "10s", "500ms" or "2min". Raises UsageError."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"--budget '{text}' is not a number and a unit: write 10s, 500ms or 2min")
    seconds = float(match[1]) * _SECONDS[match[2]]
    if seconds == 0:
        raise UsageError(f"--budget {text} is no time at all: write 10s, 500ms or 2min")
    return seconds
