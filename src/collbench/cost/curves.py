"""Times of a collective over message sizes, from a few measured ones (METHOD.md §7)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import PchipInterpolator
from scipy.optimize import isotonic_regression, nnls

Values = NDArray[np.float64]

# Up to here a message's time is mostly latency: at 400 GB/s 64 KiB take 0.16 µs of some 3.
_SMALL_BYTES = 64 * 2**10
_FLAT = 1e-18  # seconds a byte: 1e9 GB/s, more than anything carries


class Curve:
    """Seconds of one operation on one set of devices, by message size in bytes: never less for more bytes.

    Between measured sizes a monotone cubic in log size and log time; beyond them the line α + size/β that is nearest to
    all points, moved to meet the outermost one. Where noise made a larger message faster, both have their mean.
    """

    def __init__(self, points: Mapping[int, float]) -> None:
        """Take seconds by size in bytes, at least one of them, all positive."""
        self.sizes = tuple(sorted(points))
        sizes = np.array(self.sizes, dtype=float)
        logs = np.log([points[size] for size in self.sizes])
        self._logs: Values = np.asarray(isotonic_regression(logs).x, dtype=float)
        self._line = _line(sizes, np.exp(self._logs))
        self._between = PchipInterpolator(np.log(sizes), self._logs) if len(sizes) > 1 else None

    def __call__(self, size_bytes: float) -> float:
        """Return the seconds of a message; 0 of nothing."""
        if size_bytes <= 0:
            return 0.0
        first, last = self.sizes[0], self.sizes[-1]
        if first <= size_bytes <= last and self._between is not None:
            return float(np.exp(self._between(np.log(size_bytes))))
        nearest, place = (first, 0) if size_bytes < first else (last, -1)
        alpha, beta = self._line
        moved = (alpha + beta * size_bytes) / (alpha + beta * nearest)
        return float(np.exp(self._logs[place])) * moved

    def covers(self, size_bytes: float) -> bool:
        """Return whether a size lies among the measured ones."""
        return self.sizes[0] <= size_bytes <= self.sizes[-1]

    @property
    def latency(self) -> float:
        """Seconds of the smallest message where that is small, else what the line leaves of it."""
        return float(np.exp(self._logs[0])) if self.sizes[0] <= _SMALL_BYTES else self._line[0]


def _line(sizes: Values, times: Values) -> tuple[float, float]:
    """Return α in seconds and 1/β in seconds a byte, both ≥ 0, that come nearest to all points in relative terms.

    Points that show no growth, or a single one, say nothing of larger messages: those are taken as proportional.
    """
    if len(sizes) > 1:
        (alpha, beta), _ = nnls(np.column_stack([1 / times, sizes / sizes[-1] / times]), np.ones(len(sizes)))
        if beta / sizes[-1] > _FLAT:
            return float(alpha), float(beta / sizes[-1])
    return 0.0, float(times[-1] / sizes[-1])
