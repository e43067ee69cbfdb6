"""What is known about returns without a critic: a straight line in the steps left up to the time limit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Line:
    """Returns as a function of the steps left, as measured."""

    end: float
    """Where no step is left."""
    rate: float
    """For each step left."""
    share: float = 1.0
    """Of states, those whose episode goes to the time limit: for the others the steps left mean nothing."""


def line_through(left: Array, returns: Array) -> Line:
    """Return the least-squares line; a level one where the steps left do not vary.

    Example:
        >>> line_through(np.array([0.0, 1.0, 2.0]), np.array([3.0, 5.0, 7.0]))
        Line(end=3.0, rate=2.0, share=1.0)
    """
    centre, level = left.mean(), returns.mean()
    spread = ((left - centre) ** 2).mean()
    rate = ((left - centre) * (returns - level)).mean() / spread if spread > 0 else 0.0
    return Line(float(level - rate * centre), float(rate))
