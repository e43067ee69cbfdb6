"""The average episode length of streams that are cut off anywhere: steps over ends (Proposition 5).

At steady state every transition ends an episode with probability 1/E[T], so over any stretch of time, however short
and wherever it is cut,

    E[ends] = steps / E[T]:      E[T] is estimated by steps / ends.

The mean of the lengths of finished episodes is not: in a stretch of time short ones finish more often.
Copies are independent of each other, so the spread of their numbers of ends says how sure the estimate is.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from steadyrl.confidence import Interval
from steadyrl.errors import LengthsError

Array = NDArray[np.float64]

_MEMORY = 4.0  # average episode lengths after which an observation counts 1/e


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
    seen = np.asarray(ends)
    if seen.ndim != 2 or seen.dtype != bool or not seen.size:
        raise LengthsError(f"ends have shape {seen.shape} and type {seen.dtype}; give booleans [steps, copies]")
    counts = seen.sum(axis=0).astype(float)
    return episode_length_of_counts(counts, float(len(seen)), level=level)


def episode_length_of_counts(ends: Array, steps: float, *, level: float = 0.95) -> Interval:
    """Return E[T] from the ends of each copy in so many steps of each; infinite ends of the interval where unknown."""
    total, copies = float(ends.sum()), len(ends)
    if total == 0:
        return Interval(math.inf, steps * copies / 3, math.inf)  # "rule of three": no end in n steps
    rate = total / (steps * copies)
    if copies == 1:
        return Interval(1 / rate, 1.0, math.inf)
    error = float(np.std(ends, ddof=1)) / (steps * math.sqrt(copies))
    reach = float(stdtrit(copies - 1, 0.5 + level / 2)) * error
    low = 1 / (rate + reach)
    return Interval(1 / rate, max(low, 1.0), 1 / (rate - reach) if rate > reach else math.inf)


class StreamLength:
    """A running estimate of E[T] for a policy that changes: steps and ends, the old ones counting less and less.

    With the rewards of the same steps it also has the episode-wise performance, E[T] times the reward per step
    (Theorem 4), which likewise needs no finished episode.
    """

    def __init__(self, copies: int) -> None:
        self._ends, self._rewards = np.zeros(copies), 0.0
        self._steps = 0.0

    def add(self, ends: NDArray[np.bool_], rewards: Array) -> None:
        """Add [steps, copies] of a stream."""
        fade = math.exp(-len(ends) / (_MEMORY * self.estimate().value)) if self._steps else 0.0
        self._ends = self._ends * fade + ends.sum(axis=0)
        self._steps = self._steps * fade + len(ends)
        self._rewards = self._rewards * fade + float(rewards.sum())

    def estimate(self) -> Interval:
        """Return E[T] with its 95% interval; before any episode has ended, only that it is longer than the stream."""
        if not self._ends.any():
            return Interval(self._steps + 1, self._steps + 1, math.inf)
        return episode_length_of_counts(self._ends, self._steps)

    def mean_return(self) -> float:
        """Return J_epi, the expected return of an episode."""
        return self._rewards / (self._steps * len(self._ends)) * self.estimate().value

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        return {"ends": self._ends, "steps": np.float64(self._steps), "rewards": np.float64(self._rewards)}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self._ends = np.array(state["ends"], dtype=float)
        self._steps, self._rewards = float(state["steps"]), float(state["rewards"])
