"""Subtraction-free elimination for absorbing Markov chains (Grassmann, Taksar, Heyman).

A chain with transition rates q(i, j) between n states and rates leave(i) out of them has

    A = diag(d) - q,    d(i) = sum_{j != i} q(i, j) + leave(i),

and gaussian elimination on A only ever needs the *off-diagonal* entries and `leave`: every pivot
is again a sum of what is left of its row. Nothing is subtracted, so each entry of the factors,
and each entry of a solution with a non-negative right-hand side, has a small *relative* error,
however stiff the chain is (O'Cinneide 1993; Alfa, Xue, Ye 2002). The diagonal of q, where 1 - 1e-15
has already lost its digits, is never read.

The elimination is blocked, so that nearly all the work is matrix multiplication.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

Array = NDArray[np.float64]

_BLOCK = 64


@dataclass(frozen=True, eq=False)
class Factors:
    """A = L U with L unit lower and U upper triangular, both M-matrices."""

    lower: Array
    upper: Array

    def solve_right(self, c: Array) -> Array:
        """Return y with A y = c."""
        return _by_sign(self._right, c)

    def solve_left(self, b: Array) -> Array:
        """Return x with x A = b."""
        return _by_sign(self._left, b)

    def _right(self, c: Array) -> Array:
        z = solve_triangular(self.lower, c, lower=True, unit_diagonal=True, check_finite=False)
        y: Array = solve_triangular(self.upper, z, lower=False, check_finite=False)
        return y

    def _left(self, b: Array) -> Array:
        z = solve_triangular(self.upper, b, lower=False, trans="T", check_finite=False)
        x: Array = solve_triangular(self.lower, z, lower=True, unit_diagonal=True, trans="T", check_finite=False)
        return x


def factor(q: Array, leave: Array) -> Factors:
    """Eliminate the states in order; every state must be able to leave."""
    n = len(leave)
    q = np.array(q, dtype=float, order="C")
    e = np.array(leave, dtype=float)
    d = np.empty(n)
    with np.errstate(
        under="ignore", over="ignore", divide="ignore", invalid="ignore"
    ):  # the caller looks at the pivots
        _eliminate(q, e, d)
    lower, upper = -np.tril(q, -1), -np.triu(q, 1)
    np.fill_diagonal(upper, d)
    return Factors(lower, upper)


def _eliminate(q: Array, e: Array, d: Array) -> None:
    """Overwrite q with both factors, e with each state's exit rate when it is eliminated, and d with the pivots."""
    n = len(d)
    for start in range(0, n, _BLOCK):
        stop = min(start + _BLOCK, n)
        for k in range(start, stop):
            # Row k and column k catch up with the states eliminated before k in this block.
            done = slice(start, k)
            q[k, k + 1 :] += q[k, done] @ q[done, k + 1 :]
            q[k + 1 :, k] += q[k + 1 :, done] @ q[done, k]
            e[k] += q[k, done] @ e[done]
            d[k] = q[k, k + 1 :].sum() + e[k]
            q[k + 1 :, k] /= d[k]
        block = slice(start, stop)
        q[stop:, stop:] += q[stop:, block] @ q[block, stop:]
        e[stop:] += q[stop:, block] @ e[block]


def _by_sign(solve: Callable[[Array], Array], rhs: Array) -> Array:
    """Solve for the positive and the negative part separately, so that neither involves a subtraction."""
    if rhs.min(initial=0.0) >= 0:
        return solve(rhs)
    parts = solve(np.column_stack([np.maximum(rhs, 0), np.maximum(-rhs, 0)]))
    return parts[:, 0] - parts[:, 1]
