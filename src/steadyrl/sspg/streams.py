"""The average episode length of streams that are cut off anywhere: steps over ends (Proposition 4).

At steady state every transition ends an episode with probability 1/E[T], so over any stretch of time, however short
and wherever it is cut,

    E[ends] = steps / E[T]:      E[T] is estimated by steps / ends.

The mean of the lengths of finished episodes is not: in a stretch of time short ones finish more often.
Copies are independent of each other, so the spread of their numbers of ends says how sure the estimate is.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from steadyrl.common.checks import plain_array, shown
from steadyrl.common.intervals import Interval
from steadyrl.errors import LengthsError

Array = NDArray[np.float64]


def stream_episode_length(ends: ArrayLike, *, level: float = 0.95) -> Interval:
    """Return E[T] from streams at steady state, with its confidence interval.

    Args:
        ends: [steps, copies], whether the transition of each copy at each step led to an episode's end. In the manner
            of NEXT_STEP, where the reset is a step of its own: T = l + 1.
        level: the probability that the interval covers the truth, for many copies and steps.

    Raises:
        LengthsError: if there is nothing to go by.

    Example:
        >>> ends = np.tile([[False], [False], [False], [True]], (3, 2))  # T = 4
        >>> stream_episode_length(ends).value
        4.0
    """
    seen = plain_array("ends", ends, LengthsError)
    if seen.ndim != 2 or seen.dtype != bool or not seen.size:
        raise LengthsError(f"ends have shape {seen.shape} and type {seen.dtype}; give booleans [steps, copies]")
    if not isinstance(level, float | np.floating) or not 0 < level < 1:
        raise LengthsError(f"level is {shown(level)}; it must be a probability above 0 and below 1, such as 0.95")
    counts = seen.sum(axis=0).astype(float)
    return episode_length_of_counts(counts, float(len(seen)), level=float(level))


def episode_length_of_counts(ends: Array, steps: float, *, level: float = 0.95) -> Interval:
    """Return E[T] from the ends of each copy in so many steps of each; infinite ends of the interval where unknown."""
    total, copies = float(ends.sum()), len(ends)
    if total == 0:
        least = steps * copies / -math.log1p(-level)  # the "rule of three", at 95%
        return Interval(math.inf, max(least, 1.0), math.inf)
    rate = total / (steps * copies)
    if copies == 1:
        return Interval(1 / rate, 1.0, math.inf)
    # Copies may agree by chance: one end more or less is the least that is not known.
    error = max(float(np.std(ends, ddof=1)) / math.sqrt(copies), 1 / copies) / steps
    reach = float(stdtrit(copies - 1, 0.5 + level / 2)) * error
    low = 1 / (rate + reach)
    return Interval(1 / rate, max(low, 1.0), 1 / (rate - reach) if rate > reach else math.inf)
