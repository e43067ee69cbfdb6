"""Estimates with confidence intervals, and the confidence interval of a mean."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from steadyrl.common.checks import is_number, shown
from steadyrl.errors import StatisticsError

_LARGE = 1e100


@dataclass(frozen=True)
class Interval:
    """An estimate and the ends of its confidence interval."""

    value: float
    low: float
    high: float

    @property
    def relative_error(self) -> float:
        """Half the width of the interval, extended to contain the value, relative to the value.

        It is 0 where the interval is a single point, even an infinite one, and infinite where only an end is infinite.
        """
        low, high = min(self.low, self.value), max(self.high, self.value)
        if low == high:
            return 0.0
        if not math.isfinite(high) or not math.isfinite(self.value) or self.value == 0:
            return math.inf
        return (high - low) / (2 * abs(self.value))

    def times(self, factor: float) -> Interval:
        """Return the interval of the estimate times a positive number."""
        if not is_number(factor) or not 0 < factor < math.inf:  # others would turn the ends around
            raise StatisticsError(f"factor is {shown(factor)}; it must be a positive number")
        factor = float(factor)  # numbers of numpy would round the ends to their own precision
        return Interval(self.value * factor, self.low * factor, self.high * factor)


def mean_interval(values: ArrayLike, level: float = 0.9) -> Interval:
    """Return the mean of independent values with its confidence interval (Student's t); infinite ends for one value.

    Example:
        >>> mean_interval([1.0, 2.0, 3.0]).value
        2.0
    """
    sample, scale = scaled_down(np.asarray(values, dtype=float))
    mean, n = float(sample.mean()), len(sample)
    if n < 2:
        return Interval(mean * scale, -math.inf, math.inf)
    return student_interval(mean, float(sample.std(ddof=1)) / math.sqrt(n), n - 1, level).times(scale)


def scaled_down(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """Return values that can be squared and summed without overflow, and the factor that they were divided by.

    Ordinary values are returned as they are, with a factor of 1.
    """
    largest = float(np.abs(values).max(initial=0.0))
    return (values / largest, largest) if largest > _LARGE else (values, 1.0)


def student_interval(value: float, error: float, degrees_of_freedom: int, level: float) -> Interval:
    """Return the interval of an estimate with this standard error, by Student's t distribution."""
    reach = float(stdtrit(degrees_of_freedom, 0.5 + level / 2)) * error
    return Interval(value, value - reach, value + reach)
