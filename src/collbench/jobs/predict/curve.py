"""Times of a collective over message sizes, from a few measured ones (docs/method/predicting.md 1)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

_Array = NDArray[np.float64]
_FLAT = 1e-18  # seconds a byte: 1e9 GB/s, more than anything carries


class Curve:
    """Seconds of one operation on one set of devices, by message size in bytes: never less for more bytes.

    Between measured sizes a monotone cubic in log size and log time; beyond them the line α + size/β that is nearest to
    all points, moved to meet the outermost one. Where noise made a larger message faster, both have their mean.
    """

    def __init__(self, points: Mapping[int, float]) -> None:
        """Take seconds by size in bytes, at least one of them, all positive."""
        from scipy.interpolate import PchipInterpolator  # late: it takes long to load
        from scipy.optimize import isotonic_regression

        self.sizes = tuple(sorted(points))
        sizes = np.array(self.sizes, dtype=float)
        logs = np.log([points[size] for size in self.sizes])
        self._logs: _Array = np.asarray(isotonic_regression(logs).x, dtype=float)
        self._line = _least_squares(sizes, np.exp(self._logs))
        self._between = PchipInterpolator(np.log(sizes), self._logs) if len(sizes) > 1 else None

    def __call__(self, size_bytes: float) -> float:
        """Return the seconds of a message; 0 of nothing."""
        if size_bytes <= 0:
            return 0.0
        first, last = self.sizes[0], self.sizes[-1]
        if first <= size_bytes <= last and self._between is not None:
            return float(np.exp(self._between(np.log(size_bytes))))
        nearest, index = (first, 0) if size_bytes < first else (last, -1)
        alpha, beta = self._line
        moved = (alpha + beta * size_bytes) / (alpha + beta * nearest)
        return float(np.exp(self._logs[index])) * moved


def _least_squares(sizes: _Array, times: _Array) -> tuple[float, float]:
    """Return α in seconds and 1/β in seconds a byte, both ≥ 0, that come nearest to all points in relative terms.

    If the points show no growth, or there is only one, the time is taken as proportional to the size.
    """
    if len(sizes) > 1:
        from scipy.optimize import nnls

        (alpha, beta), _ = nnls(np.column_stack([1 / times, sizes / sizes[-1] / times]), np.ones(len(sizes)))
        if beta / sizes[-1] > _FLAT:
            return float(alpha), float(beta / sizes[-1])
    return 0.0, float(times[-1] / sizes[-1])
