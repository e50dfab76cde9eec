"""Huber's robust linear estimate for many unknowns, of which each measurement shows a few."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.linalg import LinearOperator, cg

_Array = NDArray[np.float64]

_MAD_TO_SIGMA = 1.4826  # of a normal distribution
# Huber's constant for 95 % efficiency under normal noise [Huber & Ronchetti, Robust Statistics, §4].
_HUBER = 1.345
# Of log bandwidth: the estimate is settled when nothing moves by a thousandth of a percent.
_STEPS, _SETTLED = 50, 1e-5
# Of log bandwidth: nothing repeats better than to 0.1 %, and weights would divide by nothing.
_LEAST_SIGMA = 1e-3
# Holds near 0 what the measurements leave open (a ring of even length, a leaf never crossed): as if its standard
# deviation were 16 times the noise, 30 % for 2 %. Of an effect that eight measurements show it takes a two-thousandth.
_RIDGE = 0.004
_PRECISE = 1e-10


@dataclass(frozen=True, slots=True)
class Estimate:
    """The unknowns, one measurement's noise `sigma` with its degrees of freedom, and the matrix of normal equations."""

    values: _Array
    sigma: float
    freedom: int
    normal: _Array

    def errors(self) -> _Array:
        """Return the unknowns' standard errors."""
        return self.sigma * np.sqrt(np.diag(_inverse(self.normal)))


def estimate(dense: _Array, held: _Array, measured: _Array) -> Estimate:
    """Return the unknowns (columns of `dense`) that explain `measured`, under `held` @ unknowns = 0.

    The first one is common to all measurements. Solved by conjugate gradients from the last step's result, without the
    zeros: each measurement shows few unknowns.
    """
    design: Any = csr_array(dense)
    ridge = np.where(np.arange(dense.shape[1]) > 0, _RIDGE, 0.0)
    values, weights = np.zeros(dense.shape[1]), np.ones(len(measured))
    freedom = max(1, len(measured) - dense.shape[1] + len(held))
    sigma = _LEAST_SIGMA
    for _ in range(_STEPS):
        before = values
        system = _System(design, weights, held, ridge)
        values = system.solved(design.T @ (weights * measured), before)
        rest = np.abs(measured - design @ values)
        sigma = max(_LEAST_SIGMA, _MAD_TO_SIGMA * float(np.median(rest)) * math.sqrt(len(rest) / freedom))
        weights = np.minimum(1.0, _HUBER * sigma / np.maximum(rest, _LEAST_SIGMA))
        if float(np.max(np.abs(values - before))) < _SETTLED:
            break
    return Estimate(values, sigma, freedom, system.dense())


class _System:
    """The normal equations of weighted least squares: designᵀ W design + heldᵀ held + ridge."""

    def __init__(self, design: Any, weights: _Array, held: _Array, ridge: _Array) -> None:
        self._normal: Any = csr_array(design.T @ design.multiply(weights[:, None]))
        self._held, self._ridge = held, ridge

    def dense(self) -> _Array:
        found: _Array = self._normal.toarray() + self._held.T @ self._held + np.diag(self._ridge)
        return found

    def solved(self, right: _Array, begin: _Array) -> _Array:
        diagonal = self._normal.diagonal() + (self._held**2).sum(axis=0) + self._ridge
        shape = 2 * (len(begin),)
        system: Any = LinearOperator(shape, matvec=self._times, dtype=np.float64)
        scaling: Any = LinearOperator(shape, matvec=lambda values: values / diagonal, dtype=np.float64)
        solution, _ = cg(system, right, begin, rtol=_PRECISE, M=scaling, maxiter=20 * len(begin))
        return np.asarray(solution, dtype=np.float64)

    def _times(self, values: _Array) -> _Array:
        found: _Array = self._normal @ values + self._held.T @ (self._held @ values) + self._ridge * values
        return found


def _inverse(matrix: _Array) -> _Array:
    """Return the inverse of a positive definite matrix, by sweeping one row after another.

    Not by LAPACK: beside other work its threads wait for each other for seconds, over what one does in milliseconds.
    """
    swept = matrix.copy()
    for k in range(len(swept)):
        pivot, row, column = swept[k, k], swept[k].copy(), swept[:, k].copy()
        swept -= np.multiply.outer(column, row / pivot)
        swept[k], swept[:, k], swept[k, k] = row / pivot, -column / pivot, 1 / pivot
    return swept
