"""When a cell has been measured enough (METHOD.md §2.7)."""

from __future__ import annotations

from statistics import median

import numpy as np

from collbench.model import Measurement, StopReason
from collbench.stats import FEWEST_BLOCKS, block_seconds, half_width

_MIB = 2**20
# ±1 % for messages that keep a link busy, ±3 % where launch jitter is part of the time.
_LARGE, _SMALL = 0.01, 0.03
# Noise has stabilised when two more visits change its estimate by less than a tenth: more will not narrow it soon.
_STABLE_CHANGE = 0.10
_STABLE_VISITS = 8


def stop_reason(measurement: Measurement, precision: float | None = None) -> StopReason | None:
    """Return PRECISION or NOISE when the cell needs no further visit, None while it does.

    `precision` is the half interval over the median to reach; None takes METHOD.md's.
    """
    seconds = block_seconds(measurement)
    if len(seconds) < FEWEST_BLOCKS:
        return None
    if half_width(seconds) <= (precision or (_LARGE if measurement.cell.size_bytes >= _MIB else _SMALL)):
        return StopReason.PRECISION
    return StopReason.NOISE if _noise_is_stable(measurement) else None


def _noise_is_stable(measurement: Measurement) -> bool:
    visits = [median(sample.seconds) for sample in measurement.samples]
    if len(visits) < _STABLE_VISITS:
        return False
    before, now = (float(np.std(np.log(part), ddof=1)) for part in (visits[:-2], visits))
    return abs(now - before) <= _STABLE_CHANGE * before
