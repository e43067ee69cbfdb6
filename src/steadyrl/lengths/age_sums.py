"""Sums of the observation at each age of an episode: all that marginal means at every time need.

The states of an episode have ages k = 1, ..., T, the terminal one included. Sums of the observation and of its square
at each age take memory that grows with the longest episode, not with the number of episodes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class AgeSums:
    """Sums over episodes of the flattened observation at each age; entry k - 1 is age k."""

    count: NDArray[np.int64]
    """[ages]: the episodes with T >= k."""
    total: Array
    """[ages, d]: the sum of the observation."""
    total_squares: Array
    """[ages, d]: the sum of its square."""

    @property
    def mean(self) -> Array:
        """E[s_k | T >= k], [ages, d]."""
        return self.total / self.count[:, None]

    @property
    def second_moment(self) -> Array:
        """E[s_k^2 | T >= k], each value by itself, [ages, d]."""
        return self.total_squares / self.count[:, None]


def count_ages(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many episodes reach each age k = 1, 2, ...: those with l + 1 >= k."""
    ends = np.bincount(lengths + 1)
    at_least: NDArray[np.int64] = ends[::-1].cumsum()[::-1]
    return at_least[1:]


def add_sums(a: Array, b: Array) -> Array:
    """Return the sum of two arrays of sums by age, which may differ in the longest age."""
    longer, shorter = (a, b) if len(a) >= len(b) else (b, a)
    result = longer.copy() if longer is a else np.array(longer)
    result[: len(shorter)] += shorter
    return result
