"""What is known about returns without a critic: a straight line in the time left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

FLAT = 1e-6  # variance of the time left below which a line through it has no slope


@dataclass(frozen=True)
class Line:
    """Returns as a function of `time_left`, as measured."""

    middle: float
    """At 0, in the middle of the horizon."""
    slope: float
    certain: bool = False
    """Whether every episode goes to its time limit, so that the age is all there is to know about its end."""


def time_left(ages: Any, horizon: int) -> Any:
    """Return 1 at the start of an episode, falling to -1 at the horizon."""
    return 1.0 - 2.0 * (ages - 1) / horizon


def line_through(x: Array, y: Array, weights: Array | None = None, *, certain: bool = False) -> Line:
    """Return the least-squares line; without a slope where x hardly varies.

    Example:
        >>> line_through(np.array([0.0, 1.0, 2.0]), np.array([3.0, 5.0, 7.0]))
        Line(middle=3.0, slope=2.0, certain=False)
    """
    centre, level = np.average(x, weights=weights), np.average(y, weights=weights)
    spread = np.average((x - centre) ** 2, weights=weights)
    slope = np.average((x - centre) * (y - level), weights=weights) / spread if spread > FLAT else 0.0
    return Line(float(level - slope * centre), float(slope), certain)
