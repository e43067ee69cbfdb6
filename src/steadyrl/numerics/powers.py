"""Distributions of a small Markov chain after many steps: M^1, M^2, M^4, ... by repeated squaring, kept for reuse.

After each squaring the rows are divided by their sums; otherwise the rounding error of the total mass would double too.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Powers:
    """Advances distributions of a chain by any number of steps."""

    def __init__(self, matrix: Array) -> None:
        self._powers = [np.asarray(matrix, dtype=float)]

    def power(self, exponent: int) -> Array:
        """Return M^(2^exponent)."""
        while len(self._powers) <= exponent:
            squared = self._powers[-1] @ self._powers[-1]
            self._powers.append(squared / squared.sum(axis=1, keepdims=True))
        return self._powers[exponent]

    def advance(self, row: Array, steps: int) -> Array:
        """Return row M^steps."""
        exponent = 0
        while steps:
            if steps & 1:
                row = row @ self.power(exponent)
            steps >>= 1
            exponent += 1
        return row

    def path(self, row: Array, steps: int) -> Array:
        """Return row, row M, ..., row M^(steps - 1), by doubling what is known."""
        rows, exponent = row[None, :], 0
        while len(rows) < steps:
            rows = np.concatenate([rows, rows @ self.power(exponent)])
            exponent += 1
        return rows[:steps]
