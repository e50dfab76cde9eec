"""When a data point has been measured enough."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from collbench.model import Measurement, StopReason
from collbench.stats import half_width, trial_seconds

_MIB = 2**20
# ±1 % for messages that keep a link busy, ±3 % where launch jitter is part of the time.
_LARGE, _SMALL = 0.01, 0.03
# Noise has stabilised when two more trials change its estimate by less than a tenth: more will not narrow it soon.
_STABLE_CHANGE = 0.10
_STABLE_TRIALS = 8


def stop_reason(measurement: Measurement, precision: float | None = None) -> StopReason | None:
    """Return PRECISION or NOISE when the cell needs no further visit, None while it does.

    `precision` is the half interval over the median to reach; None takes ±1 % or ±3 %, by the size. Fewer than three
    trials have no interval.
    """
    trials = trial_seconds(measurement)
    if half_width(trials) <= (precision or (_LARGE if measurement.cell.size_bytes >= _MIB else _SMALL)):
        return StopReason.PRECISION
    return StopReason.NOISE if _noise_is_stable(trials) else None


def _noise_is_stable(trials: Sequence[float]) -> bool:
    if len(trials) < _STABLE_TRIALS:
        return False
    before, now = (float(np.std(np.log(part), ddof=1)) for part in (trials[:-2], trials))
    return abs(now - before) <= _STABLE_CHANGE * before
