"""How wrong the batches of an update are, if all copies were reset together.

A batch of n steps from many copies holds the ages of n consecutive times, so its distance from the steady state is that
of their average:

    1/2 sum_k |mean of v(t - k) over the batch's t - 1/E[T]| P(T >= k).

Longer batches average phases out; with n = E[T] and fixed lengths they are fair.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from steadyrl.errors import LengthsError
from steadyrl.renewal import EpisodeLengths, renewal_sequence

Array = NDArray[np.float64]


def batch_distance(lengths: EpisodeLengths, n_steps: int, updates: int = 10) -> Array:
    """Return the distance from steady state of the batches of the first updates, taken from the start.

    Example:
        >>> fixed = EpisodeLengths.from_gymnasium([9])  # T = 10, always
        >>> batch_distance(fixed, 5, 3).round(6).tolist(), batch_distance(fixed, 10, 2).round(6).tolist()
        ([0.5, 0.5, 0.5], [0.0, 0.0])
    """
    if n_steps < 1 or updates < 1:
        raise LengthsError(f"n_steps is {n_steps} and updates is {updates}; both must be 1 or more")
    n = lengths.longest
    ends = renewal_sequence(lengths, n_steps * updates)
    total = np.concatenate([np.zeros(n + 1), np.cumsum(ends)])  # entry s + n + 1: sum of v up to s
    age = np.arange(1, n + 1)
    result = np.empty(updates)
    for i in range(updates):
        first, last = i * n_steps + 1, (i + 1) * n_steps
        high = np.maximum(last - age, -n - 1) + n + 1
        low = np.maximum(first - 1 - age, -n - 1) + n + 1
        starts = (total[high] - total[low]) / n_steps
        result[i] = 0.5 * np.abs(starts - 1 / lengths.mean) @ lengths.survival[1:]
    return np.clip(result, 0.0, 1.0)
