"""Quantiles of normal samples that the tier rule needs; computed, so that any number of pairs and visits works."""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy.typing import NDArray

_Array = NDArray[np.float64]
# ±8 σ holds all but 1e-15 of a normal; 1/200 σ steps give four digits.
_GRID: _Array = np.linspace(-8.0, 8.0, 3201)
# The range of 1,000 normals exceeds 12 σ once in 1e6.
_RANGES: _Array = np.linspace(0.0, 12.0, 241)


def _density(x: _Array) -> _Array:
    return np.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def _cumulative(x: _Array) -> _Array:
    return np.array([0.5 * (1 + math.erf(v / math.sqrt(2))) for v in x])


@functools.cache
def _below_grid() -> _Array:
    return _cumulative(_GRID)


@functools.cache
def _range_distribution(n: int) -> _Array:
    """Return P(range of n independent standard normals ≤ w) for each w of `_RANGES`.

    Source: David & Nagaraja, Order Statistics, §2.3: P = n ∫ φ(x) (Φ(x + w) − Φ(x))^(n−1) dx.
    """
    density, below = n * _density(_GRID), _below_grid()
    inside = (np.interp(_GRID + width, _GRID, below) - below for width in _RANGES)
    return np.array([np.trapezoid(density * part ** (n - 1), _GRID) for part in inside])


@functools.cache
def range_quantile(n: int, probability: float = 0.95, freedom: float = math.inf) -> float:
    """Return w with P(range of n standard normals ≤ w · s) = probability: the studentized range's quantile, in σ.

    `s` is an independent estimate of σ with that many degrees of freedom, which need not be whole; ∞ knows σ.
    """
    spreads, weights = _spread_distribution(freedom)
    chances = _range_distribution(n)
    low, high = 0.0, 1000.0  # of two normals with half a degree of freedom the 99 % quantile is below
    for _ in range(50):
        middle = (low + high) / 2
        inside = float(weights @ np.interp(middle * spreads, _RANGES, chances))
        low, high = (middle, high) if inside < probability else (low, middle)
    return high


@functools.cache
def _spread_distribution(freedom: float) -> tuple[_Array, _Array]:
    """Return values of s = √(χ²/freedom) and their probabilities."""
    if math.isinf(freedom):
        return np.ones(1), np.ones(1)
    # Midpoints, as the density has a pole at 0 below one degree of freedom.
    edges = np.linspace(0.0, 1 + 8 / math.sqrt(2 * freedom), 1001)
    spreads = (edges[1:] + edges[:-1]) / 2
    logs = (freedom - 1) * np.log(spreads) - freedom * spreads * spreads / 2
    weights = np.exp(logs - logs.max())
    return spreads, weights / weights.sum()


@functools.cache
def median_deviation(n: int) -> float:
    """Return the standard deviation of the median of n independent standard normals (1.2533/√n for large n)."""
    if n == 1:
        return 1.0
    # The lower middle order statistic; for even n the two middles average to slightly less, so this errs wide.
    rank = (n + 1) // 2
    weight = rank * math.comb(n, rank)
    below = _below_grid()
    density = weight * below ** (rank - 1) * (1 - below) ** (n - rank) * _density(_GRID)
    mean = float(np.trapezoid(_GRID * density, _GRID))
    return math.sqrt(float(np.trapezoid((_GRID - mean) ** 2 * density, _GRID)))
