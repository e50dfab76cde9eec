"""Quantiles of normal samples that the tier rule needs; computed, so that any number of pairs and visits works."""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy.typing import NDArray

_Array = NDArray[np.float64]
# ±8 σ holds all but 1e-15 of a normal; 1/200 σ steps give four digits.
_GRID: _Array = np.linspace(-8.0, 8.0, 3201)


def _density(x: _Array) -> _Array:
    return np.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def _cumulative(x: _Array) -> _Array:
    return np.array([0.5 * (1 + math.erf(v / math.sqrt(2))) for v in x])


@functools.cache
def range_quantile(n: int, probability: float = 0.95) -> float:
    """Return w with P(range of n independent standard normals ≤ w) = probability.

    Source: David & Nagaraja, Order Statistics, §2.3: P = n ∫ φ(x) (Φ(x + w) − Φ(x))^(n−1) dx.
    """
    low, high = 0.0, 12.0
    density, below = _density(_GRID), _cumulative(_GRID)
    for _ in range(40):
        middle = (low + high) / 2
        inside = n * density * (_cumulative(_GRID + middle) - below) ** (n - 1)
        low, high = (middle, high) if np.trapezoid(inside, _GRID) < probability else (low, middle)
    return high


@functools.cache
def median_deviation(n: int) -> float:
    """Return the standard deviation of the median of n independent standard normals (1.2533/√n for large n)."""
    if n == 1:
        return 1.0
    # The lower middle order statistic; for even n the two middles average to slightly less, so this errs wide.
    rank = (n + 1) // 2
    weight = rank * math.comb(n, rank)
    below = _cumulative(_GRID)
    density = weight * below ** (rank - 1) * (1 - below) ** (n - rank) * _density(_GRID)
    mean = float(np.trapezoid(_GRID * density, _GRID))
    return math.sqrt(float(np.trapezoid((_GRID - mean) ** 2 * density, _GRID)))
